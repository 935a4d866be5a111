"""Division by zero, by tiny numbers and norms; roots at zero; singular matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nanlab.findings.fault import Fault, algebra, match, number, plural, verb
from nanlab.findings.rule import Match, rule
from nanlab.operators import card, having
from nanlab.rules.domain import power_of_tiny
from nanlab.rules.lengths import NORMS, measured, normalises, nowhere_zero, squared
from nanlab.rules.precision import rounded_to_zero

# Division by nothing: by zero, by a tiny number, by the norm of a vector of zeros.

Tensor = torch.Tensor
_QUOTIENTS = having("quotient")
_REMAINDERS = ("remainder", "fmod")
_DEVIATIONS = having("deviation", "normalises")


def divisor(fault: Fault) -> Tensor | None:
    """The divisor of the guilty call; None if it did not divide."""
    slot = card(fault.name).divisor
    if slot is not None:
        found = fault.argument(slot)
    elif fault.name in ("pow", "float_power") and _is_minus_one(fault.argument(1)):
        found = fault.argument(0)
    else:
        return None
    return torch.tensor(float(found)) if isinstance(found, (int, float)) else found


def _is_minus_one(exponent: object) -> bool:
    if isinstance(exponent, Tensor):
        return bool(exponent.numel()) and bool((exponent == -1).all())
    return isinstance(exponent, (int, float)) and exponent == -1


def _numerator(fault: Fault) -> Any:
    """What the guilty call divided; None of a reciprocal."""
    return fault.argument(0) if card(fault.name).divisor == 1 else None


def zeros(fault: Fault) -> int:
    """Number of offending elements divided by exactly zero."""
    below = fault.at(divisor(fault))
    return int((below == 0).sum()) if below is not None else 0


def _divisor_slot(fault: Fault) -> int:
    """The slot of the divisor among the forward operands."""
    if fault.forward in NORMS | _DEVIATIONS | {"sqrt", "pow"}:
        return 0
    slot = card(fault.forward).divisor
    return 1 if slot is None else slot


def centred_squares(fault: Fault) -> bool:
    """Whether a root or divisor is a standard deviation, or a variance by hand."""
    row = fault.operand_row(_divisor_slot(fault))
    for at, op in fault.upstream(row) if row != -1 else ():
        if nowhere_zero(fault, at):
            continue
        if op in _DEVIATIONS:
            return True
        if op == "mean":
            squared = [p for p in fault.parents(at) if fault.op_at(p) in having("squares")]
            for p in squared:
                centred = (q for q in fault.parents(p) if fault.op_at(q) in ("sub", "rsub"))
                if any(fault.op_at(mean) == "mean" for q in centred for mean in fault.parents(q)):
                    return True
    return False


def _by_length(fault: Fault, row: int) -> bool:
    """Whether a divisor comes from a norm that is 0 somewhere."""
    return fault.forward in NORMS or any(
        op in NORMS and not nowhere_zero(fault, at) for at, op in fault.upstream(row)
    )


def of_norm(fault: Fault) -> bool:
    """Whether a vector was divided by its own norm, or root of a sum of squares."""
    row = fault.operand_row(_divisor_slot(fault))
    if (
        fault.calls("normalize", "cosine_similarity")
        and fault.forward in _QUOTIENTS | NORMS
        and _by_length(fault, row)
    ):
        return True
    vectors = squared(fault, row) if fault.forward == "rsqrt" else measured(fault, row)
    dividend = fault.operand_row(0) if fault.forward in _QUOTIENTS and _divisor_slot(fault) else -1
    return bool(vectors) and (dividend == -1 or normalises(fault, dividend, vectors))


@rule(
    example="""
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        n = torch.tensor([0.0, 2.0])
        (x / n).sum().backward()  # here
    """,
    fix={"x / n": "x / n.clamp_min(1.0)"},
    family="general",
)
def div_by_zero(fault: Fault) -> Match | None:
    """Division by exactly zero gives an infinity, and 0/0 gives NaN.

    Bound a count, a sum of weights or a range away from zero before the division; a `where` after
    it repairs the value, not the gradient.
    """
    if fault.name not in _QUOTIENTS and divisor(fault) is None:
        return None
    count = zeros(fault)
    if not count:
        return None
    below = divisor(fault)
    above = _numerator(fault)
    name = (
        "derivative of a division" if fault.backward and fault.forward in _QUOTIENTS else "division"
    )
    if fault.backward and fault.forward not in _QUOTIENTS:
        name = f"derivative of {fault.forward}: a division"
    if not fault.backward and fault.name in _REMAINDERS:
        name = "remainder of a division"
    values, quotients = fault.at(above) if above is not None else None, fault.at(fault.result)
    both = int((values == 0).sum()) if values is not None else 0
    undefined = int(torch.isnan(quotients).sum()) if quotients is not None else both
    # the numerator was overwritten: a NaN tells
    known = fault.name not in _REMAINDERS and (both or (values is None and fault.name == "div"))
    nan = "0/0 = NaN" if known else "NaN"
    quotient = "inf" if not undefined else nan if undefined == fault.count else "inf or NaN"
    title = f"{name} by zero for {plural(count, 'element')} of {fault.numel:,}: {quotient}"
    row = fault.operand_row(_divisor_slot(fault))
    why = _SIGN_OF_ZERO if _pushed_by_sign(fault) else rounded_to_zero(fault.recording, row)
    return match(fault, title, why, numerator=above, divisor=below)


_SIGN_OF_ZERO = (
    "eps * sign(x) should keep the divisor off zero, but the sign of 0 is 0: use "
    "torch.where(x >= 0, eps, -eps)."
)


def _pushed_by_sign(fault: Fault) -> bool:
    """Whether eps * sign(0) was added to the divisor."""
    start = fault.operand_row(0 if fault.forward == "reciprocal" else 1)
    signs = (
        at for at, op in (fault.upstream(start, 4) if start != -1 else ()) if op in ("sign", "sgn")
    )
    stats = [fault.recording.stats(parent) for at in signs for parent in fault.parents(at)]
    return any(s is not None and bool(s.zero) for s in stats)


@rule(
    example="""
        x = torch.tensor([1e3, 2.0], requires_grad=True)
        (x / torch.tensor([1e-38, 2.0])).sum().backward()  # here
    """,
    fix={"2.0])).": "2.0]).clamp_min(1e-6))."},
    family="general",
)
def div_by_tiny(fault: Fault) -> Match | None:
    """The divisor is not zero but so small that the quotient overflows the dtype.

    Bound the divisor away from zero, or use logarithms where it is a product of many factors.
    """
    if fault.backward and fault.forward in ("reciprocal", "rsqrt") and fault.name in ("mul", "pow"):
        return _large_reciprocal(fault)
    if fault.forward in ("pow", "float_power"):
        return power_of_tiny(fault)
    below = fault.at(divisor(fault))
    if below is None and not fault.backward and fault.name == "mul":
        below = _inverted(fault)
    if (
        below is None
        or not len(below)
        or not bool(((below != 0) & torch.isfinite(below)).all())
        or fault.name in _REMAINDERS
    ):
        return None
    smallest = below.abs().max()
    if smallest.item() >= 0.1:
        return None
    above = fault.argument(0) if fault.name in having("divides") else None
    title = f"division by {number(smallest)} overflows {fault.dtype} for {fault.elements}"
    return match(fault, title, numerator=above, divisor=divisor(fault))


def _inverted(fault: Fault) -> Tensor | None:
    """The divisors of a quotient computed as a reciprocal, such as ``2.0 / x``."""
    for slot in (0, 1):
        row = fault.operand_row(slot)
        values = fault.at(fault.argument(slot))
        if values is not None and row >= 0 and fault.op_at(row) in ("reciprocal", "rsqrt"):
            return 1 / values.double()
    return None


def _large_reciprocal(fault: Fault) -> Match | None:
    """The derivative of 1/x overflows: it is the square of an already large result."""
    result = fault.saved.get("result")
    values = fault.at(result)
    if values is None or not len(values) or not bool(torch.isfinite(values).all()):
        return None
    largest = number(values.abs().max())
    title = (
        f"the derivative of {fault.forward} overflows {fault.dtype} for"
        f" {plural(fault.count, 'element')}: its result is {largest}"
    )
    return match(fault, title, result=result)


_SAME_SIZE = having("reshapes", "shifts") | {"sub", "mul"}


def _of_lengths(fault: Fault) -> bool:
    """Whether the dividend is itself a norm, so that no vector is normalised."""
    row = fault.operand_row(0) if fault.forward == "div" else -1
    while row >= 0 and fault.op_at(row) in _SAME_SIZE:
        row = next(iter(fault.parents(row)), -1)
    return row >= 0 and fault.op_at(row) in NORMS


_NORM_TEXT = "the vector is all zeros"


@rule(
    example="""
        v = torch.zeros(2, 3, requires_grad=True)
        (v / v.norm(dim=1, keepdim=True)).sum().backward()  # here
    """,
    fix={"keepdim=True)": "keepdim=True).clamp_min(1e-6)"},
    family="composite",
)
def norm_at_zero(fault: Fault) -> Match | None:
    """A vector of zeros has no direction: dividing it by its norm is 0/0, and the norm has no
    derivative there.

    Dead units, padding and all-zero rows make such vectors. `F.normalize` and cosine similarity
    divide by max(norm, eps). An epsilon that the dtype can hold, inside the root or added to the
    norm, keeps value and gradient finite.
    """
    if fault.backward and fault.forward in NORMS | {"_weight_norm"}:
        return match(
            fault,
            f"the derivative of {fault.forward} at {plural(fault.count, 'element')} is not finite:"
            f" {_NORM_TEXT}",
            algebra(fault, "0/0"),
        )
    if fault.name == "_weight_norm_interface":
        title = f"weight_norm divides {fault.elements} by a norm of zero"
        return replace(match(fault, title), samples=[])  # its rows are those of a weight
    if not zeros(fault) or fault.forward == "sqrt" or _divides_by_twice_a_root(fault):
        return None
    if not of_norm(fault) or _of_lengths(fault):
        return None
    count = zeros(fault)
    title = (
        f"{plural(count, 'element')} of {fault.numel:,} {verb(count, 'was', 'were')} divided by a"
        f" norm of zero: {_NORM_TEXT}"
    )
    return match(fault, title, numerator=_numerator(fault), norm=divisor(fault))


# Square roots at and below zero, and the standard deviation of a constant.

_ROOTS = having("root")


@rule(
    example="""
        d2 = torch.tensor([0.0, 4.0], requires_grad=True)
        torch.sqrt(d2).sum().backward()  # here
    """,
    fix={"torch.sqrt(d2)": "torch.sqrt(d2 + 1e-12)"},
)
def sqrt_at_zero(fault: Fault) -> Match | None:
    """The derivative 1 / (2 sqrt(x)) of a square root is infinite at 0, although its value is fine.

    The distance between equal points, the norm of a zero vector and hypot(0, 0) are such roots.
    An incoming gradient of 0 makes it NaN. Add an epsilon inside the root, not after it.
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
    return match(fault, title, algebra(fault, "inf", zero), only=zero, root=root)


