"""Parts of what a model gives that it was not asked for: they are None, or not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from inspect import getattr_static
from typing import Any

from torch import nn

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    is_whole,
    signature,
    spelled,
)

_DEEP = 6  # calls and names between what is read and the model that gave it
_GIVES = re.compile(r"^(?:output|return|need|with|get|use|compute)_")
_LABELS = re.compile(r"(?i)label|target|tgt|^y(b|_|$)")
_OF_WORDS = re.compile(r"LM|Causal|MaskedL")  # models that learn their own input


def asked_for(site: Site) -> Iterator[Candidate]:
    """The option with which a model gives what the program reads of its output; for the loss, the
    labels."""
    lacking = isinstance(site.error, KeyError) or "NoneType" in site.text
    for place in (*site.raising[:1], *site.bindings) if lacking else ():
        for node in (n for n in place.parts() if isinstance(n, (ast.Attribute, ast.Subscript))):
            name = node.attr if isinstance(node, ast.Attribute) else _key(node.slice)
            value = place.value(node)
            if name and (value is None or (value is MISSING and name in site.text)):
                for at, call, model in _given_by(site, place, node.value):
                    yield from _asked(replace(at, distance=0.0), call, model, name)
        for name in bound_by(place.statement):  # of several parts, each with its name
            if place.value(ast.Name(name)) is None:
                whole: Any = getattr(place.statement, "value", None)
                for at, call, model in _given_by(site, place, whole):
                    yield from _asked(replace(at, distance=0.0), call, model, "")


def _key(node: ast.expr) -> str:
    value = getattr(node, "value", "")
    return value if isinstance(value, str) else ""


def _given_by(
    site: Site, place: Place, node: Any, deep: int = _DEEP
) -> Iterator[tuple[Place, ast.Call, nn.Module]]:
    """The calls of modules that an expression comes from, with the modules."""
    if deep and isinstance(node, ast.Call):
        value: Any = place.value(node.func)
        if isinstance(value, nn.Module):
            yield place, node, value
        own = getattr(value, "__self__", value)
        for at in site.returns(value) if value is not MISSING else ():
            names = {"self": own} if isinstance(own, nn.Module) else {}
            inside = replace(at.frame, f_locals={**at.frame.f_locals, **names})
            result = getattr(at.statement, "value", None)
            yield from _given_by(site, replace(at, frame=inside), result, deep - 1)
    elif deep and node is not None and spelled(node):
        bound = site.binding(place, node)
        if bound is not None:
            result = getattr(bound.statement, "value", None)
            yield from _given_by(site, bound, result, deep - 1)


def _asked(place: Place, call: ast.Call, model: nn.Module, name: str) -> Iterator[Candidate]:
    """A call of a model that asks for a part of its output.

    name: of the part; empty: it has none.
    """
    known, own = signature(model), {k.arg: k for k in call.keywords}
    config = getattr_static(model, "config", None)
    options = {n for n, default in known.items() if default in (False, None)}
    options |= {n for n in getattr(config, "__dict__", {}) if n == f"output_{name}"}
    words = {each.rstrip("s") for each in name.split("_")}
    options = {n for n in options if _GIVES.search(n)}
    near = [n for n in options if not name or words & {p.rstrip("s") for p in n.split("_")}]
    for option in sorted(near, key=lambda n: not n.endswith(name)):
        given = own.get(option)
        if given is None and name:
            yield place.added(0.25, call, f"{option}=True")
        elif given is not None and getattr(given.value, "value", None) is False:
            yield place.replaced(0.25, (given.value, "True"))
    if name == "loss" and "labels" in known and "labels" not in own:
        for at, text in enumerate(_labels(place, call, model)):
            yield place.added(0.3 + 0.02 * at, call, f"labels={text}")


def _labels(place: Place, call: ast.Call, model: nn.Module) -> Iterator[str]:
    """What may be the labels of a model: by its name, or its own input."""
    for name, value in place.names().items():
        if isinstance(value, dict):
            yield from (f'{name}["{key}"]' for key in value if _LABELS.search(str(key)))
        if isinstance(value, Tensor) and _LABELS.search(name):
            yield name
    inputs = [k.value for k in call.keywords if k.arg == "input_ids"] or call.args[:1]
    for node in inputs if _OF_WORDS.search(type(model).__name__) else ():
        value = place.value(node)
        if value is MISSING or (isinstance(value, Tensor) and is_whole(value)):
            if spelled(node) or isinstance(node, ast.Subscript):
                yield place.text(node)
