"""Numbers and switches that are read as text, made what they say; parts cut from texts."""

from __future__ import annotations

import argparse
import ast
import re
import string
from collections.abc import Iterator, Mapping
from configparser import RawConfigParser
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    bound_by,
    bound_value,
    callee,
    spelled,
    spliced,
    with_more,
)

_STEPS = 6  # names from where a text is used back to where it is read
_TRUE = ("true", "yes", "on")
_SWITCHES = (*_TRUE, "false", "no", "off")


def as_numbers(site: Site) -> Iterator[Candidate]:
    """A number or a switch that is text, made what it says where the program reads it."""
    seen: set[int] = set()
    for place in (*site.raising, *site.bindings):
        far = 0.1 * (place.distance > 0 and place not in site.raising)
        for node in place.parts():
            texts = _texts(_value(place, node)) if _is_read(node) else []
            first = [Read(replace(place, distance=0.0), node)] if texts else []
            for later, read in enumerate(reversed(chain(site, first))):
                if id(read.node) in seen:
                    continue
                seen.add(id(read.node))
                for at, kind in enumerate(_kinds(texts)):
                    for more, pairs in enumerate(_written(site, read, kind, texts)):
                        cost = 0.24 + 0.03 * at + 0.01 * more + 0.07 * later + far
                        yield read.place.replaced(cost, *pairs)
    yield from _of_comprehensions(site)


def of_sections(site: Site) -> Iterator[Candidate]:
    """What is given as ``**section``, whose values are numbers as text, as numbers; those of its
    values that are, where others are no text, as in YAML ``3e-4`` is."""
    for depth, place in enumerate((*site.raising, *site.builders)):
        whole = [k.value for call in place.calls() for k in call.keywords if k.arg is None]
        for node in whole:
            value, bound = place.value(node), site.binding(place, node)
            section = value if isinstance(value, Mapping) else {}
            texts = {k: v for k, v in section.items() if isinstance(v, str) and _is_number(v)}
            if texts and len(texts) < len(section):
                own = place.text(node)
                parts = (f'"{k}": {_kinds([v])[0]}({own}["{k}"])' for k, v in texts.items())
                near = replace(place, distance=-0.02 * min(depth, 4))  # where it is read
                yield near.replaced(0.3, (node, f"{{**{own}, {', '.join(parts)}}}"))
            if not texts or len(texts) < len(section):
                continue
            made = bound_value(bound, spelled(node)) if bound is not None else None
            at, read = (bound, made) if bound is not None and made is not None else (place, node)
            inner: Any = read
            if callee(inner) == "dict" and len(inner.args) == 1:
                inner = inner.args[0]
            kind = _kinds([*texts.values()])[0]
            text = f"{{key: {kind}(each) for key, each in {at.text(inner)}.items()}}"
            yield replace(at, distance=0.0).replaced(0.26, (read, text))


def of_lists(site: Site) -> Iterator[Candidate]:
    """A list on a command line: ``type=list`` takes a text apart into letters, and each of several
    texts."""
    for source in site.program.texts:
        for call in (n for n in source.nodes if callee(n) == "add_argument"):
            given = {k.arg: k.value for k in call.keywords}  # type: ignore[attr-defined]
            kept = spelled(given["type"]) if "type" in given else ""
            default = ast.unparse(given["default"]) if "default" in given else ""
            for at, kind in enumerate(("int", "float") if kept in ("list", "tuple") else ()):
                parts = f'{kind}(each) for each in text.split(",")'
                text = (
                    f"lambda text: [{parts}]" if kept == "list" else f"lambda text: tuple({parts})"
                )
                other = kind == "int" and "." in default  # its numbers have fractions
                edits = spliced(source, [(given["type"], kind if "nargs" in given else text)])
                yield Candidate(0.23 + 0.03 * at + 0.06 * other, edits)


