"""Candidates for operations on rows: softmax, norms, deviations, likelihoods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nanlab import safe
from nanlab.analysis.fixes._arguments import keyword, without
from nanlab.analysis.fixes._candidate import (
    IN_FLOAT32,
    MASK,
    MOST_TRIED,
    Candidate,
    Form,
    default_eps,
    eps_for,
    number,
)
from nanlab.analysis.fixes._directions import zero_direction
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._masking import finite_mask
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import called

FUNCTIONAL = "torch.nn.functional"


# -- softmax
# ------------------------------------------------------------


def masked_rows(op: Operation) -> list[Candidate]:
    """softmax, log_softmax and logsumexp of a row that is -inf throughout."""
    name = op.name.lstrip("_")
    dim = op.options.get("dim", -1)
    dims = dim if isinstance(dim, int) else tuple(dim)
    lowest = -MASK if name != "softmax" else torch.finfo(op.dtype).min
    safely: Callable[..., Tensor] = getattr(safe, name)
    arguments = (dims, bool(op.options.get("keepdim", False))) if name == "logsumexp" else (dims,)
    spelled = called(name)
    written = f"-{MASK:.0f}" if name != "softmax" else f"torch.finfo({op.dtype}).min"
    finite = f"torch.{name}({{X}}.clamp_min({written}){{rest}})"
    return [
        Candidate(
            f"nanlab.safe.{name}: finite value and gradient",
            forms(spelled, f"nanlab.safe.{name}({{x}}{{rest}})"),
            lambda t: safely(t, *arguments),
        ),
        Candidate(
            "mask with a finite number instead of -inf",
            forms(spelled, finite),
            lambda t: op.plain(t.clamp_min(lowest)),
        ),
        Candidate(
            "mask with the dtype's lowest number, torch.finfo(dtype).min, instead of -inf",
            (),
            lambda t: op.plain(t.clamp_min(torch.finfo(t.dtype).min)),
            rewriter=finite_mask,
            only_spelled=True,
        ),
        *_unmask(op, dims),
    ]


def running_rows(op: Operation) -> list[Candidate]:
    """logcumsumexp that begins with -inf."""
    text = f"torch.logcumsumexp({{X}}.clamp_min(-{MASK:.0f}){{rest}})"
    return [
        Candidate(
            "mask with a finite number instead of -inf",
            forms(called("logcumsumexp"), text),
            lambda t: op.plain(t.clamp_min(-MASK)),
        )
    ]


def _unmask(op: Operation, dim: Any) -> list[Candidate]:
    """A key left open in each row that has none."""

    def opened(t: Tensor) -> Tensor:
        dead = torch.isneginf(t).all(dim, keepdim=True)
        return op.plain(torch.where(dead, torch.zeros_like(t), t))

    snippet = (
        "mask = mask & ~mask.all(-1, keepdim=True)   # True: masked; a row that masks all keys"
        " masks none"
    )
    made = tuple(
        Form((keyword(name),), f"{name}={{X}} & ~{{X}}.all(-1, keepdim=True)")
        for name in ("key_padding_mask",)
    )
    return [Candidate("leave at least one key unmasked", made, opened, snippet=snippet)]


# -- quotients of a vector by its norm
# ------------------------------------------------------------


_LENGTHS = frozenset("linalg_vector_norm norm hypot sqrt pow abs".split())


def normalised(op: Operation) -> list[Candidate]:
    """``F.normalize`` and ``x / x.norm(...)``, whose quotient failed."""
    x, y = (*op.operands, None, None)[:2]
    if (
        op.backward
        or op.name != "div"
        or not isinstance(x, Tensor)
        or not isinstance(y, Tensor)
        or x.is_complex()
    ):
        return []
    dim = next(
        (d for d in reversed(range(x.dim())) if y.dim() == x.dim() and _constant_along(y, d)), None
    )
    if dim is None or (len(op.makers) > 1 and not any(m.name in _LENGTHS for m in op.makers[1])):
        return []
    own = called("normalize")
    eps = number(max(default_eps(op.dtype), 1e-12))

    def by_norm(t: Tensor, _: Tensor) -> Tensor:
        return safe.normalize(t, dim=dim)

    def with_eps(t: Tensor, _: Tensor) -> Tensor:
        return torch.nn.functional.normalize(t, dim=dim, eps=float(eps))

    found = [
        Candidate(
            "nanlab.safe.normalize: 0 for a vector of norm zero",
            forms(own, "nanlab.safe.normalize({x}{rest})"),
            by_norm,
            only_spelled=True,
        ),
        Candidate(
            f"an eps of {eps}, which {str(op.dtype).removeprefix('torch.')} can hold",
            forms(without(own, "eps"), f"{FUNCTIONAL}.normalize({{x}}{{rest}}, eps={eps})"),
            with_eps,
            only_spelled=True,
        ),
    ]
    if op.low:
        single = lambda t, _: torch.nn.functional.normalize(t.float(), dim=dim)  # noqa: E731
        found.append(
            Candidate(
                IN_FLOAT32,
                forms(own, f"{FUNCTIONAL}.normalize({{X}}.float(){{rest}})"),
                single,
                only_spelled=True,
            )
        )
    return found


def _constant_along(y: Tensor, dim: int) -> bool:
    return bool((y == y.narrow(dim, 0, 1)).all()) if y.shape[dim] else False


def _vectors(t: Tensor, dim: int | Sequence[int] | None) -> Tensor:
    """What a norm is taken of, one vector a row: the shortest and some others, that make no more
    than is tried."""
    dims = [dim] if isinstance(dim, int) else list(dim) if dim else list(range(t.dim()))
    rows = (
        t.detach()
        .movedim(dims, list(range(-len(dims), 0)))
        .reshape(-1, math.prod(t.shape[d] for d in dims))
    )
    most = max(1, MOST_TRIED // max(rows.shape[1], 1))
    if len(rows) > most:
        order = rows.float().norm(dim=1).argsort()
        rows = rows[order[:: -(-len(rows) // most)]]
    return rows[:, :MOST_TRIED]


def norms(op: Operation) -> list[Candidate]:
    """The derivative of a norm at zero; where the norm itself overflows, nothing here helps."""
    if bool(torch.isfinite(op.x).all()) and not bool(torch.isfinite(op.plain(op.x)).all()):
        return []
    dim, keepdim, p = (
        op.options.get("dim"),
        bool(op.options.get("keepdim", False)),
        op.options.get("ord", 2),
    )
    spelled = (called("norm", "vector_norm"),)
    eps = eps_for(op, lambda t, e: torch.sqrt(t.square().sum(-1) + e), _vectors(op.x, dim))
    where = "" if dim is None else f"{tuple(dim) if not isinstance(dim, int) else dim}"
    text = (
        f"torch.sqrt({{X}}.square().sum({where}{', keepdim=True' if keepdim else ''}) +"
        f" {number(eps)})"
    )
    found = [
        Candidate(
            "nanlab.safe.norm: derivative 0 at norm zero",
            forms(spelled, "nanlab.safe.norm({x}{rest})"),
            lambda t: safe.norm(t, p, dim, keepdim),
        )
    ]
    if p == 2:
        run = lambda t: torch.sqrt(t.square().sum(dim, keepdim) + eps)  # noqa: E731
        found.append(
            Candidate(
                f"an epsilon of {number(eps)} inside the root of the norm",
                forms(spelled, text),
                run,
            )
        )
    return found


# -- deviations
# ------------------------------------------------------------


def spreads(op: Operation) -> list[Candidate]:
    """Standard deviation and variance of one sample, or of a constant."""
    spread: Callable[..., Tensor] = torch.std if "std" in op.name else torch.var
    name = "std" if "std" in op.name else "var"
    dim, keepdim = op.options.get("dim"), bool(op.options.get("keepdim", False))
    correction = op.options.get("correction", 1)
    spelled = (called(name),)
    eps = default_eps(op.dtype) ** (2 if op.dtype == torch.float32 else 1)
    single = without(spelled[0], "correction", "unbiased")
    safely: Callable[..., Tensor] = getattr(safe, name)
    found = [
        Candidate(
            "correction=0: the deviation of one sample is 0",
            forms(single, f"torch.{name}({{x}}{{rest}}, correction=0)"),
            lambda t: spread(t, dim=dim, correction=0, keepdim=keepdim),
        ),
        Candidate(
            f"nanlab.safe.{name}: finite value and gradient",
            forms(spelled, f"nanlab.safe.{name}({{x}}{{rest}})"),
            lambda t: safely(t, dim=dim, correction=correction, keepdim=keepdim),
        ),
    ]
    if name == "std":
        text = f"torch.sqrt(torch.var({{x}}{{rest}}, correction=0) + {number(eps)})"
        found.append(
            Candidate(
                f"an epsilon of {number(eps)} inside the root, correction=0",
                forms(single, text),
                lambda t: torch.sqrt(torch.var(t, dim=dim, correction=0, keepdim=keepdim) + eps),
            )
        )
    return found


# -- likelihoods
# ------------------------------------------------------------


def ctc(op: Operation) -> list[Candidate]:
    """A CTC loss whose input is too short for its target."""
    own = without(called("ctc_loss", arity=1), "zero_infinity")
    text = f"{FUNCTIONAL}.ctc_loss({{x}}{{rest}}, zero_infinity=True)"

    def run(logp: Tensor, *rest: Any) -> Tensor:
        targets, frames, lengths = rest[:3]
        return torch.nn.functional.ctc_loss(logp, targets, frames, lengths, zero_infinity=True)

    return [
        Candidate(
            "zero_infinity=True: an infeasible target costs nothing",
            forms(own, text),
            run,
            snippet="nn.CTCLoss(zero_infinity=True)",
        )
    ]


ROWS: dict[str, Callable[[Operation], list[Candidate]]] = {
    "logcumsumexp": running_rows,
    **dict.fromkeys(("_softmax", "_log_softmax", "logsumexp"), masked_rows),
    **dict.fromkeys(("linalg_vector_norm", "norm"), norms),
    "_weight_norm_interface": zero_direction,
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), spreads),
    "_ctc_loss": ctc,
}
