"""Infinities: rows masked throughout, infinities that meet, and values that a mask only hides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from nanlab.findings.fault import Fault, algebra, match, number, plural, verb
from nanlab.findings.rule import Match, rule
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.trace.op import BORN, HEALED, location, walk

# Products with an infinity.

TIMES = (
    "A mask times -inf is -inf where the mask is one, but NaN where it is zero: use masked_fill."
)
_MATRICES = having("matmul", "dot")


def cancels(fault: Fault) -> bool:
    """Whether a product is NaN by cancelling terms, as no 0 meets an infinity."""
    if fault.name not in _MATRICES or len(fault.operands) < 2:
        return False
    x, y = fault.operands[-2:]
    met = (x == 0).double() @ y.isinf().double() + x.isinf().double() @ (y == 0).double()
    return not bool(met.any())


def became_nan(fault: Fault) -> str:
    """``3 elements of 512 became NaN``: carried infinities do not count."""
    count = int(torch.isnan(fault.result).sum()) if fault.result is not None else 0
    return f"{plural(count or fault.count, 'element')} of {fault.numel:,} became NaN"


Tensor = torch.Tensor
_SUMS = having("sums")
_PRODUCTS = having("multiplies")
_WAVES = having("wave")

# -- fully masked rows

_SOFTMAXES = having("softmax")
_LOG_SUMS = having("log_sum")
_OF_A_ROW = having("log_sum") | {"amax", "max"}
_ATTENTIONS = "attn attention scaled_dot_product_attention multi_head_attention_forward".split()
_ATTENTION = (
    "In attention, this query may attend to no key: its sample is all padding, or the masks"
    " together cover the row."
)


def _all_masked_rows(fault: Fault) -> int:
    """Number of all -inf rows in a softmax-like operation."""
    scores = fault.subject()
    if scores is None and fault.operands:
        scores = fault.operands[0]
    if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.dim() == 0:
        return 0
    dims = fault.saved.get("dim") if fault.backward else fault.argument(1, "dim")
    dims = [dims] if isinstance(dims, int) else list(dims or [-1])
    dims = [d - 2**64 if d >= 2**63 else d for d in dims]
    return int((scores == -float("inf")).all(dims[0] if len(dims) == 1 else tuple(dims)).sum())


@rule(
    example="""
        s = torch.randn(2, 3, requires_grad=True)
        hidden = torch.tensor([[True, True, True], [False, True, False]])
        p = torch.softmax(s.masked_fill(hidden, -float("inf")), 1)  # here
        p[:, 0].sum().backward()
    """,
    fix={'s.masked_fill(hidden, -float("inf"))': "s.masked_fill(hidden, torch.finfo(s.dtype).min)"},
    family="composite",
)
def softmax_all_masked(fault: Fault) -> Match | None:
    """A softmax over a row that is -inf throughout divides 0 by 0, and logsumexp of such a row is
    -inf with a NaN gradient.

    Leave one entry unmasked, drop the row, or mask with the lowest finite number, which gives a
    uniform row.
    """
    if fault.kind == "intended":
        return _intended_row(fault)
    if fault.name in ("sub", "rsub") and not fault.backward:
        return _by_hand(fault)
    if fault.forward in ("logaddexp", "logaddexp2"):
        return _impossible_pair(fault)
    if fault.forward not in _SOFTMAXES:
        return None
    rows = _all_masked_rows(fault)
    if not rows:
        return None
    attention = _ATTENTION if fault.calls(*_ATTENTIONS) else ""
    title = (
        f"{fault.forward.strip('_')} over {plural(rows, 'row')} that {verb(rows, 'is', 'are')} -inf"
        " throughout"
    )
    if fault.backward:
        title = f"the derivative of {title}"
    return match(fault, title, attention, scores=fault.subject())


def _by_hand(fault: Fault) -> Match | None:
    """Scores minus their logsumexp or maximum, both -inf: a softmax written by hand."""
    for slot in (0, 1):
        row, values = fault.operand_row(slot), fault.at(fault.argument(slot))
        above = fault.upstream(row, 3) if row >= 0 else ()
        made = next((at for at, op in above if op in _OF_A_ROW), None)
        if made is None or values is None or not len(values):
            continue
        if not bool((values == -float("inf")).all()):
            continue
        if any(1 < fault.numel_at(p) > fault.numel_at(made) for p in fault.parents(made)):
            title = (
                f"the {fault.op_at(made)} of a row that is -inf throughout was subtracted: -inf -"
                " (-inf) is NaN"
            )
            return match(
                fault, f"{title} for {plural(fault.count, 'element')}", columns=fault.named_operands
            )
    return None


def _impossible_pair(fault: Fault) -> Match | None:
    """logaddexp of two numbers that are both -inf."""
    pair = [fault.at(fault.subject(slot, name)) for slot, name in enumerate(("self", "other"))]
    if any(v is None or not len(v) or not bool((v == -float("inf")).all()) for v in pair):
        return None
    title = (
        f"the derivative of {fault.forward} of -inf and -inf is NaN for"
        f" {plural(fault.count, 'element')}"
    )
    return match(fault, title, columns=fault.named_operands)


def _intended_row(fault: Fault) -> Match | None:
    """An intended infinity that passed through a logsumexp into the loss."""
    for position in fault.origin.path:
        if position >= 0 and fault.op_at(position) in _LOG_SUMS:
            stats = fault.recording.stats(position)
            rows = stats.neginf + stats.nan
            title = (
                f"logsumexp over {plural(rows, 'row')} that {verb(rows, 'holds', 'hold')} -inf"
                " throughout reached the loss"
            )
            return Match(title, position=position)
    return None


# -- infinities that meet


def _infinite_operands(fault: Fault) -> list[Tensor]:
    return [v for v in fault.operands if v.is_floating_point() and bool(torch.isinf(v).any())]


@rule(
    example="""
        logp = torch.log_softmax(torch.tensor([1.0, 2.0, -float("inf")]).requires_grad_(), 0)
        target = torch.tensor([1.0, 0.0, 0.0])
        (target * logp).sum().backward()  # here
    """,
    fix={'float("inf")': "1e9"},
    family="general",
)
def zero_times_inf(fault: Fault) -> Match | None:
    """An infinity was multiplied by 0, or divided by an infinity, which is NaN.

    Multiplying by a mask of zeros does not remove an infinity: select with `where` or an index.
    """
    if fault.backward and fault.forward in _RUNS:
        return _other_factors(fault)
    given = fault.kept.args if fault.kept is not None else ()
    # the program wrote the infinity as a Python number
    if fault.name == "mul" and any(isinstance(v, float) and math.isinf(v) for v in given):
        return match(fault, f"0 times an infinity: {became_nan(fault)}", TIMES)
    if fault.name not in _PRODUCTS or not _infinite_operands(fault) or cancels(fault):
        return None
    what = "inf / inf" if fault.name == "div" else "0 × inf"
    return match(
        fault, f"{what} in {fault.name}: {became_nan(fault)}", columns=fault.named_operands
    )


_RUNS = frozenset("prod cumprod".split())
_OTHERS = (
    "The derivative of a product by one factor is the product of the others; torch multiplies those"
    " before it and those after it. Bound the factors, add up their logarithms, or leave out rows"
    " with a zero, whose product is 0."
)


def _other_factors(fault: Fault) -> Match | None:
    """A product with a zero among factors so large that their product overflows."""
    row = fault.operand_row(0)
    stats = fault.recording.stats(row)
    if stats is None or not stats.known or not stats.zero or stats.max is None or stats.min is None:
        return None
    largest = stats.largest
    limit = format_of(fault.dtype).max
    if largest <= 1 or math.log(limit) / math.log(largest) > stats.numel:
        return None
    title = (
        f"the derivative of {fault.forward} at {plural(stats.zero, 'zero')} among {stats.numel:,}"
        f" factors: the others, up to {number(largest)}, have products that overflow {fault.dtype},"
        " and 0 × inf is NaN"
    )
    return match(fault, title, _OTHERS, columns=fault.named_operands)


@rule(
    example="""
        a = torch.tensor([-float("inf"), 1.0])
        w = torch.ones(2, requires_grad=True)
        (a * w - a).sum().backward()  # here
    """,
    fix={'float("inf")': "1e9"},
    family="general",
)
def inf_minus_inf(fault: Fault) -> Match | None:
    """Two infinities cancelled: inf - inf is NaN.

    This happens when masked log-probabilities are subtracted, or -inf scores meet a +inf mask.
    Mask with a finite number, or select the valid elements first.
    """
    if not _infinite_operands(fault):
        return None
    if fault.name in _WAVES and not fault.backward:
        title = f"{fault.name} of an infinity has no value: {fault.elements} became NaN"
        return match(fault, title, columns=fault.named_operands)
    if fault.name not in _SUMS and not cancels(fault):
        return None
    return match(
        fault, f"inf - inf in {fault.name}: {became_nan(fault)}", columns=fault.named_operands
    )


@rule(
    example="""
        x = torch.tensor([[[float("inf"), -float("inf"), 1.0, 2.0]]])
        w = torch.ones(1, requires_grad=True)
        (F.avg_pool1d(x, 2) * w).sum().backward()  # here
    """,
    fix={'float("inf"), -float("inf")': "1e9, -1e9"},
    family="fallback",
)
def inf_minus_inf_(fault: Fault) -> Match | None:
    """Infinities among the operands cancelled, or met a zero, within one operation: both give NaN.

    Replace the infinities by a large finite number, or select the finite elements first.
    """
    if not _infinite_operands(fault) or any(bool(o.isnan().any()) for o in fault.operands):
        return None
    if fault.result is None or not bool(torch.isnan(fault.result).any()):
        return None
    title = f"{fault.name} of infinities: {became_nan(fault)}"
    return match(fault, title, columns=fault.named_operands)


# -- finite masks that overflow

_CONSTANTS = {
    float(torch.finfo(d).min) for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def _cost_constant(values: Tensor) -> float | None:
    """The number that forbids a choice among costs: the largest of a format, or a power of ten."""
    large = values[values > 1e3].double()
    highest = float(large.max()) if len(large) else 0.0
    known = -highest in _CONSTANTS or f"{highest:e}".split("e")[0].strip("0.") == "1"
    return highest if known and len(large) > 1 and bool((large == highest).all()) else None


def _mask_constant(values: Tensor) -> float | None:
    """The mask constant among scores; None for ordinary values."""
    large = values[values < -1e3].double()
    if not len(large) or len(torch.unique(large)) > 3:
        return None
    lowest = float(large.min())
    digits = f"{abs(lowest):.6e}".split("e")[0].strip("0.")
    if lowest in _CONSTANTS or len(digits) <= 1 or len(torch.unique(large)) < len(large):
        return lowest
    return None


@rule(
    example="""
        low = torch.finfo(torch.float32).min
        scores = torch.ones(1, 2, requires_grad=True) / 2
        padding = torch.ones(1, 2)
        mask = padding * low + padding * low  # here
        torch.softmax(scores + mask, 1).sum().backward()
    """,
    fix="""
        low = torch.finfo(torch.float32).min
        scores = torch.ones(1, 2, requires_grad=True) / 2
        padding = torch.ones(1, 2, dtype=torch.bool)
        torch.softmax(scores.masked_fill(padding | padding, low), 1).sum().backward()
    """,
    family="composite",
    phase="forward",
)
def mask_overflow(fault: Fault) -> Match | None:
    """A finite mask constant was added, scaled or cast until it overflowed to an infinity.

    A fully masked row is then infinite throughout. Combine masks as booleans, and fill once, in the
    dtype of the scores.
    """
    if fault.name not in having("scores"):
        return None
    result = fault.at(fault.result)
    if result is None or result.is_complex() or not len(result):
        return None
    infinity = float(result[0])
    if not math.isinf(infinity) or not bool((result == infinity).all()):
        return None
    constant_of = _cost_constant if infinity > 0 else _mask_constant
    read = (fault.at(o) for o in fault.operands if o.is_floating_point())
    finite = [v for v in read if v is not None and bool(torch.isfinite(v).all())]
    found = [constant for v in finite if (constant := constant_of(v)) is not None]
    is_mask = bool(finite) and all(bool((v == 1).all()) for v in finite)
    if fault.kept is not None and is_mask and infinity < 0:
        found += [n for n in fault.kept.args if isinstance(n, int | float) and n < -1e3]
    if not found:
        return None
    done = {"scaled": having("scales"), "cast": having("casts")}
    how = next((verb for verb, names in done.items() if fault.name in names), "added")
    title = (
        f"the mask constant {number(min(found))}, {how} in {fault.dtype}, overflows to"
        f" {infinity} for "
        f"{fault.elements}"
    )
    return match(fault, title, columns=fault.named_operands)


# Bad values hidden by a mask, or repaired afterwards, with a bad gradient.

_CHOICES = having("masks", "bounds")
_PICKS = having("picks")
_REPAIRS = frozenset({"nan_to_num"})
_IN_PLACE = having("masks", "assigns") | {"clamp"}
_ASSIGNMENTS = having("assigns")  # what ``x[i] = value`` runs


def hidden_by(fault: Fault) -> tuple[int, str] | None:
    """(row, op) of the operation that hid the value of a fault from the loss; else None.

    A forward fault counts if the loss is finite and a gradient is not: a matrix product, for
    instance, saved the bad value for the backward pass.
    """
    if fault.forward_position < 0 or not (fault.backward or fault.origin.sink.kind == "gradient"):
        return None
    if fault.forward_position not in fault.recording.bad:
        if fault.incoming_is_zero:
            return next(((p, op) for p, op in _handed_on(fault) if op == "where"), None)
        return None
    for position, op in fault.downstream():
        if (write := fault.wrote_over(position)) >= 0:
            return write, fault.op_at(write)
        if op in _CHOICES | _REPAIRS | _IN_PLACE or (op in _PICKS and fault.incoming_is_zero):
            if fault.recording.at(position).status == HEALED:
                return position, op
    return None


def _handed_on(fault: Fault) -> Iterator[tuple[int, str]]:
    """Rows downstream of a finite value, up to where another operation makes its gradient 0.

    A product with zeros does that itself; a `where` within a library function does not count.
    """
    cut = {fault.forward_position: False}
    for position, op in fault.downstream():
        if position < 0:
            continue
        readers = [p for p in fault.parents(position) if p in cut]
        cut[position] = all(cut[p] for p in readers) or (
            op == "mul" and _by_zeros(fault, position, readers)
        )
        if not cut[position] and (op != "where" or "where" in (fault.text_at(position) or op)):
            yield position, op


def _by_zeros(fault: Fault, position: int, readers: list[int]) -> bool:
    others = [fault.recording.stats(p) for p in fault.parents(position) if p not in readers]
    return any(stats is not None and stats.zero for stats in others)


def repairs(fault: Fault, position: int, op: str) -> bool:
    """Whether a row repairs a result afterwards: ``nan_to_num``, or a write into it."""
    return op in _REPAIRS or fault.recording.at(position).inplace


def _derivative(fault: Fault) -> str:
    """The local derivative at the first bad element: a product's other factor, or inf."""
    factors = [o for o in fault.operands if o is not fault.incoming]
    values = fault.at(factors[0]) if fault.name == "mul" and len(factors) == 1 else None
    if values is None or len(values) != fault.count or bool(torch.isfinite(values[0])):
        return "inf"
    return number(values[0])


