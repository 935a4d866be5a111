"""Tensors and arrays that are written as text: as numbers, where they are put in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nanlab.explanations.site import Candidate, Place, Site, Tensor, callee, spelled
from nanlab.findings.rule import Edit

_DEEP = 6  # dicts and lists in each other
Way = tuple[str, ...]  # the keys on the way to a value; "" for one of a list


def as_numbers_in_json(site: Site) -> Iterator[Candidate]:
    """Tensors, arrays and numbers of NumPy in what is written as JSON: as numbers and lists, where
    they are put into dicts and lists; else by the function that JSON asks."""
    if "is not JSON serializable" not in site.text:
        return
    for place in site.raising[:1]:
        for call in (c for c in place.calls() if callee(c) in ("dump", "dumps") and c.args):
            own = replace(place, distance=0.0)
            told = {k.arg for k in call.keywords}
            held = [f.f_locals.get("o") for f in site.inner if f.f_code.co_name == "default"]
            if held and _is_foreign(held[-1]) and "default" not in told:
                yield own.added(0.35, call, "default=lambda value: value.tolist()")
            given = place.value(call.args[0])
            ways = dict(_foreign(given))
            edits: dict[Edit, None] = {}
            put = True
            for way, value in ways.items():
                found = [*_put(site, way)]
                put = put and bool(found)
                for at, node in found:
                    for edit in at.replaced(0.0, (node, _number(at, node, value))).edits:
                        edits.setdefault(edit)
            lines = [(edit.file, edit.first) for edit in edits]
            if edits and put and len({*lines}) == len(lines):
                yield Candidate(0.25, tuple(edits))
            node = call.args[0]
            if ways and isinstance(node, ast.Dict | ast.List):  # written there
                pairs = [
                    (value, _number(place, value, known))
                    for value in getattr(node, "values", getattr(node, "elts", []))
                    if _is_foreign(known := place.value(value))
                ]
                if pairs:
                    yield own.replaced(0.24, *pairs)


def _is_foreign(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, np.generic))


def _number(place: Place, node: ast.expr, value: Any) -> str:
    size = value.numel() if isinstance(value, Tensor) else np.size(value)
    form = "item" if not np.shape(value) or (size == 1 and np.ndim(value) == 0) else "tolist"
    return f"{place.whole(node)}.{form}()"


def _foreign(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """What JSON does not know, with the keys that lead to it."""
    if len(way) > _DEEP:
        return
    if _is_foreign(value):
        yield way, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _foreign(each, (*way, str(key)))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _foreign(each, (*way, ""))


def _put(site: Site, way: Way) -> Iterator[tuple[Place, ast.expr]]:
    """The expressions that the program puts into its dicts and lists for a way."""
    keys = [key for key in way if key]
    listed = bool(way) and not way[-1]
    for place in site.statements():
        for node in place.parts():
            if isinstance(node, ast.Dict) and keys and not listed:
                for key, value in zip(node.keys, node.values, strict=True):
                    if getattr(key, "value", None) == keys[-1]:
                        yield place, value
            elif callee(node) == "dict" and keys and not listed:
                given: Any = getattr(node, "keywords", [])
                yield from ((place, k.value) for k in given if k.arg == keys[-1])
            elif callee(node) == "append" and listed and len(node.args) == 1:  # type: ignore
                owner: Any = node.func.value  # type: ignore[attr-defined]
                name: Any = getattr(getattr(owner, "slice", owner), "value", "")
                plain = spelled(owner) and not keys and isinstance(place.value(owner), list)
                if (keys and name == keys[-1]) or (plain and len(way) == 1):
                    yield place, node.args[0]  # type: ignore[attr-defined]
        for target in getattr(place.statement, "targets", []):
            if isinstance(target, ast.Subscript) and keys and not listed:
                if getattr(target.slice, "value", "") == keys[-1]:
                    yield place, place.statement.value  # type: ignore[attr-defined]
