"""Lists and tuples: one element that was meant as a tuple, lists put into another list whole."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nanlab.explanations.edits.texts import Read, chain
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Function,
    Place,
    Site,
    Tensor,
    bound_value,
    callee,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source


def with_comma(site: Site) -> Iterator[Candidate]:
    """An element in brackets as a tuple: ``(16)`` is a number, ``(16,)`` has one; one, or all."""
    for source in site.program.texts:
        nodes = (n for n in source.nodes if isinstance(n, (ast.Constant, ast.Name, ast.Attribute)))
        pairs = [(n, f"{source.part(n)},") for n in nodes if _is_bracketed(source, n)]
        for pair in pairs:
            yield Candidate(0.2, spliced(source, [pair]))
        yield Candidate(0.22, spliced(source, pairs))


def without_comma(site: Site) -> Iterator[Candidate]:
    """What is bound with a comma after it as it is: ``width = 48,`` is a tuple of one."""
    kinds = (ast.Assign, ast.AnnAssign, ast.Return)
    for source in site.program.texts:
        for row in (n for n in source.nodes if isinstance(n, kinds)):
            value = row.value
            if isinstance(value, ast.Tuple) and len(value.elts) == 1:
                text = source.part(value.elts[0])
                if not source.part(value).startswith("(") and text[:1] != "*":
                    yield Candidate(0.2, spliced(source, [(value, text)]))


def _is_bracketed(source: Source, node: ast.expr) -> bool:
    """Whether an expression is alone in brackets that call nothing."""
    head = source.lines[node.lineno - 1].encode()[: node.col_offset].decode()
    tail = source.lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset :].decode()
    return _OPENED.search(head) is not None and tail[:1] == ")"


def drawn_by_position(site: Site) -> Iterator[Candidate]:
    """Elements of a list chosen by their positions, where NumPy was to make an array of them."""
    for place in site.raising:
        for call in (c for c in place.calls() if callee(c) == "choice" and c.args):
            owner, rows = place.value(getattr(call.func, "value", call)), place.value(call.args[0])
            listed = isinstance(rows, list | tuple | deque) and len(rows) > 0
            listed = listed and isinstance(rows[0], list | tuple)
            if listed and (owner is np.random or isinstance(owner, _GENERATORS)):
                name = place.text(call.args[0])
                drawn = place.text(call).replace(name, f"len({name})", 1)
                several = len(call.args) > 1 or any(k.arg == "size" for k in call.keywords)
                text = f"[{name}[i] for i in {drawn}]" if several else f"{name}[{drawn}]"
                yield replace(place, distance=0.0).replaced(0.3, (call, text))


_GENERATORS = np.random.Generator, np.random.RandomState


_VIEWS = {f"{part}s": f"dict_{part}s" for part in ("key", "value", "item")}
_OPENED = re.compile(r"([=,:(\[]|\b(return|in|else))\s*\($")


def of_one_number(site: Site) -> Iterator[Candidate]:
    """A number as a tuple of it where it was given for several: what takes it goes through it by a
    star, or has several as a default."""
    for place in site.raising if "iterable" in site.text else ():
        starred = {id(n.value) for n in place.parts() if isinstance(n, ast.Starred)}
        for node in place.parts():
            named = isinstance(node, (ast.Name, ast.Attribute))
            if not named or type(place.value(node)) not in (int, float):
                continue
            _, *reads = chain(site, [Read(replace(place, distance=0.0), node)])
            if id(node) not in starred and not any(map(_is_several, reads)):
                continue
            for later, read in enumerate(reversed(reads)):
                text = f"({read.place.text(read.node)},)"
                yield read.place.replaced(0.3 + 0.07 * later, (read.node, text))


def _is_several(read: Read) -> bool:
    """Whether what is read is a parameter that has several elements if nothing is given for it."""
    given = read.place.function.args if read.place.function is not None else None
    pairs = zip(given.args[::-1], given.defaults[::-1], strict=False) if given is not None else ()
    own = {argument.arg: default for argument, default in pairs}
    return isinstance(own.get(spelled(read.node)), (ast.Tuple, ast.List))


def as_lists(site: Site) -> Iterator[Candidate]:
    """What can be gone through once, or has no order, as a list, where it is given to what takes
    no such thing."""
    for place in site.raising:
        near = replace(place, distance=0.2 * bool(place.distance))
        for node in place.parts():
            kind = type(place.value(node)).__name__ if spelled(node) else _lazy(node)
            if kind not in _LAZY or not re.search(rf"\b{kind}\b", site.text):
                continue
            bound = site.binding(place, node)
            made = bound_value(bound, spelled(node)) if bound is not None else None
            if bound is not None and isinstance(made, ast.expr) and _lazy(made) == kind:
                own = replace(bound, distance=0.0)
                yield own.replaced(0.28, (made, _listed(bound.text(made), made)))
            yield near.replaced(0.3, (node, _listed(place.text(node), node)))


_LAZY = ("filter", "map", "zip", "generator", "reversed", "enumerate", *_VIEWS.values())


def _lazy(node: ast.AST) -> str:
    """The type of what an expression gives, where it can be gone through once, or has no order."""
    if isinstance(node, ast.GeneratorExp):
        return "generator"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return callee(node) if callee(node) in _LAZY else ""
    return "" if getattr(node, "args", True) else _VIEWS.get(callee(node), "")


def _listed(text: str, node: ast.AST) -> str:
    if isinstance(node, ast.GeneratorExp):
        return f"[{text[1:-1]}]" if text[0] == "(" else f"[{text}]"
    return f"list({text})"


def iterators_of(site: Site) -> Iterator[Candidate]:
    """An iterator of what ``__iter__`` returned, which can only be gone through by one."""
    told = re.search(r"iter\(\) returned non-iterator of type '(\w+)'", site.text)
    for source in site.program.texts if told is not None else ():
        for node in source.nodes:
            if isinstance(node, Function) and node.name == "__iter__":
                place = Place(source, node, site.frames[-1][0], 0.0)
                rows = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value]
                numbers = ".tolist()" * (told is not None and told[1] == "Tensor")
                given = [n for n in rows if callee(n) != "iter"]
                texts = [(n, f"iter({place.whole(n)}{numbers})") for n in given]
                yield from [Candidate(0.2, spliced(source, texts))] * bool(texts)


_COUNTED = re.compile("inhomogeneous|sequence of length|size|shape|length|inconsistent")


def one_after_the_other(site: Site) -> Iterator[Candidate]:
    """The elements of lists put into another list, where the lists were put in and the program
    has as many of something as there are elements in all."""
    pairs: list[tuple[Place, ast.Call]] = []
    for place in site.statements() if _COUNTED.search(site.text) else ():
        call: Any = getattr(place.statement, "value", None)
        owner = getattr(getattr(call, "func", None), "value", None)
        if callee(call) != "append" or not call.args or owner is None:
            continue
        rows = _value(site, place, owner)
        whole = isinstance(rows, list) and len(rows) > 1 and all(map(_is_flat, rows))
        if whole and sum(map(len, rows)) in _lengths(site):
            pairs.append((place, call))
    edits = [place.replaced(0.0, (c.func, _extending(place, c))).edits for place, c in pairs]
    for each in edits:
        yield Candidate(0.25, each)
    yield Candidate(0.27, tuple(edit for each in edits for edit in each))


def _extending(place: Place, call: ast.Call) -> str:
    return place.text(call.func).removesuffix("append") + "extend"


def _value(site: Site, place: Place, node: ast.AST) -> Any:
    """The value of an expression where it stands, or else where the exception passed."""
    values = (at.value(node) for at in (place, *site.raising))
    return next((value for value in values if value is not MISSING), MISSING)


def _is_flat(rows: Any) -> bool:
    """Whether a value is a list of numbers or of texts."""
    if isinstance(rows, np.ndarray):
        return rows.ndim == 1
    return isinstance(rows, (list, tuple)) and not any(
        isinstance(each, Iterable) and not isinstance(each, str) for each in rows
    )


def _lengths(site: Site) -> set[int]:
    """How many rows or elements the data has that the program holds."""
    held = [v for frame, _ in site.frames for v in frame.f_locals.values()]
    held += [v for each in held for v in getattr(each, "__dict__", {}).values()]
    rows = (each for each in held if isinstance(each, (list, np.ndarray, Tensor)))
    return {len(each) for each in rows if getattr(each, "ndim", 1)}
