"""Reductions: norms, distances, softmax, standard deviation and means of what a mask selects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.errors import UsageError
from nanlab.safe.operator import (
    Dims,
    as_float,
    as_tensor,
    ask,
    broadcast,
    broadcast_shape,
    drop,
    guard,
    is_finite,
    smallest,
)

# Norms, unit vectors, cosine similarity.


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch.norm``, the vector p-norm along ``dim`` (None: over all); second derivative 0 at a
    vector of zeros.

    p: any number, or "fro" or None for 2.
    Value: where only the powers overflow, the norm of the vector scaled by its largest element;
    beyond the dtype, its maximum.
    Derivative: 0 for the whole vector where torch's is not finite; at zeros torch's own derivative
    is 0 already. Raises UsageError (a ValueError) for "nuc", which is no vector norm.
    """
    x = as_float(input, "input")
    order = _order(p)
    lengths = guard(
        lambda t: torch.linalg.vector_norm(t, order, dim=dim, keepdim=True),
        [x if dtype is None else x.to(dtype)],
        1.0,
        outside=lambda value, t: scaled_norm(value, t, order, dim),
        flat=lambda value, t: (value == 0,),
        dim=dim,
        reduces=True,
    )
    return drop(lengths, dim, keepdim)


def normalize(input: Tensor, p: float = 2.0, dim: Dims = 1, eps: float = 1e-12) -> Tensor:
    """``torch.nn.functional.normalize``; a vector of zeros stays zeros in every dtype.

    eps: smallest divisor, as in torch; one that is 0 in the dtype is raised to the dtype's smallest
    positive number.
    Value: 0 where torch's is not finite.
    Derivative: 0 for the whole vector where torch's is not finite (at zeros it is 1 / eps, which
    float16 does not hold).
    """
    x = as_float(input, "input")
    floor = max(eps, smallest(x.dtype))
    return guard(lambda t: t / length(t, p, dim).clamp_min(floor), [x], 1.0, dim=dim, reduces=True)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``torch.nn.functional.cosine_similarity``; 0 for a vector of zeros in every dtype.

    eps: smallest length divided by, as in torch; one that is 0 in the dtype is raised to the
    dtype's smallest positive number.
    Value: 0 where torch's is not finite.
    Derivative: 0 for each of the two vectors for which torch's is not finite (at zeros it is of
    size 1 / eps, which float16 does not hold); the other vector keeps its own.
    """
    operands = broadcast(as_tensor(x1, "x1"), as_tensor(x2, "x2"))
    floor = max(eps, smallest(operands[0].dtype))

    def cosines(a: Tensor, b: Tensor) -> Tensor:
        return (_unit(a, dim, floor) * _unit(b, dim, floor)).sum(dim, keepdim=True)

    return guard(cosines, operands, 1.0, dim=dim, reduces=True).squeeze(dim)


def _order(p: float | str | None) -> float:
    if p is None or p == "fro":
        return 2.0
    if isinstance(p, str):
        raise UsageError(
            f'expected a number or "fro" for p, got "{p}"; torch.linalg.matrix_norm has matrix'
            " norms"
        )
    return p


def scaled_norm(value: Tensor, x: Tensor, order: float, dim: Dims) -> Tensor:
    """The norm by the vector over its largest magnitude; ``value`` of an empty vector."""
    if x.numel() == 0:
        return value
    limit = torch.finfo(x.dtype).max
    bounded = x.clamp(-limit, limit)
    largest = bounded.abs().amax(tuple(range(x.ndim)) if dim is None else dim, keepdim=True)
    scaled: Tensor = (
        torch.linalg.vector_norm(bounded / largest, order, dim=dim, keepdim=True) * largest
    )
    return scaled


def length(x: Tensor, order: float, dim: Dims) -> Tensor:
    """The norm, constant at zeros: torch's derivative is 0 there, its second one NaN."""
    zero = torch.linalg.vector_norm(x.detach(), order, dim=dim, keepdim=True) == 0
    return torch.where(
        zero, 0.0, torch.linalg.vector_norm(torch.where(zero, 1.0, x), order, dim=dim, keepdim=True)
    )


def _unit(x: Tensor, dim: int, floor: float) -> Tensor:
    """``x`` over its length as ``cosine_similarity`` has it: the floor is not differentiated."""
    divisor = length(x, 2.0, dim).clone()
    with torch.no_grad():
        divisor.clamp_min_(floor)
    return x / divisor


# Pairwise distances.

# torch.cdist goes by way of a matrix product beyond so many rows (p = 2, default mode)
_MATMUL_ROWS = 25


