"""Titles of fixes that do alike: what tells one from the other."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from nanlab.findings.rule import Fix
from nanlab.program.expression import last_name, nodes_of, parsed
from nanlab.program.rerun import grouped

_LONGEST = 40  # of what a title says of the code


def told_apart(fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes, those of one title with what each has of its own."""
    groups = grouped(fixes, lambda fix: fix.title)
    named = [(fix, _own(fix, groups[fix.title])) for fix in fixes]
    return [replace(fix, title=f"{fix.title}: {own}") if own else fix for fix, own in named]


def _own(fix: Fix, group: Sequence[Fix]) -> str:
    """Line or operation of a fix that the others of its title do not have; "" if there is none."""
    others = [each for each in group if each.code != fix.code]
    lines = [each.edits[0].first if each.edits else 0 for each in group]
    if not others:
        return ""
    if len({*lines}) == len(lines) and all(lines):
        return f"line {fix.edits[0].first}"
    theirs = {ast.unparse(node) for each in others for node in _operations(each)}
    own = [node for node in _operations(fix) if ast.unparse(node) not in theirs]
    told = _told(min(own, key=lambda node: len(ast.unparse(node))), fix.code) if own else ""
    return f"`{told}`" if told and len(told) <= _LONGEST else ""


def _operations(fix: Fix) -> list[ast.Call | ast.BinOp]:
    try:
        nodes = nodes_of(parsed(fix.code))
    except (SyntaxError, ValueError):
        return []
    return [node for node in nodes if isinstance(node, ast.Call | ast.BinOp)]


def _told(node: ast.Call | ast.BinOp, code: str) -> str:
    """``clamp_min(1e-3)``, ``+ 1e-3``: an operation, without what it is done to."""

    def written(part: ast.AST) -> str:
        return ast.get_source_segment(code, part) or ast.unparse(part)

    if isinstance(node, ast.Call):
        given = ", ".join(map(written, [*node.args, *node.keywords]))
        return f"{last_name(node.func)}({given})"
    sign = ast.unparse(ast.BinOp(ast.Name("x"), node.op, ast.Name("x"))).strip("x ")
    return f"{sign} {written(node.right)}"
