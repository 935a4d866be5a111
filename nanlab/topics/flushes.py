"""Signal lost without a NaN: values flushed to zero, dead parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from nanlab.analysis.signal_loss import first_losses
from nanlab.analysis.training import CASTS, where
from nanlab.findings.fault import every, listed, place_of
from nanlab.findings.rule import Finding, Fix, Rule, rule
from nanlab.formats import HALF_PRECISION, FloatFormat, format_of
from nanlab.operators import having, in_place, spoken, with_forms
from nanlab.stats import TensorStats
from nanlab.topics.absorbed_updates import FEW
from nanlab.topics.dead_gradients import flushed_gradients
from nanlab.topics.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows
from nanlab.trace.history import Cost, Flush, place_at
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, walk
from nanlab.trace.recording import PHASES, Recording

# Values flushed to zero. Checked when a step ends.

PRODUCTS = (
    in_place(having("scales", lists=True))
    | having("scales", "matmul")
    | {"convolution", "convolution_backward"}
)
# Products of two values, or sums of such, that a zero of one operand does not make zero throughout.
PAIRS = having("pairs", in_place=True, lists=True)
SUMS = frozenset(("mm", "bmm"))
# times the largest flushed value: up to here a whole sum of products may be lost
NEAR = 4.0
QUOTIENTS = with_forms("div", in_place=True) | {"_foreach_div_"}
INVERSES = having("inverts", in_place=True)  # quotients whose dividend is 1
SQUARES = frozenset(("addcmul_", "_foreach_addcmul_"))  # of optimizers: the second moment
ADDCDIV = frozenset(("addcdiv_", "_foreach_addcdiv_"))
POWERS = frozenset(("pow", "square"))  # never 0 where their operand is not
FEWEST_LOST = 8  # elements from which on a lost result is more than a small term of a sum
MOST_CANDIDATES = 64  # flushes examined in one step
MOST_VISITS = 4000  # rows searched for one parameter


def lost_values(rows: StepRows) -> list[int]:
    """All-zero rows without an all-zero operand: the dtype cannot hold the results."""
    recording = rows.recording
    names = recording.ops.items
    asked = CASTS | PRODUCTS | SQUARES | PAIRS | INVERSES | POWERS
    interesting = np.array([name in asked for name in names])
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
    """Whether a half-precision sum of squares is all zero though the operands are not."""
    if dtype not in HALF_PRECISION:
        return False
    own = [recording.stats(source) for source in recording.parents(position)]
    return len(own) > 1 and all(s is not None and s.is_finite and not s.all_zero for s in own[1:])


def _flushed(recording: Recording, position: int, op: str, dtype: torch.dtype) -> bool:
    if op in SQUARES:
        return _square_lost(recording, position, dtype)
    if op in POWERS:
        own = [recording.stats(source) for source in recording.parents(position)[:1]]
        nonzero = all(s is not None and s.is_finite and not s.all_zero for s in own)
        return dtype in HALF_PRECISION and bool(own) and nonzero
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
    """Whether a product is all zero because it was too small, judged by its operands.

    If one operand has no zero, the product is zero only where the other is. A sum of products may
    cancel, so it must be small too: sqrt(terms) times the root mean squares. A saturated sigmoid
    or tanh has a derivative of zero.
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
    while (row := recording.at(at)) and not row.born:  # each row is later than its operands
        at = next((p for p in recording.parents(at) if p in recording.bad), -1)
    return at if row.dtype in HALF_PRECISION else -1


def _reaches(recording: Recording, start: int, lost: set[int], zero: set[int]) -> int | None:
    """The lost row behind an all-zero result, reached through all-zero results."""
    reached = walk([start], lambda at: (p for p in recording.parents(at) if p in zero), MOST_VISITS)
    return next((position for position in reached if position in lost), None)


