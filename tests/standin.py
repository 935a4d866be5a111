"""The CPU stands in for a device: rows are computed by operations of torch and stay there until
they are fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanlab.stats import StatsTable


def stand_in(
    patch: pytest.MonkeyPatch, on_device: Callable[[torch.Tensor], bool] = lambda tensor: True
) -> None:
    """Let each tensor that is ``on_device`` count as one of a device."""
    add, add_change = StatsTable.add, StatsTable.add_change

    def add_there(self: Any, t: torch.Tensor) -> int:
        if not on_device(t):
            return add(self, t)
        kernels, self._kernel_of, self.flush = self._kernel_of, {}, lambda: None
        try:
            return add(self, t)
        finally:
            self._kernel_of = kernels
            del self.flush

    def add_change_there(self: Any, new: torch.Tensor, old: torch.Tensor) -> int:
        kernels, self._kernels = self._kernels, None
        try:
            return add_change(self, new, old)
        finally:
            self._kernels = kernels

    patch.setattr(StatsTable, "add", add_there)
    patch.setattr(StatsTable, "add_change", add_change_there)
