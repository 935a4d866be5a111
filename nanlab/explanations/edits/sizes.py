"""Sizes and dimensions that are written in the program, as what the operands need."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.utils.data import Dataset

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    elements,
    function_around,
    innermost,
    is_whole,
    names_in,
    number_of,
    signature,
    spelled,
    spliced,
    unread,
    with_more,
)
from nanlab.explanations.trial import Source
from nanlab.findings.rule import Edit
from nanlab.operators import having

_BEYOND = re.compile("out of (range|bound)|equal size")


def other_numbers(site: Site) -> Iterator[Candidate]:
    """Sizes that are written in the program, as what the operands need."""
    near = {id(place.statement): place.distance for place in site.places}
    top = site.raising[0].frame
    read = [site.raising[0].value(node) for node in site.raising[0].parts()]
    near_sizes = {n for value in read if isinstance(value, Tensor) for n in value.shape}
    for source in site.program.texts:
        made = {id(n) for call in source.nodes if _is_data(call) for n in ast.walk(call)}
        asked = (
            n for node in source.nodes if isinstance(node, ast.Compare) for n in ast.walk(node)
        )
        tests = {id(node) for node in asked}  # their numbers are no sizes
        rows = [node for node in source.nodes if isinstance(node, ast.Assign)]
        rows = [row for row in rows if isinstance(row.targets[0], ast.Subscript)]
        stored: list[ast.AST] = [row.value for row in rows]
        tests |= _with_bindings(source, stored)  # nor those that data is marked with
        drawn = {id(n) for call in source.nodes if _is_drawn(call) for n in ast.walk(call)}
        named = _with_bindings(source, [n for n in source.nodes if id(n) in drawn]) - drawn
        loads, kept = _of_batches(source), _of_rounds(source, site) | drawn
        slices = (node for node in source.nodes if isinstance(node, ast.Slice))
        bounds = {id(each.upper) for each in slices}
        written: dict[int, list[ast.expr]] = {}
        for node in _literals(source.tree):
            if id(node) not in loads | tests and not _DIMENSION.search(
                site.roles.get(id(node), "")
            ):
                written.setdefault(number_of(node), []).append(node)
        for value, nodes in written.items():
            told = value in site.told or value in site.sizes
            for node in nodes:
                statement = innermost(source, node.lineno)
                distance = near.get(id(statement))
                if statement is None or (distance is None and not (told and value > 1)):
                    continue
                place = Place(source, statement, top, min(distance or 0.0, 0.6))
                more = (0.0 if distance is not None else 0.2) + 0.7 * (id(node) in made)
                more += 1.8 * (id(node) in drawn) + 0.5 * (id(node) in named)
                words = site.roles.get(id(node), "").split("_")
                more -= 0.15 * any(len(word) > 4 and word in site.text for word in words)
                more += 0.6 * bool(_LOCAL & {*words})  # what it leaves fits seldom
                more += 0.6 * (words == ["output", "size"] and value == 1)  # one for each channel
                if id(node) in bounds and value in near_sizes:
                    more += 0.5  # it is a size of what it is computed with
                for cost, size in _instead(value, site):
                    if size < value and id(node) in kept:  # the error would not be met
                        continue
                    if _LOCAL & {*words} and size > 4 * value:  # all of a dimension at once
                        continue
                    shared = 0.8 * (size in site.batch and id(node) not in made)
                    yield place.replaced(cost + more + shared, (node, _as_written(node, size)))
            together: dict[int, list[ast.AST]] = {}
            for node in nodes:
                together.setdefault(id(innermost(source, node.lineno)), []).append(node)
            for at, group in together.items():
                if len(group) > 1 and at in near:
                    for cost, size in _instead(value, site):
                        edits = spliced(source, [(node, _as_written(node, size)) for node in group])
                        more = min(near[at], 0.6) + 1.8 * any(id(node) in drawn for node in group)
                        yield Candidate(cost + more + 0.05, edits)
            if told and 1 < len(nodes) < 5 and value > 1:
                for cost, size in _instead(value, site):
                    edits = spliced(source, [(node, _as_written(node, size)) for node in nodes])
                    more = 0.5 + 0.7 * any(id(node) in made for node in nodes)
                    more += 1.8 * any(id(node) in drawn for node in nodes)
                    yield Candidate(cost + more, edits)


# Words of parameters that say how many neighbours a layer looks at.
_LOCAL = {"kernel", "padding", "stride", "dilation", "scale", "groups"}


def numbered(site: Site) -> Iterator[Candidate]:
    """Indices as the numbers of their values, where a table has a row for each value and some lie
    beyond it."""
    layers = [*site.running, *site.modules] if "index" in site.text else []
    counts = {each.num_embeddings for each in layers if isinstance(each, nn.Embedding)}
    edits: list[Edit] = []
    held = {
        f"self.{n}": v for each in site.frames[-1][0].known.values() for n, v in _attributes(each)
    }
    for place in site.statements() if counts else ():
        name = next(iter(bound_by(place.statement)), "")
        value = held.get(name, place.result())
        numbers = elements(value) if isinstance(value, Tensor) and is_whole(value) else set()
        if len(numbers) in counts and max(numbers) > len(numbers):  # some are lacking
            made = bound_value(place, "")
            text = f"torch.unique({place.text(made)}, return_inverse=True)[1]"
            edits += place.replaced(0.0, (made, text)).edits
    yield Candidate(0.4, tuple(edits))


def counted_from_one(site: Site) -> Iterator[Candidate]:
    """Data that counts from one, where a function of the program looks it up or a loss takes it for
    classes: counted from zero where it is read, if nothing else reads it."""
    classes = re.match(r"Target \d+ is out", site.text) is not None
    looked_up = site.raising[0].function is not None or classes
    if not looked_up or not re.search("out of|outside", site.text):
        return
    refused = {*site.told, *(wanted - 1 for _, wanted in site.looked_up)}
    for place in site.statements():
        names = bound_by(place.statement) if place.function is None else []
        values = {name: place.value(ast.Name(name)) for name in names}
        kept = {n: elements(v) for n, v in values.items() if isinstance(v, Tensor) and is_whole(v)}
        own = {n: numbers for n, numbers in kept.items() if numbers and min(numbers) == 1}
        whole = [max(each) for each in own.values() if each == {*range(1, len(each) + 1)}]
        if any(not refused or most in refused for most in whole):
            made = [bound_value(place, n if len(names) > 1 else "") for n in own]
            inner = [n for node in made if node is not None for n in ast.walk(node)]
            if any(isinstance(place.value(getattr(n, "value", n)), dict) for n in inner):
                continue  # the numbers of words, where 0 is left for padding
            pairs = [(node, f"{place.whole(node)} - 1") for node in made if node is not None]
            yield place.replaced(0.38 + 0.3 * any(_readers(place, n) > 1 for n in own), *pairs)


def _readers(place: Place, name: str) -> int:
    """How many statements read what a name is bound to, not only how much of it there is."""
    rows = [row for row in place.source.tree.body if name in names_in(row)]
    texts = [
        re.sub(rf"\b{name}\.(unique|max|shape|size)\b|len\({name}\)", "", ast.unparse(row))
        for row in rows
    ]
    return sum(re.search(rf"\b{name}\b", t.partition(" = ")[2] or t) is not None for t in texts)


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    """The attributes of a dataset."""
    return vars(value).items() if isinstance(value, Dataset) else ()


def of_one_channel(site: Site) -> Iterator[Candidate]:
    """Equal constants for each channel as one, where there is one channel."""
    refused = re.search("broadcast shape|channels", site.text) and 1 in site.told
    for place in site.statements() if refused else ():
        given = [n for c in place.calls() for n in (*c.args, *(k.value for k in c.keywords))]
        rows = [n for n in given if isinstance(n, (ast.Tuple, ast.List))]
        rows = [n for n in rows if len(n.elts) > 1 and len(n.elts) in site.told]
        firsts = [{place.text(each) for each in n.elts} for n in rows]
        numbers = [type(getattr(n.elts[0], "value", None)) is float for n in rows]
        if rows and all(numbers) and all(len(each) == 1 for each in firsts):
            texts = [f"({each.pop()},)" for each in firsts]
            yield replace(place, distance=0.0).replaced(0.4, *zip(rows, texts, strict=True))


def whole_samples(site: Site) -> Iterator[Candidate]:
    """The features of a sample, where a view of another number of them made more or fewer
    samples than there are."""
    count = re.search(r"input batch_size \((\d+)\) to match target batch_size \((\d+)\)", site.text)
    if count is None:
        count = re.search(
            r"tensor a \((\d+)\) must match .* b \((\d+)\) at .*dimension 0", site.text
        )
    made, there = map(int, count.groups()) if count is not None else (0, 0)
    for source in site.program.texts if made and there else ():
        views = [n for n in source.nodes if callee(n) in ("view", "reshape")]
        given: list[Any] = [getattr(view, "args", []) for view in views]
        open_ = [each for each in given if len(each) == 2 and number_of(each[0]) == -1]
        bound = {spelled(n.targets[0]): n.value for n in source.nodes if isinstance(n, ast.Assign)}
        last = [bound.get(spelled(node), node) if spelled(node) else node for _, node in open_]
        for size in {old for node in last if type(old := number_of(node)) is int}:
            if size * made % there == 0:
                nodes = [n for n in _literals(source.tree) if number_of(n) == size]
                pairs = [(n, _as_written(n, size * made // there)) for n in nodes]
                yield Candidate(0.5, spliced(source, pairs))


def _as_written(node: ast.AST, size: int) -> str:
    """A size as a product like another: channels times a square; else the number."""
    inner = getattr(node, "left", None)
    channels = getattr(getattr(inner, "left", None), "value", 0)
    side = math.isqrt(size // channels) if type(channels) is int and channels else 0
    return f"{channels} * {side} * {side}" if channels * side**2 == size else str(size)


def _of_batches(source: Source) -> set[int]:
    """The nodes that say how many samples are taken at once: their number is no size."""
    nodes: list[ast.AST] = []
    for call in source.nodes:
        if callee(call) == "DataLoader":
            nodes += ast.walk(call)
        elif isinstance(call, ast.Call) and callee(call) in ("split", "range"):
            given = call.args[2 * (callee(call) == "range") :]
            nodes += [node for each in given for node in ast.walk(each)]
    return _with_bindings(source, nodes)


def _of_rounds(source: Source, site: Site) -> set[int]:
    """The nodes that say how often a loop runs, where it does not read beyond an end."""
    loops = [] if _BEYOND.search(site.text) else source.nodes
    heads = [n.iter for n in loops if isinstance(n, ast.For)]
    for each in (n for n in loops if isinstance(n, (ast.ListComp, ast.GeneratorExp))):
        if any(map(_is_drawn, ast.walk(each.elt))):  # how much data there is
            heads += [generator.iter for generator in each.generators]
    ranges = [head for head in heads if callee(head) == "range"]
    return _with_bindings(source, [node for head in ranges for node in ast.walk(head)])


def _with_bindings(source: Source, nodes: list[ast.AST]) -> set[int]:
    """Nodes, and what their names were bound to."""
    names = {spelled(node) for node in nodes} - {""}
    for row in source.nodes:
        value = getattr(row, "value", None) if isinstance(row, ast.Assign) else None
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        nodes += [v for n, v in zip(bound_by(row), parts, strict=False) if n in names and v]
    return {id(node) for node in nodes}


def other_sizes(site: Site, place: Place) -> Iterator[Candidate]:
    """Sizes that a call is given, computed in another way."""
    for call in place.calls():
        if callee(call) == "range" and not _BEYOND.search(site.text):
            continue  # with less of it the error would not be met
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            value = seen = place.value(argument)
            if seen is MISSING:
                value = site.size(place, argument)
            if not isinstance(argument, (ast.Constant, ast.Starred)):
                if value is MISSING or type(value) is int:
                    for cost, new in _reckoned(place, argument, value, site):
                        yield place.replaced(cost, (argument, new))
                    for part, new in (*_other_side(place, argument), *_regrouped(place, argument)):
                        yield place.replaced(0.5, (part, new))
                    if hasattr(nn, callee(call)):
                        for cost, new in _other_parameters(site, place, argument):
                            yield place.replaced(cost, (argument, new))
                    bound = site.binding(place, argument)
                    made = bound_value(bound, spelled(argument))
                    if bound is None or not isinstance(made, ast.Call) or callee(made) != "len":
                        continue
                    for cost, new in _reckoned(place, made, value, site):
                        yield bound.replaced(cost - 0.32, (made, new))
                        more = new.removeprefix(bound.text(made))
                        both = getattr(bound_value(bound, ""), "elts", [])
                        alike = [(e, bound.text(e) + more) for e in both if callee(e) == "len"]
                        if len(alike) > 1:
                            yield bound.replaced(cost - 0.3, *alike)


# Sizes of a layer that are taken for each other.
_SIDES = {"in_": "out_", "out_": "in_", "input_size": "hidden_size", "hidden_size": "input_size"}


def _other_side(place: Place, node: ast.expr) -> Iterator[tuple[ast.AST, str]]:
    """The size of what a layer is given, for the size of what it gives, and the other way."""
    for part in (n for n in ast.walk(node) if isinstance(n, ast.Attribute)):
        for old, new in _SIDES.items():
            if part.attr.startswith(old):
                yield part, f"{place.text(part.value)}.{new}{part.attr.removeprefix(old)}"


def _regrouped(place: Place, node: ast.expr) -> Iterator[tuple[ast.AST, str]]:
    """A sum of a product, as a product of a sum: ``a * (b + c)`` for ``a * b + c``."""
    for part in ast.walk(node):
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, (ast.Add, ast.Sub)):
            continue
        sign = "+" if isinstance(part.op, ast.Add) else "-"
        for inner, other in ((part.left, part.right), (part.right, part.left)):
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Mult, ast.FloorDiv)):
                a, b, rest = map(place.text, (inner.left, inner.right, other))
                times = "*" if isinstance(inner.op, ast.Mult) else "//"
                if inner is part.right:
                    yield part, f"({rest} {sign} {a}) {times} {b}"
                elif times == "*":
                    yield part, f"{a} * ({b} {sign} {rest})"


def _other_parameters(site: Site, place: Place, node: ast.expr) -> Iterator[tuple[float, str]]:
    """Another parameter of the function that builds a layer, for one of the layer's sizes: rather
    one that the function reads less often; or another name of the loop that builds several."""
    function, own = place.function, spelled(node)
    loops = [n for n in place.source.nodes if isinstance(n, ast.For)]
    loops = [n for n in loops if n.lineno < place.statement.lineno <= (n.end_lineno or 0)]
    for name in (spelled(n) for loop in loops for n in ast.walk(loop.target)):
        if name not in ("", "_", own) and own:
            yield 0.5, name
    reads = [spelled(n) for n in ast.walk(function or node)]
    unseen = own and place.value(node) is MISSING
    taken = [v for f in site.inner if isinstance(v := f.f_locals.get("input"), Tensor)]
    turned = any(site.size(place, node) in value.shape for value in taken)
    first = turned and _has_channels_first(site)
    for each in function.args.args[1:] if unseen and function is not None else ():
        told = (site.size(place, node), site.size(place, ast.Name(each.arg))) in site.refused
        if told and first:
            yield 0.05, each.arg
        elif 0 < reads.count(each.arg) < reads.count(own) and not (told and turned):
            yield 0.45, each.arg
        elif each.arg != own and reads.count(each.arg) and site.refused:
            yield 0.9, each.arg


def _has_channels_first(site: Site) -> bool:
    """Whether the line that raised was given what a layer made that has its channels first."""
    place = site.raising[0]
    bound = (site.binding(place, node) for node in place.parts())
    calls = (call for each in bound if each is not None for call in each.calls())
    return any(isinstance(place.value(call.func), (_ConvNd, _NormBase)) for call in calls)


def with_columns_of_a_switch(site: Site) -> Iterator[Candidate]:
    """A size of a layer with the columns that its class adds where a switch is on, which the
    constructor keeps and counts nowhere: ``dim + int(bias)``."""
    more = sorted({a - b for a in site.told for b in site.told if 0 < a - b <= _COLUMNS})
    kinds = [(s, n) for s in site.program.texts for n in s.nodes if isinstance(n, ast.ClassDef)]
    for source, kind in kinds if more else ():
        made = next((n for n in kind.body if getattr(n, "name", "") == "__init__"), None)
        switches = [n for n in ast.walk(kind) if isinstance(n, (ast.If, ast.IfExp))]
        adding = [n for n in switches if any(callee(c) in _JOINING for c in ast.walk(n))]
        kept = {spelled(n.test).removeprefix("self.") for n in adding} - {""}
        parameters = made.args.args if isinstance(made, ast.FunctionDef) else []
        reads = [n.id for n in ast.walk(made) if isinstance(n, ast.Name)] if made else []
        for name in (p.arg for p in parameters if p.arg in kept and reads.count(p.arg) == 1):
            own = ast.walk(made) if made is not None else ()
            for call in (n for n in own if isinstance(n, ast.Call)):
                row = innermost(source, call.lineno)
                for node in call.args if row is not None else ():
                    if isinstance(node, ast.Name) and node.id in {p.arg for p in parameters}:
                        place = site.place(source, row, 0.0)  # type: ignore[arg-type]
                        for n in more:
                            factor = f"int({name})" if n == 1 else f"{n} * int({name})"
                            yield place.replaced(0.4, (node, f"{place.text(node)} + {factor}"))


_COLUMNS = 3  # that a switch may add
_JOINING = ("cat", "pad")


def exchanged_sizes(site: Site) -> Iterator[Candidate]:
    """Two sizes of a view that changed places."""
    for place in site.statements() if re.search("size|shape", site.text) else ():
        for call in (c for c in place.calls() if callee(c) in having("reshapes")):
            for a, b in itertools.pairwise(call.args):
                numbers = {number_of(n) for n in (a, b)} - {MISSING}
                if numbers <= {*site.told} and place.text(a) != place.text(b):
                    yield place.replaced(0.5, (a, place.text(b)), (b, place.text(a)))


def rows_exchanged(site: Site) -> Iterator[Candidate]:
    """The two rows of the indices of a sparse tensor that changed places."""
    told = re.search("row bound|inconsistent with indices", site.text)
    for place in site.statements() if told is not None else ():
        for call in (c for c in place.calls() if callee(c) == "sparse_coo_tensor"):
            named = [k.value for k in call.keywords if k.arg == "indices"]
            rows, table = (named or call.args or [call])[0], place.result()
            if isinstance(table, Tensor) and table.is_sparse and table._nnz():
                beyond = table._indices().amax(1).tolist()
                if all(most < size for most, size in zip(beyond, table.shape, strict=False)):
                    continue
            bound = site.binding(place, rows)
            own, made = (bound, bound_value(bound, spelled(rows))) if bound else (place, rows)
            lists = (n for n in ast.walk(made) if isinstance(n, (ast.List, ast.Tuple)))
            pairs = [(made, f"{own.whole(made)}.flip(0)")]
            for a, b in (n.elts for n in lists if len(n.elts) == 2):
                pairs = [(a, own.text(b)), (b, own.text(a))]
                break
            yield replace(own, distance=0.0).replaced(0.3, *pairs)


# Two words for the dimensions of a shape that come in the other order: of a weight, of pictures.
_SECOND_FIRST = (("in", "out"), ("w", "h"), ("width", "height"), ("cols", "rows"))


def in_their_order(site: Site) -> Iterator[Candidate]:
    """Names that a shape is taken apart into, in the order that its dimensions have."""
    for place in site.statements() if re.search("size|shape", site.text) else ():
        target, value = getattr(place.statement, "targets", [None])[0], bound_value(place, "")
        shaped = getattr(value, "attr", "") == "shape" or callee(value) == "size"
        parts = target.elts if isinstance(target, ast.Tuple) and shaped else []
        for a, b in itertools.pairwise(parts):
            first, second = ({*place.text(n).lower().split("_")} for n in (a, b))
            if any(x in first and y in second for x, y in _SECOND_FIRST):
                own = replace(place, distance=0.0)
                yield own.replaced(0.35, (a, place.text(b)), (b, place.text(a)))


def with_its_dimension(site: Site) -> Iterator[Candidate]:
    """A reduction that keeps its dimension, where it meets what has all the others too; one of a
    dimension, where a number for each row is wanted; parts of the features, not of the batch."""
    shapes = [
        v.shape
        for node in site.raising[0].parts()
        if isinstance(v := site.raising[0].value(node), Tensor)
    ]
    lost = {
        (d, len(whole))
        for whole, part in itertools.permutations(shapes, 2)
        for d in range(len(whole))
        if part and whole[:d] + whole[d + 1 :] == part
    }
    for place in site.statements() if lost and "must match the size" in site.text else ():
        for call in (c for c in place.calls() if callee(c) in _REDUCING):
            named = {keyword.arg for keyword in call.keywords}
            dims = map(number_of, (*call.args, *(k.value for k in call.keywords)))
            same = any((d % rank, rank) in lost for d in dims if type(d) is int for _, rank in lost)
            if same and "keepdim" not in named and place.statement is not site.raising[0].statement:
                yield replace(place, distance=0.0).added(0.38, call, "keepdim=True")
    for place in site.statements() if re.search(r"1-?D .*\bgot 0-?D", site.text) else ():
        for call in (c for c in place.calls() if callee(c) in _REDUCING):
            of_torch = place.text(call.func).startswith("torch.")
            if len(call.args) == of_torch and not call.keywords:
                for dim, cost in ((-1, 0.36), (0, 0.38)):
                    yield replace(place, distance=0.0).added(cost, call, f"dim={dim}")
    pairs = site.confronted | site.refused
    for place in site.statements() if pairs else ():
        for call in (c for c in place.calls() if callee(c) in ("chunk", "tensor_split")):
            of_torch = place.text(call.func).startswith("torch.")
            count = number_of(call.args[-1]) if call.args else None
            if len(call.args) == 1 + of_torch and not call.keywords and type(count) is int:
                whole = any(a == b * count or b == a * count for a, b in pairs)
                yield replace(place, distance=0.0).added(0.3 if whole else 0.6, call, "dim=-1")


def whole(site: Site, place: Place) -> Iterator[Candidate]:
    """Sizes and bounds divided to whole numbers."""
    if not re.search("integer|of ints|float", site.text):
        return
    nodes = [n for n in place.parts() if isinstance(n, ast.BinOp)]
    for name in names_in(place.statement):  # what a list was given
        rows = [row for row in place.source.nodes if isinstance(row, ast.Expr)]
        added = (row.value for row in rows if callee(row.value) in ("append", "extend"))
        own = [call for call in added if place.text(call).startswith(f"{name}.")]
        nodes += [n for call in own for n in ast.walk(call) if isinstance(n, ast.BinOp)]
    pairs = [
        (n, ast.unparse(ast.BinOp(n.left, ast.FloorDiv(), n.right)))
        for n in nodes
        if isinstance(n.op, ast.Div)
    ]
    pairs += [(n, f"int({place.text(n)})") for n in nodes if _is_share(place, n)]
    if pairs:
        yield place.replaced(0.4, *pairs)


def _is_share(place: Place, node: ast.BinOp) -> bool:
    """Whether an expression is a number times a fraction of it."""
    sides = map(place.value, (node.left, node.right))
    return isinstance(node.op, ast.Mult) and any(type(side) is float for side in sides)


def of_groups(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """As many channels as there are groups of them, where they cannot be divided into these."""
    groups = [k.value for k in call.keywords if k.arg == "groups"]
    for given in call.args[:2] if groups and "divisible by groups" in site.text else ():
        if place.text(given) != place.text(groups[0]):
            yield place.replaced(0.4, (given, place.text(groups[0])))


def left_open(site: Site, place: Place) -> Iterator[Candidate]:
    """A size of a shape left to what the tensor has."""
    for call in place.calls() if "invalid for input of size" in site.text else ():
        sizes = call.args if callee(call) in ("view", "reshape") else []
        texts = list(map(place.text, sizes))
        twice = [n for n, t in zip(sizes, texts, strict=True) if texts.count(t) > 1]
        whole = getattr(place.frame.f_locals.get("self"), "__dict__", {})
        values = list(map(place.value, sizes))
        for node in twice if all(type(v) is int for v in values) else ():
            lacking = site.told[-1] * place.value(node) / (math.prod(values) or 1)
            for name in (n for n, v in whole.items() if type(v) is int and v == lacking):
                yield place.replaced(-0.05, (node, f"self.{name}"))
        owner = call.func.value if sizes else call  # type: ignore[attr-defined]
        of = place.value(owner) if spelled(owner) else MISSING
        if isinstance(of, Tensor) and of.dim() > 1 and texts[1:] == ["-1"]:  # rows stay rows
            if type(number_of(sizes[0])) is int:
                yield place.replaced(0.6, (sizes[0], f"{place.text(owner)}.size(0)"))
        if sizes and not re.search(r"-1\b", place.text(call)):
            for at, size in enumerate(reversed(sizes)):
                yield place.replaced(0.6 + 0.02 * at, (size, "-1"))
            yield place.added(0.7, call, "-1")


def with_ones_behind(site: Site) -> Iterator[Candidate]:
    """A shape of a size and ones with as many ones as what it meets has dimensions behind it: all
    of the program, or one."""
    shapes = re.findall(r"\[(\d+(?:, \d+)+)\]", site.text) if "size" in site.text else []
    ranks = {len(each.split(", ")) for each in shapes}
    values = map(site.raising[0].value, site.raising[0].parts())
    ranks |= {v.dim() for v in values if isinstance(v, Tensor) and "size" in site.text}
    for source, rank in itertools.product(site.program.texts, sorted(ranks)):
        pairs = [pair for node in source.nodes for pair in _with_ones(source, node, rank)]
        for at, some in enumerate([pairs, *([pair] for pair in pairs)]):
            yield Candidate(0.45 + 0.02 * at, spliced(source, some))


def _with_ones(source: Source, node: Any, rank: int) -> Iterator[tuple[ast.AST, str]]:
    """``view(n, 1)`` or ``[:, None]`` with ones up to a number of dimensions."""
    indexed = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    reshaped = isinstance(node, ast.Call) and callee(node) in ("view", "reshape")
    parts = getattr(node.slice, "elts", []) if indexed else node.args if reshaped else []
    written = [source.part(each) for each in parts]
    one = "None" if indexed else "1"
    if 1 < len(parts) < rank and {*written[1:]} == {one} and written[0] != one:
        if not indexed or written[0] == ":":
            yield parts[-1], ", ".join([one] * (1 + rank - len(parts)))
    if isinstance(node, ast.BinOp) and re.fullmatch(r"[\[(]1,?[\])]", source.part(node.left)):
        less = node.right.right if isinstance(node.right, ast.BinOp) else node
        if source.part(node.right).count("-") == 1 and number_of(less) in _LEADING:  # x.dim() - 2
            yield less, str(3 - number_of(less))


_LEADING = (1, 2)  # dimensions before the ones


def rest_of_parts(site: Site, place: Place) -> Iterator[Candidate]:
    """The last of the sizes of all parts as what the others leave of the whole."""
    for whole, parts in ((call.args[0], each) for call in place.calls() for each in call.args[1:]):
        sizes = place.value(parts)
        with suppress(Exception):
            if isinstance(parts, ast.List) and all(type(size) is float for size in sizes):
                if sum(sizes) > 1 > sum(sizes[:-1]):
                    yield place.replaced(0.4, (parts.elts[-1], f"{1 - sum(sizes[:-1]):g}"))
            elif isinstance(parts, ast.List) and sum(sizes) != len(place.value(whole)):
                *others, last = parts.elts
                left = " - ".join((f"len({place.text(whole)})", *map(place.text, others)))
                yield place.replaced(0.4, (last, left))
                if (bound := site.binding(place, last)) is not None:
                    value = bound.statement.value  # type: ignore[attr-defined]
                    yield bound.replaced(0.0, (value, left))


def _reckoned(place: Place, node: ast.expr, value: Any, site: Site) -> Iterator[tuple[float, str]]:
    """A size that is computed, computed in another way."""
    text, loose = place.text(node), place.whole(node)
    told = list(dict.fromkeys(n for n in site.told if n > 1))[:6]
    asked = {(a, b) for a, b in site.refused if b > a or a == 2 * b}
    asked = site.confronted | (asked if number_of(node) is MISSING else set())
    for a in told if value is MISSING else [value] * (value > 0):
        for at, b in enumerate(told if value is MISSING else site.sizes[:12]):
            cost = 1.0 + 0.3 * (value is MISSING) + 0.02 * at + 1.3 * (b == 1)
            cost -= 0.5 * ((a, b) in asked)
            if b > a and b % a == 0:
                yield cost, f"{loose} * {b // a}"
            elif b < a and a % b == 0:
                yield cost, f"{loose} // {a // b}"
            elif b != a:
                chance = 0.4 * (abs(b - a) > 2)  # any two sizes have a difference
                chance += 0.02 * min(abs(b - a), 10)
                yield cost + 0.1 + chance, f"{text} {'+' if b > a else '-'} {abs(b - a)}"
    yield 1.3, f"{text} + 1"
    others = place.names().items() if callee(node) == "len" else ()
    for name, other in others:
        if isinstance(other, dict) and len(other) in site.sizes[:12]:  # numbers of words
            if name[0] != "_" and (value is MISSING or len(other) > value):
                yield 0.6, f"len({name})"
    for name in unread(function_around(place.source, node)):
        yield 0.75, f"{text} + {name}"
        yield 0.8, f"{loose} * {name}"
        yield 0.85, name
    raised = site.raising[0]
    for loop in raised.source.nodes if value is MISSING or value in site.told else ():
        if isinstance(loop, ast.For) and hasattr(through := raised.value(loop.iter), "__len__"):
            if loop.lineno < raised.statement.lineno <= (loop.end_lineno or 0):
                alike = (name for name, v in place.names().items() if v is through)
                for name in dict.fromkeys((ast.unparse(loop.iter), *alike)):
                    yield 0.7, f"{loose} * len({name})"


def as_another_argument(site: Site, place: Place) -> Iterator[Candidate]:
    """The size that an argument is made with, as another argument of the call, where the message
    says that it should be that."""
    said = filter(None, (re.search(each, site.text) for each in _OF_ONE_SIZE))
    for told, call in itertools.product(said, place.calls()):
        given: dict[Any, ast.expr] = {site.roles.get(id(n)): n for n in call.args}
        given |= {k.arg: k.value for k in call.keywords}
        size, node = given.get(told["size"]), given.get(told["made"])
        if size is not None and node is not None:
            made = site.binding(place, node) or replace(place, statement=ast.Expr(node))
            calls = [c for c in made.calls() if c.args and _is_number(made, c.args[0])]
            number = re.search(rf"{told['size']}=(\d+)", site.text)
            for each in calls[-1:]:
                near = replace(made, distance=0.0)
                yield near.replaced(0.3, (each.args[0], place.text(size)))
                if number is not None:  # where it has no name there
                    yield near.replaced(0.5, (each.args[0], number[1]))


# Messages that one argument has to have the size that another says.
_OF_ONE_SIZE = (
    r"equal to (?P<size>\w+)=\d+, but got (?P<made>\w+) with size",
    r"(?P<made>\w+) has to be 1D and length of `(?P<size>\w+)`",
)


def _is_number(place: Place, node: ast.expr) -> bool:
    """Whether an expression may be a whole number: it is, or is not known."""
    value = place.value(node)
    return value is MISSING or type(value) is int


def size_of_argument(site: Site, place: Place) -> Iterator[Candidate]:
    """A size that is written in a function, taken from what the function was given; in a loop,
    from what the loop goes through."""
    function, line = place.function, place.statement.lineno
    names = [each.arg for each in function.args.args] if function is not None else []
    loops = [n for n in place.source.nodes if isinstance(n, ast.For)]
    loops = [n for n in loops if n.lineno < line <= (n.end_lineno or 0)]
    rows = [n for loop in loops for n in ast.walk(loop) if isinstance(n, (ast.For, ast.Assign))]
    names += [name for row in rows if row.lineno < line for name in bound_by(row)]
    given = {n: v for n in names if isinstance(v := place.frame.f_locals.get(n), Tensor)}
    nodes: dict[int, list[ast.AST]] = {}
    for node in ast.walk(place.statement if loops else function or place.statement):
        read = isinstance(node, (ast.Constant, ast.Name, ast.Attribute))
        if read and type(v := place.value(node)) is int:
            if v in site.told and v > 1 and not isinstance(getattr(node, "ctx", None), ast.Store):
                nodes.setdefault(v, []).append(node)
    for old, same in nodes.items():
        for name, tensor in given.items():
            for d, size in enumerate(tensor.shape):
                if size != old and size in site.told:
                    own = ((node, f"{name}.size({d})") for node in same)
                    told = (old, size) in site.confronted  # the message says both
                    at = replace(place, distance=0.0) if told else place
                    yield at.replaced(0.6, *own)


def size_of_other(site: Site, place: Place) -> Iterator[Candidate]:
    """The same dimension of another tensor, for a size that was read of one."""
    known = [(n, v) for n, v in place.frame.f_locals.items() if isinstance(v, Tensor)]
    statement = site.raising[0].statement
    for node in place.parts():
        if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape":
            at, owner = number_of(node.slice), node.value.value  # type: ignore[attr-defined]
        elif callee(node) == "size" and len(node.args) == 1:  # type: ignore[attr-defined]
            at, owner = number_of(node.args[0]), node.func.value  # type: ignore[attr-defined]
        else:
            continue
        size, text = place.value(node), place.text(node)
        for name, tensor in known if type(at) is int and size in site.told else ():
            if name != spelled(owner) and -tensor.ndim <= at < tensor.ndim:
                if tensor.shape[at] != size and tensor.shape[at] in site.told:
                    new = text.replace(place.text(owner), name, 1)
                    own = place.value(owner)
                    alike = isinstance(own, Tensor) and is_whole(own)
                    far = 0.3 * (is_whole(tensor) and not alike) - 0.07 * alike
                    far += 0.1 * (name not in names_in(statement))
                    yield replace(place, distance=0.0).replaced(0.45 + far, (node, new))


def shorter_data(site: Site) -> Iterator[Candidate]:
    """The length of a dataset, or of a loop, without the last items, which read beyond the end."""
    if not _BEYOND.search(site.text):
        return
    for place in site.statements():
        statement, length = place.statement, place.function
        value: Any = getattr(statement, "value", None)
        beyond: list[tuple[int, str]] = []
        if isinstance(statement, ast.Return) and getattr(length, "name", "") == "__len__":
            kinds = [n for n in place.source.nodes if isinstance(n, ast.ClassDef)]
            own = [each for kind in kinds if length in kind.body for each in kind.body]
            for each in own:
                if isinstance(each, ast.FunctionDef) and each.name == "__getitem__":
                    beyond += _beyond(each, each.args.args[-1].arg)
                    for text in _steps(each, each.args.args[-1].arg):
                        yield place.replaced(0.45, (value, text))
        elif isinstance(statement, ast.For) and callee(statement.iter) == "range":
            bounds: Any = statement.iter.args  # type: ignore[attr-defined]
            if [number_of(each) for each in bounds[2:]] == [-1]:
                continue  # it ends at the first
            value = bounds[min(1, len(bounds) - 1)]
            beyond += _beyond(statement, spelled(statement.target))
            read = [n.slice for n in ast.walk(statement) if isinstance(n, ast.Subscript)]
            more = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
            if more and spelled(statement.target) in map(spelled, read):
                yield place.replaced(0.5, (value, place.text(value.left)))
        for node in (n for n in place.parts() if isinstance(n, (ast.ListComp, ast.GeneratorExp))):
            head: Any = node.generators[0]
            if callee(head.iter) == "range" and len(head.iter.args) == 1:
                value = head.iter.args[0]
                beyond += _beyond(node.elt, spelled(head.target))
        for at, less in enumerate(dict.fromkeys(text for _, text in sorted(beyond))):
            text = f"{place.text(value)}{_less(value, less)}"
            if text == place.text(value) and isinstance(value, ast.BinOp):  # it has one too many
                text = place.text(value.left) if isinstance(value.op, ast.Add) else text
            yield place.replaced(0.5 + 0.02 * at, (value, text))


def _less(length: ast.expr, more: str) -> str:
    """What is still to be taken from a length for items that read so far beyond: of each term
    what it does not lack already."""
    taken = list(_terms(length))
    text = ""
    for sign, term in _terms(ast.parse(more, mode="eval").body):
        if (-sign, term) in taken:
            taken.remove((-sign, term))
        else:
            text += f" {'-' if sign > 0 else '+'} {term}"
    return text


def _terms(node: ast.expr, sign: int = 1) -> Iterator[tuple[int, str]]:
    """The terms of a sum, each with its sign."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _terms(node.left, sign)
        yield from _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    else:
        yield sign, ast.unparse(node)


