"""Names and attributes that nearly are others."""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from traceback import walk_tb
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset

from nanlab.explanations.edits.gradients import is_cut
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
    first_line,
    function_around,
    is_return,
    lines_as,
    names_in,
    rows_of,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source
from nanlab.findings.rule import Edit
from nanlab.operators import having

_KEYS = 12  # of a dict, that are tried where none nearly is the one that it lacks

_ALL_OTHERS = re.compile(r"(?i)\b(unk|unknown|oov)\b")  # a key that stands for those not known


def near_names(site: Site, place: Place) -> Iterator[Candidate]:
    """Names, attributes and keys that nearly are others."""
    error = site.error
    for node in place.parts():
        if isinstance(error, AttributeError) and isinstance(node, ast.Attribute):
            if node.attr != error.name or place.value(node) is not MISSING:
                continue
            keys: Any = place.value(node.value)
            if isinstance(keys, dict) and node.attr in keys:
                yield place.replaced(0.3, (node, f"{place.text(node.value)}[{node.attr!r}]"))
            for cost, near in _attributes(site, place, node):
                yield place.replaced(cost, (node, f"{place.text(node.value)}.{near}"))
            yield from _of_another_type(place, node, error.obj)
            if error.name == "get" and hasattr(error.obj, "__getitem__"):
                for call in (c for c in place.calls() if c.func is node and c.args):
                    text = f"{place.text(node.value)}[{place.text(call.args[0])}]"
                    yield place.replaced(0.3, (call, text))
        elif isinstance(error, NameError) and isinstance(node, ast.Name):
            if node.id == error.name:
                yield from _known_names(place, node)
        elif isinstance(error, KeyError) and isinstance(node, ast.Dict):
            for key in (k for k in node.keys if isinstance(k, ast.Constant)):
                if difflib.get_close_matches(str(key.value), map(str, error.args), 1, 0.6):
                    yield place.replaced(0.4, (key, repr(error.args[0])))
        elif isinstance(error, KeyError) and isinstance(node, ast.Subscript):
            owner = place.value(node.value)
            yield from _begun(place, node)
            keys = [k for k in owner if isinstance(k, str)] if hasattr(owner, "keys") else []
            for near in difflib.get_close_matches(str(error.args[0]), keys, 2, 0.7):
                for source in site.program.texts:
                    words = (n for n in source.nodes if isinstance(n, ast.Constant))
                    same = [(n, repr(near)) for n in words if n.value == error.args[0]]
                    yield Candidate(0.35, spliced(source, same))
            for form, key in _other_types(error.args[0]):
                if hasattr(owner, "keys") and key in owner:
                    text = form.format(place.text(node.slice))
                    yield place.replaced(0.3, (node.slice, text))
            known = owner if isinstance(owner, dict) else {}
            for rest in (k for k in known if _ALL_OTHERS.search(str(k))):
                of, index = place.text(node.value), place.text(node.slice)
                yield place.replaced(0.3, (node, f"{of}.get({index}, {of}[{rest!r}])"))
            if isinstance(owner, dict) and isinstance(node.slice, ast.Constant):
                keys = [k for k in owner if isinstance(k, str)]
                alike = difflib.get_close_matches(str(node.slice.value), keys, 3, 0.5)
                quote = place.text(node.slice)[-1]
                apart = [k for k in keys if not isinstance(owner[k], (int, float, str))]
                for at, other in enumerate(dict.fromkeys([*alike, *apart[:_KEYS]])):
                    yield place.replaced(0.4 + 0.02 * at, (node.slice, f"{quote}{other}{quote}"))


def of_all_others(site: Site) -> Iterator[Candidate]:
    """The number that a table has for all words that it does not know, where it was asked for
    another, beyond the last row."""
    for source in site.program.texts if _BEYOND.search(site.text) else ():
        texts = [str(n.value) for n in source.nodes if isinstance(n, ast.Constant)]
        words = [w for w in dict.fromkeys(texts) if _ALL_OTHERS.search(w) and len(w) < _LONG]
        for place in (p for p in site.statements() if p.source is source):
            own, names = replace(place, distance=0.0), place.names()
            others = [n for n in names if _IS_OTHER.search(n) and type(names[n]) is int]
            pairs = [pair for node in place.parts() for pair in _else_of(node)]
            for table, default in pairs:
                known, of = place.value(table), place.text(table)
                keys = [w for w in words if not isinstance(known, dict) or w in known]
                meant = [f'{of}["{key}"]' for key in keys] + others
                for at, text in enumerate(t for t in meant if t != place.text(default)):
                    yield own.replaced(0.35 + 0.02 * at, (default, text))


_IS_OTHER = re.compile(r"(?i)(^|_)(unk|unknown|oov)(_|$)")
_BEYOND = re.compile("out of (range|bounds)|not in the valid range")
_LONG = 16  # letters of a text that is no key


def _else_of(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """A table, and what is taken where it lacks a key."""
    if isinstance(node, ast.Call) and callee(node) == "get" and len(node.args) == 2:
        yield node.func.value, node.args[1]  # type: ignore[attr-defined]
    test = getattr(node, "test", None)
    if isinstance(node, ast.IfExp) and isinstance(test, ast.Compare):
        if isinstance(test.ops[0], ast.In | ast.NotIn):
            within = isinstance(test.ops[0], ast.In)
            yield test.comparators[0], node.orelse if within else node.body


def _begun(place: Place, node: ast.Subscript) -> Iterator[Candidate]:
    """What a dict adds to under a new key, begun as a list, a dict or 0."""
    of, key = place.text(node.value), place.text(node.slice)
    for part in place.parts():
        if isinstance(part, ast.Attribute) and part.value is node and part.attr == "append":
            yield place.replaced(0.35, (node, f"{of}.setdefault({key}, [])"))
        stored = isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store)
        if stored and part.value is node:  # type: ignore[attr-defined]
            yield place.replaced(0.35, (node, f"{of}.setdefault({key}, {{}})"))
    row = place.statement
    if isinstance(row, ast.AugAssign) and row.target is node and isinstance(row.op, ast.Add):
        yield place.written(0.35, f"{of}[{key}] = {of}.get({key}, 0) + {place.text(row.value)}")


def _other_types(key: Any) -> Iterator[tuple[str, Any]]:
    """A key as one of another type, and how that is written."""
    if isinstance(key, Tensor) and key.numel() == 1:
        yield "{}.item()" if key.is_floating_point() else "int({})", key.item()
    elif type(key) is int:
        yield "str({})", str(key)
    elif isinstance(key, str) and key.isdecimal():
        yield "int({})", int(key)
    for form, spelling in SPELLINGS.items() if isinstance(key, str) else ():
        yield "{}" + form, spelling(key)


# Ways to write a word that people write in several, as methods of it.
SPELLINGS: dict[str, Callable[[str], str]] = {
    ".strip()": str.strip,
    ".lower()": str.lower,
    ".strip().lower()": lambda word: word.strip().lower(),
    ".upper()": str.upper,
    ".title()": str.title,
}


def of_all_data(site: Site, place: Place) -> Iterator[Candidate]:
    """All lists of the data, where what they have was counted or numbered by one of them."""
    if not isinstance(site.error, KeyError):
        return
    known = {n: v for n, v in place.names().items() if isinstance(v, list) and v and n[0] != "_"}
    for node in place.parts():
        own = known.get(getattr(node, "id", "")) if isinstance(node, ast.Name) else None
        for name, other in known.items() if own else ():
            if other is not own and own and type(other[0]) is type(own[0]):
                if type(own[0]) is not tuple or len(other[0]) == len(own[0]):
                    both = f"{place.text(node)} + {name}"
                    yield replace(place, distance=0.0).replaced(0.45, (node, both))


