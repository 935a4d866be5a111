"""Where low precision loses signal, steps that a scaler skipped, and what each loss scale keeps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from nanlab.analysis.precision import LOSS_SCALES, add_histograms, cast_counts, cast_shares
from nanlab.analysis.provenance import finite_after, origin_of
from nanlab.analysis.training import CASTS, where
from nanlab.errors import UsageError
from nanlab.formats import HALF_PRECISION, FloatFormat, format_of
from nanlab.operators import having
from nanlab.stats import TensorStats
from nanlab.trace import Trace
from nanlab.trace.frames import stat_columns
from nanlab.trace.history import Place, place_at
from nanlab.trace.op import BORN, OPTIMIZER, Op
from nanlab.trace.recording import PHASES, Recording

# The steps that a loss scaler skipped: by which gradient, whether a smaller scale would have
# been finite, and whether one will be found.

# skipped steps in a row at one scale (or below 1) that show that no scale will be found
FIXED_SKIPS = 3
MOST_SKIPS = 24  # skipped steps in a row that no calibration needs: 2**24 down to 1
MOST_HALVINGS = 48  # of the scale that are tried in a replay
KnownBy = Literal["replay", "histogram", "later step", "no scale", ""]


@dataclass(frozen=True, slots=True)
class Skip:
    """A step that the scaler skipped, and the first gradient that made it."""

    step: int
    position: int
    scale: float  # 0 if nothing was seen to use it
    after: float
    parameter: str
    place: Place | None  # the operation whose gradient overflowed
    # the highest scale 2**k at which that operation is finite; None: none, or not known
    finite_at: float | None
    known_by: KnownBy


def skips(recording: Recording) -> list[Skip]:
    """Every skipped step, in order."""
    found: dict[int, Skip] = {}
    sinks = [s for s in recording.sinks if s.kind == "gradient"]
    for check in recording.training.unscales:
        step = recording.step_of(check.position)
        if not check.found_inf or step in found:
            continue
        update = next((u for u in recording.training.scales if u.position > check.position), None)
        if update is not None and recording.step_of(update.position) != step:
            update = None
        sink = next((s for s in sinks if recording.step_of(s.step_position) == step), None)
        seen = sink is not None and sink.position in recording.bad
        origin = origin_of(recording, sink) if sink is not None and seen else None
        place = None
        if origin is not None and origin.position >= 0:
            place = place_at(recording, origin.position)
        scale = update.before if update else scale_of(recording, step)
        finite, known_by = _finite_at(recording, step, scale)
        after = update.after if update else scale
        found[step] = Skip(
            step, check.position, scale, after, sink.name if sink else "", place, finite, known_by
        )
    return _settled(recording, list(found.values()))


def _settled(recording: Recording, entries: list[Skip]) -> list[Skip]:
    """The skips, none of them said to be finite at a scale at which one of those right after it was
    skipped again.

    What a replay of the operation that overflowed cannot see is whether a later one would have
    overflowed next.
    """
    ran = {
        recording.step_of(u.position): u.before for u in recording.training.scales if not u.skipped
    }
    settled: list[Skip] = []
    for skip in reversed(entries):
        after = settled[-1] if settled and settled[-1].step == skip.step + 1 else None
        next_scale = after.scale if after is not None else ran.get(skip.step + 1)
        if next_scale == skip.after and skip.known_by != "no scale":  # else it is another scaler's
            limit = after.finite_at if after is not None else next_scale
            known_by: KnownBy = after.known_by if after is not None else "later step"
            if limit is not None and limit < (skip.finite_at or math.inf):
                skip = replace(skip, finite_at=limit, known_by=known_by)
        settled.append(skip)
    return settled[::-1]


def skips_frame(recording: Recording) -> pd.DataFrame:
    """A row per skipped step: ``step``, ``scale_before``, ``scale_after``, ``parameter`` (the first
    whose gradient was not finite), ``op``, ``file``, ``line``, ``source`` of the forward operation
    whose gradient overflowed, ``finite_at`` and ``known_by``.

    finite_at: the highest scale 2**k at which the operations that overflowed are finite: by running
    them again on smaller gradients ("replay") or from the values that a cast could not hold
    ("histogram"); where the steps right after it were skipped at that scale too, the one at which
    they came to rest ("later step"). "no scale": they fail at any.
    """
    rows = []
    for skip in skips(recording):
        at = {"op": "", "file": "", "line": 0, "source": ""}
        at |= where(recording, skip.place) if skip.place is not None else {}
        told = (skip.step, skip.scale, skip.after, skip.parameter)
        rows.append((*told, *map(at.get, _WHERE), skip.finite_at, skip.known_by))
    names = "step scale_before scale_after parameter op file line source finite_at known_by"
    frame = pd.DataFrame(rows, columns=names.split())
    frame["finite_at"] = frame["finite_at"].astype("Float64")
    return frame


_WHERE = ("op", "file", "line", "source")


def scale_of(recording: Recording, step: int) -> float:
    """The loss scale of a step: what the scaler multiplied its loss by; 1 without a scaler."""
    for loss in reversed(recording.training.losses):
        if (
            recording.step_of(loss.position) == step
            and loss.factor > 1.0
            and math.isfinite(loss.factor)
        ):
            return float(2.0 ** round(math.log2(loss.factor)))
    return 1.0


def _finite_at(recording: Recording, step: int, scale: float) -> tuple[float | None, KnownBy]:
    """(highest power of two at which an overflowed step is finite, how that is known)."""
    low = recording.starts[step]
    high = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end
    births = [p for p, code in recording.status.items() if low <= p < high and code == BORN]
    births = [p for p in births if recording.at(p).backward]
    answers = [_halvings(recording, p) for p in births]
    if not answers or not all(known_by for _, known_by in answers) or scale <= 0:
        return None, ""
    if any(halvings is None for halvings, _ in answers):
        return None, "no scale"
    power = math.floor(math.log2(scale)) - max(h for h, _ in answers if h is not None)
    return 2.0**power, "replay" if any(k == "replay" for _, k in answers) else "histogram"


def _halvings(recording: Recording, position: int) -> tuple[int | None, KnownBy]:
    """How often the gradients must be halved for an operation to be finite; None: never."""
    row = recording.at(position)
    kept = recording.kept.get(row.call)
    operands = row.operands
    if kept is not None:
        slots = {slot for source, slot in operands if recording.at(source).backward}
        tried = range(1, MOST_HALVINGS + 1) if slots else ()
        return next((k for k in tried if finite_after(kept, slots, k)), None), "replay"
    stats = recording.stats(operands[0][0]) if operands else None
    if row.name != "_to_copy" or stats is None or stats.min is None or not stats.is_finite:
        return None, ""
    limits = format_of(row.dtype)
    largest = stats.largest
    return max(1, math.ceil(math.log2(largest / (limits.max * (1 + limits.ulp / 4))))), "histogram"


# -- whether a scale will be found


def collapse(entries: list[Skip]) -> str:
    """Why the scaler will not find a scale; empty if the skips are a calibration."""
    run = [entries[0]]
    longest = run
    for entry in entries[1:]:
        run = [*run, entry] if entry.step == run[-1].step + 1 else [entry]
        longest = max(longest, run, key=len)
    fixed = [e for e in longest if e.after >= e.scale]
    if len(fixed) >= FIXED_SKIPS:
        return "the scale does not come down"
    back = [later for earlier, later in pairwise(longest) if later.scale > earlier.after]
    if len(back) >= FIXED_SKIPS - 1:
        return (
            f"the scale is set back to {back[0].scale:g} before each step, as by a new GradScaler"
            " inside the loop"
        )
    # one skip below 1 may be the last
    low = 0.0 < longest[-1].after < 1.0 and len(longest) >= FIXED_SKIPS
    if len(longest) >= MOST_SKIPS or low:
        return f"the scale fell to {longest[-1].after:g} and the gradients still overflow"
    return ""


def below_one(entries: list[Skip]) -> str:
    """What a scale that came down below 1 says of the gradients; empty if it did not."""
    last = entries[-1]
    if not 0.0 < last.after < 1.0:
        return ""
    if last.finite_at is not None:
        return (
            f"they fit at 2^{round(math.log2(last.finite_at))} ({last.known_by}), a scale that"
            " makes gradients smaller"
        )
    return "no scale at which they fit is known"


# The places where a low-precision run first loses signal: values that became zero, epsilons
# that do nothing.

NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
ELEMENTWISE = having("scales", in_place=True, lists=True) | having("casts") | {"pow", "copy_"}
SUMS = having("matmul") | {"linear", "mean"} | {"convolution"}
SCALES = having("scales", in_place=True)
ADDS = having("adds", in_place=True)
FLOORS = having("floors", in_place=True)
# times the smallest normal number: the size of products up to which zeros in their sum are lost
# ones
MOST_TERM = 16.0
LEAST = 0.01  # share of a result's values from which its loss is listed
_NUMBER = re.compile(r"(?<![\w.])(\d+\.?\d*e-\d+|0?\.0+[1-9]\d*)(?!\w)")
FIRST_LOSS_COLUMNS = (
    "position step phase op module file line source dtype numel lost share largest told_by".split()
)


@dataclass(frozen=True, slots=True)
class _Loss:
    lost: int  # values
    of: int  # values that should not be zero
    largest: float | None  # magnitude among those lost, where the float32 twin tells it
    told_by: str


def first_losses(trace: Trace) -> pd.DataFrame:
    """Where values were lost in low precision, one row for each operation and line, the first one
    first.

    A row is the first such result of an operation at a line: ``position``, ``step``, ``phase``,
    ``op``, ``module``, ``file``, ``line``, ``source``, ``dtype``, ``numel``; ``lost`` values of it
    became zero although they should not, ``share`` of those that should not be zero; ``largest``:
    their largest magnitude in float32, <NA> without a twin;
    ``told_by``: "float32 twin" (``shadow="float32"``), "counts" (more zeros came out than went in)
    or "epsilon" (a number was added, or taken as floor, that the dtype rounds to zero; it is lost
    whole: share 1).

    Each loss is that of one operation alone, measured against its own values: what a later
    operation makes of it is not counted again. Losses below one value in a hundred are left out.
    """
    recording: Recording | None = getattr(trace, "recording", None)
    found: dict[tuple[str, int, str], tuple[Any, ...]] = {}
    for row in _narrow_rows(recording) if recording is not None else ():
        key = row.name, row.place, row.module
        if key not in found and (loss := _loss_of(row)) is not None:
            found[key] = _columns(row, loss)
    frame = pd.DataFrame(list(found.values()), columns=FIRST_LOSS_COLUMNS).sort_values(
        "position", ignore_index=True
    )
    return frame.astype({"largest": "Float64"})


def flushed_at(trace: Trace, position: int) -> int:
    """Values of a row that became zero when computed; 0 if they look like true zeros."""
    recording: Recording | None = getattr(trace, "recording", None)
    row = recording.at(position) if recording is not None else None
    loss = _loss_of(row) if row is not None and row.dtype in NARROW else None
    return loss.lost if loss is not None and loss.told_by != "epsilon" else 0


def _narrow_rows(recording: Recording) -> Iterator[Op]:
    """The results in low precision that an operation may have lost values in."""
    dtypes = np.array([dtype in NARROW for dtype in recording.dtypes.items] or [False])
    numbered = np.array([name in ADDS | FLOORS for name in recording.ops.items] or [False])
    counted = np.array([name in ELEMENTWISE | SUMS for name in recording.ops.items] or [False])
    for chunk in recording.chunks:
        table = chunk.columns()
        if not len(table):
            continue
        where = chunk.where()
        narrow = dtypes[table.dtype] & (table.stat >= 0)
        stats = np.where(narrow, table.stat, -1)
        compared = counted[table.op] | np.isin(where, list(recording.shadows))
        wanted = narrow & (
            numbered[table.op] | (compared & (stat_columns(recording, stats)["zero"] > 0))
        )
        for at in np.flatnonzero(wanted).tolist():
            yield Op(recording, int(where[at]), table.row(at))


def _loss_of(row: Op) -> _Loss | None:
    stats = row.stats
    if stats is None or not stats.known or not stats.numel or not stats.is_finite:
        return None
    exact = row.position in row.recording.shadows
    losses = (way(row, stats) for way in (_epsilon, _twin if exact else _counts))
    return next((each for each in losses if each and each.lost >= LEAST * each.of > 0), None)


def _twin(row: Op, stats: TensorStats) -> _Loss | None:
    """What the float32 twin of the operation holds and the result does not."""
    shadow = row.recording.shadows[row.position]
    twin = shadow.stats
    whole = shadow.flushed == twin.numel - twin.zero
    known = whole and twin.min is not None and twin.max is not None
    largest = twin.largest if known else format_of(row.dtype).rounds_to_zero
    return _Loss(shadow.flushed, twin.numel - twin.zero, largest, "float32 twin")


def _counts(row: Op, stats: TensorStats) -> _Loss | None:
    """More zeros than those of the operands account for.

    A product of two values that are not zero is never zero but by underflow. A sum of products may
    cancel; it counts only where half of its values lie at the lower end of the dtype, and where its
    terms are small.
    """
    op, sources = row.name, list(dict.fromkeys(source for source, _ in row.operands))
    sources = sources[-1:] if op == "copy_" else sources
    known = map(row.recording.stats, sources)
    operands = [s for s in known if s is not None and s.numel]
    if not operands or not all(s.is_finite for s in operands):
        return None
    if op in SUMS:
        low = 2 * (stats.zero + stats.subnormal) >= stats.numel
        if not low or not _of_small_terms(row, operands):
            return None
    elif op not in ELEMENTWISE or any(s.numel > stats.numel for s in operands):
        return None  # a view of a larger tensor
    if len(operands) == len(row.operands) == 1 and op in SCALES and not row.scaled:
        return None  # times a number that may be zero
    accounted = min(stats.numel, sum(-(-s.zero * stats.numel // s.numel) for s in operands))
    return _Loss(stats.zero - accounted, stats.numel - accounted, None, "counts")


def _of_small_terms(row: Op, operands: list[TensorStats]) -> bool:
    """Whether summed products lie at the dtype's lower end: zeros are no cancellation."""
    if len(operands) < 2:
        return True
    size = (operands[-1].rms or 0.0) * (operands[-2].rms or 0.0)
    return bool(size <= MOST_TERM * format_of(row.dtype).smallest_normal)


