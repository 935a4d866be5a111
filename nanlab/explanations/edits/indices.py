"""Elements looked up in another way: one by one, in the whole, with what comes after the last."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    is_whole,
    names_in,
    number_of,
    spelled,
    spliced,
    unread,
)
from nanlab.explanations.trial import Source
from nanlab.operators import having

_BEYOND = re.compile("(?i)out of (range|bounds)|is outside")


def one_by_one(site: Site, place: Place) -> Iterator[Candidate]:
    """The elements of a list that several indices choose, each by its own index."""
    if not isinstance(site.error, TypeError):
        return
    for node in (n for n in place.parts() if isinstance(n, ast.Subscript)):
        rows, index = place.value(node.value), place.value(node.slice)
        whole, at = place.text(node.value), place.text(node.slice)
        if not isinstance(rows, (list, tuple, range)) or isinstance(node.slice, ast.Slice):
            continue
        if isinstance(node.slice, ast.Tuple):
            first, *rest = node.slice.elts
            inner = "".join(f"[{place.text(each)}]" for each in rest)
            if not isinstance(first, ast.Slice):
                yield place.replaced(0.3, (node, f"{whole}[{place.text(first)}]{inner}"))
            else:
                part = "" if place.text(first) == ":" else f"[{place.text(first)}]"
                yield place.replaced(0.3, (node, f"[row{inner} for row in {whole}{part}]"))
        elif index is MISSING or isinstance(index, (Tensor, np.ndarray, list, tuple, range)):
            name = next(n for n in ("i", "j", "k", "each") if n not in names_in(place.statement))
            chosen = f"[{whole}[{name}] for {name} in {at}]"
            if str(getattr(index, "dtype", "")) in ("torch.bool", "bool"):
                chosen = f"[each for each, kept in zip({whole}, {at}) if kept]"
            yield place.replaced(0.3, (node, chosen))
            made = "stack" if isinstance([*rows, 0][0], Tensor) else "tensor"
            yield place.replaced(0.35, (node, f"torch.{made}({whole})[{at}]"))


def by_position(site: Site, place: Place) -> Iterator[Candidate]:
    """Rows of a table by their position, where they kept the labels that they had in another."""
    asked = (str(frame.f_globals.get("__name__"))[:6] == "pandas" for frame in site.inner)
    if not isinstance(site.error, KeyError) or not any(asked):
        return
    pairs: list[tuple[ast.AST, str]] = []
    for node in (n for n in place.parts() if isinstance(n, ast.Subscript)):
        rows: list[ast.expr] = getattr(node.slice, "elts", [node.slice])
        whole = place.value(node.value)
        table = whole is MISSING or type(whole).__module__[:6] == "pandas"
        if table and not isinstance(getattr(rows[0], "value", 0), str):
            of = re.sub(r"\.(loc|at)$", "", place.text(node.value))
            columns = "".join(
                f"[{place.text(each)}]" for each in rows[1:] if place.text(each) != ":"
            )
            pairs.append((node, f"{of}{columns}.iloc[{place.text(rows[0])}]"))
    yield from (place.replaced(0.3, pair) for pair in pairs)
    if len(pairs) > 1:
        yield place.replaced(0.32, *pairs)


def after_the_last(site: Site, place: Place) -> Iterator[Candidate]:
    """What comes after the last element, where a function that is given it, or what computed it,
    never reads it."""
    given = unread(place.function) if isinstance(site.error, IndexError) else []
    for node in (n for n in place.parts() if isinstance(n, ast.Subscript)):
        whole, at = place.text(node.value), place.text(node.slice)
        index: Any = place.value(node.slice)
        if index is MISSING and isinstance(node.slice, ast.BinOp):
            index = _sum(place, node.slice)
        rows = place.value(node.value)
        if type(index) is int and hasattr(rows, "__len__") and index == len(rows):
            kept = [n for n in given or _never_read(place) if _is_one_more(place, rows, n)]
            bound = site.binding(place, node.value)
            joined = bound_value(bound, spelled(node.value))
            parts = joined.args[0] if callee(joined) in having("joins") and joined.args else None
            if bound is not None and isinstance(parts, (ast.List, ast.Tuple)) and not given:
                for name in kept:
                    more = ", ".join([*map(bound.text, parts.elts), name])
                    yield replace(bound, distance=0.0).replaced(0.28, (parts, f"[{more}]"))
            for far, name in enumerate(given or kept):
                text = f"({whole}[{at}] if {at} < len({whole}) else {name})"
                yield place.replaced(0.3 + 0.02 * far, (node, text))
            if isinstance(node.slice, ast.BinOp) and _counts_down(place):  # what is still to come
                text = f"({whole}[{at}] if {at} < len({whole}) else 0.0)"
                yield place.replaced(0.45, (node, text))


def _never_read(place: Place) -> list[str]:
    """The names that are bound beside a statement, and read nowhere."""
    nodes = [n for n in place.source.nodes if isinstance(n, ast.Name)]
    read = {n.id for n in nodes if isinstance(n.ctx, ast.Load)}
    return [*dict.fromkeys(n.id for n in nodes if n.id not in read)]


def _is_one_more(place: Place, rows: Any, name: str) -> bool:
    """Whether a name stands for a tensor that could be one more row of another."""
    value, (first, *rest) = place.value(ast.Name(name)), getattr(rows, "shape", (0,))
    return first > 0 and isinstance(value, Tensor) and [*value.shape] in (rest, [1, *rest])


def _counts_down(place: Place) -> bool:
    """Whether a statement stands in a loop that goes back from the last element."""
    line, loops = place.statement.lineno, (n for n in place.source.nodes if isinstance(n, ast.For))
    around = [n for n in loops if n.lineno < line <= (n.end_lineno or 0)]
    heads: list[Any] = [loop.iter for loop in around]
    steps = (head.args[2:] for head in heads if callee(head) == "range")
    down = any(step and number_of(step[0]) == -1 for step in steps)
    return down or any(callee(head) == "reversed" for head in heads)


def _sum(place: Place, node: ast.BinOp) -> Any:
    """The value of a sum of numbers that are known; MISSING for another."""
    left, right = place.value(node.left), place.value(node.right)
    if type(left) is not int or type(right) is not int:
        return MISSING
    signs = {ast.Add: 1, ast.Sub: -1}
    return left + signs[type(node.op)] * right if type(node.op) in signs else MISSING


def in_the_whole(site: Site, place: Place) -> Iterator[Candidate]:
    """The whole of the data for a part of it, where the indices count in the whole; the numbers
    of a part for those of the whole."""
    for node in place.parts() if _BEYOND.search(site.text) else ():
        if not isinstance(node, (ast.Name, ast.Attribute)) or not spelled(node):
            continue
        part, bound = place.value(node), site.binding(place, node)
        made = bound_value(bound, spelled(node))
        own = replace(place, distance=0.0)
        if isinstance(part, Subset):
            names = [n for n, v in place.names().items() if v is part.dataset and n[0] != "_"]
            for name in names[:1]:
                yield own.replaced(0.35, (node, name))
        made = made.elt if isinstance(made, ast.ListComp) else made  # of one by one
        if isinstance(made, ast.Subscript) and isinstance(part, (Tensor, np.ndarray, list)):
            if bound is not None and not isinstance(made.slice, (ast.Slice, ast.Constant)):
                if spelled(made.value) != spelled(node):
                    yield own.replaced(0.45, (node, bound.text(made.value)))


def within_positions(site: Site) -> Iterator[Candidate]:
    """Of a sequence that each round of a loop makes longer, as much as there are positions for:
    the last of it, as a language model is given."""
    tables = [f.f_locals.get("weight") for f in site.inner if f.f_code.co_name == "embedding"]
    if not tables or not isinstance(tables[-1], Tensor) or not _BEYOND.search(site.text):
        return
    for place in site.raising[1:]:
        around: Any = place.function or place.source.tree
        rows = [row for row in ast.walk(around) if isinstance(row, ast.Assign)]
        longer = {spelled(t) for row in rows if _grows(row) for t in row.targets}
        for node in (a for call in place.calls() for a in call.args if spelled(a) in longer):
            value = place.value(node)
            if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point():
                for name in _counts(place, len(tables[-1]))[:1]:
                    own = replace(place, distance=0.0)
                    yield own.replaced(0.25, (node, f"{place.text(node)}[:, -{name}:]"))


def _grows(row: ast.Assign) -> bool:
    """Whether a statement joins something to what it binds anew."""
    joined = callee(row.value) in having("joins")
    return joined and spelled(row.targets[0]) in names_in(row.value)


def _counts(place: Place, number: int) -> list[str]:
    """What a number is called: an attribute of a module or of its settings, or as it is."""
    owners = [(n, v) for n, v in place.names().items() if isinstance(v, nn.Module)]
    found, tables = [], []
    for name, owner in sorted(owners, key=lambda each: each[0] != "self"):
        for attribute, held in (*vars(owner).items(), *owner.named_children()):
            whole = f"{name}.{attribute}"
            if type(held) is int and held == number:
                found.append(whole)
            elif isinstance(held, nn.Embedding) and held.num_embeddings == number:
                tables.append(f"{whole}.num_embeddings")
            elif not isinstance(held, (nn.Module, dict, type)) and hasattr(held, "__dict__"):
                known = vars(held).items()
                found += [f"{whole}.{n}" for n, v in known if type(v) is int and v == number]
    return [*found, *tables, str(number)]


def counted_down(site: Site) -> Iterator[Candidate]:
    """What counts down from the last index, where it begins at the number of elements."""
    for source in site.program.texts if _BEYOND.search(site.text) else ():
        for node in source.nodes:
            bounds = node.args if isinstance(node, ast.Call) else []
            whole = node.value if isinstance(node, ast.Subscript) else None
            backwards = whole is not None and source.part(node.slice) == "::-1"  # type: ignore
            if callee(node) == "reversed" or backwards:
                heads = [n for n in ast.walk(whole or node) if callee(n) == "range"]
                for head in heads[:1]:
                    yield from _without_last(source, head)
            elif callee(node) == "linspace" and len(bounds) > 2 and number_of(bounds[1]) == 0:
                yield from _from_one_less(source, bounds, [])
            elif callee(node) in ("range", "arange") and len(bounds) == 3:
                if number_of(bounds[2]) == -1 and number_of(bounds[1]) == -1:
                    yield from _from_one_less(source, bounds, [])
                elif number_of(bounds[2]) == -1 and number_of(bounds[1]) == 0:
                    before = _reads_before(source, node)  # the element before the first is none
                    kinds: tuple[list[tuple[ast.AST, str]], ...] = ([], [(bounds[1], "-1")])
                    for more in kinds if before else kinds[::-1]:
                        yield from _from_one_less(source, bounds, more)


def _from_one_less(
    source: Source, bounds: list[ast.expr], more: list[tuple[ast.AST, str]]
) -> Iterator[Candidate]:
    """Bounds with a first that is one less, where it is not so already."""
    first, number = bounds[0], number_of(bounds[0])
    text = _one_less(source, first) if number is MISSING else str(number - 1)
    if not isinstance(first, ast.BinOp) or not isinstance(first.op, ast.Sub):
        yield Candidate(0.4, spliced(source, [(first, text), *more]))


def _without_last(source: Source, head: Any) -> Iterator[Candidate]:
    """As many numbers as there are elements, where there was one more, or they began at one."""
    end, first = head.args[-1], [number_of(each) for each in head.args[:-1]]
    more = isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add)
    if more and number_of(end.right) == 1 and first in ([], [0], [1]):
        text = f"{source.part(head.func)}({source.part(end.left)})"
        yield Candidate(0.4, spliced(source, [(head, text)]))


def _one_less(source: Source, node: ast.expr) -> str:
    """An expression less one, without what was added to it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and number_of(node.right) == 1:
        return source.part(node.left)
    return f"{source.part(node)} - 1"


