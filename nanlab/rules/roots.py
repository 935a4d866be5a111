"""Square roots at and below zero, and the standard deviation of a constant."""

from __future__ import annotations

from dataclasses import replace

import torch

from nanlab.operators import having
from nanlab.rules._evidence import algebra, match, number, plural, verb
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Match, rule
from nanlab.rules.division import centred_squares, divisor, zeros

Tensor = torch.Tensor
_ROOTS = having("root")


@rule(
    "error",
    example="""
        d2 = torch.tensor([0.0, 4.0], requires_grad=True)
        torch.sqrt(d2).sum().backward()  # here
    """,
    fix="""
        d2 = torch.tensor([0.0, 4.0], requires_grad=True)
        torch.sqrt(d2 + 1e-12).sum().backward()
    """,
)
def sqrt_at_zero(fault: Fault) -> Match | None:
    """The derivative 1 / (2 sqrt(x)) of a square root is infinite at 0, although its value is fine.

    A distance between equal points, the length of a zero vector and hypot(0, 0) are such roots;
    times an incoming gradient of 0 it is NaN. An epsilon goes inside the root, not after it.
    """
    if fault.name == "div" and not fault.backward:
        return _tangent(fault)
    if not fault.backward or fault.forward not in _ROOTS:
        return None
    root = fault.saved.get("result")
    values = fault.at(root)
    below = fault.at(divisor(fault)) if values is None else values
    if below is None or not bool((below == 0).any()):
        return None
    title = (
        f"the derivative of {fault.forward} at {plural(int((below == 0).sum()), 'zero')} among"
        f" {fault.numel:,} is infinite"
    )
    spread = fault.spread(root) if isinstance(root, Tensor) else None
    zero = torch.eq(spread, 0) if spread is not None else None
    return match(fault, title, algebra(fault, "inf", zero) + ".", only=zero, root=root)


def _tangent(fault: Fault) -> Match | None:
    """The derivative of a root in forward mode, t / (2 sqrt(x)), on a line that writes no
    division."""
    row = fault.operand_row(1)
    twice = fault.op_at(row) == "mul" and fault.recording.scalars.get(row) == (2,)
    root = (
        next((p for p in fault.parents(row) if fault.op_at(p) == "sqrt"), None) if twice else None
    )
    if root is None or not zeros(fault) or "/" in fault.text_at(fault.position):
        return None
    title = (
        f"the derivative of sqrt, in forward mode, at {plural(zeros(fault), 'zero')} among"
        f" {fault.numel:,} is infinite"
    )
    return replace(match(fault, title, tangent=fault.argument(0), root=divisor(fault)), op="sqrt")


@rule(
    "error",
    example="""
        v = torch.tensor([-1e-8, 4.0], requires_grad=True)
        torch.sqrt(v).sum().backward()  # here
    """,
    fix="""
        v = torch.tensor([-1e-8, 4.0], requires_grad=True)
        torch.sqrt(v.clamp_min(1e-12)).sum().backward()
    """,
)
def sqrt_of_negative(fault: Fault) -> Match | None:
    """A negative number has no real root.

    A variance computed as E[x²] - E[x]², or a squared distance as |a|² + |b|² - 2ab, comes out
    below zero by rounding: clamp it, or compute it from the differences.
    """
    if fault.forward not in ("sqrt", "rsqrt"):
        return None
    argument = fault.subject()
    values = fault.at(argument)
    if values is None or values.is_complex() or not bool((values < 0).any()):
        return None
    title = (
        f"{fault.forward} of {plural(int((values < 0).sum()), 'negative value')} (lowest"
        f" {number(values.min())}) among {argument.numel():,} is NaN"
    )
    return match(fault, title, x=argument)


@rule(
    "error",
    example="""
        x = torch.ones(2, 4, requires_grad=True)
        ((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)).sum().backward()  # here
    """,
    fix="""
        x = torch.ones(2, 4, requires_grad=True)
        ((x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt()).sum().backward()
    """,
    family="composite",
)
def std_of_constant(fault: Fault) -> Match | None:
    """Values that are all equal have no spread: dividing by their standard deviation is 0/0, and
    its derivative at 0 is infinite.

    A flat channel, a constant feature or a batch of one value does this; add the epsilon to the
    variance, inside the root.
    """
    if fault.backward and fault.forward in ("std", "std_mean"):
        return match(
            fault,
            f"the derivative of {fault.forward} of a constant is infinite for"
            f" {plural(fault.count, 'element')}",
            algebra(fault, "inf") + ".",
        )
    if fault.forward in having("normalises"):
        if (
            fault.exact is None
            or fault.bad is None
            or bool(torch.isfinite(fault.exact[fault.bad]).any())
        ):
            return None  # an overflow, which float64 does not have
        return match(
            fault,
            f"{fault.forward} of constant values: variance 0 and an epsilon of 0 for"
            f" {plural(fault.count, 'element')}",
        )
    root = fault.backward and fault.forward == "sqrt"
    if not (root or zeros(fault)) or (root and sqrt_at_zero.judge(fault) is None):
        return None
    if not centred_squares(fault):
        return None
    if root:
        return match(
            fault,
            f"the derivative of the root of {plural(fault.count, 'variance')} of zero is infinite",
            algebra(fault, "inf") + ".",
        )
    count = zeros(fault)
    title = (
        f"{plural(count, 'element')} of {fault.numel:,} {verb(count, 'was', 'were')} divided by a"
        " standard deviation of zero"
    )
    return match(fault, title, numerator=fault.argument(0), deviation=divisor(fault))