def of_first(site: Site, place: Place) -> Iterator[Candidate]:
    """What each dict of a list has under a key: of the first, or, where it is written, of all."""
    for node in place.parts() if "list indices must be integers" in site.text else ():
        of = place.value(node.value) if isinstance(node, ast.Subscript) else None
        if not isinstance(node, ast.Subscript) or not isinstance(of, list) or not of:
            continue
        if isinstance(of[0], dict) and isinstance(place.value(node.slice), str):
            text = place.text(node.value)
            yield place.replaced(0.35, (node.value, f"{text}[0]"))
            if len(of) > 1 and any(node in call.args for call in place.calls()):
                each = f"[each[{place.text(node.slice)}] for each in {text}]"
                yield place.replaced(0.3, (node, each))
            if isinstance(node.ctx, ast.Store) and len(of) > 1:
                each = place.text(place.statement).replace(text, "group")
                yield place.written(0.3, f"for group in {text}:\n    {each}")


def of_texts(site: Site, place: Place) -> Iterator[Candidate]:
    """The keys of layers as texts, where these are given and looked up."""
    if "name should be a string" not in site.text:
        return
    names, pairs = bound_by(place.statement), list[tuple[ast.AST, str]]()
    for node in place.parts():
        keys = node.keys if isinstance(node, ast.Dict) else [getattr(node, "key", None)]
        pairs += [(key, f"str({place.text(key)})") for key in keys if key is not None]
    for node in place.source.nodes:
        if isinstance(node, ast.Subscript) and spelled(node.value) in names:
            pairs.append((node.slice, f"str({place.text(node.slice)})"))
    if pairs:
        yield place.replaced(0.3, *pairs)


# What is done with each tensor of a batch.
_FOR_EACH = "to cuda cpu float long half detach clone numpy item pin_memory".split()


def _of_another_type(place: Place, node: ast.Attribute, owner: Any) -> Iterator[Candidate]:
    """What a method of a tensor, of a list or of an older version stands for, by the type of what
    lacks it."""
    text, name = place.text(node.value), node.attr
    if isinstance(owner, Subset) and hasattr(owner.dataset, name):
        whole, own = f"{text}.dataset.{name}", getattr(owner.dataset, name)
        rows: Any = owner.dataset
        if isinstance(own, (Tensor, np.ndarray)):
            yield place.replaced(0.3, (node, f"{whole}[{text}.indices]"))
        elif isinstance(own, tuple) and isinstance(own[0], Tensor):  # of a TensorDataset
            parts = [n for n in place.parts() if isinstance(n, ast.Subscript)]
            taken = [n for n in parts if n.value is node]
            yield place.replaced(
                0.3, *((n, f"{whole}[{place.text(n.slice)}][{text}.indices]") for n in taken)
            )
        elif isinstance(own, list) and len(own) == len(rows):
            yield place.replaced(0.3, (node, f"[{whole}[i] for i in {text}.indices]"))
        else:
            yield place.replaced(0.3, (node, whole))
    if callable(owner) and not isinstance(owner, (nn.Module, type)):  # it was only named
        yield place.replaced(0.3, (node.value, f"{text}()"))
    if name in getattr(owner, "defaults", ()):  # of an optimizer, for each of its groups
        yield place.replaced(0.3, (node, f'{text}.param_groups[0]["{name}"]'))
    if name == "lr" and hasattr(owner, "get_last_lr"):
        yield place.replaced(0.3, (node, f"{text}.get_last_lr()[0]"))
    if isinstance(owner, nn.Module) and name == "module":  # it is not wrapped
        own = [n for n in place.source.nodes if isinstance(n, ast.Attribute) and n.attr == name]
        same = [n for n in own if place.text(n) == place.text(node)]
        yield place.replaced(0.3, *((n, text) for n in same))
    for call in (c for c in place.calls() if c.func is node):
        given = place.text(call)[len(place.text(node)) :]
        if name == "next" and isinstance(owner, Iterator):
            yield place.replaced(0.3, (call, f"next({text})"))
        if isinstance(owner, (int, float)) and name in ("item", "detach", "cpu", "numpy"):
            yield place.replaced(0.3, (call, text))
        parts = [*owner.values()] if isinstance(owner, dict) else owner
        known = [hasattr(each, name) for each in parts] if isinstance(parts, (list, tuple)) else []
        if any(known) and name in _FOR_EACH:
            own = f"each.{name}{given}" + f' if hasattr(each, "{name}") else each' * (
                not all(known)
            )
            new = f"[{own} for each in {text}]"
            if isinstance(owner, dict):
                new = f"{{key: {own} for key, each in {text}.items()}}"
            yield place.replaced(0.3, (call, new))


def of_first_part(site: Site, place: Place) -> Iterator[Candidate]:
    """The first of several parts, as of what an RNN gives or a hook is given, wherever a function
    reads it."""
    for node in place.parts() if re.search("tuple|list", site.text) else ():
        value = place.value(node) if spelled(node) else MISSING
        read = [n for n in place.parts() if isinstance(n, ast.Attribute) and n.value is node]
        if not isinstance(value, (tuple, list)) or not value or hasattr(value, "_fields"):
            continue
        if not all(hasattr(value[0], each.attr) for each in read):
            continue
        if read and isinstance(value, tuple) and _is_hooked(site, place):
            name = place.text(node)
            first = f"{name} = {name}[0] if isinstance({name}, tuple) else {name}"
            yield place.written(0.24 - place.distance, f"{first}\n{{}}")
        several = len(value) > 1 and all(type(each) is type(value[0]) for each in value)
        for whole in (place.statement, *([place.function] if place.function is not None else [])):
            same = [n for n in ast.walk(whole) if place.text(n) == place.text(node)]
            same = [n for n in same if isinstance(getattr(n, "ctx", None), ast.Load)]
            taken = {id(n.value) for n in ast.walk(whole) if isinstance(n, ast.Subscript)}
            pairs = [(n, f"{place.text(n)}[0]") for n in same if id(n) not in taken]
            if isinstance(value[0], (Tensor, np.ndarray)) and pairs:
                more = 0.02 * (whole is not place.statement) + 0.5 * several
                yield place.replaced(0.25 + more - place.distance, *pairs)


def _is_hooked(site: Site, place: Place) -> bool:
    """Whether a function is a hook: modules call it, and give what it gives."""
    steps = [frame for frame, _ in walk_tb(site.error.__traceback__)]
    callers = [a.f_code for a, b in pairwise(steps) if b.f_code is place.frame.f_code]
    return place.frame.f_code.co_name != "forward" and any(
        code.co_filename == nn.Module.__call__.__code__.co_filename for code in callers
    )


def of_now(site: Site) -> Iterator[Candidate]:
    """What the message says to use in place of an attribute that a module has no more, wherever
    the program reads that."""
    gone = isinstance(site.error, AttributeError) and re.search(r"`([\w.]+)\.(\w+)`", site.text)
    told = re.findall(r"(?i)\b(?:use|e\.g\.|favor of|or) `([\w.]+)`", site.text) if gone else []
    for at, new in enumerate(dict.fromkeys(told)):
        edits: list[Edit] = []
        for source in site.program.texts:
            read = [n for n in source.nodes if gone and getattr(n, "attr", "") == gone[2]]
            pairs = []
            for node in (n for n in read if isinstance(n, ast.Attribute)):
                own, head = site.raising[0].value(node.value), new.partition(".")[0]
                known = isinstance(own, ModuleType) and not hasattr(own, node.attr)
                inner = head in (own.__name__, gone[1]) if known and gone else False
                if known:
                    name = source.part(node.value) + new[len(head) :] if inner else new
                    pairs.append((node, name))
            edits += spliced(source, pairs)
        yield Candidate(0.1 + 0.03 * at, tuple(edits))


