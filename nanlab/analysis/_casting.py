"""One run of a training step with every result kept, and chosen lines computed in float32."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from nanlab.capture.source import SourceLines
from nanlab.operators import having

LOW = (torch.float16, torch.bfloat16)
Site = tuple[str, int]  # (file, line) of the innermost line outside torch
_CASTS = having("copies") | {"copy_"}
_UNWRITTEN = having("uninitialised")
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13


@contextmanager
def autocast(device: str, dtype: torch.dtype, enabled: bool) -> Iterator[None]:
    """torch.autocast around a whole step, but not around its backward pass, as its documentation advises.

    ``torch.autograd._engine_run_backward`` is private; it is the entry of every backward in torch 2.2 to 2.13.
    """
    original = torch.autograd.graph._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return original(*args, **kwargs)

    places = [m for m in (torch.autograd, torch.autograd.graph) if getattr(m, "_engine_run_backward", None) is original]
    for place in places if enabled else ():
        setattr(place, "_engine_run_backward", run)  # noqa: B010
    try:
        with torch.autocast(device, dtype=dtype) if enabled else nullcontext():
            yield
    finally:
        for place in places:
            setattr(place, "_engine_run_backward", original)  # noqa: B010


@dataclass(frozen=True, slots=True)
class Result:
    """One output of one operation."""

    op: str
    phase: str
    site: Site
    shown: tuple[str, int]  # the user's own line
    dtype: str
    value: torch.Tensor  # float32 copy, on the CPU


@dataclass(frozen=True, slots=True)
class Cast:
    """One cast to low precision, and what it lost of its own operand."""

    phase: str
    file: str
    line: int
    source: str  # dtype
    target: str
    numel: int
    error: float  # norm of the difference over the norm of the operand, its finite elements
    flushed: float  # share of the elements that became zero
    overflowed: float


class Tap(TorchDispatchMode):
    """Keeps every floating-point result; computes in float32 what lies on one of ``wide`` lines (None: everything)."""

    def __init__(self, lines: SourceLines, wide: frozenset[Site] | None, keep: bool = True) -> None:
        super().__init__()
        self.lines, self.wide, self.keep = lines, wide, keep
        self.results: list[Result] = []
        self.casts: list[Cast] = []
        self.low_sites: dict[Site, None] = {}  # lines on which something was in low precision
        self._places: dict[int, tuple[Site, tuple[str, int]]] = {}
        self._sequence = _sequence()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = _node()
        site, shown = self._place(node)
        wide = self.wide is None or site in self.wide
        if wide:
            # The engine casts a gradient to the dtype of the forward value that it belongs to, and insists on that.
            widen = _widen if node is None else _widen_tensor
            args, kwargs = tree_map(widen, args), tree_map(widen, kwargs)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if "dtype" not in str(error) and "type" not in str(error):
                raise
            out = func(*tree_map(self._narrow(args), args), **kwargs)
        self._note(func, out, node is not None, site, shown)
        if self.keep and isinstance(out, torch.Tensor) and out.dtype in LOW and args and _is_cast(func, args[0], out):
            self.casts.append(_cast(args[0], out, "backward" if node is not None else "forward", shown))
        return out

    def _place(self, node: Any) -> tuple[Site, tuple[str, int]]:
        if node is not None and (known := self._places.get(node._sequence_nr())) is not None:
            return known
        line, site = self.lines.here(sys._getframe(2))
        places = self.lines.places
        found = (places[site][2], places[site][1]), (places[line][0], places[line][1])
        now = _sequence()
        for made in range(max(self._sequence, now - 64), now):
            self._places[made] = found
        self._sequence = now
        return found

    def _narrow(self, args: Any) -> Callable[[Any], Any]:
        """Tensors of one operation in the lowest of their dtypes, as it was before a line above was widened."""
        low = {t.dtype for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor) and t.dtype in LOW}
        dtype = next(iter(low), torch.float32)
        return lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v

    def _note(self, func: Any, out: Any, backward: bool, site: Site, shown: tuple[str, int]) -> None:
        name = func._opname if hasattr(func, "_opname") else str(func)
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if value.dtype in LOW:
                self.low_sites.setdefault(site)
            updating = (
                not backward and not torch.is_grad_enabled()
            )  # an optimizer's operations are not the step's signal
            told = name not in _UNWRITTEN and name not in _CASTS - {"_to_copy"}
            if self.keep and not updating and told and not value.is_meta:
                phase = "backward" if backward else "forward"
                copy = value.detach().to("cpu", torch.float32, copy=True)
                self.results.append(Result(name, phase, site, shown, str(value.dtype).removeprefix("torch."), copy))


def _is_cast(func: Any, operand: Any, out: torch.Tensor) -> bool:
    narrower = isinstance(operand, torch.Tensor) and operand.dtype in (torch.float32, torch.float64, *LOW)
    return getattr(func, "_opname", "") == "_to_copy" and narrower and operand.dtype != out.dtype


def _cast(operand: torch.Tensor, out: torch.Tensor, phase: str, shown: tuple[str, int]) -> Cast:
    wide, narrow = operand.detach().double(), out.detach().double()
    finite, numel = torch.isfinite(wide) & torch.isfinite(narrow), max(wide.numel(), 1)
    size = float(torch.where(finite, wide, 0.0).norm())
    gap = float(torch.where(finite, narrow - wide, 0.0).norm())
    lost = float(((narrow == 0) & (wide != 0)).sum()) / numel
    over = float((torch.isfinite(wide) & ~torch.isfinite(narrow)).sum()) / numel
    dtypes = [str(t.dtype).removeprefix("torch.") for t in (operand, out)]
    return Cast(phase, *shown, dtypes[0], dtypes[1], wide.numel(), gap / size if size else gap, lost, over)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value in LOW else value
    return _widen_tensor(value)


def _widen_tensor(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in LOW else value
