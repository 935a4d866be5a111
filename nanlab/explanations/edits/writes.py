"""Writes into what autograd had saved, as new tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanlab.explanations.edits.gradients import innermost_loop, new_tensor
from nanlab.explanations.site import Candidate, Place, Site, bound_by, bound_value, callee, spelled

_SAVED = re.compile(r"modified by an inplace.*?(?:output \d+ of (\w*?)Backward\d*\b|$)", re.DOTALL)


def overwritten(site: Site) -> Iterator[Candidate]:
    """A new tensor for one that is written into, wherever what follows reads it: what autograd had
    saved stays. For all writes of a function, and of the program, as well."""
    told = _SAVED.search(site.text)
    saved = (told[1] or "?").lower() if told is not None else ""
    found: dict[Any, list[Candidate]] = {}
    for place in site.statements() if saved else ():
        name = written_into(place.statement)
        new = new_tensor(place) if _reads_later(place, name) else None
        if new is not None:
            rows = [p for p in site.statements() if p.function is place.function]
            made = [p.text(p.statement) for p in rows if name in bound_by(p.statement)]
            near = any(saved in re.sub(r"\W|_", "", text).lower() for text in made)
            found.setdefault(place.function, []).append(replace(new, cost=0.3 if near else 0.5))
        value = (
            bound_value(place, "") if saved and isinstance(place.statement, ast.Assign) else None
        )
        if value is not None and saved in re.sub(r"\W|_", "", place.text(value)).lower():
            yield place.replaced(0.6, (value, f"{place.whole(value)}.clone()"))  # for other names
    every = [each for own in found.values() for each in own]
    yield from every
    for group in (*found.values(), every):
        if len(group) > 1:
            cost = min(each.cost for each in group) + 0.05
            yield Candidate(cost, tuple(edit for each in group for edit in each.edits))


def written_into(statement: ast.AST) -> str:
    """The name of the tensor that a statement writes into; empty for any other statement."""
    if isinstance(statement, ast.Assign):
        root: Any = statement.targets[0]
        root = root if isinstance(root, ast.Subscript) else None
    elif isinstance(statement, ast.AugAssign):
        root = statement.target
    else:
        root = statement.value if isinstance(statement, ast.Expr) else None
        root = root if re.search(r"[^_]_$", callee(root)) else None
    while not spelled(root) and isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    return spelled(root) if root is not None else ""


def _reads_later(place: Place, name: str) -> bool:
    """Whether the function reads a name after a statement, or in the next round of its loop: if it
    stood for another tensor from there on, nothing else would."""
    if not name or (isinstance(loop := innermost_loop(place), ast.For) and name in bound_by(loop)):
        return False
    own = {id(n) for n in ast.walk(place.statement)}
    around = place.function or place.source.tree
    read = [n for n in ast.walk(around) if spelled(n) == name and id(n) not in own]
    last = place.statement.end_lineno or 0
    again = {id(n) for n in ast.walk(loop)} if loop is not None else set()
    return "." in name or any(n.lineno > last or id(n) in again for n in read)  # type: ignore
