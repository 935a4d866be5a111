"""A tensor summarised as one row of numbers: counts, range, moments, float16 losses, exponent histogram."""

from __future__ import annotations

import threading

import torch

from nanlab.stats._record import TensorStats
from nanlab.stats._table import StatsTable

__all__ = ["StatsTable", "TensorStats", "load_early", "summarize"]


def load_early() -> threading.Thread:
    """Load the compiled kernels, or compile them the first time, in a thread of its own, which is returned.

    Whoever needs them before waits for it: Python lets one thread at a time import a module.
    """
    thread = threading.Thread(target=_use_each_kernel, name="nanlab kernels")
    thread.start()
    return thread


def _use_each_kernel() -> None:
    table = StatsTable()
    for dtype in (torch.float32, torch.int64, torch.float64):
        table.add(torch.zeros(1, dtype=dtype, device="cpu"))


def summarize(t: torch.Tensor) -> TensorStats:
    """The numbers of one tensor, of any shape, dtype, layout and device; see ``TensorStats``.

    For many tensors use a ``StatsTable``, which does not wait for the device after each.
    """
    table = StatsTable()
    return table.stats(table.add(t))
