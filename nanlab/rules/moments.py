"""Momentum and second moments that leave the range of the half precision they are kept in."""

from __future__ import annotations

from dataclasses import replace

import torch

from nanlab.analysis.training import optimizer_step_at
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.stats import TensorStats
from nanlab.trace.recording import Recording

_SUMS = having("updates") - {"addcdiv", "sub"} | {"mul"}


@rule(
    "error",
    family="training",
    example="""
        w = torch.zeros(3, dtype=torch.float16, requires_grad=True)
        opt = torch.optim.SGD([w], lr=1e-7, momentum=0.9)
        for i in range(3):
            opt.zero_grad()
            (w * 30000.0).sum().backward()
            opt.step()  # here
    """,
    fix="""
        w = torch.zeros(3, requires_grad=True)
        opt = torch.optim.SGD([w], lr=1e-7, momentum=0.9)
        for i in range(3):
            opt.zero_grad()
            (w * 30000.0).sum().backward()
            opt.step()
    """,
)
def dtype_overflow(fault: Fault) -> Finding | None:
    """A moment in half precision outgrew its dtype: momentum m adds up to 1 / (1 - m) gradients, a
    second moment their squares.

    Every number that went in was finite, and so is their sum in float32.
    """
    step = optimizer_step_at(fault.recording, fault.position)
    if step is None or not fault.low or fault.name not in _SUMS or _of_parameter(fault):
        return None
    went_in = _finite_operands(fault.recording, fault.position)
    if not went_in:
        return None
    limits = format_of(getattr(torch, fault.dtype))
    shown = " and ".join(f"{_largest(stats):.4g}" for stats in went_in)
    return replace(
        fault.finding,
        cause="dtype-overflow",
        phase="optimizer",
        title=(
            f"{fault.name} in the update rule of {step.optimizer} leaves the range of"
            f" {limits.name}, which ends at {limits.max:.6g}: its operands reach {shown}"
        ),
        explanation=dtype_overflow.explanation,
        fixes=[
            Fix(
                "keep parameters and moments in float32",
                "model.float()  # and torch.autocast for the forward pass",
            ),
            Fix(
                "smaller gradients: a mean as the loss, or clipping",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
        ],
    )


def _of_parameter(fault: Fault) -> bool:
    """Whether it is a parameter that was written, rather than the optimizer's state."""
    return any(
        s.kind == "parameter" and s.position == fault.position for s in fault.recording.sinks
    )


def _finite_operands(recording: Recording, position: int) -> list[TensorStats]:
    """The statistics of what an operation read; none if something was not finite, or is not
    known."""
    found = [recording.stats(source) for source, _ in recording.operands(position)]
    known = [stats for stats in found if stats is not None and stats.is_finite and stats.numel]
    return known if len(known) == len(found) else []


def _largest(stats: TensorStats) -> float:
    """The largest magnitude of a tensor."""
    return max(abs(stats.min or 0.0), abs(stats.max or 0.0))
