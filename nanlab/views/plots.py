"""Figures in matplotlib: each draws on given axes, or on new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from nanlab.analysis.precision import cast_shares, format_bins
from nanlab.views.charts import AMBER, BLUE, FATES, GREEN, GREY, OTHERS, PURPLE, RED
from nanlab.views.columns import BAD, floats

# of the names of zones: flushed, subnormal, normal, overflow
NAMES = (RED, "#a86400", "#2f6f9f", PURPLE)


def plot_exponents(
    exponents: pd.Series[int],
    dtype: torch.dtype = torch.float16,
    log2_scale: int = 0,
    ax: Axes | None = None,
    *,
    others: Mapping[str, int] | None = None,
    log: bool = False,
) -> Axes:
    """Draw an exponent histogram against the limits of ``dtype``.

    exponents: count of values per floor(log2|x|), as ``trace.histogram(position)`` gives it.
    log2_scale: the values are multiplied by 2**log2_scale before the cast; the limits move, the
    bars stay.
    others: counts of values without an exponent, as a row of ``trace.ops`` holds them (zero,
    neginf, posinf, nan), a bar each at the right; ``flushed``: how many of the zeros were other
    values before they were rounded.
    log: heights by the logarithm of the count.
    """
    ax = ax or _axes()
    bins = format_bins(dtype)
    index = exponents.index.to_numpy(dtype="int64")
    colours = [FATES[bins.zone(int(e) + log2_scale)] for e in index]
    ax.bar(index + 0.5, exponents.to_numpy(dtype="int64"), width=0.9, color=colours)
    low, high = _span(index, bins.zero_limit - log2_scale, bins.overflow_limit - log2_scale)
    limits = [edge - log2_scale for edge in bins.edges]
    right = _others(ax, high, (high - low) / 24, others or {})
    ax.set_xlim(low, right)
    _zones(ax, low, high, limits)
    if not len(index):
        ax.set_ylim(0, None if right > high else 1)
        ax.text((low + high) / 2, 0.5, "no non-zero finite value", ha="center", va="center",
                transform=ax.get_xaxis_transform(), color=GREY)  # fmt: skip
    shares = cast_shares(exponents, dtype, log2_scale)
    lost = f"{shares.zero:,} of {shares.numel:,} flushed, {shares.overflow:,} overflow"
    scale = f" × 2^{log2_scale}" if log2_scale else ""
    ax.set(xlabel=f"exponent, floor(log2|x|)   ({bins.name}{scale}: {lost})", ylabel="values")
    ax.set_yscale("symlog" if log else "linear")
    return ax


def _others(ax: Axes, high: int, wide: float, others: Mapping[str, int]) -> float:
    """Bars right of ``high`` for values without an exponent; returns where they end."""
    bars = [(OTHERS[name], others[name], name) for name in OTHERS if others.get(name)]
    for i, (text, count, name) in enumerate(bars):
        at = high + wide * (1.5 + 2 * i)
        flushed = min(count, others.get("flushed", 0)) if name == "zero" else 0
        ax.bar(at, count - flushed, width=wide, color=GREY if name == "zero" else PURPLE)
        ax.bar(at, flushed, width=wide, bottom=count - flushed, color=RED)
        told = f"{text}\n{count:,}" if not flushed else f"{text}\n{count:,}\n{flushed:,} flushed"
        ax.annotate(
            told,
            (at, count),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=GREY,
        )
    if bars:
        ax.margins(y=0.3)
    return high + wide * 2 * (len(bars) + 0.5) if bars else high


def _zones(ax: Axes, low: int, high: int, limits: list[int]) -> None:
    """Dashed lines at a format's limits, with the names of zones that have room."""
    for limit in limits:
        if low < limit < high:
            ax.axvline(limit, color=GREY, linestyle="--", linewidth=1)
    edges = [low, *(min(max(limit, low), high) for limit in limits), high]
    inches = ax.bbox.width / ax.get_figure(root=True).dpi / (high - low)  # type: ignore[union-attr]
    names = [("flushed to 0", "→ 0"), ("subnormal", "sub"), ("normal", ""), ("overflow", "over")]
    for names_of_zone, colour, left, right in zip(names, NAMES, edges[:-1], edges[1:], strict=True):
        fitting = [
            name for name in names_of_zone if name and 0.075 * len(name) < (right - left) * inches
        ]
        if fitting:
            above: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "va": "bottom"}
            middle = (left + right) / 2
            ax.text(middle, 1.01, fitting[0], ha="center", color=colour, fontsize=8, **above)


def _span(index: npt.NDArray[np.int64], low: int, high: int) -> tuple[int, int]:
    """The axis range: all bars, and the limits of the format nearby."""
    if not len(index):
        return low - 3, high + 4
    near_low = low - 3 if low > index.min() - 60 else int(index.min())
    near_high = high + 4 if high < index.max() + 60 else int(index.max())
    return min(int(index.min()) - 2, near_low), max(int(index.max()) + 3, near_high)


