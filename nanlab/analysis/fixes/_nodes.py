"""The forward operation of an autograd node whose derivative failed, rebuilt from what the node had
saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.trace.recording import Kept, Recording

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
    "SpecialEntr": torch.special.entr,
    "SpecialNdtri": torch.special.ndtri,
}
_SPECIAL = {"SpecialEntr": "special_entr", "SpecialNdtri": "special_ndtri"}


_BINARY: dict[str, tuple[Callable[..., Tensor], str, str]] = {
    "Div": (torch.div, "self", "other"),
    "Mul": (torch.mul, "self", "other"),
    "Pow": (torch.pow, "self", "exponent"),
    "Xlogy": (torch.xlogy, "self", "other"),
    "Hypot": (torch.hypot, "self", "other"),
    "Atan2": (torch.atan2, "self", "other"),
    "Remainder": (torch.remainder, "self", "other"),
    "Logaddexp": (torch.logaddexp, "self", "other"),
}


# of the saved result
_INVERTED: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "Sqrt": (torch.sqrt, lambda r: r * r),
    "Rsqrt": (torch.rsqrt, lambda r: r**-2),
    "Reciprocal": (torch.reciprocal, lambda r: 1 / r),
    "Erfinv": (torch.erfinv, torch.erf),
    "Expm1": (torch.expm1, torch.log1p),
}


def of_node(kept: Kept, recording: Recording, node: int) -> Rebuilt | None:
    """Name, operands, the operation itself and its options; None where the node is of another
    kind."""
    found = re.match(r"(\w+?)Backward\d+$", kept.node_name)
    if found is None:
        return None
    kind, saved = found[1], kept.saved
    if kind == "Exp":
        return _exponential(saved, recording, node)
    if kind in _UNARY:
        x = saved.get("self")
        # recomputed: d log x = grad / x
        if x is None and kind.startswith("Log") and len(kept.args) > 1:
            x = kept.args[1]
        return (
            (_SPECIAL.get(kind, kind.lower()), (x,), _UNARY[kind], {})
            if isinstance(x, Tensor)
            else None
        )
    if kind in _INVERTED:
        forward, back = _INVERTED[kind]
        result, x = saved.get("result"), saved.get("self")
        if not isinstance(x, Tensor) and isinstance(result, Tensor):
            x = back(result)
        if x is None and kind == "Sqrt" and len(kept.args) > 1 and isinstance(kept.args[1], Tensor):
            x = (kept.args[1] / 2) ** 2  # d sqrt(x) = grad / (2 sqrt(x))
        if not isinstance(x, Tensor):
            return None
        return kind.lower(), (_outside_domain(x, recording, node),), forward, {}
    if kind in _BINARY:
        return _binary(kind, kept, _by_number(recording, node))
    if kind == "BinaryCrossEntropy":
        return _cross_entropy(saved)
    return _reduction(kind, saved) or _decomposition(kind, saved)


def _by_number(recording: Recording, node: int) -> bool:
    """Whether the second operand of the operation was a Python number: its node saved it as a
    tensor."""
    info = recording.nodes.get(node)
    read = recording.operands(info.position) if info is not None and info.position >= 0 else []
    return [slot for _, slot in read] == [0]


def _binary(kind: str, kept: Kept, by_number: bool) -> Rebuilt | None:
    forward, first, second = _BINARY[kind]
    x, y = kept.saved.get(first), kept.saved.get(second)
    if y is None and kind == "Div" and len(kept.args) > 1:
        y = kept.args[1]
    # no derivative in y was asked for, so x does not matter
    if x is None and isinstance(y, Tensor):
        x = torch.ones_like(kept.args[0] if kept.args and _same_kind(kept.args[0], y) else y)
    if y is None and isinstance(x, Tensor):
        y = torch.ones_like(x)
    if (
        kind == "Div"
        and by_number
        and isinstance(y, Tensor)
        and y.dim() == 0
        and not y.is_complex()
    ):
        y = y.item()
    return (
        (kind.lower(), (x, y), forward, {})
        if isinstance(x, Tensor) or isinstance(y, Tensor)
        else None
    )


def _same_kind(a: Any, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.dtype == b.dtype


def _exponential(saved: dict[str, Any], recording: Recording, node: int) -> Rebuilt | None:
    """Of exp only the result is saved; where that is inf the argument was at most the largest one
    seen going in."""
    result, info = saved.get("result"), recording.nodes.get(node)
    if not isinstance(result, Tensor) or info is None:
        return None
    read = recording.operands(info.position)
    stats = recording.stats(read[0][0]) if read else None
    if stats is None:
        return None
    return (
        "exp",
        (torch.where(torch.isinf(result), float(stats.max), torch.log(result)),),
        torch.exp,
        {},
    )


def _outside_domain(x: Tensor, recording: Recording, node: int) -> Tensor:
    """An operand rebuilt from a result: where that is NaN though no operand was, the lowest that
    was seen going in."""
    info = recording.nodes.get(node)
    read = recording.operands(info.position) if info is not None and info.position >= 0 else []
    stats = recording.stats(read[0][0]) if read else None
    if x.is_complex() or stats is None or stats.nan or stats.min is None:
        return x
    return torch.where(torch.isnan(x), stats.min, x)


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
    if kind == "Prod":
        along = {} if dim is None else {"dim": dim, "keepdim": keepdim}
        return "prod", (x,), lambda t: torch.prod(t, **along), along
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
    if kind == "LinalgEig" and isinstance(saved.get("eigenvectors"), Tensor):
        roots, modes = saved["eigenvalues"], saved["eigenvectors"]
        matrix = (modes * roots.unsqueeze(-2)) @ torch.linalg.pinv(modes)
        real = bool((matrix.imag.abs() <= 1e-3 * matrix.abs().max()).all())
        return (
            "linalg_eig",
            (matrix.real if real else matrix,),
            lambda a: _composed(*torch.linalg.eig(a)),
            {},
        )
    if kind == "LinalgQr" and isinstance(saved.get("Q"), Tensor):
        return "linalg_qr", (saved["Q"] @ saved["R"],), lambda a: _product(torch.linalg.qr(a)), {}
    return None


def _product(parts: Any) -> Tensor:
    """All factors in one tensor, weighted unevenly so that no derivative cancels."""
    flat = torch.cat([p.flatten() for p in parts])
    return flat * torch.linspace(0.5, 1.5, flat.numel(), dtype=flat.dtype, device=flat.device)


def _composed(roots: Tensor, modes: Tensor) -> Tensor:
    """A matrix of the same eigenvectors: what is taken of them must not depend on their phase and
    length."""
    weights = torch.linspace(0.5, 1.5, roots.shape[-1], dtype=modes.dtype, device=modes.device)
    return torch.view_as_real((modes * (roots * weights).unsqueeze(-2)) @ torch.linalg.inv(modes))


def _cross_entropy(saved: dict[str, Any]) -> Rebuilt | None:
    p, target, weight = saved.get("self"), saved.get("target"), saved.get("weight")
    if not isinstance(p, Tensor) or not isinstance(target, Tensor) or isinstance(weight, Tensor):
        return None
    options: dict[str, Any] = {"reduction": ("none", "mean", "sum")[int(saved.get("reduction", 1))]}
    plain = torch.nn.functional.binary_cross_entropy
    return "binary_cross_entropy", (p, target), lambda a, b: plain(a, b, **options), options
