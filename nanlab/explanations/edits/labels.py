"""Labels that stand for no class, left out of what counts classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import (
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    elements,
    is_whole,
    number_of,
    spelled,
)
from nanlab.operators import having

_BEYOND = re.compile(r"out of (range|bounds)|non-negative|is invalid for input|Class values")
_NO_CLASS = (-1, -100, 255)  # labels that stand for none by custom
_SHAPED = having("sized") | {"flatten", "ravel"}


def of_one_dimension(site: Site) -> Iterator[Candidate]:
    """Classes in one dimension, where the program made a column of them: each is looked up, or
    compared, as one number."""
    told = "same number of dimensions|multi-target|1D target|target size|same size"
    for place in site.statements() if re.search(told, site.text) else ():
        made, value = place.result(), bound_value(place, "")
        whole = isinstance(made, Tensor) and is_whole(made) and made.dim() == 2
        if not whole or made.shape[1] != 1 or value is None:
            continue
        column = re.fullmatch(_COLUMN, place.text(value), re.DOTALL)
        if column is not None:
            yield replace(place, distance=0.0).replaced(0.3, (value, column[1]))


_COLUMN = r"(.+?)(?:\.unsqueeze\(-?1\)|\[:, None\]|\.(?:view|reshape)\(-1, 1\))"


def left_out(site: Site) -> Iterator[Candidate]:
    """The samples without a class left out of a statement that looks up or counts classes."""
    tokens = any(f.f_code.co_name == "embedding" for f in site.inner)  # they are no labels
    if not _BEYOND.search(site.text) or tokens:
        return
    places = {id(p.statement): p for p in (*site.raising, *site.bindings)}
    for place in places.values():
        names: dict[str, ast.AST] = {n.id: n for n in place.parts() if isinstance(n, ast.Name)}
        names |= {t: n for n in place.parts() if (t := spelled(n)).startswith("self.")}
        tensors = {t: v for t, n in names.items() if isinstance(v := place.value(n), Tensor)}
        for name, labels in tensors.items():
            none = _of_no_class(site, labels)
            if none is not None:
                yield from _without(site, place, name, none, tensors)


def _of_no_class(site: Site, labels: Tensor) -> int | None:
    """The one label among class numbers that stands for no class; None: there is none."""
    if not is_whole(labels) or not labels.dim() or labels.numel() < 2 or labels.requires_grad:
        return None
    numbers = sorted(elements(labels))
    told = {*_NO_CLASS, *_ignored(site)}
    some = [n for n in (*numbers[:1], *numbers[-1:]) if n in told]
    rest = [n for n in numbers if n not in some[:1]]
    apart = bool(some and rest) and rest[0] >= 0 and (some[0] < 0 or some[0] > rest[-1] + 1)
    return int(some[0]) if apart else None


def _ignored(site: Site) -> Iterator[int]:
    """The labels that the program tells a loss to ignore."""
    for place in site.statements():
        for call in place.calls():
            for keyword in call.keywords:
                if keyword.arg == "ignore_index" and type(n := place.value(keyword.value)) is int:
                    yield n


def _without(
    site: Site, place: Place, name: str, none: int, tensors: dict[str, Tensor]
) -> Iterator[Candidate]:
    """A statement in which all tensors of one entry for each label lack those of no class."""
    labels = tensors[name]
    alike = {n for n, v in tensors.items() if v.shape == labels.shape}
    number = str(none) if none < 0 else place.named_number(none)
    number = next((n for n in _names_of(site, place, none)), number)
    pairs: list[tuple[ast.AST, str]] = []
    shaped = [n.func for n in place.calls() if callee(n) in _SHAPED]
    heads = {id(f.value) for f in shaped if isinstance(f, ast.Attribute)}
    for node in place.parts():
        plain = isinstance(node, (ast.Name, ast.Attribute)) and _is_loaded(node)
        if plain and id(node) not in heads and spelled(node) in alike:
            pairs.append((node, f"{spelled(node)}[{name} != {number}]"))
        elif isinstance(node, ast.Call) and callee(node) in _SHAPED and _is_method(node):
            own: Any = node.func
            if spelled(own.value) in alike:  # a mask makes it flat
                pairs.append((node, f"{spelled(own.value)}[{name} != {number}]"))
    stored = isinstance(place.statement, ast.Assign) and name in _stored(place.statement)
    if pairs and not stored:
        yield replace(place, distance=0.05 * bool(place.distance)).replaced(0.27, *pairs)
    yield from _before_all(place, name, number)


def class_numbers(site: Site) -> Iterator[Candidate]:
    """Class numbers as they are, where a loss of them was given one number for each class."""
    told = re.search(r"input batch_size \((\d+)\) to match target batch_size \((\d+)\)", site.text)
    places = {id(p.statement): p for p in (*site.bindings, *site.raising)} if told else {}
    for place in places.values():
        for node in place.parts():
            if isinstance(node, ast.Call) and callee(node) == "one_hot" and node.args:
                text = place.text(node.args[0])
                yield replace(place, distance=0.0).replaced(0.25, (node, text))


def from_signs(site: Site) -> Iterator[Candidate]:
    """Class numbers of labels -1 and 1, where they are made: a loss of two classes counts from
    0."""
    given = [f.f_locals for f in site.inner if {"input", "target"} <= {*f.f_locals}]
    target = given[-1]["target"] if given and _BEYOND.search(site.text) else None
    if not isinstance(target, Tensor) or not elements(target) <= {-1, 1}:
        return
    if given[-1]["input"].shape[1:2] != (2,):
        return
    for place in site.statements():
        made, value = place.result(), bound_value(place, "")
        own = replace(place, distance=0.0)
        if isinstance(made, Tensor) and value is not None and made.dim() == target.dim():
            if elements(made) == {-1, 1} and not made.requires_grad:
                yield own.replaced(0.2, (value, f"({place.whole(value)} + 1) // 2"))
        for node in place.parts():
            chosen = [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
            if isinstance(node, ast.Call) and callee(node) == "where":
                chosen += node.args[1:]
            numbers = [number_of(each) for each in chosen]
            if numbers in ([-1, 1], [1, -1]):
                yield own.replaced(0.25, (chosen[numbers.index(-1)], "0"))


def as_floats(site: Site) -> Iterator[Candidate]:
    """Numbers of a key as floats, where the samples are made: a loss inside of a model refuses
    whole ones."""
    given = [f.f_locals for f in site.inner if {"input", "target"} <= {*f.f_locals}]
    if "can't be cast to the desired output type Long" not in site.text or not given:
        return
    held = [v for f, _ in site.frames for v in f.f_locals.values() if isinstance(v, Mapping)]
    keys = {k for each in held for k, v in each.items() if v is given[-1]["target"]}
    for place in site.statements() if keys else ():
        nodes: list[Any] = [n for n in place.parts() if isinstance(n, ast.Dict)]
        made = [v for n in nodes for k, v in zip(n.keys, n.values, strict=True) if _key(k) in keys]
        for target in getattr(place.statement, "targets", []):
            if isinstance(target, ast.Subscript) and _key(target.slice) in keys:
                made.append(bound_value(place, ""))
        for node in made:
            text = f"{place.whole(node)}.float()"
            yield replace(place, distance=0.0).replaced(0.3, (node, text))


def _key(node: Any) -> Any:
    return getattr(node, "value", None) if isinstance(node, ast.Constant) else None


def _before_all(place: Place, name: str, number: str) -> Iterator[Candidate]:
    """A function that goes on with the labels of classes alone, and what else it has of these."""
    function = place.function
    rows = function.body if function is not None else []
    own = [each.arg for each in function.args.args] if function is not None else []
    if name not in own:
        return
    shape = place.frame.f_locals[name].shape
    own += [n for row in rows for n in bound_by(row) if "." not in n]
    values = ((n, place.frame.f_locals.get(n)) for n in dict.fromkeys(own))
    alike = {n for n, v in values if isinstance(v, Tensor) and v.shape == shape}
    at = next((n for n, row in enumerate(rows) if alike & _read(row)), None)
    if at is None or {n for row in rows[at:] for n in bound_by(row)} & alike:
        return
    whole = sorted(alike & {n for row in rows[at:] for n in _read(row)})
    keep = next(n for n in ("keep", "kept", "counted") if n not in place.names())
    both = f"{', '.join(whole)} = {', '.join(f'{n}[{keep}]' for n in whole)}"
    first = replace(place, statement=rows[at], distance=0.0)
    yield first.written(0.3, f"{keep} = {name} != {number}\n{both}\n{{}}")


def _read(row: ast.stmt) -> set[str]:
    """The names that a statement reads."""
    return {n.id for n in ast.walk(row) if isinstance(n, ast.Name) and _is_loaded(n)}


def _names_of(site: Site, place: Place, number: int) -> Iterator[str]:
    """Names and attributes of the function around that stand for a label of no class."""
    own = place.frame.f_locals.get("self")
    known = {f"self.{n}": v for n, v in getattr(own, "__dict__", {}).items()}
    for name, value in {**known, **place.names()}.items():
        if type(value) is int and value == number and re.search("(?i)ignore|void|pad|none", name):
            yield name


def _is_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute)


def _is_loaded(node: Any) -> bool:
    return isinstance(node.ctx, ast.Load)


def _stored(statement: ast.Assign) -> set[str]:
    return {spelled(n) for t in statement.targets for n in ast.walk(t)}
