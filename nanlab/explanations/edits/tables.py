"""Tables of classes that are chosen by name: entries as the others are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from nanlab.explanations.site import MISSING, Candidate, Place, Site, callee, innermost


def as_the_others(site: Site) -> Iterator[Candidate]:
    """An instance in a table of classes as its class, or a class in a table of instances or
    functions as an instance; a function in a table of classes as the class of its layers."""
    if not isinstance(site.error, (TypeError, AttributeError)):
        return
    for source in site.program.texts:
        for entries in (each for node in source.nodes for each in _tables(node)):
            row = innermost(source, entries[0].lineno) if len(entries) > 1 else None
            if row is None:
                continue
            place = site.place(source, row, 0.0)
            kinds = [(node, _kind(place, node)) for node in entries]
            if any(kind == "" for _, kind in kinds):
                continue
            classes = [node for node, kind in kinds if kind == "class"]
            made = [node for node, kind in kinds if kind == "instance"]
            functions = [node for node, kind in kinds if kind == "function"]
            named = [(node, _layer_of(node)) for node in functions]
            if named and len(named) <= len(classes) and all(name for _, name in named):
                yield place.replaced(0.25, *((node, f"torch.nn.{name}") for node, name in named))
            if made and len(made) <= len(classes):
                alone = [(node, place.text(node.func)) for node in made]
                anew = [(n, f"lambda: {place.text(n)}" if _takes(n) else t) for n, t in alone]
                yield place.replaced(0.25, *anew)  # with what it is given
                yield place.replaced(0.28, *alone)
            if 0 < len(classes) <= len(entries) - len(classes):
                yield place.replaced(0.26, *((node, f"{place.text(node)}()") for node in classes))


def _tables(node: Any) -> Iterator[list[Any]]:
    """What a table holds; of one of rows that are as long, each of its columns."""
    entries = _entries(node)
    rows = [each.elts for each in entries if isinstance(each, (ast.Tuple, ast.List))]
    yield entries
    if len(rows) == len(entries) and len({*map(len, rows)}) == 1:
        yield from map(list, zip(*rows, strict=True))


def _entries(node: Any) -> list[Any]:
    """What a table holds: ``{"a": A, "b": B}``, ``[A, B]``, ``dict(a=A, b=B)``."""
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
        return node.elts
    return [k.value for k in node.keywords] if callee(node) == "dict" else []


def _kind(place: Place, node: Any) -> str:
    """``class``, ``instance`` where a class is called, ``function``; empty for anything else."""
    if isinstance(node, ast.Call):
        return "instance" * isinstance(place.value(node.func), type)
    value = place.value(node)
    plain = isinstance(node, ast.Lambda) or (callable(value) and not isinstance(value, nn.Module))
    return "class" if isinstance(value, type) else "function" * plain


def _layer_of(node: Any) -> str:
    """The class of the layers that apply a function which is only named; empty: there is none."""
    name = getattr(node, "attr", getattr(node, "id", "")).lower().replace("_", "")
    kinds = (each for each, kind in vars(nn).items() if isinstance(kind, type))
    return next((each for each in kinds if name and each.lower() == name), "")


def _takes(call: ast.Call) -> bool:
    return bool(call.args or call.keywords)


def made_once(site: Site) -> Iterator[Candidate]:
    """A layer of a table as it is where it was called to make one; one made of a class where that
    was called with data."""
    place = replace(site.raising[0], distance=0.0)
    if not isinstance(site.error, (TypeError, AttributeError)):
        return
    for call in place.calls():
        value = place.value(call.func) if isinstance(call.func, ast.Subscript) else MISSING
        text = place.text(call.func)
        if isinstance(value, nn.Module) and not _takes(call):
            yield place.replaced(0.3, (call, text))
        elif isinstance(value, type) and issubclass(value, nn.Module) and _takes(call):
            yield place.replaced(0.3, (call.func, f"{text}()"))
