"""Tensors and arrays as the program has others: as elsewhere, as what they meet, in torch."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from nanlab.explanations.edits.forms import written_into
from nanlab.explanations.site import (
    ASKED,
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_value,
    callee,
    elements,
    function_around,
    innermost,
    is_whole,
    names_in,
    number_of,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source
from nanlab.operators import having

# Calls after which a tensor is no other form of what it was.
_NO_FORMS = (*ASKED, "detach", "clamp")


def among(site: Site) -> Iterator[Candidate]:
    """Whether a tensor is one of a list: a parameter by what it is, what was computed by its
    values."""
    for place in site.raising:
        pairs: list[tuple[ast.AST, str]] = []
        for node in (n for n in place.parts() if isinstance(n, ast.Compare)):
            listed, own = node.comparators[0], place.value(node.left)
            value, text = place.value(listed), place.text(listed)
            tests = isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(value, (list, tuple))
            if tests and all(isinstance(each, Tensor) for each in value):
                same = f"torch.equal({place.text(node.left)}, each) for each in {text}"
                no = "not " * isinstance(node.ops[0], ast.NotIn)
                computed = type(own) is Tensor and not own.requires_grad
                pairs.append((node, f"{no}any({same})") if computed else (listed, f"set({text})"))
        if pairs:
            yield place.replaced(0.25, *pairs)


def as_elsewhere(site: Site, place: Place) -> Iterator[Candidate]:
    """An expression in the form that the program gives it elsewhere: ``x.sum(1)`` for ``x``."""
    kinds = (Tensor, np.ndarray, list, tuple, dict, str)
    own = {
        ast.dump(e): e
        for e, role in place.operands
        if role != "receiver" or (v := place.value(e)) is MISSING or isinstance(v, kinds)
    }
    own = own if "the support" not in site.text else {}  # it would be another sample
    inside = {id(node) for node in ast.walk(place.statement)}
    for source in site.program.texts:
        alone = {id(row.value) for row in source.nodes if isinstance(row, ast.Expr)}
        for node in source.nodes:
            given = getattr(getattr(node, "func", None), "value", None)
            same = own.get(ast.dump(given)) if given is not None else None
            if same is None or id(node) in inside | alone or callee(node) in _NO_FORMS:
                continue
            if isinstance(place.value(same), ModuleType) or spelled(same) == "self":
                continue
            named = isinstance(same, ast.Name)
            if not named or function_around(source, node) is place.function:
                text = source.part(node)
                yield place.replaced(0.45 + 0.3 * named, (same, text))


def of_the_other(site: Site, place: Place) -> Iterator[Candidate]:
    """An argument of a function in the place of a tensor that it has, where the two differ by the
    sizes that do not fit alone: ``self.value(memory)`` for ``self.value(x)``. It is unusual that
    nothing reads the other."""
    function, told = place.function, {*site.told}
    own = function.args.args if function is not None and len(told) > 1 else []
    given = {a.arg: v for a in own if isinstance(v := place.value(ast.Name(a.arg)), Tensor)}
    nodes = [n for n in ast.walk(function or place.source.tree) if isinstance(n, ast.Name)]
    read = [n.id for n in nodes if isinstance(n.ctx, ast.Load)]
    names = [n for n in place.parts() if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    here = [n.id for n in names]
    for node in names if given else ():
        value, name, bound = place.value(node), node.id, site.binding(place, node)
        if site.in_last_round(place, node) is not None:  # it would not be carried on
            continue
        parts = names_in(bound.statement) if bound is not None else set()
        parts |= {*here} if here.count(name) < 2 else set()  # it would meet itself
        for other, tensor in given.items() if isinstance(value, Tensor) else ():
            if other not in parts and tensor.dim() == value.dim() and tensor.dtype == value.dtype:
                sizes = set(zip(value.shape, tensor.shape, strict=True))
                apart = [pair for pair in sizes if pair[0] != pair[1]]
                if len(apart) == 1 and told.issuperset(*apart):
                    yield place.replaced(0.2 + 0.5 * (read.count(name) < 2), (node, other))


def of_its_round(site: Site, place: Place) -> Iterator[Candidate]:
    """The element of a round in the place of all of them, where a loop counts as many rounds and
    nothing reads its number."""
    line = place.statement.lineno
    heads: list[Any] = [n for n in place.source.nodes if isinstance(n, ast.For)]
    heads = [n for n in heads if n.lineno < line <= n.end_lineno]
    heads += [n for n in place.parts() if isinstance(n, ast.ListComp | ast.GeneratorExp)]
    for loop in heads:
        head = loop if isinstance(loop, ast.For) else loop.generators[0]
        name, bounds = spelled(head.target), getattr(head.iter, "args", [])
        read = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and _is_loaded(n)}
        if not name or name in {*read, "_"} or callee(head.iter) != "range" or len(bounds) != 1:
            continue
        for node in (n for n in place.parts() if isinstance(n, ast.Name) and _is_loaded(n)):
            value = place.value(node)
            size = len(value) if isinstance(value, list) else 0
            if isinstance(value, Tensor | np.ndarray) and value.ndim:
                size = value.shape[0]
            if size and size == place.value(bounds[0]):
                yield replace(place, distance=0.0).replaced(0.3, (node, f"{node.id}[{name}]"))


def _is_loaded(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def reduced_as_elsewhere(site: Site) -> Iterator[Candidate]:
    """What a method gives, summed over a dimension as it is wherever else it is called:
    ``policy.log_prob(actions).sum(-1)``."""
    for source in site.program.texts if re.search("size of tensor|shape", site.text) else ():
        over: dict[int, str] = {}  # of a call, what follows it
        for node in source.nodes:
            inner = getattr(getattr(node, "func", None), "value", None)
            if isinstance(inner, ast.Call) and callee(node) in ("sum", "mean"):
                over[id(inner)] = source.part(node).removeprefix(source.part(inner))
        calls = [n for n in source.nodes if isinstance(n, ast.Call)]
        for call in (c for c in calls if isinstance(c.func, ast.Attribute) and id(c) not in over):
            alike = [c for c in calls if ast.dump(c.func) == ast.dump(call.func) and c.args]
            ways = {over[id(c)] for c in alike if id(c) in over and over[id(c)][-2:] != "()"}
            row = innermost(source, call.lineno)
            if len(ways) == 1 and row is not None and call.args:
                place = site.place(source, row, 0.0)
                yield place.replaced(0.45, (call, source.part(call) + ways.pop()))


def divided_as_elsewhere(site: Site) -> Iterator[Candidate]:
    """A size as the program divides it elsewhere, where two that meet are multiples of each other:
    ``width // heads`` for ``width``."""
    if not any(a > b > 1 and a % b == 0 for a, b in itertools.product(site.told, site.told)):
        return
    for source in site.program.texts:
        parts = {source.part(n.left): n for n in source.nodes if _divides(n)}
        for call in (n for n in source.nodes if isinstance(n, ast.Call) and callee(n) != "range"):
            row = innermost(source, call.lineno)
            for given in (*call.args, *(k.value for k in call.keywords)) if row is not None else ():
                named = isinstance(given, ast.Name | ast.Attribute)
                whole = parts.get(source.part(given)) if named else None
                if whole is not None and given is not whole.left and row is not None:
                    place = site.place(source, row, 0.0)
                    yield place.replaced(0.6, (given, source.part(whole)))


