"""Candidates for reductions of nothing: empty means and losses, targets that all count nothing,
variance without an eps."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._arguments import keyword, without
from nanlab.analysis.fixes._candidate import MASK, Candidate, Form, number
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, Spelling, called

FUNCTIONAL = "torch.nn.functional"
LAYER_EPS = 1e-5  # torch's own default


def empty_mean(op: Operation) -> list[Candidate]:
    """The mean of nothing, over all or along one dimension."""
    dim, keepdim = op.options.get("dim"), bool(op.options.get("keepdim", False))
    if dim is not None and (op.x.numel() or isinstance(dim, int) or len(dim) != 1):
        return []
    count = "{X}.numel()" if dim is None else f"{{X}}.shape[{dim[0]}]"
    along = "" if dim is None else "{args}"

    def counted(t: Tensor) -> Tensor:
        return (
            t.sum() / max(t.numel(), 1)
            if dim is None
            else t.sum(dim, keepdim) / max(t.shape[dim[0]], 1)
        )

    title = "divide the sum by a count of at least one"
    return [
        Candidate(title, forms(called("mean"), f"({{X}}.sum({along}) / max({count}, 1))"), counted)
    ]


def ignored_targets(op: Operation) -> list[Candidate]:
    """A negative log-likelihood in which every target is ignored."""
    logp, target = op.operands[:2]
    keys = (called("cross_entropy", arity=2), called("nll_loss", arity=2))

    def counted(scores: Tensor, _: Tensor, *rest: Any) -> Tensor:
        total: Tensor = torch.nn.functional.nll_loss(scores, target, reduction="sum")
        return torch.div(total, (target != -100).sum().clamp_min(1))

    count = "({Y} != -100).sum().clamp_min(1)"
    texts = [
        f'({FUNCTIONAL}.{name}({{x}}, {{y}}{{rest}}, reduction="sum") / {count})'
        for name in ("cross_entropy", "nll_loss")
    ]
    made = tuple(Form((key,), text) for key, text in zip(keys, texts, strict=True))
    return (
        [Candidate("divide the sum by the number of counted targets, at least one", made, counted)]
        if logp is not None
        else []
    )


def empty_loss(op: Operation) -> list[Candidate]:
    """A mean loss over no elements at all."""
    if op.x.numel():
        return []
    name = op.name
    loss: Callable[..., Tensor] = getattr(torch.nn.functional, name)
    count = "max({Y}.numel(), 1)"
    text = f'({FUNCTIONAL}.{name}({{x}}, {{y}}{{rest}}, reduction="sum") / {count})'
    return [
        Candidate(
            "divide the sum by a count of at least one",
            forms(without(called(name, arity=2), "reduction"), text),
            lambda x, y, *_: loss(x, y, reduction="sum") / max(x.numel(), 1),
        )
    ]


def uncounted_targets(op: Operation) -> list[Candidate]:
    """A negative log-likelihood in which every target is ignored, or has a class weight of 0."""
    target, weight = op.operands[1], op.operands[2] if len(op.operands) > 2 else None
    if bool(torch.isneginf(op.x).any()):
        return _impossible(op)
    if isinstance(weight, Tensor):
        return _weightless(op, target, weight)
    return ignored_targets(op)


def _impossible(op: Operation) -> list[Candidate]:
    """A target to which the model gives no probability at all."""
    made = tuple(
        Form(
            (called(name, arity=2),),
            f"{FUNCTIONAL}.{name}({{X}}.clamp_min(-{MASK:.0f}), {{y}}{{rest}})",
        )
        for name in ("cross_entropy", "nll_loss")
    )
    return [
        Candidate(
            f"a finite mask of -{MASK:.0f} instead of -inf: an impossible target costs that much",
            made,
            lambda scores, *rest: op.plain(scores.clamp_min(-MASK), *rest),
        )
    ]


def _weightless(op: Operation, target: Tensor, weight: Tensor) -> list[Candidate]:
    if bool((target < 0).any()):
        return []
    least = number(1e-3)

    def divided(scores: Tensor, *_: Any) -> Tensor:
        total: Tensor = torch.nn.functional.nll_loss(scores, target, weight, reduction="sum")
        return torch.div(total, weight[target].sum().clamp_min(1e-3))

    count = f"{{Z}}[{{y}}].sum().clamp_min({least})"
    made = tuple(
        Form(
            (_weighted(name),),
            f'({FUNCTIONAL}.{name}({{x}}, {{y}}, weight={{z}}{{rest}}, reduction="sum") / {count})',
        )
        for name in ("cross_entropy", "nll_loss")
    )
    return [
        Candidate(f"divide the sum by the weights of the targets, at least {least}", made, divided)
    ]


def _weighted(name: str) -> Spelling:
    """A call of a loss with ``weight=``, which becomes its third operand."""
    spelled = without(called(name, arity=2), "reduction")

    def match(node: ast.AST) -> Found | None:
        found = spelled(node)
        given = (
            [a for a in found.rest if isinstance(a, ast.keyword) and a.arg == "weight"]
            if found
            else []
        )
        if found is None or not given:
            return None
        return Found(
            (*found.operands, given[0].value), tuple(a for a in found.rest if a is not given[0])
        )

    return match


def norm_layer(op: Operation) -> list[Candidate]:
    """Layer or group norm whose eps is 0, or too small, of elements that are all equal."""
    eps = op.operands[-1]
    if op.backward or not isinstance(eps, float) or eps >= LAYER_EPS:
        return []
    return [
        Candidate(
            f"an eps of {number(LAYER_EPS)}, as torch has by default",
            forms(keyword("eps"), f"eps=max({{x}}, {number(LAYER_EPS)})"),
            lambda *ts: op.plain(*ts[:-1], LAYER_EPS),
            snippet=f"nn.LayerNorm(dim, eps={number(LAYER_EPS)})",
        )
    ]


def empty_segment(op: Operation) -> list[Candidate]:
    """The mean, the largest or the smallest of a segment without elements."""
    lengths, reduce = op.options.get("lengths"), op.options.get("reduce")
    if op.backward or reduce not in ("mean", "max", "min") or not isinstance(lengths, Tensor):
        return []
    own = without(called("segment_reduce"), "initial")
    # what an initial 0 would take the place of
    beyond = {"max": op.x < 0, "min": op.x > 0}.get(reduce)
    if beyond is None or not bool(beyond.any()):
        return [
            Candidate(
                f"initial=0.0: a segment without elements has a {_CALLED[reduce]} of 0",
                forms(own, "torch.segment_reduce({x}{rest}, initial=0.0)"),
                lambda t: torch.segment_reduce(t, reduce, lengths=lengths, initial=0.0),
            )
        ]
    infinity = "neginf" if reduce == "max" else "posinf"
    return [
        Candidate(
            f"0 in the place of the {_CALLED[reduce]} of a segment without elements",
            forms(
                own,
                f'torch.segment_reduce({{x}}{{rest}}).nan_to_num(nan=float("nan"), {infinity}=0.0)',
            ),
            lambda t: op.plain(t).nan_to_num(nan=torch.nan, **{infinity: 0.0}),
        )
    ]


_CALLED = {"mean": "mean", "max": "maximum", "min": "minimum"}
_LOSSES = (
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
REDUCTIONS: dict[str, Callable[[Operation], list[Candidate]]] = {
    "mean": empty_mean,
    "segment_reduce": empty_segment,
    **dict.fromkeys(_LOSSES, empty_loss),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), uncounted_targets),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), norm_layer),
}
