"""Pairwise distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanlab.safe._guard import guard
from nanlab.safe._norms import length, scaled_norm
from nanlab.safe._operands import as_float, broadcast_shape
from nanlab.safe._operator import ask

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
    """Whether ``torch.cdist`` takes the dtype (torch 2.13, CPU): half precision only by way of a
    matrix product."""
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
    """Derivative of each distance in its difference, (..., P, R, M); 0 where it or the distance is
    not finite."""
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
    """The gradients of ``torch.cdist``; where they are not finite, those of the pairs that have
    one."""

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