def _beyond(block: ast.AST, item: str) -> Iterator[tuple[int, str]]:
    """How far beyond an item the subscripts of a block read: first what one element is read at,
    then where a part ends, which may be one less."""
    for _, part, end in _read(block, item):
        if item and end.startswith(f"{item} + "):
            more = end.removeprefix(f"{item} + ")
            if part and not more.endswith(" + 1"):
                yield 1, f"({more} - 1)"
            yield 2 * (part and not more.endswith(" + 1")), more.removesuffix(" + 1" * part)


def of_all_parts(site: Site) -> Iterator[Candidate]:
    """The layer whose result is taken apart, as wide as all of the parts together."""
    if not re.search("size|shape|unpack", site.text):
        return
    for place in site.statements():
        value: Any = getattr(place.statement, "value", None)
        target = [*getattr(place.statement, "targets", []), None][0]
        count = len(getattr(target, "elts", []))
        if count < 2 or callee(value) not in having("parts"):
            continue
        alone = any(a == count * b for a in site.told for b in site.told)
        alone = alone or ("unpack" in site.text and site.told == [count, 1])
        whole = [value, *(bound_value(site.binding(place, n), "") for n in ast.walk(value))]
        nodes = [n for each in whole if each is not None for n in ast.walk(each)]
        for layer in (n.func for n in nodes if isinstance(n, ast.Call) and spelled(n.func)):
            bound = site.binding(place, layer)
            width = _width(bound) if bound is not None else None
            if bound is not None and width is not None:
                text = f"{count} * {bound.text(width)}"
                yield replace(bound, distance=0.0).replaced(0.3 + 0.3 * (not alone), (width, text))