def _divides(node: ast.AST) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)


def after_the_window(site: Site, place: Place) -> Iterator[Candidate]:
    """Targets from where the first window ends, where there are as many more of them."""
    calls = place.calls() if "Size mismatch between tensors" in site.text else []
    sizes = {name: n for name, n in place.names().items() if type(n) is int and n > 0}
    for call in (c for c in calls if callee(c) == "TensorDataset" and c.args):
        known = [(node, place.value(node)) for node in call.args]
        least = min((len(v) for _, v in known if isinstance(v, Tensor)), default=0)
        for node, value in known:
            more = len(value) - least if isinstance(value, Tensor) else 0
            for name in (name for name, n in sizes.items() if n == more):
                yield place.replaced(0.3, (node, f"{place.whole(node)}[{name}:]"))


def windows_with_a_target(site: Site) -> Iterator[Candidate]:
    """Windows of a series without the last ones, after which there is none of the targets that
    begin where the first window ends."""
    refused = "Size mismatch between tensors" in site.text
    known = [(at, at.result()) for at in site.statements()] if refused or site.met else []
    made = [(at, value) for at, value in known if isinstance(value, Tensor) and value.dim()]
    targets = {len(value) for at, value in made if any(map(_begins_late, at.parts()))}
    for place, value in made:
        for size in sorted(size for size in targets if size < len(value)):
            if any(map(_is_window, place.parts())) and (refused or {size, len(value)} == site.met):
                whole: Any = bound_value(place, "")
                text = f"{place.whole(whole)}[:{size - len(value)}]"
                yield replace(place, distance=0.0).replaced(0.28, (whole, text))


