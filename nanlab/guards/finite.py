"""Whether many tensors are finite, in one number; whether two of them have the same bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nanlab.stats._memory import PLAIN, local_part

# tensors up to which they are summed singly, which is faster than their norms together
ONE_BY_ONE = 16
_HALF = (torch.float16, torch.bfloat16)

Tensor = torch.Tensor


def total(tensors: list[Tensor], losses: Sequence[Tensor]) -> float:
    """A number that is finite if all elements are, unless they are so large that their sum or
    squares overflow."""
    try:
        if not PLAIN.issuperset(map(type, tensors)):
            tensors = [local_part(t) for t in tensors]
        if len(tensors) <= ONE_BY_ONE and all(t.is_cpu for t in tensors):
            result = sum([torch.sum(t).item() for t in tensors])
        else:
            half = any(t.dtype in _HALF for t in tensors)
            result = _sum_of(
                torch._foreach_norm(tensors, 2, torch.float32)
                if half
                else torch._foreach_norm(tensors)
            )
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, or of another kind
        result = 0.0 if are_finite(tensors) else math.nan
    return float(abs(result) + sum([loss.item() for loss in losses]))


def _sum_of(norms: Sequence[Tensor]) -> float:
    by_device: dict[torch.device, list[Tensor]] = {}
    for norm in norms:
        by_device.setdefault(norm.device, []).append(
            norm.float() if norm.dtype != torch.float32 else norm
        )
    return sum(float(torch.stack(group).sum()) for group in by_device.values())


def are_finite(tensors: Sequence[Tensor]) -> bool:
    for tensor in tensors:
        value = tensor.coalesce().values() if tensor.is_sparse else local_part(tensor)
        if not bool(torch.isfinite(value.float() if value.dtype.itemsize == 1 else value).all()):
            return False
    return True


def same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    if a.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    a, b = local_part(a), local_part(b)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
