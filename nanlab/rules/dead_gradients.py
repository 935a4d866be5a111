"""Parameters to which no gradient comes, although the loss is computed with them."""

from __future__ import annotations

from collections.abc import Iterator

from nanlab.analysis.training import where
from nanlab.history import Dead
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.trace import Trace

SEVERAL = 2  # steps in which a gradient must be zero

_WHY = {
    "blocked": (
        "In {op} it is multiplied by what {blockers} makes 0, and {blockers} gets no gradient"
        " either: neither can leave 0."
    ),
    "flat": "{op} is constant between its jumps: its derivative is 0 everywhere.",
    "choice": (
        "{op} took the other alternative, or stood beyond its bound, for all {numel:,} values:"
        " their derivative is 0."
    ),
    "value": (
        "{op} gives exactly 0 for all {numel:,} values, and the gradient is multiplied by them."
    ),
    "saturated": (
        "The derivative of {op} is exactly 0 for all {numel:,} values: they lie where it is flat in"
        " floating point."
    ),
}
_FIXES = {
    "blocked": Fix(
        "begin with zeros in one factor of a product only, and with random values in the other",
        "nn.init.kaiming_uniform_(layer.weight, a=5**0.5)",
    ),
    "flat": Fix("pass the gradient straight through", "x + (torch.round(x) - x).detach()"),
    "choice": Fix(
        "let some gradient through beyond the bound, or start within it", "F.leaky_relu(x, 0.01)"
    ),
    "value": Fix(
        "compute the logarithm instead, and exponentiate last or not at all",
        "log_density = -0.5 * z**2",
    ),
    "saturated": Fix(
        "use the form in the log domain, or bring the values closer", "F.logsigmoid(x)"
    ),
}


@rule(
    "error",
    example="""
        p = nn.Parameter(torch.tensor([0.4, 1.6]))
        for i in range(2):
            p.grad = None
            q = torch.round(p)  # here
            (q - 1).square().sum().backward()
    """,
    fix="""
        p = nn.Parameter(torch.tensor([0.4, 1.6]))
        for i in range(2):
            p.grad = None
            q = p + (torch.round(p) - p).detach()
            (q - 1).square().sum().backward()
    """,
)
def dead_gradient(trace: Trace) -> Iterator[Finding]:
    """The parameter is used, and its gradient is exactly zero in every step: it never moves."""
    recording = trace.recording
    history = recording.training
    flushed = {flush.name for flush in history.flushes.values() if flush.cost == "gradient"}
    groups: dict[tuple[int, str], list[int]] = {}
    lasting = {
        recording.parameter_names[owner]: owner
        for owner, dead in history.dead.items()
        if not dead.alive and dead.steps >= SEVERAL and not dead.unknown and dead.at is not None
    }
    for name, owner in lasting.items():
        dead = history.dead[owner]
        if name not in flushed and all(blocker in lasting for blocker in dead.blockers):
            assert dead.at is not None
            groups.setdefault((dead.at.line, dead.why), []).append(owner)
    learns = any(dead.alive for dead in history.dead.values())
    for (_, why), owners in groups.items():
        if why != "choice" or not _converged(trace):
            yield _finding(
                trace,
                [recording.parameter_names[o] for o in owners],
                history.dead[owners[0]],
                learns,
            )


def _converged(trace: Trace) -> bool:
    """Whether the loss is 0: what is bounded has nothing left to learn."""
    recording = trace.recording
    losses = [recording.value(loss.source) for loss in recording.training.losses]
    return bool(losses) and losses[-1] == 0.0


def _finding(trace: Trace, names: list[str], dead: Dead, learns: bool) -> Finding:
    recording = trace.recording
    assert dead.at is not None
    place = where(recording, dead.at) | {"op": dead.at.op}
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    error = dead.why != "choice" or not learns
    told = _WHY[dead.why].format(
        op=place["op"], numel=dead.numel, blockers=" and ".join(dead.blockers)
    )
    return Finding(
        cause="dead-gradient",
        severity="error" if error else "warning",
        title=f"no gradient arrives at {shown}: it is exactly 0 in all {dead.steps} steps. {told}",
        explanation=dead_gradient.explanation,
        step=recording.step_of(dead.first),
        symptom="silent-underflow",
        fixes=[_FIXES[dead.why]],
        harmful=error,
        **place,
    )