def targets_of_windows(site: Site) -> Iterator[Candidate]:
    """Targets from as much later in a series as there are more of them than of its windows."""
    refused = "Size mismatch between tensors" in site.text
    known = [(at, at.result()) for at in site.statements()] if refused else []
    made = [(at, value) for at, value in known if getattr(value, "shape", ())]
    counts = {len(value) for at, value in made if any(map(_is_window, at.parts()))}
    for place, value in made:
        for node in filter(_begins_late, place.parts()):
            start: Any = _first_slice(node)
            lower, more = start.lower, len(value) - max(counts, default=len(value))
            text = f"{place.whole(lower)} + {more}"
            if isinstance(lower, ast.BinOp) and isinstance(lower.op, ast.Sub):
                text = place.text(lower.left) if place.value(lower.right) == more else text
            if more > 0 and not isinstance(place.value(lower), Tensor):
                yield replace(place, distance=0.0).replaced(0.27, (lower, text))


def targets_after_windows(site: Site) -> Iterator[Candidate]:
    """Windows of a series, or the targets after them, as many as there are of the others: the
    target of the window that begins at i is the element at i and the window's length."""
    data = [f.f_locals["tensors"] for f in site.inner if "tensors" in f.f_locals]
    sizes = [len(v) for v in data[-1]] if data and "Size mismatch" in site.text else []
    more = sizes[1] - sizes[0] if len(sizes) == 2 else 0
    shifts = [more] if more else [1, -1] if site.met and max(site.met) - min(site.met) == 1 else []
    for source in site.program.texts if shifts else ():
        windows = [pair for node in source.nodes for pair in _windows(node)]
        late = [part for part in source.nodes if _begins_late(part)]
        for (width, bounds), part in itertools.product(windows, late):
            start: Any = _first_slice(part)
            exact = ast.dump(start.lower) == ast.dump(width)
            changed = bounds.args[-1] if exact and bounds is not None else start.lower
            for shift in shifts if not exact or bounds is not None else ():
                text = _shifted(source, changed, shift)
                known = names_in(width) | names_in(part) | {"len"}  # nothing lies between the two
                read = names_in(changed)
                near = exact and (read <= known or not read & names_in(width))
                if near or text == source.part(width):
                    yield Candidate(0.25, spliced(source, [(changed, text)]))


def _windows(node: ast.AST) -> Iterator[tuple[ast.expr, ast.Call | None]]:
    """The length of the windows ``x[i:i + w]`` that a loop makes, and the range that it takes; that
    of all windows of a series, which take none."""
    if isinstance(node, ast.Call) and callee(node) in ("unfold", "sliding_window_view"):
        yield from ((each, None) for each in node.args[1:2])
    loops: list[Any] = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
    for loop in loops:
        if callee(loop.iter) != "range" or not 0 < len(loop.iter.args) < 3:
            continue
        for part in ast.walk(node):
            cut = _first_slice(part)
            end = cut.upper if cut is not None else None
            if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and cut is not None:
                name = spelled(loop.target)
                if isinstance(cut.lower, ast.Name) and {cut.lower.id, spelled(end.left)} == {name}:
                    yield end.right, loop.iter


def _shifted(source: Source, node: ast.AST, by: int) -> str:
    """An expression of whole numbers with as much more, which takes the place of what it adds."""
    if type(own := number_of(node)) is int:
        return str(own + by)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        number = number_of(node.right)
        if type(number) is int:
            by += number if isinstance(node.op, ast.Add) else -number
            node = node.left
    text = source.part(node)
    return f"{text} {'-' if by < 0 else '+'} {abs(by)}" if by else text


def _begins_late(node: ast.AST) -> bool:
    """Whether an expression leaves out the beginning of a series: ``x[w:]``."""
    part = _first_slice(node)
    return part is not None and part.lower is not None and part.upper is None


def _is_window(node: ast.AST) -> bool:
    """Whether an expression gives parts of a series that overlap, or one of them."""
    part = _first_slice(node)
    both = part is not None and part.lower is not None and part.upper is not None
    return both or callee(node) in ("unfold", "sliding_window_view")


def _first_slice(node: ast.AST) -> ast.Slice | None:
    index = node.slice if isinstance(node, ast.Subscript) else None
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return first if isinstance(first, ast.Slice) else None


