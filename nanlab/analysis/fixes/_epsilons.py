"""Candidates for an epsilon that its dtype rounds to zero: the same epsilon, added in float32."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import EPS_IN_FLOAT32, Candidate, Form
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, Spelling, called

_CLAMPS = ("clamp", "clamp_min")


def vanished(op: Operation, slot: int) -> tuple[bool, float] | None:
    """(whether it is a clamp, the number) that keeps an operand off zero, and is zero in its dtype;
    None if there is none."""
    made = op.makers[slot] if op.low and slot < len(op.makers) else ()
    if not made or made[0].name not in ("add", *_CLAMPS):
        return None
    lost = [x for x in made[0].numbers if x > 0 and not torch.tensor(x, dtype=op.dtype)]
    return (made[0].name != "add", lost[0]) if lost else None


def epsilon_in_float32(
    op: Operation, slot: int, spellings: tuple[Spelling, ...], text: str, run: Callable[..., Tensor]
) -> list[Candidate]:
    """One candidate where an operand was kept off zero by an epsilon that vanished, on the line
    itself.

    text: a template with ``{KEPT}`` for that operand. run: the operation, of operands in float32.
    """
    found = vanished(op, slot)
    if found is None:
        return []
    clamped, eps = found
    inner, name = "XY"[slot], "yz"[slot]
    kept = (
        f"{{{inner}}}.float().clamp_min({{{name}}})"
        if clamped
        else f"{{{inner}}}.float() + {{{name}}}"
    )
    text = text.replace("({KEPT})", f"({kept})").replace("{KEPT}", kept if clamped else f"({kept})")

    def with_epsilon(*operands: Any) -> Tensor:
        wide = [
            t.float() if isinstance(t, Tensor) and t.is_floating_point() else t for t in operands
        ]
        at = min(slot, len(wide) - 1)
        wide[at] = wide[at].clamp_min(eps) if clamped else wide[at] + eps
        return run(*wide)

    forms = (Form(tuple(_around(s, slot, clamped) for s in spellings), text),)
    return [Candidate(EPS_IN_FLOAT32, forms, with_epsilon, only_spelled=True)]


def _around(spelling: Spelling, slot: int, clamped: bool) -> Spelling:
    """The same of an operand that is kept off zero: what is kept, and the epsilon, in its place."""

    def match(node: ast.AST) -> Found | None:
        found = spelling(node)
        inside = _kept_off(found.operands[slot], clamped) if found is not None else None
        return (
            None
            if found is None or inside is None
            else Found((*found.operands[:slot], *inside), found.rest)
        )

    return match


def _kept_off(node: ast.expr, clamped: bool) -> tuple[ast.expr, ast.expr] | None:
    """``x + eps``, ``eps + x``, ``x.clamp(min=eps)``: x and eps."""
    if not clamped:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        for kept, eps in ((node.left, node.right), (node.right, node.left)):
            if isinstance(eps, ast.Constant | ast.Name | ast.Attribute):
                return kept, eps
        return None
    found = called(*_CLAMPS)(node)
    if found is None or len(found.rest) != 1:
        return None
    bound = found.rest[0]
    if isinstance(bound, ast.keyword):
        return (found.operands[0], bound.value) if bound.arg == "min" else None
    return found.operands[0], bound