def _width(place: Place) -> ast.expr | None:
    """How many features the last layer that a statement builds gives."""
    calls = [n for n in place.calls() if hasattr(nn, callee(n))]
    for call in sorted(calls, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        given = _layer(call)
        own = [n for n in ("out_features", "out_channels") if n in given]
        if own:
            return given[own[0]]
    return None


def _steps(block: ast.AST, item: str) -> Iterator[str]:
    """How many parts of a length there are that begin a step apart, as a block reads them."""
    for whole, part, end in _read(block, item):
        told = re.fullmatch(rf"(?:{item} \* ([\w.]+)|([\w.]+) \* {item}) \+ (.+)", end)
        if told is not None:
            length = f"len({ast.unparse(whole)}){_less(whole, told[3])}{' - 1' * (not part)}"
            yield f"({length}) // {told[1] or told[2]} + 1"


def _read(block: ast.AST, item: str) -> Iterator[tuple[ast.expr, bool, str]]:
    """What a block takes elements or parts of, whether it is a part, and up to where."""
    rows = [n for n in ast.walk(block) if isinstance(n, ast.Assign)]
    names = {bound_by(row)[0]: row.value for row in rows if len(bound_by(row)) == 1}
    for node in (n for n in ast.walk(block) if isinstance(n, ast.Subscript)):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        part = isinstance(first, ast.Slice)
        end = first.upper if isinstance(first, ast.Slice) else first
        if end is not None:
            yield node.value, part, _inlined(end, item, names)


def _inlined(node: ast.expr, item: str, names: dict[str, ast.expr]) -> str:
    """The text of a sum, names by what they were bound to, the item first."""
    terms = list(_terms(node))
    for _ in range(min(len(names), 3)):
        parts = [[*_terms(names[t], s)] if t in names else [(s, t)] for s, t in terms]
        terms = [term for part in parts for term in part]
    terms.sort(key=lambda term: item not in re.findall(r"\w+", term[1]))
    text = "".join(f" {'+' if sign > 0 else '-'} {term}" for sign, term in terms)
    return text.removeprefix(" + ")


def of_one_size(site: Site) -> Iterator[Candidate]:
    """Convolutions, or pools without steps, padded so that they keep the size: all, or one."""
    if not re.search("must match (the size|except)|size mismatch|same size", site.text):
        return
    for source in site.program.texts:
        pairs, likely = list[tuple[ast.AST, str]](), list[tuple[ast.AST, str]]()
        for call in (n for n in source.nodes if isinstance(n, ast.Call)):
            known = _layer(call) if re.fullmatch(r"Conv\dd|(Max|Avg)Pool\dd", callee(call)) else {}
            kernel, given = known.get("kernel_size"), known.get("padding")
            steps = number_of(known.get("stride", ast.Constant("Conv" in callee(call) or 2)))
            size, far = map(number_of, (kernel or call, known.get("dilation", ast.Constant(1))))
            if kernel is None or type(far) is not int or steps != 1:
                continue
            text = f"{far} * ({source.part(kernel)} - 1) // 2" if far > 1 else ""
            text = text or f"{source.part(kernel)} // 2"
            if type(size) is int:
                text = str(far * (size - 1) // 2)
            if size == 1 or (given is not None and source.part(given) == text):
                continue
            node = (
                (given, text) if given is not None else with_more(source, call, f"padding={text}")
            )
            pairs.append(node)
            now = number_of(given) if given is not None else 0
            if type(size) is type(now) is int:
                lacks = abs(far * (size - 1) - 2 * now)
                differ = {abs(a - b) for a, b in itertools.combinations(site.told, 2)} - {0}
                likely += [node] * bool(lacks and differ and any(n % lacks == 0 for n in differ))
        for at, some in enumerate([likely, pairs, *([pair] for pair in likely)]):
            yield Candidate(0.42 + 0.02 * at + 0.4 * (at == 1), spliced(source, some))


def _layer(call: ast.Call) -> dict[str, ast.expr]:
    """What a layer is built with, by the names of its parameters."""
    given = dict(zip(signature(getattr(nn, callee(call), None)), call.args, strict=False))
    return given | {k.arg: k.value for k in call.keywords if k.arg}


def outputs_padded(site: Site) -> Iterator[Candidate]:
    """Layers that multiply a size by their stride, by exactly that: all of the program, or one;
    what is made larger by a factor, as large as what it meets."""
    if not re.search("must match (the size|except)|size mismatch|same size", site.text):
        return
    for source in site.program.texts:
        pairs = []
        for node in (n for n in source.nodes if isinstance(n, ast.Call)):
            steps = [k.value for k in node.keywords if k.arg == "stride"] or node.args[3:4]
            step: Any = number_of(steps[0]) if steps else 1
            own = callee(node).startswith("ConvTranspose") and len(node.args) < 6
            if own and type(step) is int and step > 1 and "output_padding" not in source.part(node):
                pairs.append((node, f"{source.part(node)[:-1]}, output_padding={step - 1})"))
        for at, some in enumerate([pairs, *([pair] for pair in pairs)] if pairs else ()):
            yield Candidate(0.45 + 0.02 * at, spliced(source, some))
    raised = site.raising[0]
    known = {n: v for n, v in raised.frame.f_locals.items() if n in names_in(raised.statement)}
    bindings = (site.binding(raised, node) for node in raised.parts())
    for bound in (replace(each, distance=0.0) for each in bindings if each is not None):
        for call in (c for c in bound.calls() if callee(c) == "interpolate"):
            for factor in (k for k in call.keywords if k.arg == "scale_factor"):
                for name in (n for n, v in known.items() if isinstance(v, Tensor)):
                    if name not in bound_by(bound.statement):
                        yield bound.replaced(0.44, (factor, f"size={name}.shape[2:]"))


def of_shortcuts(site: Site) -> Iterator[Candidate]:
    """A layer beside others that is built where sizes change, built for each of those that it
    changes: ``if stride != 1 or c_in != c_out``."""
    told = "must match the size" in site.text
    for source in site.program.texts if told else ():
        yield from _for_identity(source)
        for node in (n for n in source.nodes if isinstance(n, (ast.If, ast.IfExp))):
            tests = [n for n in ast.walk(node.test) if isinstance(n, ast.Compare)]
            if not tests or not all(isinstance(n.ops[0], (ast.NotEq, ast.Gt)) for n in tests):
                continue
            body = node.body if isinstance(node.body, list) else [node.body]
            nodes = [n for row in body for n in ast.walk(row)]
            layers = [n for n in nodes if callee(n)[:4] == "Conv" or callee(n) == "Linear"]
            for layer in (n for n in layers if isinstance(n, ast.Call) and len(n.args) > 1):
                read, old = names_in(node.test), source.part(node.test)
                a, b = (source.part(n) for n in layer.args[:2])
                steps = [k.value for k in layer.keywords if k.arg == "stride"] or layer.args[3:4]
                step = spelled(steps[0]) if steps else ""
                if not ({a, b} <= read or a == b) and spelled(layer.args[0]):
                    yield Candidate(0.3, spliced(source, [(node.test, f"{old} or {a} != {b}")]))
                if step and step not in read:
                    yield Candidate(0.3, spliced(source, [(node.test, f"{old} or {step} != 1")]))


def _for_identity(source: Source) -> Iterator[Candidate]:
    """A layer of one element's reach where a constructor that is given two sizes builds none."""
    for node in (n for n in source.nodes if callee(n) == "Identity"):
        function = function_around(source, node)
        layers = [n for n in ast.walk(function or node) if isinstance(n, ast.Call)]
        layers = [n for n in layers if callee(n)[:4] == "Conv" or callee(n) == "Linear"]
        for layer in (n for n in layers[:1] if len(n.args) > 1 and spelled(n.args[0])):
            given = [*map(source.part, layer.args[:2])]
            parts = given + ["1"] * (callee(layer) != "Linear")
            parts += [source.part(k) for k in layer.keywords if k.arg == "stride"]
            made = f"{source.part(layer.func)}({', '.join(parts)})"
            new = f"{source.part(node)} if {given[0]} == {given[1]} else {made}"
            if given[0] != given[1]:
                yield Candidate(0.38, spliced(source, [(node, new)]))


# What leaves a dimension out: another one seldom fits by chance.
_REDUCING = having("reduces")
_DIMENSION = re.compile(r"(^|_)(dim|axis)\d?$")


def other_dimensions(site: Site, place: Place) -> Iterator[Candidate]:
    """Another dimension: of ``x.size(1)``, ``x.shape[1]``, ``dim=1``."""
    shapes = (n for n in place.parts() if isinstance(n, ast.Subscript))
    sizes = {id(n.slice) for n in shapes if getattr(n.value, "attr", "") == "shape"}
    same: dict[Any, list[ast.AST]] = {}
    for number in place.parts():
        is_dimension = id(number) in sizes or _DIMENSION.search(site.roles.get(id(number), ""))
        old: Any = number_of(number) if is_dimension else MISSING
        if type(old) in (int, tuple):
            same.setdefault(old, []).append(number)
    reducing = {id(n) for c in place.calls() if callee(c) in _REDUCING for n in ast.walk(c)}
    asked = re.search("must match the size", site.text)  # positions count along a dimension
    ranges = [c for c in place.calls() if callee(c) == "arange"] if asked else []
    counting = {id(n) for c in ranges for n in ast.walk(c)}
    for old, numbers in same.items():
        together = [numbers] if len(numbers) > 1 else []
        for group in (*([each] for each in numbers), *together):
            cost = 0.5 if all(id(each) in reducing for each in group) else 0.95
            cost += 0.3 * (id(group[0]) in site.returned) + 0.02 * (len(group) > 1)
            cost -= 0.4 * all(id(each) in counting for each in group)
            cost += 0.8 * (re.search("dtypes? match|same dtype", site.text) is not None)
            alike = _alike(site, place, group[0]) if len(group) == 1 else []
            for far, other in _instead_of(old):
                yield place.replaced(cost + far, *((each, other) for each in group))
                if alike:
                    pairs = [(each, other) for each in (*group, *alike)]
                    yield Candidate(cost + far + 0.01, spliced(place.source, pairs))


def _alike(site: Site, place: Place, number: ast.AST) -> list[ast.AST]:
    """The same number in the same role of calls of the same function, in the other statements of
    the function around: keys and values are joined alike."""
    own = next((callee(c) for c in place.calls() if any(n is number for n in ast.walk(c))), "")
    if place is not site.raising[0] or place.function is None or not own:
        return []
    role, old = site.roles.get(id(number), ""), number_of(number)
    own_nodes = {id(n) for n in ast.walk(place.statement)}
    return [
        node
        for call in ast.walk(place.function)
        if isinstance(call, ast.Call) and callee(call) == own and id(call) not in own_nodes
        for node in (*call.args, *(keyword.value for keyword in call.keywords))
        if number_of(node) == old and site.roles.get(id(node), "") == role
    ]


def over_the_rest(site: Site) -> Iterator[Candidate]:
    """What there is one of for each channel, as a scale, reduced over all dimensions but that of
    the channels, where it was reduced over that."""
    place = site.raising[0]
    for call in place.calls() if "scale" in site.text else ():
        operands = (*call.args, *(keyword.value for keyword in call.keywords))
        given = {site.roles.get(id(each)): place.value(each) for each in operands}
        axis, whole = given.get("axis"), given.get("input")
        if type(axis) is not int or not isinstance(whole, Tensor):
            continue
        far = 0.5 * (axis != 0 and isinstance(whole, nn.Parameter))  # weights have theirs first
        for other in site.statements():
            for one in (c for c in other.calls() if callee(c) in _REDUCING):
                rank = 2 if "flatten(1" in other.text(one) else whole.ndim
                rest = [d for d in range(rank) if d != axis % rank]
                text = str(rest[0]) if len(rest) == 1 else f"({', '.join(map(str, rest))})"
                for node in (*one.args, *(keyword.value for keyword in one.keywords)):
                    number = number_of(node)
                    dims = number if isinstance(number, tuple) else (number,)
                    named = _DIMENSION.search(site.roles.get(id(node), ""))
                    if named and axis % rank in {d % rank for d in dims if type(d) is int}:
                        yield replace(other, distance=0.0).replaced(0.5 + far, (node, text))


def other_axes(site: Site, place: Place) -> Iterator[Candidate]:
    """An index into another dimension: ``x[mask]`` for ``x[:, mask]``."""
    for node in (
        place.parts() if re.search("mask|out of bounds|too many ind|must match", site.text) else ()
    ):
        parts: Any = getattr(node, "slice", None)
        if not isinstance(node, ast.Subscript) or isinstance(parts, ast.Slice):
            continue
        texts = list(map(place.text, parts.elts if isinstance(parts, ast.Tuple) else [parts]))
        rank = getattr(place.value(node.value), "ndim", len(texts))
        given = [text for text in texts if text not in (":", "...")]
        told = (
            "too many ind" in site.text and len(given) == 1
        )  # it meant the same dimension, or the last
        own = min(texts.index(given[0]), rank - 1) if told else 0
        for at in range(rank) if len(given) == 1 else ():
            new = ", ".join((*at * [":"], *given))
            if (told or given != texts[at : at + 1]) and new != place.text(parts):
                yield place.replaced(0.5 + 0.02 * abs(at - own), (parts, new))


def no_more_than_there_are(site: Site, place: Place) -> Iterator[Candidate]:
    """As many of the largest elements as there are, where more were asked for: said where the
    number was bound, else in the call."""
    calls = place.calls() if "k out of range" in site.text else ()
    for call in (c for c in calls if callee(c) == "topk"):
        of: Any = getattr(call.func, "value", call)
        whole = isinstance(place.value(of), Tensor)
        named = [k.value for n in ("input", "k", "dim") for k in call.keywords if k.arg == n]
        operands: list[Any] = [*([of] if whole else []), *call.args, *named]
        given, count, *rest = operands
        x = place.text(given)
        axis = place.text(rest[0]) if rest else "-1"
        yield place.replaced(0.35, (count, f"min({place.text(count)}, {x}.size({axis}))"))
        for row in (r for r in place.block if r.lineno < place.statement.lineno):
            if isinstance(row, ast.Assign) and bound_by(row) == [spelled(count)]:
                text = f"min({place.text(row.value)}, {x}.size({axis}))"
                yield Candidate(0.3, spliced(place.source, [(row.value, text)]))


def of_the_order(site: Site) -> Iterator[Candidate]:
    """A quantile of more elements than the function takes, by the element at its place."""
    for place in site.raising[:1] if "quantile() input tensor is too large" in site.text else ():
        for call in (c for c in place.calls() if callee(c) in ("quantile", "nanquantile")):
            owner = getattr(call.func, "value", None)
            plain = owner is not None and not isinstance(place.value(owner), ModuleType)
            named = {k.arg: k.value for k in call.keywords}
            given = [*([owner] if plain else []), *call.args]
            of = named.get("input") or (given[0] if given else None)
            share = named.get("q") or (given[1] if len(given) > 1 else None)
            whole = len(given) < 3 and not {*named} - {"input", "q", "interpolation"}
            if of is None or share is None or not whole:
                continue
            if not isinstance(place.value(share), float):
                continue
            text, q = place.whole(of), place.whole(share)
            number = f"max(1, round({q} * {text}.numel()))"
            new = f"{text}.flatten().kthvalue({number}).values"
            yield replace(place, distance=0.0).replaced(0.1, (call, new))


def all_dimensions(site: Site, place: Place) -> Iterator[Candidate]:
    """The dimensions that an order, or a number of repeats, leaves out."""
    for call in place.calls() if re.search("[Nn]umber of dimensions", site.text) else ():
        given = place.value(getattr(call.func, "value", call))
        numbers = [number_of(each) for each in call.args]
        rank = given.ndim if isinstance(given, Tensor) else 0
        if not 0 < len(numbers) < rank or any(type(n) is not int for n in numbers):
            continue
        if callee(call) == "permute":
            rest = [n for n in range(rank) if n not in {d % rank for d in numbers}]
            yield place.added(0.4, call, ", ".join(map(str, rest)))
        elif callee(call) == "repeat":
            yield place.added(0.4, call, ", ".join("1" * (rank - len(numbers))))


def expanded_where_one(site: Site) -> Iterator[Candidate]:
    """A size that is expanded to, at the dimension of one element that it left as it was."""
    for place in site.bindings if re.search("(?i)sizes? .*must match", site.text) else ():
        made, call = place.result(), bound_value(place, "")
        if callee(call) == "expand" and isinstance(made, Tensor) and len(call.args) == made.dim():
            texts = [*map(place.text, call.args)]
            for one in (at for at, size in enumerate(made.shape) if size == 1):
                for at in (n for n, text in enumerate(texts) if text != "-1" and n != one):
                    pairs = (call.args[one], texts[at]), (call.args[at], texts[one])
                    yield replace(place, distance=0.0).replaced(0.25, *pairs)


def kept_dimensions(site: Site, place: Place) -> Iterator[Candidate]:
    """One element of a dimension as a part of it, which keeps the dimension: ``x[-1:]``."""
    nodes = place.parts() if re.search(r"unbatched|\d-?D\b", site.text) else []
    for node in (n for n in nodes if isinstance(n, ast.Subscript)):
        value, whole = place.value(node.value), node.slice
        known = isinstance(value, Tensor)
        for part in whole.elts if isinstance(whole, ast.Tuple) else [whole]:
            at = number_of(part) if known or value is MISSING else None
            if type(at) is int:
                new = f"{at}:" if at == -1 else f"{at}:{at + 1}"
                yield place.replaced(0.6 - 0.1 * known, (part, new))


def _instead_of(dimension: Any) -> Iterator[tuple[float, str]]:
    if isinstance(dimension, tuple):
        for step in (1, -1):
            yield -0.15, f"({', '.join(str(n + step) for n in dimension)})"
    for other in (0, 1, -1, 2) if type(dimension) is int else ():
        if other != dimension:
            yield 0.02 * (abs(other - dimension) if other >= 0 else 1.5), str(other)


def _is_data(node: ast.AST) -> bool:
    """Whether an expression makes data: its sizes are what they are."""
    name = callee(node)
    return name == "tensor" or name in having("makes")


def _is_drawn(node: ast.AST) -> bool:
    """Whether an expression stands for what a program would read."""
    name = callee(node)
    return name == "tensor" or ("rand" in name and name in having("makes"))


def _instead(value: int, site: Site) -> Iterator[tuple[float, int]]:
    """Sizes in the place of one: (cost, size); what the message says of both is the likeliest."""
    common = [math.gcd(value, n) for n in site.sizes]
    lacking = [n - value for n in site.sizes]
    fitting = [max(d for d in range(1, value + 1) if n % d == 0) for n in site.sizes]
    parts = fitting if "divi" in site.text else []
    for at, size in enumerate(dict.fromkeys([*parts, *site.sizes, *common, *lacking])):
        if 0 < size <= 64 * value and size != value and at < 20:
            cost = 0.8 if value in site.told else 1.3
            cost += 0.0 if size in site.told else 0.5
            cost = min(cost, 0.6) if size in parts else cost
            asked = (value, size) in site.confronted
            cost = 0.5 if asked else cost + {1: 1.3, 2: 0.6}.get(size, 0.0)
            yield cost + 0.02 * at, size
            if (value, size) in site.looked_up:  # more may come
                yield 0.6, 2 * value


def _literals(tree: ast.AST) -> Iterator[ast.expr]:
    """Whole numbers and products of them, as they are written."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Constant, ast.BinOp)):
            with suppress(Exception):
                if type(number_of(node)) is int and number_of(node) > 0:
                    yield node
                    continue
        yield from _literals(node)