def as_long_as_a_window(site: Site) -> Iterator[Candidate]:
    """A signal with zeros at its end, where it is shorter than the window of a transform."""
    for place in site.raising[:1] if "Padding size should be less than" in site.text else ():
        for call in (c for c in place.calls() if callee(c) == "stft"):
            size = [k.value for k in call.keywords if k.arg == "n_fft"] + call.args[1:2]
            for wave, n_fft in zip(call.args[:1], size, strict=False):
                text = place.text(wave)
                more = f"(0, max(0, {place.text(n_fft)} - {text}.shape[-1]))"
                yield place.replaced(0.4, (wave, f"torch.nn.functional.pad({text}, {more})"))


def numbers_of_a_function(site: Site) -> Iterator[Candidate]:
    """What an autograd function compares, as numbers: nothing else can be differentiated."""
    for source in site.program.texts if re.search(r"\b[Bb]ool", site.text) else ():
        for node in (n for n in source.nodes if isinstance(n, ast.Return)):
            around = function_around(source, node)
            first = around.args.args[:1] if around is not None and around.name == "forward" else []
            if [each.arg for each in first] == ["ctx"] and isinstance(node.value, ast.Compare):
                place = site.place(source, node, 0.0)
                yield place.replaced(0.3, (node.value, f"({place.text(node.value)}).float()"))


def in_one_piece(site: Site) -> Iterator[Candidate]:
    """A tensor copied into memory in the order of its elements, where that was asked for."""
    for place in site.raising[:1] if re.search("stride 1|contiguous", site.text) else ():
        for call in place.calls():
            for node in (*call.args, getattr(call.func, "value", call)):
                value = place.value(node)
                if isinstance(value, Tensor) and not value.is_contiguous():
                    yield place.replaced(0.2, (node, f"{place.whole(node)}.contiguous()"))


def channels_first(site: Site, place: Place) -> Iterator[Candidate]:
    """Images with the channels last turned to the layout of those that they meet, where they were
    made: nothing else gives the same shape and keeps each pixel."""
    named = [(node, place.value(node)) for node, _ in place.operands if spelled(node)]
    images = [(node, v) for node, v in named if isinstance(v, Tensor) and v.dim() == 4]
    for (node, own), (_, other) in itertools.permutations(images, 2):
        bound = site.binding(place, node)
        made = bound_value(bound, spelled(node))
        turned = own.permute(0, 3, 1, 2).shape == other.shape != own.shape
        if turned and bound is not None and callee(made) in having("moves"):
            text = f"{bound.text(made)}.permute(0, 3, 1, 2)"
            yield replace(bound, distance=0.0).replaced(0.35, (made, text))


def of_its_own_memory(site: Site) -> Iterator[Candidate]:
    """A tensor copied before it is written into, where several of its elements are one: where it
    was expanded, else right before."""
    shared = "refers to a single memory location" in site.text
    for place in site.raising[:1] if shared else ():
        row: Any = place.statement
        written = [getattr(row, "target", None), *getattr(row, "targets", [])]
        written += [call.func.value for call in filter(written_into, place.calls())]  # type: ignore
        for node in (n for n in written if n is not None):
            while isinstance(node, ast.Subscript):
                node = node.value
            name = spelled(node)
            load: Any = ast.parse(name or "_", mode="eval").body
            bound, made = site.binding(place, load), load
            for _ in range(_BACK):
                made = bound_value(bound, name) if bound is not None else None
                if bound is None or made is None or not spelled(made):
                    break
                bound = site.binding(bound, made)
                name = spelled(made)
            if isinstance(made, ast.Call) and bound is not None:
                at = replace(bound, distance=0.0)
                if any(callee(n).startswith(("expand", "broadcast")) for n in ast.walk(made)):
                    yield at.replaced(0.2, (made, f"{at.text(made)}.clone()"))
            if own := spelled(node):
                yield place.written(0.3, f"{own} = {own}.clone()\n{{}}")


_BACK = 4  # names from where a tensor is written to where it was made