def from_elsewhere(site: Site) -> Iterator[Candidate]:
    """A name imported from the module that has it: of torch, of the same package or of one that the
    program imports; or one that nearly is so named."""
    place, row = site.raising[0], site.raising[0].statement
    told = re.search(r"cannot import name '(\w+)' from", site.text)
    names = row.names if isinstance(row, ast.ImportFrom) and not row.level else []
    old = next((each for each in names if told is not None and each.name == told[1]), None)
    if old is None or not isinstance(row, ast.ImportFrom) or row.module is None:
        return
    rest = [place.text(each) for each in names if each is not old]
    begun = f"from {row.module} import "
    parts = [n for n in dir(sys.modules.get(row.module)) if n[0] != "_"]
    for at, near in enumerate(difflib.get_close_matches(old.name, parts, 2, 0.8)):
        new = f"{near} as {old.asname or old.name}"
        yield place.written(0.35 + 0.02 * at, begun + ", ".join([*rest, new]))
    kept = f"{begun}{', '.join(rest)}\n" if rest else ""
    for cost, path in sorted(_holders(site, row.module, old.name))[:_HOLDERS]:
        yield place.written(0.2 + cost, f"{kept}from {path} import {place.text(old)}")


def _holders(site: Site, lacking: str, name: str) -> Iterator[tuple[float, str]]:
    """The modules that have a name, of the packages that the program imports, and how unusual it is
    that it is meant."""
    nodes = [n for source in site.program.texts for n in source.nodes]
    used = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    used += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    roots = {path.partition(".")[0] for path in (*used, "torch")}
    for path, module in [*sys.modules.items()]:
        own = vars(module) if isinstance(module, ModuleType) else {}
        public = not any(part[:1] == "_" for part in path.split(".")) and path != lacking
        if path.partition(".")[0] in roots and public and own.get(name) is not None:
            plain = name in (own.get("__all__") or [name])
            yield 0.03 * path.count(".") + 0.1 * (path not in _USUAL) + 0.1 * (not plain), path


_HOLDERS = 8  # modules that a name is imported from
_USUAL = ("torch", "torch.nn", "torch.optim", "torch.nn.functional", "torch.utils.data")


def of_values(site: Site) -> Iterator[Candidate]:
    """The part that is meant of what a call gives by name, as the values of ``max(1)``, which
    gives the indices too: of one call, or of all."""
    told = set(re.findall(r"return_types\.(\w+)", site.text))
    near = {id(place.statement): replace(place, distance=0.0) for place in site.bound}
    places = {id(place.statement): place for place in site.statements()} if told else {}
    every: dict[Source, list[tuple[ast.AST, str]]] = {}
    for key, place in (places | near).items() if told else ():
        whole = getattr(place.statement, "value", None)
        target = getattr(place.statement, "targets", [whole])[0]
        kinds = (ast.Attribute, ast.Subscript)
        taken = {id(n.value) for n in place.parts() if isinstance(n, kinds)}
        taken |= {id(whole)} if isinstance(target, ast.Tuple) else set()
        for call in (c for c in place.calls() if id(c) not in taken):
            parts = _parts_of(told, callee(call), "".join(bound_by(place.statement)))
            for at, part in enumerate(parts):
                pair = call, f"{place.text(call)}.{part}"
                yield place.replaced(0.25 + 0.05 * (key not in near) + 0.02 * at, pair)
                if not at:
                    every.setdefault(place.source, []).append(pair)
    for source, pairs in every.items():
        if len(pairs) > 1:
            yield Candidate(0.3, spliced(source, pairs))


def _parts_of(kinds: set[str], function: str, name: str) -> list[str]:
    """The names of the parts that a function gives, those first that are like what they are bound
    to, and like the function."""
    of = next((kind for kind in kinds if kind.removeprefix("linalg_") == function), "")
    parts = getattr(getattr(torch.return_types, of, None), "__match_args__", ()) if of else ()
    for word in (function, name):
        near = difflib.get_close_matches(word, parts, 1, 0.6)
        parts = [*near, *(each for each in parts if each not in near)]
    return [*parts]


def taken_apart(site: Site) -> Iterator[Candidate]:
    """The first of the parts that a call gives, where its result was bound whole to a name."""
    told = re.search("tuple|infer dtype of dict", site.text)
    read = site.raising[0].parts() if told is not None else []
    values = [site.raising[0].value(node) for node in read if spelled(node)]
    parts = {id(v): len(v) for v in values if type(v) is tuple and 1 < len(v) < _FEW}
    for place in site.statements() if parts else ():
        row = place.statement
        target = row.targets[0] if isinstance(row, ast.Assign) else row
        count = parts.get(id(place.value(target)), 0) if isinstance(target, ast.Name) else 0
        if count and isinstance(getattr(row, "value", None), ast.Call):
            layer = place.value(row.value.func)  # type: ignore[attr-defined]
            with_state = isinstance(layer, (nn.RNNBase, nn.MultiheadAttention))
            cost = 0.24 if with_state and not _is_parted(place, place.text(target)) else 0.6
            yield place.replaced(cost, (target, place.text(target) + (count - 1) * ", _"))


def _is_parted(place: Place, name: str) -> bool:
    """Whether a function takes a part of what a name stands for: by its number, or by a target."""
    nodes = [*ast.walk(place.function or place.source.tree)]
    pairs = [(n.targets[0], n.value) for n in nodes if isinstance(n, ast.Assign)]
    taken = [value for target, value in pairs if isinstance(target, ast.Tuple)]
    numbers = [n for n in nodes if isinstance(n, ast.Subscript)]
    taken += [n.value for n in numbers if type(place.value(n.slice)) is int]
    return any(spelled(each) == name for each in taken)


_FEW = 4  # parts that are told apart by a comma each


def lists(site: Site, place: Place) -> Iterator[Candidate]:
    """A name that is bound to a number and appended to, as an empty list."""
    for node in place.parts() if "has no attribute 'append'" in site.text else ():
        if isinstance(node, ast.Attribute) and node.attr == "append":
            bound = site.binding(place, node.value)
            made = bound_value(bound, spelled(node.value))
            if bound is not None and isinstance(made, ast.Constant):
                yield replace(bound, distance=0.0).replaced(0.35, (made, "[]"))


_REGISTERS = ("register_buffer", "register_parameter", "register_module", "add_module")
_BY_NAME = ("getattr", "setattr", "hasattr", "delattr")


def without_dots(site: Site, place: Place) -> Iterator[Candidate]:
    """Names of layers without the dots that they may not hold, wherever they are looked up."""
    told = re.search(r'contain "\.", got: (\S+?)[\'"]*$', site.text)
    words = [n for n in place.source.nodes if told and getattr(n, "value", "") == told[1]]
    if told and words:
        new = repr(told[1].replace(".", "_"))
        yield place.replaced(0.3, *((n, new) for n in words if isinstance(n, ast.Constant)))
    for node in place.parts() if 'contain "."' in site.text else ():
        owner = place.text(node.value) if isinstance(node, ast.Subscript) else ""
        pairs: list[tuple[ast.AST, str]] = []
        for each in (n for n in place.source.nodes if owner and isinstance(n, ast.Subscript)):
            if place.text(each.value) == owner:
                pairs.append((each.slice, f'{place.text(each.slice)}.replace(".", "_")'))
        if isinstance(node, ast.Call) and node.args:
            pairs = [(node.args[0], f'{place.text(node.args[0])}.replace(".", "_")')]
        if pairs:
            yield place.replaced(0.4, *pairs)
    named = [place.text(n.args[0]) for n in place.calls() if n.args and callee(n) in _REGISTERS]
    calls = [n for n in place.source.nodes if isinstance(n, ast.Call)]
    of = {id(n): (n.args[1:2] if callee(n) in _BY_NAME else n.args[:1]) for n in calls}
    known = [a for n in calls if callee(n) in (*_BY_NAME, *_REGISTERS) for a in of[id(n)]]
    built = [a for a in known if not isinstance(a, ast.Constant)]
    if named and 'contain "."' in site.text and len(built) > 1:
        pairs = [(a, f'{place.whole(a)}.replace(".", "_")') for a in built]
        yield place.replaced(0.38, *pairs)