def plot_steps(steps: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Loss and gradient norm of each training step, and the loss scale at the right; skipped steps
    are marked.

    steps: ``trace.steps``. A value that is not finite is a cross at the top.
    """
    ax = ax or _axes()
    drawn = [ax]
    columns = [
        name for name in ("loss", "gradient_norm") if name in steps and steps[name].notna().any()
    ]
    for name in columns:
        colour, top = (BLUE, 1.0) if name == "loss" else (GREEN, 0.93)
        _line(ax, steps["step"], steps[name], name.replace("_", " "), colour, top)
    if "loss_scale" in steps and steps["loss_scale"].notna().any():
        drawn.append(_loss_scale(ax, steps))
    if "skipped" in steps:
        skipped = steps.loc[steps["skipped"].fillna(False).astype(bool), "step"]
        for i, step in enumerate(floats(skipped)):
            label = "skipped" if i == 0 else None
            ax.axvline(step, color=AMBER, linestyle=":", linewidth=1.5, label=label)
    ax.set_xlabel("training step")
    _set_scale(ax, [steps[name] for name in columns])
    _plain_numbers(ax)
    _bands(ax, steps, columns)
    few = len(steps) <= 2
    ax.xaxis.set_major_locator(
        FixedLocator(floats(steps["step"]).tolist()) if few else MaxNLocator(integer=True)
    )
    _legend(ax, drawn)
    return ax


def _bands(ax: Axes, steps: pd.DataFrame, columns: list[str]) -> None:
    """A red band, with words, from where a value is never finite again."""
    at = floats(steps["step"])
    if not len(at):
        return
    first, last = float(at.min()) - 0.5, float(at.max()) + 0.5
    ax.set_xlim(first, last)
    never: dict[float, list[str]] = {}
    for name in columns:
        finite = np.isfinite(floats(steps[name])) | steps[name].isna().to_numpy()
        bad = at[int(np.flatnonzero(finite)[-1]) + 1 :] if finite.any() else at
        if len(bad):
            never.setdefault(float(bad[0]), []).append(name.replace("_", " "))
    for i, (start, names) in enumerate(sorted(never.items())):
        ax.axvspan(start - 0.5, last, color=RED, alpha=0.12, linewidth=0)
        words = f"{' and '.join(names)} not finite from step {start:g} on"
        left = start - 0.5 < (first + last) / 2
        ax.annotate(words, (start - 0.5 if left else last, 0.07 + 0.1 * i), (4 if left else -4, 0),
                    xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8,
                    color=RED, ha="left" if left else "right", va="center")  # fmt: skip
    if not any(np.isfinite(floats(steps[name])).any() for name in columns):
        ax.set_ylim(0, 1)
        ax.set_yticks([])


def _set_scale(ax: Axes, columns: list[pd.Series[Any]]) -> None:
    """Logarithmic for positive numbers; else linear, or symlog if they span decades."""
    values = np.concatenate([floats(column) for column in columns] or [np.empty(0)])
    values = values[np.isfinite(values)]
    sizes = np.abs(values[values != 0])
    if not len(values):
        return
    if (values > 0).all():
        ax.set_yscale("log")
    elif len(sizes) and sizes.max() > 1000 * sizes.min():
        ax.set_yscale("symlog", linthresh=float(sizes.min()))


def _plain_numbers(ax: Axes) -> None:
    """0.02 and 500 on the logarithmic axis at the left, as many as there is room for."""
    low, high = ax.get_ylim()
    if ax.get_yscale() != "log":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    if not 0 < low < high:  # nothing was drawn
        return
    decades = math.log10(high / low)
    if decades < 0.7:
        ax.yaxis.set_major_locator(MaxNLocator(5))
    else:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _loss_scale(ax: Axes, steps: pd.DataFrame) -> Axes:
    """The loss scale on an axis of its own at the right, in powers of two."""
    right = ax.twinx()
    at, scale = floats(steps["step"]), floats(steps["loss_scale"])
    marker = "o" if np.isfinite(scale).sum() == 1 else ""  # a single value makes no line
    style: dict[str, Any] = {"where": "post", "marker": marker, "markersize": 4, "color": PURPLE}
    right.step(at, scale, label="loss scale (right)", **style)
    right.set_yscale("log", base=2)
    right.tick_params(axis="y", labelcolor=PURPLE)
    return right


def _legend(ax: Axes, drawn: list[Axes]) -> None:
    """One legend above the axes for all that is drawn on them."""
    entries = [
        entry for each in drawn for entry in zip(*each.get_legend_handles_labels(), strict=True)
    ]
    if entries:
        lines, names = zip(*entries, strict=True)
        above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0}
        ncols = len(lines) if len(lines) < 5 else 3
        ax.legend(lines, names, fontsize=8, frameon=False, ncols=ncols, **above)


def _line(
    ax: Axes,
    steps: pd.Series[Any],
    column: pd.Series[Any],
    label: str,
    colour: str,
    top: float = 1.0,
) -> None:
    at, values = floats(steps), floats(column)
    usable = np.isfinite(values)
    if usable.any():
        ax.plot(at[usable], values[usable], marker="o", markersize=3, color=colour, label=label)
    missing = at[~np.isfinite(values) & ~column.isna().to_numpy()]
    if len(missing):
        _marks(ax, missing, top, "x", colour, f"{label}: not finite")


def _marks(
    ax: Axes, at: npt.NDArray[Any], height: float, mark: str, colour: str, label: str
) -> None:
    """Marks at a fixed height of the axes."""
    style: dict[str, Any] = {"markeredgewidth": 2} if height > 0.5 else {}
    across = ax.get_xaxis_transform()
    heights = [height] * len(at)
    ax.plot(at, heights, mark, color=colour, transform=across, clip_on=False, label=label, **style)


def plot_clipping(clipping: Any, ax: Axes | None = None) -> Axes:
    """Draw the gradient norm of each step before and after clipping, and the advised bound.

    clipping: result of ``trace.clipping()``. A norm that is not finite is a cross at the top.
    """
    ax = ax or _axes()
    history = clipping.history
    before = "norm before clipping" if clipping.kind else "gradient norm"
    _line(ax, history["step"], history["before"], before, BLUE)
    if clipping.kind:
        _line(ax, history["step"], history["after"], "after", GREEN)
    if clipping.advised_max_norm is not None:
        share = clipping.would_clip(clipping.advised_max_norm)
        label = f"max_norm={clipping.advised_max_norm:g} clips {share:.0%}"
        ax.axhline(clipping.advised_max_norm, color=GREY, linestyle="--", linewidth=1, label=label)
    ax.set(xlabel="training step", ylabel="gradient norm")
    _set_scale(ax, [history["before"], *([history["after"]] if clipping.kind else [])])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax, [ax])
    return ax


def plot_gain(backward: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Root mean square of the gradient along a backward pass, in the engine's order, on a
    logarithmic axis.

    backward: rows of ``trace.backward``, all of one pass. Nodes that are not finite are marked at
    the bottom.
    """
    ax = ax or _axes()
    order, rms = np.arange(len(backward)), floats(backward["grad_out_rms"])
    usable = np.isfinite(rms) & (rms > 0)
    marker = "o" if usable.sum() == 1 else ""
    label = "rms of the outgoing gradient"
    ax.plot(order[usable], rms[usable], color=BLUE, linewidth=1.2, marker=marker, label=label)
    bad = order[backward["status"].isin(BAD).to_numpy()]
    if len(bad):
        _marks(ax, bad, 0.02, "|", RED, "not finite")
        ax.axvline(bad[0], color=RED, linestyle="--", linewidth=1)
        ends: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "fontsize": 8}
        name = str(backward["name"].iloc[int(bad[0])])
        ax.annotate(name, (bad[0], 1.0), (3, 3), textcoords="offset points", **ends)
    ax.set(xlabel="nodes in the order of execution", ylabel="gradient rms")
    ax.set_yscale("log" if usable.any() else "linear")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=8, frameon=False)
    return ax


