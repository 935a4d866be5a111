"""Options that were not given, None, which take the place of their defaults."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import MISSING, Candidate, Place, Site, bound_by, callee


def of_those_given(site: Site) -> Iterator[Candidate]:
    """Options that are put over defaults, or given with ``**``, without those that are None."""
    for place in site.statements() if "None" in site.text else ():
        own = replace(place, distance=0.0)
        for node in place.parts():
            for cost, given in _put_over(node):
                value = place.value(given)
                left_out = isinstance(value, dict) and None in value.values()
                if left_out or value is MISSING:
                    text = place.text(given)
                    form = f"{{k: v for k, v in {text}.items() if v is not None}}"
                    yield own.replaced(cost - 0.05 * left_out, (given, form))
        if isinstance(place.statement, ast.For) and callee(place.statement.iter) == "items":
            yield from _in_loop(own, place.statement)


def _put_over(node: Any) -> Iterator[tuple[float, ast.expr]]:
    """The expressions of a node whose keys and values are put over others."""
    name = callee(node)
    if isinstance(node, ast.Dict):
        spread = [v for k, v in zip(node.keys, node.values, strict=True) if k is None]
        yield from ((0.3, each) for each in spread if each is not node.values[0])
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.BitOr):
        yield 0.3, node.right if isinstance(node, ast.BinOp) else node.value
    elif name == "update" and len(node.args) == 1:
        yield 0.3, node.args[0]
    elif name == "ChainMap":
        yield from ((0.3, each) for each in node.args[:-1])
    elif name:
        yield from ((0.35, each.value) for each in node.keywords if each.arg is None)


def _in_loop(place: Place, loop: ast.For) -> Iterator[Candidate]:
    """A loop over keys and values that passes those by whose value is None."""
    names, rows = bound_by(loop), loop.body
    first = replace(place, statement=rows[0])
    puts = isinstance(rows[0], ast.Assign) and isinstance(rows[0].targets[0], ast.Subscript)
    puts = puts or callee(getattr(rows[0], "value", rows[0])) in ("setattr", "setdefault")
    if len(names) == 2 and len(rows) == 1 and puts:
        row = textwrap.indent(place.text(rows[0]), " " * 4)
        yield first.written(0.3, f"if {names[1]} is not None:\n{row}")