def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """``torch.cdist``: (..., P, M) and (..., R, M) give (..., P, R); differentiable twice, in every
    dtype.

    Value: where only the powers overflow, the distance of the points scaled by their largest
    difference; beyond the dtype, its maximum. float16 and bfloat16, for which torch has no kernel
    on CPU, are computed in float32 and rounded.
    Derivative: 0 for a pair whose torch value or derivative is not finite; other pairs of the same
    point keep theirs. Second derivative: that of the norm of the difference, 0 at distance 0; torch
    has none for its kernels. Takes memory for P x R x M numbers.
    """
    a, b = as_float(x1, "x1"), as_float(x2, "x2")
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(batch + a.shape[-2:]), b.expand(batch + b.shape[-2:])
    if _has_kernel(a, b, p, compute_mode):
        return _distances(a, b, p, compute_mode)
    wide = _distances(a.float(), b.float(), p, compute_mode)
    return guard(lambda t: t.to(a.dtype), [wide], 1.0)


def _has_kernel(a: Tensor, b: Tensor, p: float, mode: str) -> bool:
    """Whether ``torch.cdist`` takes the dtype: half precision only by a product (2.13, CPU)."""
    if a.dtype not in (torch.float16, torch.bfloat16):
        return True
    large = a.shape[-2] > _MATMUL_ROWS or b.shape[-2] > _MATMUL_ROWS
    return p == 2 and (mode == "use_mm_for_euclid_dist" or (large and not mode.startswith("donot")))


def _distances(a: Tensor, b: Tensor, p: float, mode: str) -> Tensor:
    result = _Distances.apply(a, b, p, mode)
    assert isinstance(result, Tensor)
    return result


def _differences(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-2) - b.unsqueeze(-3)


def _unit_slopes(a: Tensor, b: Tensor, p: float) -> Tensor:
    """Unit derivative of each distance by its difference, (..., P, R, M); 0 if not finite."""
    distance, (slopes,) = ask(lambda d: length(d, p, -1), [_differences(a, b)])
    return torch.where(
        (torch.isfinite(distance) & torch.isfinite(slopes)).all(-1, keepdim=True), slopes, 0.0
    )


def _distances_of_sound(a: Tensor, b: Tensor, p: float) -> Tensor:
    """The distances of the pairs whose derivative is finite, 0 for others; differentiable twice."""
    differences = _differences(a, b)
    distance, (slopes,) = ask(lambda d: length(d, p, -1), [differences.detach()])
    sound = (torch.isfinite(distance) & torch.isfinite(slopes)).all(-1, keepdim=True)
    return torch.where(sound, length(torch.where(sound, differences, 1.0), p, -1), 0.0).squeeze(-1)


