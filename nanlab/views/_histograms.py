"""Exponent histograms as the browser draws them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.analysis.precision import FormatBins

if TYPE_CHECKING:
    from nanlab.trace import Trace


def format_for_browser(bins: FormatBins) -> dict[str, Any]:
    """name, zero_limit, normal_limit, overflow_limit."""
    return asdict(bins)


def trace_row(trace: Trace, position: Any) -> pd.Series[Any] | None:
    """The row of ``trace.ops`` at a position; None where there is none."""
    if position is None or pd.isna(position):
        return None
    ops = trace.ops
    at = int(position)
    if at < len(ops) and ops["position"].iat[at] == at:
        return ops.iloc[at]
    found = ops[ops["position"] == at]
    return found.iloc[0] if len(found) else None


def dense(exponents: pd.Series[int]) -> dict[str, Any]:
    """first: the lowest exponent; counts: of it and of each following one."""
    if not len(exponents):
        return {"first": 0, "counts": []}
    low, high = int(exponents.index.min()), int(exponents.index.max())
    counts = [0] * (high - low + 1)
    for exponent, count in zip(exponents.index.tolist(), exponents.tolist(), strict=True):
        counts[int(exponent) - low] = int(count)
    return {"first": low, "counts": counts}


def browser_histogram(trace: Trace, row: pd.Series[Any] | None) -> dict[str, Any]:
    """Histogram of a row with its zeros, infinities and NaN; parts add up to numel. Empty where the
    row is unknown."""
    if row is None or pd.isna(row["numel"]):
        return {}
    names = ("numel", "zero", "neginf", "posinf", "nan")
    return dense(trace.histogram(int(row["position"]))) | {name: int(row[name]) for name in names}


def twin_histogram(trace: Trace, row: pd.Series[Any]) -> pd.Series[int] | None:
    """The histogram of the float32 twin of a row; None without a shadow watch."""
    found = _shadow_row(trace, row)
    return found["exponents"] if found is not None and "exponents" in found else None


def twin_for_browser(trace: Trace, row: pd.Series[Any]) -> dict[str, Any] | None:
    """The twin's histogram with its zeros, infinities and NaN, and ``flushed``: values that are
    zero in the row only."""
    found = _shadow_row(trace, row)
    if found is None:
        return None
    others = {
        name: int(found.get(f"twin_{name}", 0)) for name in ("zero", "neginf", "posinf", "nan")
    }
    return dense(found["exponents"]) | others | {"flushed": int(found["flushed"])}


def before_rounding(trace: Trace, row: pd.Series[Any]) -> pd.Series[int]:
    """The histogram of what a row's operation gave before it was rounded: of its twin where there
    is one."""
    twin = twin_histogram(trace, row)
    return trace.histogram(int(row["position"])) if twin is None else twin


def _shadow_row(trace: Trace, row: pd.Series[Any]) -> pd.Series[Any] | None:
    shadow = getattr(trace, "shadow", None)
    if shadow is None or not len(shadow):
        return None
    found = shadow[shadow["position"] == row["position"]]
    return found.iloc[0] if len(found) else None
