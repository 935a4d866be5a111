"""Division by nothing: a zero divisor, a vector of norm zero, a constant's deviation, roots at and below zero."""

from __future__ import annotations

import torch

from nanlab.rules._evidence import algebra, match, number, plural
from nanlab.rules._fault import Fault
from nanlab.rules._rule import COMPOSITE, GENERAL, Match, rule

Tensor = torch.Tensor
_QUOTIENTS = frozenset("div true_divide divide floor_divide reciprocal remainder fmod addcdiv rsqrt".split())
_NORMS = frozenset(
    "linalg_vector_norm norm linalg_norm frobenius_norm renorm _weight_norm_interface _weight_norm".split()
)
_DEVIATIONS = frozenset(
    "std var std_mean var_mean var_std native_layer_norm native_batch_norm native_group_norm _fused_rms_norm".split()
)


def divisor(fault: Fault) -> Tensor | None:
    """What the guilty call divided by."""
    if fault.name in ("reciprocal", "rsqrt"):
        found = fault.argument(0)
    elif fault.name == "addcdiv":
        found = fault.argument(2)
    elif fault.name in _QUOTIENTS:
        found = fault.argument(1)
    elif fault.name in ("pow", "float_power") and _is_minus_one(fault.argument(1)):
        found = fault.argument(0)
    else:
        return None
    return torch.tensor(float(found)) if isinstance(found, (int, float)) else found


def _is_minus_one(exponent: object) -> bool:
    return isinstance(exponent, (int, float)) and exponent == -1


def _zeros(fault: Fault) -> int:
    """How many of the offending elements were divided by exactly zero."""
    below = fault.at(divisor(fault))
    return int((below == 0).sum()) if below is not None else 0


def _divisor_row(fault: Fault) -> int:
    """The row of the divisor of the forward operation."""
    if fault.forward in _NORMS | _DEVIATIONS | {"sqrt", "rsqrt", "reciprocal", "pow"}:
        return fault.operand_row(0)
    slots = {"addcdiv": 2}
    return fault.operand_row(slots.get(fault.forward, 1))


def _lineage(fault: Fault) -> list[str]:
    """The operators from which the divisor (or the radicand) was made, the nearest first."""
    row = _divisor_row(fault)
    return [op for _, op in fault.upstream(row)] if row != -1 else []


def centred_squares(fault: Fault) -> bool:
    """Whether a root or divisor came from a mean of squared deviations: a variance by hand."""
    row = _divisor_row(fault)
    for at, op in fault.upstream(row) if row != -1 else ():
        if op in _DEVIATIONS:
            return True
        if op == "mean":
            squared = [p for p in fault.parents(at) if fault.op_at(p) in ("pow", "mul", "square")]
            for p in squared:
                if any(fault.op_at(q) in ("sub", "rsub") and _subtracts_mean(fault, q) for q in fault.parents(p)):
                    return True
    return False


def _subtracts_mean(fault: Fault, position: int) -> bool:
    return any(fault.op_at(p) == "mean" for p in fault.parents(position))


def of_norm(fault: Fault) -> bool:
    """Whether the divisor is the length of a vector: a norm, the root of a sum of squares, the magnitude of a complex number."""
    lineage = _lineage(fault)
    if _NORMS & set(lineage[:5]) or fault.calls("normalize", "cosine_similarity"):
        return True
    if "sum" in lineage[:5] and ("sqrt" in (*lineage[:4], fault.forward) or fault.forward == "rsqrt"):
        row = _divisor_row(fault)
        sums = [at for at, op in fault.upstream(row) if op == "sum"]
        return any(fault.op_at(p) in ("pow", "mul", "square") for at in sums for p in fault.parents(at))
    above = fault.subject(0)
    return bool("abs" in lineage[:3] and isinstance(above, torch.Tensor) and above.is_complex())


@rule(
    "error",
    example="""
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        n = torch.tensor([0.0, 2.0])
        (x / n).sum().backward()  # here
    """,
    fix="""
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        n = torch.tensor([0.0, 2.0])
        (x / n.clamp_min(1.0)).sum().backward()
    """,
    precedence=GENERAL,
)
def div_by_zero(fault: Fault) -> Match | None:
    """Division by exactly zero gives an infinity, and 0/0 gives NaN.

    A count, a sum of weights or a range that can be empty has to be kept from zero *before* the division;
    a `where` after it cures the value, not the gradient.
    """
    if fault.name not in _QUOTIENTS and divisor(fault) is None:
        return None
    zeros = _zeros(fault)
    if not zeros:
        return None
    below = divisor(fault)
    above = (
        fault.argument(0)
        if fault.name in ("div", "true_divide", "divide", "floor_divide", "remainder", "fmod")
        else None
    )
    name = "derivative of a division" if fault.backward and fault.forward in _QUOTIENTS else "division"
    if fault.backward and fault.forward not in _QUOTIENTS:
        name = f"derivative of {fault.forward}: a division"
    values = fault.at(above) if above is not None else None
    both = int((values == 0).sum()) if values is not None else 0
    quotient = "0/0 = NaN" if both == fault.count else "inf or NaN" if both else "inf"
    title = f"{name} by zero for {plural(zeros, 'element')} of {fault.numel:,}: {quotient}"
    return match(fault, title, numerator=above, divisor=below)


