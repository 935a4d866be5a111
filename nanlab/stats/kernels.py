"""Which kernel reads which dtype, and threads for large tensors; numba comes later."""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from nanlab.stats import layout as L

# Which kernel reads which dtype; numba is imported, and its kernels compiled, at the first
# call.

# address, elements, kind, address of the state -> NaN and inf
Kernel = Callable[[int, int, int, int], int]
FLOAT8 = [
    getattr(torch, name)
    for form in "e4m3fn e5m2 e4m3fnuz e5m2fnuz e8m0fnu".split()
    if hasattr(torch, name := f"float8_{form}")
]
INTEGERS = {
    torch.bool: L.UINT8,
    torch.uint8: L.UINT8,
    torch.int8: L.INT8,
    torch.int16: L.INT16,
    torch.int32: L.INT32,
    torch.int64: L.INT64,
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled kernels."""

    # kernel, and which kind of element it shall read
    by_dtype: dict[torch.dtype, tuple[Kernel, int]]
    change: tuple[Kernel, int]  # the same for what became of float32 values
    # float32 bits of the 256 values of each float8 dtype, then their smallest normals; uint32
    float8: np.ndarray


@cache
def load_kernels() -> Kernels | None:
    """The kernels for CPU memory, or None, with one warning, where numba cannot be had.

    The kernels for float64 and for integers are loaded when the first of these comes.
    """
    drop_stale_cache()
    try:
        from nanlab.stats import cpu32
    except Exception as error:  # numba and LLVM fail in many ways, and none may stop the program
        warn_of(error)
        return None
    by_dtype: dict[torch.dtype, tuple[Kernel, int]] = {
        torch.float32: (cpu32.summarise32, L.FLOAT32),
        torch.bfloat16: (cpu32.summarise32, L.BFLOAT16),
        torch.float16: (cpu32.summarise32, L.FLOAT16),
    }
    by_dtype |= {dtype: (cpu32.summarise32, L.FLOAT8 + place) for place, dtype in enumerate(FLOAT8)}

    by_dtype.update({torch.float64: (loaded_later("cpu64", "summarise64", by_dtype), 0)})
    integers = loaded_later("cpu64", "summarise_integers", by_dtype)
    by_dtype.update({dtype: (integers, kind) for dtype, kind in INTEGERS.items()})
    return Kernels(by_dtype, (cpu32.summarise32, L.CHANGE), float8_values())


def loaded_later(module: str, name: str, by_dtype: dict[torch.dtype, tuple[Kernel, int]]) -> Kernel:
    """Stands for a kernel until called, then puts it in its place; KeyError if that fails."""

    def first_call(address: int, numel: int, kind: int, state: int) -> int:
        mine = [dtype for dtype, (kernel, _) in by_dtype.items() if kernel is first_call]
        try:
            compiled: Kernel = getattr(import_module(f"nanlab.stats.{module}"), name)
        except Exception as error:
            warn_of(error)
            for dtype in mine:
                del by_dtype[dtype]
            raise KeyError(name) from error
        by_dtype.update({dtype: (compiled, by_dtype[dtype][1]) for dtype in mine})
        return compiled(address, numel, kind, state)

    return first_call


def drop_stale_cache() -> None:
    """Compile again after a change in any file here: numba looks at the kernel's alone."""
    here = Path(__file__).parent
    changed = max(source.stat().st_mtime for source in here.glob("*.py"))
    for index in here.glob("__pycache__/*.nbi"):
        with suppress(OSError):  # not ours to delete, or deleted by another process
            if index.stat().st_mtime < changed:
                index.unlink()


def warn_of(error: Exception) -> None:
    """Say that the kernels are missing."""
    warnings.warn(
        f"numba failed ({error!r}): tensors are summarised more slowly, by torch", stacklevel=2
    )


def float8_values() -> np.ndarray:
    """float32 bits of every float8 value, 256 per dtype; then each one's smallest normal."""
    bytes_ = torch.arange(256, dtype=torch.uint8, device="cpu")
    tables = np.zeros(L.FLOAT8_TABLES * 257, np.uint32)
    for place, dtype in enumerate(FLOAT8):
        tables[256 * place : 256 * (place + 1)] = bytes_.view(dtype).float().numpy().view(np.uint32)
        tables[256 * L.FLOAT8_TABLES + place] = np.float32(torch.finfo(dtype).smallest_normal).view(
            np.uint32
        )
    return tables


# Several threads over one large tensor: the OpenMP threads that torch's own operations run on.
#
# They have just run the operation whose result is summarised, are still awake, and have parts
# of it in their caches; threads of our own would have to be woken, which takes as long as half
# a million elements, and would compete with torch's.

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
        from nanlab.stats import cpu32  # here, for it imports numba

        self._words = cpu32
        self._parallel, self._function = parallel, cpu32.compiled()
        self._job = np.zeros(cpu32.JOB_WIDTH, np.int64)
        self._job[[cpu32.THREAD_NUMBER, cpu32.THREADS]] = thread_number, threads
        self._job[cpu32.KERNEL] = cpu32.address_of_kernel()
        self._states = np.zeros((0, L.STATE_WIDTH), np.int64)
        self._scratch = np.zeros(0, np.int64)
        # held while a tensor is being counted, until its row is written
        self.lock = threading.Lock()
        # whether the counts of the last tensor became a row; an interrupt may have come between
        self.taken = True

    def count(self, address: int, numel: int, kind: int, state: np.ndarray, parts: int) -> None:
        """Count the elements, and say in ``state`` where: the kernel writes their row next."""
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
