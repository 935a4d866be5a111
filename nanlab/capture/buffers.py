"""Copies of storages within a budget of bytes, in memory that is used again."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from typing import Any

import torch

# Bytes from which a buffer lies outside of the heap: copies outlive the tensors around them, and
# the heap between them falls into pieces that nothing fits in (twice the parameters, after some
# steps). Buffers are cut from regions of large pages: the first touch of small ones takes five
# times as long as the copy.
_MAPPED = 1 << 17
_SMALLEST, _LARGEST = 1 << 21, 1 << 26  # regions, each twice as large as the one before


class CopyBuffers:
    """Copies of storages, and the memory of released copies for use again.

    budget: bytes that the copies may take; by default a tenth of the free memory.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = free_memory() // 10 if budget is None else budget
        self.spent = 0  # bytes of copies
        self._idle = 0  # bytes of buffers that wait to be used again
        self._spare: dict[tuple[int, torch.device], list[Any]] = {}
        self._region: mmap.mmap | None = None  # from which buffers are cut
        self._cut = 0  # bytes of it that are in buffers

    def afford(self, nbytes: int) -> bool:
        """Whether so many bytes of copies fit; they count from now on."""
        if self.spent + nbytes > self.budget:
            return False
        self.spent += nbytes
        return True

    def copy(self, storage: Any) -> Any:
        """A copy of a storage; its bytes were counted before."""
        size = storage.nbytes()
        spare = self._spare.get((size, storage.device)) if self._idle else None
        if spare:
            self._idle -= size
            buffer = spare.pop()
        else:
            if self.spent + self._idle > self.budget:
                self.free()
            if size < _MAPPED or storage.device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
                return storage.clone()
            buffer = self._buffer(size)
        if storage.device.type == "cpu":  # torch takes twice as long over small ones
            ctypes.memmove(buffer.data_ptr(), storage.data_ptr(), size)
        else:
            buffer.copy_(storage)
        return buffer

    def _buffer(self, size: int) -> Any:
        """Memory outside of the heap; a region goes with the last of its buffers."""
        region = self._region
        if region is None or self._cut + size > len(region):
            room = self.budget - self.spent - self._idle
            length = _SMALLEST if region is None else min(2 * len(region), _LARGEST)
            region = mmap.mmap(
                -1, max(size, min(length, room)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
            with suppress(OSError, AttributeError):  # another system
                region.madvise(mmap.MADV_HUGEPAGE)
            self._region, self._cut = region, 0
        at = self._cut
        self._cut += -(-size // 64) * 64
        return torch.frombuffer(region, dtype=torch.uint8, offset=at, count=size).untyped_storage()

    def give_back(self, held: dict[int, Any]) -> None:
        """Take back the copies of a segment, but for those that somebody else holds."""
        while held:
            _, copy = held.popitem()
            if sys.getrefcount(copy) == 2:
                size = copy.nbytes()
                self.spent -= size
                self._idle += size
                self._spare.setdefault((size, copy.device), []).append(copy)

    def free(self) -> None:
        """Let go of the buffers that wait to be used again."""
        self._spare.clear()
        self._idle, self._region = 0, None


def free_memory() -> int:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 10 << 30