class _Distances(torch.autograd.Function):
    """``torch.cdist`` with the values that it lacks."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, p: float, mode: str) -> Tensor:
        """The distances, (..., P, R)."""
        value = torch.cdist(a, b, p, mode)
        spare = torch.nan_to_num(
            scaled_norm(value.unsqueeze(-1), _differences(a, b), p, -1).squeeze(-1)
        )
        bad_came_in = torch.isnan(a).any(-1, keepdim=True) | torch.isnan(b).any(-1).unsqueeze(-2)
        return torch.where(torch.isfinite(value) | bad_came_in, value, spare)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the points."""
        ctx.save_for_backward(*inputs[:2])
        ctx.p, ctx.mode = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of both sets of points."""
        return (*_Gradients.apply(grad, *ctx.saved_tensors, ctx.p, ctx.mode), None, None)


class _Gradients(torch.autograd.Function):
    """The gradients of ``torch.cdist``; where not finite, those of pairs that have one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, a: Tensor, b: Tensor, p: float, mode: str) -> tuple[Tensor, Tensor]:
        """The gradients, in the shapes of ``a`` and ``b``."""
        finite = torch.isfinite(torch.cdist(a, b, p, mode))
        nan_came_in = (torch.isnan(a).any((-2, -1)) | torch.isnan(b).any((-2, -1)))[..., None, None]
        grad = torch.where(finite | nan_came_in, grad, 0.0)
        _, own = ask(lambda s, t: torch.cdist(s, t, p, mode), [a, b], grad)
        pulls = grad.unsqueeze(-1) * _unit_slopes(a, b, p)
        spare = (pulls.sum(-2), -pulls.sum(-3))
        first, second = (
            torch.where(torch.isfinite(t) | nan_came_in, t, s)
            for t, s in zip(own, spare, strict=True)
        )
        return first, second

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keeps the points and the gradient that came in."""
        ctx.save_for_backward(*inputs[:3])
        ctx.p = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivatives, by way of the norm of the differences."""

        def first(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
            _, pull_back = torch.func.vjp(lambda s, t: _distances_of_sound(s, t, ctx.p), a, b)[:2]
            pulled: tuple[Tensor, ...] = pull_back(grad)
            return pulled

        _, pull_back = torch.func.vjp(first, *ctx.saved_tensors)[:2]
        return (*pull_back(grads), None, None)


# Softmax, its logarithm, and log-sum-exp; rows may be masked throughout.


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.softmax``; value 0 and derivative 0 in a row that is -inf throughout.

    A row with +inf counts it as the dtype's maximum, with derivative 0.
    """
    return guard(
        lambda t: torch.softmax(t, dim),
        [_logits(input, dtype)],
        0.0,
        outside=lambda value, t: torch.softmax(_below_infinity(t), dim),
        dim=dim,
        reduces=True,
    )


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.log_softmax``; the dtype's lowest number, with derivative 0, in place of -inf.

    That is an element whose input is -inf, and every element of a row that is -inf throughout. So a
    target of 0 takes nothing from it, where 0 times -inf would be NaN. The other elements of the
    row are torch's. A row with +inf counts it as the dtype's maximum, with derivative 0.
    """
    x = _logits(input, dtype)
    lowest = torch.finfo(x.dtype).min
    rows = guard(
        lambda t: torch.log_softmax(t, dim),
        [x],
        0.0,
        outside=lambda value, t: torch.nan_to_num(
            torch.log_softmax(_below_infinity(t), dim), nan=lowest
        ),
        dim=dim,
        reduces=True,
        valid=lambda value: ~torch.isnan(value),
    )
    return rows.clamp_min(torch.finfo(rows.dtype).min)


def logsumexp(input: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """``torch.logsumexp``; the dtype's lowest number, with derivative 0, for a row that is -inf
    throughout or empty.

    A row with +inf counts it as the dtype's maximum, with derivative 0.
    """
    rows = guard(
        lambda t: torch.logsumexp(t, dim, keepdim=True),
        [as_float(input, "input")],
        0.0,
        outside=lambda value, t: torch.logsumexp(_below_infinity(t), dim, keepdim=True),
        dim=dim,
        reduces=True,
    )
    return drop(rows, dim, keepdim)


def _logits(input: Tensor, dtype: torch.dtype | None) -> Tensor:
    x = as_float(input, "input")
    return x if dtype is None else x.to(dtype)


def _below_infinity(x: Tensor) -> Tensor:
    """``x`` with +inf lowered to the dtype's maximum; -inf stays."""
    return x.clamp(max=torch.finfo(x.dtype).max)


# Standard deviation, variance and mean of what a mask selects.


def std(
    input: Tensor,
    dim: Dims = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    unbiased: bool | None = None,
) -> Tensor:
    """``torch.std``; value 0 and derivative 0 of too few values (one value with ``correction=1``,
    or none).

    unbiased: torch's older word for ``correction``, True 1 and False 0.
    Value: too large for the dtype: its maximum, with derivative 0. At a constant row torch's own
    derivative is 0.
    """
    return _spread(
        torch.std, input, dim, correction if unbiased is None else float(unbiased), keepdim
    )


def var(
    input: Tensor,
    dim: Dims = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    unbiased: bool | None = None,
) -> Tensor:
    """``torch.var``; value and derivative outside its domain as for ``std``."""
    return _spread(
        torch.var, input, dim, correction if unbiased is None else float(unbiased), keepdim
    )


def masked_mean(input: Tensor, mask: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Mean along ``dim`` (None: over all) of the elements where ``mask`` is true (or not 0).

    mask: broadcasts against ``input``. Where it is false the input may be anything, NaN and
    infinities included.
    Value: 0 where nothing is selected. float16 and bfloat16 are summed in float32, as
    ``torch.mean`` does, to whose bits it is equal under a mask that selects all. A mean whose
    sum overflows is the sum of the parts; an infinity that is selected gives the dtype's
    largest magnitude.
    Derivative: 1 / count where selected, 0 elsewhere, in an empty row, and where the sum overflows.
    """
    x, chosen = as_float(input, "input"), mask != 0
    x, chosen = torch.broadcast_tensors(x, chosen)
    dims = tuple(range(x.ndim)) if dim is None else dim
    count = chosen.sum(dims, keepdim=True).clamp_min(1)
    wide = torch.promote_types(x.dtype, torch.float32)
    kept = torch.where(chosen, x, 0.0)
    mean = kept.sum(dims, keepdim=True, dtype=wide) / count
    parts = (kept.detach().to(wide) / count).sum(dims, keepdim=True)
    stands = is_finite(mean) | torch.isnan(kept).any(dims, keepdim=True)
    mean = torch.where(stands, mean.to(x.dtype), torch.nan_to_num(parts.to(x.dtype)))
    return drop(mean, dim, keepdim)


def _spread(
    fn: Callable[..., Tensor], input: Tensor, dim: Dims, correction: float, keepdim: bool
) -> Tensor:
    x = as_float(input, "input")
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    too_few = math.prod([x.shape[d] for d in dims if x.ndim]) <= correction or not x.numel()

    def spread(t: Tensor) -> Tensor:
        if too_few:
            return torch.zeros_like(t).sum(dims, keepdim=True) * t.sum(dims, keepdim=True)
        return fn(t, dim, correction=correction, keepdim=True)

    return drop(guard(spread, [x], 1.0, dim=dim, reduces=True), dim, keepdim)