def _reads_before(source: Source, head: ast.AST) -> bool:
    """Whether a loop reads the element before its own."""
    loops = [n for n in source.nodes if isinstance(n, (ast.For, ast.comprehension))]
    own = next((n for n in loops if any(each is head for each in ast.walk(n.iter))), None)
    text = f"{spelled(own.target)} - 1" if own is not None else ""
    rows = own.body if isinstance(own, ast.For) else []
    read = [n for row in rows for n in ast.walk(row) if isinstance(n, ast.Subscript)]
    return any(source.part(n.slice) == text for n in read)


_NO_INDICES = re.compile("used as indices|integer or boolean|for index|indices.* to have")


def divided_whole(site: Site) -> Iterator[Candidate]:
    """An index that is the quotient of whole numbers as a whole number, where it was divided."""
    if not _NO_INDICES.search(site.text):
        return
    bound = {id(place.statement) for place in site.bound}
    for place in (*site.bound, *(at for at in site.statements() if id(at.statement) not in bound)):
        own, near = replace(place, distance=0.0), id(place.statement) in bound
        for node in place.parts():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                whole = near and all(_is_whole(place, side) for side in (node.left, node.right))
                if whole or _has_rest(place, node):
                    text = f"{place.whole(node.left)} // {place.whole(node.right)}"
                    yield own.replaced(0.25, (node, text))
            elif isinstance(node, ast.Call) and callee(node) in ("div", "divide") and near:
                sides = [*node.args, getattr(node.func, "value", node)][:2]
                if not node.keywords and all(_is_whole(place, side) for side in sides):
                    yield own.added(0.25, node, 'rounding_mode="floor"')


