"""How samples are loaded, joined to batches, and taken apart again."""

from __future__ import annotations

import ast
import difflib
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nanlab.explanations.edits.gradients import GRADIENTS_OFF, innermost_loop
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Function,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    is_return,
    names_in,
    number_of,
    signature,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source
from nanlab.operators import having

_NO_FILLS: dict[Any, str] = {}


def collated(site: Site) -> Iterator[Candidate]:
    """A function that joins samples, which the program has and gives to no loader."""
    calls = [(p, c) for p in site.statements() for c in p.calls() if callee(c) == "DataLoader"]
    open_ = [(p, c) for p, c in calls if "collate_fn" not in {k.arg for k in c.keywords}]
    for source in site.program.texts if open_ else ():
        for name in _joining(source, site):
            text = name if "." not in name else f"{{}}{name}"
            cost = 0.1 if re.search("collat|pad|batch", name.lower()) else 0.4
            given = [
                p.added(cost, c, f"collate_fn={text.format(p.text(c.args[0]) if c.args else '')}")
                for p, c in open_
            ]
            edits = tuple(edit for each in given for edit in each.edits)
            yield from [Candidate(cost, edits), *(replace(e, cost=cost + 0.1) for e in given)]


def _joining(source: Source, site: Site) -> Iterator[str]:
    """What takes one argument and is read nowhere: functions, objects, and as ``.name`` methods
    of a dataset."""
    nodes = [node for each in site.program.texts for node in each.nodes]
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    read |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    for row in source.tree.body:
        own = [each for each in getattr(row, "body", []) if isinstance(each, Function)]
        call = next((each for each in own if each.name == "__call__"), None)
        if isinstance(row, Function) and row.name not in read and _takes(row) == 1:
            yield row.name
        elif isinstance(row, ast.ClassDef) and call and row.name not in read:
            yield f"{row.name}()"
        elif isinstance(row, ast.Assign) and not read & {*bound_by(row)}:
            value = site.frames[-1][0].known.get(bound_by(row)[0]) if bound_by(row) else None
            if callable(value) and not isinstance(value, (nn.Module, type)):
                yield bound_by(row)[0]
        for each in own if isinstance(row, ast.ClassDef) else ():
            if each.name not in read and "collate" in each.name and _takes(each) in (1, 2):
                yield f".{each.name}"


def _takes(function: Any) -> int:
    """How many arguments a function needs."""
    return len(function.args.args) - len(function.args.defaults)


def taken_by_key(site: Site) -> Iterator[Candidate]:
    """Batches that are dicts, taken apart by their keys: as a tuple they give these."""
    if not re.search(r"\bstr\b|to unpack", site.text):
        return
    returns = (n.value for s in site.program.texts for n in s.nodes if isinstance(n, ast.Return))
    dicts = (n for value in returns if value for n in ast.walk(value) if isinstance(n, ast.Dict))
    made: list[Any] = [[getattr(key, "value", None) for key in each.keys] for each in dicts]
    for place in site.statements():
        row = place.statement
        targets = [*getattr(row, "targets", []), getattr(row, "target", None)]
        parts = [n for t in targets if t is not None for n in ast.walk(t)]
        for part in (n for n in parts if isinstance(n, ast.Tuple)):
            names = [place.text(e) for e in part.elts]
            values = [place.names().get(name) for name in names]
            told = [values] if all(isinstance(v, str) for v in values) else []
            for keys in (k for k in (*made, *told) if len(k) >= len(names)):
                if not all(isinstance(key, str) for key in keys) or len({*keys}) < len(keys):
                    continue
                items = ", ".join(f'batch["{key}"]' for key in _by_name(names, keys))
                taken = f"{', '.join(names)} = {items}"
                if isinstance(row, ast.Assign) and part is row.targets[0]:
                    yield place.written(0.2, f"batch = {place.text(row.value)}\n{taken}")
                elif isinstance(row, ast.For) and part.end_lineno == row.body[0].lineno - 1:
                    (edit,) = spliced(place.source, [(part, "batch")])
                    indent = " " * (row.body[0].col_offset - row.col_offset)
                    yield Candidate(0.2, (replace(edit, text=f"{edit.text}\n{indent}{taken}"),))


def _by_name(names: list[str], keys: list[str]) -> list[str]:
    """The key for each name: its own, one that is written nearly so, else the next that is left."""
    found, left = dict[str, str](), list(keys)
    for cutoff in (1.0, 0.5, 0.0):
        for name in (n for n in names if n not in found):
            whole = [key for key in left if cutoff == 0.5 and (key in name or name in key)]
            near = whole or difflib.get_close_matches(name, left, 1, cutoff) if cutoff else left
            for key in near[:1]:
                found[name] = key
                left.remove(key)
    return [found[name] for name in names]


def batch_first(site: Site) -> Iterator[Candidate]:
    """Sequences padded with the batch first, as the layers of the program take it, or where what
    has one number for each sequence meets their steps."""
    whole = "\n".join(source.text for source in site.program.texts)
    meant = "batch_first=True" in whole or _has_steps_first(site)
    for place in site.statements() if meant and re.search("size|shape", site.text) else ():
        for call in (c for c in place.calls() if callee(c) == "pad_sequence"):
            if len(call.args) < 2 and "batch_first" not in {k.arg for k in call.keywords}:
                yield replace(place, distance=0.0).added(0.45, call, "batch_first=True")


def _has_steps_first(site: Site) -> bool:
    """Whether the message speaks of the first two sizes of a tensor, and another tensor has
    the second alone."""
    known = [v for f, _ in site.frames for v in f.f_locals.values() if isinstance(v, Tensor)]
    rows = {len(each) for each in known if each.dim() == 1}
    heads = {tuple(each.shape[:2]) for each in known if each.dim() > 1}
    return any(a != b and b in rows and {a, b} <= {*site.told} for a, b in heads)


