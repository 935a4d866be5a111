"""Counts: how often something happens, rounded up; totals that count something else."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    bound_by,
    callee,
    spelled,
    spliced,
)

_BEYOND = re.compile("out of (range|bounds)|is outside")


def rounded_up(site: Site) -> Iterator[Candidate]:
    """How many parts a number of things makes with the last one, which is not whole: ``-(-n // k)``
    for ``n // k``."""
    if not re.search(f"number of total steps is|{_BEYOND.pattern}", site.text):
        return
    for place in site.statements():
        up = next((name for name, value in place.names().items() if value is math), "")
        form = f"{up}.ceil({{}} / {{}})" if up else "-(-{} // {})"
        for node in place.parts():
            for far, (times, n, k) in enumerate(_divisions(node)):
                a, b = _value(place, n), _value(place, k)
                if MISSING in (a, b) or (b and a % b):
                    text = form.format(place.whole(n), place.whole(k))
                    text = f"{place.text(times)} * {text}" if times is not None else text
                    own = replace(place, distance=0.0)
                    yield own.replaced(0.25 + 0.02 * far, (node, text))


def _divisions(node: Any) -> Iterator[tuple[ast.expr | None, ast.expr, ast.expr]]:
    """How many things are put into parts by an expression, and how many into each: of a product
    also each factor alone, with the other one before it."""
    given = getattr(node, "args", [])
    inner = given[0] if callee(node) in ("int", "round") and len(given) == 1 else node
    sign = ast.FloorDiv if inner is node else ast.Div
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, sign):
        yield None, inner.left, inner.right
        if isinstance(inner.left, ast.BinOp) and isinstance(inner.left.op, ast.Mult):
            yield inner.left.left, inner.left.right, inner.right
            yield inner.left.right, inner.left.left, inner.right


def _value(place: Place, node: ast.expr) -> Any:
    """The value of a whole number, also of a length or a product; MISSING of anything else."""
    found = place.value(node)
    with suppress(Exception):
        if callee(node) == "len":
            found = len(place.value(node.args[0]))  # type: ignore[attr-defined]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            found = _value(place, node.left) * _value(place, node.right)
    return found if type(found) is int else MISSING


def of_what_is_counted(site: Site) -> Iterator[Candidate]:
    """A running total that grows by the size of something else, where what it is added to counts
    beyond the end: by another size that its loop reads, or that of what is kept there."""
    for place in site.statements() if _BEYOND.search(site.text) else ():
        size = _growth(place)
        for loop in _around(place) if size is not None else ():
            nodes = [n for row in loop.body for n in ast.walk(row)]
            read = [place.text(n) for n in nodes if _is_size(n)]
            lists = [n for n in nodes if isinstance(n, ast.Call) and callee(n) == "append"]
            kept = [n for call in lists for n in call.args if isinstance(n, _PLAIN)]
            texts = [*read, *(_size_like(place, size, n) for n in kept), *_near(site, place, size)]
            old = place.text(size)
            for at, text in enumerate(each for each in dict.fromkeys(texts) if each != old):
                yield replace(place, distance=0.0).replaced(0.3 + 0.02 * at, (size, text))


_PLAIN = (ast.Name, ast.Attribute, ast.Subscript)


def _around(place: Place) -> list[ast.For]:
    """The innermost loop around a statement."""
    line = place.statement.lineno
    loops = [n for n in place.source.nodes if isinstance(n, ast.For)]
    return [n for n in loops if n.lineno < line <= (n.end_lineno or 0)][-1:]


def _growth(place: Place) -> Any:
    """The size by which a statement lets a total grow that its loop adds to something; None: it
    does nothing of that kind."""
    row = place.statement
    name, size = "", None
    if isinstance(row, ast.AugAssign) and isinstance(row.op, ast.Add):
        name, size = spelled(row.target), row.value
    elif isinstance(row, ast.Assign) and isinstance(row.value, ast.BinOp):
        if spelled(row.value.left) == spelled(row.targets[0]):
            name, size = spelled(row.targets[0]), row.value.right
    rows = [each for loop in _around(place) for each in loop.body if each is not row]
    sums = [n for each in rows for n in ast.walk(each) if isinstance(n, ast.BinOp)]
    added = any(name in (spelled(n.left), spelled(n.right)) for n in sums)
    return size if name and added and size is not None and _is_size(size) else None


def _is_size(node: Any) -> bool:
    """Whether an expression says how much there is of something."""
    if isinstance(node, ast.Subscript):
        return getattr(node.value, "attr", "") == "shape" and isinstance(node.slice, ast.Constant)
    if isinstance(node, ast.Attribute):
        return _NUMBER.match(node.attr) is not None
    return callee(node) in ("len", "size", "numel") and isinstance(node, ast.Call)


_NUMBER = re.compile("num_|n_")


def _size_like(place: Place, size: Any, node: ast.expr) -> str:
    """How many of something there are, written as another size is."""
    text = place.text(node)
    if isinstance(size, ast.Subscript):
        return f"{text}.shape[0]"
    return f"{text}.size(0)" if callee(size) in ("size", "numel") else f"len({text})"