def those_that_have_it(site: Site, place: Place) -> Iterator[Candidate]:
    """Of what a loop or a comprehension goes through, what has the attribute."""
    lacking = site.error.name if isinstance(site.error, AttributeError) else None
    loops = [n for n in place.source.nodes if isinstance(n, ast.For)]
    for node in place.parts():
        if isinstance(node, ast.Attribute) and node.attr == lacking:
            name = place.text(node.value)
            test = f'if hasattr({name}, "{lacking}")'
            for part in place.parts():
                if isinstance(part, ast.comprehension) and place.text(part.target) == name:
                    yield place.replaced(0.45, (part.iter, f"{place.text(part.iter)} {test}"))
            if any(n.body == place.block and place.text(n.target) == name for n in loops):
                own = textwrap.indent(place.text(place.statement), "    ")
                yield place.written(0.45, f"{test}:\n{own}")
            branches = [n for n in place.source.nodes if isinstance(n, ast.If)]
            for branch in (n for n in branches if place.statement in n.body):
                loose = isinstance(branch.test, (ast.BoolOp, ast.IfExp, ast.NamedExpr))
                text = f"({place.text(branch.test)})" if loose else place.text(branch.test)
                both = f'{text} and hasattr({name}, "{lacking}")'
                yield place.replaced(0.4, (branch.test, both))
            around = place.function  # that is called for each module
            if around is not None and name in {a.arg for a in around.args.args} - {"self"}:
                first, last = place.statement.lineno, around.end_lineno or 0
                if place.statement in around.body and not any(map(is_return, ast.walk(around))):
                    indent = " " * place.statement.col_offset
                    rows = [f"{indent}{test}:", *place.source.lines[first - 1 : last]]
                    text = "\n".join((rows[0], *("    " + row for row in rows[1:])))
                    yield Candidate(0.45, (lines_as(place.source, first, last, text),))


_JOINS = ("cat", "parameters_to_vector")  # what makes one vector of several
_ONE_BY_ONE = having("sized") | {"flatten", "ravel"}  # and of what has several dimensions


def without_gradient(site: Site, place: Place) -> Iterator[Candidate]:
    """A loop, or a comprehension, that passes over parameters without a gradient."""
    learned = any(p.grad is not None for module in site.modules for p in module.parameters())
    for node in place.parts() if learned and "NoneType" in site.text else ():
        if not isinstance(node, ast.Attribute) or node.attr != "grad":
            continue
        owner, own = place.text(node.value), place.text(node)
        for part in place.parts():
            if isinstance(part, ast.comprehension) and place.text(part.target) == owner:
                joins = any(callee(call) in _JOINS for call in place.calls())
                joins = joins or any(
                    isinstance(n, ast.Attribute) and n.value is node and n.attr in _ONE_BY_ONE
                    for n in place.parts()
                )
                zeros = f"(torch.zeros_like({owner}) if {own} is None else {own})"
                if joins:  # each has its place in the whole
                    yield replace(place, distance=0.0).replaced(0.2, (node, zeros))
                yield place.replaced(
                    0.4, (part.iter, f"{place.text(part.iter)} if {own} is not None")
                )
        if place.value(node) is None and any(_turns(n, place, owner) for n in place.source.nodes):
            yield place.written(0.4, f"if {own} is None:\n    continue\n{{}}")


def where_it_is_given(site: Site, place: Place) -> Iterator[Candidate]:
    """What is done with an argument that need not be given, or a parameter that a layer need not
    have, where there is one."""
    if not isinstance(site.error, AttributeError) or not isinstance(place.statement, ast.Expr):
        return
    given = place.function.args if place.function is not None else None
    names = [each.arg for each in given.args] if given is not None else []
    defaults = given.defaults if given is not None else []
    optional = {
        name
        for name, default in zip(reversed(names), reversed(defaults), strict=False)
        if isinstance(default, ast.Constant) and default.value is None
    }
    for node in place.parts():
        of = node.value if isinstance(node, ast.Attribute) else node
        if not isinstance(node, ast.Attribute) or place.value(of) is not None:
            continue
        layer = place.value(of.value) if isinstance(of, ast.Attribute) else None
        parts = vars(layer).get("_parameters", {}) if isinstance(layer, nn.Module) else {}
        if spelled(of) in optional or getattr(of, "attr", "") in parts:
            own = textwrap.indent(place.text(place.statement), "    ")
            yield place.written(0.4, f"if {place.text(of)} is not None:\n{own}")


def _turns(loop: ast.AST, place: Place, name: str) -> bool:
    """Whether a statement is one of those that a loop repeats for each value of a name."""
    line = place.statement.lineno
    inside = isinstance(loop, ast.For) and loop.lineno < line <= (loop.end_lineno or 0)
    return inside and name in bound_by(loop)


def _attributes(site: Site, place: Place, node: ast.Attribute) -> Iterator[tuple[float, str]]:
    """Attributes that nearly have a name; those of a module that may be used in its place."""
    owner: Any = site.error.obj  # type: ignore[attr-defined]
    names = [n for n in dir(owner) if not n.startswith("__")]
    for at, near in enumerate(difflib.get_close_matches(node.attr, names, 4, 0.6)):
        yield 0.3 + 0.05 * at, near
    asked = [n.attr for n in place.parts() if isinstance(n, ast.Attribute) and n.value is node]
    called = any(isinstance(n, ast.Call) and n.func is node for n in place.parts())
    parts = vars(owner) if isinstance(owner, nn.Module) else {}
    text = "\n".join(each.text for each in site.program.sources)
    for kind in ("_modules", "_parameters", "_buffers"):
        for at, (name, part) in enumerate(reversed(parts.get(kind, {}).items())):
            if all(hasattr(part, each) for each in asked) and (callable(part) or not called):
                used = len(re.findall(rf"\.{name}\b", text)) > 1
                yield 0.6 + 0.2 * used + 0.02 * at, name


def methods_without_self(site: Site) -> Iterator[Candidate]:
    """A method that does not take its own object; of an autograd function, its context."""
    told = re.search(r"(\w+)\.(\w+)\(\) takes .* but \d+ w", site.text)
    names = told.groups() if told is not None else ()
    for source in site.program.texts:
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            for each in (n for n in kind.body if isinstance(n, ast.FunctionDef)):
                first = [a.arg for a in each.args.args[:1]]
                if (kind.name, each.name) == names and first not in (["self"], ["cls"], ["ctx"]):
                    own = "ctx" if each.decorator_list else "self"
                    old = source.lines[each.lineno - 1]
                    new = old.replace("(", f"({own}, " if first else f"({own}", 1)
                    yield Candidate(0.3, (lines_as(source, each.lineno, each.lineno, new),))


def more_parameters(site: Site) -> Iterator[Candidate]:
    """A function that is called with more arguments than it takes: by torch, as a hook."""
    told = re.search(r"(\w+)>?\(\) takes (\d+) positional arguments? but (\d+) w", site.text)
    lacking = int(told[3]) - int(told[2]) if told is not None else 0
    if told is None or not 0 < lacking <= len(_UNREAD):
        return
    called = {callee(call) for call in site.raising[0].calls()}
    for source in site.program.texts:
        for node in source.nodes:
            named = getattr(node, "name", "lambda") == told[1]
            taken = node.args.args if named and isinstance(node, Function | ast.Lambda) else []
            if len(taken) != int(told[2]):
                continue
            names = [each.arg for each in taken]
            cost = 1.4 if told[1] in called else 0.6
            own = names[:1] == ["self"]
            if lacking > 1 and len(names) - own == 1:
                for far, edits in _amid(source, taken[-1], lacking):
                    yield Candidate(cost + far, edits)
            for at in range(len(names), -1 + own, -1) if lacking == 1 else ():
                old, last = taken[min(at, len(names) - 1)], at == len(names)
                text = source.part(old)
                edits = spliced(source, [(old, f"{text}, _" if last else f"_, {text}")])
                given = re.match("in|arg", names[-1]) is not None  # what it gives comes after
                yield Candidate(cost + 0.02 * (last != given), edits)


