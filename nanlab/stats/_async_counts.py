"""Counts of NaN and infinities, sent to the host ahead of the rows that they are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nanlab.stats import _layout as L
from nanlab.stats._device import DeviceRow
from nanlab.stats._memory import unobserved

COUNTS = slice(L.NAN, L.NEGINF + 1)  # where they stand in the words of a row


class AsyncCopy(Protocol):
    """The counts of some rows, on their way."""

    rows: list[int]

    def arrived(self) -> bool:
        """Whether ``read`` need not wait."""

    def read(self) -> np.ndarray:
        """How many elements are NaN, inf and -inf, int64 [rows, 3]."""


class Copier(Protocol):
    """Copies counts from one device to the host."""

    def send(self, rows: list[tuple[int, DeviceRow]], streams: Iterable[torch.Stream]) -> AsyncCopy:
        """Enqueue the copy of the counts of ``rows``, which were enqueued on ``streams``. The host
        does not wait."""

    def wait(self) -> None:
        """Wait for all that was enqueued."""


@dataclass(slots=True)
class HostCopy:
    """Of a device that has no events: it arrives when it is read."""

    rows: list[int]
    counts: torch.Tensor

    def arrived(self) -> bool:
        return False

    def read(self) -> np.ndarray:
        with unobserved():
            return self.counts.cpu().numpy()


class HostCopier:
    """For devices without streams and events."""

    def send(self, rows: list[tuple[int, DeviceRow]], streams: Iterable[torch.Stream]) -> HostCopy:
        with unobserved():
            return HostCopy([row for row, _ in rows], counts_of(rows))

    def wait(self) -> None:
        return


@dataclass(slots=True)
class CudaCopy:
    """A copy into pinned memory, and the event that follows it."""

    rows: list[int]
    counts: torch.Tensor
    event: torch.cuda.Event

    def arrived(self) -> bool:
        return bool(self.event.query())

    def read(self) -> np.ndarray:
        self.event.synchronize()
        with unobserved():
            return self.counts.numpy()


class CudaCopier:
    """Copies on a stream of its own, so that the program's streams wait for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def send(self, rows: list[tuple[int, DeviceRow]], streams: Iterable[torch.Stream]) -> CudaCopy:
        here = torch.cuda.default_stream(self._device), torch.cuda.current_stream(self._device)
        for stream in {*streams, *here}:
            self._stream.wait_stream(stream)
        with torch.cuda.stream(self._stream), unobserved():
            counts = counts_of(rows)
            host = torch.empty(counts.shape, dtype=counts.dtype, device="cpu", pin_memory=True)
            host.copy_(counts, non_blocking=True)
            return CudaCopy([row for row, _ in rows], host, self._stream.record_event())

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)


def copier_of(device: torch.device) -> Copier:
    """The copier of a device."""
    return CudaCopier(device) if device.type == "cuda" else HostCopier()


def counts_of(rows: list[tuple[int, DeviceRow]]) -> torch.Tensor:
    """The counts of rows of one device, on that device, int64 [rows, 3]."""
    return torch.cat([row.words[COUNTS] for _, row in rows]).view(-1, 3)
