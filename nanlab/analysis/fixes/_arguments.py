"""Spellings that look at the keyword arguments of a call."""

from __future__ import annotations

import ast

from nanlab.analysis.fixes._rewriting import Found, Spelling


def keyword(*names: str) -> Spelling:
    """A keyword argument ``name=value`` of one of these names, whose value is looked up rather than
    written there."""

    def match(node: ast.AST) -> Found | None:
        if (
            isinstance(node, ast.keyword)
            and node.arg in names
            and isinstance(node.value, ast.Name | ast.Attribute)
        ):
            return Found((node.value,))
        return None

    return match


def without(spelling: Spelling, *keywords: str) -> Spelling:
    """The same, less these keyword arguments."""

    def match(node: ast.AST) -> Found | None:
        found = spelling(node)
        if found is None:
            return None
        return Found(
            found.operands, tuple(a for a in found.rest if getattr(a, "arg", None) not in keywords)
        )

    return match