def channels_first(site: Site) -> Iterator[Candidate]:
    """Pictures with their channels first where they are loaded, or given to the model."""
    told = re.search(r"input\[(\d+(?:, \d+){3,4})\] to have (\d+) channels", site.text)
    sizes = told[1].split(", ") if told is not None else []
    square = len({*sizes[2:]}) == 1 and sizes[1] != sizes[2]  # they come first already
    if told is None or sizes[-1] != told[2] or square:
        return
    rank = len(sizes)
    turned = f"{rank - 2}, {', '.join(map(str, range(rank - 2)))}"
    for place in site.statements():
        value: Any = getattr(place.statement, "value", None)
        if is_return(place.statement) and getattr(place.function, "name", "") == "__getitem__":
            for part in getattr(value, "elts", getattr(value, "values", [value])):
                made = site.binding(place, part)
                own = made if made is not None and made.function is place.function else place
                node = part if own is place else getattr(own.statement, "value", part)
                loose = own.whole(node)
                for method in ("permute", "transpose"):  # of an array of NumPy
                    new = f"{loose}.{method}({turned})"
                    yield replace(own, distance=0.0).replaced(0.3, (node, new))
    order = f"0, {rank - 1}, {', '.join(map(str, range(1, rank - 1)))}"
    for place in site.statements():  # what a program reads at once
        read: Any = place.result()
        if isinstance(read, Tensor) and read.dim() == rank and read.shape[-1] == int(told[2]):
            value = bound_value(place, "")
            cost = 0.38 if callee(value) in ("from_numpy", "tensor", "stack") else 0.45
            yield place.replaced(cost, (value, f"{place.text(value)}.permute({order})"))
    models = [(p, c) for p in site.raising for c in p.calls()]
    models = [(p, c) for p, c in models if isinstance(p.value(c.func), nn.Module)]
    for place, call in models[-1:]:
        for given in call.args:
            text = f"{place.text(given)}.permute({order})"
            yield replace(place, distance=0.0).replaced(0.4, (given, text))
            yield from _turned_where_made(site, place, given, rank)


def _turned_where_made(site: Site, place: Place, node: Any, rank: int) -> Iterator[Candidate]:
    """Pictures with their channels first in what a function of the program gives for them."""
    for _ in range(_BACK):
        bound = site.binding(place, node)
        made = bound_value(bound, spelled(node)) if bound is not None else node
        place, node = (bound, made) if bound is not None and made is not None else (place, node)
        if callee(node) == "unsqueeze" and isinstance(node.func, ast.Attribute):
            node, rank = node.func.value, rank - 1
    function = place.value(node.func) if isinstance(node, ast.Call) else None
    order = [*range(rank - 3), rank - 1, rank - 3, rank - 2]
    for other in site.returns(function):
        value: Any = getattr(other.statement, "value", None)
        if not isinstance(value, (ast.Tuple, ast.Dict)):
            text = f"{other.whole(value)}.permute({', '.join(map(str, order))})"
            yield replace(other, distance=0.0).replaced(0.37, (value, text))


_BACK = 3  # names from what a model is given back to the function that made it


def as_many(site: Site, place: Place) -> Iterator[Candidate]:
    """What belongs to each sample as often as there are parts of the sample."""
    calls = [c for c in place.calls() if callee(c) == "TensorDataset"]
    for call in calls if "Size mismatch between tensors" in site.text else ():
        rows = [(given, v) for given in call.args if isinstance(v := place.value(given), Tensor)]
        if len(rows) < 2:
            continue
        whole, longest = max(rows, key=lambda row: len(row[1]))
        made = bound_value(site.binding(place, whole), spelled(whole)) or whole
        if callee(made) != "flatten" and callee(made) not in having("sized"):
            continue
        less = [(given, v) for given, v in rows if len(v) < len(longest)]
        if all(len(v) and len(longest) % len(v) == 0 for _, v in less):
            texts = [
                f"{place.text(n)}.repeat_interleave({len(longest) // len(v)}, 0)" for n, v in less
            ]
            nodes = [given for given, _ in less]
            yield replace(place, distance=0.0).replaced(0.4, *zip(nodes, texts, strict=True))


def broadcast_samples(site: Site) -> Iterator[Candidate]:
    """Samples in the shape of those that have more channels, or a dimension for them: as they are
    loaded."""
    joined = [f.f_locals.get("batch") for f in site.inner if "collate" in f.f_code.co_name]
    shapes = [getattr(each, "shape", ()) for each in (joined or [None])[-1] or ()]
    whole: Any = max(shapes, key=lambda shape: (len(shape), *shape), default=())
    if len({*shapes}) < 2 or len(whole) < 2 or not all(_broadcasts(s, whole) for s in shapes):
        return
    spread = f".expand({whole[0]}{', -1' * (len(whole) - 1)})"
    for place in site.statements():
        if is_return(place.statement) and getattr(place.function, "name", "") == "__getitem__":
            value: Any = getattr(place.statement, "value", None)
            for part in getattr(value, "elts", getattr(value, "values", [value])):
                names = {spelled(n) for n in ast.walk(part) if isinstance(n, ast.Name)}
                rows = (n for n in ast.walk(place.function or part) if isinstance(n, ast.Assign))
                made = [row for row in rows if names & set(bound_by(row))]
                for far, row in enumerate(reversed(made)):  # the one that ran is not known
                    text = place.whole(row.value) + spread
                    yield place.replaced(0.4 + 0.01 * far, (row.value, text))
                yield place.replaced(0.4 + 0.1 * bool(made), (part, place.whole(part) + spread))


