"""The forward operation behind a fault, rebuilt from the operands that were kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._neighbours import checkpointed, divides, trap
from nanlab.trace.recording import (
    BACKWARD,
    CALL,
    FLAGS,
    NODE,
    NOGRAD,
    OPTIMIZER,
    PHASE,
    Kept,
    Recording,
)


@dataclass(frozen=True)
class Operation:
    """A forward operation with the operands with which it, or its derivative, failed."""

    name: str  # aten name without the underscore of an in-place variant
    operands: tuple[Any, ...]  # tensors, and numbers where a number was given
    plain: Callable[..., Tensor]  # the operation itself, of the operands
    options: dict[str, Any] = field(default_factory=dict)  # dim, keepdim, correction, ord, dtype
    gradient: Tensor | None = None  # that came in, where it was kept
    backward: bool = False  # its derivative failed, not its value
    differentiates: bool = True  # False: an optimizer's arithmetic, or under no_grad
    divides: bool = False  # what follows divides by the result, or takes its logarithm
    trapped: str = ""  # why its neighbours spoil whatever is written here
    hooked: bool = False  # its saved tensors go through hooks, as under activation checkpointing

    @property
    def x(self) -> Tensor:
        return next(t for t in self.operands if isinstance(t, Tensor))

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype in which it was computed."""
        found = [t.dtype for t in self.operands if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
        return found[0] if found else torch.get_default_dtype()

    @property
    def low(self) -> bool:
        """Whether it was computed in half precision."""
        return self.dtype in (torch.float16, torch.bfloat16)


def operation_of(recording: Recording, position: int) -> Operation | None:
    """The operation of a row whose operands were kept; None where they were not, or where it cannot be rebuilt."""
    row = recording.row(position) if position >= 0 else None
    kept = recording.kept.get(row[CALL]) if row is not None else None
    if row is None or kept is None:
        return None
    hooked = checkpointed(recording, row)
    if row[PHASE] != BACKWARD:
        differentiates = row[PHASE] != OPTIMIZER and not row[FLAGS] & NOGRAD
        op = replace(_as_called(kept), differentiates=differentiates, hooked=hooked)
        return replace(op, divides=divides(recording, row[CALL]), trapped=trap(recording, row[CALL]))
    rebuilt = _of_node(kept, recording, row[NODE])
    if rebuilt is None:
        return None
    name, operands, plain, options = rebuilt
    info = recording.nodes.get(row[NODE])
    above = recording.row(info.position) if info is not None and info.position >= 0 else None
    second = above is not None and above[PHASE] == BACKWARD
    trapped = "it is a second derivative, of which the line shows only the first" if second else ""
    return Operation(
        name, operands, plain, options, _incoming(recording, kept, row), True, trapped=trapped, hooked=hooked
    )


_OPTIONS = {  # positional arguments after the tensors, by operator
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
    "logcumsumexp": ("dim",),
    "logit": ("eps",),
}


def _as_called(kept: Kept) -> Operation:
    """A forward call, to be repeated with its operands exchanged."""
    overload = kept.op.overloadpacket.__name__
    name = overload.rstrip("_") or overload
    names = _OPTIONS.get(name, ())
    slots = [i for i, a in enumerate(kept.args) if isinstance(a, Tensor) or (not names and _is_number(a))]
    options = dict(kept.kwargs)
    rest = [a for i, a in enumerate(kept.args) if i not in slots]
    options |= dict(zip(names, rest, strict=False))
    inplace = overload.endswith("_")

    def plain(*operands: Any) -> Tensor:
        args = list(kept.args)
        for slot, operand in zip(slots, operands, strict=True):
            args[slot] = operand.clone() if inplace and slot == 0 else operand
        return first_tensor(kept.op(*args, **kept.kwargs))

    return Operation(name, tuple(kept.args[i] for i in slots), plain, options)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def first_tensor(value: Any) -> Tensor:
    """The (first floating) tensor among the results of an operation."""
    if isinstance(value, Tensor):
        return value
    return next(v for v in value if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex()))


Rebuilt = tuple[str, tuple[Any, ...], Callable[..., Tensor], dict[str, Any]]
_UNARY = {  # node -> forward operator, of the saved self
    "Log": torch.log,
    "Log2": torch.log2,
    "Log10": torch.log10,
    "Log1P": torch.log1p,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atanh": torch.atanh,
    "Acosh": torch.acosh,
    "Angle": torch.angle,
    "Lgamma": torch.lgamma,
    "Digamma": torch.digamma,
    "Abs": torch.abs,
    "Sinh": torch.sinh,
    "Cosh": torch.cosh,
    "Logit": torch.logit,
}
_BINARY: dict[str, tuple[Callable[..., Tensor], str, str]] = {
    "Div": (torch.div, "self", "other"),
    "Mul": (torch.mul, "self", "other"),
    "Pow": (torch.pow, "self", "exponent"),
    "Xlogy": (torch.xlogy, "self", "other"),
    "Hypot": (torch.hypot, "self", "other"),
    "Atan2": (torch.atan2, "self", "other"),
    "Remainder": (torch.remainder, "self", "other"),
}
_INVERTED: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {  # of the saved result
    "Sqrt": (torch.sqrt, lambda r: r * r),
    "Rsqrt": (torch.rsqrt, lambda r: r**-2),
    "Reciprocal": (torch.reciprocal, lambda r: 1 / r),
    "Erfinv": (torch.erfinv, torch.erf),
    "Expm1": (torch.expm1, torch.log1p),
}


