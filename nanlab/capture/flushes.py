"""Losses that leave no NaN: values flushed to zero, gradients that are zero throughout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import numpy as np
import torch

from nanlab.capture.magnitudes import StepRows, place_of
from nanlab.formats import format_of
from nanlab.operators import base_name, having, in_place, with_forms
from nanlab.stats import TensorStats
from nanlab.trace.history import FEWEST_ZERO_LATE, Cost, Dead, Flush, History
from nanlab.trace.op import BACKWARD, BORN, FORWARD, OPTIMIZER, walk
from nanlab.trace.recording import Recording

# Losses that leave no NaN behind: values flushed to zero. Looked for when a step ends.

CASTS = having("casts", in_place=True)
PRODUCTS = (
    in_place(having("scales", lists=True))
    | having("scales", "matmul")
    | {"convolution", "convolution_backward"}
)
# Products of two values, or sums of such, that a zero of one operand does not make zero throughout.
PAIRS = (
    with_forms("mul", in_place=True)
    | {"_foreach_mul_"}
    | {"sigmoid_backward", "tanh_backward"}
    | {"mm", "bmm"}
)
SUMS = frozenset(("mm", "bmm"))
# times what rounds to zero: the typical size up to which a sum of products may have been lost whole
NEAR = 4.0
QUOTIENTS = with_forms("div", in_place=True) | {"_foreach_div_"}
INVERSES = having("inverts", in_place=True)  # quotients whose dividend is 1
SQUARES = frozenset(("addcmul_", "_foreach_addcmul_"))  # of optimizers: the second moment
SEVERAL = 8  # elements from which on a lost result is more than a small term of a sum
MOST_CANDIDATES = 64  # flushes that are looked into in one step
MOST_VISITS = 4000  # rows that are walked over for one victim


def lost_values(rows: StepRows) -> list[int]:
    """Rows all zero though no operand is: the dtype cannot hold the results."""
    recording = rows.recording
    names = recording.ops.items
    interesting = np.array([n in CASTS | PRODUCTS | SQUARES | PAIRS | INVERSES for n in names])
    found = []
    for i in np.flatnonzero(rows.all_zero() & interesting[rows.columns.op])[
        :MOST_CANDIDATES
    ].tolist():
        position = rows.start + i
        if _flushed(
            recording,
            position,
            names[rows.columns.op[i]],
            recording.dtypes.items[rows.columns.dtype[i]],
        ):
            found.append(position)
    return found


def _square_lost(recording: Recording, position: int, dtype: torch.dtype) -> bool:
    """Whether a narrow sum of squares is zero throughout though what was squared is not."""
    row = recording.op(position)
    if row is None or dtype not in (torch.float16, torch.bfloat16):
        return False
    own = [recording.stats(source) for source in recording.parents(position)]
    return len(own) > 1 and all(s is not None and s.is_finite and not s.all_zero for s in own[1:])


def _flushed(recording: Recording, position: int, op: str, dtype: torch.dtype) -> bool:
    if op in SQUARES:
        return _square_lost(recording, position, dtype)
    if op in INVERSES:
        return overflow_below(recording, position) >= 0
    if op in QUOTIENTS and overflow_below(recording, position) >= 0:
        return True
    operands = [
        s
        for source, _ in recording.operands(position)
        if (s := recording.stats(source)) is not None and s.numel
    ]
    if op == "copy_":
        operands = operands[-1:]
    if not operands or any(s.all_zero or not s.is_finite or s.absmin is None for s in operands):
        return False
    if op in CASTS:
        return True
    if len(operands) < 2:
        row = recording.op(position)
        return row is not None and bool(row.scaled)
    limit = format_of(dtype).rounds_to_zero
    if op in PAIRS and _pair_lost(op, operands[-2:], recording.stats(position).numel, limit):
        return True
    if op not in PRODUCTS:
        return False
    sizes = [s.largest for s in operands]
    if op in QUOTIENTS:
        return bool(operands[1].zero == 0 and sizes[0] / operands[1].absmin <= limit)
    made = max(1, recording.stats(position).numel)
    terms = max(1.0, (operands[-1].numel * operands[-2].numel / made) ** 0.5)
    return bool(sizes[-1] * sizes[-2] * terms <= limit)


def _pair_lost(op: str, operands: list[TensorStats], numel: int, limit: float) -> bool:
    """Whether a product can only be zero throughout because it was too small, told from the zeros
    of its operands.

    Where one of two has no zero, their product is zero only where the other is. A sum of products
    may also cancel, so it must be small as well: sqrt(terms) times the root mean squares. A
    saturated sigmoid or tanh has derivative zero.
    """
    sizes = [s.rms or 0.0 for s in operands]
    if all(s.zero for s in operands) or not all(sizes):
        return False
    if op.endswith("_backward"):
        return operands[1].largest < 1.0  # the derivative
    terms = (operands[0].numel * operands[1].numel / max(1, numel)) ** 0.5
    return op not in SUMS or sizes[0] * sizes[1] * terms**0.5 <= NEAR * limit


def overflow_below(recording: Recording, position: int) -> int:
    """The row whose half-precision overflow made every divisor infinite; -1: none did."""
    row, read = recording.op(position), recording.operands(position)
    if row is None or not read or len(read) != (1 if row.name in INVERSES else 2):
        return -1
    above = recording.stats(read[0][0]) if len(read) == 2 else None
    if len(read) == 2 and (above is None or not above.is_finite or above.all_zero):
        return -1
    below = recording.stats(read[-1][0])
    if below is None or not 0 < below.numel == below.posinf + below.neginf:
        return -1
    at = read[-1][0]
    for _ in range(MOST_VISITS):
        row = recording.op(at)
        if row is None or recording.status.get(at) == BORN:
            low = row is not None and row.dtype in (torch.float16, torch.bfloat16)
            return at if low else -1
        at = next((p for p in recording.parents(at) if p in recording.bad), -1)
    return -1


def _reaches(recording: Recording, start: int, lost: set[int], zero: set[int]) -> int | None:
    """The lost row from which an all-zero result comes, by way of all-zero results."""
    reached = walk(
        [start], lambda at: (p for p, _ in recording.operands(at) if p in zero), MOST_VISITS
    )
    return next((position for position in reached if position in lost), None)


def note_flushes(
    rows: StepRows, history: History, gradients: dict[int, int], written: list[tuple[int, int]]
) -> None:
    """Add what the step lost to ``history.flushes``.

    gradients: row of the gradient by number of the parameter. written: (parameter, row) of updates
    made by hand.
    """
    lost = set(lost_values(rows))
    if not lost:
        return
    recording = rows.recording
    zero = set((np.flatnonzero(rows.all_zero()) + rows.start).tolist())
    blamed: set[int] = set()
    known = [*gradients.items(), *_taken(rows, history), *_overwritten(recording, lost, gradients)]
    came = [(recording.parameter_names[owner], at) for owner, at in dict.fromkeys(known)]
    for name, source in came or _asked(rows, zero):
        if source in zero and (culprit := _reaches(recording, source, lost, zero)) is not None:
            blamed.add(culprit)
            _note(rows, history, culprit, "gradient", name)
    for owner, position in written:
        for operand in [operand for operand, slot in recording.operands(position) if slot]:
            culprit = _reaches(recording, operand, lost, zero) if operand in zero else None
            if culprit is not None:
                blamed.add(culprit)
                _note(rows, history, culprit, "update", recording.parameter_names[owner])
    differentiated = set(rows.columns.node[rows.columns.phase == BACKWARD].tolist()) - {-1}
    for position in lost - blamed:
        cost: Cost = "value" if _matters(rows, position, differentiated) else "tensor"
        _note(rows, history, position, cost, "")


def _matters(rows: StepRows, position: int, differentiated: set[int]) -> bool:
    """Whether a lost result of several values is in the loss's graph; squares vanish in a fit."""
    recording, row = rows.recording, rows.recording.op(position)
    read = [source for source, _ in recording.operands(position)]
    several = recording.stats(position).numel >= SEVERAL and len(set(read)) == len(read)
    return bool(several and row is not None and row.phase == FORWARD and row.node in differentiated)


