"""The guard around :mod:`nanlab.safe`'s operators: what is bad in torch's answer is mended."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanlab.errors import TypeMismatchError

# Operands of :mod:`nanlab.safe`: their dtype and shape, as torch takes them, and the limits of
# a dtype.

Dims = int | tuple[int, ...] | None
Number = int | float


def smallest(dtype: torch.dtype) -> float:
    """Smallest positive number of ``dtype``: its smallest subnormal, the spacing at zero."""
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps


def below_one(dtype: torch.dtype) -> float:
    """Largest number of ``dtype`` below 1."""
    return 1.0 - torch.finfo(dtype).eps / 2


def as_float(x: Any, name: str) -> Tensor:
    """``x`` as a real floating-point tensor; integers become the default dtype, as in torch's own
    functions.

    Raises TypeMismatchError (a TypeError) for what is no tensor, and for complex tensors.
    """
    if not isinstance(x, Tensor):
        raise TypeMismatchError(
            f"expected a tensor for {name}, got {type(x).__name__}; wrap it in torch.as_tensor"
        )
    if x.is_complex():
        raise TypeMismatchError(
            f"expected a real tensor for {name}, got {x.dtype}; treat x.real and x.imag apart"
        )
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def as_tensor(x: Any, name: str) -> Tensor:
    """``x`` if it is a real tensor of any dtype; raises as :func:`as_float` does."""
    as_float(x, name)
    assert isinstance(x, Tensor)
    return x


def broadcast(a: Tensor, b: Tensor) -> list[Tensor]:
    """Both tensors in torch's common dtype (``torch.result_type``), and in one shape."""
    dtype = _promoted([t for t in (a, b) if t.is_floating_point()])
    return list(torch.broadcast_tensors(a.to(dtype), b.to(dtype)))


def broadcast_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """The shape that both broadcast to."""
    shape: torch.Size = torch.broadcast_shapes(a, b)
    return shape


def _promoted(floating: list[Tensor]) -> torch.dtype:
    """``torch.result_type`` of floating tensors, compilable: that is not in torch 2.13."""
    dimensioned = [t.dtype for t in floating if t.ndim] or [t.dtype for t in floating]
    return (
        functools.reduce(torch.promote_types, dimensioned)
        if dimensioned
        else torch.get_default_dtype()
    )