def converted(site: Site) -> Iterator[Candidate]:
    """What no tensor can hold as a number or a text, where a sample is made: dates, paths."""
    rows = [f.f_locals.get("batch") for f in site.inner if f.f_code.co_name == "default_collate"]
    sample = rows[0][0] if rows and isinstance(rows[0], list) and rows[0] else ()
    listed = enumerate(sample if isinstance(sample, (tuple, list)) else ())
    held = sample if isinstance(sample, dict) else dict(listed)
    for place in site.statements() if "; found <class" in site.text else ():
        value: Any = getattr(place.statement, "value", None)
        if not is_return(place.statement) or getattr(place.function, "name", "") != "__getitem__":
            continue
        keys = [getattr(key, "value", None) for key in getattr(value, "keys", [])]
        parts = [*zip(keys, value.values, strict=True)] if keys else getattr(value, "elts", [])
        for key, node in parts if keys else enumerate(parts):
            text = place.whole(node)
            for method in ("timestamp", "toordinal"):
                if hasattr(held.get(key), method):
                    yield place.replaced(0.3, (node, f"{text}.{method}()"))
            if isinstance(held.get(key), os.PathLike):
                yield place.replaced(0.3, (node, f"str({text})"))
            if isinstance(held.get(key), (pd.Series, pd.DataFrame)):  # rows of one sample
                rows = held[key]
                whole = all(pd.api.types.is_integer_dtype(type(v)) for v in rows.to_numpy().flat)
                kind = '"int64"' if whole else '"float32"'
                yield place.replaced(0.25, (node, f"{text}.to_numpy({kind})"))


def changed_alike(site: Site) -> Iterator[Candidate]:
    """A dataset with what changes its samples, as the program gives it to another of its class."""
    told: dict[Any, dict[str, str]] = {}
    lacking: list[tuple[Place, ast.Call, Any]] = []
    for place in site.statements() if "; found <class" in site.text else ():
        for call in place.calls():
            kind = place.value(call.func)
            if isinstance(kind, type) and issubclass(kind, Dataset):
                names = [*signature(kind)]
                given = [*zip(names, call.args, strict=False)]
                given += [(k.arg, k.value) for k in call.keywords if k.arg]
                changes = {n: v for n, v in given if callable(place.value(v))}
                told.setdefault(kind, {}).update({n: place.text(v) for n, v in changes.items()})
                lacking.append((replace(place, distance=0.0), call, {n for n, _ in given}))
    for place, call, given in lacking:
        for name, text in told[place.value(call.func)].items():
            if name not in given:
                yield place.added(0.25, call, f"{name}={text}")


def counted_from_one(site: Site) -> Iterator[Candidate]:
    """Numbers of words from 1, where 0 stands for the padding and is the number of a word too."""
    refused = "Length of all samples has to be greater than 0" in site.text
    worded = refused and any(_numbers_a_word(place.result()) for place in site.statements())
    for place in site.statements() if worded else ():
        numbers: list[tuple[ast.AST, ast.expr]] = []
        for call in place.calls():
            if callee(call) == "setdefault" and isinstance(call.func, ast.Attribute):
                numbers += [(call.func.value, n) for n in call.args[1:]]
        for target in getattr(place.statement, "targets", []):
            if isinstance(target, ast.Subscript):
                numbers.append((target.value, bound_value(place, "")))
        for owner, number in numbers:
            if callee(number) == "len" and place.text(number) == f"len({place.text(owner)})":
                text = f"{place.text(number)} + 1"
                yield replace(place, distance=0.0).replaced(0.2, (number, text))
        numbered = any(isinstance(node, ast.DictComp) for node in place.parts())
        for call in place.calls() if numbered else ():
            if callee(call) == "enumerate" and len(call.args) == 1 and not call.keywords:
                yield replace(place, distance=0.0).added(0.2, call, "1")


def _numbers_a_word(known: Any) -> bool:
    """Whether 0 is the number of a word, none of whose letters says that it pads."""
    words = (
        [w for w, n in known.items() if type(n) is int and n == 0] if type(known) is dict else []
    )
    return any(isinstance(w, str) and w and not re.search("pad|blank|[<\\[]", w) for w in words)


def _broadcasts(shape: Any, whole: Any) -> bool:
    """Whether a shape is another one, but for the first dimension: of size 1, or lacking."""
    return shape == whole or shape in (whole[1:], (1, *whole[1:]))


def without_one_left(site: Site) -> Iterator[Candidate]:
    """Batches without the last one, whose only sample batch norm refuses: in the loader, or
    passed over in the loop that trains."""
    refused = "1 value per channel when training" in site.text
    for place in site.statements() if refused else ():
        made = place.result()
        for call in (c for c in place.calls() if callee(c) == "DataLoader"):
            sized = isinstance(made, DataLoader) and hasattr(made.dataset, "__len__")
            size = made.batch_size if sized else None
            if made is MISSING or (size and len(made.dataset) % size == 1):
                cost = 0.4 + 0.3 * (size is None)
                yield replace(place, distance=0.0).added(cost, call, "drop_last=True")
    for place in site.raising if refused else ():
        line = place.statement.lineno
        loops = [n for n in place.source.nodes if isinstance(n, ast.For)]
        loops = [n for n in loops if n.lineno < line <= (n.end_lineno or 0)]
        if loops and ".backward(" in ast.unparse(loops[-1]):
            for name in sorted(names_in(place.statement)):
                value = place.names().get(name)
                if isinstance(value, Tensor) and value.shape[:1] == (1,):
                    skipped = f"if len({name}) == 1:\n    continue\n{{}}"
                    yield place.written(0.6 - place.distance, skipped)


def loaded(site: Site, place: Place) -> Iterator[Candidate]:
    """Batches made in another way."""
    rows = _samples(site)
    for call in place.calls():
        if callee(call) == "DataLoader" and rows and isinstance(rows[0], list):
            for cost, text in _joined(site, rows[0]):
                yield replace(place, distance=0.0).added(cost, call, f"collate_fn={text}")
        elif callee(call) == "DataLoader" and _ends_short(place.result(), site):
            yield replace(place, distance=0.0).added(1.3, call, "drop_last=True")


