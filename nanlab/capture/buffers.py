"""Copies of storages within a budget of bytes, in memory that is used again."""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

import torch

# Bytes from which a buffer is mapped by itself: copies outlive the tensors around them, and the
# heap between them falls into pieces that nothing fits in (twice the parameters, after some steps).
_MAPPED = 1 << 17


class CopyBuffers:
    """Storages that hold copies, and the memory of those that were given back.

    budget: bytes that the copies may take; by default a tenth of what is free.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = free_memory() // 10 if budget is None else budget
        self.spent = 0  # bytes of copies
        self._idle = 0  # bytes of buffers that wait to be used again
        self._spare: dict[tuple[int, torch.device], list[Any]] = {}

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
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            buffer = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        buffer.copy_(storage)
        return buffer

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
        self._idle = 0


def free_memory(device: torch.device | None = None) -> int:
    """Free bytes of the device, or of the machine."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
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
