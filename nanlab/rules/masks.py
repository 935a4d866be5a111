"""A bad value hidden by a mask or repaired after the fact, whose gradient comes back."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanlab.analysis.origin_names import comes_back
from nanlab.operators import having
from nanlab.rules._evidence import algebra, match, number, plural
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Match, rule

Tensor = torch.Tensor
_CHOICES = having("masks", "bounds")
_PICKS = having("picks")
_REPAIRS = frozenset({"nan_to_num"})
_IN_PLACE = having("masks") | {"index_put", "copy"} | {"fill", "clamp"}
_ASSIGNMENTS = having("assigns")  # what ``x[i] = value`` runs


def hidden_by(fault: Fault) -> tuple[int, str] | None:
    """(row, op) of what hid the value of a fault from the loss; None if nothing did.

    A fault of the forward pass counts where the loss is finite and a gradient is not: the bad value
    was kept for the backward pass, by a matrix product for instance.
    """
    if fault.forward_position < 0 or not (fault.backward or fault.origin.sink.kind == "gradient"):
        return None
    if not fault.value_was_bad():
        return (
            next(((p, op) for p, op in _handed_on(fault) if op == "where"), None)
            if fault.incoming_is_zero
            else None
        )
    for position, op in fault.downstream():
        if (write := fault.wrote_over(position)) >= 0:
            return write, fault.op_at(write)
        if op in _CHOICES | _REPAIRS | _IN_PLACE or (op in _PICKS and fault.incoming_is_zero):
            if fault.healed(position):
                return position, op
    return None


def _handed_on(fault: Fault) -> Iterator[tuple[int, str]]:
    """What was made downstream from a finite value, up to where something else turns its gradient
    to 0.

    A product with zeros does so by itself, and a `where` within a library function is not the
    program's.
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
    """Whether a row repairs a value after the fact: ``nan_to_num``, or a write into the result."""
    row = fault.recording.op(position)
    return op in _REPAIRS or (row is not None and bool(row.inplace))


def _derivative(fault: Fault) -> str:
    """The local derivative at the first offending element: of a product the other factor, of the
    rest an infinity."""
    factors = [o for o in fault.operands if o is not fault.incoming]
    values = fault.at(factors[0]) if fault.name == "mul" and len(factors) == 1 else None
    known = (
        values is not None and len(values) == fault.count and not bool(torch.isfinite(values[0]))
    )
    return number(values[0]) if known and values is not None else "inf"


def _hidden_match(fault: Fault, op: str, what: str) -> Match:
    count = f"{plural(fault.count, 'element')} of {fault.numel:,}"
    by = "an assignment after it" if op in _ASSIGNMENTS else f"`{op}`"
    if not fault.backward:
        title = (
            f"{fault.forward} is not finite for {count}; {by} hid them from the loss, not from the"
            " gradient"
        )
        return match(fault, title, columns=fault.named_operands)
    value = "the value" if not fault.value_was_bad() else "the bad value"
    title = (
        f"the gradient of {fault.forward} is {what} for {count}, though {by} hid {value} from the"
        " loss"
    )
    incoming = fault.at(fault.incoming)
    text = ""
    if incoming is not None and len(incoming) == fault.count:
        text = algebra(fault, _derivative(fault)) + "."
    columns = {name: v for name, v in fault.saved.items() if isinstance(v, Tensor)}
    return match(fault, title, text, columns=columns or fault.named_operands)


@rule(
    "error",
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

    The branch that was not taken gets a gradient of 0, and 0 times its infinite derivative is NaN.
    Put a harmless argument in before the operation as well: where(ok, f(where(ok, x, 1)), 0).
    """
    found = hidden_by(fault)
    # the forward value was bad, and its own derivative read it again
    kept = comes_back(fault.recording, fault.origin)
    if found is None or not (fault.backward or kept) or repairs(fault, *found):
        return None
    return _hidden_match(fault, found[1], "NaN" if fault.incoming_is_zero else "not finite")


@rule(
    "error",
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
    """The value was repaired after the operation, by `nan_to_num` or by writing into it; its
    gradient stays bad.

    Backward multiplies the repaired element's gradient of 0 with the derivative of the operation,
    which is infinite or NaN, or a matrix product multiplies with the bad value that it had kept.
    Repair the argument instead.
    """
    found = hidden_by(fault)
    if found is None or not repairs(fault, *found):
        return None
    return _hidden_match(fault, found[1], "not finite")
