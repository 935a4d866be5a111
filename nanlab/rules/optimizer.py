"""Update rules that divide by zero: bias corrections, trust ratios, an eps that the dtype rounds to nothing."""

from __future__ import annotations

from dataclasses import replace

from nanlab.analysis.provenance import Origin
from nanlab.analysis.training import optimizer_step_at
from nanlab.formats import format_of
from nanlab.history import OptimizerStep
from nanlab.rules._fault import Fault
from nanlab.rules._rule import TRAINING, Finding, Fix, rule
from nanlab.rules.training import in_update
from nanlab.trace.recording import DTYPE, OP, Recording

_DIVIDES = frozenset(
    "addcdiv_ _foreach_addcdiv_ div div_ _foreach_div_ reciprocal reciprocal_ _foreach_reciprocal_".split()
)


@rule(
    "error",
    precedence=TRAINING - 1,
    example="""
        w = torch.ones(3, requires_grad=True)
        opt = torch.optim.Adagrad([w], lr=0.1, eps=0.0)
        (w * torch.tensor([0.0, 1.0, 2.0])).sum().backward()
        opt.step()  # here
    """,
    fix="""
        w = torch.ones(3, requires_grad=True)
        opt = torch.optim.Adagrad([w], lr=0.1)
        (w * torch.tensor([0.0, 1.0, 2.0])).sum().backward()
        opt.step()
    """,
)
def optimizer_arithmetic(fault: Fault) -> Finding | None:
    """Loss and gradients were finite; the update rule itself divided by zero, took a root of a negative, or overflowed.

    Bias corrections that count from zero, trust ratios of a zero norm and variances that round below zero do this.
    """
    if not in_update(fault) or fault.kind not in ("operation", "intended", "data"):
        return None
    step = optimizer_step_at(fault.recording, fault.position)
    return replace(
        fault.finding,
        cause="optimizer-arithmetic",
        phase="optimizer",
        title=f"{fault.name} in the update rule{f' of {step.optimizer}' if step else ''} made a non-finite value from finite operands",
        explanation=optimizer_arithmetic.explanation,
    )


@rule(
    "error",
    precedence=TRAINING,
    example="""
        w = torch.ones(3, dtype=torch.float16, requires_grad=True)
        opt = torch.optim.Adam([w], lr=0.1)
        (w * torch.tensor([0.0, 1.0, 2.0]).half()).sum().backward()
        opt.step()  # here
    """,
    fix="""
        w = torch.ones(3, dtype=torch.float16, requires_grad=True)
        opt = torch.optim.Adam([w], lr=0.1, eps=1e-4)
        (w * torch.tensor([0.0, 1.0, 2.0]).half()).sum().backward()
        opt.step()
    """,
)
def optimizer_eps_underflow(fault: Fault) -> Finding | None:
    """The optimizer's eps is rounded to zero in the dtype of the parameters, and the update divides by zero."""
    step = optimizer_step_at(fault.recording, fault.position)
    if step is None or fault.row is None or not in_update(fault):
        return None
    if _full_name(fault) not in _DIVIDES:
        return None
    return _eps_underflow(fault.recording, fault.origin, fault.finding, step)


def _full_name(fault: Fault) -> str:
    """The operator with the underscore of its in-place form."""
    return str(fault.recording.ops.items[fault.row[OP]]) if fault.row is not None else ""


def _eps_underflow(recording: Recording, origin: Origin, finding: Finding, step: OptimizerStep) -> Finding | None:
    eps = dict(step.settings).get("eps")
    row = recording.row(origin.position)
    if row is None or not eps:
        return None
    dtype = recording.dtypes.items[row[DTYPE]]
    limits = format_of(dtype)
    if eps > limits.rounds_to_zero:
        return None
    return replace(
        finding,
        cause="optimizer-eps-underflow",
        title=f"eps={eps:g} of {step.optimizer} is zero in {limits.name}: the update divides by zero",
        explanation=f"{optimizer_eps_underflow.explanation} {limits.name} has nothing between 0 and "
        f"{limits.smallest_subnormal:.3g}, so eps={eps:g} is rounded to 0. Where the second moment is 0 as well, the update is 0/0 or x/0.",
        fixes=[
            Fix(
                "keep the parameters in float32 (mixed precision)",
                "model.float()  # and torch.autocast for the forward pass; it concerns the whole model",
            ),
        ],
    )


RULES = (optimizer_arithmetic, optimizer_eps_underflow)
