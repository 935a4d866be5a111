"""Several threads over one large tensor: the OpenMP threads that torch's own operations run on.

They have just run the operation whose result is summarised, are still awake, and have parts of it
in their caches; threads of our own would have to be woken, which takes as long as half a million
elements, and would compete with torch's.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from nanlab.stats import _layout as L

WORTH_SHARING = 1 << 17  # elements from which several threads take a tensor
LEAST_PART = 1 << 16  # elements for one thread: of fewer, the way there costs more than it saves
MOST_PARTS = 64
_ITEM_SIZES = {L.FLOAT32: 4, L.BFLOAT16: 2, L.FLOAT16: 2, L.CHANGE: 4}  # float8: 1


class Team:
    """Threads that count the parts of one tensor at the same time; the parts, and so the sums, do
    not depend on which thread was faster.

    parallel: OpenMP's entry to a parallel region (function, its argument, threads, flags).
    thread_number, threads: addresses of OpenMP's functions for the number of the thread that calls,
    and of all.
    """

    def __init__(self, parallel: Callable[..., None], thread_number: int, threads: int) -> None:
        from nanlab.stats import _parts  # here, for it imports numba

        self._words = _parts
        self._parallel, self._function = parallel, _parts.compiled()
        self._job = np.zeros(_parts.JOB_WIDTH, np.int64)
        self._job[[_parts.THREAD_NUMBER, _parts.THREADS]] = thread_number, threads
        self._job[_parts.KERNEL] = _parts.address_of_kernel()
        self._states = np.zeros((0, L.STATE_WIDTH), np.int64)
        self._scratch = np.zeros(0, np.int64)
        # held while a tensor is being counted, until its row is written
        self.lock = threading.Lock()
        # whether the counts of the last tensor became a row; an interrupt may have come between
        self.taken = True

    def count(self, address: int, numel: int, kind: int, state: np.ndarray, parts: int) -> None:
        """Count the elements, and say in ``state`` where, so that the kernel writes their row
        next."""
        words, job = self._words, self._job
        if parts > len(self._states):
            self._make_room(parts, int(state[L.FLOAT8_ADDRESS]))
        if not self.taken:
            self._scratch.fill(0)
        self.taken = False
        length = -(-numel // (parts * L.BLOCK)) * L.BLOCK
        if kind == L.CHANGE:
            self._states[:, L.OLD_ADDRESS] = state[L.OLD_ADDRESS] + 4 * length * np.arange(
                len(self._states)
            )
        job[[words.ADDRESS, words.SIZE, words.KIND]] = address, numel, kind
        job[[words.ITEM_SIZE, words.PARTS, words.PART_SIZE]] = (
            _ITEM_SIZES.get(kind, 1),
            parts,
            length,
        )
        self._parallel(self._function.address, job.ctypes.data, parts, 0)
        state[[L.PARTS, L.PART_STATES]] = -(-numel // length), job[words.STATES]

    def _make_room(self, parts: int, float8: int) -> None:
        """A state and a scratch for each part."""
        each = L.SCRATCH_WORDS + L.BLOCK
        self._scratch = np.zeros(parts * each, np.int64)
        self._states = np.zeros((parts, L.STATE_WIDTH), np.int64)
        self._states[:, L.SCRATCH_ADDRESS] = self._scratch.ctypes.data + 8 * each * np.arange(parts)
        self._states[:, L.BLOCK_ADDRESS] = self._states[:, L.SCRATCH_ADDRESS] + 8 * L.SCRATCH_WORDS
        self._states[:, L.FLOAT8_ADDRESS], self._states[:, L.PARTS] = float8, L.ONE_PART
        self._job[self._words.STATES] = self._states.ctypes.data


def worth_sharing() -> int:
    """Elements from which several threads take a tensor, as many as torch computes with now."""
    return WORTH_SHARING if torch.get_num_threads() > 1 else sys.maxsize


def parts_of(numel: int) -> int:
    """Into how many parts a large tensor is worth being cut: at most one for each thread."""
    return min(torch.get_num_threads(), numel // LEAST_PART, MOST_PARTS)


@cache
def load_team() -> Team | None:
    """The team; None where torch's OpenMP has no entry that can be called (macOS, Windows)."""
    try:
        library = ctypes.PyDLL(torch._C.__file__)  # symbols of what it is linked with are found too
        # The entry that GCC compiles to; LLVM's and Intel's libraries for Linux have it too.
        parallel = library.GOMP_parallel
        number, threads = library.omp_get_thread_num, library.omp_get_num_threads
    except (OSError, AttributeError):
        return None
    parallel.argtypes, parallel.restype = (
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint],
        None,
    )
    addresses = [
        ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (number, threads)
    ]
    return Team(parallel, *addresses)
