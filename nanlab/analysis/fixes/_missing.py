"""Candidates for data that was bad before the program computed with it, and for running statistics
that absorbed it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import MASK, Candidate, Form
from nanlab.analysis.fixes._infinities import of_module
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import binary, called

FUNCTIONAL = "torch.nn.functional"
ZERO = "nan=0.0, posinf=0.0, neginf=0.0"
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
# operand of native_batch_norm, and as it starts
_STATISTICS = {"running_mean": (3, 0.0), "running_var": (4, 1.0)}


def _filled(t: Any) -> Any:
    return (
        torch.nan_to_num(t, 0.0, 0.0, 0.0) if isinstance(t, Tensor) and t.is_floating_point() else t
    )


def _bad(t: Any) -> bool:
    return (
        isinstance(t, Tensor)
        and (t.is_floating_point() or t.is_complex())
        and not bool(torch.isfinite(t).all())
    )


def missing_input(op: Operation) -> list[Candidate]:
    """An input with NaN or infinities: 0 in their place."""
    if op.backward or not any(_bad(t) for t in op.operands):
        return []
    made = Form((of_module(op.module),), f"{{x}}(torch.nan_to_num({{y}}, {ZERO}){{rest}})")
    return [
        Candidate(
            "0 in the place of what is missing, or a better guess, where the data is loaded",
            (made,),
            op.plain,
            operands=tuple(_filled(t) for t in op.operands),
            snippet=f"x = torch.nan_to_num(x, {ZERO})",
        )
    ]


def missing_target(op: Operation) -> list[Candidate]:
    """A target with NaN or infinities: the loss of what is there."""
    x, y = (*op.operands[:2], None, None)[:2]
    if op.backward or not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.shape != y.shape:
        return []
    if op.name in ("sub", "rsub"):
        form = Form((binary(ast.Sub),), f"torch.nan_to_num({{x}} - {{y}}, {ZERO})")
        return [
            Candidate(
                "an error of 0 where the target is missing",
                (form,),
                lambda *ts: _filled(op.plain(*ts)),
                snippet=f"error = torch.nan_to_num(pred - y, {ZERO})",
            )
        ]
    if op.name not in _LOSSES or not _bad(y):
        return []
    there = "torch.isfinite({Y})"
    name, seen = op.name, torch.isfinite(y)
    return [
        Candidate(
            "the loss of those whose target is there",
            (
                Form(
                    (called(name, arity=2),),
                    f"{FUNCTIONAL}.{name}({{X}}[{there}], {{Y}}[{there}]{{rest}})",
                ),
            ),
            lambda a, b, *rest: op.plain(a[seen], b[seen], *rest),
            snippet="seen = torch.isfinite(y); loss = loss_fn(pred[seen], y[seen])",
        )
    ]


def poisoned_statistics(op: Operation) -> list[Candidate]:
    """Running statistics of batch norm that are not finite: as they were at the start."""
    if op.backward or op.name != "native_batch_norm" or len(op.operands) < 5:
        return []

    def fresh(*ts: Any) -> Tensor:
        changed = list(ts)
        for slot, start in _STATISTICS.values():
            changed[slot] = torch.full_like(ts[slot], start)
        return op.plain(*changed)

    name = op.module.partition(".")[2] or "norm"  # without the name of the model's class
    return [
        Candidate(
            "the running statistics as they start, to be learnt again from good data",
            (),
            fresh,
            snippet=f"model.{name}.reset_running_stats()   # then let it see data in train mode",
        )
    ]


def poisoned_state(op: Operation) -> list[Candidate]:
    """A parameter or table of which some elements are not finite: 0 in their place."""
    if op.backward or not any(_bad(t) for t in op.operands):
        return []
    return [
        Candidate(
            "0 in the place of the bad elements; better a good checkpoint, where there is one",
            (),
            op.plain,
            operands=tuple(_filled(t) for t in op.operands),
            snippet=(
                "with torch.no_grad():\n"
                "    for state in (*model.parameters(), *model.buffers()):\n"
                f"        state.nan_to_num_({ZERO})   # before the optimizer is made"
            ),
        )
    ]


def infinite_mask(op: Operation) -> list[Candidate]:
    """A buffer of nothing but 0 and -inf, which hides scores: a finite number instead, as 0 would
    hide none."""
    masks = [
        slot
        for slot, t in enumerate(op.operands)
        if _bad(t) and bool(((t == 0) | (t == -float("inf"))).all())
    ]
    if op.backward or not masks:
        return []
    bounded = (t.clamp_min(-MASK) if slot in masks else t for slot, t in enumerate(op.operands))
    return [
        Candidate(
            f"a mask of {-MASK:.0f}, which half precision holds, in the place of -inf",
            (),
            op.plain,
            operands=tuple(bounded),
            snippet=(
                "with torch.no_grad():\n"
                "    for table in model.buffers():\n"
                f"        table.clamp_(min={-MASK:.0f})   # those that are masks"
            ),
        )
    ]


FRESH_MOMENTS = Candidate(
    "load the optimizer's state of the checkpoint that the weights are of, or begin with a"
    " fresh one",
    (),
    None,
    snippet="optimizer.state.clear()   # before the first step",
    why="it concerns the program, not one operation",
)


MISSING: dict[str, Callable[[Operation], list[Candidate]]] = {
    "nan-in-input": missing_input,
    "inf-in-input": missing_input,
    "nan-in-target": missing_target,
    "poisoned-buffer": lambda op: (
        poisoned_statistics(op) or infinite_mask(op) or poisoned_state(op)
    ),
    "poisoned-parameter": poisoned_state,
}
