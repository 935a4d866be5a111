"""From any layout to strided elements to be read, each counted as often as it occurs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.parameter import is_lazy

# types whose memory may be read without asking anybody
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


@contextmanager
def unobserved() -> Iterator[None]:
    """Run torch operations that no dispatch mode, function mode, tensor subclass or autograd graph
    sees.

    Uses ``torch._C._DisableTorchDispatch`` and ``torch._C.DisableTorchFunction``; tried with torch
    2.13.
    """
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill memory without gap or overlap, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def readable(t: torch.Tensor) -> tuple[torch.Tensor, int, int] | None:
    """Dense real elements of ``t``, how many times each occurs, and how many zeros come on top;
    None if unreadable.

    Sparse layouts give their values (summed where an index occurs twice), complex ones their real
    and imaginary parts. Expanded dimensions are never copied out. Of a distributed tensor only the
    part is read that this process holds. To be called within ``unobserved()``.
    """
    t = local_part(t)
    if is_wrapper(t) or t.is_meta or t.is_quantized:
        return None
    if t._is_zerotensor():
        return torch.zeros(1, dtype=t.dtype, device=t.device), t.numel(), 0
    numel = t.numel() * (2 if t.is_complex() else 1)
    sparse = t.layout is not torch.strided
    if sparse:
        t = sparse_values(t)
    t = t.detach().resolve_conj().resolve_neg()
    if t.is_complex():
        t = torch.view_as_real(t)
    if sparse:
        return t.contiguous(), 1, numel - t.numel()
    t = unexpanded(t)
    times = numel // t.numel() if numel else 1
    return t if is_dense(t.shape, t.stride()) else t.contiguous(), times, 0


def sparse_values(t: torch.Tensor) -> torch.Tensor:
    """The stored values of a tensor that is not strided."""
    if t.layout is torch.sparse_coo:
        return t.coalesce()._values()
    if t.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return t.values()
    return t.to_dense()


def unexpanded(t: torch.Tensor) -> torch.Tensor:
    """``t`` without its dimensions of stride 0: each element once."""
    for dimension in reversed(range(t.dim())):
        if t.stride(dimension) == 0 and t.size(dimension) > 1:
            t = t.select(dimension, 0)
    return t


def local_part(t: torch.Tensor) -> torch.Tensor:
    """What this process holds of a distributed tensor (``DTensor``), or of one that a collective is
    bringing; any other tensor as it is.

    Operations on the whole of it may make processes wait for each other. Uses
    ``DTensor._local_tensor`` and ``AsyncCollectiveTensor.elem``; tried with torch 2.13.
    """
    if type(t) in PLAIN:
        return t
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(t, distributed.DTensor):
        t = t._local_tensor
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is not None and isinstance(t, collectives.AsyncCollectiveTensor):
        t = t.elem
    return t


def has_storage(t: torch.Tensor) -> bool:
    """Whether a tensor shows a storage: a sparse, nested or lazy one does not, nor one that
    ``vmap`` or ``grad`` has wrapped."""
    return (
        t.layout is torch.strided
        and not t.is_nested
        and not is_lazy(t)
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def has_memory(t: torch.Tensor) -> bool:
    """Whether a tensor's memory is there: sharded training frees it and keeps the tensor."""
    try:
        nbytes = int(local_part(t).untyped_storage().nbytes())
        return not t.numel() or nbytes >= (int(t.storage_offset()) + 1) * t.itemsize
    except Exception:
        return t.layout is not torch.strided


def is_wrapper(t: torch.Tensor) -> bool:
    """Whether ``t``'s subclass gives operations its own meaning: fake, distributed, ..."""
    return (
        type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        or torch._is_functional_tensor(t)
        or torch._C._functorch.is_functorch_wrapped_tensor(t)
    )