@rule(
    "error",
    example="""
        x = torch.tensor([1e3, 2.0], requires_grad=True)
        (x / torch.tensor([1e-38, 2.0])).sum().backward()  # here
    """,
    fix="""
        x = torch.tensor([1e3, 2.0], requires_grad=True)
        (x / torch.tensor([1e-38, 2.0]).clamp_min(1e-6)).sum().backward()
    """,
    precedence=GENERAL,
)
def div_by_tiny(fault: Fault) -> Match | None:
    """The divisor is not zero but so small that the quotient is beyond the largest number of the dtype.

    Keep the divisor from the bottom of the range, or work with logarithms where it is a product of many factors.
    """
    below = fault.at(divisor(fault))
    if (
        below is None
        or not len(below)
        or not bool(((below != 0) & torch.isfinite(below)).all())
        or fault.name in ("remainder", "fmod")
    ):
        return None
    smallest = below.abs().max()
    if smallest.item() >= 0.1:
        return None
    above = fault.argument(0) if fault.name in ("div", "true_divide", "divide") else None
    title = f"division by {number(smallest)} overflows {fault.dtype} for {plural(fault.count, 'element')} of {fault.numel:,}"
    return match(fault, title, numerator=above, divisor=divisor(fault))


_NORM_TEXT = "the vector holds nothing but zeros"


@rule(
    "error",
    example="""
        v = torch.zeros(2, 3, requires_grad=True)
        (v / v.norm(dim=1, keepdim=True)).sum().backward()  # here
    """,
    fix="""
        v = torch.zeros(2, 3, requires_grad=True)
        (v / v.norm(dim=1, keepdim=True).clamp_min(1e-6)).sum().backward()
    """,
    precedence=COMPOSITE,
)
def norm_at_zero(fault: Fault) -> Match | None:
    """A vector of zeros has no direction: dividing it by its norm is 0/0, and the norm has no derivative there.

    Dead units, padding and all-zero rows make such vectors. `F.normalize` and cosine similarity divide by max(norm, eps);
    an epsilon that the dtype can hold, inside the root or under the norm, keeps value and gradient finite.
    """
    if fault.backward and fault.forward in _NORMS | {"_weight_norm"}:
        return match(
            fault,
            f"the derivative of {fault.forward} at {plural(fault.count, 'element')} is not finite: {_NORM_TEXT}",
            algebra(fault, "0/0") + ".",
        )
    if fault.name == "_weight_norm_interface":
        return match(fault, f"weight_norm of {plural(fault.count, 'element')} of {fault.numel:,}: {_NORM_TEXT}")
    if not _zeros(fault) or fault.forward == "sqrt" or not of_norm(fault):
        return None
    title = f"{plural(_zeros(fault), 'element')} of {fault.numel:,} were divided by a norm of zero: {_NORM_TEXT}"
    return match(fault, title, numerator=fault.argument(0), norm=divisor(fault))


# -- roots -------------------------------------------------------------------------------------------------------------

_ROOTS = frozenset("sqrt rsqrt hypot _cdist_forward cdist _euclidean_dist _pdist_forward pdist".split())


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

    A distance between equal points, the length of a zero vector and hypot(0, 0) are such roots; times an incoming gradient of 0
    it is NaN. An epsilon goes inside the root, not after it.
    """
    if not fault.backward or fault.forward not in _ROOTS:
        return None
    root = fault.saved.get("result")
    values = fault.at(root)
    below = fault.at(divisor(fault)) if values is None else values
    if below is None or not bool((below == 0).any()):
        return None
    title = f"the derivative of {fault.forward} at {plural(int((below == 0).sum()), 'zero')} among {fault.numel:,} is infinite"
    return match(fault, title, algebra(fault, "inf") + ".", root=root)


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

    A variance computed as E[x²] - E[x]², or a squared distance as |a|² + |b|² - 2ab, comes out below zero by rounding:
    clamp it, or compute it from the differences.
    """
    if fault.forward not in ("sqrt", "rsqrt"):
        return None
    argument = fault.subject()
    values = fault.at(argument)
    if values is None or values.is_complex() or not bool((values < 0).any()):
        return None
    title = f"{fault.forward} of {plural(int((values < 0).sum()), 'negative value')} (lowest {number(values.min())}) among {argument.numel():,} is NaN"
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
    precedence=COMPOSITE,
)
def std_of_constant(fault: Fault) -> Match | None:
    """Values that are all equal have no spread: dividing by their standard deviation is 0/0, and its derivative at 0 is infinite.

    A flat channel, a constant feature or a batch of one value does this; add the epsilon to the variance, inside the root.
    """
    if fault.backward and fault.forward in ("std", "std_mean"):
        return match(
            fault,
            f"the derivative of {fault.forward} of a constant is infinite for {plural(fault.count, 'element')}",
            algebra(fault, "inf") + ".",
        )
    if fault.forward in ("native_layer_norm", "native_batch_norm", "native_group_norm") and fault.kept is not None:
        return match(
            fault,
            f"{fault.forward} of constant values: variance 0 and an epsilon of 0 for {plural(fault.count, 'element')}",
        )
    root = fault.backward and fault.forward == "sqrt"
    if not (root or _zeros(fault)) or (root and sqrt_at_zero.judge(fault) is None):
        return None
    if not (centred_squares(fault) or {"std", "var"} & set(_lineage(fault)[:5])):
        return None
    if root:
        return match(
            fault,
            f"the derivative of the root of {plural(fault.count, 'variance')} of zero is infinite",
            algebra(fault, "inf") + ".",
        )
    title = f"{plural(_zeros(fault), 'element')} of {fault.numel:,} were divided by a standard deviation of zero"
    return match(fault, title, numerator=fault.argument(0), deviation=divisor(fault))


RULES = (div_by_zero, div_by_tiny, norm_at_zero, sqrt_at_zero, sqrt_of_negative, std_of_constant)
__all__ = ["RULES", "centred_squares", "divisor", "of_norm"]
