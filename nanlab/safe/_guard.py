"""The double where, once for every operator of :mod:`nanlab.safe`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from nanlab.errors import TypeMismatchError

Dims = int | tuple[int, ...] | None
Number = int | float
Outside = Callable[..., Tensor]  # (torch's value, *operands) -> the value to hold where torch's is not finite
Flat = Callable[..., tuple[Tensor, ...]]  # (torch's value, *operands) -> a mask per operand


def smallest(dtype: torch.dtype) -> float:
    """Smallest positive number of ``dtype``: its smallest subnormal, spacing of the numbers next to zero."""
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps


def below_one(dtype: torch.dtype) -> float:
    """Largest number of ``dtype`` below 1."""
    return 1.0 - torch.finfo(dtype).eps / 2


def as_float(x: Any, name: str) -> Tensor:
    """``x`` as a real floating-point tensor; integers become the default dtype, as in torch's own functions.

    Raises TypeMismatchError (a TypeError) for what is no tensor, and for complex tensors.
    """
    if not isinstance(x, Tensor):
        raise TypeMismatchError(f"expected a tensor for {name}, got {type(x).__name__}; wrap it in torch.as_tensor")
    if x.is_complex():
        raise TypeMismatchError(f"expected a real tensor for {name}, got {x.dtype}; treat x.real and x.imag apart")
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def is_finite(x: Tensor) -> Tensor:
    """``torch.isfinite`` in two passes over memory instead of four."""
    return x.abs() <= torch.finfo(x.dtype).max


def guard(
    fn: Callable[..., Tensor],
    operands: Sequence[Tensor],
    benign: float,
    *,
    outside: Outside | None = None,
    flat: Flat | None = None,
    dim: Dims = None,
    reduces: bool = False,
    valid: Callable[[Tensor], Tensor] = is_finite,
) -> Tensor:
    """``fn(*operands)`` with a finite value and finite derivatives, torch's own bits wherever those are finite.

    fn: an operator of torch. Elementwise, or, with ``reduces``, over the dimensions ``dim`` (None: over all), which
        it keeps in its result; it is then judged and guarded slice by slice.
    operands: floating-point tensors of one dtype and one shape.
    benign: what a bad operand is replaced by before ``fn``; value and derivatives of ``fn`` are finite there.
    outside: the value where ``fn`` gives none; what is not finite in it, as without it, becomes 0 for NaN and the
        dtype's largest magnitude for an infinity. The derivative there is 0.
    flat: masks of what torch gives a derivative of 0 by convention, whose second derivative would be NaN (a norm
        at 0): held constant, where the derivative is indeed 0.
    valid: whether an element of the value may stand.

    Torch itself is asked where it is finite: one vector-Jacobian product with ones, on detached operands. An operand
    whose derivative is bad is cut off for these elements alone, so that the other operand keeps its derivative. NaN
    operands go to ``fn`` as they are.
    """
    plain = [x.detach() for x in operands]
    value, slopes = ask(fn, plain)

    def whole(mask: Tensor) -> Tensor:
        return _all(mask, dim) if reduces else mask

    valid_values = valid(value)
    alive = [whole(valid_values) & whole(is_finite(slope)) for slope in slopes]
    if flat:
        held = [mask & whole(slope == 0) for mask, slope in zip(flat(value, *plain), slopes, strict=True)]
        alive = [a & ~h for a, h in zip(alive, held, strict=True)]
    nan_came_in = ~functools.reduce(torch.logical_and, [whole(x == x) for x in plain])
    alive = [a | nan_came_in for a in alive]
    spare = torch.where(valid_values, value, outside(value, *plain)) if outside else value
    result = torch.nan_to_num(spare).detach()
    # with two operands this makes the gradient that was cut a plain 0, see _replace
    cut = [torch.where(a, x, x.detach()) for a, x in zip(alive, operands, strict=True)] if len(plain) > 1 else operands
    for mask, live in _cases(alive):
        chosen = [x if i in live else x.detach() for i, x in enumerate(cut)]
        result = torch.where(mask, fn(*_replace(mask, chosen, benign)), result)
    return result


def ask(
    fn: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Torch's value and its vector-Jacobian product with ``grad`` (None: ones), either of which may be non-finite.

    Anomaly detection would raise at the NaN that is asked after, so it rests meanwhile.
    """
    watched = not torch.compiler.is_compiling() and torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(False) if watched else nullcontext():
        answer = torch.func.vjp(fn, *operands)
        value, pull_back = answer[0], answer[1]
        return value, pull_back(torch.ones_like(value) if grad is None else grad)


