"""What the annotations of a program name: classes, as their modules spell them."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    callee,
    first_line,
    is_text,
    lines_as,
    spliced,
)
from nanlab.explanations.trial import Source
from nanlab.findings.rule import Edit


def of_classes(site: Site) -> Iterator[Candidate]:
    """Classes where an annotation names a function or a module that is spelled nearly so:
    ``torch.tensor | None``; one in quotes that is joined to others, with all of them in quotes."""
    if not site.text.startswith("unsupported operand type(s) for |"):
        return
    for source in site.program.texts:
        place = Place(source, site.raising[0].statement, site.raising[0].frame, 0.0)
        pairs: list[tuple[ast.AST, str]] = []
        for whole in _annotations(source.nodes):
            joined = [n for n in ast.walk(whole) if isinstance(n, ast.BinOp)]
            sides = [side for n in joined for side in (n.left, n.right)]
            texts = [n for n in sides if isinstance(getattr(n, "value", None), str)]
            if texts and isinstance(whole, ast.BinOp):
                plain = source.part(whole).replace('"', "").replace("'", "")
                pairs.append((whole, f'"{plain}"'))
                continue
            for side in sides:
                if new := _as_class(place, side):
                    pairs.append((side, new))
        edits = spliced(source, pairs)
        if any(text.startswith("typing.") for _, text in pairs) and "typing" not in place.names():
            edits = _imported(source, edits)
        yield Candidate(0.1, edits)


def _imported(source: Source, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Edits, with the import of ``typing`` before the first statement that may follow it."""
    rows = [row for row in source.tree.body if getattr(row, "module", "") != "__future__"]
    top = first_line(next(row for row in rows if not is_text(row)))
    own = next((each for each in edits if each.first <= top <= each.last), None)
    if own is not None:
        new = replace(own, text=f"import typing\n\n{own.text}")
        return tuple(new if each is own else each for each in edits)
    return (*edits, lines_as(source, top, top, f"import typing\n{source.lines[top - 1]}"))


def of_one_form(site: Site) -> Iterator[Candidate]:
    """Annotations as they are written: what is optional has one type, in square brackets."""
    alone = "requires a single type" in site.text
    for source in site.program.texts if alone or "cannot be instantiated" in site.text else ():
        pairs: list[tuple[ast.AST, str]] = []
        for whole in _annotations(source.nodes):
            for part in ast.walk(whole):
                if alone and isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Tuple):
                    rest = [n for n in part.slice.elts if getattr(n, "value", 0) is not None]
                    head = source.part(part.value)
                    if head.rpartition(".")[2] == "Optional":
                        told = ", ".join(map(source.part, rest))
                        told = told if len(rest) == 1 else f"{head[:-8]}Union[{told}]"
                        pairs.append((part, f"{head}[{told}]"))
                elif not alone and isinstance(part, ast.Call) and part.args:
                    told = ", ".join(map(source.part, part.args))
                    pairs.append((part, f"{source.part(part.func)}[{told}]"))
        yield Candidate(0.1, spliced(source, pairs))


def of_instances(site: Site) -> Iterator[Candidate]:
    """A class that something is asked to be of, where a function of nearly its name was named."""
    place = site.raising[0]
    refused = re.search("arg 2 must be a (type|class)", site.text)
    for call in place.calls() if refused else ():
        if callee(call) in ("isinstance", "issubclass") and len(call.args) == 2:
            told = call.args[1]
            for node in told.elts if isinstance(told, ast.Tuple) else [told]:
                if (new := _as_class(place, node)) and not new.startswith("typing."):
                    yield place.replaced(0.15, (node, new))


def _annotations(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """The annotations of parameters, results and variables."""
    for node in nodes:
        for name in ("annotation", "returns"):
            if isinstance(whole := getattr(node, name, None), ast.expr):
                yield whole


def _as_class(place: Place, node: ast.AST) -> str:
    """The class that a name of a function or of a module stands for in an annotation; empty where
    it is none."""
    value, text = place.value(node), place.text(node)
    head, _, name = text.rpartition(".")
    if value is MISSING or isinstance(value, type) or typing.get_origin(value) is not None:
        return ""
    owner = place.value(ast.parse(head, mode="eval").body) if head else typing
    known: dict[str, Any] = {n: v for n, v in getattr(owner, "__dict__", {}).items() if n[0] != "_"}
    if not callable(value) and not isinstance(value, ModuleType):
        kind = type(value).__name__  # of ``torch.float32``
        return f"{head}.{kind}" if head and known.get(kind) is type(value) else ""
    kinds = [n for n, v in known.items() if inspect.isclass(v) or not head]
    same = [n for n in kinds if n.lower() == name.lower() and n != name]
    longer = [n for n in kinds if n.lower().endswith(name.lower()) and n != name]
    for found in [*same, *sorted(longer, key=len)][:1]:
        if head:
            return f"{head}.{found}"
        names = place.names()
        return next((n for n, v in names.items() if v is known[found]), f"typing.{found}")
    return ""
