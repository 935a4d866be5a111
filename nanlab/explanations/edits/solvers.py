"""Functions of linear algebra that were removed, as those that took their place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import Candidate, Place, Site, Tensor, callee, names_in, spelled


def by_those_that_stayed(site: Site) -> Iterator[Candidate]:
    """A function that was removed as the one of ``torch.linalg`` that gives the same, with its
    arguments in the order of that and its results under the same names."""
    gone = "was deprecated since" in site.text and "now removed" in site.text
    for place in site.raising[:1] if gone else ():
        for call in place.calls():
            name, own = callee(call), replace(place, distance=0.0)
            given = [place.text(node) for node in call.args]
            owner = getattr(call.func, "value", None)
            if owner is not None and isinstance(place.value(owner), Tensor):
                given.insert(0, place.text(owner))
            options = {k.arg: k.value for k in call.keywords}
            given += [place.text(options[k]) for k in ("input", "A") if k in options]
            if name == "symeig" and given:
                yield from _symmetric(own, call, given, options)
            elif name == "eig" and given:
                yield from _general(own, call, given[0])
            elif name in ("solve", "lstsq") and len(given) == 2:
                yield from _solved(own, call, *given)
            elif name == "matrix_rank" and given:
                yield own.replaced(0.2, (call, f"torch.linalg.matrix_rank({given[0]})"))


def _symmetric(
    place: Place, call: ast.Call, given: list[str], options: dict[str | None, Any]
) -> Iterator[Candidate]:
    """Eigenvalues, and vectors where something reads a second part: of the triangle that the
    function read, which was the upper one."""
    upper = options.get(
        "upper", ast.parse(given[2] if len(given) > 2 else "True", mode="eval").body
    )
    lower = isinstance(upper, ast.Constant) and not upper.value
    names = _parts(place, call)
    both = f"torch.linalg.eigh({given[0]}" + (")" if lower else ', UPLO="U")')
    alone = both.replace("eigh(", "eigvalsh(")
    yield place.replaced(0.2, (call, both))
    for node in place.parts():
        first = _is_first(node, "eigenvalues")
        if first and node.value is call and "eigenvectors" not in options:  # type: ignore
            yield place.replaced(0.15, (node, alone))
    if len(names) == 2 and names[1] == "_":
        row = f"{names[0]} = {alone}"
        yield place.replaced(0.15, (place.statement, row))


def _general(place: Place, call: ast.Call, given: str) -> Iterator[Candidate]:
    """Complex eigenvalues; as two real numbers each where they are read so."""
    names, new = _parts(place, call), f"torch.linalg.eig({given})"
    yield place.replaced(0.25, (call, new))
    for node in place.parts():
        if _is_first(node, "eigenvalues") and node.value is call:  # type: ignore[attr-defined]
            values = f"torch.linalg.eigvals({given})"
            yield place.replaced(0.2, (node, f"torch.view_as_real({values})"))
    row = place.text(place.statement).replace(place.text(call), new, 1)
    for name in names[:1]:
        parts = (n for n in place.source.nodes if isinstance(n, ast.Subscript))
        asked = [n for n in parts if spelled(n.value) == name and isinstance(n.slice, ast.Tuple)]
        if asked:
            yield place.written(0.2, f"{row}\n{name} = torch.view_as_real({name})")


def _solved(place: Place, call: ast.Call, right: str, matrix: str) -> Iterator[Candidate]:
    """The solution of a system: the matrix comes first, and is not taken apart for the caller."""
    names, least = _parts(place, call), callee(call) == "lstsq"
    new = f"torch.linalg.{callee(call)}({matrix}, {right})"
    alone = f"{new}.solution" if least else new
    for node in place.parts():
        if _is_first(node, "solution") and node.value is call:  # type: ignore[attr-defined]
            yield place.replaced(0.2, (node, alone))
    if len(names) == 2:
        later = [n for row in place.block for n in ast.walk(row) if isinstance(n, ast.Name)]
        read = {n.id for n in later if isinstance(n.ctx, ast.Load)}
        if names[1] not in read:
            yield place.replaced(0.2, (place.statement, f"{names[0]} = {alone}"))
    elif least:
        yield place.replaced(0.3, (call, new))
    elif names:  # read by its name later
        pairs = [
            (node, names[0])
            for row in place.block
            for node in ast.walk(row)
            if _is_first(node, "solution")
            and names[0] in names_in(node.value)  # type: ignore
            and spelled(node.value) == names[0]  # type: ignore[attr-defined]
        ]
        yield place.replaced(0.2, (call, new), *pairs)


def _parts(place: Place, call: ast.Call) -> list[str]:
    """The names that the parts of what a call gives are bound to, or that of the whole."""
    row = place.statement
    if not isinstance(row, ast.Assign) or row.value is not call or len(row.targets) != 1:
        return []
    target = row.targets[0]
    return [place.text(n) for n in getattr(target, "elts", [target])]


def _is_first(node: ast.AST, name: str) -> bool:
    """Whether a node takes the first part of a result, by its number or by this name."""
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) == 0
