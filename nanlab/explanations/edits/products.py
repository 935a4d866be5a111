"""Matrix products the other way round."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    is_return,
    spelled,
)
from nanlab.operators import having


def other_products(site: Site, place: Place) -> Iterator[Candidate]:
    """A matrix product the other way round, or of a matrix with itself turned."""
    for node in place.parts():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            left, right = place.text(node.left), place.text(node.right)
            if left == right:
                yield place.replaced(0.6, (node.right, f"{right}.transpose(-2, -1)"))
            elif not isinstance(node.left, ast.BinOp):
                yield place.replaced(0.7, (node, f"{right} @ {left}"))
            else:
                yield place.replaced(0.9, (node, f"{right} @ ({left})"))


def of_batches(site: Site) -> Iterator[Candidate]:
    """A batch of matrices, each of which is turned, where the program turns all its dimensions or
    takes it for one matrix."""
    refused = re.search(r"\bt\(\) expects|mat1|batch[12]|of tensor|\.T`", site.text)
    for place in (*site.raising, *site.bindings) if refused else ():
        for node in place.parts():
            turned = node.func if isinstance(node, ast.Call) and not node.args else node
            if isinstance(turned, ast.Attribute) and turned.attr in ("t", "T"):
                value = place.value(turned.value)
                if isinstance(value, Tensor) and value.dim() > 2:
                    text = f"{place.whole(turned.value)}.transpose(-2, -1)"
                    yield replace(place, distance=0.0).replaced(0.2, (node, text))


def products_turned(site: Site) -> Iterator[Candidate]:
    """A product of two matrices the other way round, where that has the size of what the result
    meets: in a statement, or in a function that gave the result."""
    places = [site.raising[0], *site.bindings] if site.met else []
    for place in places:
        yield from _turned(site, place, place.parts(), place.value)
        for call in place.calls():
            for last in site.returns(function := place.value(call.func)):
                given = dict(zip(_parameters(last), map(place.value, call.args), strict=False))
                held = partial(_held, owner=getattr(function, "__self__", function), given=given)
                yield from _turned(site, last, ast.walk(last.function or last.statement), held)


def gradients_turned(site: Site) -> Iterator[Candidate]:
    """The gradient of a matrix that a function of its own gives turned, the other way round where
    it is computed."""
    told = re.search(r"Function (\w+)Backward .* (\d+) - got \[(.*)\] but .*\[(.*)\]", site.text)
    if told is None or told[3].split(", ")[::-1] != told[4].split(", ") or "," not in told[3]:
        return
    for last in (place for place in site.statements() if is_return(place.statement)):
        around = getattr(last.in_class, "name", ""), getattr(last.function, "name", "")
        if around != (told[1], "backward"):
            continue
        given: Any = bound_value(last, "")
        names = [*map(spelled, getattr(given, "elts", [given])[int(told[2]) :][:1])]
        made = [p for p in site.statements() if p.function is last.function]
        made = [p for p in made if {*filter(None, names)} & {*bound_by(p.statement)}]
        value = bound_value(made[0], names[0]) if len(made) == 1 else None
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
            left, right = (_transposed(made[0], side) for side in (value.left, value.right))
            yield replace(made[0], distance=0.0).replaced(0.1, (value, f"{right} @ {left}"))
        elif isinstance(value, ast.Call):
            text = f"{made[0].text(value)}.t()"
            yield replace(made[0], distance=0.0).replaced(0.1, (value, text))


def _transposed(place: Place, node: ast.expr) -> str:
    """A matrix with its dimensions exchanged: as it was, where they were already."""
    text = place.whole(node)
    plain = re.sub(r"(\.t\(\)|\.m?T|\.transpose\((0, 1|1, 0|-1, -2|-2, -1)\))$", "", text)
    return plain if plain != text else f"{text}.t()"


def with_tied_weight(site: Site) -> Iterator[Candidate]:
    """A linear layer computed with its weight turned, where it shares that of a layer the other way
    round."""
    layer = next((m for m in site.running if isinstance(m, nn.Linear)), None)
    weight = getattr(layer, "weight", None)  # not there yet in a layer that is being made
    if layer is None or weight is None or weight.shape[0] == weight.shape[1]:
        return
    if weight.shape != (layer.in_features, layer.out_features):
        return
    for place in site.raising:
        for call in place.calls():
            if place.value(call.func) is layer and len(call.args) == 1:
                own, given = place.text(call.func), place.text(call.args[0])
                text = f"torch.nn.functional.linear({given}, {own}.weight.t(), {own}.bias)"
                yield replace(place, distance=0.0).replaced(0.2, (call, text))


def _turned(
    site: Site, place: Place, nodes: Iterable[ast.AST], value: Callable[[ast.AST], Any]
) -> Iterator[Candidate]:
    """The matrix products among nodes the other way round, where that is one of the two sizes of
    which the message says that they meet, and the product is the other."""
    for sides in map(_factors, nodes):
        shapes = [tuple(v.shape) for side in sides if isinstance(v := value(side), Tensor)]
        if len(shapes) == 2 and {*sum(shapes, ())} == site.met and {*map(len, shapes)} == {2}:
            if shapes[0] == shapes[1][::-1]:
                texts = [place.whole(side) for side in sides[::-1]]
                pairs = zip(sides, texts, strict=True)
                yield replace(place, distance=0.0).replaced(0.25, *pairs)


def _factors(node: ast.AST) -> list[ast.expr]:
    """The two matrices of a product; none of anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return [node.left, node.right]
    named = callee(node) in having("matmul", "composed_product")
    given = [*node.args] if isinstance(node, ast.Call) and named else []
    owner = getattr(getattr(node, "func", None), "value", None)
    if len(given) == 1 and isinstance(owner, ast.expr):
        return [owner, *given]
    return given if len(given) == 2 else []


def _parameters(place: Place) -> list[str]:
    names = [each.arg for each in place.function.args.args] if place.function is not None else []
    return names[names[:1] == ["self"] :]


def _held(node: ast.AST, owner: Any, given: dict[str, Any]) -> Any:
    """What a name, or a tensor turned, stands for in a function: of its object, or given to it."""
    name = spelled(node)
    with suppress(Exception):  # it may be computed
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return _held(node.value, owner, given).T
        own = name.startswith("self.")
        return getattr(owner, name[5:], MISSING) if own else given.get(name, MISSING)
    return MISSING