def _of_node(kept: Kept, recording: Recording, node: int) -> Rebuilt | None:
    found = re.match(r"(\w+?)Backward\d+$", kept.node_name)
    if found is None:
        return None
    kind, saved = found[1], kept.saved
    if kind == "Exp":
        return _exponential(saved, recording, node)
    if kind in _UNARY:
        x = saved.get("self")
        if x is None and kind.startswith("Log") and len(kept.args) > 1:  # recomputed: d log x = grad / x
            x = kept.args[1]
        return (kind.lower(), (x,), _UNARY[kind], {}) if isinstance(x, Tensor) else None
    if kind in _INVERTED:
        forward, back = _INVERTED[kind]
        result, x = saved.get("result"), saved.get("self")
        if not isinstance(x, Tensor) and isinstance(result, Tensor):
            x = back(result)
        return (kind.lower(), (x,), forward, {}) if isinstance(x, Tensor) else None
    if kind in _BINARY:
        return _binary(kind, kept)
    return _reduction(kind, saved) or _decomposition(kind, saved)


def _binary(kind: str, kept: Kept) -> Rebuilt | None:
    forward, first, second = _BINARY[kind]
    x, y = kept.saved.get(first), kept.saved.get(second)
    if y is None and kind == "Div" and len(kept.args) > 1:
        y = kept.args[1]
    if x is None and isinstance(y, Tensor):  # no derivative in y was asked for, so x does not matter
        x = torch.ones_like(kept.args[0] if kept.args and _same_kind(kept.args[0], y) else y)
    if y is None and isinstance(x, Tensor):
        y = torch.ones_like(x)
    return (kind.lower(), (x, y), forward, {}) if isinstance(x, Tensor) or isinstance(y, Tensor) else None


def _same_kind(a: Any, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.dtype == b.dtype


def _exponential(saved: dict[str, Any], recording: Recording, node: int) -> Rebuilt | None:
    """Of exp only the result is saved; where that is inf the argument was at most the largest one seen going in."""
    result, info = saved.get("result"), recording.nodes.get(node)
    if not isinstance(result, Tensor) or info is None:
        return None
    read = recording.operands(info.position)
    stats = recording.stats(read[0][0]) if read else None
    if stats is None:
        return None
    return "exp", (torch.where(torch.isinf(result), float(stats.max), torch.log(result)),), torch.exp, {}


def _dims(value: Any) -> Any:
    """Dimensions as autograd saves them: unsigned."""
    if isinstance(value, tuple | list):
        return tuple(_dims(v) for v in value)
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def _reduction(kind: str, saved: dict[str, Any]) -> Rebuilt | None:
    x = saved.get("self")
    if not isinstance(x, Tensor):
        return None
    dim, keepdim = _dims(saved.get("dim")), bool(saved.get("keepdim", False))
    options: dict[str, Any] = {"dim": dim or None, "keepdim": keepdim}
    if kind in ("LinalgVectorNorm", "Norm"):
        options["ord"] = saved.get("ord", saved.get("p", 2)) or 2
        return "linalg_vector_norm", (x,), lambda t: torch.linalg.vector_norm(t, **options), options
    if kind in ("Std", "Var"):
        options["correction"] = saved.get("correction", 1)
        spread = torch.std if kind == "Std" else torch.var
        return kind.lower(), (x,), lambda t: spread(t, **options), options
    if kind == "Logsumexp":
        return "logsumexp", (x,), lambda t: torch.logsumexp(t, dim, keepdim), options
    return None


def _decomposition(kind: str, saved: dict[str, Any]) -> Rebuilt | None:
    """A matrix put together from its saved factors."""
    if kind == "LinalgSvd" and isinstance(saved.get("U"), Tensor):
        u, s, vh = saved["U"], saved["S"], saved["Vh"]
        k = s.shape[-1]
        matrix = (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]
        return "_linalg_svd", (matrix,), lambda a: _product(torch.linalg.svd(a)), {}
    if kind == "LinalgEigh" and isinstance(saved.get("eigenvectors"), Tensor):
        values, vectors = saved["eigenvalues"], saved["eigenvectors"]
        matrix = (vectors * values.unsqueeze(-2)) @ vectors.mH
        return "_linalg_eigh", (matrix,), lambda a: _product(torch.linalg.eigh(a)), {}
    return None


def _product(parts: Any) -> Tensor:
    """All factors in one tensor, weighted unevenly so that no derivative cancels."""
    flat = torch.cat([p.flatten() for p in parts])
    return flat * torch.linspace(0.5, 1.5, flat.numel(), dtype=flat.dtype)


def _incoming(recording: Recording, kept: Kept, row: tuple[int, ...]) -> Tensor | None:
    """The gradient that came into the node, if the failing call read it."""
    taken = {source for run in recording.node_runs if run.node == row[NODE] for source in run.taken}
    tensors = [a for a in kept.args if isinstance(a, Tensor)]
    for source, slot in recording.operands(row[CALL]):
        if source in taken and slot < len(tensors):
            return tensors[slot]
    return None