def kept_first(site: Site) -> Iterator[Candidate]:
    """The first of what is sorted kept where a cumulative sum is too large with it already, as by
    nucleus sampling: else nothing is left."""
    for place in site.statements() if re.search("inf.*nan|invalid multinomial", site.text) else ():
        value: Any = getattr(place.statement, "value", None)
        if not isinstance(place.statement, ast.Assign) or not isinstance(value, ast.Compare):
            continue
        made = bound_value(site.binding(place, value.left), spelled(value.left))
        summed = "cumsum" in (callee(value.left), callee(made))
        name = spelled(place.statement.targets[0])
        if summed and name and isinstance(value.ops[0], ast.Gt | ast.GtE):
            yield place.written(0.25, f"{{}}\n{name}[..., 0] = False")


def other_part(site: Site, place: Place) -> Iterator[Candidate]:
    """The part of a sequence that is left where the program reads ``x[:, :-1]``: ``x[:, 1:]``."""
    own = {ast.dump(e): e for e, _ in place.operands if isinstance(e, ast.Name)}
    for source in site.program.texts if re.search("size|shape", site.text) else ():
        for node in source.nodes:
            same = own.get(ast.dump(node.value)) if isinstance(node, ast.Subscript) else None
            for part in ast.walk(node.slice) if isinstance(node, ast.Subscript) else ():
                if same is not None and isinstance(part, ast.Slice) and not part.step:
                    text = source.part(node)
                    old = source.part(part)
                    cut = re.fullmatch(r":\s*-(\w+)|(\w+)\s*:", old)
                    if cut is not None:
                        other = f"{cut[1]}:" if cut[1] else f":-{cut[2]}"
                        start = text.rindex(old)
                        new = text[:start] + other + text[start + len(old) :]
                        yield place.replaced(0.6, (same, new))
                        yield place.replaced(0.75, (same, text))


def cut_alike(site: Site, place: Place) -> Iterator[Candidate]:
    """A tensor cut as data of its shape is: a mask as the labels, ``x[:, 1:]``."""
    for node in place.source.nodes if re.search("size|shape", site.text) else ():
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        cut = any(isinstance(part, ast.Slice) for part in ast.walk(node.slice))
        rows = isinstance(index := place.value(node.slice), Tensor) and index.dtype == torch.int64
        data = place.value(node.value) if cut or rows else MISSING
        if not isinstance(data, Tensor) or data.requires_grad:
            continue
        for own, _ in place.operands:
            value = place.value(own) if isinstance(own, ast.Name) else MISSING
            if not isinstance(value, Tensor) or value is data or value.requires_grad:
                continue
            name = place.text(own)
            part = f"{name}[{place.text(node.slice)}]"
            if rows and value.shape[:1] == data.shape[:1] and len(value) in site.told:
                yield place.replaced(0.38, (own, part))
            elif cut and value.shape == data.shape:
                yield place.replaced(0.4, (own, part))
                after = place.block[place.block.index(place.statement) + 1 :]
                if place.function is not None and any(name in names_in(row) for row in after):
                    yield place.written(0.38, f"{name} = {part}\n{{}}")


def turned_masks(site: Site, place: Place) -> Iterator[Candidate]:
    """A mask of keys with the batch first, which it has whatever comes first elsewhere."""
    told = re.search(r"key_padd\w+ ?\.shape\[\d\] to be (\d+), but got (\d+)", site.text)
    values = [v for frame, _ in site.frames for v in frame.f_locals.values()]
    rows = {len(v) for v in values if isinstance(v, list) or getattr(v, "ndim", 0) == 1}
    batch = told is not None and int(told[1]) in rows and int(told[2]) not in rows
    for call in place.calls() if told is not None else ():
        for given in call.keywords:
            if (given.arg or "").endswith("key_padding_mask"):
                text = f"{place.whole(given.value)}.T"
                at, turned = replace(place, distance=0.0), _goes_on(site, place.value(given.value))
                yield at.replaced(0.3 if batch or turned else 1.2, (given.value, text))


def _goes_on(site: Site, mask: Any) -> bool:
    """Whether the padding that a mask marks goes on along its first dimension: as the program
    writes it, else in all of its columns and not in all of its rows."""
    heads = (getattr(at.statement, "targets", [None])[0] for at in site.statements())
    parts = [head.slice for head in heads if isinstance(head, ast.Subscript)]
    ends = [
        [isinstance(n, ast.Slice) and n.lower is not None for n in e.elts]
        for e in parts
        if isinstance(e, ast.Tuple)
    ]
    if [True, False] in ends or [False, True] in ends:
        return [False, True] not in ends
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.dtype != torch.bool:
        return False
    steps = [mask.long().diff(dim=dim) for dim in (0, 1)]
    along, across = (bool((d >= 0).all() or (d <= 0).all()) for d in steps)
    return along and not across


