"""The loss scale: what each power of two would flush or overflow of the measured gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.precision import LOSS_SCALES, add_histograms, cast_shares
from nanlab.analysis.skipping import scale_of, skips_frame
from nanlab.errors import UsageError
from nanlab.trace import Trace


@dataclass(frozen=True)
class LossScale:
    """What every loss scale 2**k makes of the measured gradients when they are held in ``dtype``."""

    table: pd.DataFrame  # by log2_scale: scale, flushed, subnormal, overflow (shares of the non-zero values), uncertain
    parameters: pd.DataFrame  # the same by (log2_scale, parameter)
    advised: tuple[float, float] | None  # scales that overflow nothing and flush least; None: there is no such scale
    headroom: int | None  # doublings from the scale in use to the first overflow; negative: it overflows
    used: float  # the scale that the gradients were recorded at
    dtype: str
    skips: pd.DataFrame  # a row per skipped step: see ``trace.skips``
    histogram: pd.Series[int] = field(repr=False)  # of all unscaled gradients together

    def plot(self, ax: Any = None) -> Any:
        """Draw the shares flushed, subnormal and overflowing against the scale, on ``ax``, which is returned."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        for name, style in (("flushed", "-"), ("subnormal", ":"), ("overflow", "--")):
            ax.plot(self.table.index, 100 * self.table[name], style, label=name)
        if self.advised is not None:
            low, high = (math.log2(s) for s in self.advised)
            ax.axvspan(low - 0.5, high + 0.5, alpha=0.15, label="advised")
        ax.axvline(math.log2(self.used), linewidth=1, color="grey")
        ax.set(xlabel="log2(loss scale)", ylabel=f"gradients in {self.dtype} (%)")
        ax.legend()
        return ax


def loss_scale(trace: Trace, dtype: torch.dtype = torch.float16, step: int | None = None) -> LossScale:
    """Simulate every loss scale from 2**-16 to 2**40 on the gradients of a recorded step.

    step: a training step whose table is at hand; default: the last one with finite gradients.
    The shares follow from the exact exponent histograms. A power of two moves a histogram by whole bins, so they equal
    what a run at that scale measures, but for values in the bin of a limit (column ``uncertain``).

    Raises UsageError if no gradients were recorded.
    """
    gradients, scale = _gradients(trace, step)
    if not gradients:
        raise UsageError("no gradients at hand to simulate a loss scale with; watch a step that calls backward")
    together = add_histograms(gradients.values())
    rows, per = [], []
    for k in LOSS_SCALES:
        rows.append(_shares(together, dtype, k))
        per += [{"parameter": name, **_shares(h, dtype, k)} for name, h in gradients.items()]
    table = pd.DataFrame(rows).set_index("log2_scale")
    advised = _advised(table)
    fits = table.index[table.overflow + table.uncertain_overflow == 0]
    headroom = None if not len(fits) else int(fits.max() - round(math.log2(scale)))
    return LossScale(
        table.drop(columns="uncertain_overflow"),
        pd.DataFrame(per).drop(columns="uncertain_overflow").set_index(["log2_scale", "parameter"]),
        advised,
        headroom,
        scale,
        str(dtype).removeprefix("torch."),
        skips_frame(trace.recording),
        together,
    )


def _shares(histogram: pd.Series[int], dtype: torch.dtype, k: int) -> dict[str, float]:
    cast = cast_shares(histogram, dtype, k)
    count = max(cast.numel, 1)
    return {
        "log2_scale": k,
        "scale": 2.0**k,
        "flushed": cast.zero / count,
        "subnormal": cast.subnormal / count,
        "overflow": cast.overflow / count,
        "uncertain": cast.limit / count,
        "uncertain_overflow": cast.limit_overflow / count,
    }


def _advised(table: pd.DataFrame) -> tuple[float, float] | None:
    """The scales at which nothing overflows and hardly more is flushed than at the best of them."""
    safe = table[table.overflow + table.uncertain_overflow == 0]
    if not len(safe):
        return None
    best = safe[safe.flushed <= safe.flushed.min() + 0.001]
    return float(best.scale.min()), float(best.scale.max())


def _gradients(trace: Trace, step: int | None) -> tuple[dict[str, pd.Series[int]], float]:
    """Histograms of the unscaled gradients by parameter, and the scale that they bore."""
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
        return found, scale
    return {}, 1.0