def _tangent(fault: Fault) -> Match | None:
    """The derivative t / (2 sqrt(x)) of a root, scripted or in forward mode."""
    if not zeros(fault) or not _divides_by_twice_a_root(fault):
        return None
    scripted, root = fault.row.backward, divisor(fault)
    count, numel = zeros(fault), fault.numel
    if isinstance(root, Tensor) and root.numel() > 1:  # which several tangents may share
        count, numel = int((root == 0).sum()), root.numel()
    title = (
        f"the derivative of sqrt, in {'a scripted function' if scripted else 'forward mode'}, at"
        f" {plural(count, 'zero')} among {numel:,} is infinite"
    )
    return replace(match(fault, title, tangent=fault.argument(0), root=divisor(fault)), op="sqrt")


def _divides_by_twice_a_root(fault: Fault) -> bool:
    """Whether a quotient is the derivative of a root, on a line without a division."""
    if fault.name != "div" or fault.backward or "/" in fault.text_at(fault.position):
        return False
    row = fault.operand_row(1)
    return (
        fault.op_at(row) == "mul"
        and fault.recording.scalars.get(row) == (2,)
        and any(fault.op_at(p) == "sqrt" for p in fault.parents(row))
    )


@rule(
    example="""
        v = torch.tensor([-1e-8, 4.0], requires_grad=True)
        torch.sqrt(v).sum().backward()  # here
    """,
    fix={"torch.sqrt(v)": "torch.sqrt(v.clamp_min(1e-12))"},
)
def sqrt_of_negative(fault: Fault) -> Match | None:
    """A negative number has no real root.

    Rounding makes a variance computed as E[x²] - E[x]², or a squared distance as |a|² + |b|² -
    2ab, negative: clamp it, or compute it from the differences.
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
    example="""
        x = torch.ones(2, 4, requires_grad=True)
        ((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)).sum().backward()  # here
    """,
    fix={"x.std(1, keepdim=True)": "(x.var(1, keepdim=True) + 1e-5).sqrt()"},
    family="composite",
)
def std_of_constant(fault: Fault) -> Match | None:
    """Values that are all equal have no spread: dividing by their standard deviation is 0/0, and
    its derivative at 0 is infinite.

    A flat channel, a constant feature or a batch of one value does this. Add the epsilon to the
    variance, inside the root.
    """
    if fault.backward and fault.forward in ("std", "std_mean"):
        return match(
            fault,
            f"the derivative of {fault.forward} of a constant is infinite for"
            f" {plural(fault.count, 'element')}",
            algebra(fault, "inf"),
        )
    if fault.forward in having("normalises"):
        exact, bad, given = fault.exact, fault.bad, fault.subject()
        if exact is None or bad is None or bool(torch.isfinite(exact[bad]).any()):
            return None  # an overflow, which float64 does not have
        if isinstance(given, torch.Tensor) and not bool(torch.isfinite(given).all()):
            return None  # no constant
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
            algebra(fault, "inf"),
        )
    count = zeros(fault)
    title = (
        f"{plural(count, 'element')} of {fault.numel:,} {verb(count, 'was', 'were')} divided by a"
        " standard deviation of zero"
    )
    return match(fault, title, numerator=_numerator(fault), deviation=divisor(fault))


# Decompositions, inverses and determinants of matrices that are singular or have equal
# eigenvalues.

_MATRIX = having("matrix_function")


@rule(
    example="""
        a = torch.eye(3, requires_grad=True)
        values, vectors = torch.linalg.eigh(a * 2)  # here
        vectors[0, 0].backward()
    """,
    fix={"a * 2": "a * 2 + torch.diag(torch.tensor([0.0, 0.1, 0.2]))"},
    family="composite",
)
def degenerate_matrix(fault: Fault) -> Match | None:
    """A singular matrix has no inverse and no log-determinant; where eigenvalues or singular values
    coincide, or are zero, the derivative of their vectors divides by a difference of zero.

    Add a small multiple of the identity. Where eigenvalues are equal, nanlab.safe.eigh or svd keeps
    the gradient of whatever does not depend on the choice of vectors, as a function of the matrix;
    a small diagonal of different numbers does too. Else use only the eigenvalues, or cut the
    gradient of the vectors.
    """
    if not any(part in fault.forward for part in _MATRIX):
        return None
    saved = (fault.saved.get(name) for name in ("S", "eigenvalues", "L"))
    spectrum = next((each for each in saved if isinstance(each, torch.Tensor)), None)
    if spectrum is not None and spectrum.dim() and spectrum.shape[-1] > 1:
        ordered = spectrum.real.double().sort(-1).values
        gap = number((ordered[..., 1:] - ordered[..., :-1]).min())
        title = (
            f"the derivative of {fault.forward} divides by the differences of its values: the"
            f" smallest difference is {gap}, the smallest value {number(ordered.min())}"
        )
        return match(fault, title)
    verb = "the derivative of " if fault.backward else ""
    title = f"{verb}{fault.forward.strip('_')} of a singular matrix: {fault.elements} not finite"
    return match(fault, title)