def turned_for_a_mask(site: Site) -> Iterator[Candidate]:
    """A tensor with its first two dimensions as a mask has them, which then chooses in the order
    in which it chooses of others."""
    for place in site.raising[:1] if "shape of the mask" in site.text else ():
        for node in (n for n in place.parts() if isinstance(n, ast.Subscript)):
            whole, mask = place.value(node.value), place.value(node.slice)
            both = isinstance(whole, Tensor) and isinstance(mask, Tensor)
            if both and mask.dim() > 1 and mask.shape[:2] == whole.shape[:2][::-1]:
                if mask.dtype == torch.bool and mask.shape[2:] == whole.shape[2 : mask.dim()]:
                    text = f"{place.whole(node.value)}.transpose(0, 1)"
                    yield replace(place, distance=0.0).replaced(0.1, (node.value, text))


_COMPUTED = re.compile("multiply sequence|unsupported operand|can only concatenate")


def of_stacked_parts(site: Site) -> Iterator[Candidate]:
    """The parts that a function returns, which are computed with as one: stacked as it takes them
    apart."""
    if not isinstance(site.error, TypeError) or not _COMPUTED.search(site.text):
        return
    for place in site.raising[:1]:
        for node in (n for n in place.parts() if isinstance(n, ast.Name)):
            value, bound = place.value(node), site.binding(place, node)
            same = isinstance(value, (tuple, list)) and len(value) > 1
            same = same and all(isinstance(v, Tensor) for v in value)
            made = bound_value(bound, spelled(node)) if bound is not None and same else None
            if bound is None or not isinstance(made, ast.Call) or len({v.shape for v in value}) > 1:
                continue
            for last in site.returns(bound.value(made.func)):
                given: Any = getattr(last.statement, "value", None)
                if isinstance(given, (ast.Tuple, ast.List)):
                    text = last.text(given).strip("()[]")
                    around = last.source.part(last.function) if last.function is not None else ""
                    behind = re.search(r"\[\.\.\., |\[:, |(unbind|chunk|split)\(.*-1", around)
                    for at, dim in enumerate((", dim=-1", "") if behind else ("", ", dim=-1")):
                        new = f"torch.stack(({text}){dim})"
                        at_return = replace(last, distance=0.0)
                        yield at_return.replaced(0.2 + 0.05 * at, (given, new))


def written_in_part(site: Site, place: Place) -> Iterator[Candidate]:
    """As many rows written as there are, or as there is room for."""
    target = getattr(place.statement, "targets", [None])[0]
    value = getattr(place.statement, "value", None)
    if isinstance(target, ast.Subscript) and isinstance(value, ast.Name):
        index = f"{place.text(target.slice)}, : len({place.text(value)})"
        yield place.replaced(0.6, (target, f"{place.text(target.value)}[{index}]"))
    longer = re.search(r"size of .*? \((\d+)\) must match .*? \((\d+)\) at .*?(\d+)\.", site.text)
    if isinstance(target, ast.Subscript) and longer and int(longer[1]) < int(longer[2]):
        index = f"{':, ' * int(longer[3])}: {place.text(target)}.size({longer[3]})"
        loose = place.whole(value)  # type: ignore[arg-type]
        yield place.replaced(0.6, (value, f"{loose}[{index}]"))  # type: ignore[arg-type]
        yield from _in_steps(site, target, int(longer[2]) / int(longer[1]))


def _in_steps(site: Site, target: ast.Subscript, times: float) -> Iterator[Candidate]:
    """The numbers that a value is computed from in the steps in which it is written, where they
    are so many times more."""
    parts = getattr(target.slice, "elts", [target.slice])
    steps = {number_of(n.step) for n in parts if isinstance(n, ast.Slice) and n.step is not None}
    for place in site.bindings if times in steps else ():
        for call in (c for c in place.calls() if callee(c) == "arange" and len(c.args) < 3):
            start = "0, " * (len(call.args) == 1)
            bounds = ", ".join(map(place.text, call.args))
            rest = "".join(f", {place.text(k)}" for k in call.keywords)
            text = f"{place.text(call.func)}({start}{bounds}, {times:g}{rest})"
            yield replace(place, distance=0.0).replaced(0.35, (call, text))