def _epsilon(row: Op, stats: TensorStats) -> _Loss | None:
    """A Python number that was added, or taken as floor, and that the dtype rounds to zero.

    One that the user's line does not spell is a library's own, and told only where there is a zero
    that it should prevent; an optimizer's own has a cause of its own.
    """
    if row.name not in ADDS | FLOORS:
        return None
    if [row.recording.stats(source) for source, _ in row.operands] != [stats]:
        return None
    limit, numbers = format_of(row.dtype).rounds_to_zero, row.recording.scalars
    vanished = [abs(x) for x in numbers.get(row.position, ()) if 0.0 < abs(x) <= limit]
    spelled = {float(number) for number in _NUMBER.findall(row.source)}
    matters = stats.zero > 0 and row.phase != OPTIMIZER
    told = [x for x in vanished if matters or x in spelled]
    return _Loss(stats.numel, stats.numel, max(told), "epsilon") if told else None


def _columns(row: Op, loss: _Loss) -> tuple[Any, ...]:
    dtype = str(row.dtype).removeprefix("torch.")
    place = (row.name, row.module, row.file, row.line, row.source)
    size = (dtype, row.stats.numel, loss.lost, loss.lost / loss.of, loss.largest, loss.told_by)
    return (row.position, row.step, PHASES[row.phase], *place, *size)