def all_padded(site: Site) -> Iterator[Candidate]:
    """The samples of all loaders joined in another way, where those of one could not be joined."""
    calls = [(p, c) for p in site.statements() for c in p.calls() if callee(c) == "DataLoader"]
    open_ = [(p, c) for p, c in calls if "collate_fn" not in {k.arg for k in c.keywords}]
    rows = _samples(site) if len(open_) > 1 else []
    for cost, text in _joined(site, rows[0]) if rows and isinstance(rows[0], list) else ():
        given = [p.added(0.0, c, f"collate_fn={text}") for p, c in open_]
        yield Candidate(cost + 0.01, tuple(edit for each in given for edit in each.edits))


def _joined(site: Site, rows: list[Any]) -> Iterator[tuple[float, str]]:
    """Functions that join samples to a batch, each with its cost: sequences of unequal length are
    padded, or what has no size of its own is left in lists."""
    if not rows:
        return
    first = rows[0]
    parts: dict[Any, Any] = {None: first}
    if isinstance(first, (dict, tuple)):
        parts = dict(first) if isinstance(first, dict) else dict(enumerate(first))
    index, lacking = _padding(site), _ends_early(site, rows)
    images = any(getattr(part, "ndim", 0) > 2 for part in parts.values())
    plain = {key: index for key, part in parts.items() if _is_of_whole_numbers(part)}
    ignored = {key: fill for key, fill in _ignored(site, len(parts)).items() if key in plain}
    for cost, fills, every in (
        (0.3, {**plain, **ignored}, False),
        (0.32, plain, False),
        (0.34, {**plain, **ignored}, True),
        (0.36, plain, True),
    ):
        text = padded(rows, "rows", fills, every)
        usual = "pad_sequence" in text and not lacking and not images
        yield cost + 0.6 * (not usual), f"lambda rows: {text}"
    if isinstance(first, tuple) and any(isinstance(each, dict) for each in first):
        yield 0.6, "lambda rows: tuple(zip(*rows))"  # targets of a sample, as detectors take them
        both = ((f"[row[{at}] for row in rows]", each) for at, each in enumerate(first))
        texts = (f"torch.stack({text})" if isinstance(e, Tensor) else text for text, e in both)
        yield 0.5, f"lambda rows: ({', '.join(texts)})"


def _ends_early(site: Site, rows: list[Any]) -> bool:
    """Whether most samples are of the largest size, as windows are over data that ends early."""
    owners = (f.f_locals.get("self") for f in site.inner)
    if any(getattr(owner, "_num_yielded", 0) for owner in owners):
        return True  # batches were joined before
    held = (
        r.values() if isinstance(r, dict) else r if isinstance(r, tuple) else (r,) for r in rows
    )
    sizes = [sum(torch.as_tensor(p).numel() for p in row if _is_numeric(p)) for row in held]
    return 2 * sizes.count(max(sizes)) > len(sizes)


def _is_of_whole_numbers(part: Any) -> bool:
    return not torch.as_tensor(part).is_floating_point() if _is_numeric(part) else False


def _padding(site: Site) -> str:
    """What the program's tables of words take for padding; empty where that is 0 or unknown."""
    known = (getattr(module, "padding_idx", None) for module in site.modules)
    number = next((n for n in known if n is not None), None)
    names = site.frames[-1][0].known.items()
    named = [(name, n) for name, n in names if type(n) is int and _PADDING.fullmatch(name)]
    alike = [(name, n) for name, n in named if number in (None, n)]
    text, number = alike[0] if alike else (str(number), number)
    return text if number else ""


_PADDING = re.compile(r"PAD(DING)?|(?i:pad(ding)?_?(idx?|index|token(_?id)?|value))")


def _ignored(site: Site, count: int) -> dict[Any, str]:
    """The parts of a sample that a loss takes for classes, each with the class that it ignores."""
    made = [(p.statement, c) for p in site.statements() for c in p.calls()]
    losses = {n: c for row, c in made if callee(c) in _CLASS_LOSSES for n in bound_by(row)}
    found: dict[Any, str] = {}
    nodes = [(source, node) for source in site.program.texts for node in source.nodes]
    for source, call in ((s, n) for s, n in nodes if isinstance(n, ast.Call)):
        own: Any = losses.get(
            spelled(call.func), call if callee(call) in _CLASS_FUNCTIONS else None
        )
        own = call.func if callee(call.func) in _CLASS_LOSSES else own
        if own is not None:
            told = {k.arg: source.part(k.value) for k in own.keywords}.get("ignore_index", "-100")
            given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "target")]
            for node in (n for each in given for n in ast.walk(each)):
                key = getattr(getattr(node, "slice", None), "value", None)
                found |= {key: told} if key is not None else {}
                found |= {node.id: told} if isinstance(node, ast.Name) else {}
    for target in (n for _, n in nodes if isinstance(n, ast.Tuple) and len(n.elts) == count):
        names = map(spelled, target.elts if isinstance(target.ctx, ast.Store) else ())
        found |= {at: found[name] for at, name in enumerate(names) if name in found}
    return found


_CLASS_LOSSES = "CrossEntropyLoss", "NLLLoss"
_CLASS_FUNCTIONS = "cross_entropy", "nll_loss"


def _samples(site: Site) -> list[Any]:
    """The samples that could not be joined, in a list of their own; of a worker's, some others."""
    rows = [f.f_locals.get("batch") for f in site.inner if f.f_code.co_name == "default_collate"]
    if "in DataLoader worker" in site.text and "collate" in site.text:
        owners = (f.f_locals.get("self") for f in site.inner)
        data: Any = next((d for o in owners if (d := getattr(o, "_dataset", None))), ())
        with suppress(Exception):  # some datasets have no length, or no such samples
            rows = [[data[at] for at in range(min(len(data), _FEW))]]
    return rows


