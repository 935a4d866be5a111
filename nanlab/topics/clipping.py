"""Gradient clipping that spreads one bad gradient to all, or that is always on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nanlab.analysis.clipping import always_on
from nanlab.analysis.training import where
from nanlab.findings.fault import Fault
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.operators import having
from nanlab.trace import Trace
from nanlab.trace.recording import OPTIMIZER

_NORMS = having("norm") | {"sum", "dot"} | {"mul"}
_REFUSE = Fix(
    "refuse to clip by such a norm",
    "torch.nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)",
)


@rule(
    "error",
    family="training",
    origins=("operation",),
    phase="update",
    example="""
        net = nn.Linear(4, 2).half()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        (60000 * net(torch.ones(3, 4).half()).float()).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # here
        opt.step()
    """,
    fix="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        (60000 * net(torch.ones(3, 4))).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    """,
)
def clip_nonfinite_norm(fault: Fault) -> Finding | None:
    """Clipping multiplies every gradient by max_norm / norm; a norm that is NaN or inf makes all of
    them NaN or zero."""
    if fault.row is None or fault.origin.sink.kind != "gradient" or fault.row.phase != OPTIMIZER:
        return None
    if fault.name not in _NORMS:
        return None
    return replace(
        fault.finding,
        cause="clip-nonfinite-norm",
        title=(
            f"the norm of finite gradients overflows {fault.dtype}, and clipping by it makes every"
            " gradient zero"
        ),
        explanation=(
            f"{clip_nonfinite_norm.explanation} Each gradient is finite here; only the norm is not."
        ),
        fixes=[_REFUSE],
    )


@rule(
    "warning",
    events=("training.misuses",),
    example="""
        a, b = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
        opt = torch.optim.SGD([a, b], lr=0.1)
        (a.sqrt() + b).sum().backward()
        nn.utils.clip_grad_norm_([a, b], 1.0)  # here
        opt.step()
    """,
    fix="""
        a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        opt = torch.optim.SGD([a, b], lr=0.1)
        (a.sqrt() + b).sum().backward()
        nn.utils.clip_grad_norm_([a, b], 1.0)
        opt.step()
    """,
)
def clip_nonfinite_norm_(trace: Trace) -> Iterator[Finding]:
    """Clipping multiplies every gradient by max_norm / norm; a norm that is NaN or inf makes all of
    them NaN or zero."""
    for misuse in trace.recording.training.misuses:
        if misuse.kind != "clip-spread":
            continue
        yield Finding(
            cause="clip-nonfinite-norm",
            severity="warning",
            title=(
                f"clipping spread the bad gradient of {misuse.name} to {misuse.ratio:.0f} other"
                " parameters"
            ),
            explanation=(
                f"{clip_nonfinite_norm_.explanation} Only the gradients named here were bad before."
            ),
            step=trace.recording.step_of(misuse.position),
            symptom="grad-nan",
            fixes=[_REFUSE],
            **where(trace.recording, misuse.at),
        )
        return


@rule(
    "note",
    events=("training.edits",),
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(24):
            opt.zero_grad()
            (50.0 * (net(torch.ones(3, 4)) - torch.ones(2)).abs().sum()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)  # here
            opt.step()
    """,
    fix="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=1e-4)
        for i in range(24):
            opt.zero_grad()
            (50.0 * (net(torch.ones(3, 4)) - torch.ones(2)).abs().sum()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1000.0)
            opt.step()
    """,
)
def clip_always_on(trace: Trace) -> Iterator[Finding]:
    """Clipping that takes effect in nearly every step no longer guards against outliers: it fixes
    the length of every update.

    The learning rate then sets that length alone, whatever the gradient. Some want that (normalised
    gradient descent); optimizers such as Adam divide by the gradient's size anyway.
    """
    if any(misuse.kind == "clip-before-unscale" for misuse in trace.recording.training.misuses):
        return  # told as such
    found = always_on(trace)
    edit = next((e for e in trace.recording.training.edits if e.at is not None), None)
    if found is None or edit is None or edit.at is None:
        return
    factor = float(found.history["factor"][found.history["clipped"]].median())
    top = found.parameters.index[0]
    advised, bound = found.advised_max_norm, found.bound or 0.0
    yield Finding(
        cause="clip-always-on",
        severity="note",
        title=(
            f"clipping to {bound:.3g} cuts {found.share:.0%} of {len(found.history)} steps, most to"
            f" {factor:.2g} of the gradient"
        ),
        explanation=(
            f"{clip_always_on.explanation} {top} has {found.parameters.share.iloc[0]:.0%} of the"
            " squared norm on average."
        ),
        step=trace.recording.step_of(edit.position),
        symptom="clipping",
        fixes=(
            [
                Fix(
                    f"a bound that only outliers reach: {advised:g} clips"
                    f" {found.would_clip(advised):.0%} of these steps; the learning rate must come"
                    " down with it",
                    f"torch.nn.utils.clip_grad_norm_(model.parameters(), {advised:g})",
                )
            ]
            if advised is not None
            else []
        ),
        **where(trace.recording, edit.at),
    )
