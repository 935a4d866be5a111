"""Complex numbers where one that is real is meant: a loss of differences of spectra."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import Candidate, Place, Site, callee, number_of, spliced


def squared_lengths(site: Site) -> Iterator[Candidate]:
    """The squares of complex numbers as those of their lengths: one, all of a statement, and all
    of the program."""
    if not re.search("(?i)complex", site.text):
        return
    found: list[tuple[Place, list[tuple[ast.AST, str]]]] = []
    for place in site.statements():
        found.append((place, [pair for node in place.parts() for pair in _squares(place, node)]))
    for place, pairs in found:
        at = replace(place, distance=0.0)
        yield from (at.replaced(0.1, pair) for pair in pairs)
        if len(pairs) > 1:
            yield at.replaced(0.12, *pairs)
    for source in site.program.texts:
        own = [pair for place, pairs in found if place.source is source for pair in pairs]
        if len(own) > 1:
            yield Candidate(0.15, spliced(source, own))


def _squares(place: Place, node: Any) -> Iterator[tuple[ast.AST, str]]:
    """A node that squares something, with the text that squares how long it is."""
    if isinstance(node, ast.BinOp):
        power = isinstance(node.op, ast.Pow) and number_of(node.right) == 2
        left, right = place.text(node.left), place.text(node.right)
        twice = isinstance(node.op, ast.Mult) and right in (left, f"{left}.conj()")
        if (power or twice) and not isinstance(node.left, ast.Constant):
            yield node, f"{place.whole(node.left)}.abs() ** 2"
    elif callee(node) in ("square", "pow"):
        squares = callee(node) == "square"
        of = node.args if squares else node.args[:-1]
        of = (*of, getattr(node.func, "value", None))  # of a method, what it belongs to
        if of[0] is not None and (squares or (node.args and number_of(node.args[-1]) == 2)):
            yield of[0], f"{place.whole(of[0])}.abs()"
