"""Results too large for a dtype, epsilons too small for it, hand-written backwards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import torch

from nanlab.errors import TypeMismatchError
from nanlab.findings.fault import LOW, Fault, floating, match, matched, number, plural
from nanlab.findings.rule import Finding, Match, rule
from nanlab.formats import FloatFormat, format_of
from nanlab.operators import card, having
from nanlab.trace.op import location
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
_EPSILON = re.compile(r"eps|\d\.?\d*e-\d+|tiny|0\.0+\d|\b(normalize|cosine_similarity)\(")
# so near 1 that float64 has rounded it too
_ONE_MINUS = re.compile(r"1(\.0*)?\s*-\s*(\d\.?\d*e-\d+|0\.0+\d)|0\.9{6,}")
_MIRRORED = having("inverse") | {"logit", "log1p"}  # they fail at 1, not at 0
_MIRRORS = having("mirrors")
_OF_SQUARES = having("norm") | {"std"}  # their squares overflow first
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_CLAMPS = having("floors", "clamps")
_PRODUCTS = having("squares", "multiplies") | {"exp"}


@rule(
    example="""
        x = torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True)
        (x * x).sum().backward()  # here
    """,
    fix={"x * x": "x.float() * x.float()"},
    family="fallback",
)
def dtype_overflow(fault: Fault) -> Match | Finding | None:
    """The exact result is finite, but larger than the largest number of its dtype.

    Scale its operands down first; in half precision, compute this operation in float32: sums,
    squares, matrix products and casts of unbounded values do not belong there.
    """
    if fault.exact is None or fault.bad is None or fault.result is None:
        return None
    limits = _limits(fault.dtype)
    if limits is None:
        return None
    values = _parts(fault.exact[fault.bad])
    size = values.abs() ** 2 if fault.name in _OF_SQUARES else values.abs()
    over = torch.isfinite(values) & (size > 0.5 * limits.max)
    where = "the derivative of " if fault.backward else ""
    name = "cast" if fault.name == "_to_copy" else fault.name
    if not bool(over.any()):
        return _on_the_way(fault, name, values, limits)
    largest = size[over].max()
    title = (
        f"{where}{name} overflows {fault.dtype} for {plural(int(over.sum()), 'element')} of"
        f" {fault.numel:,}: {number(largest)} is beyond its largest number {number(limits.max)}"
    )
    vanished = _flushed(fault) if where and name == "cast" else -1
    if vanished >= 0:
        op, lost = fault.op_at(vanished), str(fault.recording.at(vanished).dtype)
        told = f"{op} flushes all values to zero in {lost.removeprefix('torch.')}; there {title}"
        found = replace(match(fault, told, exact=fault.exact), position=vanished, phase="forward")
        told = "The product of small values became zero, where what follows has a huge derivative."
        return replace(
            matched(fault.trace, fault.finding, dtype_overflow, found),
            cause="dtype-underflow",
            explanation=told,
        )
    return replace(match(fault, title, exact=fault.exact), explanation=_growth(fault))


TURNS = 8  # of a loop, from which on its growth is told
STEADY = 0.9  # share of the turns in which what grows must do so


def _growth(fault: Fault) -> str:
    """By how much the result of this line grew from turn to turn of its loop; "" if it did not."""
    recording, position = fault.recording, fault.position
    row = recording.at(position)
    start = recording.starts[recording.step_of(position)] if row else position
    same = (each for p in range(start, position) if (each := recording.at(p)))
    alike = (r.stats.largest for r in same if (r.place, r.name) == (row.place, row.name))
    turns = [size for size in alike if size]  # a state begins at 0
    if fault.backward or len(turns) < TURNS:
        return ""
    rises = sum(before < after for before, after in pairwise(turns))
    factor = (turns[-1] / turns[0]) ** (1 / (len(turns) - 1))
    if rises < STEADY * (len(turns) - 1):
        return ""
    return (
        f"It has grown in {len(turns)} turns of a loop, by a factor of {factor:.2g} in each:"
        " orthogonal weights, a norm or a bounded activation keep that at 1."
    )


def _flushed(fault: Fault) -> int:
    """The product, power or exponential of numbers that were not all zero, whose underflow made all
    zero what the forward operation read; -1 if none did."""
    row = fault.operand_row(0)
    while row >= 0 and (stats := fault.recording.stats(row)) is not None and stats.all_zero:
        read = {p: fault.recording.stats(p) for p in fault.parents(row)}
        zero = next((p for p, s in read.items() if s is not None and s.all_zero), None)
        if zero is None:
            made = fault.op_at(row) in _PRODUCTS and None not in read.values()
            return row if made and _low(fault.recording.at(row).dtype) else -1
        row = zero
    return -1


def with_lost_zeros(fault: Fault, finding: Finding) -> Finding:
    """The finding of a zero, with the operation before it that rounds other numbers to 0."""
    for slot in (0, 1) if "zero" in finding.cause else ():
        told = rounded_to_zero(fault.recording, fault.operand_row(slot))
        if told and told not in finding.explanation:
            return replace(finding, explanation=f"{finding.explanation} {told}")
    return finding


def rounded_to_zero(recording: Recording, row: int) -> str:
    """A sentence on the operation that made the zeros of a row by underflow; "" if none did."""
    for _ in range(MOST_HOPS):
        op = recording.at(row)
        if not op or op.stats is None or not op.stats.zero:
            break
        read = [s for p in op.inputs if (s := recording.stats(p)) is not None]
        if not read or len(read) < len(op.inputs) or not op.dtype.is_floating_point:
            break
        zeros, name = op.stats.zero, op.base_name
        if name in _CASTS:
            made, what = zeros - read[0].zero, "the cast"
        elif name in _VANISHING:  # exp(-inf) is 0
            made, what = zeros - read[0].neginf, name.strip("_")
        else:  # a zero may have met several numbers, a Python number among them
            known = any(s.zero or not s.is_finite for s in read)
            known |= 0 in recording.scalars.get(row, ())
            made, what = 0 if known or name not in _SQUARES else zeros, name
        if made > 0:
            dtype = str(op.dtype).removeprefix("torch.")
            share = f"{made:,} of the" if made < zeros else "All"
            some = f"{share} {zeros:,} zeros were other numbers"
            return (
                f"{some if zeros > 1 else 'The zero was another number'} before: {what} at"
                f" {location(op.file, op.line)} rounds to 0 what {dtype} cannot hold,"
                f" {format_of(dtype).rounds_to_zero:.3g} and less."
            )
        if len(read) > 1 or read[0].zero != zeros:
            break
        row = op.inputs[0]
    return ""


MOST_HOPS = 16  # operations that hand zeros on
_CASTS = having("casts", in_place=True)
_SQUARES = having("squares")
_VANISHING = having("exponential") & having("non_negative") | {"sigmoid", "_softmax"}


def _limits(dtype: str) -> FloatFormat | None:
    """The format of a dtype, or of the parts of a complex one; None if unknown."""
    try:
        return format_of(_PARTS.get(dtype, dtype))
    except TypeMismatchError:
        return None


def _parts(values: Tensor) -> Tensor:
    """The numbers; for complex ones, their real and imaginary parts."""
    return torch.view_as_real(values).flatten() if values.is_complex() else values


def _on_the_way(
    fault: Fault, name: str, exact: Tensor, limits: FloatFormat
) -> Match | Finding | None:
    """An intermediate number overflows or underflows, though the result would fit."""
    read = [source for source, _ in fault.recording.operands(fault.position)]
    if not fault.recording.bad.isdisjoint(read) or not bool(torch.isfinite(exact).all()):
        return None
    parts = [_parts(o).abs().double().flatten() for o in fault.operands if floating(o)]
    numbers = torch.cat([p[torch.isfinite(p)] for p in parts]) if parts else exact[:0]
    if not len(numbers):
        return None
    largest = numbers.max()
    least = numbers[numbers > 0].amin() if bool(numbers.any()) else numbers.max()
    name = f"the derivative of {fault.forward}" if fault.backward else name
    shown = f"{plural(len(exact), 'element')} of {fault.numel:,}"
    would = f"though the result would be {number(exact[0])}"
    if largest > limits.max**0.5:
        title = (
            f"{name} overflows {fault.dtype} on its way for {shown}, {would}: its operands reach"
            f" {number(largest)}"
        )
        return match(fault, title, exact=fault.exact)
    if 0 < least < limits.smallest_normal**0.5:
        title = (
            f"{name} underflows {fault.dtype} on its way for {shown}, {would}: its smallest"
            f" operand is {number(least)}"
        )
        found = match(fault, title, exact=fault.exact)
        return replace(
            matched(fault.trace, fault.finding, dtype_overflow, found), cause="dtype-underflow"
        )
    return None


def _same_numbers(fault: Fault, position: int) -> bool:
    """Whether an operation left the statistics of its only operand unchanged."""
    rows = [position, *(p for p, _ in fault.recording.operands(position))]
    found = [s for s in map(fault.recording.stats, rows) if s is not None]
    kinds = {(s.min, s.max, s.zero, s.mean) for s in found}
    return len(rows) == len(found) == 2 and len(kinds) == 1


def vanished_epsilon(fault: Fault) -> int | None:
    """The row of an epsilon without effect upstream of the failed operand, or None."""
    slot = 1 if card(fault.forward).divisor == 1 or fault.forward == "xlogy" else 0
    start = fault.operand_row(slot)
    mirrored = fault.forward in _MIRRORED
    for position, op in fault.upstream(start, 6) if start != -1 else ():
        mirrored = mirrored or op in _MIRRORS
        row, stats = fault.recording.at(position), fault.recording.stats(position)
        if not row or stats is None:
            continue
        dtype = row.dtype
        if stats.zero and _meant_to_keep_off_zero(fault, position, op, dtype):
            return position
        at_one = mirrored and op in _CLAMPS and stats.max == 1.0
        if at_one and _meant_to_keep_off_one(fault, position):
            return position
    return None


def _meant_to_keep_off_zero(fault: Fault, position: int, op: str, dtype: torch.dtype) -> bool:
    """Whether an added or clamping number is not zero before rounding to the dtype."""
    numbers = fault.recording.scalars.get(position)
    if op in having("adds"):
        return any(numbers or (1.0,)) and _low(dtype) and _same_numbers(fault, position)
    if op not in _CLAMPS:
        return False
    if numbers is None:  # the bound is a tensor, or a whole number
        return _low(dtype) and bool(_EPSILON.search(fault.text_at(position)))
    return bool(_vanished(numbers, dtype))


def _vanished(numbers: Iterable[float], dtype: torch.dtype) -> list[float]:
    """The non-zero numbers that round to zero in the dtype."""
    return [x for x in numbers if x != 0.0 and not torch.tensor(x, dtype=dtype)]


def _meant_to_keep_off_one(fault: Fault, position: int) -> bool:
    """Whether the bound of a clamp is below 1 before rounding to the dtype."""
    numbers = fault.recording.scalars.get(position)
    if numbers is None:  # the bound is a tensor, or a whole number
        return bool(_ONE_MINUS.search(fault.text_at(position)))
    return any(0.5 < x < 1.0 for x in numbers)


def _low(dtype: torch.dtype) -> bool:
    return str(dtype).removeprefix("torch.") in LOW


@rule(
    example="""
        v = torch.zeros(1, 4, dtype=torch.float16, requires_grad=True)
        F.normalize(v, dim=1).sum().backward()  # here
    """,
    fix={"F.normalize(v, dim=1)": "F.normalize(v.float(), dim=1, eps=1e-3)"},
    family="composite",
    origins=("operation",),
    more_specific_than=("composite",),
)
def eps_underflow(fault: Fault) -> Match | Finding | None:
    """The epsilon meant to prevent this is too small for the dtype: it is rounded to zero, or
    absorbed by the number it is added to.

    float16 holds nothing below 6e-8, and 1 - 1e-8 is 1 in float32. Choose an epsilon that the dtype
    can hold, or compute this part in float32.
    """
    position = vanished_epsilon(fault)
    if position is None:
        return None
    row = fault.recording.at(position)
    dtype = str(row.dtype).removeprefix("torch.") if row else fault.dtype
    limits = format_of(dtype)
    stats = fault.recording.stats(position)
    if stats is not None and stats.max == 1.0 and not stats.zero:
        why = (
            f"1 minus an epsilon is 1 in {dtype}, whose spacing below 1 is {number(limits.ulp / 2)}"
        )
    else:
        known = _vanished(fault.recording.scalars.get(position, ()), getattr(torch, dtype))
        which = f"the epsilon {number(known[0])}" if known else "the epsilon"
        why = (
            f"{which} is 0 in {dtype}, which rounds everything up to"
            f" {number(limits.rounds_to_zero)} to zero"
        )
    title = f"{why}; {fault.forward} fails for {fault.elements}"
    found = match(fault, title, columns=fault.named_operands)
    if fault.finding.phase != "optimizer":
        return found
    return replace(
        matched(fault.trace, fault.finding, eps_underflow, found), cause="optimizer-eps-underflow"
    )


@rule(
    example="""
        class Root(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.sqrt()
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, g):
                (y,) = ctx.saved_tensors
                return g / (2 * y)  # here

        x = torch.tensor([0.0, 4.0], requires_grad=True)
        Root.apply(x).sum().backward()
    """,
    fix={"2 * y": "2 * y.clamp_min(1e-6)"},
    family="context",
    phase="backward",
    more_specific_than=("context",),
)
def custom_backward(fault: Fault) -> Match | None:
    """A hand-written `autograd.Function.backward` made the bad gradient.

    The formula must be finite wherever the forward is: check it with `torch.autograd.gradcheck`,
    at the edges too.
    """
    if not fault.custom:
        return None
    name = fault.kept.node_name.removesuffix("Backward") if fault.kept else "a custom Function"
    title = f"{fault.name} in the backward of {name} made {fault.elements} non-finite"
    return match(fault, title, fault.call_of_function, columns=fault.named_operands)
