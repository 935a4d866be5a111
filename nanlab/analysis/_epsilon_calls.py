"""How a function of data and an epsilon is called, and what data it may be called on."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nanlab.errors import TypeMismatchError, UsageError


def checked_operands(x: Any) -> list[Tensor]:
    """The tensor or tensors that an epsilon is asked for; raises as :func:`nanlab.advise_eps` says."""
    operands = list(x) if isinstance(x, tuple | list) else [x]
    for t in operands:
        if not isinstance(t, Tensor):
            raise TypeMismatchError(f"expected x to be a tensor or several, got {type(t).__name__}")
        if not t.is_floating_point():
            raise TypeMismatchError(f"expected x in floating point, got {t.dtype}; pass x.float()")
        bad = int((~torch.isfinite(t)).sum())
        if bad:
            raise UsageError(f"{bad} of {t.numel()} elements of x are NaN or inf already; no epsilon cures these")
    if not sum(t.numel() for t in operands):
        raise UsageError("x holds no elements; pass the data that the function meets in training")
    return operands


def caller(fn: Callable[..., Any], operands: list[Tensor]) -> Callable[[list[Tensor], float], Tensor]:
    """A function of (operands, eps) that calls ``fn`` in the way its signature allows."""
    if not callable(fn):
        raise TypeMismatchError(f"expected a function fn(x, eps), got {type(fn).__name__}")
    spread, by_name = _call_style(fn, operands)

    def call(tensors: list[Tensor], eps: float) -> Tensor:
        args = tensors if spread else [tuple(tensors)]
        result = fn(*args, eps=eps) if by_name else fn(*args, eps)
        if not isinstance(result, Tensor) or result.is_complex():
            kind = result.dtype if isinstance(result, Tensor) else type(result).__name__
            raise TypeMismatchError(f"expected fn(x, eps) to return a real tensor, got {kind}")
        return result

    return call


def _call_style(fn: Callable[..., Any], operands: list[Tensor]) -> tuple[bool, bool]:
    """Whether ``fn`` takes the operands one by one (or as one tuple), and whether eps goes by its name."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # functions of C have none: taken as fn(x, eps)
        return True, False
    for spread, by_name in itertools.product((True, False), (True, False)):
        args = operands if spread else [tuple(operands)]
        if (spread or len(operands) > 1) and _binds(signature, args, by_name):
            return spread, by_name
    count = "x" if len(operands) == 1 else f"{len(operands)} tensors"
    raise UsageError(f"expected a function of {count} and eps, got fn{signature}; write e.g. lambda x, eps: ...")


def _binds(signature: inspect.Signature, args: Sequence[Any], by_name: bool) -> bool:
    try:
        _ = signature.bind(*args, eps=0.0) if by_name else signature.bind(*args, 0.0)
    except TypeError:
        return False
    return True