def written_as(site: Site, place: Place) -> Iterator[Candidate]:
    """What is written into a tensor, of the dtype of that."""
    if not re.search(
        "dtypes? match|same (dtype|scalar type)|dtype.*of self|self.dtype|be cast", site.text
    ):
        return
    row: Any = place.statement
    targets = [t for t in getattr(row, "targets", []) if isinstance(t, ast.Subscript)]
    pairs = [(target.value, row.value) for target in targets]
    in_place: Iterator[Any] = filter(written_into, place.calls())
    pairs += [(call.func.value, call.args[-1]) for call in in_place if call.args]
    pairs += [(row.target, row.value)] if isinstance(row, ast.AugAssign) else []
    for owner, value in pairs:
        loose = place.whole(value)
        yield place.replaced(0.35, (value, f"{loose}.to({place.text(owner)}.dtype)"))
        kept, given = place.value(owner), place.value(value)
        if isinstance(kept, Tensor) and is_whole(kept):
            if not (isinstance(given, Tensor) and is_whole(given)):  # it would lose its fractions
                yield from _with_fractions(site, place, owner)


def _with_fractions(site: Site, place: Place, name: ast.expr) -> Iterator[Candidate]:
    """A tensor of whole numbers made as one that has room for others."""
    loaded = ast.parse(place.text(name), mode="eval").body
    bound = site.binding(place, loaded)
    made = bound_value(bound, spelled(loaded))
    if bound is None or made is None:
        return
    own = replace(bound, distance=0.0)
    options = [k for k in getattr(made, "keywords", []) if k.arg == "dtype"]
    if options:
        yield own.replaced(0.3, (options[0], "dtype=torch.float32"))
    elif re.fullmatch("(zeros|ones|full|empty)(_like)?", callee(made)):
        yield own.added(0.3, made, "dtype=torch.float32")
    else:
        yield own.replaced(0.3, (made, f"{bound.whole(made)}.float()"))


