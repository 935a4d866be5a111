"""Tuples in an order: compared by what comes before the tensors or dicts that they hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import Candidate, Place, Site, callee, spelled, spliced
from nanlab.explanations.trial import Source
from nanlab.findings.rule import Edit

_NO_ORDER = re.compile("not supported between instances|ambiguous|a single value|no bool")
_PLAIN = (int, float, str)
_COMPARING = ("min", "max", "sorted", "sort", "nlargest", "nsmallest")


def by_first_parts(site: Site) -> Iterator[Candidate]:
    """Tuples ordered by those of their parts that have an order, where two are alike in them and
    the next part would be compared."""
    if not _NO_ORDER.search(site.text):
        return
    place = replace(site.raising[0], distance=0.0)
    for call in place.calls():
        method = isinstance(call.func, ast.Attribute) and callee(call) == "sort"
        given: Any = call.func.value if method else (call.args or [None])[-1]  # type: ignore
        if callee(call) in _COMPARING and given is not None and not _has_key(call):
            value = place.value(given)
            rows = (
                [*value.items()] if callee(given) == "items" and isinstance(value, dict) else value
            )
            row = rows[0] if isinstance(rows, (list, tuple)) and rows else (0.0, None)
            count = _ordered(row)
            if isinstance(row, tuple) and 0 < count < len(row):
                part = "0" if count == 1 else f":{count}"
                yield place.added(0.15, call, f"key=lambda row: row[{part}]")
        elif callee(call).startswith("heap") and call.args:
            yield from _numbered(site, place, call.args[0])


def _has_key(call: ast.Call) -> bool:
    return any(keyword.arg == "key" for keyword in call.keywords)


def _ordered(row: Any) -> int:
    """How many parts of a tuple come before the first that has no order."""
    parts = row if isinstance(row, tuple) else ()
    return next((at for at, part in enumerate(parts) if not isinstance(part, _PLAIN)), len(parts))


def _numbered(site: Site, place: Place, heap: ast.expr) -> Iterator[Candidate]:
    """What is put into a heap with a number of its own before what has no order; where the program
    takes it out, that is passed over."""
    rows = place.value(heap)
    row = rows[0] if isinstance(rows, list) and rows else None
    at = _ordered(row)
    if not isinstance(row, tuple) or not 0 < at < len(row):
        return
    name, edits, named = place.text(heap), list[Edit](), True
    for source in site.program.texts:
        pairs: list[tuple[ast.AST, str]] = []
        for node in source.nodes:
            for put in _put(source, node, name):
                if len(put.elts) == len(row):
                    own = source.part(put.elts[at])
                    named = named and bool(spelled(put.elts[at]))
                    pairs.append((put.elts[at], f"id({own}), {own}"))
            pairs += _taken(source, node, name, at, len(row))
        edits += spliced(source, pairs)
    if named:  # else it is made there, and has no number yet
        yield Candidate(0.2, tuple(edits))


def _put(source: Source, node: ast.AST, heap: str) -> Iterator[ast.Tuple]:
    """The tuples that a part of the program puts into a heap."""
    found: list[Any] = []
    if (
        callee(node).startswith("heap")
        and source.part((getattr(node, "args", None) or [node])[0]) == heap
    ):
        found = node.args[1:]  # type: ignore[attr-defined]
    elif isinstance(node, ast.Assign) and source.part(node.targets[0]) == heap:
        found = getattr(node.value, "elts", [])
    yield from (each for each in found if isinstance(each, ast.Tuple))


def _taken(
    source: Source, node: ast.AST, heap: str, at: int, count: int
) -> Iterator[tuple[ast.AST, str]]:
    """What reads the parts of an element of a heap, with one more part."""
    taken: Any = getattr(node, "value", getattr(node, "iter", None))
    targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
    popped = taken is not None and callee(taken).startswith("heap")
    through = taken is not None and hasattr(node, "iter") and heap in source.part(taken)
    first = isinstance(taken, ast.Subscript) and source.part(taken.value) == heap
    for target in targets if popped or through or first else ():
        if isinstance(target, ast.Tuple) and len(target.elts) == count:
            yield target.elts[at], f"_, {source.part(target.elts[at])}"
    number = getattr(getattr(node, "slice", None), "value", None)
    if isinstance(node, ast.Subscript) and (popped or first) and type(number) is int:
        if at <= number < count:
            yield node.slice, str(number + 1)
