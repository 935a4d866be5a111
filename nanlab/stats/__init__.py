"""A tensor as one row of numbers: counts, range, moments, float16 losses, histogram."""

from __future__ import annotations

import os
import threading

import torch

from nanlab.stats.kernels import load_team
from nanlab.stats.layout import TensorStats
from nanlab.stats.table import StatsTable

__all__ = ["StatsTable", "TensorStats", "load_early", "summarize"]


def load_early() -> threading.Thread:
    """Load the compiled kernels, or compile them the first time, in a thread of its own, which is
    returned.

    Whoever needs them before waits for it: Python lets one thread at a time import a module.
    """
    thread = threading.Thread(target=_use_each_kernel, name="nanlab kernels")
    if hasattr(os, "register_at_fork"):
        # A DataLoader worker that was forked meanwhile could never import what this thread is just
        # importing, numba for one.
        os.register_at_fork(before=lambda: _wait_for(thread))
    thread.start()
    return thread


def _wait_for(thread: threading.Thread) -> None:
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join()


def _use_each_kernel() -> None:
    table = StatsTable()
    for dtype in (torch.float32, torch.int64, torch.float64):
        table.add(torch.zeros(1, dtype=dtype, device="cpu"))
    if torch.get_num_threads() > 1:
        load_team()


def summarize(t: torch.Tensor) -> TensorStats:
    """The numbers of one tensor, of any shape, dtype, layout and device; see ``TensorStats``.

    For many tensors use a ``StatsTable``, which does not wait for the device after each.
    """
    table = StatsTable()
    return table.stats(table.add(t))