_FEW = 16  # samples of which most differ, if any do


def of_no_terms(site: Site) -> Iterator[Candidate]:
    """A loss of no terms as 0, which has a gradient, where a function found nothing to add up."""
    if not re.search("expects a non-empty TensorList|non-empty list of Tensors", site.text):
        return
    for place in site.raising[:1]:
        known = place.frame.f_locals
        learned = [n for n, v in known.items() if isinstance(v, Tensor) and v.requires_grad]
        for call in place.calls() if is_return(place.statement) and learned else ():
            for node in (n for n in call.args[:1] if isinstance(n, ast.Name)):
                summed = {callee(c) for c in place.calls()} & {"mean", "sum"}
                taken = {a.arg for a in place.function.args.args} if place.function else set()
                given = [name for name in learned if name in taken] or learned
                if place.value(node) == [] and summed:
                    none = f"if not {node.id}:\n    return {given[0]}.sum() * 0.0\n{{}}"
                    yield replace(place, distance=0.0).written(0.15, none)


def never_empty(site: Site) -> Iterator[Candidate]:
    """A loader with its only batch, which it left out as too small; a share of no things as 0."""
    raised, empty = site.raising[0], False
    for place in site.statements():
        made = place.result()
        if isinstance(made, DataLoader) and hasattr(made.dataset, "__len__") and not len(made):
            empty = True
            for call in (c for c in place.calls() if callee(c) == "DataLoader"):
                for option in (k for k in call.keywords if k.arg == "drop_last"):
                    yield place.replaced(0.3, (option.value, "False"))
    for node in raised.parts() if not empty else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            sides = [raised.value(side) for side in (node.left, node.right)]
            if all(type(side) in (int, float) and side == 0 for side in sides):
                yield raised.replaced(0.4, (node.right, f"max({raised.text(node.right)}, 1)"))


def evaluated(site: Site) -> Iterator[Candidate]:
    """A model that predicts, as it is then: where its state was loaded, or where it is called."""
    top = site.raising[-1]
    learns = "backward(" in "\n".join(top.source.lines[top.statement.lineno - 1 :])
    for place in site.raising if "when training" in site.text else ():
        line, off = place.statement.lineno, False
        for node in place.source.nodes:
            if getattr(node, "lineno", line) < line <= (getattr(node, "end_lineno", 0) or 0):
                heads = [*getattr(node, "items", []), *getattr(node, "decorator_list", [])]
                off = off or any(GRADIENTS_OFF.search(ast.unparse(head) + "()") for head in heads)
        kinds = [n for n in place.source.nodes if isinstance(n, ast.ClassDef)]
        own = [n for n in kinds if n.lineno < line <= (n.end_lineno or 0)]
        trained = any("backward(" in ast.unparse(each) for each in own)
        for call in place.calls():
            name, within = place.text(call.func), place.frame is not site.frames[-1][0]
            if not isinstance(place.value(call.func), nn.Module):
                continue
            trains = [p for p in site.statements() if _trains(p, name)] if off else []
            if trains and place.frame is not site.frames[-1][0]:  # again and again
                turns = [place.written(0.0, f"{name}.eval()\n{{}}")]
                turns += [p.written(0.0, f"{name}.train()\n{{}}") for p in trains]
                yield Candidate(0.35, tuple(edit for each in turns for edit in each.edits))
            for other in site.statements() if off or not (learns or trained) else ():
                value: Any = getattr(other.statement, "value", None)
                if callee(value) == "load_state_dict" and other.text(value.func.value) == name:
                    yield other.written(0.3, f"{{}}\n{name}.eval()")
            if not name.startswith("self.") or (off and not trained):  # it stays so, in training
                cost = (0.4 if off else 1.0 + learns) + within
                yield place.replaced(cost, (call.func, f"{name}.eval()"))


def _trains(place: Place, name: str) -> bool:
    """Whether a statement calls a model in a function that trains it."""
    text = ast.unparse(place.function) if place.function is not None else ""
    called = any(place.text(call.func) == name for call in place.calls())
    return called and ".backward(" in text


def for_each_sample(site: Site) -> Iterator[Candidate]:
    """A number for each sample, where a model that was given one for all of them, as the time of a
    step, takes one for each."""
    if not re.search("too many indices|dimension of 0-d|subscriptable|object has no", site.text):
        if not re.search("Dimension out of range|0-d tensor|zero-dimensional", site.text):
            return
    for place in site.raising[1:]:
        for call in place.calls():
            given = [*call.args, *(k.value for k in call.keywords)]
            values = [(node, place.value(node)) for node in given]
            rows = [n for n, v in values if isinstance(v, Tensor) and v.dim() > 1]
            if not rows or not isinstance(place.value(call.func), nn.Module):
                continue
            count = f"len({place.text(rows[0])})"
            for node, value in values:
                if isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad:
                    new = f"{place.whole(node)}.expand({count})"
                elif type(value) in (int, float):
                    new = f"torch.full(({count},), {place.text(node)})"
                elif callee(node) in ("tensor", "as_tensor") and node.args:  # type: ignore
                    inner = node.args[0]  # type: ignore[attr-defined]
                    listed = isinstance(inner, (ast.List, ast.Tuple))
                    if listed or not isinstance(place.value(inner), (int, float)):
                        continue
                    new = f"{place.text(node)}.expand({count})"
                else:
                    continue
                yield replace(place, distance=0.0).replaced(0.25, (node, new))