def note_flushes(rows: StepRows, gradients: dict[int, int], written: list[tuple[int, int]]) -> None:
    """Add the losses of a step to ``history.flushes``.

    gradients: row of the gradient by number of the parameter. written: (parameter, row) of updates
    made by hand.
    """
    lost = set(lost_values(rows))
    if not lost:
        return
    recording = rows.recording
    zero = set((np.flatnonzero(rows.all_zero()) + rows.start).tolist())
    blamed: set[int] = set()
    taken = [(s.owner, s.used) for s in rows.parameter_steps if s.used is not None]
    known = [*gradients.items(), *taken, *_overwritten(recording, lost, gradients)]
    came = [(recording.parameter_names[owner], at) for owner, at in dict.fromkeys(known)]
    for name, source in came or _asked(rows, zero):
        if source in zero and (culprit := _reaches(recording, source, lost, zero)) is not None:
            blamed.add(culprit)
            _note(rows, culprit, "gradient", name)
    for owner, position in written:
        for operand in [operand for operand, slot in recording.operands(position) if slot]:
            culprit = _reaches(recording, operand, lost, zero) if operand in zero else None
            if culprit is not None:
                blamed.add(culprit)
                _note(rows, culprit, "update", recording.parameter_names[owner])
    differentiated = set(rows.columns.node[rows.columns.phase == BACKWARD].tolist()) - {-1}
    divides = _lost_divisors(rows, lost)
    for position in sorted(lost - blamed):
        cost: Cost = "value" if _matters(rows, position, differentiated) else "tensor"
        _note(rows, position, "divisor" if position in divides else cost, "")


def _matters(rows: StepRows, position: int, differentiated: set[int]) -> bool:
    """Whether a lost result of several values is in the loss's graph, and is no square."""
    recording, row = rows.recording, rows.recording.at(position)
    several = recording.stats(position).numel >= FEWEST_LOST and not _is_square(recording, position)
    return bool(several and row.phase == FORWARD and row.node in differentiated)


def _is_square(recording: Recording, position: int) -> bool:
    read = recording.parents(position)
    return len(set(read)) < len(read) or recording.at(position).name in POWERS | SQUARES


def _lost_divisors(rows: StepRows, lost: set[int]) -> set[int]:
    """Squares of gradients, lost by most of the parameters, that the update divides by."""
    recording = rows.recording

    def outside_of_graphs(at: int) -> list[int]:
        row = recording.at(at)
        return [p for p in row.inputs if p >= rows.start] if not row.backward else []

    squares = {at for at in lost if _is_square(recording, at) and recording.at(at).node < 0}
    lines = {(recording.at(at).place, recording.at(at).name) for at in squares}
    if not squares:
        return squares
    divisors, numel, flushed = list[int](), 0, 0
    for position in range(min(squares), rows.end):
        row = recording.at(position)
        if (row.place, row.name) in lines and _is_square(recording, position):
            numel += recording.stats(position).numel
            flushed += recording.stats(position).numel * (position in squares)
        elif row.name in QUOTIENTS | INVERSES | ADDCDIV:
            divisors += [p for p, _ in recording.own_operands(position)][-1:]
    ways = walk(divisors, outside_of_graphs, MOST_VISITS)
    divides = {at for at in ways if at in squares and _of_gradients(rows, at)}
    return divides if 2 * flushed > numel else set()


def _overwritten(
    recording: Recording, lost: set[int], gradients: dict[int, int]
) -> list[tuple[int, int]]:
    """(parameter, row) of losses in a gradient itself, as by ``p.grad.div_(scale)``."""
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
    """(name, row) of gradients from ``torch.autograd.grad`` that the program read."""
    recording, backward = rows.recording, rows.columns.phase == BACKWARD
    found: dict[int, str] = {}
    for i in np.flatnonzero(~backward & (np.cumsum(backward) > 0)).tolist():
        for source, _ in recording.operands(rows.start + i):
            if source in zero and source >= rows.start and backward[source - rows.start]:
                sizes = recording.shapes.items[rows.columns.shape[source - rows.start]]
                found[source] = f"a parameter ({'x'.join(map(str, sizes)) or 'scalar'})"
    return [(name, source) for source, name in found.items()]


