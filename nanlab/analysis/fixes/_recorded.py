"""A recorded call on its own: which of its arguments are options, and one member of a call on
lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nanlab.trace.recording import Kept

OPTIONS = {  # positional arguments after the tensors, by operator
    "_softmax": ("dim",),
    "_log_softmax": ("dim",),
    "logsumexp": ("dim", "keepdim"),
    "linalg_vector_norm": ("ord", "dim", "keepdim"),
    "norm": ("ord", "dim", "keepdim"),
    "var": ("dim",),
    "std": ("dim",),
    "var_mean": ("dim",),
    "std_mean": ("dim",),
    "mean": ("dim", "keepdim"),
    "sum": ("dim", "keepdim"),
    "prod": ("dim", "keepdim"),
    "cumsum": ("dim",),
    "cumprod": ("dim",),
    "logcumsumexp": ("dim",),
    "logit": ("eps",),
    "segment_reduce": ("reduce",),
}


# They warn of too few degrees of freedom; only through torch's Python functions is that a warning
# that can be caught.
WARNING = frozenset("std var std_mean var_mean".split())


def single(kept: Kept) -> Kept:
    """Of a call on lists of tensors (``_foreach_``, ``_fused_``) the same on the first member whose
    result is bad."""
    lists = [
        i
        for i, a in enumerate(kept.args)
        if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor)
    ]
    if not lists or not kept.op.overloadpacket.__name__.startswith(("_foreach_", "_fused_")):
        return kept
    results = [t for t in kept.outputs if isinstance(t, Tensor)]
    at = next((i for i, t in enumerate(results) if not bool(torch.isfinite(t).all())), 0)
    args = list(kept.args)
    for i in lists:
        args[i] = [kept.args[i][at % len(kept.args[i])]]
    for i, a in enumerate(args):
        if i not in lists and isinstance(a, list | tuple) and len(a) == len(kept.args[lists[0]]):
            args[i] = [a[at]]
    return replace(kept, args=tuple(args), outputs=tuple(results[at : at + 1]))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def first_tensor(value: Any) -> Tensor:
    """The (first floating) tensor among the results of an operation."""
    if isinstance(value, Tensor):
        return value
    return next(
        v for v in value if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
    )