def plot_epsilon(advice: Any, ax: Axes | None = None) -> Axes:
    """Distortion and largest gradient over epsilon, both logarithmic.

    advice: result of ``nanlab.advise_eps``; its table has a row per eps. Epsilons that vanish in
    the dtype, or leave a value or gradient that is not finite, are crossed out at the bottom.
    """
    ax = ax or _axes()
    table = advice.table
    eps = floats(table["eps"])
    curves = [("value_distortion", BLUE), ("gradient_distortion", GREEN), ("gradient_max", PURPLE)]
    for name, colour in curves:
        values = floats(table[name])
        usable, label = np.isfinite(values) & (values > 0), name.replace("_", " ")
        ax.plot(eps[usable], values[usable], marker="o", markersize=3, color=colour, label=label)
    finite = table[["finite_value", "finite_gradient"]].astype(bool).all(axis=1)
    useless = (~finite | table["vanishes"].astype(bool)).to_numpy()
    if useless.any():
        _marks(ax, eps[useless], 0.03, "x", RED, "vanishes or not finite")
    if advice.recommended is not None:
        label = f"recommended: {advice.recommended:g}"
        ax.axvline(float(advice.recommended), color=GREY, linestyle="--", label=label)
    ax.set(xscale="log", yscale="log", xlabel="epsilon")
    ax.set_ylabel("relative distortion; largest gradient")
    ax.legend(fontsize=8, frameon=False)
    return ax


def _axes() -> Axes:
    return plt.subplots(figsize=(7, 3), layout="constrained")[1]
