"""How a row is computed on a device: by the Triton kernel where there is one, else by operations of torch."""

from __future__ import annotations

import torch

from nanlab.stats import _torch
from nanlab.stats._device import DeviceRow


def enqueue(t: torch.Tensor, times: int, implicit_zeros: int) -> DeviceRow:
    """Enqueue the row of the real, dense, not empty elements ``t`` on their device."""
    return _torch.row_of(t, times, implicit_zeros)
