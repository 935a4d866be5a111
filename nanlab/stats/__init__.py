"""A tensor summarised as one row of numbers: counts, range, moments, float16 losses, exponent histogram."""

from __future__ import annotations

import torch

from nanlab.stats._record import TensorStats
from nanlab.stats._table import StatsTable

__all__ = ["StatsTable", "TensorStats", "summarize"]


def summarize(t: torch.Tensor) -> TensorStats:
    """The numbers of one tensor, of any shape, dtype, layout and device; see ``TensorStats``.

    For many tensors use a ``StatsTable``, which does not wait for the device after each.
    """
    table = StatsTable()
    return table.stats(table.add(t))