def _all(mask: Tensor, dim: Dims) -> Tensor:
    """Whether all of ``mask`` is true along ``dim`` (None: everywhere), dimensions kept."""
    return mask.all(dim=tuple(range(mask.ndim)) if dim is None else dim, keepdim=True)


def _cases(alive: list[Tensor]) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Every non-empty set of operands that may carry a gradient, with the mask of where it is just these."""
    count = len(alive)
    sets = [live for size in range(1, count + 1) for live in itertools.combinations(range(count), size)]
    masks = [
        functools.reduce(torch.logical_and, [a if i in live else ~a for i, a in enumerate(alive)]) for live in sets
    ]
    return list(zip(masks, sets, strict=True))


def _replace(mask: Tensor, operands: list[Tensor], benign: float) -> list[Tensor]:
    """The operands where ``mask`` is true, ``benign`` elsewhere.

    With two operands there are several cases, whose gradients are summed. The double minus makes the gradient of the
    elements left out -0.0 rather than 0.0: only that leaves the other summand, which may be -0.0, as it was.
    """
    if len(operands) == 1:
        return [torch.where(mask, operands[0], benign)]
    return [-torch.where(mask, -x, -benign) for x in operands]


def pair(
    fn: Callable[[Any, Any], Tensor],
    a: Tensor | Number,
    b: Tensor | Number,
    names: tuple[str, str],
    *,
    outside: Outside | None = None,
    flat: Flat | None = None,
) -> Tensor:
    """An elementwise operator of two operands, guarded; both broadcast, one may be a Python number.

    A number goes to torch as a number: some kernels treat it with more precision than a tensor.
    Value and derivatives must be finite at (1, 1) and, with a number in one place, at 1 in the other.
    """
    if isinstance(b, int | float):
        x = as_float(a, names[0])
        fixed = None if outside is None else lambda value, t: outside(value, t, torch.full_like(t, b))
        return guard(lambda t: fn(t, b), [x], 1.0, outside=fixed)
    if isinstance(a, int | float):
        x = as_float(b, names[1])
        fixed = None if outside is None else lambda value, t: outside(value, torch.full_like(t, a), t)
        return guard(lambda t: fn(a, t), [x], 1.0, outside=fixed)
    return guard(fn, broadcast(as_tensor(a, names[0]), as_tensor(b, names[1])), 1.0, outside=outside, flat=flat)


def as_tensor(x: Any, name: str) -> Tensor:
    """``x`` if it is a real tensor of any dtype; raises as :func:`as_float` does."""
    as_float(x, name)
    assert isinstance(x, Tensor)
    return x


def broadcast(a: Tensor, b: Tensor) -> list[Tensor]:
    """Both tensors in the dtype that torch would compute in (``torch.result_type``), and in one shape."""
    dtype = _promoted([t for t in (a, b) if t.is_floating_point()])
    shape = broadcast_shape(a.shape, b.shape)
    return [a.to(dtype).expand(shape), b.to(dtype).expand(shape)]


def broadcast_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """The shape that both broadcast to."""
    shape: torch.Size = torch.broadcast_shapes(a, b)
    return shape


def _promoted(floating: list[Tensor]) -> torch.dtype:
    """``torch.result_type`` of floating tensors; that function itself cannot be compiled (torch 2.13)."""
    dimensioned = [t.dtype for t in floating if t.ndim] or [t.dtype for t in floating]
    return functools.reduce(torch.promote_types, dimensioned) if dimensioned else torch.get_default_dtype()


def drop(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """``x`` without its dimensions ``dim`` of size 1 (None: all), or as it is."""
    if keepdim:
        return x
    return x.squeeze(tuple(range(x.ndim)) if dim is None else dim)