def _hidden_match(fault: Fault, op: str, what: str) -> Match:
    by = "an assignment after it" if op in _ASSIGNMENTS else f"`{op}`"
    if not fault.backward:
        title = (
            f"{fault.forward} is not finite for {fault.elements}; {by} hid them from the loss, not"
            " from the gradient"
        )
        return match(fault, title, columns=fault.named_operands)
    value = "the bad value" if fault.forward_position in fault.recording.bad else "the value"
    title = (
        f"the gradient of {fault.forward} is {what} for {fault.elements}, though {by} hid {value}"
        " from the loss"
    )
    incoming = fault.at(fault.incoming)
    text = ""
    if incoming is not None and len(incoming) == fault.count:
        text = algebra(fault, _derivative(fault))
    columns = {name: v for name, v in fault.saved.items() if isinstance(v, Tensor)}
    return match(fault, title, text + _told_above(fault), columns=columns or fault.named_operands)


def born_above(fault: Fault) -> int:
    """The row on another line in which a hidden value was born that this derivative read; or -1."""
    recording = fault.recording
    if fault.forward_position not in recording.bad:
        return -1
    bad = walk(
        [fault.forward_position],
        lambda at: [p for p in recording.parents(at) if p in recording.bad],
    )
    born = min((p for p in bad if recording.at(p).status == BORN), default=fault.forward_position)
    row = recording.at(born)
    return -1 if not row or row.line == fault.finding.line else born


