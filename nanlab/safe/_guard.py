"""The guard around every operator of :mod:`nanlab.safe`: torch is asked first, what is bad in its
answer is mended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from nanlab.safe._operands import Dims, Number, as_float, as_tensor, broadcast
from nanlab.safe._operator import Flat, Operator, Outside, ask, is_finite


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
    """``fn(*operands)`` with a finite value and finite derivatives, torch's own bits wherever those
    are finite.

    fn: an operator of torch. Elementwise, or, with ``reduces``, over the dimensions ``dim`` (None:
        over all), which it keeps in its result; it is then judged and guarded slice by slice.
    operands: floating-point tensors of one dtype and one shape.
    benign: what a bad operand is replaced by before ``fn``; value and derivatives of ``fn`` are
    finite there.
    outside: the value where ``fn`` gives none; what is not finite in it, as without it, becomes 0
        for NaN and the dtype's largest magnitude for an infinity. The derivative there is 0.
    flat: masks of what torch gives a derivative of 0 by convention, whose second derivative would
        be NaN (a norm at 0): held constant, where the derivative is indeed 0.
    valid: whether an element of the value may stand.

    NaN operands go to ``fn`` as they are. Of two operands the one whose derivative is bad is cut
    off for these elements alone, so that the other keeps its derivative.

    Torch itself is asked first; only what is bad in its answer is mended (:class:`_Guarded`). Where
    a program may not look at its numbers (a compiled one, a CUDA graph) all is guarded beforehand
    instead.
    """
    operator = Operator(fn, benign, outside, flat, dim, reduces, valid)
    captured = operands[0].is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or captured:
        return operator.double_where(*operands)
    device = operands[0].device.type
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    result = _Guarded.apply(operator, cast, *operands)
    assert isinstance(result, Tensor)
    return result


class _Guarded(torch.autograd.Function):
    """An operator whose value and gradient are mended after the fact; derivatives of its gradient
    by the double where."""

    @staticmethod
    def forward(operator: Operator, cast: torch.dtype | None, *operands: Tensor) -> Tensor:
        """The value; ``cast``: the dtype of autocast where that is on."""
        return operator.value(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the operands alone: the saved tensors may go through hooks, as under activation
        checkpointing."""
        ctx.operator, ctx.cast = inputs[:2]
        ctx.save_for_backward(*inputs[2:])
        ctx.save_for_forward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the operands that want one."""
        wanted = tuple(ctx.needs_input_grad[2:])
        found = iter(_Gradients.apply(ctx.operator, ctx.cast, wanted, grad, *ctx.saved_tensors))
        return (None, None, *(next(found) if want else None for want in wanted))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The derivative in the direction of the tangents."""
        return _pushed(ctx.operator.double_where, ctx.saved_tensors, tangents[2:])  # type: ignore[no-any-return]

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, operator: Operator, cast: Any, *operands: Tensor
    ) -> tuple[Tensor, int]:
        """All of a batch, without a look at the numbers."""
        return torch.func.vmap(operator.double_where, in_dims[2:])(*operands), 0


class _Gradients(torch.autograd.Function):
    """The gradients of a guarded operator, differentiable themselves."""

    @staticmethod
    def forward(
        operator: Operator,
        cast: torch.dtype | None,
        wanted: tuple[bool, ...],
        grad: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor, ...]:
        """One gradient for each operand that is wanted."""
        with torch.autocast(grad.device.type, cast) if cast else nullcontext():
            return operator.gradients(wanted, grad, *operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keeps the gradient that came in, and the operands."""
        ctx.operator, ctx.cast, ctx.wanted = inputs[:3]
        ctx.save_for_backward(*inputs[3:])
        ctx.save_for_forward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivatives."""
        with torch.autocast(grads[0].device.type, ctx.cast) if ctx.cast else nullcontext():
            found = ask(
                functools.partial(ctx.operator.pulled, ctx.wanted), ctx.saved_tensors, grads
            )[1]
        return (None, None, None, *found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """The derivative of the gradients in the direction of the tangents."""
        pulled = functools.partial(ctx.operator.pulled, ctx.wanted)
        return _pushed(pulled, ctx.saved_tensors, tangents[3:])  # type: ignore[no-any-return]

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        operator: Operator,
        cast: Any,
        wanted: tuple[bool, ...],
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], Any]:
        """All of a batch, without a look at the numbers."""
        found = torch.func.vmap(functools.partial(operator.pulled, wanted), in_dims[3:])(*tensors)
        return found, (0,) * len(found)


def _pushed(
    fn: Callable[..., Any], operands: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> Any:
    """The derivative of ``fn`` in the direction of the tangents (None: 0), by two vector-Jacobian
    products.

    Forward mode itself cannot be nested (torch 2.13).
    """
    given = tuple(
        torch.zeros_like(x) if t is None else t for t, x in zip(tangents, operands, strict=True)
    )
    value = fn(*operands)
    zeros = (
        torch.zeros_like(value)
        if isinstance(value, Tensor)
        else tuple(torch.zeros_like(v) for v in value)
    )
    return torch.func.vjp(lambda u: ask(fn, operands, u)[1], zeros)[1](given)[0]


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
    Value and derivatives must be finite at (1, 1) and, with a number in one place, at 1 in the
    other.
    """
    if isinstance(b, (int, float)):
        x = as_float(a, names[0])
        fixed = (
            None if outside is None else lambda value, t: outside(value, t, torch.full_like(t, b))
        )
        return guard(lambda t: fn(t, b), [x], 1.0, outside=fixed)
    if isinstance(a, (int, float)):
        x = as_float(b, names[1])
        fixed = (
            None if outside is None else lambda value, t: outside(value, torch.full_like(t, a), t)
        )
        return guard(lambda t: fn(a, t), [x], 1.0, outside=fixed)
    return guard(
        fn,
        broadcast(as_tensor(a, names[0]), as_tensor(b, names[1])),
        1.0,
        outside=outside,
        flat=flat,
    )
