"""Norms, unit vectors, cosine similarity."""

from __future__ import annotations

import torch
from torch import Tensor

from nanlab.errors import UsageError
from nanlab.safe._guard import guard
from nanlab.safe._operands import Dims, as_float, as_tensor, broadcast, drop, smallest


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
    """The norm by way of the vector divided by its largest magnitude; ``value`` of an empty
    vector."""
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
    """The norm, held constant at vectors of zeros: torch's derivative is 0 there and its second
    NaN."""
    zero = torch.linalg.vector_norm(x.detach(), order, dim=dim, keepdim=True) == 0
    return torch.where(
        zero, 0.0, torch.linalg.vector_norm(torch.where(zero, 1.0, x), order, dim=dim, keepdim=True)
    )


def _unit(x: Tensor, dim: int, floor: float) -> Tensor:
    """``x`` over its length, as ``cosine_similarity`` does it: the floor changes the value, not the
    derivative."""
    divisor = length(x, 2.0, dim).clone()
    with torch.no_grad():
        divisor.clamp_min_(floor)
    return x / divisor
