"""Objects that several share, where each is meant to have its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from nanlab.explanations.site import (
    Candidate,
    Function,
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
