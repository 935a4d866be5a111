"""What the line that raised read: what each name stood for, and where that was made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch

from nanlab.explanations.explanation import Explanation, shape_text, spot
from nanlab.explanations.site import MISSING, Place, Site, spelled
from nanlab.trace.escapes import Failure

_NAMES = 8  # that are listed
_PARTS = 6  # keys and types that are named of one value


def as_read(failure: Failure, error: BaseException, title: str) -> Explanation | None:
    """What is known of the names of the line that raised; None where it has none, or where the
    program raised the exception itself."""
    site = Site.of(error) if isinstance(error, Exception) else None
    place = site.raising[0] if site is not None and site.raising else None
    if site is None or place is None or isinstance(place.statement, (ast.Raise, ast.Assert)):
        return None
    rows = list(_rows(site, place, error))[:_NAMES]
    if not rows:
        return None
    told = [f"`{row['name']}` is {row['value']}, {row['made']}" for row in rows[:2]]
    return Explanation(
        "unknown-error",
        title,
        f"No message that nanlab knows, and no small change was found that ends it."
        f" {'; '.join(told)}.",
        failure.file,
        failure.line,
        failure.source,
        pd.DataFrame(rows),
        module=failure.module,
    )


def _rows(site: Site, place: Place, error: BaseException) -> Iterator[dict[str, str]]:
    """The names that the line read, those of the part that raised first."""
    owner = getattr(error, "obj", MISSING)
    failed = [part for whole in site.failed for part in ast.walk(whole)]
    seen: set[str] = set()
    nodes = [n for n in (*failed, *place.parts()) if isinstance(getattr(n, "ctx", None), ast.Load)]
    for node in sorted(nodes, key=lambda n: place.value(n) is not owner):
        name, value = spelled(node), place.value(node)
        plain = not callable(value) or isinstance(value, torch.nn.Module)
        known = value is not MISSING and plain and not isinstance(value, ModuleType)
        if name and name != "self" and known and name not in seen:
            seen.add(name)
            yield {"name": name, "value": described(value), "made": _made(site, place, node)}


def _made(site: Site, place: Place, node: ast.AST) -> str:
    """Where a name was bound: a line, or the call of a function that takes it."""
    bound = site.binding(place, node)
    function = place.function
    if bound is not None and bound.function is function:
        return f"bound at {spot(bound.source.shown, bound.statement.lineno)}"
    arguments = function.args if function is not None else None
    given = arguments is not None and [*arguments.posonlyargs, *arguments.args]
    if function is not None and spelled(node) in {each.arg for each in given or ()}:
        return f"an argument of {function.name}"
    if bound is not None:
        return f"bound at {spot(bound.source.shown, bound.statement.lineno)}"
    return "bound elsewhere"


def described(value: Any) -> str:
    """``a tuple of 2 (Tensor 3 x 4)``: the type of a value, how much it holds and of what."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        kind = str(value.dtype).removeprefix("torch.")
        return f"a {type(value).__name__} of {kind}, {shape_text(value.shape)}"
    name = type(value).__name__
    if isinstance(value, dict):
        keys = ", ".join(map(repr, list(value)[:_PARTS]))
        return f"a {name} with {len(value)} keys: {keys}" if value else f"an empty {name}"
    if isinstance(value, (list, tuple, set)):
        kinds = list(dict.fromkeys(map(_kind, list(value)[:_PARTS])))
        return f"a {name} of {len(value)} ({', '.join(kinds)})" if value else f"an empty {name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{value!r:.60}" if value is None else f"the {name} {value!r:.60}"
    return f"a {name}"


def _kind(value: Any) -> str:
    name, shape = type(value).__name__, getattr(value, "shape", None)
    return name if shape is None else f"{name} {shape_text(shape)}"