def _near(site: Site, place: Place, size: Any) -> Iterator[str]:
    """A size by another dimension, or by another number that the program's objects have."""
    if isinstance(size, ast.Subscript):
        yield f"{place.text(size.value)}[0]"
    elif callee(size) == "size":
        yield f"{place.text(size.func)}(0)"
    elif isinstance(size, ast.Attribute):
        nodes = [n for source in site.program.texts for n in source.nodes]
        names = [n for node in nodes if isinstance(node, ast.AnnAssign) for n in bound_by(node)]
        names += [getattr(node, "attr", "") for node in nodes]
        yield from (f"{place.text(size.value)}.{name}" for name in filter(_NUMBER.match, names))


def resized(site: Site) -> Iterator[Candidate]:
    """The table of a model that knows how to resize it, with a row for each word: once the model is
    built and the last of the words is there."""
    most = max((wanted for _, wanted in site.looked_up), default=0) if site.rows else 0
    for place in site.raising if most else ():
        named = [(n, v) for n, v in place.names().items() if n[0] != "_"]
        models = [n for n, v in named if hasattr(v, "resize_token_embeddings")]
        words = [n for n, v in named if _counted_words(v) >= most]
        body = (place.function or place.source.tree).body
        before = [row for row in body if (row.end_lineno or 0) < place.statement.lineno]
        for model, word in itertools.product(models, words):
            own = [row for row in before if model in bound_by(row) or _grows(row, word)]
            later = before[before.index(own[-1]) :] if own else []
            held = [r for r in before if f"{model}.parameters" in place.text(r) and r not in later]
            if own and any(model in bound_by(row) for row in own) and not held:
                row = replace(place, statement=own[-1], distance=0.0)
                yield row.written(0.4, f"{{}}\n{model}.resize_token_embeddings(len({word}))")


def _counted_words(words: Any) -> int:
    """How many words a tokenizer has, or a dict that numbers them from 0; -1: it is neither."""
    with suppress(Exception):
        numbers = words if isinstance(words, dict) else words.get_vocab()
        if {*map(type, numbers.values())} == {int} and max(numbers.values()) < len(words):
            return len(words)
    return -1


def _grows(row: ast.stmt, word: str) -> bool:
    """Whether a statement binds words, or adds one to them."""
    nodes = [*ast.walk(row)]
    stored = [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    added = [n.func for n in nodes if isinstance(n, ast.Call) and _ADDS.match(callee(n))]
    of = {spelled(getattr(n, "value", n)) for n in (*stored, *added)}
    return word in of or any(word in bound_by(n) for n in nodes if isinstance(n, ast.stmt))


_ADDS = re.compile("add|update|setdefault")


def with_one_for_zero(site: Site) -> Iterator[Candidate]:
    """A table with a row more than there are words, where these are numbered from one."""
    found = site.looked_up if site.rows else ()  # classes rather are counted from zero
    for count in (
        a for a, b in found if b == a + 1 and any(_is_numbered(d, a) for d in _dicts(site))
    ):
        pairs: dict[str, list[tuple[ast.AST, str]]] = {}
        for place in site.statements():
            for node in (n for n in _sizes(place) if _length(site, place, n.args[0]) == count):
                text = f"{place.text(node)} + 1"
                pairs.setdefault(place.source.shown, []).append((node, text))
                yield replace(place, distance=0.0).replaced(0.32, (node, text))
        for source in site.program.texts:
            yield Candidate(0.3, spliced(source, pairs.get(source.shown, [])))


def _sizes(place: Place) -> Iterator[Any]:
    """The lengths that a statement binds, or gives to a call."""
    given: list[Any] = [getattr(place.statement, "value", None)]
    for call in place.calls():
        given += [*call.args, *(k.value for k in call.keywords)] * (callee(call) != "range")
    yield from (node for node in given if callee(node) == "len" and len(node.args) == 1)


def _length(site: Site, place: Place, node: ast.expr) -> int:
    """The length of what an expression stands for, also as an attribute of an object that the
    program has; -1: not known."""
    value, name = place.value(node), spelled(node)
    if value is MISSING and name.startswith("self."):
        own = (getattr(each, name[5:], MISSING) for each in site.frames[-1][0].known.values())
        value = next((each for each in own if each is not MISSING), MISSING)
    with suppress(TypeError):  # it may have none
        return len(value)
    return -1


def _dicts(site: Site) -> Iterator[dict[Any, Any]]:
    """The dicts of the program, also those that its objects keep."""
    known = [*site.frames[-1][0].known.values()]
    known += [v for frame, _ in site.frames for v in frame.f_locals.values()]
    known += [v for each in known for v in getattr(each, "__dict__", {}).values()]
    yield from (each for each in known if isinstance(each, dict))


def _is_numbered(words: dict[Any, Any], count: int) -> bool:
    """Whether the values of a dict are the numbers from 1 to this one."""
    whole = len(words) == count and all(type(n) is int for n in words.values())
    return whole and {*words.values()} == {*range(1, count + 1)}