def _of_comprehensions(site: Site) -> Iterator[Candidate]:
    """The elements of a list that are text, as numbers."""
    for place in site.raising if "'str'" in site.text else ():
        for node in (n for n in place.parts() if isinstance(n, ast.ListComp)):
            for at, kind in enumerate(("int", "float")):
                inner = node.elt
                if not isinstance(inner, (ast.Tuple, ast.List, ast.Dict, ast.ListComp)):
                    text = f"{kind}({place.text(inner)})"
                    yield replace(place, distance=0.0).replaced(0.3 + 0.03 * at, (inner, text))


def of_their_ends(site: Site) -> Iterator[Candidate]:
    """A word cut from a text once, where ``lstrip`` cuts all of its letters: one, or all."""
    for source in site.program.texts:
        pairs: list[tuple[ast.AST, str]] = []
        for call in (n for n in source.nodes if isinstance(n, ast.Call) and len(n.args) == 1):
            word = getattr(call.args[0], "value", None)
            if callee(call) in _CUTS and isinstance(word, str) and _is_word(word):
                head = source.part(call.func).removesuffix(callee(call))
                pairs.append((call, f"{head}{_CUTS[callee(call)]}({source.part(call.args[0])})"))
        for pair in pairs:
            yield Candidate(0.15, spliced(source, [pair]))
        yield Candidate(0.17, spliced(source, pairs))


# Methods that cut letters of a set, and those that cut a word.
_CUTS = {"lstrip": "removeprefix", "strip": "removeprefix", "rstrip": "removesuffix"}


def _is_word(text: str) -> bool:
    """Whether a text is a word, no set of letters: several letters in no order."""
    letters = re.findall(r"[a-zA-Z]", text)
    return len({*letters}) > 1 and "".join(letters) not in string.ascii_letters


@dataclass(frozen=True)
class Read:
    """An expression by which a text, or a list of them, is read."""

    place: Place
    node: ast.AST
    depth: int = 0  # lists that it is taken out of before it is used, as an element
    owner: Any = None  # the object that keeps it


def _is_read(node: ast.AST) -> bool:
    loaded = isinstance(getattr(node, "ctx", None), ast.Load)
    return loaded or callee(node) in ("get", "getenv")


def _value(place: Place, node: ast.AST) -> Any:
    """The value of an expression, also of one that looks a text up."""
    if not isinstance(node, ast.Call):
        return place.value(node)
    owner = place.value(getattr(node.func, "value", node))
    known = isinstance(owner, (dict, Mapping, RawConfigParser)) or callee(node) == "getenv"
    given = [*map(place.value, node.args), *(place.value(k.value) for k in node.keywords)]
    if known and not any(each is MISSING for each in given) and not node.keywords:
        return place.value(node.func)(*given)
    return MISSING


def _texts(value: Any, depth: int = 2) -> list[str]:
    """The texts of a value, or of lists of them, if all of them say a number or a switch."""
    if isinstance(value, str):
        switch = value.strip().lower() in _SWITCHES
        return [value] if switch or _number(value) is not None else []
    if not isinstance(value, (list, tuple)) or not value or not depth:
        return []
    parts = [_texts(each, depth - 1) for each in value]
    return [text for each in parts for text in each] if all(parts) else []