# Where along the backward pass the gradient of each parameter was flushed to zero, and what
# would have kept it.

KEPT = 1e-3  # share of the values up to which flushing is no loss
# binary exponents above the smallest subnormal in which values must lie for zeros beside them to
# be flushed ones
LOW = 2
# Operations whose result is zero only where an operand is, but for rounding.
PRODUCTS = having("zero_from_zero")
COLUMNS = (
    "parameter step zero flushed op node file line source dtype measured needed_log2_scale kept_by"
    " position".split()
)


@dataclass(frozen=True, slots=True)
class Flushed:
    """A backward operation that flushed gradients."""

    position: int
    share: float  # of the values that were not zero before
    # "cast", "twin": exact; "zeros": a lower bound, from zeros that no operand explains
    measured: str
    # power of two by which the gradients would have to be larger to keep all but KEPT of them
    needed: int


def signal_loss(trace: Trace) -> pd.DataFrame:
    """A row for each parameter and place where its gradient lost more than a thousandth of its
    values to zero.

    Columns: ``parameter``, ``step``, ``zero`` (share of its gradient's elements that are zero in
    the end), ``flushed`` (share of the non-zero values that became zero at this place), ``op``,
    ``node``, ``file``, ``line``, ``source`` of the forward operation, ``dtype``, ``measured``,
    ``needed_log2_scale``, ``kept_by``: the loss scale that would have kept them ("loss scale
    2^11"), or a wider dtype where such a scale overflows elsewhere in the backward pass. A
    parameter that lost nothing has one row without a place.

    measured: "cast" and "twin" are exact counts, the latter from ``watch(shadow="float32")``;
    "zeros" is a lower bound, told from zeros that no operand explains, and its scale is an estimate
    from the root mean square. Covers the steps whose tables are at hand (``keep=``). Raises
    UsageError if there is no gradient among them.
    """
    recording = trace.recording
    steps = [s for s in recording.training.parameters if s.gradient is not None and s.gradient >= 0]
    if not steps:
        raise UsageError("no gradients at hand; watch a training step that calls backward")
    rows: list[dict[str, Any]] = []
    numbers = {recording.step_of(s.position) for s in steps}
    passes = {n: _Pass(recording, n, scale_of(recording, n)) for n in sorted(numbers)}
    for step in steps:
        number = recording.step_of(step.position)
        assert step.gradient is not None
        stats = recording.stats(step.gradient)
        found = passes[number].losses_before(step.gradient)
        common = {
            "parameter": recording.parameter_names[step.owner],
            "step": number,
            "zero": stats.zero / max(stats.numel, 1) if stats is not None else None,
        }
        rows += [{**common, **passes[number].told(loss)} for loss in found] or [
            {**common, "flushed": 0.0}
        ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for name in ("node", "line", "needed_log2_scale", "position"):
        frame[name] = frame[name].astype("Int64")
    return frame


class _Pass:
    """The backward passes of one training step."""

    def __init__(self, recording: Recording, step: int, scale: float) -> None:
        self.recording, self.scale = recording, scale
        self.start = recording.starts[step]
        self.end = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end
        self.losses = self._losses()
        self.room = self._room()

    def _losses(self) -> dict[int, Flushed]:
        """By position: the operations that flushed gradients."""
        recording = self.recording
        started = min(
            (p.position for p in recording.training.losses if p.position >= self.start),
            default=self.end,
        )
        found = {}
        for position in range(started, self.end):
            row = recording.at(position)
            if not row.backward or row.view or row.dtype not in HALF_PRECISION:
                continue
            if any(source >= started for source, _ in row.operands):
                loss = _loss(recording, position, row.name, row.dtype)
                if loss is not None and loss.share > KEPT:
                    found[position] = loss
        return found

    def _room(self) -> int:
        """The power of two that gradients could gain without an overflow in float16."""
        recording, largest = self.recording, 0.0
        for position in range(self.start, self.end):
            row = recording.at(position)
            if row.backward and row.dtype == torch.float16 and (stats := row.stats) is not None:
                if not stats.is_finite:
                    return -1
                # it comes from another backward row, not from saved values alone
                made = (s >= self.start and recording.at(s).backward for s, _ in row.operands)
                if stats.min is not None and any(made):
                    largest = max(largest, stats.largest)
        limit = format_of(torch.float16).max
        return math.floor(math.log2(limit / largest)) if largest > 0 else 64

    def losses_before(self, gradient: int) -> list[Flushed]:
        """The losses on the way from the loss to a gradient, in the order of the backward pass."""
        return [self.losses[p] for p in sorted(self._leading.get(gradient, ()))]

    @cached_property
    def _leading(self) -> dict[int, frozenset[int]]:
        """By backward row: the losses on its way. Rows follow what they come from."""
        found: dict[int, frozenset[int]] = {}
        for position in range(min(self.losses), self.end) if self.losses else ():
            row = self.recording.at(position)
            if not row.backward:
                continue
            here = {found[p] for p in row.inputs if p in found}
            if position in self.losses:
                here.add(frozenset([position]))
            if here:
                found[position] = frozenset().union(*here) if len(here) > 1 else here.pop()
        return found

    def told(self, loss: Flushed) -> dict[str, Any]:
        """The columns that say where a loss is and what would have kept the values."""
        recording = self.recording
        row = recording.at(loss.position)
        info = recording.nodes.get(row.node)
        file, line, source = recording.line_at(info.line if info is not None else row.place)
        dtype = str(row.dtype).removeprefix("torch.")
        power = round(math.log2(self.scale)) + loss.needed
        fits = loss.needed <= self.room or dtype != "float16"
        return {
            "flushed": loss.share,
            "op": row.name,
            "node": row.node if row.node >= 0 else None,
            "file": file,
            "line": line,
            "source": source,
            "dtype": dtype,
            "measured": loss.measured,
            "needed_log2_scale": power,
            "kept_by": f"loss scale 2^{power}" if fits else "bfloat16",
            "position": loss.position,
        }


def _loss(recording: Recording, position: int, op: str, dtype: torch.dtype) -> Flushed | None:
    """What an operation flushed; None where that cannot be told."""
    stats = recording.stats(position)
    if stats is None or not stats.zero:
        return None
    if op in CASTS:
        operands = recording.operands(position)
        stat = recording.stat_of(operands[-1][0]) if operands else -1
        if stat < 0:
            return None
        chunk = recording.chunks[stat >> 32]
        row = chunk.stat_row(stat)
        wide = chunk.stats.stats(row), chunk.stats.histogram(row)
        return _exact(recording, position, *wide, "cast", dtype)
    shadow = recording.twins.get(position)
    if shadow is not None:
        return _exact(recording, position, shadow.stats, shadow.exponents, "twin", dtype)
    return _from_zeros(recording, position, op, format_of(dtype))


def _exact(
    recording: Recording,
    position: int,
    wide: TensorStats,
    histogram: pd.Series[int],
    measured: str,
    dtype: torch.dtype,
) -> Flushed | None:
    """From the statistics of the values before they were rounded."""
    narrow = recording.stats(position)
    values = wide.numel - wide.zero
    if not values:
        return None
    needed = next((k for k in range(65) if _flushed(histogram, dtype, k) <= KEPT), 64)
    return Flushed(position, max(0, narrow.zero - wide.zero) / values, measured, needed)


def _flushed(histogram: pd.Series[int], dtype: torch.dtype, power: int) -> float:
    shares = cast_shares(histogram, dtype, power)
    return (shares.zero + shares.limit_zero) / max(shares.numel, 1)


def _from_zeros(
    recording: Recording, position: int, op: str, limits: FloatFormat
) -> Flushed | None:
    """From the zeros of a result that its operands do not explain, where values beside them reach
    the limit of the dtype.

    A zero of one operand makes at most that share of the result zero, row by row or element by
    element.
    """
    stats = recording.stats(position)
    if (
        op not in PRODUCTS
        or stats.absmin is None
        or stats.absmin >= limits.smallest_subnormal * 2.0**LOW
    ):
        return None
    whole = 1.0
    for source, _ in recording.operands(position)[:2]:
        operand = recording.stats(source)
        if operand is None:
            return None
        whole *= 1.0 - operand.zero / max(operand.numel, 1)
    share = max(0.0, 1.0 - (1.0 - stats.zero / stats.numel) / whole) if whole > 0 else 0.0
    # Of values that are normally distributed the share below t is 0.8 t / rms.
    needed = (
        math.ceil(math.log2(0.8 * limits.rounds_to_zero / (KEPT * stats.rms))) if stats.rms else 64
    )
    return Flushed(position, share, "zeros", max(0, needed))


# The loss scale: what each power of two would flush or overflow of the measured gradients.


@dataclass(frozen=True)
class LossScale:
    """What every loss scale 2**k makes of the measured gradients in ``dtype``."""

    # by log2_scale: scale, flushed, subnormal, overflow (shares of the non-zero values), uncertain
    table: pd.DataFrame
    parameters: pd.DataFrame  # the same by (log2_scale, parameter)
    # the same for the gradients on the way, those that were in ``dtype``; empty without any
    activations: pd.DataFrame
    # scales that overflow nothing and flush least; None: there is no such scale
    advised: tuple[float, float] | None
    # doublings from the scale in use to the first overflow; negative: it overflows
    headroom: int | None
    used: float  # the scale that the gradients were recorded at
    dtype: str
    skips: pd.DataFrame  # a row per skipped step: see ``trace.skips``
    histogram: pd.Series[int] = field(repr=False)  # of all unscaled gradients together

    def __repr__(self) -> str:
        row = self.table.loc[round(math.log2(self.used))] if self.used > 0 else None
        lines = [f"LossScale in {self.dtype}: {_power(self.used)} was in use"]
        if row is not None:
            shares = ", ".join(
                f"{100 * row[name]:.3g} % {what}"
                for name, what in (
                    ("flushed", "flushed to zero"),
                    ("subnormal", "subnormal"),
                    ("overflow", "overflow"),
                )
            )
            lines.append(f"  gradients at that scale: {shares}")
        if self.advised is None:
            lines.append("  no scale from 2^-16 to 2^40 holds them all")
        else:
            low, high = (_power(scale) for scale in self.advised)
            lines.append(f"  advised: {low}" if low == high else f"  advised: {low} to {high}")
        if len(self.skips):
            lines.append(f"  skipped steps: {len(self.skips)} (see .skips)")
        return "\n".join([*lines, "  .table has every scale, .plot() draws it"])

    def plot(self, ax: Any = None) -> Any:
        """Draw shares flushed, subnormal and overflowing over the scale on ``ax``; returns it."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        for name, style in (("flushed", "-"), ("subnormal", ":"), ("overflow", "--")):
            ax.plot(self.table.index, 100 * self.table[name], style, label=name)
        if self.advised is not None:
            low, high = (math.log2(s) for s in self.advised)
            ax.axvspan(low - 0.5, high + 0.5, alpha=0.15, label="advised")
        ax.axvline(math.log2(self.used), linewidth=1, color="grey", label="in use")
        ax.set(xlabel="log2(loss scale)", ylabel=f"gradients in {self.dtype} (%)")
        ax.legend()
        return ax


def _power(scale: float) -> str:
    exponent = math.log2(scale) if scale > 0 else math.nan
    return f"2^{exponent:.0f}" if exponent == round(exponent) else f"{scale:g}"


def loss_scale(
    trace: Trace, dtype: torch.dtype = torch.float16, step: int | None = None
) -> LossScale:
    """Simulate every loss scale from 2**-16 to 2**40 on the gradients of a recorded step.

    step: a training step whose table is at hand; default: the last one with finite gradients.
    The shares follow from the exact exponent histograms. A power of two moves a histogram by whole
    bins, so they equal what a run at that scale measures, but for values in the bin of a limit
    (column ``uncertain``).

    The gradients of activations count as well, where the step ran in ``dtype``: they overflow first
    as a rule, and the advised scales start where none of them is flushed any more (see
    ``trace.signal_loss()``).

    Raises UsageError if no gradients were recorded.
    """
    gradients, number, scale = _gradients(trace, step)
    if not gradients:
        raise UsageError(
            "no gradients at hand to simulate a loss scale with; watch a step that calls backward"
        )
    together = add_histograms(gradients.values())
    inside = _activations(trace.recording, number, scale, dtype)
    table = _simulated(together, dtype)
    activations = _simulated(inside, dtype) if len(inside) else pd.DataFrame()
    per = pd.concat(
        {name: _simulated(h, dtype) for name, h in gradients.items()}, names=["parameter"]
    )
    limits = [t for t in (table, activations) if len(t)]
    fits = [
        k for k in LOSS_SCALES if all(t.overflow[k] + t.uncertain_overflow[k] == 0 for t in limits)
    ]
    return LossScale(
        table.drop(columns="uncertain_overflow"),
        per.drop(columns="uncertain_overflow")
        .swaplevel()
        .sort_index(level=0, sort_remaining=False, kind="stable"),
        activations.drop(columns="uncertain_overflow", errors="ignore"),
        _advised(fits, limits, _needed(trace, number, dtype)),
        None if not fits else max(fits) - round(math.log2(scale)),
        scale,
        str(dtype).removeprefix("torch."),
        skips_frame(trace.recording),
        together,
    )


def _simulated(histogram: pd.Series[int], dtype: torch.dtype) -> pd.DataFrame:
    """What becomes of values at each loss scale, in shares of them."""
    scales = np.array(LOSS_SCALES)
    found = cast_counts(histogram, dtype, scales)
    count = np.maximum(found["numel"], 1)
    return pd.DataFrame(
        {
            "scale": 2.0**scales,
            "flushed": found["zero"] / count,
            "subnormal": found["subnormal"] / count,
            "overflow": found["overflow"] / count,
            "uncertain": (found["limit_zero"] + found["limit_normal"] + found["limit_overflow"])
            / count,
            "uncertain_overflow": found["limit_overflow"] / count,
        },
        index=pd.Index(scales, name="log2_scale"),
    )


def _advised(
    fits: list[int], tables: list[pd.DataFrame], needed: int
) -> tuple[float, float] | None:
    """The scales at which nothing overflows and hardly more is flushed than at the best of them."""
    if not fits:
        return None
    flushed = {k: sum(float(t.flushed[k]) for t in tables) for k in fits}
    best = [k for k in fits if flushed[k] <= min(flushed.values()) + 0.001]
    enough = [k for k in best if k >= needed] or best[-1:]
    return 2.0 ** min(enough), 2.0 ** max(enough)


def _needed(trace: Trace, step: int, dtype: torch.dtype) -> int:
    """log2 of the scale from which no gradient of a step is flushed; least there is if none."""
    lost = signal_loss(trace)
    lost = lost[(lost.step == step) & (lost.dtype == str(dtype).removeprefix("torch."))]
    return int(lost.needed_log2_scale.max()) if len(lost) else LOSS_SCALES[0]


def _activations(
    recording: Recording, step: int, scale: float, dtype: torch.dtype
) -> pd.Series[int]:
    """Histogram of the unscaled gradients that the backward pass of a step held in ``dtype``."""
    low = min(
        (p.position for p in recording.training.losses if recording.step_of(p.position) == step),
        default=0,
    )
    high = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end
    found = []
    for position in range(max(low, 0), high):
        row = recording.op(position)
        if row is None or not row.backward or row.view or row.dtype != dtype:
            continue
        stat = recording.stat_of(position)
        if stat >= 0 and any(source >= low for source, _ in recording.operands(position)):
            chunk = recording.chunks[stat >> 32]
            found.append(chunk.stats.histogram(chunk.stat_row(stat)))
    together = add_histograms(found)
    together.index = together.index - round(math.log2(scale))
    return together


def _gradients(trace: Trace, step: int | None) -> tuple[dict[str, pd.Series[int]], int, float]:
    """Unscaled histograms of the gradients by parameter, their step, and their scale."""
    recording = trace.recording
    rows = [r for r in recording.training.parameters if r.gradient is not None]
    finite: dict[int, list[Any]] = {}
    for row in rows:
        finite.setdefault(recording.step_of(row.position), []).append(row)
    for number in sorted(finite, reverse=True):
        chosen = finite[number]
        if step is not None and number != step:
            continue
        stats = [recording.stats(r.gradient) for r in chosen]
        if step is None and any(s is None or not s.is_finite for s in stats):
            continue
        scale = scale_of(recording, number)
        shift = round(math.log2(scale))
        found = {}
        for row in chosen:
            stat = recording.stat_of(row.gradient)
            if stat >= 0:
                chunk = recording.chunks[stat >> 32]
                histogram = chunk.stats.histogram(chunk.stat_row(stat))
                histogram.index = histogram.index - shift
                found[recording.parameter_names[row.owner]] = histogram
        return found, number, scale
    return {}, -1, 1.0