def shortened(site: Site, place: Place) -> Iterator[Candidate]:
    """The lengths of sequences that a layer has made shorter by a whole number, made so too."""
    told = re.search(
        r"Expected (\w+_lengths) to have value at most (\d+), but got value (\d+)", site.text
    )
    most, got = (int(told[2]), int(told[3])) if told is not None else (1, 0)
    for call in place.calls() if told is not None else ():
        for node in (*call.args, *(k.value for k in call.keywords)):
            if told is not None and site.roles.get(id(node)) == told[1]:
                times = -(-got // most)
                yield place.replaced(0.3, (node, f"{place.text(node)} // {times}"))


def of_both_directions(site: Site, place: Place) -> Iterator[Candidate]:
    """The last states of both directions, where one was taken."""
    rnns = [m for m in site.modules if isinstance(m, nn.RNNBase) and m.bidirectional]
    widths = {(2 * m.hidden_size, m.hidden_size) for m in rnns} & site.refused
    for node in place.parts() if widths else ():
        if isinstance(node, ast.Subscript) and place.text(node.slice) == "-1":
            of = place.text(node.value)
            yield place.replaced(0.3, (node, f"torch.cat([{of}[-2], {of}[-1]], dim=-1)"))


_FORMS = having("sized", "moves") | {"float", "long"}


def one_for_each_class(site: Site, place: Place) -> Iterator[Candidate]:
    """Class numbers among features as one number for each class, where a layer takes so many."""
    joined = "same number of dimensions" in site.text
    known = {own - got + 1 for own, got in site.refused} | {own for own, _ in site.refused}
    for node, _ in place.operands if joined or known else ():
        inner: Any = node
        while callee(inner) in _FORMS or isinstance(inner, ast.Subscript):
            outer = getattr(inner, "func", inner)
            if not isinstance(outer, (ast.Attribute, ast.Subscript)):
                break
            inner = outer.value
        value: Any = place.value(inner)
        text = place.text(inner)
        numbers = elements(value) if isinstance(value, Tensor) and is_whole(value) else set()
        most = max(numbers, default=0)
        if not numbers or value.dtype == torch.bool or min(numbers) < 0 or most < 1:
            continue
        text = f"{text}.squeeze(-1)" if value.dim() > 1 and value.shape[-1] == 1 else text
        text = text if value.dtype == torch.int64 else f"{text}.long()"
        sizes = range(most + 1, 2 * most + 5) if joined else [n for n in known if n > most]
        named = [(size, place.named_number(size)) for size in sizes]
        for size, name in named:
            if size == most + 1 or not name.isdigit() or not joined:
                form = f"torch.nn.functional.one_hot({text}, {name}).float()"
                cost = 0.4 + 0.05 * name.isdigit()
                yield replace(place, distance=0.5 * place.distance).replaced(cost, (node, form))


def not_eaten(site: Site) -> Iterator[Candidate]:
    """A squeeze that leaves the batch alone: the last one may have one sample."""
    none = re.search(r"0-d|zero-dim|\[\]|'(float|int)' object is not iter", site.text)  # none left
    refused = none or re.search(r"size|shape|[Dd]imension|\bdim|\d-d", site.text)
    for place in site.statements() if refused else ():
        for call in (c for c in place.calls() if callee(c) == "squeeze"):
            plain = place.value(call.func) is torch.squeeze
            head = place.text(call.args[0] if plain else call.func).removesuffix(".squeeze")
            if len(call.args) == plain and not call.keywords:
                left = getattr(place.result(), "ndim", 0 if none else 1)
                for at, form in enumerate(("squeeze(-1)", "flatten(1)", "squeeze(1)")):
                    far = 0.02 * abs(at - left)
                    yield place.replaced(0.42 + far, (call, f"{head}.{form}"))


def in_single_precision(site: Site, place: Place) -> Iterator[Candidate]:
    """Data read in double precision, all of a statement or one, as float32."""
    calls = [c for c in place.calls() if callee(c) in ("tensor", "as_tensor", "from_numpy")]
    double = "Double" in site.text or getattr(place.result(), "dtype", None) == torch.float64
    calls = [c for c in calls if double and not any(k.arg == "dtype" for k in c.keywords)]
    pairs = [(call, f"{place.text(call)}.float()") for call in calls]
    groups = [pairs] * (len(pairs) > 1) + [[pair] for pair in pairs]
    for at, group in enumerate(groups):
        yield place.replaced(0.28 + 0.02 * at, *group)


# Functions of NumPy that torch has under another name, where they take a list of tensors.
_OF_LISTS = {"array": "stack", "asarray": "stack", "stack": "stack", "concatenate": "cat"}


def in_torch(site: Site, place: Place) -> Iterator[Candidate]:
    """A function of NumPy as torch's, where it is given tensors that carry gradient."""
    pairs, read = list[tuple[ast.AST, str]](), list[tuple[ast.AST, str]]()
    for call in place.calls() if "numpy() on Tensor that requires grad" in site.text else ():
        owner = getattr(call.func, "value", call)
        if place.value(owner) is not np or len(call.args) != 1:
            if callee(call) == "numpy" and not call.args:
                read.append((call, place.text(owner)))
            continue
        name, given = callee(call), place.value(call.args[0])
        if isinstance(given, list) and any(isinstance(each, Tensor) for each in given):
            name = _OF_LISTS.get(name, "")
        if hasattr(torch, name):
            pairs.append((call, f"torch.{name}({place.text(call.args[0])})"))
    if pairs:
        yield place.replaced(0.4, *pairs, *read)


def compared(site: Site, place: Place) -> Iterator[Candidate]:
    """Comparisons joined by ``&`` or ``|``, each in brackets: these bind more tightly."""
    for node in place.parts():
        parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        text, at = place.text(node), 0
        for part in parts:
            if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.BitAnd, ast.BitOr)):
                at = text.index(place.text(part), at) + len(place.text(part.left))
                sign = "&" if isinstance(part.op, ast.BitAnd) else "|"
                a, b = text[:at].strip(), text[at:].strip().removeprefix(sign).strip()
                first = f"({a})" if part is not parts[0] else a
                last = f"({b})" if part is not parts[-1] else b
                yield place.replaced(0.3, (node, f"{first} {sign} {last}"))


def in_range(site: Site, place: Place) -> Iterator[Candidate]:
    """The largest number of a tensor's own format, where one was written that it cannot hold."""
    if "without overflow" not in site.text:
        return
    for call in place.calls():
        given = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        tensors = [n for n in (*given, *call.args) if isinstance(place.value(n), Tensor)]
        kept = [n for n in tensors if place.value(n).is_floating_point() and spelled(n)]
        for node in (*call.args, *(k.value for k in call.keywords)) if kept else ():
            number, of = place.value(node), place.text(kept[0])
            limits = torch.finfo(place.value(kept[0]).dtype)
            if isinstance(number, (int, float)) and not limits.min <= number <= limits.max:
                end = "min" if number < 0 else "max"
                yield place.replaced(0.2 - place.distance, (node, f"torch.finfo({of}.dtype).{end}"))
