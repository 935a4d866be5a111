"""The CPU stands in for a device: rows are computed by operations of torch and stay there until
they are fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanlab.stats import StatsTable, device
from nanlab.stats.device import DeviceRow


class Mail:
    """Letters of the stand-in: each has arrived when it was asked for more than ``delay`` times;
    None: never."""

    def __init__(self, delay: int | None) -> None:
        self.delay = delay
        self.sent = 0
        self.read = 0
        self.asked: dict[int, int] = {}

    def arrived(self, copy: device.HostCopy) -> bool:
        self.asked[id(copy)] = self.asked.get(id(copy), 0) + 1
        return self.delay is not None and self.asked[id(copy)] > self.delay


def stand_in(
    patch: pytest.MonkeyPatch,
    delay: int | None = 1,
    on_device: Callable[[torch.Tensor], bool] = lambda tensor: True,
) -> Mail:
    """Let each tensor that is ``on_device`` count as one of a device; copies arrive ``delay``
    batches later."""
    mail = Mail(delay)
    add, add_change = StatsTable.add, StatsTable.add_change
    send, read = device.HostCopier.send, device.HostCopy.read

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

    def sent(
        self: device.HostCopier, rows: list[tuple[int, DeviceRow]], streams: Any
    ) -> device.HostCopy:
        mail.sent += 1
        return send(self, rows, streams)

    def read_and_count(self: device.HostCopy) -> Any:
        mail.read += 1
        return read(self)

    patch.setattr(StatsTable, "add", add_there)
    patch.setattr(StatsTable, "add_change", add_change_there)
    patch.setattr(device.HostCopier, "send", sent)
    patch.setattr(device.HostCopy, "arrived", lambda copy: mail.arrived(copy))
    patch.setattr(device.HostCopy, "read", read_and_count)
    return mail
