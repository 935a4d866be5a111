"""The loss scale: too large, or never found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from nanlab.analysis.fixes import loss_factor
from nanlab.analysis.provenance import Origin
from nanlab.analysis.skipped_overflows import depends_on_scale
from nanlab.analysis.skipped_steps import Skip, below_one, collapse, skips
from nanlab.analysis.training import where
from nanlab.capture.scaler_order import UNSCALES
from nanlab.history import SCALED
from nanlab.rules._evidence import plural
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.trace import Trace
from nanlab.trace.recording import Recording


@rule(
    "error",
    family="training",
    more_specific_than=("training",),
    example="""
        net = nn.Linear(4, 2)
        half = net(torch.ones(3, 4)).half()
        loss = half.float().mean()  # here
        (loss * 2.0**24).backward()
    """,
    fix="""
        net = nn.Linear(4, 2)
        half = net(torch.ones(3, 4)).half()
        loss = half.float().mean()
        (loss * 2.0**8).backward()
    """,
)
def loss_scale_overflow(fault: Fault) -> Finding | None:
    """The gradients overflow at the loss scale in use, but not at a smaller one."""
    recording, origin, finding = fault.recording, fault.origin, fault.finding
    if fault.row is None or fault.kind != "operation":
        return None
    if _is_reciprocal_of_zero_scale(recording, origin):
        return _scale_is_zero(finding)
    factor = _factor(recording, origin.position)
    if factor >= SCALED and (depends_on_scale(recording, origin) or _is_root(recording, origin)):
        return _too_large(finding, factor)
    return _too_large(finding, 0.0) if _is_overflowing_scale(recording, origin) else None


def _too_large(finding: Finding, factor: float) -> Finding:
    scale = f"{factor:g}" if factor else "on the loss"
    return replace(
        finding,
        cause="loss-scale-overflow",
        title=f"the loss scale {scale} is too large: {finding.op} overflows",
        explanation=f"{loss_scale_overflow.explanation} A dynamic scaler finds the scale by itself and skips the steps that overflow.",
        fixes=[Fix("a dynamic loss scale", "scaler.scale(loss).backward(); scaler.step(opt); scaler.update()")],
    )


def _is_reciprocal_of_zero_scale(recording: Recording, origin: Origin) -> bool:
    """Whether a scaler divided by its own scale, and that was zero."""
    row = recording.op(origin.position)
    if row is None or row.name != "reciprocal":
        return False
    after = [r for p in origin.path if p >= 0 and (r := recording.op(p)) is not None]
    zero = any(recording.value(source) == 0.0 for source, _ in recording.operands(origin.position))
    return zero and any(r.name == UNSCALES for r in after)


def _scale_is_zero(finding: Finding) -> Finding:
    return replace(
        finding,
        cause="loss-scale-overflow",
        title="the loss scale is 0: every gradient becomes 0, and unscaling makes it 0 times inf",
        explanation="A dynamic scaler halves its scale in each step that overflows, down to 0 if nothing helps; doubling 0 "
        "never raises it again. A scaler restored from the checkpoint of such a run starts with it.",
        phase="optimizer",
        fixes=[Fix("start the scaler afresh", "scaler = torch.amp.GradScaler(device)  # instead of load_state_dict")],
    )


def _factor(recording: Recording, position: int) -> float:
    """By how much the loss was multiplied whose backward pass a row belongs to (or leads to)."""
    factor = loss_factor(recording, position)
    if math.isfinite(factor):
        return factor
    losses = recording.training.losses
    return max((other.factor for other in losses if math.isfinite(other.factor)), default=1.0)


def _is_root(recording: Recording, origin: Origin) -> bool:
    """Whether the overflow is that of the scaled loss itself."""
    return any(loss.root == origin.position and loss.factor == math.inf for loss in recording.training.losses)


def _is_overflowing_scale(recording: Recording, origin: Origin) -> bool:
    """Whether the scale itself overflowed when it was cast to the dtype of the loss."""
    row, stats = recording.op(origin.position), recording.stats(origin.position)
    if row is None or stats is None or stats.numel != 1 or row.name != "_to_copy":
        return False
    value = next((recording.value(p) for p, _ in recording.operands(origin.position)), None)
    joins = len(origin.path) > 1 and any(loss.root == origin.path[1] for loss in recording.training.losses)
    return bool(joins and value and value >= SCALED)


@rule(
    "error",
    family="training",
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
        for i in range(5):
            opt.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()  # here
            scaler.scale(wide.square().mean()).backward()
            scaler.step(opt)
            scaler.update(2.0**24)
    """,
    fix="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
        for i in range(5):
            opt.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()
            scaler.scale(wide.square().mean()).backward()
            scaler.step(opt)
            scaler.update()
    """,
)
def loss_scale_overflow_(trace: Trace) -> Iterator[Finding]:
    """The gradients overflow at the loss scale in use."""
    entries = skips(trace.recording)
    if not entries or any(update.before == 0.0 for update in trace.recording.training.scales):
        return  # a scale of zero is told as the fault that it makes
    first = entries[0]
    fatal = collapse(entries)
    place: dict[str, Any] = {
        "op": "",
        "phase": "backward",
        "module": "",
        "node": None,
        "file": "",
        "line": 0,
        "source": "",
        "position": -1,
    }
    if first.place is not None:
        place = where(trace.recording, first.place)
    at = f", first by the gradient of {first.parameter}" if first.parameter else ""
    last = entries[-1]
    common: dict[str, Any] = {"cause": "loss-scale-overflow", "step": first.step, **place}
    if fatal:
        yield Finding(
            severity="error",
            title=_fatal_title(entries),
            explanation=f"{loss_scale_overflow_.explanation} Here {fatal}{at}.",
            symptom="grad-nan",
            fixes=[_fatal_fix(entries)],
            harmful=True,
            **common,
        )
    elif low := below_one(entries):
        yield Finding(
            severity="warning",
            title=f"the loss scale came down to {last.after:g}: the gradients overflow without any scaling{at}",
            explanation=f"{loss_scale_overflow_.explanation} Below 1 the scaler makes gradients smaller instead of larger; {low}.",
            symptom="grad-inf",
            fixes=[_in_float32()],
            **common,
        )
    else:
        fits = f", finite at 2^{round(math.log2(last.finite_at))}" if last.finite_at else ""
        yield Finding(
            severity="note",
            title=f"the loss scaler skipped {plural(len(entries), 'step')}: {_shown(first.scale)} → {_shown(last.after)}{fits}{at}",
            explanation=f"{loss_scale_overflow_.explanation} A dynamic scaler starts high and halves the scale until the gradients fit. The skipped steps changed no weight.",
            symptom="grad-inf",
            **common,
        )


def _shown(scale: float) -> str:
    """A loss scale as people write it."""
    power = math.log2(scale) if scale > 0 else 0.5
    return f"2^{power:.0f}" if scale >= 2.0**20 and power == round(power) else f"{scale:g}"


def _lowered(entries: Sequence[Skip]) -> bool:
    """Whether the scaler came down, as a dynamic one does."""
    return any(0.0 < e.after < e.scale for e in entries)


def _fatal_title(entries: Sequence[Skip]) -> str:
    first, last = entries[0], entries[-1]
    count = plural(len(entries), "step")
    if all(b.scale > a.after for a, b in pairwise(entries)) and len(entries) > 1:
        return (
            f"the loss scale is {first.scale:g} again in each of {count}, and overflows; what the scaler learns is lost"
        )
    if _lowered(entries):
        return (
            f"the loss scaler came down from {first.scale:g} to {last.after:g}, and the gradients overflow in {count}"
        )
    used = f"{first.scale:g}" if first.scale else "in use"
    return f"the loss scale {used} overflows in {count}, and no smaller one is tried"


def _fatal_fix(entries: Sequence[Skip]) -> Fix:
    if any(b.scale > a.after for a, b in pairwise(entries)):
        return Fix("make one scaler, before the loop", 'scaler = torch.amp.GradScaler("cuda")')
    if _lowered(entries):
        return _in_float32()
    return Fix("let the scaler adapt", "scaler.update()  # without a fixed new_scale, after every scaler.step")


def _in_float32() -> Fix:
    return Fix("compute what overflows in float32", "with torch.autocast(device_type, enabled=False): ...")
