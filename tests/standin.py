"""The CPU stands in for a device: every row is computed by operations of torch and stays there until it is fetched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanlab.stats import StatsTable, _early, _table
from nanlab.stats._device import DeviceRow


class Mail:
    """Letters of the stand-in: each arrives when it was asked for ``delay`` times, or never."""

    def __init__(self, delay: int | None) -> None:
        self.delay = delay
        self.sent = 0
        self.read = 0
        self.asked: dict[int, int] = {}

    def arrived(self, letter: _early.HostLetter) -> bool:
        if self.delay is None:
            return False
        self.asked[id(letter)] = self.asked.get(id(letter), -1) + 1
        return self.asked[id(letter)] >= self.delay


def stand_in(patch: pytest.MonkeyPatch, delay: int | None = 1) -> Mail:
    """Let each tensor count as one of a device; the letters of a batch arrive ``delay`` batches later (None: never)."""
    mail, add_elements, send = Mail(delay), StatsTable._add_elements, _early.HostCourier.send
    read = _early.HostLetter.read

    def stay(self: Any, t: torch.Tensor, times: int, implicit_zeros: int) -> int:
        flush, self.flush = self.flush, lambda: None
        try:
            return add_elements(self, t, times, implicit_zeros)
        finally:
            self.flush = flush

    def sent(self: _early.HostCourier, rows: list[tuple[int, DeviceRow]], streams: Any) -> _early.HostLetter:
        mail.sent += 1
        return send(self, rows, streams)

    def read_and_count(self: _early.HostLetter) -> Any:
        mail.read += 1
        return read(self)

    patch.setattr(_table, "load_kernels", lambda: None)
    patch.setattr(StatsTable, "_add_elements", stay)
    patch.setattr(_early.HostCourier, "send", sent)
    patch.setattr(_early.HostLetter, "arrived", lambda letter: mail.arrived(letter))
    patch.setattr(_early.HostLetter, "read", read_and_count)
    return mail
