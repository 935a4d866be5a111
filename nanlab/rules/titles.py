"""Titles of fixes that do alike: what tells one from the other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from nanlab.findings.rule import Fix
from nanlab.program.expression import last_name, nodes_of, parsed
from nanlab.program.rerun import grouped

_LONGEST = 40  # of what a title says of the code
_WIDER = "in more places"


def told_apart(fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes, those of one title with what each has of its own."""
    groups = grouped(fixes, lambda fix: fix.title)
    named = {key: own for group in groups.values() for key, own in _named(group).items()}
    told = [(fix, named.get((fix.title, fix.code))) for fix in fixes]
    return [
        replace(fix, title=fix.title + (", " if own == _WIDER else ": ") + own) if own else fix
        for fix, own in told
    ]


def _named(group: Sequence[Fix]) -> dict[tuple[str, str], str]:
    """By title and code the line or operation that a fix has, and no other of its title."""
    if len({fix.code for fix in group}) < 2:
        return {}
    lines = [fix.edits[0].first if fix.edits else 0 for fix in group]
    if len({*lines}) == len(lines) and all(lines):
        return {(f.title, f.code): f"line {n}" for f, n in zip(group, lines, strict=True)}
    if len(group) == 2:
        less, more = sorted(group, key=lambda fix: _written(fix).total())
        if _written(less) < _written(more):
            return {(more.title, more.code): _WIDER}
    own: dict[tuple[str, str], tuple[str, str]] = {}
    for fix in group:
        others = [_operations(each) for each in group if each.code != fix.code]
        theirs = {ast.unparse(node) for each in others for node in each}
        pieces = [*_written(fix)]
        nodes = [node for node in _operations(fix) if ast.unparse(node) not in theirs]
        nodes = [node for node in nodes if _is_new(node, fix.code, pieces)]
        if nodes:
            node = min(nodes, key=lambda node: len(ast.unparse(node)))
            own[fix.title, fix.code] = _told(node, fix.code), ast.unparse(node)
    brief = [short for short, _ in own.values()]
    told = {key: short if brief.count(short) == 1 else full for key, (short, full) in own.items()}
    named = {key: f"`{text}`" for key, text in told.items() if len(text) <= _LONGEST}
    alike = [fix for fix in group if (fix.title, fix.code) not in named]
    least, *rest = sorted(alike, key=lambda fix: _written(fix).total()) or [group[0]]
    wider = [fix for fix in rest if _written(least) < _written(fix)]
    return named | {(fix.title, fix.code): _WIDER for fix in wider[:1]}


def _written(fix: Fix) -> Counter[str]:
    """What a fix writes that its lines did not have, piece by piece."""
    found: Counter[str] = Counter()
    for edit in fix.edits:
        old, new = (re.findall(r"\w+|[^\w\s]", text) for text in (edit.old, edit.text))
        pieces = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        for kind, _, _, first, last in pieces:
            if kind in ("insert", "replace"):
                found["".join(new[first:last])] += 1
    return found


def _operations(fix: Fix) -> list[ast.Call | ast.BinOp]:
    try:
        nodes = nodes_of(parsed(fix.code))
    except (SyntaxError, ValueError):
        return []
    return [node for node in nodes if isinstance(node, ast.Call | ast.BinOp)]


def _is_new(node: ast.Call | ast.BinOp, code: str, pieces: Sequence[str]) -> bool:
    """Whether an operation is one that was written."""
    if isinstance(node, ast.BinOp):
        number = isinstance(node.left, ast.Constant | ast.UnaryOp)  # -1 + 1e-6 is a bound
        if number or not isinstance(node.op, ast.Add):
            return False
    name = last_name(node.func) if isinstance(node, ast.Call) else _told(node, code)
    return any("".join(name.split()) in piece for piece in pieces)


def _told(node: ast.Call | ast.BinOp, code: str) -> str:
    """``clamp_min(1e-3)``, ``+ 1e-3``: an operation, without what it is done to."""

    def written(part: ast.AST) -> str:
        return ast.get_source_segment(code, part) or ast.unparse(part)

    if isinstance(node, ast.Call):
        given = ", ".join(map(written, [*node.args, *node.keywords]))
        return f"{last_name(node.func)}({given})"
    sign = ast.unparse(ast.BinOp(ast.Name("x"), node.op, ast.Name("x"))).strip("x ")
    return f"{sign} {written(node.right)}"