def _note(rows: StepRows, position: int, cost: Cost, name: str) -> None:
    recording, end = rows.recording, rows.end
    quotient = recording.at(position).name in QUOTIENTS | INVERSES
    origin = overflow_below(recording, position) if quotient else -1
    place = place_at(recording, position if origin < 0 else origin)
    assert place is not None
    if cost == "gradient" and _of_gradients(rows, place.position):
        place = replace(place, phase=OPTIMIZER)
    key = (place.op, place.line, place.module, cost, name)
    known, numel = rows.history.flushes.get(key), recording.stats(position).numel
    if known is not None:
        if cost in ("value", "tensor", "divisor") and known.last == end and known.count == 1:
            known.numel += numel
        known.count += known.last != end
        known.last = end
        return
    stats = map(recording.stats, recording.parents(position))
    largest = max((s.largest for s in stats if s is not None), default=0.0)
    rows.history.flushes[key] = Flush(
        place, cost, name, numel, largest, position, end, overflow=origin >= 0
    )


def _of_gradients(rows: StepRows, position: int) -> bool:
    """Whether the program computed a row from gradients, before the update."""

    def outside_of_graphs(at: int) -> list[int]:
        row = rows.recording.at(at)
        return [p for p in row.inputs if p >= rows.start] if row.node < 0 else []

    for at in walk([position], outside_of_graphs, MOST_VISITS):
        if rows.recording.at(at).backward:
            return at != position
    return False


# Signal lost in low precision: most of a result, or an epsilon.

COSTLY = ("gradient", "update")  # losses of a parameter's whole gradient or update
_WIDE_COUNT = Fix("count in float32", "mask.sum(dtype=torch.float32)")
LASTING = 0.5  # share of later steps in which a loss must recur to be an error
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
    """Whether a loss of signal recurs in most steps, rather than in a batch now and then."""
    return max(f.count for f in flushes) >= LASTING * _steps_since(
        trace, min(f.first for f in flushes)
    )


def by_victim(flushes: Sequence[Flush]) -> list[Flush]:
    """One flush per parameter, with the steps of all."""
    counts: dict[str, int] = {}
    for flush in flushes:
        counts[flush.name] = counts.get(flush.name, 0) + flush.count
    first = min(flushes, key=lambda f: f.first)
    return [replace(first, name=name, count=count) for name, count in counts.items()]


def always(trace: Trace, flushes: Sequence[Flush]) -> bool:
    """Whether every step lost something, from the first on, so that no fit has converged."""
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


IN_FLOAT32 = Fix("compute this in float32", "x.float()")
FULL_RANGE = Fix("use a dtype with the range of float32", "torch.bfloat16")


def _floor(limits: FloatFormat) -> str:
    return f"{limits.name} rounds every result up to {limits.rounds_to_zero:.3g} to zero."