def without_none(site: Site, place: Place) -> Iterator[Candidate]:
    """The samples of a batch without those that are None, where a function joins them."""
    if "NoneType" not in site.text:
        return
    for argument in place.function.args.args if place.function is not None else ():
        if _lacks_some(place.frame.f_locals.get(name := argument.arg)):
            kept = f"{name} = [each for each in {name} if each is not None]"
            yield place.written(0.4, f"{kept}\n{{}}")
    batches = [f.f_locals.get("batch") for f in site.inner if f.f_code.co_name == "default_collate"]
    for other in site.statements() if any(map(_lacks_some, batches)) else ():
        for call in (c for c in other.calls() if callee(c) == "DataLoader"):
            rows = "[each for each in rows if each is not None]"
            text = f"collate_fn=lambda rows: torch.utils.data.default_collate({rows})"
            yield other.added(0.4, call, text)
    samples = [row for row in next(iter(batches), None) or () if isinstance(row, dict)]
    if samples and all(any(v is None for v in row.values()) for row in samples):
        for place in site.statements():  # a field that no sample has
            for call in (c for c in place.calls() if callee(c) == "DataLoader"):
                row = "{k: v for k, v in row.items() if v is not None}"
                rest = f"torch.utils.data.default_collate([{row} for row in rows])"
                yield place.added(0.42, call, f"collate_fn=lambda rows: {rest}")


def of_one_at_least(site: Site, place: Place) -> Iterator[Candidate]:
    """The lengths of sequences, with one element of padding for those that have none."""
    for call in place.calls() if "lengths" in site.text and "<= 0" in site.text else ():
        given = [k.value for k in call.keywords if k.arg == "lengths"] or call.args[1:2]
        for node in given if callee(call) == "pack_padded_sequence" else ():
            text = f"{place.text(node)}.clamp(min=1)"
            if isinstance(place.value(node), (list, tuple)) or isinstance(node, ast.ListComp):
                text = f"[max(each, 1) for each in {place.text(node)}]"
            yield place.replaced(0.3, (node, text))


def starts_of_bags(site: Site, place: Place) -> Iterator[Candidate]:
    """Where each bag starts, where it was told how long each is, or where it ends."""
    known = [f.f_locals for f in site.inner if f.f_code.co_name == "embedding_bag"]
    offsets, words = (known[-1].get(name) if known else None for name in ("offsets", "input"))
    if not isinstance(offsets, Tensor) or not isinstance(words, Tensor) or not offsets.numel():
        return
    ends = int(offsets[-1]) == len(words)
    form = "torch.nn.functional.pad({}[:-1], (1, 0))" if ends else "({0}.cumsum(0) - {0})"
    if "offsets" not in site.text or not (ends or int(offsets.sum()) == len(words)):
        return
    for other in site.statements() if ends else ():
        value = bound_value(other, "")
        if callee(value) == "cumsum":
            text = form.format(other.text(value))
            yield replace(other, distance=0.0).replaced(0.3, (value, text))
    for call in place.calls():
        given = [k.value for k in call.keywords if k.arg == "offsets"] or call.args[1:2]
        for node in given:
            yield place.replaced(0.4, (node, form.format(place.text(node))))


def joined_bags(site: Site) -> Iterator[Candidate]:
    """Bags joined to one sequence where they were padded, and where each of them starts is given:
    in the padded ones they start elsewhere."""
    known = [f.f_locals for f in site.inner if f.f_code.co_name == "embedding_bag"]
    offsets, words = (known[-1].get(name) if known else None for name in ("offsets", "input"))
    if not isinstance(offsets, Tensor) or not isinstance(words, Tensor) or words.dim() != 2:
        return
    rows = [n * words.shape[1] for n in range(len(words))]
    for place in site.statements() if offsets.tolist() != rows else ():
        for call in place.calls():
            if callee(call) in ("pad_sequence", "stack") and call.args:
                text = f"torch.cat({place.text(call.args[0])})"
                yield replace(place, distance=0.0).replaced(0.3, (call, text))


def counted_before(site: Site) -> Iterator[Candidate]:
    """Where each part begins, which is how much comes before it, where it was told where it ends:
    it is beyond the end of the last."""
    for place in site.statements() if re.search("out of (range|bounds)", site.text) else ():
        for call in place.calls():
            plain = call.args[0] if call.args else None
            if callee(call) == "accumulate" and plain is not None:
                yield place.replaced(0.35, (plain, f"[0, *{place.text(plain)}[:-1]]"))
            elif callee(call) == "cumsum":
                head: Any = getattr(call.func, "value", call)
                own: Any = plain if spelled(head) in ("np", "numpy", "torch") else head
                text = f"({place.text(call)} - {place.whole(own)})"
                yield place.replaced(0.35, (call, text))


def named_otherwise(site: Site) -> Iterator[Candidate]:
    """A word by which a program chooses its data, as the data has it: it chose none."""
    if not re.search("num_samples=0|empty|zero-size", site.text):
        return
    held = [v for name, v in site.raising[0].names().items() if name[0] != "_"]
    known = Counter(word for v in held if not isinstance(v, str) for word in _words(v))
    lower = {each.lower(): each for each in known if len(each) > 1}
    for source in site.program.texts:
        for node in (n for n in source.nodes if isinstance(n, ast.Constant)):
            word = node.value
            if not isinstance(word, str) or source.part(node)[:1] not in ("'", '"'):
                continue
            near = [each for each in lower if word and (each in word or word in each)]
            near += difflib.get_close_matches(word.lower(), lower, 3, 0.6)
            for at, other in enumerate(e for e in dict.fromkeys(near) if lower[e] != word):
                far = 0.2 * (known[word] >= known[lower[other]])  # it is the data's
                edits = spliced(source, [(node, f'"{lower[other]}"')])
                yield Candidate(0.3 + far + 0.02 * min(at, 5), edits)


def _words(value: Any, depth: int = 3) -> Iterator[str]:
    """The words of data: of a text, of lists, of dicts and their keys."""
    if isinstance(value, str):
        yield from re.findall(r"\w+", value[:1000])
    elif isinstance(value, dict) and depth:
        for part in (*list(value)[:500], *list(value.values())[:500]):
            yield from _words(part, depth - 1)
    elif isinstance(value, (list, tuple, set)) and depth:
        for part in list(value)[:500]:
            yield from _words(part, depth - 1)