def _told_above(fault: Fault) -> str:
    born = born_above(fault)
    if born < 0:
        return ""
    row = fault.recording.at(born)
    file, line, _ = fault.recording.line_at(row.place)
    return f" The bad value was born in {row.name} ({location(file, line)})."


@rule(
    example="""
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        y = torch.where(x > 0, torch.log(x), torch.zeros_like(x))  # here
        y.sum().backward()
    """,
    fix="""
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        inner = torch.where(x > 0, x, torch.ones_like(x))
        torch.where(x > 0, torch.log(inner), torch.zeros_like(x)).sum().backward()
    """,
    family="context",
)
def where_grad_trap(fault: Fault) -> Match | None:
    """A `where`, mask or clamp after the operation hides the value, not the derivative.

    The branch not taken gets a gradient of 0, and 0 times its infinite derivative is NaN. Mask the
    argument before the operation as well: where(ok, f(where(ok, x, 1)), 0).
    """
    found = hidden_by(fault)
    # a derivative read the bad forward value again: its own, or that of what was made of it
    kept = fault.row.node >= 0
    if found is None or not (fault.backward or kept) or repairs(fault, *found):
        return None
    told = _hidden_match(fault, found[1], "NaN" if fault.incoming_is_zero else "not finite")
    return replace(told, phase="backward")


@rule(
    example="""
        a = torch.tensor([0.0, 1.0], requires_grad=True)
        r = torch.nan_to_num(a / (2 * a))  # here
        r.sum().backward()
    """,
    fix="""
        a = torch.tensor([0.0, 1.0], requires_grad=True)
        (a / (2 * a + 1e-6)).sum().backward()
    """,
    family="context",
)
def repair_forward_only(fault: Fault) -> Match | None:
    """`nan_to_num` or a write repaired the value after the operation; its gradient stays bad.

    Backward multiplies the repaired element's gradient of 0 by the infinite or NaN derivative of
    the operation, or by the bad value that a matrix product saved. Repair the argument instead.
    """
    found = hidden_by(fault)
    if found is None or not repairs(fault, *found):
        return None
    return _hidden_match(fault, found[1], "not finite")