def drop(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """``x`` without its dimensions ``dim`` of size 1 (None: all), or as it is."""
    if keepdim:
        return x
    return x.squeeze(tuple(range(x.ndim)) if dim is None else dim)


# An operator of torch, and what it gives where torch's answer is not finite: the double where,
# once for all.

# (torch's value, *operands) -> the value to hold where torch's is not finite
Outside = Callable[..., Tensor]
Flat = Callable[..., tuple[Tensor, ...]]  # (torch's value, *operands) -> a mask per operand


def is_finite(x: Tensor) -> Tensor:
    """``torch.isfinite`` in two passes over memory instead of four."""
    return x.abs() <= torch.finfo(x.dtype).max


@dataclass(frozen=True)
class Operator:
    """An operator of torch, and what replaces its non-finite answers; see :func:`guard`."""

    fn: Callable[..., Tensor]
    benign: float
    outside: Outside | None
    flat: Flat | None
    dim: Dims
    reduces: bool
    valid: Callable[[Tensor], Tensor]

    def whole(self, mask: Tensor) -> Tensor:
        """A mask of elements as one of those slices all of whose elements are in it."""
        return _all(mask, self.dim) if self.reduces else mask

    def nan_came_in(self, operands: Sequence[Tensor]) -> Tensor:
        """Mask of where an operand is NaN."""
        return ~functools.reduce(torch.logical_and, [self.whole(x == x) for x in operands])

    def value(self, *operands: Tensor) -> Tensor:
        """Torch's value, mended where it may not stand; where all is well one sum, no more."""
        value = self.fn(*operands)
        if bool(self.valid(_total(value))):
            return value
        if self.reduces or not value.ndim:
            stands = self.valid(value) | self.nan_came_in(operands)
            return torch.where(stands, value, self._spare(value, *operands))
        at = (~self.valid(value)).nonzero(as_tuple=True)
        few = [x[at] for x in operands]
        value[at] = torch.where(self.nan_came_in(few), value[at], self._spare(value[at], *few))
        return value

    def _spare(self, value: Tensor, *operands: Tensor) -> Tensor:
        return torch.nan_to_num(value if self.outside is None else self.outside(value, *operands))

    def gradients(
        self, wanted: Sequence[bool], grad: Tensor, *operands: Tensor
    ) -> tuple[Tensor, ...]:
        """Torch's vector-Jacobian product for each operand that is wanted, mended where it is not
        finite.

        What is bad is 0 where the value may not stand or the product with ones is not finite
        either; otherwise the gradient that came in was, and is passed on. Looks at the numbers, as
        :meth:`value` does.
        """
        with _unseen():
            leaves = [
                x.detach().requires_grad_(want) for x, want in zip(operands, wanted, strict=True)
            ]
            value, root = self._run(leaves)
            sought = [x for x in leaves if x.requires_grad]
            found = torch.autograd.grad(root, sought, grad, retain_graph=True)
            if root is value and all(bool(is_finite(_total(g))) for g in found):
                return found
            if self.reduces or not value.ndim:
                return self._mended(value, root, leaves, found)
            # of value and gradients at once; some may be sound
            suspect = ~is_finite(sum(found, value.detach()))
            at = suspect.nonzero(as_tuple=True)
            few = [x.detach()[at].requires_grad_(x.requires_grad) for x in leaves]
            mended = self._mended(*self._run(few), few, [g[at] for g in found])
        for g, part in zip(found, mended, strict=True):
            g[at] = part
        return found

    def _run(self, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The value, and the same to go backward from: 0 where it may not stand."""
        value = self.fn(*leaves)
        plain = value.detach()
        if bool(self.valid(_total(plain))):
            return value, value
        return value, torch.where(self.valid(plain) | self.nan_came_in(leaves), value, 0.0)

    def _mended(
        self, value: Tensor, root: Tensor, leaves: Sequence[Tensor], found: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The gradients ``found`` of the leaves, 0 where not kept; the rest as of :meth:`_run`."""
        slopes = torch.autograd.grad(
            root, [x for x in leaves if x.requires_grad], torch.ones_like(root)
        )
        stands = self.whole(self.valid(value.detach()))
        kept = self.nan_came_in(leaves)
        return tuple(
            torch.where(
                kept | (stands & (self.whole(is_finite(g)) | self.whole(is_finite(slope)))), g, 0.0
            )
            for g, slope in zip(found, slopes, strict=True)
        )

    def double_where(self, *operands: Tensor) -> Tensor:
        """Value and derivatives of every order, without a look at the numbers: ``where`` on the
        operands and on the value.

        Whether a derivative is finite is asked of torch by one product with ones, on detached
        operands.
        """
        plain = [x.detach() for x in operands]
        value, slopes = ask(self.fn, plain)
        valid_values = self.valid(value)
        alive = [self.whole(valid_values) & self.whole(is_finite(slope)) for slope in slopes]
        if self.flat is not None:
            masks = zip(self.flat(value, *plain), slopes, strict=True)
            held = [mask & self.whole(slope == 0) for mask, slope in masks]
            alive = [a & ~h for a, h in zip(alive, held, strict=True)]
        kept = self.nan_came_in(plain)
        alive = [a | kept for a in alive]
        spare = (
            value
            if self.outside is None
            else torch.where(valid_values, value, self.outside(value, *plain))
        )
        result = torch.nan_to_num(spare).detach()
        cut = list(operands)
        if len(plain) > 1:  # this makes the gradient that was cut a plain 0, see _replace
            cut = [torch.where(a, x, x.detach()) for a, x in zip(alive, operands, strict=True)]
        for mask, live in _cases(alive):
            chosen = [x if i in live else x.detach() for i, x in enumerate(cut)]
            result = torch.where(mask, self.fn(*_replace(mask, chosen, self.benign)), result)
        return result

    def pulled(self, wanted: Sequence[bool], grad: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        """The vector-Jacobian product of :meth:`double_where`, by operand; differentiable."""
        return tuple(
            g
            for g, want in zip(ask(self.double_where, operands, grad)[1], wanted, strict=True)
            if want
        )


def _total(x: Tensor) -> Tensor:
    """A sum that is finite only if all of ``x`` is; an overflow costs time alone."""
    return x.sum(dtype=torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x.sum()


@contextmanager
def _unseen() -> Iterator[None]:
    """Where torch is asked for a gradient that may be NaN: no anomaly detection, and no hooks on
    saved tensors. First derivatives alone can be asked for: what is saved has no graph, for a node
    that kept its own result with one would never be freed.

    Inside torch.func.grad there are no such hooks, and torch refuses to set any.
    """
    possible = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    hooks = (
        torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, _as_it_is)
        if possible
        else nullcontext()
    )
    with torch.enable_grad(), torch.autograd.set_detect_anomaly(False), hooks:
        yield


def _as_it_is(x: Tensor) -> Tensor:
    return x


def ask(
    fn: Callable[..., Any], operands: Sequence[Tensor], grad: Any = None
) -> tuple[Any, tuple[Tensor, ...]]:
    """Torch's value and its vector-Jacobian product with ``grad`` (None: ones), either of which may
    be non-finite.

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
    """Every set of operands that may carry a gradient, with the mask of just these."""
    count = len(alive)
    sets = [
        live for size in range(1, count + 1) for live in itertools.combinations(range(count), size)
    ]
    masks = [
        functools.reduce(torch.logical_and, [a if i in live else ~a for i, a in enumerate(alive)])
        for live in sets
    ]
    return list(zip(masks, sets, strict=True))


def _replace(mask: Tensor, operands: list[Tensor], benign: float) -> list[Tensor]:
    """The operands where ``mask`` is true, ``benign`` elsewhere.

    With two operands there are several cases, whose gradients are summed. The double minus makes
    the gradient of the elements left out -0.0 rather than 0.0: only that leaves the other summand,
    which may be -0.0, as it was.
    """
    if len(operands) == 1:
        return [torch.where(mask, operands[0], benign)]
    return [-torch.where(mask, -x, -benign) for x in operands]


# The guard around every operator of :mod:`nanlab.safe`: torch is asked first, what is bad in
# its answer is mended.


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
    """An operator mended after the fact; its gradient's derivatives by the double where."""

    @staticmethod
    def forward(operator: Operator, cast: torch.dtype | None, *operands: Tensor) -> Tensor:
        """The value; ``cast``: the dtype of autocast where that is on."""
        return operator.value(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the operands alone: saved tensors may go through hooks, as in checkpointing."""
        ctx.operator, ctx.cast = inputs[:2]
        ctx.save_for_backward(*inputs[2:])
        ctx.save_for_forward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the operands that want one."""
        wanted = tuple(ctx.needs_input_grad[2:])
        if torch._C._functorch.is_legacy_batchedtensor(grad):
            # all rows of autograd's vectorised jacobian at once, whose numbers nobody may look at
            found = ctx.operator.pulled(wanted, grad, *ctx.saved_tensors)
        else:
            found = _Gradients.apply(ctx.operator, ctx.cast, wanted, grad, *ctx.saved_tensors)
        gradients = iter(found)
        return (None, None, *(next(gradients) if want else None for want in wanted))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The derivative in the direction of the tangents."""
        pushed: Tensor = _pushed(ctx.operator.double_where, ctx.saved_tensors, tangents[2:])
        return pushed

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
    several = isinstance(value, tuple)
    zeros = tuple(map(torch.zeros_like, value)) if several else torch.zeros_like(value)
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
    operands = broadcast(as_tensor(a, names[0]), as_tensor(b, names[1]))
    return guard(fn, operands, 1.0, outside=outside, flat=flat)