def as_its_base(site: Site) -> Iterator[Candidate]:
    """A method with the parameters that it has in the class it overrides, where it is called with
    one of them: the one, or all; handed on to that class where the method calls it."""
    told = re.search(
        r"(\w+)\.(\w+)\(\) (?:got an unexpected keyword argument '(\w+)'|takes )", site.text
    )
    for source in site.program.texts if told is not None else ():
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            for each in (n for n in kind.body if isinstance(n, ast.FunctionDef)):
                if told is None or (kind.name, each.name) != told.group(1, 2):
                    continue
                taken = [*each.args.posonlyargs, *each.args.args]
                own = {a.arg for a in (*taken, *each.args.kwonlyargs)}
                base = _of_base(site, kind, each.name)
                more = {name: p for name, p in base.items() if name not in own}
                after = [*base][len(taken) :]  # they may have other names here
                named = [[told[3]], [*more]] if told[3] else [after]
                for names in named if taken and not each.args.kwonlyargs else ():
                    if {*names} <= more.keys() and names:
                        pairs = [_after_last(source, each, [more[n] for n in names])]
                        pairs += _handed_on(source, each, names)
                        yield Candidate(0.25 + 0.02 * (len(names) > 1), spliced(source, pairs))


def of_its_own_first(site: Site) -> Iterator[Candidate]:
    """A ``__getattr__`` that looks its own attributes up in itself, without end: in a module, after
    what the module holds; elsewhere, not for those that it reads."""
    endless = isinstance(site.error, RecursionError)
    for source in site.program.texts if endless else ():
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            for each in (n for n in kind.body if getattr(n, "name", "") == "__getattr__"):
                method: Any = each
                own, name = (*(a.arg for a in method.args.args), "", "")[:2]
                place = site.place(source, method.body[0], 0.0)
                known = [frame.f_globals.get(kind.name) for frame, _ in site.frames[-1:]]
                bases = [k for k in known if isinstance(k, type) and issubclass(k, nn.Module)]
                if bases:
                    first = f"try:\n    return super().__getattr__({name})"
                    yield place.written(0.2, f"{first}\nexcept AttributeError:\n    pass\n{{}}")
                read = {n for row in method.body for n in names_in(row) if n.startswith("self.")}
                words = ", ".join(f'"{n[5:]}"' for n in sorted(read))
                test = f"{name} == {words}" if len(read) == 1 else f"{name} in ({words})"
                if read and own == "self":
                    text = f"if {test}:\n    raise AttributeError({name})\n{{}}"
                    yield place.written(0.25, text)


def of_its_own_class(site: Site) -> Iterator[Candidate]:
    """The constructor of the class that a class is derived from, where that of one further up was
    called, and the first passed over."""
    for source in site.program.texts:
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            bases = {source.part(base) for base in kind.bases}
            for each in (n for n in kind.body if getattr(n, "name", "") == "__init__"):
                begun: Any = each
                own = [a.arg for a in (*begun.args.args, *begun.args.kwonlyargs)][1:]
                for call in (n for n in ast.walk(each) if callee(n) == "__init__"):
                    upper = _passed_over(source, call, kind.name, bases)
                    if upper is None:
                        continue
                    given = [source.part(a) for a in (*upper, *call.keywords)]  # type: ignore
                    base = {} if given else _of_base(site, kind, "__init__")
                    names = [name for name in [*base][1:] if name in own]
                    first = names == [*base][1 : 1 + len(names)]
                    given += [name if first else f"{name}={name}" for name in names]
                    text = f"super().__init__({', '.join(given)})"
                    yield Candidate(0.2, spliced(source, [(call, text)]))


def _passed_over(source: Source, call: Any, name: str, bases: set[str]) -> list[ast.expr] | None:
    """The arguments of a call of a constructor further up than that of a base; None: it is not.

    name: of the class that calls it, which is derived from these bases.
    """
    owner: Any = getattr(call.func, "value", call)
    if callee(owner) == "super" and len(owner.args) == 2:
        return call.args if source.part(owner.args[0]) in bases - {name} else None
    first = call.args[0] if call.args else call
    by_name = isinstance(owner, ast.Name | ast.Attribute) and getattr(first, "owner", False)
    return call.args[1:] if by_name and source.part(owner) not in bases else None