def _taken(rows: StepRows, history: History) -> list[tuple[int, int]]:
    """(parameter, row) of gradients that optimizers took, as backward or the program left them."""
    end = rows.start + len(rows)
    recent = takewhile(lambda step: step.position >= rows.start, reversed(history.parameters))
    return [(s.owner, s.used) for s in recent if s.position < end and s.used is not None]


def _overwritten(
    recording: Recording, lost: set[int], gradients: dict[int, int]
) -> list[tuple[int, int]]:
    """(parameter, row) of what was lost in a gradient itself, as by ``p.grad.div_(scale)``."""
    owners = {at: owner for owner, at in gradients.items()}
    found = []
    for position in lost:
        at = position
        while at not in owners and (before := _replaced(recording, at)) is not None:
            at = before
        if at != position and at in owners:
            found.append((owners[at], position))
    return found


def _replaced(recording: Recording, position: int) -> int | None:
    """The row that an operation in place wrote over; None where it is none."""
    row = recording.op(position)
    if row is None or not row.inplace:
        return None
    return next(iter(recording.parents(position)), None)


def _asked(rows: StepRows, zero: set[int]) -> list[tuple[str, int]]:
    """(name, row) of gradients that a program got from ``torch.autograd.grad``, and read."""
    recording, backward = rows.recording, rows.columns.phase == BACKWARD
    found: dict[int, str] = {}
    for i in np.flatnonzero(~backward & (np.cumsum(backward) > 0)).tolist():
        for source, _ in recording.operands(rows.start + i):
            if source in zero and source >= rows.start and backward[source - rows.start]:
                sizes = recording.shapes.items[rows.columns.shape[source - rows.start]]
                found[source] = f"a parameter ({'x'.join(map(str, sizes)) or 'scalar'})"
    return [(name, source) for source, name in found.items()]


