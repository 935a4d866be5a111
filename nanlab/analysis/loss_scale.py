"""The steps that a loss scaler skipped, and what each loss scale would keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from nanlab.analysis.precision import LOSS_SCALES, add_histograms, cast_counts
from nanlab.analysis.provenance import finite_after, most_halvings, origin_of
from nanlab.analysis.signal_loss import signal_loss
from nanlab.analysis.training import rows_of_step, scale_of, where
from nanlab.errors import UsageError
from nanlab.formats import format_of
from nanlab.program.rerun import grouped
from nanlab.trace import Trace
from nanlab.trace.columns import typed
from nanlab.trace.history import Place, place_at
from nanlab.trace.op import BORN, walk
from nanlab.trace.recording import Recording

# The steps that a loss scaler skipped: by which gradient, whether a smaller scale would have
# been finite, and whether one will be found.

# skipped steps in a row at one scale (or below 1) that show that no scale will be found
FIXED_SKIPS = 3
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
        before = (
            u.after for u in reversed(recording.training.scales) if u.position < check.position
        )
        scale = update.before if update else next(before, scale_of(recording, step))
        finite, known_by = _finite_at(recording, step, scale)
        after = update.after if update else scale
        found[step] = Skip(
            step, check.position, scale, after, sink.name if sink else "", place, finite, known_by
        )
    return _settled(recording, list(found.values()))


def _settled(recording: Recording, entries: list[Skip]) -> list[Skip]:
    """The skips, none of them said to be finite at a scale at which one of those right after it was
    skipped again.

    A replay runs only the operation that overflowed: a later one might have overflowed next.
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
    they came to rest ("later step"). "no scale": they, or the loss itself, fail at any.
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
    text = "parameter op file source known_by"
    return typed(frame, text, "step line", "scale_before scale_after")


_WHERE = ("op", "file", "line", "source")


def _finite_at(recording: Recording, step: int, scale: float) -> tuple[float | None, KnownBy]:
    """(highest power of two at which an overflowed step is finite, how that is known)."""
    if _is_bad_unscaled(recording, step):
        return None, "no scale"
    rows, status = rows_of_step(recording, step), recording.status.items()
    births = [p for p, code in status if p in rows and code == BORN and recording.at(p).backward]
    answers = [_halvings(recording, p) for p in births]
    if not answers or not all(known_by for _, known_by in answers) or scale <= 0:
        return None, ""
    if any(halvings is None for halvings, _ in answers):
        return None, "no scale"
    power = math.floor(math.log2(scale)) - max(h for h, _ in answers if h is not None)
    return 2.0**power, "replay" if any(k == "replay" for _, k in answers) else "histogram"


def _is_bad_unscaled(recording: Recording, step: int) -> bool:
    """Whether the step is bad at any loss scale: a loss is not finite, or a gradient only because
    of a forward value that is not."""
    bad, losses = recording.bad, recording.training.losses
    if any(loss.source in bad for loss in losses if recording.step_of(loss.position) == step):
        return True

    def came_from(position: int) -> list[int]:
        return [parent for parent in recording.parents(position) if parent in bad]

    def gradients(position: int) -> list[int]:
        return [parent for parent in came_from(position) if recording.at(parent).backward]

    sinks = (s for s in recording.sinks if s.kind == "gradient" and s.position in bad)
    ends = [s.position for s in sinks if recording.step_of(s.step_position) == step]
    return any(came_from(p) and not gradients(p) for p in walk(ends, gradients))


def _halvings(recording: Recording, position: int) -> tuple[int | None, KnownBy]:
    """How often the gradients must be halved for an operation to be finite; None: never."""
    row = recording.at(position)
    kept = recording.kept.get(row.call)
    operands = row.operands
    if kept is not None:
        slots = {slot for source, slot in operands if recording.at(source).backward}
        tried = range(1, most_halvings(recording) + 1) if slots else ()
        return next((k for k in tried if finite_after(kept, slots, k)), None), "replay"
    stats = recording.stats(operands[0][0]) if operands else None
    if row.name != "_to_copy" or stats is None or stats.min is None or not stats.is_finite:
        return None, ""
    limits = format_of(row.dtype)
    largest = stats.largest
    return max(1, math.ceil(math.log2(largest / (limits.max * (1 + limits.ulp / 4))))), "histogram"


# Whether a scale will be found.


def collapse(entries: list[Skip]) -> str:
    """Why the scaler will not find a scale; empty if the skips are calibration."""
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
    # any scale may fall for long, and one skip below 1 may be the last
    if 0.0 < longest[-1].after < 1.0 and len(longest) >= FIXED_SKIPS:
        return f"the scale fell to {longest[-1].after:g} and the gradients still overflow"
    return ""


def below_one(entries: list[Skip]) -> str:
    """What a loss scale below 1 says of the gradients; empty if it stayed above."""
    last = entries[-1]
    if not 0.0 < last.after < 1.0:
        return ""
    if last.finite_at is not None:
        return (
            f"they fit at 2^{round(math.log2(last.finite_at))} ({last.known_by}), a scale that"
            " makes gradients smaller"
        )
    return "no scale at which they fit is known"


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
            told = {"flushed": "flushed to zero", "subnormal": "subnormal", "overflow": "overflow"}
            shares = (f"{100 * row[name]:.3g} % {what}" for name, what in told.items())
            lines.append(f"  gradients at that scale: {', '.join(shares)}")
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

    Raises UsageError if no gradients were recorded, or none that are finite.
    """
    gradients, number, scale = _gradients(trace, step)
    if not gradients:
        raise UsageError(
            f"no gradients at hand to simulate a loss scale with; {_missing(trace, step)}"
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
    found = []
    for position in range(max(low, 0), rows_of_step(recording, step).stop):
        row = recording.op(position)
        if row is None or not row.backward or row.view or row.dtype != dtype:
            continue
        histogram = recording.exponents(position)
        read = (source for source, _ in recording.operands(position))
        if histogram is not None and any(source >= low for source in read):
            found.append(histogram)
    together = add_histograms(found)
    together.index = together.index - round(math.log2(scale))
    return together


def _gradients(trace: Trace, step: int | None) -> tuple[dict[str, pd.Series[int]], int, float]:
    """Unscaled histograms of the gradients by parameter, their step, and their scale."""
    recording = trace.recording
    rows = [r for r in recording.training.parameters if r.gradient is not None]
    finite: dict[int, list[Any]] = grouped(rows, lambda row: recording.step_of(row.position))
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
            histogram = recording.exponents(row.gradient)
            if histogram is not None:
                histogram.index = histogram.index - shift
                found[recording.parameter_names[row.owner]] = histogram
        return found, number, scale
    return {}, -1, 1.0


def _missing(trace: Trace, step: int | None) -> str:
    """Why no gradients are at hand, and what to do."""
    recording = trace.recording
    rows = [row for row in recording.training.parameters if row.gradient is not None]
    numbers = sorted({recording.step_of(row.position) for row in rows})
    if step is not None and numbers:
        return f"step {step} has none, others have: {', '.join(map(str, numbers[-4:]))}"
    skipped = {skip.step for skip in skips(recording)}
    if numbers and trace.culprit is None and skipped.issuperset(numbers):
        return (
            "the loss scaler skipped each of the recorded steps; it halves the scale each time, so"
            " watch more steps, or start at the scale that trace.skips.finite_at tells"
        )
    if any(row.gradient in recording.bad for row in rows):
        return (
            "in no recorded step are all of them finite: mend what trace.culprit names first, or"
            " watch a step whose gradients are finite"
        )
    return "watch a step that calls backward"
