"""The arena: coded bins of all rows, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nanlab.stats import _layout as L

# Counts that the histogram of a tensor holds: name -> which of the bins to add up, by sign (-1 or
# 1) and exponent. Each is a column of ``trace.ops``: "negative": lambda sign, exponent: sign < 0.
BINNED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}


def decode(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signs (-1 or 1), exponents and counts of coded bins, all int64."""
    code = bins & ((1 << L.CODE_BITS) - 1)
    return 1 - 2 * (code & 1), (code >> 1) - L.EXPONENT_OFFSET, bins >> L.CODE_BITS


def gather(arena: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The bins of ``rows`` moved together; ``rows`` is told where each begins now."""
    lengths = np.maximum(rows[:, L.BINS], 0)
    begins = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
    bins: np.ndarray = arena[np.repeat(rows[:, L.FIRST_BIN], lengths) + within]
    rows[:, L.FIRST_BIN] = begins
    return bins