def begun_anew(site: Site, place: Place) -> Iterator[Candidate]:
    """An iterator that has come to its end, begun anew."""
    calls = place.calls() if isinstance(site.error, StopIteration) else []
    for call in (c for c in calls if callee(c) in ("next", "__next__")):
        iterator = [*call.args, getattr(call.func, "value", call)][0]
        bound = site.binding(place, iterator)
        if bound is not None and isinstance(bound.statement, ast.Assign):
            own = f"{place.text(iterator)} = {bound.text(bound.statement.value)}"
            row = textwrap.indent(place.text(place.statement), "    ")
            rows = ("try:", row, "except StopIteration:", f"    {own}", row)
            yield place.written(0.3, "\n".join(rows))


def _lacks_some(rows: Any) -> bool:
    """Whether some of a list, not all, are None."""
    return isinstance(rows, list) and 0 < sum(row is None for row in rows) < len(rows)


def _ends_short(loader: Any, site: Site) -> bool:
    """Whether the message speaks of the last batch of a loader, which has fewer samples."""
    sized = isinstance(loader, DataLoader) and hasattr(loader.dataset, "__len__")
    size = loader.batch_size if sized else None
    return size is not None and _is_smaller(len(loader.dataset) % size, size, site)


def _is_smaller(last: int, size: int, site: Site) -> bool:
    return last > 0 and {last, size} <= {*site.told}


def whole_batches(site: Site, place: Place) -> Iterator[Candidate]:
    """A loop that takes a part of the data each time, without the last part, which is smaller."""
    for node in place.source.nodes:
        if not isinstance(node, ast.For) or callee(node.iter) != "range":
            continue
        bounds: list[ast.expr] = node.iter.args  # type: ignore[attr-defined]
        if len(bounds) != 3:
            continue
        rows, step = _count(place, bounds[1]), place.value(bounds[2])
        last = rows % step if type(rows) is type(step) is int and step > 0 else 0
        alone = last == 1 and "when training" in site.text  # one has no variance
        if alone or _is_smaller(last, step, site):
            whole, text = place.text(bounds[1]), place.text(bounds[2])
            yield place.replaced(0.85, (bounds[1], f"{whole} - {text} + 1"))


def _count(place: Place, node: ast.expr) -> Any:
    """The number that an expression stands for, also as the length of what is known."""
    if callee(node) != "len":
        return place.value(node)
    value = place.value(node.args[0])  # type: ignore[attr-defined]
    return len(value) if hasattr(value, "__len__") else MISSING


def without_one_alone(site: Site, place: Place) -> Iterator[Candidate]:
    """The rounds of a loop that are given one sample passed over, where others were given more."""
    loop = innermost_loop(place) if "when training" in site.text else None
    for name in bound_by(loop) if isinstance(loop, ast.For) else ():
        value = place.value(ast.Name(name, ast.Load()))
        if isinstance(value, Tensor) and value.dim() > 1 and len(value) == 1 and loop is not None:
            first = replace(place, statement=loop.body[0])  # type: ignore[attr-defined]
            yield first.written(0.9, f"if len({name}) == 1:\n    continue\n{{}}")
            return


def padded(
    rows: list[Any], name: str, fills: Mapping[Any, str] = _NO_FILLS, every: bool = False
) -> str:
    """An expression of a batch of ``rows``, those of unequal size padded.

    fills: what each part is padded with, if not with 0; that of the whole under None.
    every: also those that are of equal size in these rows.
    """
    first = rows[0]
    if isinstance(first, tuple) and all(isinstance(r, tuple) for r in rows):
        parts = (
            padded(
                [r[i] for r in rows], f"[r[{i}] for r in {name}]", {None: fills.get(i, "")}, every
            )
            for i in range(len(first))
        )
        return f"({', '.join(parts)})"
    if isinstance(first, dict) and all(
        isinstance(r, dict) and r.keys() == first.keys() for r in rows
    ):
        keys = {key: f'"{key}"' if isinstance(key, str) else repr(key) for key in first}
        parts = (
            f"{text}: "
            + padded(
                [r[key] for r in rows],
                f"[r[{text}] for r in {name}]",
                {None: fills.get(key, "")},
                every,
            )
            for key, text in keys.items()
        )
        return f"{{{', '.join(parts)}}}"
    own = name
    if not isinstance(first, Tensor) and all(map(_is_numeric, rows)):
        parts_of = re.fullmatch(r"\[(.+) for r in (\w+)\]", name)
        part, whole = parts_of.groups() if parts_of is not None else ("r", name)
        rows, own = (
            [torch.as_tensor(r) for r in rows],
            f"[torch.as_tensor({part}) for r in {whole}]",
        )
    shapes = [r.shape for r in rows] if all(isinstance(r, Tensor) for r in rows) else []
    sequences = shapes and len(shapes[0]) > 0 and len({shape[1:] for shape in shapes}) == 1
    if sequences and (every or len({shape[0] for shape in shapes}) > 1):
        fill = f", padding_value={fills[None]}" if fills.get(None) else ""
        return f"torch.nn.utils.rnn.pad_sequence({own}, batch_first=True{fill})"
    if {*map(len, shapes)} == {2} and len({shape[:1] for shape in shapes}) == 1 < len({*shapes}):
        turned = f"[each.T for each in {own}]"  # what is longer comes last
        return f"torch.nn.utils.rnn.pad_sequence({turned}, batch_first=True).transpose(1, 2)"
    return f"torch.utils.data.default_collate({name})"


def _is_numeric(part: Any) -> bool:
    """Whether a value is a tensor, or an array or a list of numbers, of one dimension at least."""
    if isinstance(part, list):
        return bool(part) and all(type(each) in (int, float) for each in part)
    return isinstance(part, Tensor) or (
        isinstance(part, np.ndarray) and part.ndim > 0 and part.dtype.kind in "iufb"
    )