def _number(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return _number(text) is not None


def _kinds(texts: list[str]) -> list[str]:
    """What texts may be meant to be, the likeliest first."""
    numbers = [_number(text) for text in texts]
    if None in numbers:
        return ["bool"]
    whole = all(re.fullmatch(r"\s*[+-]?\d+\s*", text) for text in texts)
    return ["int", "float"] if whole else ["float"]


def chain(site: Site, reads: list[Read]) -> list[Read]:
    """Expressions: each reads what the one before it stands for, as far back as it can
    be followed."""
    found = next(_before(site, reads[-1]), None) if 0 < len(reads) <= _STEPS else None
    return chain(site, [*reads, found]) if found is not None else reads


def _before(site: Site, read: Read) -> Iterator[Read]:
    place, node = read.place, read.node
    if isinstance(node, ast.Name):
        yield from _bound(site, read)
    elif isinstance(node, ast.Attribute):
        yield from _of_object(site, read)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        for source in site.program.texts if isinstance(key, str) else ():
            for each in (n for n in source.nodes if isinstance(n, ast.Dict)):
                for own, value in zip(each.keys, each.values, strict=True):
                    if getattr(own, "value", None) == key and _is_text(value):
                        yield replace(read, place=replace(place, source=source), node=value)


def _is_text(node: ast.AST) -> bool:
    return bool(_texts(getattr(node, "value", None))) and isinstance(node, ast.Constant)


def _bound(site: Site, read: Read) -> Iterator[Read]:
    """What a name was bound to: by a statement, a loop, or a call of the function around."""
    place, node, name = read.place, read.node, spelled(read.node)
    heads = [*(n for n in place.parts() if isinstance(n, ast.comprehension))]
    bound = site.binding(place, node)
    if bound is not None and isinstance(bound.statement, ast.For):
        heads.append(bound.statement)  # type: ignore[arg-type]
    for head in heads:
        if name in bound_by(ast.Assign([head.target], head.iter)):
            own = bound if bound is not None and isinstance(head, ast.For) else place
            rows = _gone_through(head, name)
            if rows is not None and _texts(_value(own, rows)):
                yield Read(replace(own, distance=0.0), rows, read.depth + 1)
            return
    if bound is not None and name not in bound_by(bound.statement):  # it is given there
        bound = None
    made = bound_value(bound, name)
    if bound is not None and made is bound_value(bound, "") and len(bound_by(bound.statement)) > 1:
        return  # a part of it
    if bound is not None and isinstance(made, ast.expr):
        own = replace(bound, distance=0.0)
        added = _appended(site, own, name) if _is_empty(made) else None
        if added is not None:
            yield added
        elif isinstance(made, ast.ListComp):
            yield Read(own, made.elt, read.depth - 1)
        elif not _is_empty(made):
            yield Read(own, made, read.depth)
    elif bound is None:
        given = site.handed(place, name) or given_for(site, place, name)
        for at, value in given if len(given) == 1 else ():
            yield Read(replace(at, distance=0.0), value, read.depth)


def _gone_through(head: Any, name: str) -> ast.expr | None:
    """What a loop takes a name from, one after the other."""
    rows, target = head.iter, head.target
    if callee(rows) == "enumerate":
        rows, target = rows.args[0], getattr(target, "elts", [None, target])[-1]
    if callee(rows) == "zip" and isinstance(target, ast.Tuple):
        pairs = zip(target.elts, rows.args, strict=False)
        return next((row for part, row in pairs if spelled(part) == name), None)
    return rows if spelled(target) == name else None


def _is_empty(node: ast.AST) -> bool:
    return isinstance(node, ast.List) and not node.elts


def _appended(site: Site, place: Place, name: str) -> Read | None:
    """What the program adds to a list, one after the other."""
    added: list[Read] = []
    for other in site.statements():
        call: Any = getattr(other.statement, "value", None)
        if callee(call) == "append" and spelled(call.func.value) == name and call.args:
            added.append(Read(other, call.args[0], -1))
    return added[0] if len(added) == 1 else None


def given_for(site: Site, place: Place, name: str) -> list[tuple[Place, ast.expr]]:
    """What the statements that call the function around a place give for a parameter."""
    function, found = place.function, list[tuple[Place, ast.expr]]()
    names = [each.arg for each in function.args.args] if function is not None else []
    for other in site.raising if function is not None and name in names else ():
        name_of = getattr(function, "name", "")
        for call in (c for c in other.calls() if callee(c) == name_of):
            own = names[names[:1] == ["self"] :]
            given = dict(zip(own, call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            found += [(other, given[name])] if name in given else []
    return found


def _of_object(site: Site, read: Read) -> Iterator[Read]:
    """Where an object was given an attribute: as an argument of a command line, in its class or
    where it was made."""
    node: Any = read.node
    owner = read.place.value(node.value)
    kind = type(owner).__name__
    for source in site.program.texts:
        for each in source.nodes:
            own = site.place(source, each, 0.0) if isinstance(each, ast.stmt) else read.place
            if isinstance(owner, argparse.Namespace):
                if callee(each) == "add_argument" and node.attr in _destination(each):
                    yield Read(replace(read.place, source=source), each, read.depth, owner)
                continue
            if isinstance(each, ast.ClassDef) and each.name == kind:
                for row in (n for n in ast.walk(each) if isinstance(n, ast.stmt)):
                    value: Any = getattr(row, "value", None)
                    names = bound_by(row) if value is not None else []
                    if row in each.body and node.attr in names:  # of all instances
                        names = [f"self.{node.attr}"] * (own.value(value) is read.place.value(node))
                    if f"self.{node.attr}" in names:
                        place = site.place(source, row, 0.0)
                        made = bound_value(place, f"self.{node.attr}")
                        yield Read(place, made, read.depth, owner)
            targets = [t for t in getattr(each, "targets", []) if isinstance(t, ast.Attribute)]
            if any(t.attr == node.attr and own.value(t.value) is owner for t in targets):
                yield Read(own, each.value, read.depth, owner)  # type: ignore[attr-defined]
            if isinstance(each, ast.Call) and callee(each) == kind:
                fields = [*getattr(owner, "__dataclass_fields__", ())]
                given = dict(zip(fields, each.args, strict=False))
                given |= {k.arg: k.value for k in each.keywords if k.arg}
                if node.attr in given:
                    yield Read(replace(read.place, source=source), given[node.attr], read.depth)


def _destination(call: Any) -> set[str]:
    """The names under which an argument of a command line is kept."""
    named = [getattr(k.value, "value", "") for k in call.keywords if k.arg == "dest"]
    flags = [getattr(n, "value", "") for n in call.args]
    return set(named) or {str(flag).lstrip("-").replace("-", "_") for flag in flags}


def _written(
    site: Site, read: Read, kind: str, texts: list[str]
) -> Iterator[list[tuple[ast.AST, str]]]:
    """Edits that let an expression give numbers: alone, and with those that read others alike."""
    if callee(read.node) == "add_argument":
        own = _typed(read, read.node, kind)
        calls = [n for n in read.place.source.nodes if callee(n) == "add_argument"]
        rest = [call for call in calls if call is not read.node]
        others = [pair for call in rest for pair in _of_others(read, call)]
        yield own
        if own and others:
            yield [*own, *others]
        return
    text = read.place.text(read.node)
    if isinstance(read.node, ast.Constant):
        yield [(read.node, str(texts[0].strip().lower() in _TRUE) if kind == "bool" else texts[0])]
        return
    pair = (read.node, _form(read.place, read.node, kind, texts[0], _depth(read)))
    yield [pair] * bool(text)
    yield from ([pair, *rest] for rest in [_alike(site, read)] if rest)


def _depth(read: Read) -> int:
    """How many lists the texts of an expression are in."""
    value, depth = _value(read.place, read.node), 0
    while isinstance(value, (list, tuple)) and value:
        value, depth = value[0], depth + 1
    sliced = isinstance(read.node, ast.Subscript) and isinstance(read.node.slice, ast.Slice)
    return depth or max(read.depth, 0) or int(sliced)


def _form(place: Place, node: ast.AST, kind: str, text: str, depth: int = 0) -> str:
    """An expression that gives numbers or switches in the place of one that gives texts."""
    own = place.text(node)
    if kind != "bool":
        if depth == 1 and isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            elt = place.text(node.elt)
            return own.replace(elt, f"{kind}({elt})", 1)
        form = f"{kind}({own})"
        for _ in range(min(depth, 1)):
            form = f"[{kind}(each) for each in {own}]"
        return f"[[{kind}(each) for each in row] for row in {own}]" if depth > 1 else form
    owner = place.value(getattr(node, "value", node))
    asked = place.value(getattr(getattr(node, "func", node), "value", node))
    if callee(node) == "get" and hasattr(asked, "getboolean"):
        head = place.text(node.func)  # type: ignore[attr-defined]
        return f"{head}boolean{own[len(head) :]}"
    if isinstance(node, ast.Subscript) and hasattr(owner, "getboolean"):
        return f"{place.text(node.value)}.getboolean({place.text(node.slice)})"
    stripped = text.strip()
    word = {"true": "True", "yes": "yes", "on": "on", "false": "True", "no": "yes", "off": "on"}
    said = word[stripped.lower()]
    said = said.lower() if stripped.islower() else said
    return f'({own} == "{said}")'


def _typed(read: Read, call: Any, kind: str) -> list[tuple[ast.AST, str]]:
    """An argument of a command line with the type that its default has, or its text says."""
    given = {k.arg: k.value for k in call.keywords}
    default = getattr(given.get("default"), "value", None)
    if "type" in given or "action" in given:
        return []
    if type(default) in (int, float):
        kind = type(default).__name__ if kind != "float" else "float"
    name = kind if kind != "bool" else 'lambda text: text.lower() == "true"'
    return [with_more(read.place.source, call, f"type={name}")]


def _of_others(read: Read, call: Any) -> list[tuple[ast.AST, str]]:
    """The same of another argument that was given as text, whose default is a number."""
    values = [getattr(read.owner, name, None) for name in _destination(call)]
    default = next((k.value for k in call.keywords if k.arg == "default"), None)
    number = type(getattr(default, "value", None)) in (int, float)
    texts = _texts(values[0]) if values and isinstance(values[0], str) else []
    return _typed(read, call, _kinds(texts)[0]) if texts and number else []


def _alike(site: Site, read: Read) -> list[tuple[ast.AST, str]]:
    """What else the function, or the program outside of any, reads from the same place as text
    that says a number."""
    pairs: list[tuple[ast.AST, str]] = []
    whole: Any = read.place.function or read.place.source.tree
    made = {id(n) for c in ast.walk(whole) if callee(c) in _MADE for n in getattr(c, "args", [])}
    bound = {id(v): row for row in ast.walk(whole) if (v := getattr(row, "value", None))}
    for node in ast.walk(whole):
        kind = isinstance(node, ast.Call) or (isinstance(node, ast.Subscript) and _is_read(node))
        kind = kind and node is not read.node
        if not kind or id(node) in made or _reader(read.place, node) != _reader_of(read):
            continue
        name = "".join(bound_by(bound[id(node)])) if id(node) in bound else ""
        kept = getattr(read.owner, name.removeprefix("self."), MISSING)
        if kept is MISSING:
            kept = read.place.names().get(name, _value(read.place, node))
        if texts := _texts(kept) if isinstance(kept, str) else []:
            pairs.append((node, _form(read.place, node, _kinds(texts)[0], texts[0])))
    return pairs


_MADE = ("int", "float", "bool")


def _reader_of(read: Read) -> str:
    return _reader(read.place, read.node) or "nothing"


def _reader(place: Place, node: Any) -> str:
    """What a text is read from."""
    part = getattr(node, "func", getattr(node, "value", None))
    return place.text(part) if part is not None else ""


def in_columns(site: Site, place: Place) -> Iterator[Candidate]:
    """Columns of a table that were read as objects, as numbers."""
    for node in place.parts() if "object_" in site.text else ():
        values = getattr(node, "attr", "") == "values" or callee(node) == "to_numpy"
        value = place.value(node) if isinstance(node, ast.expr) else MISSING
        if values or (isinstance(value, np.ndarray) and value.dtype == object):
            if isinstance(node, ast.expr) and not (spelled(node) and site.binding(place, node)):
                own = replace(place, distance=0.0)
                yield own.replaced(0.3, (node, f'{place.text(node)}.astype("float32")'))
                yield own.replaced(0.32, (node, f"{place.text(node)}.astype(float)"))
