"""Objects that several share, where each is meant to have its own."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Function,
    Place,
    Site,
    bound_by,
    callee,
    names_in,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source

# What makes an object that can be changed.
_MADE = "list dict set deque defaultdict OrderedDict Counter".split()
_CHANGING = ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp


def unshared(site: Site) -> Iterator[Candidate]:
    """An object made anew for each call, each instance or each element."""
    for source in site.program.texts:
        for node in source.nodes:
            pairs: list[list[tuple[ast.AST, str]]] = []
            if isinstance(node, Function):
                pairs = [_of_calls(source, node)]
            elif isinstance(node, ast.ClassDef):
                pairs = [_of_instances(source, node)]
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                pairs = [_of_elements(source, node)]
            elif callee(node) == "fromkeys":
                pairs = [_of_keys(source, node)]
            elif isinstance(node, ast.Assign) and len(node.targets) > 1 and _changes(node.value):
                indent = "\n" + " " * node.col_offset
                rows = (f"{source.part(t)} = {source.part(node.value)}" for t in node.targets)
                pairs = [[(node, indent.join(rows))]]
            for some in (each for each in pairs if each):
                yield Candidate(0.4, spliced(source, some))


def _changes(node: ast.AST) -> bool:
    """Whether an expression makes an object that can be changed."""
    return isinstance(node, _CHANGING) or callee(node) in _MADE


def _of_calls(source: Source, function: Any) -> list[tuple[ast.AST, str]]:
    """The defaults of a function that it may change, made in each call."""
    given, first = function.args, function.body[0]
    own = [*zip(given.args[::-1], given.defaults[::-1], strict=False)]
    own += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    own = [(a.arg, default) for a, default in own if default is not None and _changes(default)]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):  # what it is for
        first = function.body[min(1, len(function.body) - 1)]
    if not own or first.lineno == function.lineno:
        return []
    indent = "\n" + " " * first.col_offset
    rows = [f"{name} = {source.part(d)} if {name} is None else {name}" for name, d in own]
    head = (first, indent.join((*rows, source.part(first))))
    return [*((default, "None") for _, default in own), head]


def _of_instances(source: Source, kind: ast.ClassDef) -> list[tuple[ast.AST, str]]:
    """What a class has and its methods change, made when an instance is."""
    made = {name: row for row in kind.body for name in bound_by(row)}
    made = {n: row for n, row in made.items() if _changes(getattr(row, "value", row))}
    begin = [n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    first = begin[0].body[0] if begin else None
    own = [name for name in made if first and f"self.{name}" in names_in(kind)]
    if not own or first is None:
        return []
    indent = "\n" + " " * first.col_offset
    values = {name: source.part(getattr(made[name], "value", None)) for name in own}
    rows = [f"self.{name} = {value}" for name, value in values.items()]
    return [(first, indent.join((*rows, source.part(first))))]


def _of_elements(source: Source, node: ast.BinOp) -> list[tuple[ast.AST, str]]:
    """A list of several times the same object, as one of as many objects."""
    rows, count = node.left, node.right
    if not isinstance(rows, ast.List):
        rows, count = count, rows
    (one,) = rows.elts if isinstance(rows, ast.List) and len(rows.elts) == 1 else (None,)
    if one is None or not (_changes(one) or isinstance(one, ast.Call)):
        return []
    return [(node, f"[{source.part(one)} for _ in range({source.part(count)})]")]


def _of_keys(source: Source, node: Any) -> list[tuple[ast.AST, str]]:
    """A dict in which all keys have the same object, with one for each."""
    if len(node.args) < 2 or not _changes(node.args[1]) or spelled(node.func.value) != "dict":
        return []
    keys, value = map(source.part, node.args)
    return [(node, f"{{key: {value} for key in {keys}}}")]


def made_by_factories(site: Site) -> Iterator[Candidate]:
    """What all instances of a dataclass would share, made when an instance is."""
    told = re.search(r"mutable default .* for field (\w+) is not allowed", site.text)
    for source in site.program.texts if told is not None else ():
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            place = site.place(source, kind, 0.0)
            fields = [row for row in kind.body if isinstance(row, ast.AnnAssign) and row.value]
            names = [name for row in fields for name in bound_by(row)]
            function, imported = _function_of_fields(site, place)
            if told is None or told[1] not in names or not function:
                continue
            pairs: list[tuple[ast.AST, str]] = []
            for row, name in zip(fields, names, strict=True):
                old: Any = row.value
                options = old.keywords if callee(old) == "field" else []
                option = next((k for k in options if k.arg == "default"), None)
                given = option.value if option is not None else old
                if name == told[1] or (_is_shared(place, given) and not _of_class(row)):
                    text = f"default_factory={_factory(place, given, names)}"
                    pairs.append((option, text) if option else (old, f"{function}({text})"))
            edits = [e for s in site.program.texts for e in spliced(s, imported.get(s.shown, []))]
            yield Candidate(0.1, (*spliced(source, pairs), *edits))


def _function_of_fields(
    site: Site, place: Place
) -> tuple[str, dict[str, list[tuple[ast.AST, str]]]]:
    """How ``field`` is called where a class stands, and what imports it, by file."""
    known = place.names().items()
    names = [name for name, value in known if value is dataclasses.field]
    if names:
        return names[0], {}
    for source in site.program.texts:
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                last = node.names[-1]
                return "field", {source.shown: [(last, f"{source.part(last)}, field")]}
    modules = [name for name, value in known if value is dataclasses]
    return (f"{modules[0]}.field" if modules else ""), {}


def _is_shared(place: Place, node: ast.AST) -> bool:
    """Whether a default can be changed: ``dataclass`` takes what has no hash for that."""
    value = place.value(getattr(node, "func", node))
    kind = value if isinstance(node, ast.Call) else type(value)
    return _changes(node) or (value is not MISSING and getattr(kind, "__hash__", 0) is None)


def _of_class(row: ast.AnnAssign) -> bool:
    """Whether a name belongs to the class alone, and is no field."""
    return "ClassVar" in ast.unparse(row.annotation)


def _factory(place: Place, node: Any, fields: list[str]) -> str:
    """What makes a default anew: ``list``, ``lambda: [1, 2]``."""
    if isinstance(node, ast.Call) and not (node.args or node.keywords):
        return place.text(node.func)
    text = place.text(node)
    if isinstance(node, (ast.List, ast.Dict)) and ast.unparse(node) in ("[]", "{}"):
        return "list" if isinstance(node, ast.List) else "dict"
    if spelled(node) and hasattr(place.value(node), "copy"):  # else they would share it still
        return f"lambda: {text}.copy()"
    read = [name for name in fields if name in names_in(node)]  # a function of a class sees none
    given = ", ".join(f"{name}={name}" for name in read)
    return f"lambda {given}: {text}" if given else f"lambda: {text}"
