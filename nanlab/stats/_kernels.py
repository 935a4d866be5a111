"""Which kernel reads which dtype; numba is imported, and its kernels compiled, at the first
call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from nanlab.stats import _layout as L

# address, elements, kind, address of the state -> NaN and inf
Kernel = Callable[[int, int, int, int], int]
FLOAT8 = [
    getattr(torch, name)
    for name in (
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
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
        from nanlab.stats import _cpu32
    except Exception as error:  # numba and LLVM fail in many ways, and none may stop the program
        warn_of(error)
        return None
    by_dtype: dict[torch.dtype, tuple[Kernel, int]] = {
        torch.float32: (_cpu32.summarise32, L.FLOAT32),
        torch.bfloat16: (_cpu32.summarise32, L.BFLOAT16),
        torch.float16: (_cpu32.summarise32, L.FLOAT16),
    }
    by_dtype |= {
        dtype: (_cpu32.summarise32, L.FLOAT8 + place) for place, dtype in enumerate(FLOAT8)
    }

    by_dtype.update({torch.float64: (loaded_later("_cpu64", "summarise64", by_dtype), 0)})
    integers = loaded_later("_integers", "summarise_integers", by_dtype)
    by_dtype.update({dtype: (integers, kind) for dtype, kind in INTEGERS.items()})
    return Kernels(by_dtype, (_cpu32.summarise32, L.CHANGE), float8_values())


def loaded_later(module: str, name: str, by_dtype: dict[torch.dtype, tuple[Kernel, int]]) -> Kernel:
    """Stands for a kernel until it is called, and then puts the kernel in its place; KeyError if
    that fails."""

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
    """Let numba compile again after a change in any file here: it looks only at the one that holds
    the kernel."""
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
    """float32 bits of every float8 value, a row of 256 per dtype, then the smallest normal of
    each."""
    bytes_ = torch.arange(256, dtype=torch.uint8, device="cpu")
    tables = np.zeros(L.FLOAT8_TABLES * 257, np.uint32)
    for place, dtype in enumerate(FLOAT8):
        tables[256 * place : 256 * (place + 1)] = bytes_.view(dtype).float().numpy().view(np.uint32)
        tables[256 * L.FLOAT8_TABLES + place] = np.float32(torch.finfo(dtype).smallest_normal).view(
            np.uint32
        )
    return tables
