"""The loss scale: what each power of two would flush or overflow of the measured gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from nanlab.analysis.precision import LOSS_SCALES, add_histograms, cast_counts
from nanlab.analysis.signal_loss import scale_of, signal_loss, skips_frame
from nanlab.errors import UsageError
from nanlab.trace import Trace
from nanlab.trace.recording import Recording


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