def _of_base(site: Site, kind: ast.ClassDef, name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a method as the first class has it that this one was derived from."""
    kinds = [frame.f_globals.get(kind.name) for frame, _ in site.frames]
    kinds += map(type, site.modules)
    own = [each for each in kinds if getattr(each, "__name__", "") == kind.name]
    bases = own[0].__mro__[1:-1] if own and isinstance(own[0], type) else ()
    base = next((each for each in bases if name in vars(each)), None)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    with suppress(TypeError, ValueError):  # of one that is built in, they may not be known
        known = inspect.signature(getattr(base, name)).parameters if base is not None else {}
        return {n: p for n, p in known.items() if p.kind not in several}
    return {}


def _after_last(
    source: Source, function: ast.FunctionDef, more: list[inspect.Parameter]
) -> tuple[ast.AST, str]:
    """The last parameter of a function, with others after it."""
    last, defaults = function.args.args[-1], function.args.defaults
    none = inspect.Parameter.empty
    needed = "" if not defaults else "=None"
    texts = [p.name + (needed if p.default is none else f"={p.default!r}") for p in more]
    end: Any = defaults[-1] if defaults else (last.annotation or last)
    return end, ", ".join([source.part(end), *texts])


def _handed_on(
    source: Source, function: ast.FunctionDef, names: list[str]
) -> Iterator[tuple[ast.AST, str]]:
    """The calls of a method by which it calls the one that it overrides, with more arguments."""
    for call in (n for n in ast.walk(function) if callee(n) == function.name):
        if isinstance(call, ast.Call) and callee(getattr(call.func, "value", call)) == "super":
            given = "".join(f", {name}={name}" for name in names)
            text = source.part(call)[:-1].rstrip().rstrip(",")
            yield call, f"{text}{given if call.args or call.keywords else given[2:]})"


def fewer_parameters(site: Site) -> Iterator[Candidate]:
    """A function without those parameters that it does not read, where torch gives it less."""
    told = re.search(r"(\w+)>?\(\) missing (\d+) required positional", site.text)
    known = {callee(call) for call in site.raising[0].calls()}
    if told is None or told[1] in known:
        return
    for source in site.program.texts:
        for node in source.nodes:
            named = getattr(node, "name", "lambda") == told[1]
            if not named or not isinstance(node, (ast.FunctionDef, ast.Lambda)):
                continue
            read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            taken = [each for each in node.args.args if each.arg not in ("self", "ctx")]
            kept = [each for each in taken if each.arg in read]
            if kept and len(taken) - len(kept) == int(told[2]):
                text = ", ".join(each.arg for each in kept)
                whole = ast.copy_location(ast.Name("_"), taken[0])
                whole.end_lineno, whole.end_col_offset = (
                    taken[-1].end_lineno,
                    taken[-1].end_col_offset,
                )
                yield Candidate(0.4, spliced(source, [(whole, text)]))


_UNREAD = ("_", "__", "___")  # parameters that a function does not read


def _amid(source: Source, taken: ast.arg, lacking: int) -> Iterator[tuple[float, Any]]:
    """The one parameter of a function among others that it does not read, by its name the module,
    what that is given, or what it gives."""
    words = (r"^(m|mod\w*|layer)$", r"in|arg", r"out|^y")
    named = next((n for n, word in enumerate(words) if re.search(word, taken.arg)), lacking)
    for at in range(lacking + 1):
        names = [*_UNREAD[:at], source.part(taken), *_UNREAD[at:lacking]]
        yield 0.02 * abs(at - named), spliced(source, [(taken, ", ".join(names))])


def of_function_around(site: Site, place: Place) -> Iterator[Candidate]:
    """A name that a loop adds to, bound before it; one that belongs to the scope around it."""
    told = re.search(r"'(\w+)'", site.text)
    lacking, inner = told[1] if told is not None else "", place.function
    changed, first = place.statement, None
    if isinstance(changed, ast.AugAssign) and spelled(changed.target) == lacking:
        for row in inner.body if inner is not None else place.source.tree.body:
            if row.lineno <= changed.lineno <= (row.end_lineno or 0):
                first = replace(place, statement=row)
    op = getattr(changed, "op", None)
    if first is not None and isinstance(op, (ast.Add, ast.Mult)):
        start = int(isinstance(op, ast.Mult))
        yield first.written(0.45, f"{lacking} = {start}\n{{}}")
    if isinstance(site.error, UnboundLocalError) and inner is not None:
        outer = function_around(place.source, inner)
        bound = {n for row in ast.walk(outer or place.source.tree) for n in bound_by(row)}
        if lacking in bound:
            word = "global" if outer is None else "nonlocal"
            first = replace(place, statement=inner.body[0])
            yield first.written(0.3, f"{word} {lacking}\n{{}}")


def bound_late(site: Site) -> Iterator[Candidate]:
    """The names of a loop that a function made in it reads when it is called, kept as they are
    when it is made: in all such functions, and in one."""
    loops = (ast.For, ast.ListComp, ast.DictComp, ast.GeneratorExp)
    for source in site.program.texts:
        made: dict[ast.Lambda | ast.FunctionDef, set[str]] = {}
        for loop in (n for n in source.nodes if isinstance(n, loops)):
            heads = [loop] if isinstance(loop, ast.For) else loop.generators
            bound = {spelled(n) for each in heads for n in ast.walk(each.target)}
            bound |= {name for row in rows_of(loop) for name in bound_by(row)}
            for node in (n for n in ast.walk(loop) if isinstance(n, (ast.Lambda, ast.FunctionDef))):
                made[node] = made.get(node, set()) | bound
        pairs = [
            pair for node, names in made.items() for pair in _with_defaults(source, node, names)
        ]
        for some in (pairs, *([each] for each in pairs)) if pairs else ():
            yield Candidate(0.42, spliced(source, some))


def _with_defaults(
    source: Source, node: ast.Lambda | ast.FunctionDef, bound: set[str]
) -> Iterator[tuple[ast.AST, str]]:
    """The last parameter of a function, with those of these names that it reads after it."""
    body = node.body if isinstance(node, ast.FunctionDef) else [node.body]
    parameters = [*node.args.args, *node.args.kwonlyargs]
    own = {each.arg for each in parameters} | {n for row in body for n in bound_by(row)}
    read = [n.id for row in body for n in ast.walk(row) if isinstance(n, ast.Name)]
    more = [f"{name}={name}" for name in dict.fromkeys(read) if name in bound - own]
    if more and parameters and node.args.kwarg is None:
        given: list[Any] = [*parameters, *node.args.defaults]
        last = max(given, key=lambda n: (n.lineno, n.col_offset))
        yield last, ", ".join((source.part(last), *more))
    elif more and isinstance(node, ast.Lambda) and node.args.kwarg is None:
        yield node, f"lambda {', '.join(more)}: {source.part(node.body)}"


def without_length(site: Site) -> Iterator[Candidate]:
    """The number of samples of a dataset that has none: how many there are of what it looks up."""
    told = re.search(r"object of type '(\w+)' has no len\(\)|__len__", site.text)
    for source in site.program.texts if told is not None else ():
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            own = {n.name: n for n in kind.body if isinstance(n, ast.FunctionDef)}
            read = own.get("__getitem__")
            if told is not None and told[1] == kind.name and "__len__" not in own:
                yield from _of_stream(source, own)
            if read is None or "__len__" in own or len(read.args.args) < 2:
                continue
            parts = [n for n in ast.walk(read) if isinstance(n, ast.Subscript)]
            of = [n for n in parts if spelled(n.slice) == read.args.args[1].arg]
            for name in dict.fromkeys(source.part(n.value) for n in of if spelled(n.value)):
                first = first_line(read)
                indent = " " * read.col_offset
                rows = (f"{indent}def __len__(self):", f"{indent}    return len({name})", "")
                text = "\n".join((*rows, source.lines[first - 1]))
                yield Candidate(0.3, (lines_as(source, first, first, text),))


def _of_stream(source: Source, own: dict[str, ast.FunctionDef]) -> Iterator[Candidate]:
    """The length of what gives its samples one after the other: how often its loop runs, or how
    many there are where these were counted."""
    read = own.get("__iter__")
    if read is None:
        return
    loops = [n for n in ast.walk(read) if isinstance(n, ast.For)]
    loops = [
        n for n in loops if any(isinstance(e, (ast.Yield, ast.YieldFrom)) for e in ast.walk(n))
    ]
    head: Any = loops[0].iter if len(loops) == 1 and read.body[-1] is loops[0] else None
    passed = {type(n) for loop in loops for n in ast.walk(loop)} & {ast.If, ast.Break, ast.Continue}
    while callee(head) == "enumerate":
        head = head.args[0]
    text = ""
    if callee(head) == "range" and len(head.args) == 1:
        text = source.part(head.args[0])
    elif head is not None and spelled(head):
        text = f"len({source.part(head)})"
    given = {*re.findall(r"[A-Za-z_][\w.]*", text)} - {"len"}
    if not text or passed or not all(name.startswith("self.") for name in given):
        text = "sum(1 for _ in self)"
    first = first_line(read)
    indent = " " * read.col_offset
    rows = (f"{indent}def __len__(self):", f"{indent}    return {text}", "")
    new = "\n".join((*rows, source.lines[first - 1]))
    yield Candidate(0.3, (lines_as(source, first, first, new),))


def shadowed(site: Site, place: Place) -> Iterator[Candidate]:
    """A function under another name than the result that took its own."""
    called = [n.func for n in place.calls() if isinstance(n.func, ast.Name)]
    for name in {n.id for n in called}.intersection(bound_by(place.statement)):
        if "not callable" in site.text:
            nodes: list[ast.expr] = []
            for node in place.source.nodes:
                if isinstance(node, ast.Assign) and node is not place.statement:
                    nodes += [t for t in node.targets if spelled(t) == name]
                elif isinstance(node, ast.Call) and spelled(node.func) == name:
                    nodes.append(node.func)
            yield place.replaced(0.4, *((node, f"{name}_fn") for node in nodes))


def prefixed(site: Site) -> Iterator[Candidate]:
    """Keys of a dict of modules with a prefix, where one of them is the name of something that the
    dict has; an attribute that is bound before it is registered, left out."""
    told = re.search(r"attribute '(\w+)' already exists", site.text)
    told = told or re.search(r"cannot assign '.*' as child module '(\w+)'", site.text)
    if told is None:
        return
    raised = site.raising[0].statement
    for place in site.statements():
        for name in bound_by(place.statement):
            own = isinstance(place.statement, ast.Assign) and len(place.block) > 1
            if own and name == f"self.{told[1]}" and place.statement is not raised:
                yield place.written(0.3, "")
                registers = callee(getattr(raised, "value", raised))
                nothing = getattr(bound_value(place, name), "value", MISSING) is None
                if nothing and registers in ("register_buffer", "register_parameter"):
                    yield place.written(0.25, f'self.{registers}("{told[1]}", None)')
            made: Any = bound_value(place, name)
            if callee(made) in ("ModuleDict", "ParameterDict"):
                prefix = name.rpartition(".")[2]
                keys: list[ast.expr] = []
                for node in (n for given in made.args for n in ast.walk(given)):
                    keys += [node.key] if isinstance(node, ast.DictComp) else []
                    keys += [key for key in getattr(node, "keys", []) if key is not None]
                read = [n for n in place.source.nodes if isinstance(n, ast.Subscript)]
                keys += [n.slice for n in read if spelled(n.value) == name]
                named = ((key, _with_prefix(place, key, f"{prefix}_")) for key in keys)
                pairs: list[tuple[ast.AST, str]] = [*named]
                plain = f'key.removeprefix("{prefix}_")'
                for node in place.source.nodes:  # who reads the keys reads them as they were
                    if callee(node) == "items" and spelled(node.func.value) == name:  # type: ignore
                        text = place.text(node)
                        pairs.append((node, f"(({plain}, each) for key, each in {text})"))
                yield Candidate(0.3, spliced(place.source, pairs))


def _with_prefix(place: Place, key: ast.expr, prefix: str) -> str:
    word = getattr(key, "value", None) if isinstance(key, ast.Constant) else None
    return f'"{prefix}{word}"' if isinstance(word, str) else f'"{prefix}" + {place.whole(key)}'


def near_choices(site: Site) -> Iterator[Candidate]:
    """A text that a function of the program chooses by, as one that it knows: it gave None."""
    for place in (*site.raising, *site.bindings) if "NoneType" in site.text else ():
        for call in place.calls():
            functions = {
                id(f): f for p in site.returns(place.value(call.func)) if (f := p.function)
            }
            tests = [
                n for f in functions.values() for n in ast.walk(f) if isinstance(n, ast.Compare)
            ]
            words = {getattr(n, "value", None) for test in tests for n in ast.walk(test)}
            known = {word.lower(): word for word in words if isinstance(word, str)}
            for given in (*call.args, *(keyword.value for keyword in call.keywords)):
                old = getattr(given, "value", None)
                if isinstance(given, ast.Constant) and isinstance(old, str) and old not in words:
                    for near in difflib.get_close_matches(old.lower(), known, 2, 0.6):
                        new = f'"{known[near]}"'
                        yield replace(place, distance=0.0).replaced(0.35, (given, new))


def hidden(site: Site, place: Place) -> Iterator[Candidate]:
    """A name of Python's own, or of a method, that the program gave to a number, under another
    name there."""
    owners = [place.value(n.func.value) for n in place.calls() if isinstance(n.func, ast.Attribute)]
    parts = ((type(of), *each) for of in owners for each in getattr(of, "__dict__", {}).items())
    for kind, name, value in parts if "not callable" in site.text else ():
        if callable(getattr(kind, name, None)) and not callable(value):
            read = {id(n.func) for n in place.source.nodes if isinstance(n, ast.Call)}
            own = [n for n in place.source.nodes if spelled(n) == f"self.{name}"]
            texts = [(n, f"self.{name}_value") for n in own if id(n) not in read]
            yield place.replaced(0.35, *texts)
    for module in site.modules if isinstance(site.error, (AttributeError, TypeError)) else ():
        for name in (n for n in vars(module)["_modules"] if hasattr(nn.Module, n)):
            own = [n for n in place.source.nodes if spelled(n) == f"self.{name}"]
            yield place.replaced(0.3, *((n, f"self.{name}_layer") for n in own))
    for node in (n for n in place.parts() if isinstance(n, (ast.Call, ast.Attribute))):
        used = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(used, ast.Name):
            yield from _unhidden(place, used.id, node)


def as_dropout(site: Site) -> Iterator[Candidate]:
    """A layer of dropout, where the program calls the rate that it keeps under such a name."""
    place = site.raising[0]
    for call in place.calls() if "not callable" in site.text else ():
        name, rate = spelled(call.func), place.value(call.func)
        dropped = re.search("drop", name.rpartition(".")[2], re.I) and isinstance(
            rate, (int, float)
        )
        for made in site.statements() if dropped else ():
            value = bound_value(made, name) if name in bound_by(made.statement) else None
            if value is not None:
                layer = f"nn.Dropout({made.text(value)})"
                yield replace(made, distance=0.0).replaced(0.2, (value, layer))
        if dropped and len(call.args) == 1 and name.startswith("self."):
            text = f"F.dropout({place.text(call.args[0])}, {name}, self.training)"
            yield place.replaced(0.4, (call, text))


def _unhidden(place: Place, name: str, use: ast.Call | ast.Attribute) -> Iterator[Candidate]:
    """A name under which a module, a function or a class was known, under another one where it
    stands for something else."""

    def fits(value: Any, node: ast.AST) -> bool:
        read = isinstance(node, ast.Attribute)
        return hasattr(value, node.attr) if read else callable(value)  # type: ignore[attr-defined]

    own, block = place.value(ast.Name(name)), place.function or place.source.tree
    local = place.function is not None and name in place.frame.f_locals
    known: list[Any] = [vars(builtins)[name]] if hasattr(builtins, name) else []
    known += [place.frame.f_globals[name]] if local and name in place.frame.f_globals else []
    known += [] if local else _first_bound(place.source.tree, name)
    if not known or own is MISSING or fits(own, use) or not fits(known[-1], use):
        return
    nodes = [n for n in ast.walk(block) if isinstance(n, ast.Name) and n.id == name]
    users = [n for n in ast.walk(block) if isinstance(n, (ast.Call, ast.Attribute))]
    users = [n for n in users if fits(known[-1], n) and not fits(own, n)]
    kept = {id(getattr(n, "func", getattr(n, "value", None))) for n in users}
    pairs: list[tuple[ast.AST, str]] = [(n, f"{name}_value") for n in nodes if id(n) not in kept]
    given = place.function.args if local and place.function is not None else None
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if given is not None else ():
        if each.arg == name:
            pairs.append((each, f"{name}_value{place.text(each)[len(name) :]}"))
    yield place.replaced(0.35, *pairs)


def _first_bound(tree: ast.Module, name: str) -> list[Any]:
    """The modules, or what they have, that a program imports under a name."""
    found = []
    for row in tree.body:
        for alias in row.names if isinstance(row, (ast.Import, ast.ImportFrom)) else ():
            if name == (alias.asname or alias.name):
                module = getattr(row, "module", None) or alias.name
                whole = sys.modules.get(module)
                part = getattr(whole, alias.name, sys.modules.get(f"{module}.{alias.name}"))
                found.append(part if isinstance(row, ast.ImportFrom) else whole)
    return [each for each in found if each is not None]


def named_parts(site: Site) -> Iterator[Candidate]:
    """Texts that parameters are chosen by and that no name of one has, as parts of the model."""
    if not is_cut(site):
        return
    models = [v for v in site.frames[-1][0].f_locals.values() if isinstance(v, nn.Module)]
    names = [name for model in models for name, _ in model.named_parameters()]
    parts = [name for model in models for name, _ in model.named_children()]
    for source in site.program.texts:
        for node in source.nodes:
            asked = callee(node) in ("startswith", "endswith") or isinstance(node, ast.Compare)
            for text in ast.iter_child_nodes(node) if asked else ():
                value = getattr(text, "value", None)
                if isinstance(value, str) and not any(value in name for name in names):
                    for at, part in enumerate(reversed(parts)):
                        edits = spliced(source, [(text, repr(part))])
                        yield Candidate(0.5 + 0.02 * at, edits)


def near_members(site: Site) -> Iterator[Candidate]:
    """Methods and attributes of a class whose name nearly is one that it should have: that a base
    has or declares, or that it was asked for."""
    owner = getattr(site.error, "obj", None) if isinstance(site.error, AttributeError) else None
    kinds = [(s, n) for s in site.program.texts for n in s.nodes if isinstance(n, ast.ClassDef)]
    members = {node: _members(node) for _, node in kinds}
    for source, node in kinds:
        kind, own = site.frames[-1][0].known.get(node.name), members[node]
        if not isinstance(kind, type):
            continue
        asked = {*dir(kind.__base__), "__getitem__", "__len__", "__iter__", "__call__"}
        bases = {base.__name__ for base in kind.__mro__[1:]}
        asked |= {n for base, names in members.items() if base.name in bases for n in names}
        asked |= {str(site.error.name)} if isinstance(owner, kind) else set()  # type: ignore
        others = {name: row for name, row in own.items() if name not in asked}
        asked -= own.keys()
        declared = {n for other, names in members.items() if other is not node for n in names}
        for name, row in others.items():
            plain = not isinstance(row, Function)
            known = [n for n in asked if not (plain and callable(getattr(kind, n, None)))]
            said = [n for n in asked if n[:2] == "__" and n[2:-2] in name]
            said = [n for n in said if f"{n[2:-2]}(" in site.text and not plain]
            for near in (*difflib.get_close_matches(name, known, 1, 0.75), *said):
                new = source.lines[row.lineno - 1].replace(name, near, 1)
                cost = 0.35 - 0.1 * (near in declared)
                yield Candidate(cost, (lines_as(source, row.lineno, row.lineno, new),))


def _members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    """What a class binds or declares, by name."""
    named = {row.name: row for row in node.body if isinstance(row, Function)}
    return named | {name: row for row in node.body for name in bound_by(row)}


def _known_names(place: Place, node: ast.Name) -> Iterator[Candidate]:
    names = {**place.frame.f_globals, **place.frame.f_locals}
    shown = isinstance(place.statement, ast.Expr) and place.statement.value is node
    # a name that is shown and nothing else runs whatever it is
    for near in difflib.get_close_matches(node.id, list(names), 3, 0.8 if shown else 0.6):
        yield place.replaced(0.4, (node, near))
    for owner in ("self", "torch", "nn", "F", "np", "math"):
        if owner in names and hasattr(names[owner], node.id):
            yield place.replaced(0.5, (node, f"{owner}.{node.id}"))


def compared_by_identity(site: Site) -> Iterator[Candidate]:
    """``eq=False`` for a dataclass that is a module, or has tensors: with ``==`` by fields it has
    no hash, and no answer where these are compared."""
    found = re.search(r"unhashable type: '(\w+)'", site.text)
    name = found[1] if found is not None else ""
    compared = [f.f_locals.get("self") for f in site.inner if f.f_code.co_name == "__eq__"]
    if compared and re.search("ambiguous|single value|no bool", site.text):
        name = type(compared[-1]).__name__
    for source in site.program.texts if name else ():
        kinds = [n for n in source.nodes if isinstance(n, ast.ClassDef) and n.name == name]
        for mark in (m for kind in kinds for m in kind.decorator_list):
            if (callee(mark) or spelled(mark).rpartition(".")[2]) == "dataclass":
                text = source.part(mark)
                given = f"{text[:-1]}, eq=False)" if getattr(mark, "keywords", []) else ""
                new = given or f"{text.removesuffix('()')}(eq=False)"
                yield Candidate(0.2, spliced(source, [(mark, new)]))


def of_layers(site: Site) -> Iterator[Candidate]:
    """Layers by the names that a model has, where it was asked for others: those of queries, keys
    and values by their letter, or the one layer that computes all of them."""
    quoted = set(re.findall(r"'([\w.]+)'", site.text))
    models = [v for f, _ in site.frames for v in f.f_locals.values() if isinstance(v, nn.Module)]
    layers: dict[str, Tensor] = {}
    for model in models if quoted and re.search("(?i)modules?\\b.*not found", site.text) else ():
        for path, part in model.named_modules():
            weight = getattr(part, "weight", None)
            if isinstance(weight, Tensor) and weight.dim() == 2 and "att" in path.lower():
                layers.setdefault(path.rpartition(".")[2], weight)
    fused = [n for n, w in layers.items() if max(w.shape) == 3 * min(w.shape)]
    for source in site.program.texts if layers else ():
        for whole in (n for n in source.nodes if isinstance(n, (ast.List, ast.Tuple, ast.Set))):
            words = [str(getattr(each, "value", "")) for each in whole.elts]
            if not words or not quoted.issuperset(words):
                continue
            near = [
                [n for n in layers if n[:1] == word[:1] and word[:1] in "qkv"] for word in words
            ]
            alike = [difflib.get_close_matches(word, layers, 1, 0.6) for word in words]
            for at, found in enumerate((near, [fused] * len(words), alike)):
                if all(found):
                    names = dict.fromkeys(each[0] for each in found)
                    text = source.part(whole)
                    inner = ", ".join(f'"{name}"' for name in names)
                    comma = "," * (isinstance(whole, ast.Tuple) and len(names) == 1)
                    new = f"{text[0]}{inner}{comma}{text[-1]}"
                    yield Candidate(0.25 + 0.03 * at, spliced(source, [(whole, new)]))


def misspelt_in_property(site: Site) -> Iterator[Candidate]:
    """What a property of a module reads, as it is called: an attribute that is missing there is
    said to be the property itself."""
    lacking = getattr(site.error, "name", None) if isinstance(site.error, AttributeError) else None
    owner = getattr(site.error, "obj", None)
    if lacking is None or not isinstance(getattr(type(owner), lacking, None), property):
        return
    for source in site.program.texts:
        for function in (n for n in source.nodes if getattr(n, "name", "") == lacking):
            for node in (n for n in ast.walk(function) if isinstance(n, ast.Attribute)):
                of = _held(owner, node.value)
                has = {*getattr(of, "__dict__", {}), *dir(type(of))}
                parts = dict(of.named_children()) if isinstance(of, nn.Module) else {}
                if of is MISSING or node.attr in has | {*parts, *_registered(of)}:
                    continue
                text = source.part(node.value)
                texts = [
                    f"{text}.{near}"
                    for near in difflib.get_close_matches(node.attr, {*has, *parts}, 2, 0.6)
                ]
                listed = isinstance(of, (nn.Sequential, nn.ModuleList))
                if listed:  # of the last of its layers: of the first what comes in
                    own = [n for n, part in parts.items() if node.attr in vars(part)]
                    own = own if re.match("in_|input", node.attr) else own[::-1]
                    texts += [f"{text}[{n}].{node.attr}" for n in own if n.isdigit()]
                else:
                    own = [n for n, part in parts.items() if node.attr in vars(part)]
                    texts += [f"{text}.{n}.{node.attr}" for n in own]
                for at, each in enumerate(texts):
                    yield Candidate(0.25 + 0.02 * at, spliced(source, [(node, each)]))


def _held(owner: Any, node: ast.AST) -> Any:
    """What ``self.stem[0]`` is of an object, as far as it holds that; MISSING: it does not."""
    if getattr(node, "id", "") == "self":
        return owner
    of: Any = (
        _held(owner, node.value) if isinstance(node, (ast.Attribute, ast.Subscript)) else MISSING
    )
    if isinstance(node, ast.Attribute) and of is not MISSING:
        known = {**getattr(of, "__dict__", {}), **_registered(of)}
        return known.get(node.attr, MISSING)
    key: Any = getattr(getattr(node, "slice", None), "value", None)
    listed = isinstance(of, (nn.Sequential, nn.ModuleList, list, tuple)) and type(key) is int
    return of[key] if listed and abs(key) < len(of) else MISSING


def _registered(of: Any) -> dict[str, Any]:
    """What a module holds by name: its parts, parameters and buffers."""
    kinds = ("_modules", "_parameters", "_buffers") if isinstance(of, nn.Module) else ()
    return {name: each for kind in kinds for name, each in vars(of)[kind].items()}