def steps_first(site: Site, place: Place) -> Iterator[Candidate]:
    """Sequences with their steps first, as padding takes them, where their last dimension is the
    one that differs."""
    for call in (c for c in place.calls() if callee(c) == "pad_sequence" and c.args):
        rows, bound = place.value(call.args[0]), site.binding(place, call.args[0])
        tensors = isinstance(rows, list) and all(
            isinstance(r, Tensor) and r.dim() == 2 for r in rows
        )
        if not tensors or len({r.shape[0] for r in rows}) > 1:
            continue
        made = bound_value(bound, spelled(call.args[0])) if bound is not None else None
        if bound is not None and isinstance(made, ast.ListComp):
            turned = f"{bound.whole(made.elt)}.T"
            yield replace(bound, distance=0.0).replaced(0.25, (made.elt, turned))
        rows_of_call = f"[each.T for each in {place.text(call.args[0])}]"
        yield replace(place, distance=0.0).replaced(0.3, (call.args[0], rows_of_call))


def of_one_key(site: Site, place: Place) -> Iterator[Candidate]:
    """What the program itself gives its model of each batch, where a function was given a loader
    of whole batches, which are dicts."""
    if "'dict' object" not in site.text:
        return
    loops = [n for n in place.source.nodes if isinstance(n, ast.For) and spelled(n.target)]
    for call in place.calls():
        for node in call.args:
            for loop in loops if isinstance(place.value(node), DataLoader) else ():
                name = spelled(loop.target)
                if spelled(loop.iter) != spelled(node):
                    continue
                used = (n for row in loop.body for n in ast.walk(row) if isinstance(n, ast.Call))
                for given in (n.args[0] for n in used if n.args):
                    if isinstance(given, ast.Subscript) and spelled(given.value) == name:
                        new = f"({place.text(given)} for {name} in {place.text(node)})"
                        yield replace(place, distance=0.0).replaced(0.3, (node, new))


_TOO_LONG = re.compile(
    r"equal size|non-negative|negative (dimension|value)|of length \d+ at dim|inhomogeneous"
    r"|must match"
)


def cut_to_length(site: Site) -> Iterator[Candidate]:
    """What is padded to a length, cut to it too: some are longer."""
    found: dict[tuple[Any, str, int], list[tuple[Place, str]]] = {}
    for place in site.statements() if _TOO_LONG.search(site.text) else ():
        loops = [n for n in place.source.nodes if isinstance(n, ast.While)]
        tests: list[Any] = [n.test for n in loops if place.statement in n.body]
        for node in (*place.parts(), *tests):
            known, most = list[tuple[str, int]](), node
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                known, most = _length_of(node.right), node.left
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
                known = _length_of(node.left) if node in tests else []
                most = node.comparators[0]
            for name, dim in known:
                padded = found.setdefault((place.function, name, dim), [])
                padded.append((place, place.text(most)))
    for (_, name, dim), padded in found.items():
        first, limit = padded[0]
        if name not in limit:
            cut = f"[{'..., ' if dim < 0 else ':, ' * dim}:{limit}]"
            yield from _cut(site, first, name, cut, len(padded))


def _length_of(node: ast.AST) -> list[tuple[str, int]]:
    """The name of a sequence and the dimension, where an expression is its length there."""
    dim: Any = 0
    if isinstance(node, ast.Call):
        own = node.args[:1] if callee(node) == "len" else []
        owner = getattr(node.func, "value", None)
        if callee(node) == "size" and owner is not None and node.args:
            own, dim = [owner], number_of(node.args[0])
    else:
        of = node.value if isinstance(node, ast.Subscript) else None
        own = [of.value] if isinstance(of, ast.Attribute) and of.attr == "shape" else []
        dim = number_of(node.slice) if own and isinstance(node, ast.Subscript) else 0
    fits = type(dim) is int and dim > -2
    return [(name, dim) for each in own if (name := spelled(each)) and fits]


def _cut(site: Site, place: Place, name: str, cut: str, times: int) -> Iterator[Candidate]:
    """A sequence cut to a length: where it is padded, before it is, or where it was bound."""
    measured = [part for part in place.parts() if name in dict(_length_of(part))]
    lengths = {id(n) for part in measured for n in ast.walk(part)}
    own: list[Any] = [n for n in place.parts() if spelled(n) == name and id(n) not in lengths]
    uses = [n for n in own if isinstance(n.ctx, ast.Load)]
    near = replace(place, distance=0.0)
    changed = [n for n in uses if _is_changed(place, n)]
    rows = [n for n in place.source.nodes if isinstance(n, ast.If | ast.While)]
    around = [n for n in rows if place.statement in n.body and name in names_in(n.test)]
    first = replace(near, statement=around[0]) if around else near
    if len(uses) == 1 and not (changed or around) and times == 1:
        yield near.replaced(0.2, (uses[0], f"{name}{cut}"))
    yield first.written(0.22 + 0.1 * (times > 1), f"{name} = {name}{cut}\n{{}}")
    bound = [n for n in place.source.nodes if isinstance(n, ast.Assign) and bound_by(n) == [name]]
    line = place.statement.lineno
    for row in [n for n in bound if n.lineno < line][-1:]:
        made = site.place(place.source, row, 0.0)
        if made.function is place.function:
            yield made.replaced(0.25, (row.value, f"{made.whole(row.value)}{cut}"))


def _is_changed(place: Place, node: ast.AST) -> bool:
    """Whether a statement changes what a name stands for, as ``ids.extend(...)`` does."""
    owners = [getattr(call.func, "value", None) for call in place.calls()]
    return any(owner is node for owner in owners) and isinstance(place.statement, ast.Expr)