def _note(rows: StepRows, history: History, position: int, cost: Cost, name: str) -> None:
    recording, end = rows.recording, rows.start + len(rows)
    row = recording.op(position)
    quotient = row is not None and row.name in QUOTIENTS | INVERSES
    origin = overflow_below(recording, position) if quotient else -1
    place = place_of(recording, position if origin < 0 else origin)
    assert place is not None
    if cost == "gradient" and _of_gradients(rows, place.position):
        place = replace(place, phase=OPTIMIZER)
    key = (place.op, place.line, place.module, cost, name)
    known, numel = history.flushes.get(key), recording.stats(position).numel
    if known is not None:
        if cost in ("value", "tensor") and known.last == end and known.count == 1:
            known.numel += numel
        known.count += known.last != end
        known.last = end
        return
    stats = [recording.stats(s) for s, _ in recording.operands(position)]
    largest = max((s.largest for s in stats if s is not None), default=0.0)
    history.flushes[key] = Flush(
        place, cost, name, numel, largest, position, end, overflow=origin >= 0
    )


def _of_gradients(rows: StepRows, position: int) -> bool:
    """Whether a program computed a row from gradients, between the backward pass and the update."""

    def outside_of_graphs(at: int) -> list[int]:
        row = rows.recording.op(at)
        return (
            [p for p in row.inputs if p >= rows.start] if row is not None and row.node < 0 else []
        )

    for at in walk([position], outside_of_graphs, MOST_VISITS):
        row = rows.recording.op(at)
        if row is not None and row.backward:
            return at != position
    return False


# Gradients that are zero throughout, and the operation at which the signal died. Looked for
# when a step ends.

MOST_ANCESTORS = 2000  # rows that are walked over for one gradient
MOST_LOOKS = 4  # steps in which the place is looked for

Why = Literal["blocked", "flat", "choice", "saturated", "value"]
FLAT = having("flat")
# The other alternative was taken throughout, or the value stands beyond a bound.
CHOICES = having("bounds", "masks", "picks", "parts", "extreme", "assigns", "ranks") | {
    "relu",
    "threshold",
}
MULTIPLIES = having("multiplies", "divides") - having("matmul", "composed_product", "dot", "layer")
CANCELS = having("adds", "sums", "matmul", "dot")
# What they make of a gradient is zero by cancellation, or because an operand is.
# A gradient that is the same for all of a row cancels in theirs.
SHARES = having("softmax", "normalises")
LINEAR = (CANCELS | having("layer", "deviation", "moves") | {"neg"}) - MULTIPLIES


def note_dead(rows: StepRows, history: History, gradients: dict[int, int]) -> None:
    """Count the steps in which a parameter got a gradient, and those in which all of it was zero.

    gradients: row of the gradient by number of the parameter.
    """
    recording = rows.recording
    zero = set((np.flatnonzero(rows.all_zero()) + rows.start).tolist())
    for owner, gradient in gradients.items():
        known = history.dead.get(owner)
        if gradient not in zero:
            stats = None if known is not None and known.alive else recording.stats(gradient)
            if stats is not None and stats.numel:
                shape = row.shape if (row := recording.op(gradient)) is not None else ()
                history.dead[owner] = Dead(True, True, sum(size > 1 for size in shape) < 2)
            continue
        known = history.dead.setdefault(owner, Dead())
        known.alive = False
        known.steps += 1
        known.first = gradient if known.steps == 1 else known.first
        looks = known.steps - (FEWEST_ZERO_LATE - 1 if known.lived else 0)
        if looks < 1 or looks > MOST_LOOKS or known.blockers:
            continue
        found = _died(recording, gradient, zero)
        if found is None:
            known.unknown += 1
        elif known.at is None:
            place = place_of(recording, found.position)
            assert place is not None  # the step that has just ended is never folded
            known.at, known.why = replace(place, op=found.op), found.why
            known.numel = recording.stats(found.position).numel
            known.blockers = found.blockers


@dataclass(frozen=True, slots=True)
class _Death:
    position: int
    op: str  # of the forward pass
    why: Why
    blockers: tuple[str, ...] = ()  # parameters that are zero, and that it is multiplied by


