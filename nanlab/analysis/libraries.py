"""Where inside an installed package, or inside torch, an operation stands that the user's line led
to."""

from __future__ import annotations

import ast
from functools import lru_cache

from nanlab.trace.recording import Recording

Place = tuple[str, int, str]  # file, line, function


def library_of(recording: Recording, position: int) -> Place | None:
    """(file, line, function) in a library where a row was computed; None where it is the user's own
    line.

    Of a backward row it is that of the forward operation of its node.
    """
    row = recording.op(position) if position >= 0 else None
    if row is None:
        return None
    info = recording.nodes.get(row.node) if row.backward and row.node >= 0 else None
    forward = info.position if info is not None else position
    if (inside := recording.inside_torch.get(forward)) is not None:
        return inside
    site = info.site if info is not None else row.site
    user = info.line if info is not None else row.place
    shown, line, real = recording.places[site]
    if not line or site == user:
        return None
    return shown, line, function_at(real, line)


@lru_cache(maxsize=256)
def function_at(file: str, line: int) -> str:
    """Qualified name of the innermost function around a line; empty at the top of a module, or
    where there is no source."""
    try:
        with open(file, encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ""
    return _named(tree, line, ())


def _named(node: ast.AST, line: int, outer: tuple[str, ...]) -> str:
    for child in ast.iter_child_nodes(node):
        if not (
            isinstance(child, ast.stmt)
            and child.lineno <= line <= (child.end_lineno or child.lineno)
        ):
            continue
        inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        return _named(child, line, (*outer, child.name) if inner else outer)  # type: ignore[attr-defined]
    return ".".join(outer)


__all__ = ["Place", "function_at", "library_of"]
