"""What tensors show of their storages: each such view once, however many calls name it."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.trace.chunk import Names
from nanlab.trace.program import View

Tensor = torch.Tensor
PLAIN: frozenset[Any] = frozenset({Tensor, torch.nn.Parameter})
_STRIDED = torch.strided
# Dtypes of which no tensor is a lazy conjugate, or quantised, until a complex one was seen.
_USUAL = frozenset(
    getattr(torch, name)
    for name in "float16 bfloat16 float32 float64 bool uint8 int8 int16 int32 int64".split()
)
_MOST = 20_000  # of a program whose shapes are others in each step


class TensorViews:
    """The views that were seen.

    ``known``: (offset, shape, strides, dtype, tracked) -> view, for as long as nothing is ``odd``:
    complex numbers, and what is made of them, and symbolic zeros.
    """

    def __init__(self, shapes: Names, dtypes: Names) -> None:
        self._shapes, self._dtypes = shapes, dtypes
        self.known: dict[tuple[Any, ...], View] = {}
        self.together: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # as arguments of one call
        self.odd = False

    def turn_odd(self) -> None:
        """From now on ask each tensor whether it is more than a view of memory."""
        if not self.odd:
            self.odd = True
            self.known.clear()

    def of(self, t: Tensor, tracked: int | None) -> View | None:
        """The view of a tensor; None where it is more than a view of memory."""
        if t.__class__ not in PLAIN or t.layout is not _STRIDED:
            return None
        dtype, bits = t.dtype, 0
        if self.odd or dtype not in _USUAL:
            self.turn_odd()
            if not is_plain(t):
                return None
            bits = (1 if t.is_conj() else 0) | (2 if t.is_neg() else 0)
        key = (t.storage_offset(), t.shape, t.stride(), dtype, tracked, bits)
        found = self.known.get(key if self.odd else key[:5])
        if found is None:
            rest = (key[0], tuple(t.shape), *key[2:])
            found = View(rest, t.numel() * t.itemsize, self._shapes(t.shape), self._dtypes(dtype))
            if len(self.known) >= _MOST:
                self.known.clear()
                self.together.clear()
            self.known[key if self.odd else key[:5]] = found
        return found


def is_plain(t: Tensor) -> bool:
    """Whether a tensor is just a view of its storage; symbolic zeros have no memory."""
    return (
        t.__class__ in PLAIN
        and t.layout is torch.strided
        and not t.is_quantized
        and not t._is_zerotensor()
    )


def tracked_by(t: Tensor) -> int:
    """How autograd sees an operand: 0 not at all, 1 as a result, 2 as a leaf."""
    if not t.requires_grad:
        return 0
    try:
        return 2 if t.is_leaf else 1
    except RuntimeError:  # a view made and written without gradients (`p[3] -= 1`) has no node
        return 0