def _died(recording: Recording, gradient: int, zero: set[int]) -> _Death | None:
    """Where and why the signal to a gradient died; None where the program wrote the zero."""
    ends: list[int] = []
    without: list[int] = []  # rows that read nothing of the backward pass: zeros_like
    for position in walk(
        [gradient], lambda at: (p for p in _read(recording, at) if p in zero), MOST_ANCESTORS
    ):
        op, read = recording.op(position), _read(recording, position)
        if op is None or not op.backward:
            continue
        if not read:
            without.append(position)
        elif any(p not in zero and _is_gradient(recording, p, op.node) for p in read):
            ends.append(position)
    found = [_why(recording, end, zero) for end in sorted(ends or without)]
    # where one cancels the others are not to blame
    deaths = [death for death in found if death is not None]
    if not deaths or len(deaths) < len(found):
        return None
    blockers = tuple(dict.fromkeys(name for death in deaths for name in death.blockers))
    return next((replace(d, blockers=blockers) for d in deaths if d.blockers), deaths[0])


def _is_gradient(recording: Recording, position: int, node: int) -> bool:
    """Whether a row of the backward pass was computed from the gradient that came in to a node."""
    made = (recording.op(at) for at in walk([position], lambda at: _read(recording, at)))
    return any(op is not None and op.node != node for op in made)


def _read(recording: Recording, position: int) -> list[int]:
    """What a row of the backward pass was made from in it."""
    parents = recording.parents(position) if _of_backward(recording, position) else []
    return [p for p in parents if _of_backward(recording, p)]


def _of_backward(recording: Recording, position: int) -> bool:
    op = recording.op(position)
    return op is not None and op.backward


def _why(recording: Recording, end: int, zero: set[int]) -> _Death | None:
    row = recording.op(end)
    info = recording.nodes.get(row.node) if row is not None and row.node >= 0 else None
    if row is None or info is None or info.op < 0 or info.custom:
        return None
    op = base_name(recording.ops.items[info.op])
    if op in MULTIPLIES | LINEAR and (blockers := _blockers(recording, end, row.node, zero)):
        return _Death(end, op, "blocked", blockers)
    if _name(recording, end) in CANCELS:
        return None
    if op in FLAT:
        return _Death(end, op, "flat")
    if op in CHOICES:
        return _Death(end, op, "choice")
    if op in MULTIPLIES:
        other = next(
            (p for p in recording.parents(end) if p in zero and not _of_backward(recording, p)),
            None,
        )
        lost = None if other is None else _vanished(recording, other, zero)
        return None if lost is None else _Death(lost, _name(recording, lost), "value")
    if op in LINEAR or (op in SHARES and not _one_hot(recording, info.position)):
        return None
    if info.position in zero:  # of an operand that is 0 itself it is the right result
        lost = _vanished(recording, info.position, zero)
        return None if lost is None else _Death(lost, _name(recording, lost), "value")
    return _Death(end, op, "saturated")


def _blockers(recording: Recording, end: int, node: int, zero: set[int]) -> tuple[str, ...]:
    """Parameters that are zero throughout, which make the other factor of a gradient zero."""
    seen: set[int] = set()
    waiting = [
        p
        for p in recording.parents(end)
        if p < 0
        or (p in zero and not (_of_backward(recording, p) and _is_gradient(recording, p, node)))
    ]
    found: dict[str, None] = {}
    for position in waiting:
        source = recording.sources.get(position)
        if source is not None:
            stats = recording.stats(position)
            if source.kind == "parameter" and stats is not None and stats.all_zero:
                found.setdefault(source.name)
        elif position in zero and _name(recording, position) in LINEAR | MULTIPLIES:
            new = [p for p in recording.parents(position) if (p < 0 or p in zero) and p not in seen]
            seen.update(new)
            waiting += new[:MOST_ANCESTORS]
    return tuple(found)


def _one_hot(recording: Recording, position: int) -> bool:
    """Whether a softmax gave 1 to one value of each row and 0 to the others."""
    stats = recording.stats(position)
    return (
        stats is not None
        and stats.max == 1.0
        and stats.mean * stats.numel == stats.numel - stats.zero
    )


def _name(recording: Recording, position: int) -> str:
    op = recording.op(position)
    return "" if op is None else op.base_name


def _vanished(recording: Recording, position: int, zero: set[int]) -> int | None:
    """The forward row that became zero throughout; None where it came from outside or by choice."""
    for _ in range(MOST_ANCESTORS):
        if recording.op(position) is None:
            return None
        parents = recording.parents(position)
        before = next((p for p in parents if p in zero), None)
        if before is None:
            op = _name(recording, position)
            chosen = op in CHOICES | LINEAR | FLAT or not parents
            alive = all((s := recording.stats(p)) is not None and not s.all_zero for p in parents)
            return None if chosen or not alive else position
        position = before
    return None
