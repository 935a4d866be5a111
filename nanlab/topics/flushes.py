"""Losses without a NaN: values flushed to zero, lost signal, dead parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from nanlab.analysis.graph import Cut, GraphFlow, cuts_before, last_root
from nanlab.analysis.signal_loss import first_losses
from nanlab.analysis.training import CASTS, where
from nanlab.findings.fault import place_of
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import FloatFormat, format_of
from nanlab.operators import base_name, having, in_place, spoken, with_forms
from nanlab.stats import TensorStats
from nanlab.topics.absorbed_updates import FEW
from nanlab.topics.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows, parameter_columns
from nanlab.trace.history import FEWEST_ZERO_LATE, Cost, Dead, Flush, History, place_at
from nanlab.trace.op import BACKWARD, BORN, FORWARD, OPTIMIZER, walk
from nanlab.trace.recording import PHASES, Recording

# Losses that leave no NaN behind: values flushed to zero. Looked for when a step ends.

PRODUCTS = (
    in_place(having("scales", lists=True))
    | having("scales", "matmul")
    | {"convolution", "convolution_backward"}
)
# Products of two values, or sums of such, that a zero of one operand does not make zero throughout.
PAIRS = having("pairs", in_place=True, lists=True)
SUMS = frozenset(("mm", "bmm"))
# times what rounds to zero: the typical size up to which a sum of products may have been lost whole
NEAR = 4.0
QUOTIENTS = with_forms("div", in_place=True) | {"_foreach_div_"}
INVERSES = having("inverts", in_place=True)  # quotients whose dividend is 1
SQUARES = frozenset(("addcmul_", "_foreach_addcmul_"))  # of optimizers: the second moment
FEWEST_LOST = 8  # elements from which on a lost result is more than a small term of a sum
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
        dtype = recording.dtypes.items[rows.columns.dtype[i]]
        if _flushed(recording, position, names[rows.columns.op[i]], dtype):
            found.append(position)
    return found


def _square_lost(recording: Recording, position: int, dtype: torch.dtype) -> bool:
    """Whether a narrow sum of squares is zero throughout though what was squared is not."""
    if dtype not in (torch.float16, torch.bfloat16):
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
        for source in recording.parents(position)
        if (s := recording.stats(source)) is not None and s.numel
    ]
    if op == "copy_":
        operands = operands[-1:]
    if not operands or any(s.all_zero or not s.is_finite or s.absmin is None for s in operands):
        return False
    if op in CASTS:
        return True
    if len(operands) < 2:
        return bool(recording.at(position).scaled)
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
    read = recording.parents(position)
    if not read or len(read) != (1 if recording.at(position).name in INVERSES else 2):
        return -1
    above = recording.stats(read[0]) if len(read) == 2 else None
    if len(read) == 2 and (above is None or not above.is_finite or above.all_zero):
        return -1
    below = recording.stats(read[-1])
    if below is None or not 0 < below.numel == below.posinf + below.neginf:
        return -1
    at = read[-1]
    for _ in range(MOST_VISITS):
        row = recording.at(at)
        if not row or recording.status.get(at) == BORN:
            return at if row.dtype in (torch.float16, torch.bfloat16) else -1
        at = next((p for p in recording.parents(at) if p in recording.bad), -1)
    return -1


def _reaches(recording: Recording, start: int, lost: set[int], zero: set[int]) -> int | None:
    """The lost row from which an all-zero result comes, by way of all-zero results."""
    reached = walk([start], lambda at: (p for p in recording.parents(at) if p in zero), MOST_VISITS)
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
    recording, row = rows.recording, rows.recording.at(position)
    read = recording.parents(position)
    several = recording.stats(position).numel >= FEWEST_LOST and len(set(read)) == len(read)
    return bool(several and row.phase == FORWARD and row.node in differentiated)


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
        while at not in owners and recording.at(at).inplace and (own := recording.parents(at)):
            at = own[0]
        if at != position and at in owners:
            found.append((owners[at], position))
    return found


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
    quotient = recording.at(position).name in QUOTIENTS | INVERSES
    origin = overflow_below(recording, position) if quotient else -1
    place = place_at(recording, position if origin < 0 else origin)
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
    stats = map(recording.stats, recording.parents(position))
    largest = max((s.largest for s in stats if s is not None), default=0.0)
    history.flushes[key] = Flush(
        place, cost, name, numel, largest, position, end, overflow=origin >= 0
    )


def _of_gradients(rows: StepRows, position: int) -> bool:
    """Whether a program computed a row from gradients, between the backward pass and the update."""

    def outside_of_graphs(at: int) -> list[int]:
        row = rows.recording.at(at)
        return [p for p in row.inputs if p >= rows.start] if row.node < 0 else []

    for at in walk([position], outside_of_graphs, MOST_VISITS):
        if rows.recording.at(at).backward:
            return at != position
    return False


# Gradients that are zero throughout, and the operation at which the signal died. Looked for
# when a step ends.

MOST_ANCESTORS = 2000  # rows that are walked over for one gradient
MOST_LOOKS = 4  # steps in which the place is looked for

Why = Literal["blocked", "flat", "choice", "saturated", "value"]
FLAT = having("flat")
# The other alternative was taken throughout, or the value stands beyond a bound.
CHOICES = having("bounds", "cuts", "masks", "picks", "parts", "extreme", "assigns", "ranks")
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
                shape = recording.at(gradient).shape
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
            place = place_at(recording, found.position)
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
        op, read = recording.at(position), _read(recording, position)
        if not op.backward:
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
    made = walk([position], lambda at: _read(recording, at))
    return any(recording.at(at).node != node for at in made)


def _read(recording: Recording, position: int) -> list[int]:
    """What a row of the backward pass was made from in it."""
    parents = recording.parents(position) if recording.at(position).backward else []
    return [p for p in parents if recording.at(p).backward]


def _why(recording: Recording, end: int, zero: set[int]) -> _Death | None:
    row = recording.at(end)
    info = recording.nodes.get(row.node) if row.node >= 0 else None
    if info is None or info.op < 0 or info.custom:
        return None
    op = base_name(recording.ops.items[info.op])
    if op in MULTIPLIES | LINEAR and (blockers := _blockers(recording, end, row.node, zero)):
        return _Death(end, op, "blocked", blockers)
    if row.base_name in CANCELS:
        return None
    if op in FLAT:
        return _Death(end, op, "flat")
    if op in CHOICES:
        return _Death(end, op, "choice")
    if op in MULTIPLIES:
        other = next(
            (p for p in recording.parents(end) if p in zero and not recording.at(p).backward), None
        )
        lost = None if other is None else _vanished(recording, other, zero)
        return None if lost is None else _Death(lost, recording.at(lost).base_name, "value")
    if op in LINEAR or (op in SHARES and not _one_hot(recording, info.position)):
        return None
    if info.position in zero:  # of an operand that is 0 itself it is the right result
        lost = _vanished(recording, info.position, zero)
        return None if lost is None else _Death(lost, recording.at(lost).base_name, "value")
    return _Death(end, op, "saturated")


def _blockers(recording: Recording, end: int, node: int, zero: set[int]) -> tuple[str, ...]:
    """Parameters that are zero throughout, which make the other factor of a gradient zero."""
    seen: set[int] = set()
    waiting = [
        p
        for p in recording.parents(end)
        if p < 0
        or (p in zero and not (recording.at(p).backward and _is_gradient(recording, p, node)))
    ]
    found: dict[str, None] = {}
    for position in waiting:
        source = recording.sources.get(position)
        if source is not None:
            stats = recording.stats(position)
            if source.kind == "parameter" and stats is not None and stats.all_zero:
                found.setdefault(source.name)
        elif position in zero and recording.at(position).base_name in LINEAR | MULTIPLIES:
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


def _vanished(recording: Recording, position: int, zero: set[int]) -> int | None:
    """The forward row that became zero throughout; None where it came from outside or by choice."""
    for _ in range(MOST_ANCESTORS):
        row, parents = recording.at(position), recording.parents(position)
        if not row:
            return None
        before = next((p for p in parents if p in zero), None)
        if before is None:
            chosen = row.base_name in CHOICES | LINEAR | FLAT or not parents
            alive = all((s := recording.stats(p)) is not None and not s.all_zero for p in parents)
            return None if chosen or not alive else position
        position = before
    return None


# Signal that low precision loses although nothing breaks: most of a result, or an epsilon.

LASTING = 0.5  # share of the steps since the first in which a loss must recur to be an error
SEVERAL = 3  # steps
NEARLY_ALL = 0.9  # share of the values of a result from which a loss is worth a warning


def _steps_since(trace: Trace, position: int) -> int:
    """Training steps with a backward pass, from the one of a position on."""
    recording = trace.recording
    first = recording.step_of(position)
    steps = {
        recording.step_of(loss.position)
        for loss in recording.training.losses
        if recording.step_of(loss.position) >= first
    }
    return max(1, len(steps))


def lasts(trace: Trace, flushes: Sequence[Flush]) -> bool:
    """Whether a loss of signal recurs, rather than come with a batch now and then."""
    return max(f.count for f in flushes) >= LASTING * _steps_since(
        trace, min(f.first for f in flushes)
    )


def by_victim(flushes: Sequence[Flush]) -> list[Flush]:
    """One flush for each parameter that lost something, with the steps of all."""
    counts: dict[str, int] = {}
    for flush in flushes:
        counts[flush.name] = counts.get(flush.name, 0) + flush.count
    first = min(flushes, key=lambda f: f.first)
    return [replace(first, name=name, count=count) for name, count in counts.items()]


def always(trace: Trace, flushes: Sequence[Flush]) -> bool:
    """Whether several steps lost something, the first too: no fit has converged."""
    first, recording = min(f.first for f in flushes), trace.recording
    earliest = min(
        (recording.step_of(loss.position) for loss in recording.training.losses), default=-1
    )
    steps = _steps_since(trace, first)
    return (
        recording.step_of(first) == earliest
        and steps >= SEVERAL
        and max(f.count for f in flushes) >= steps
    )


def in_part(trace: Trace, loss: dict[Hashable, Any], explanation: str) -> Finding:
    """The finding of a row of ``first_losses``."""
    title = (
        f"{spoken(loss['op'])} flushes {loss['share']:.0%} of the {loss['numel']:,} values to zero"
        f" in {_format(loss).name}"
    )
    cure = Fix("compute this in float32; of gradients, a larger loss scale", "x.float()")
    return _lost(trace, loss, "dtype-underflow", title, explanation, cure)


def _format(loss: dict[Hashable, Any]) -> FloatFormat:
    return format_of(getattr(torch, loss["dtype"]))


def _lost(
    trace: Trace, loss: dict[Hashable, Any], cause: str, title: str, explanation: str, cure: Fix
) -> Finding:
    limits = _format(loss)
    return Finding(
        cause=cause,
        severity="warning",
        title=title,
        explanation=(
            f"{explanation} {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to"
            " zero."
        ),
        phase=loss["phase"],
        step=loss["step"],
        symptom="silent-underflow",
        fixes=[cure],
        **place_of(trace, loss["position"]),
    )


@rule(
    "warning",
    family="training",
    events=("holds_low_precision",),
    example="""
        x = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float16)
        var = x.var()
        y = (x - x.mean()) * torch.rsqrt(var + 1e-9)  # here
    """,
    fix={"var + 1e-9": "var + 1e-5"},
)
def eps_underflow(trace: Trace) -> Iterator[Finding]:
    """An epsilon that the dtype rounds to zero protects from nothing: the first value that needs it
    will fail."""
    losses = first_losses(trace)
    for loss in losses[losses["told_by"] == "epsilon"].to_dict("records"):
        amount = "the epsilon" if pd.isna(loss["largest"]) else f"an epsilon of {loss['largest']:g}"
        title = f"{amount} is 0 in {_format(loss).name}, so {loss['op']} does nothing here"
        cure = Fix(
            "compute this in float32, or take an epsilon that the dtype can hold", "x.float()"
        )
        yield _lost(trace, loss, "eps-underflow", title, eps_underflow.explanation, cure)


@rule(
    "error",
    family="training",
    events=("training.flushes",),
    example="""
        w = torch.ones(2, requires_grad=True)
        mask = torch.full((70000,), 1.0, dtype=torch.float16)
        for i in range(2):
            count = mask.sum()  # here
            ((w * 2).sum() / count).backward()
    """,
    fix={"mask.sum()": "mask.sum(dtype=torch.float32)"},
)
def dtype_overflow_(trace: Trace) -> Iterator[Finding]:
    """A count or a norm overflowed in half precision and was divided by: the quotient is 0, and so
    is every gradient.

    Nothing is infinite in the end, and nothing is learned.
    """
    # on one line now this operation may overflow and now that: a norm of norms
    groups: dict[int, list[Flush]] = {}
    for flush in trace.recording.training.flushes.values():
        if flush.overflow and flush.cost in ("gradient", "update"):
            groups.setdefault(flush.at.line, []).append(flush)
    for flushes in groups.values():
        first = min(flushes, key=lambda f: f.first)
        names = sorted({f.name for f in flushes})
        harmful = lasts(trace, by_victim(flushes))
        shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        yield dtype_overflow_.finding(
            f"{first.at.op} overflows {first.at.dtype} and is divided by: the whole gradient of"
            f" {shown} is 0",
            severity="error" if harmful else "warning",
            step=trace.recording.step_of(first.first),
            symptom="silent-underflow",
            fixes=(
                [Fix("count in float32", "mask.sum(dtype=torch.float32)")]
                if first.at.op == "sum"
                else []
            ),
            **where(trace.recording, first.at),
        )


# Losses without a NaN: values flushed to zero.

COSTLY = ("gradient", "update")  # of a parameter: its whole gradient or update


@rule(
    "error",
    family="training",
    events=("training.flushes", "holds_low_precision"),
    example="""
        net = nn.Linear(4, 2)
        for i in range(2):
            net.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()  # here
            (1e-9 * wide).sum().backward()
    """,
    fix={"1e-9 * wide": "1e-3 * wide"},
)
def dtype_underflow(trace: Trace) -> Iterator[Finding]:
    """Values too small for the dtype became exact zeros: nothing is learned there, and nothing says
    so."""
    flushes = [flush for flush in trace.recording.training.flushes.values() if not flush.overflow]
    lines = trace.recording.places
    told = {(flush.at.op, lines[flush.at.line][1]) for flush in flushes if flush.cost in COSTLY}
    measured = {
        key: positions for key, positions in _flushed_whole(trace).items() if key not in told
    }
    groups: dict[tuple[str, Any, str], list[Flush]] = {}
    for flush in flushes:
        if flush.cost in COSTLY:  # the operations of a deep net's layers take turns
            groups.setdefault(("", lines[flush.at.line][:2], flush.cost), []).append(flush)
        elif (flush.at.op, lines[flush.at.line][1]) not in told | measured.keys():
            groups.setdefault((flush.at.op, flush.at.line, flush.cost), []).append(flush)
    yield from (
        _flush_finding(trace, key[2], sorted(alike, key=lambda f: f.first))
        for key, alike in groups.items()
    )
    yield from (_twin_finding(trace, positions) for positions in measured.values())
    known = {(flush.at.op, lines[flush.at.line][1]) for flush in flushes} | measured.keys()
    for loss in first_losses(trace).to_dict("records"):
        if (
            loss["told_by"] != "epsilon"
            and loss["share"] >= NEARLY_ALL
            and (loss["op"], loss["line"]) not in known
        ):
            yield in_part(trace, loss, dtype_underflow.explanation)


def _flushed_whole(trace: Trace) -> dict[tuple[str, int], list[int]]:
    """By operator and line: all-zero results whose float32 twin is not, mostly."""
    recording = trace.recording
    lost: dict[tuple[str, int], list[int]] = {}
    kept: set[tuple[str, int]] = set()
    for position, shadow in recording.shadows.items():
        row, stats = recording.at(position), recording.stats(position)
        if not row or stats is None:
            continue
        key = (row.name, row.line)
        if stats.all_zero and stats.numel >= FEW and 2 * shadow.flushed >= stats.numel:
            lost.setdefault(key, []).append(position)
        elif not stats.all_zero:
            kept.add(key)
    return {key: positions for key, positions in lost.items() if key not in kept}


def _twin_finding(trace: Trace, positions: list[int]) -> Finding:
    recording, position = trace.recording, positions[0]
    row = recording.at(position)
    shadow, limits = recording.shadows[position], format_of(row.dtype)
    twin = shadow.stats
    place = place_of(trace, position)
    return dtype_underflow.finding(
        f"{place['op']} flushes all {twin.numel:,} values to zero in {limits.name}: all its"
        " values are lost",
        f"In float32 the largest of them is {twin.largest:.3g};"
        f" {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to zero.",
        phase=PHASES[row.phase],
        step=recording.step_of(position),
        symptom="silent-underflow",
        fixes=[Fix("compute this in float32", "x.float()")],
        **place,
    )


def _flush_finding(trace: Trace, cost: str, flushes: list[Flush]) -> Finding:
    recording = trace.recording
    flush = flushes[0]
    if cost in COSTLY:
        harmful = lasts(trace, by_victim(flushes))
    else:
        harmful = cost == "value" and always(trace, flushes)
    names = list(dict.fromkeys(f.name for f in flushes if f.name))
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    loses = {
        "gradient": f"the whole gradient of {shown} is lost",
        "update": f"{shown} {'gets' if len(names) == 1 else 'get'} no update",
    }.get(cost, "all its values are lost")
    squares = flush.at.op in SQUARES and cost == "tensor"
    if squares:
        loses = "the optimizer's second moment is lost, and eps alone sets the size of its steps"
    limits = format_of(getattr(torch, flush.at.dtype))
    place = where(recording, flush.at)
    return dtype_underflow.finding(
        f"{place['op']} flushes all {flush.numel:,} values to zero in {limits.name}: {loses}",
        f"The largest magnitude"
        f" {'to be squared ' if squares else ''}is {flush.largest:.3g}; {limits.name} rounds"
        f" everything up to {limits.rounds_to_zero:.3g} to zero.",
        severity="error" if harmful else "warning",
        step=recording.step_of(flush.first),
        symptom="silent-underflow",
        fixes=_flush_fixes(recording, flush),
        **place,
    )


def _flush_fixes(recording: Recording, flush: Flush) -> list[Fix]:
    fixes, half = [], flush.at.dtype == "float16"
    phase = PHASES[flush.at.phase] if flush.cost == "gradient" else ""
    # the scale, say: a larger one would be divided out as well
    if phase == "optimizer" and flush.at.op in QUOTIENTS:
        return [
            Fix(
                "widen the gradient first, and give the wide one to the optimizer",
                "grad = p.grad.float()",
            )
        ]
    if phase == "backward" and half:
        fixes.append(scaled_loss(recording))
    if half:
        fixes.append(Fix("a dtype with float32's range", "torch.bfloat16"))
    fixes.append(Fix("compute this in float32", "x.float()"))
    return fixes


# Parameters to which no gradient comes, although the loss is computed with them.

_WHY = {
    "blocked": (
        "{op} multiplies it by a 0 that comes from {blockers}; no gradient arrives there either, so"
        " neither can leave 0."
    ),
    "flat": "{op} is constant between its jumps: its derivative is 0 everywhere.",
    "choice": (
        "{op} took the other alternative, or stood beyond its bound, for all {numel:,} values:"
        " their derivative is 0."
    ),
    "value": (
        "{op} gives exactly 0 for all {numel:,} values, and the gradient is multiplied by them."
    ),
    "saturated": (
        "The derivative of {op} is exactly 0 for all {numel:,} values: they lie where it is flat in"
        " floating point."
    ),
}
_FIXES = {
    "blocked": Fix(
        "begin with zeros in one factor of a product only, and with random values in the other",
        "nn.init.kaiming_uniform_(layer.weight, a=5**0.5)",
    ),
    "flat": Fix("pass the gradient straight through", "x + (torch.round(x) - x).detach()"),
    "choice": Fix(
        "let some gradient through beyond the bound, or start within it", "F.leaky_relu(x, 0.01)"
    ),
    "value": Fix(
        "compute the logarithm instead, and exponentiate last or not at all",
        "log_density = -0.5 * z**2",
    ),
    "saturated": Fix(
        "use the form in the log domain, or bring the values closer", "F.logsigmoid(x)"
    ),
}


@rule(
    "error",
    events=("training.starved",),
    example="""
        p = nn.Parameter(torch.tensor([0.4, 1.6]))
        for i in range(2):
            p.grad = None
            q = torch.round(p)  # here
            (q - 1).square().sum().backward()
    """,
    fix={"torch.round(p)": "p + (torch.round(p) - p).detach()"},
)
def dead_gradient(trace: Trace) -> Iterator[Finding]:
    """The parameter is used, and its gradient is exactly zero: it never moves."""
    recording = trace.recording
    history = recording.training
    flushed = {flush.name for flush in history.flushes.values() if flush.cost == "gradient"}
    groups: dict[tuple[int, str, bool], list[int]] = {}
    lasting = {recording.parameter_names[owner]: owner for owner in history.starved}
    for name, owner in lasting.items():
        dead = history.dead[owner]
        if name not in flushed and all(blocker in lasting for blocker in dead.blockers):
            assert dead.at is not None
            groups.setdefault((dead.at.line, dead.why, dead.lived), []).append(owner)
    # a product with what died gives its weights nothing either: what learns then is no offset
    ends = any(dead.unknown and not dead.alive for dead in history.dead.values())
    others = [d for d in history.dead.values() if d.lived and not (ends and d.offset)]
    for (_, why, _), owners in groups.items():
        dead = history.dead[owners[0]]
        learns = any(other.alive or not dead.lived for other in others)
        # what lived goes on where the next batch, or another part, has something to learn
        rests = dead.lived and (
            why != "choice" or learns or not any(d.alive for d in history.dead.values())
        )
        if not rests and (why != "choice" or not _converged(trace)):
            names = [recording.parameter_names[owner] for owner in owners]
            yield _finding(trace, names, dead, learns)


def _converged(trace: Trace) -> bool:
    """Whether the loss is 0: what is bounded has nothing left to learn."""
    recording = trace.recording
    losses = [recording.value(loss.source) for loss in recording.training.losses]
    return bool(losses) and losses[-1] == 0.0


def _finding(trace: Trace, names: list[str], dead: Dead, learns: bool) -> Finding:
    recording = trace.recording
    assert dead.at is not None
    place = where(recording, dead.at) | {"op": dead.at.op}
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    error = dead.why != "choice" or not learns
    told = _WHY[dead.why].format(
        op=place["op"], numel=dead.numel, blockers=" and ".join(dead.blockers)
    )
    return dead_gradient.finding(
        f"no gradient arrives at {shown}: it is exactly 0 in"
        f" {'the last' if dead.lived else 'all'} {dead.steps} steps. {told}",
        severity="error" if error else "warning",
        step=recording.step_of(dead.first),
        symptom="silent-underflow",
        fixes=[_FIXES[dead.why]],
        **place,
    )


# How what is computed with a parameter is cut off from the loss.
_CUTS: dict[str, str] = {
    "no-grad": "this line runs under no_grad",
    "detach": "this line detaches what is made with it",
    "data": "this line reads .data, which has no graph",
}


@rule(
    "note",
    events=("training.optimizer_steps",),
    example="""
        body, head = nn.Linear(4, 4), nn.Linear(4, 1)
        opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for i in range(3):
            opt.zero_grad()
            with torch.no_grad():
                h = body(torch.ones(2, 4))  # here
            head(h).square().mean().backward()
            opt.step()
    """,
    fix={"torch.no_grad()": "torch.enable_grad()"},
)
def dead_gradient_(trace: Trace) -> Iterator[Finding]:
    """The optimizer holds the parameter, and what is computed with it is cut off from the loss: it
    has no gradient, and never moves."""
    recording = trace.recording
    reached = set(parameter_columns(recording)["owner"].tolist())
    steps = recording.training.optimizer_steps
    held = {row: o for step in steps for o, row in step.unreached if o not in reached}
    root = last_root(recording) if held else None
    if root is None:
        return
    flow = GraphFlow(recording, frozenset(held))
    told: dict[tuple[str, int], tuple[Cut, list[str]]] = {}
    for cut in cuts_before(flow, root):
        if cut.kind in _CUTS and cut.known:
            begun = {cut.carrier, *flow.parents(cut.position)}
            ways = (flow.walk(start, lambda parent, child: flow.carries(parent)) for start in begun)
            rows = sorted({at for way in ways for at, _ in way} & held.keys())
            names = [recording.parameter_names[held[row]] for row in rows]
            told.setdefault((cut.file, cut.line), (cut, []))[1].extend(names)
    for cut, all_names in told.values():
        if names := list(dict.fromkeys(all_names)):
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            yield dead_gradient_.finding(
                f"no gradient arrives at {shown}, which the optimizer holds: {_CUTS[cut.kind]}",
                phase=PHASES[FORWARD],
                op=cut.op,
                module=cut.module,
                file=cut.file,
                line=cut.line,
                source=cut.source,
                step=recording.step_of(cut.position),
                symptom="silent-underflow",
            )