def _lost(trace: Trace, loss: dict[Hashable, Any], told_by: Rule, title: str, cure: Fix) -> Finding:
    return told_by.finding(
        title,
        _floor(format_of(loss["dtype"])),
        "warning",
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
    """An epsilon that the dtype rounds to zero has no effect: the first value that needs it
    fails."""
    losses = first_losses(trace)
    for loss in losses[losses["told_by"] == "epsilon"].to_dict("records"):
        amount = "the epsilon" if pd.isna(loss["largest"]) else f"an epsilon of {loss['largest']:g}"
        title = f"{amount} is 0 in {loss['dtype']}, so {loss['op']} has no effect here"
        cure = "compute this in float32, or choose an epsilon that the dtype can hold"
        yield _lost(trace, loss, eps_underflow, title, Fix(cure, "x.float()"))


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
    """A count or norm overflowed in half precision and became a divisor: the quotient is 0, and so
    is every gradient.

    No infinity remains in the result, and nothing is learned.
    """
    # on one line now this operation may overflow and now that: a norm of norms
    groups: dict[int, list[Flush]] = {}
    for flush in trace.recording.training.flushes.values():
        if flush.overflow and flush.cost in COSTLY:
            groups.setdefault(flush.at.line, []).append(flush)
    for flushes in groups.values():
        first = min(flushes, key=lambda f: f.first)
        names = sorted({f.name for f in flushes})
        yield dtype_overflow_.finding(
            f"{first.at.op} overflows {first.at.dtype} and becomes a divisor: the whole gradient of"
            f" {listed(names, 1)} is 0",
            step=trace.recording.step_of(first.first),
            symptom="silent-underflow",
            fixes=[_WIDE_COUNT] if first.at.op == "sum" else [],
            **where(trace.recording, first.at),
        )


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
    """Values too small for the dtype became exact zeros: nothing is learned there, without any
    error."""
    flushes = [flush for flush in trace.recording.training.flushes.values() if not flush.overflow]
    flushes += flushed_gradients(trace)
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
            title = (
                f"{spoken(loss['op'])} flushes {loss['share']:.0%} of the {loss['numel']:,} values"
                f" to zero in {loss['dtype']}"
            )
            cure = "compute this in float32; for gradients, use a larger loss scale"
            yield _lost(trace, loss, dtype_underflow, title, Fix(cure, "x.float()"))


def _flushed_whole(trace: Trace) -> dict[tuple[str, int], list[int]]:
    """All-zero results whose float32 twin mostly is not, by operator and line."""
    recording = trace.recording
    lost: dict[tuple[str, int], list[int]] = {}
    kept = set()
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
        f"{place['op']} flushes {every(twin.numel)} to zero in {limits.name}",
        f"In float32 the largest magnitude is {twin.largest:.3g}; {_floor(limits)}",
        phase=PHASES[row.phase],
        step=recording.step_of(position),
        symptom="silent-underflow",
        fixes=[IN_FLOAT32],
        **place,
    )


def _flush_finding(trace: Trace, cost: str, flushes: list[Flush]) -> Finding:
    recording = trace.recording
    flush = flushes[0]
    if cost in COSTLY:
        harmful = lasts(trace, by_victim(flushes))
    else:
        harmful = cost in ("value", "divisor") and always(trace, flushes)
    names = list(dict.fromkeys(f.name for f in flushes if f.name))
    shown = listed(names, 2)
    loses = {
        "gradient": f"the whole gradient of {shown} is lost",
        "update": f"{shown} {'gets' if len(names) == 1 else 'get'} no update",
    }.get(cost, "all its values are lost")
    squares = cost == "divisor"
    if squares:
        loses = "the optimizer loses its second moment, and eps alone sets the size of its steps"
    limits = format_of(flush.at.dtype)
    place = where(recording, flush.at)
    return dtype_underflow.finding(
        f"{place['op']} flushes {every(flush.numel)} to zero in {limits.name}: {loses}",
        f"The largest magnitude {'to be squared' if squares else 'among the operands'} is"
        f" {flush.largest:.3g}; {_floor(limits)}",
        severity="error" if harmful else "warning",
        step=recording.step_of(flush.first),
        symptom="silent-underflow",
        fixes=_flush_fixes(recording, flush),
        **place,
    )


def _flush_fixes(recording: Recording, flush: Flush) -> list[Fix]:
    half, phase = flush.at.dtype == "float16", flush.at.phase if flush.cost == "gradient" else -1
    # the scale, say: a larger one would be divided out as well
    if phase == OPTIMIZER and flush.at.op in QUOTIENTS:
        title = "convert the gradient to float32 first, and give that to the optimizer"
        return [Fix(title, "grad = p.grad.float()")]
    scaled = [scaled_loss(recording)] if phase == BACKWARD and half else []
    wide = [] if flush.at.dtype == "float32" else [IN_FLOAT32]
    return [*scaled, *([FULL_RANGE] if half else []), *wide]