def _has_rest(place: Place, quotient: ast.BinOp) -> bool:
    """Whether the program takes the rest of a division, too."""
    sides = [place.text(quotient.left), place.text(quotient.right)]
    found = (n for n in place.source.nodes if isinstance(n, ast.BinOp))
    rests = (n for n in found if isinstance(n.op, ast.Mod))
    return any([place.text(n.left), place.text(n.right)] == sides for n in rests)


def _is_whole(place: Place, node: ast.expr) -> bool:
    """Whether an expression gives whole numbers, as a tensor or not."""
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        return not isinstance(node.op, ast.Div) and all(_is_whole(place, side) for side in sides)
    value = place.value(node)
    return is_whole(value) if isinstance(value, Tensor) else type(value) is int


def of_narrow_numbers(site: Site) -> Iterator[Candidate]:
    """Indices made int64 where the data is, in the place of each that reads them."""
    if not re.search("indices|index|Long", site.text):
        return
    read = [v for f, _ in site.frames for v in f.f_locals.values() if isinstance(v, Tensor)]
    kinds = {v.dtype for v in read if not v.is_floating_point()} & {*_NARROW}
    given = [a for s in site.program.texts for n in s.nodes for a in _of_samples(n)]
    for source in site.program.texts if kinds else ():
        pairs: list[tuple[ast.AST, str]] = []
        for place in (p for p in site.statements() if p.source is source):
            made, value = place.result(), getattr(place.statement, "value", None)
            if isinstance(made, Tensor) and made.dtype in kinds and value is not None:
                if {*bound_by(place.statement)}.intersection(given):
                    pairs.append((value, f"{place.whole(value)}.long()"))
        yield Candidate(0.2, spliced(source, pairs))


_NARROW = (torch.int8, torch.int16, torch.uint8, torch.int32)


def _of_samples(node: ast.AST) -> list[str]:
    """The names of what a dataset of tensors has."""
    given = node.args if isinstance(node, ast.Call) and callee(node) == "TensorDataset" else ()
    return [spelled(each) for each in given]
