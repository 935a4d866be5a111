"""Whether many tensors are finite, in one number; whether two of them have the same bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

ONE_BY_ONE = 16  # norms up to which they are read singly, which is faster than to add them up first

Tensor = torch.Tensor


def total(tensors: list[Tensor], losses: Sequence[Tensor]) -> float:
    """A number that is finite if all elements are, and their squares do not overflow float32."""
    if not tensors:
        return sum((float(loss) for loss in losses), 0.0)
    try:
        wide = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors)
        norms = torch._foreach_norm(tensors, 2, torch.float32) if wide else torch._foreach_norm(tensors)
        if len(norms) <= ONE_BY_ONE and norms[0].device.type == "cpu":
            result = sum([n.item() for n in norms])
        else:
            result = _sum_of(norms)
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, or of another kind
        result = 0.0 if are_finite(tensors) else math.nan
    return float(result + sum(float(loss) for loss in losses)) if losses else float(result)


def _sum_of(norms: Sequence[Tensor]) -> float:
    by_device: dict[torch.device, list[Tensor]] = {}
    for norm in norms:
        by_device.setdefault(norm.device, []).append(norm.float() if norm.dtype != torch.float32 else norm)
    return sum(float(torch.stack(group).sum()) for group in by_device.values())


def are_finite(tensors: Sequence[Tensor]) -> bool:
    for tensor in tensors:
        value = tensor.coalesce().values() if tensor.is_sparse else tensor
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
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
