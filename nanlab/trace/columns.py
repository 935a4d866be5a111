"""Statistics as columns, with <NA> for what there is no number of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from nanlab.stats._bins import BINNED
from nanlab.trace.recording import Recording

Array = npt.NDArray[Any]
COUNTS = ("numel", "nan", "posinf", "neginf", "zero", "subnormal")
VALUES = ("min", "max", "absmin", "mean", "rms")
HALF = ("fp16_zero", "fp16_subnormal", "fp16_inf")


def counts_array(values: Array, known: Array) -> Any:
    """Int64 with <NA> where unknown."""
    return pd.arrays.IntegerArray(np.asarray(values, dtype=np.int64), ~known)


def values_array(values: Array) -> Any:
    """Float64 with <NA> where there is no value (NaN in the table means just that)."""
    values = np.asarray(values, dtype=np.float64)
    return pd.arrays.FloatingArray(values, np.isnan(values))


def stat_columns(recording: Recording, stats: Array) -> dict[str, Array]:
    """The numbers of these statistics (-1: gone), by column of ``StatsTable.columns``."""
    size, chunks = len(stats), stats >> 32
    if (
        size
        and chunks[0] >= 0
        and (chunks == chunks[0]).all()
        and recording.chunks[chunks[0]].stat_rows is None
    ):
        columns = recording.chunks[chunks[0]].stats.columns(stats & 0xFFFFFFFF)
        return {name: columns[name] for name in (*COUNTS, *HALF, *VALUES, "known")}
    found: dict[str, Array] = {name: np.zeros(size, np.int64) for name in (*COUNTS, *HALF)}
    found |= {name: np.full(size, np.nan) for name in VALUES}
    found["known"] = np.zeros(size, bool)
    for number in np.unique(chunks[stats >= 0]).tolist():
        chunk = recording.chunks[number]
        mask = (stats >= 0) & (chunks == number)
        rows = stats[mask] & 0xFFFFFFFF
        if chunk.stat_rows is not None:
            rows = np.searchsorted(chunk.stat_rows, rows)
        for name, column in chunk.stats.columns(rows).items():
            if name in found:
                found[name][mask] = column
    return found


def binned_columns(recording: Recording, stats: Array) -> dict[str, Array]:
    """The counts of ``stats.BINNED`` for these statistics (-1: gone)."""
    found = {name: np.zeros(len(stats), np.int64) for name in BINNED}
    for number in np.unique(stats[stats >= 0] >> 32).tolist() if BINNED else ():
        chunk, mask = recording.chunks[number], (stats >= 0) & (stats >> 32 == number)
        rows = np.array([chunk.stat_row(stat) for stat in stats[mask].tolist()], np.int64)
        for name, column in chunk.stats.binned(rows).items():
            found[name][mask] = column
    return found


def lookup(items: list[Any], codes: Array) -> Array:
    """The items by code, as an object array."""
    table = np.empty(max(len(items), 1), dtype=object)
    table[: len(items)] = items
    return table[codes]
