"""Small edits with which a call that raised could be legal, by what its operands are.

The values in the frames of the exception say what kind of thing each operand is; each kind has its
own small edits, at the line that raised, where its operands were bound, where the layers were built
and in the calls above. The cost of an edit says how unusual the mistake is that it would mend.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Function,
    Place,
    Site,
    bound_by,
    called_name,
    function_around,
    innermost,
    number_of,
    rows_of,
    spelled_name,
    spliced,
)
from nanlab.explanations.trial import (
    Source,
    lines_edit,
)
from nanlab.operators import having

Tensor = torch.Tensor


# Edits by what an expression is.


_ASKED = ("size", "dim", "numel", "item", "stride", "parameters", "backward")  # what is asked of it


# What goes into these is the program's data: with less of it many an error goes away.
_GATHER = (
    "zip list tuple dict set enumerate iter next map filter sorted range parameters DataLoader"
    " TensorDataset".split()
)


def _operands(place: Place) -> Iterator[tuple[ast.expr, str]]:
    """Expressions of a statement that could be other tensors, each with its role."""
    seen: set[int] = set()
    for node in place.parts():
        pairs: list[tuple[ast.expr, str]] = []
        if called_name(node) in _GATHER:
            continue
        if isinstance(node, ast.Call):
            pairs = [(a, "argument") for a in node.args]
            pairs += [(k.value, "argument") for k in node.keywords]
            if isinstance(node.func, ast.Attribute) and node.func.attr not in _ASKED:
                pairs.append((node.func.value, "receiver"))
        elif isinstance(node, ast.BinOp):
            pairs = [(node.left, "side"), (node.right, "side")]
        elif isinstance(node, ast.Subscript):
            pairs = [(node.value, "indexed"), (node.slice, "index")]
        elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
            pairs = [(e, "element") for e in node.elts]
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Return)) and node.value is not None:
            pairs = [(node.value, "value")]
        for expression, role in pairs:
            if isinstance(expression, (ast.Starred, ast.Constant, ast.Slice, ast.Lambda)):
                continue
            if getattr(expression, "id", "") == "self":
                continue
            if id(expression) not in seen:
                seen.add(id(expression))
                yield expression, role


def written_parts(site: Site, place: Place) -> Iterator[Candidate]:
    """A part that is written, as long as what is written there."""
    target = getattr(place.statement, "targets", [None])[0]
    value = getattr(place.statement, "value", None)
    if place.distance == 0 and isinstance(target, ast.Subscript) and isinstance(value, ast.Name):
        index = f"{place.text(target.slice)}, : len({place.text(value)})"
        yield place.replaced(0.6, (target, f"{place.text(target.value)}[{index}]"))


def values(site: Site, place: Place) -> Iterator[Candidate]:
    """Tensors and arrays in another form: of another shape, dtype, or copied."""
    operands = list(_operands(place))
    tensors = {spelled_name(e): v for e, _ in operands if isinstance(v := place.value(e), Tensor)}
    for expression, role in operands:
        value = place.value(expression)
        if value is MISSING and role == "value":
            value = place.result()
        for cost, new in _forms(place, expression, value, tensors, site):
            plain = isinstance(
                expression, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Tuple)
            )
            old = place.text(expression)
            text = new if plain or not new.startswith(old) else f"({old}){new[len(old) :]}"
            more = 0.0 if value is not MISSING else 0.3
            more += 0.2 if role == "value" else 0.0
            yield place.replaced(cost + more, (expression, text))
            alike = [
                other
                for other, _ in operands
                if isinstance(value, Tensor)
                and other is not expression
                and getattr(place.value(other), "shape", None) == value.shape
                and isinstance(other, ast.Name)
                and isinstance(expression, ast.Name)
            ]
            if alike:  # what is wrong with one is with those of its shape
                pairs = [(o, new.replace(old, place.text(o))) for o in (expression, *alike)]
                yield place.replaced(cost + more + 0.1, *pairs)


def said_elsewhere(site: Site, place: Place) -> Iterator[Candidate]:
    """Expressions as another place of the program has them: with a method called, with the index
    of their neighbours, through a layer that nothing else uses."""
    others = [n for source in site.program.texts for n in ast.walk(source.tree)]
    calls = [n for n in others if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    here = set(map(id, place.parts()))
    functions: list[tuple[Any, ast.Call]] = [(n.func, n) for n in calls if id(n) not in here]
    longer = {ast.unparse(function.value): n for function, n in functions}
    indices = [n for n in place.parts() if isinstance(n, ast.Subscript)]
    texts = {place.text(n.slice) for n in indices if isinstance(n.slice, ast.Name)}
    owner = place.frame.f_locals.get("self")
    parts = vars(owner).get("_modules", {}) if isinstance(owner, nn.Module) else {}
    read = [n.attr for n in others if isinstance(n, ast.Attribute) and n.attr in parts]
    for expression, role in _operands(place):
        old = place.text(expression)
        if isinstance(expression, ast.Call) and (other := longer.get(ast.unparse(expression))):
            yield place.replaced(0.3, (expression, ast.unparse(other)))
        if role in ("argument", "side") and not any(expression is each.value for each in indices):
            if isinstance(expression, (ast.Name, ast.Attribute)) and old not in texts:
                for text in texts:
                    yield place.replaced(0.5, (expression, f"{old}[{text}]"))
        if role in ("argument", "side") and isinstance(place.value(expression), Tensor):
            for name in (name for name in parts if read.count(name) == 1):
                yield place.replaced(0.5, (expression, f"self.{name}({old})"))


def _forms(
    place: Place, node: ast.expr, value: Any, others: dict[str, Tensor], site: Site
) -> Iterator[tuple[float, str]]:
    """Texts in the place of an expression: (cost, text)."""
    old = place.text(node)
    if not old:
        return
    if isinstance(node, ast.Call) and called_name(node) in ("half", "bfloat16", "double"):
        yield 0.7, place.text(node.func).rpartition(".")[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if called_name(node) in _LEFT_OUT:
            yield 0.9, place.text(node.func.value)
        if called_name(node) == "squeeze" and not node.args:
            yield 0.8, f"{old[:-1]}-1)"
    if isinstance(value, dict):
        for key in (key for key in value if isinstance(key, str)):
            yield 0.8, f"{old}[{key!r}]"
    if isinstance(value, Iterator) and (bound := site.binding(place, node)) is not None:
        yield 0.4, bound.text(bound.statement.value)  # type: ignore[attr-defined]
    if isinstance(value, list) and len(value) in site.told and isinstance(node, ast.List):
        for more in (n - len(value) for n in site.told if n > len(value)):
            yield 1.4, f"{old[:-1]}{more * (', ' + place.text(node.elts[-1]))}]"
    for kind in re.findall(r"\bnot an? (\w+)", site.text):
        for name, other in place.names().items():
            if kind in (base.__name__ for base in type(other).__mro__) and name != old:
                yield 0.6, name
    if isinstance(value, np.ndarray):
        yield 0.8, f"{old}.copy()"
        yield 1.0, f'{old}.astype("float32")'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield 1.2, f"torch.tensor({old})"
    if isinstance(value, list) and value and all(type(v) in (int, float, bool) for v in value):
        yield 0.7, f"torch.tensor({old})"
    if isinstance(value, (list, tuple)) and value:
        yield 0.9, f"*{old}"
        for name in dir(value):  # of a named tuple
            if isinstance(getattr(value, name), Tensor):
                yield 0.8 - 0.1 * (name in site.text), f"{old}.{name}"
        if all(isinstance(v, Tensor) for v in value):
            if isinstance(value, tuple):
                yield 1.2, f"{old}[0]"
            yield 1.2, f"torch.stack({old})"
    if isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module)):
        yield 0.5, f"{old}()"
    if value is MISSING:
        yield 1.4, f"*{old}"
        if "tuple" in site.text:
            yield 1.6, f"{old}[0]"
    elif isinstance(value, nn.Module) and len({p.dtype for p in value.parameters()}) == 1:
        if any(p.dtype != torch.float32 for p in value.parameters()):
            yield 1.0, f"{old}.float()"
    if value is not MISSING and not isinstance(value, Tensor):
        return
    if isinstance(value, Tensor) and value.numel():
        yield from _moved(old, value, site)
    used = map(site.raising[0].value, site.raising[0].parts())
    real = not any(isinstance(each, nn.Parameter) for each in used)
    spectrum = real and re.search(r"Complex|complex\d", site.text)
    if spectrum and (value is MISSING or value.is_complex()):
        yield (0.2 if isinstance(node, ast.BinOp) else 0.5), f"{old}.abs()"
        return
    if "device" in site.text:
        for name, other in others.items():
            if value is not MISSING and name and other.device != value.device:
                yield 0.6 + 0.1 * isinstance(value, nn.Parameter), f"{old}.to({name}.device)"
    kinds = re.search(r"type|Long|Float|Half|Double|Int|Bool|float|integer|bool", site.text)
    yield from _cast(old, value, others, site, 0.7 if kinds else 2.0)
    graph = re.search(r"grad|backward|inplace|in-place|leaf", site.text)
    whole = isinstance(place.statement, ast.Assign) and node is place.statement.value
    if "differentiated" in site.text and whole:
        yield 0.5, f"{old}.requires_grad_()"
    if "non-leaf" in site.text and whole:
        yield 0.5, f"{old}.detach().requires_grad_()"
    elif "scalar outputs" in site.text:
        yield 0.5, f"{old}.mean()"
    elif graph and not re.search("does not require grad|second time|non-leaf", site.text):
        yield 0.8, f"{old}.detach()"
        yield 1.0, f"{old}.clone()"
    indexed = re.search("^(?!Dimension).*out of (range|bounds)", site.text)
    learned = isinstance(value, nn.Parameter)  # it was given the shape that it shall have
    yield from _shaped(old, value, others, site, 1.5 if graph or indexed or learned else 0.0)


# Calls without which the program may be what was meant.
_LEFT_OUT = "squeeze unsqueeze flatten transpose permute".split()


def _moved(old: str, value: Tensor, site: Site) -> Iterator[tuple[float, str]]:
    """Numbers that count from one, or lie between others than those that are allowed."""
    if value.is_complex() or value.requires_grad:
        return
    with suppress(RuntimeError):  # it belongs to a transformation that has ended
        yield from _inside_bounds(old, value, site)
        if value.unique().tolist() == [0, 1] and value.dim() > 1:  # is one of them each time 1?
            for d in range(1, value.dim()):
                if bool((value.sum(d) == 1).all()):
                    yield 0.6, f"{old}.argmax({d})"
        if value.dtype == torch.int64 and value.dim() and "dtype" in site.text:
            for number in (n for n in site.sizes if n > max(1, int(value.max()))):
                yield 1.0, f"torch.nn.functional.one_hot({old}, {number}).float()"


def _inside_bounds(old: str, value: Tensor, site: Site) -> Iterator[tuple[float, str]]:
    low, high = float(value.detach().min()), float(value.detach().max())
    whole = not value.is_floating_point() and value.dtype != torch.bool
    if whole and low > 0 and int(high) in site.told and re.search(r"out of|outside", site.text):
        yield 0.4, f"({old} - {int(low)})"
    if whole and low < 0 and re.search(r"out of|outside", site.text):
        yield 1.0, f"{old}.clamp(min=0)"
    if "between 0 and 1" in site.text and value.unique().numel() == 2:
        shifted = f"{old} {'-' if low > 0 else '+'} {abs(low):g}"
        yield 0.4, f"({shifted})" if high - low == 1 else f"(({shifted}) / {high - low:g})"


def _cast(
    old: str, value: Any, others: dict[str, Tensor], site: Site, cost: float
) -> Iterator[tuple[float, str]]:
    dtype = value.dtype if value is not MISSING else None
    floats = dtype is not None and dtype.is_floating_point
    for name, words in (("half", "half"), ("bfloat16", "bfloat16"), ("cfloat", "ComplexFloat")):
        if re.search(rf"\b(c10::)?{words}\b", site.text, re.I):
            yield cost + 0.3, f"{old}.{name}()"
    if dtype != torch.float32:
        yield cost, f"{old}.float()"
    graph = (value is not MISSING and value.requires_grad) or "grad" in site.text
    if graph and not re.search("Long|long|int", site.text):
        return
    if dtype != torch.int64:
        loses = floats and bool((value != value.round()).any())
        yield cost + 0.2 * floats + 0.8 * loses, f"{old}.long()"
    if dtype != torch.bool:
        flags = (
            "bool" in site.text.lower()
            and dtype is not None
            and set(value.unique().tolist()) == {0, 1}
        )
        yield cost + (-0.2 if flags else 0.6), f"{old}.bool()"
    for name, other in others.items():
        if name and name != old and other.dtype != dtype and other.dtype != torch.float32:
            yield cost + 0.4, f"{old}.to({name}.dtype)"


# Other shapes of a tensor: cost, fewest and most dimensions that it has, and how they are written.
_SHAPES = (
    (1.1, 2, 2, "{}.flatten()"),
    (1.1, 3, 9, "{}.flatten(1)"),
    (1.2, 2, 9, "{}.flatten(0, 1)"),
    (1.15, 2, 9, "{}.transpose(-2, -1)"),
    (1.2, 3, 9, "{}.transpose(0, 1)"),
    (1.2, 3, 9, "{}.transpose(1, 2)"),
    (1.3, 3, 3, "{}.permute(2, 0, 1)"),
    (1.5, 3, 9, "{}[:, -1]"),
    (1.6, 3, 9, "{}.mean(1)"),
)


def _shaped(
    old: str, value: Any, others: dict[str, Tensor], site: Site, more: float
) -> Iterator[tuple[float, str]]:
    shape = tuple(value.shape) if value is not MISSING else None
    rank = len(shape) if shape is not None else 2
    for d in range(rank):
        if shape is None or shape[d] == 1:
            yield more + 0.8, f"{old}.squeeze({d})"
    for d in (*range(rank), -1):
        unlike = 0.05 * (d not in (0, 1))
        if shape is not None:
            new = list(value.unsqueeze(d).shape)
            unlike += 0.1 * min(
                [
                    sum(a not in (1, b) for a, b in zip(new, other.shape, strict=True))
                    + (0 if any(a == b > 1 for a, b in zip(new, other.shape, strict=True)) else 1)
                    for other in others.values()
                    if other.dim() == rank + 1
                ],
                default=0,
            )
        yield more + 1.0 + unlike, f"{old}.unsqueeze({d})"
    for cost, fewest, most, text in _SHAPES:
        if fewest <= rank <= most or (shape is None and most > rank):
            yield more + cost, text.format(old)
    last = [d for name, v in others.items() if name != old for d in v.shape[-1:] if v.dim() > 1]
    product = re.search("mat1|matmul|mat2|bmm", site.text) and old != next(iter(others), "")
    if product and shape and shape[-1] in last:  # the second of two is the one to turn
        yield more + 0.65, f"{old}.transpose(-2, -1)"
    if rank > 2:
        turned = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        channels = shape is not None and "channels" in site.text and shape[-1] in site.told
        for cost, order in zip((0.6 if channels else 1.2, 1.25), turned, strict=True):
            yield more + cost, f"{old}.permute({', '.join(map(str, order))})"
    for name, other in others.items():
        if not name or name == old:
            continue
        if shape is not None and other.dim() > rank:
            nones = ", None" * (other.dim() - rank)
            yield more + 1.05, f"{old}[:{nones}]" if rank == 1 else f"{old}[..., None]"
            yield more + 1.3, f"{old}.unsqueeze(-1).expand_as({name})"
        if shape is not None and other.dim() < rank and "shape" in site.text:
            yield more + 1.2, f"{old}.mean(0)"
        if other.shape != shape and other.dim() == rank:
            yield more + 1.5, f"{old}.expand_as({name})"
            yield more + 1.6, f"{old}.reshape({name}.shape)"
            if rank > 3:
                yield more + 1.3, f"torch.nn.functional.interpolate({old}, size={name}.shape[2:])"
            if isinstance(value, nn.Parameter) and rank > 2 and len(value) == 1:
                if other.shape[1] < value.shape[1] and other.shape[2:] == value.shape[2:]:
                    yield 0.5, f"{old}[:, : {name}.size(1)]"  # of a table that is long enough
            if rank > 1:
                yield more + 1.7, f"{old}[..., : {name}.shape[-1]]"
                yield more + 1.7, f"{old}[:, : {name}.shape[1]]"
    for size in dict.fromkeys(n for n in site.told if n > 1):
        yield more + 2.0, f"{old}[..., :{size}]"
        yield more + 2.1, f"{old}[:{size}]"


# Edits of calls.


def calls(site: Site, place: Place) -> Iterator[Candidate]:
    """Options switched, keywords left out, arguments added, functions of the same family."""
    for call in place.calls():
        function = place.value(call.func)
        yield from _options(site, place, call, function)
        yield from _siblings(place, call, function, site.text)
        yield from _arguments(site, place, call, function)


def _signature(function: Any) -> dict[str, Any]:
    """The parameters of a function with their defaults; from its documentation if built in."""
    with suppress(Exception):
        target = function.forward if isinstance(function, nn.Module) else function
        return {n: p.default for n, p in inspect.signature(target).parameters.items()}
    first = (getattr(function, "__doc__", "") or "").strip().partition("->")[0]
    flags = re.findall(r"(\w+)=(True|False)", first)
    return {name: word == "True" for name, word in flags}


# Switches that silence an error and leave its cause, or are out of use.
_NO_CURES = (
    "bias enabled requires_grad create_graph materialize_grads strict size_average reduce affine"
    " track_running_stats training is_grads_batched full_graph drop_last differentiable capturable"
    " maximize foreach fused"
).split()


def _options(site: Site, place: Place, call: ast.Call, function: Any) -> Iterator[Candidate]:
    if function is MISSING:
        return
    own = {k.arg: k for k in call.keywords}
    for at, (name, default) in enumerate(_signature(function).items()):
        if name not in own and at >= len(call.args):
            for value in _given(site, place, name, default is None and isinstance(function, type)):
                yield place.replaced(0.8, (call, _with(place, call, f"{name}={value}")))
        given = own.get(name)
        lacks = name == "create_graph" and "does not require grad" in site.text
        switch = given is not None and isinstance(getattr(given.value, "value", None), bool)
        if (isinstance(default, bool) or switch) and (lacks or name not in _NO_CURES):
            named = 0.6 if name in site.text else 0.0
            if given is None:
                yield place.replaced(
                    0.9 - named, (call, _with(place, call, f"{name}={not default}"))
                )
            elif isinstance(given.value, ast.Constant):
                yield place.replaced(1.5 - named, (given.value, repr(not given.value.value)))
        elif isinstance(default, str) and re.search(rf"\b{name}\b", site.text) and name not in own:
            for word in reversed(re.findall(r"'(\w+)'", site.text)):
                yield place.replaced(0.5, (call, _with(place, call, f"{name}={word!r}")))
        elif default == 0 and name.endswith("padding") and name not in own:
            if re.search("size|shape|dimension", site.text):
                cost = 0.9 - 0.1 * (name != "padding") + 0.7 * bool(site.running)
                yield place.replaced(cost, (call, _with(place, call, f"{name}=1")))
        elif isinstance(default, int) and name not in own:
            for number in dict.fromkeys(site.told):
                if number != default and number < 0 and "index" in name:
                    yield place.replaced(1.1, (call, _with(place, call, f"{name}={number}")))
    if isinstance(function, type) and "self" not in place.names():
        made, known = place.result(), _signature(function)
        more_names = dir(made) if isinstance(made, function) else ()
        for name in dict.fromkeys([*known, *(n for n in more_names if n[0] != "_")]):
            size = known[name] if name in known else getattr(made, name, None)
            size = getattr(made, name, size) if size is inspect.Parameter.empty else size
            if name in own or type(size) is not int or size < 2:
                continue
            for at, number in enumerate(n for n in site.sizes[:8] if n > size):
                if size in site.told or name not in known:
                    more = _with(place, call, f"{name}={number}")
                    yield place.replaced(0.9 + 0.02 * at, (call, more))
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg in site.text:
            parts = set(keyword.arg.split("_"))
            for other, default in _signature(function).items():
                if default is None and parts & set(other.split("_")) and other not in own:
                    text = f"{other}={place.text(keyword.value)}"
                    yield place.replaced(0.8, (keyword, text))
            rest = [place.text(a) for a in call.args]
            rest += [place.text(k) for k in call.keywords if k is not keyword]
            text = f"{place.text(call.func)}({', '.join(rest)})"
            cost = 1.3 if not place.distance else 2.0
            purpose = isinstance(place.value(keyword.value), (Tensor, list, dict))
            cost += 1.5 * purpose
            yield place.replaced(cost, (call, text))
            for near in difflib.get_close_matches(keyword.arg, list(_signature(function)), 2, 0.5):
                if near != keyword.arg and "keyword" in site.text:
                    yield place.replaced(0.4, (keyword, f"{near}={place.text(keyword.value)}"))


def _given(site: Site, place: Place, name: str, builds: bool) -> list[str]:
    """What may be given for an argument: what the function around has by its name; where the
    message asks for it, how often the program's loops run."""
    arguments = place.function.args.args if place.function is not None else []
    own = [f for f in site.unused if builds and f in name.split("_")]
    asked = builds and re.search(rf"\b{name}\b", site.text)
    return own + [name] * (name in {a.arg for a in arguments[1:]}) + (site.rounds if asked else [])


def _with(place: Place, call: ast.Call, more: str) -> str:
    """A call with one more argument."""
    text = place.text(call)
    given = call.args or call.keywords
    head = text[:-1].rstrip().rstrip(",")
    return f"{head}, {more})" if given else f"{head}{more})"


# Functions that are taken for each other.
_FAMILIES = (
    ("stack", "tensor", "cat"),
    ("view", "reshape"),
    ("matmul", "mm"),
    ("matmul", "bmm"),
    ("matmul", "mul"),
    ("mm", "mul"),
    ("kaiming_normal_", "zeros_"),
    ("kaiming_uniform_", "zeros_"),
    ("xavier_uniform_", "zeros_"),
    ("xavier_normal_", "zeros_"),
    ("orthogonal_", "zeros_"),
    ("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    ("BCELoss", "BCEWithLogitsLoss"),
    ("Conv1d", "Conv2d", "Conv3d"),
    ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    ("MaxPool1d", "MaxPool2d", "MaxPool3d"),
    ("AvgPool1d", "AvgPool2d", "AvgPool3d"),
    ("sample", "rsample"),
    ("from_numpy", "tensor"),
    ("append", "extend"),
)


def _siblings(place: Place, call: ast.Call, function: Any, site_text: str) -> Iterator[Candidate]:
    name = called_name(call)
    head = place.text(call.func)[: -len(name)]
    parts = place.value(call.args[0]) if name in ("stack", "tensor") and call.args else None
    if isinstance(parts, (list, tuple)) and len({getattr(each, "shape", 0) for each in parts}) > 1:
        text = _padded(list(parts), place.text(call.args[0]))
        yield place.replaced(0.6, (call, text))
    made = place.value(call.func.func) if isinstance(call.func, ast.Call) else function
    if isinstance(made, type) and issubclass(made, torch.autograd.Function):
        kind = call.func.func if isinstance(call.func, ast.Call) else call.func
        yield place.replaced(0.4, (call.func, f"{place.text(kind)}.apply"))
    for family in _FAMILIES:
        for other in family if name in family else ():
            if other != name:
                yield place.replaced(1.0, (call.func, f"{head}{other}"))
    if function is not MISSING and not callable(function):  # an attribute, not a method
        given = ", ".join(map(place.text, call.args))
        text = place.text(call.func)
        yield place.replaced(0.6, (call, f"{text}[{given}]" if given else text))
    if isinstance(call.func, ast.Attribute) and (owner := place.value(call.func.value)):
        for word in dict.fromkeys(re.findall(r"\b[A-Z]\w+", site_text)):
            if word != name and isinstance(getattr(owner, word, None), type):
                yield place.replaced(0.7, (call.func, f"{head}{word}"))
    if name in ("numpy", "item", "tolist"):
        yield place.replaced(0.8, (call.func, f"{head}detach().{name}"))
    if name == "item":
        count = isinstance(getattr(call.func, "value", None), ast.Compare)
        yield place.replaced(0.9, (call.func, f"{head}{'sum' if count else 'mean'}().{name}"))
    if name == "permute" and len(call.args) > 2:
        rank = 4 if len(call.args) == 3 else 3
        turned = (0, rank - 1, *range(1, rank - 1)) if rank == 4 else (0, 2, 1)
        yield place.replaced(0.9, (call, f"{place.text(call.func)}{turned}"))


def _arguments(site: Site, place: Place, call: ast.Call, function: Any) -> Iterator[Candidate]:
    own = list(_signature(function)) if function is not MISSING else []
    texts = list(map(place.text, call.args))
    if set(texts) <= {*own} and texts != own[: len(texts)] and "self" not in texts:
        named = zip(call.args, texts, strict=True)
        yield place.replaced(0.0, *((a, f"{text}={text}") for a, text in named))
    for a, b in itertools.pairwise(call.args) if len(call.args) in (2, 3) else ():
        if call.keywords or place.distance or isinstance(a, ast.Starred):
            continue
        yield place.replaced(1.5, (a, place.text(b)), (b, place.text(a)))
    lacking = re.search(r"missing \d+ required .*?argument.*?: '(\w+)'", site.text)
    if lacking is None or place.distance:
        return
    order = {name: at for at, name in enumerate(place.frame.f_locals)}
    for name, value in place.frame.f_locals.items():
        if name.startswith("_") or inspect.ismodule(value) or isinstance(value, type):
            continue
        like = difflib.SequenceMatcher(None, name, lacking[1]).ratio()
        number = isinstance(value, Tensor) and value.numel() == 1
        late = order[name] / len(order)
        cost = (
            1.6
            - 0.5 * like
            - 0.3 * late
            - (0.4 if number else 0)
            + (0 if isinstance(value, (Tensor, int, float)) else 0.5)
        )
        yield place.replaced(cost, (call, _with(place, call, name)))


# Edits of names, numbers and statements.


def spellings(site: Site) -> Iterator[Candidate]:
    """Names and attributes that nearly are others."""
    error = site.error
    for place in site.raising[:1]:
        for node in place.parts():
            if isinstance(error, AttributeError) and isinstance(node, ast.Attribute):
                if node.attr != error.name or place.value(node) is not MISSING:
                    continue
                for cost, near in _attributes(site, place, node):
                    yield place.replaced(cost, (node, f"{place.text(node.value)}.{near}"))
            elif isinstance(error, NameError) and isinstance(node, ast.Name):
                if node.id == error.name:
                    yield from _known_names(place, node)
            elif isinstance(error, KeyError) and isinstance(node, ast.Dict):
                for key in (k for k in node.keys if isinstance(k, ast.Constant)):
                    if difflib.get_close_matches(str(key.value), map(str, error.args), 1, 0.6):
                        yield place.replaced(0.4, (key, repr(error.args[0])))
            elif isinstance(error, KeyError) and isinstance(node, ast.Subscript):
                owner = place.value(node.value)
                if isinstance(owner, dict) and isinstance(node.slice, ast.Constant):
                    keys = [k for k in owner if isinstance(k, str)]
                    for near in difflib.get_close_matches(str(node.slice.value), keys, 3, 0.5):
                        yield place.replaced(0.4, (node.slice, repr(near)))


def _attributes(site: Site, place: Place, node: ast.Attribute) -> Iterator[tuple[float, str]]:
    """Attributes that nearly have a name; those of a module that may be used in its place."""
    owner: Any = site.error.obj  # type: ignore[attr-defined]
    names = [n for n in dir(owner) if not n.startswith("__")]
    for at, near in enumerate(difflib.get_close_matches(node.attr, names, 4, 0.6)):
        yield 0.3 + 0.05 * at, near
    asked = [n.attr for n in place.parts() if isinstance(n, ast.Attribute) and n.value is node]
    called = any(isinstance(n, ast.Call) and n.func is node for n in place.parts())
    parts = vars(owner) if isinstance(owner, nn.Module) else {}
    text = "\n".join(each.text for each in site.program.sources)
    for kind in ("_modules", "_parameters", "_buffers"):
        for at, (name, part) in enumerate(reversed(parts.get(kind, {}).items())):
            if all(hasattr(part, each) for each in asked) and (callable(part) or not called):
                used = len(re.findall(rf"\.{name}\b", text)) > 1
                yield 0.6 + 0.2 * used + 0.02 * at, name


def misnamed(site: Site) -> Iterator[Candidate]:
    """Methods whose name nearly is one that their class should have."""
    for source in site.program.texts:
        for node in ast.walk(source.tree):
            kind = site.program.names.get(getattr(node, "name", ""))
            if not isinstance(node, ast.ClassDef) or not isinstance(kind, type):
                continue
            own = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            asked = {*dir(kind.__base__), "__getitem__", "__len__", "__iter__", "__call__"}
            asked -= {each.name for each in own}
            for each in own:
                for near in difflib.get_close_matches(each.name, list(asked), 1, 0.75):
                    if each.name not in dir(kind.__base__):
                        old = source.lines[each.lineno - 1]
                        new = old.replace(each.name, near, 1)
                        yield Candidate(0.35, (lines_edit(source, each.lineno, each.lineno, new),))


def parameters(site: Site) -> Iterator[Candidate]:
    """A function that a library calls with more than it takes."""
    asked = re.search(r"(\w+)\(\) takes .*positional arguments? but \d+ were given", site.text)
    for source in site.program.texts if asked is not None and site.inner else ():
        for node in ast.walk(source.tree):
            if isinstance(node, Function) and asked is not None and node.name == asked[1]:
                place, given = site.place(source, node, 0.0), node.args.args
                if given:
                    yield place.replaced(0.5, (given[-1], f"{place.text(given[-1])}, *_"))


def _known_names(place: Place, node: ast.Name) -> Iterator[Candidate]:
    names = {**place.frame.f_globals, **place.frame.f_locals}
    for near in difflib.get_close_matches(node.id, list(names), 3, 0.6):
        yield place.replaced(0.4, (node, near))
    for owner in ("self", "torch", "nn", "F", "np", "math"):
        if owner in names and hasattr(names[owner], node.id):
            yield place.replaced(0.5, (node, f"{owner}.{node.id}"))


def numbers(site: Site) -> Iterator[Candidate]:
    """Sizes that are written in the program, as what the operands need."""
    near = {id(place.statement): place.distance for place in site.places}
    top = site.raising[0].frame
    for source in site.program.texts:
        made = {id(n) for call in ast.walk(source.tree) if _is_data(call) for n in ast.walk(call)}
        drawn = {id(n) for call in ast.walk(source.tree) if _is_drawn(call) for n in ast.walk(call)}
        loaders = (call for call in ast.walk(source.tree) if called_name(call) == "DataLoader")
        loads = {id(n) for call in loaders for n in ast.walk(call)}
        defaults = {
            id(n) for f in ast.walk(source.tree) if isinstance(f, Function) for n in f.args.defaults
        }
        written: dict[int, list[ast.expr]] = {}
        for node in (each for each in _literals(source.tree) if id(each) not in loads):
            written.setdefault(number_of(node), []).append(node)
        for value, nodes in written.items():
            told = value in site.told or value in site.sizes
            for node in nodes:
                statement = innermost(source.tree, node.lineno)
                distance = near.get(id(statement))
                if statement is None or (distance is None and not (told and value > 1)):
                    continue
                place = Place(source, statement, top, min(distance or 0.0, 0.6))
                more = (0.0 if distance is not None else 0.2) + 0.7 * (id(node) in made)
                more += 1.8 * (id(node) in drawn) + 0.7 * (id(node) in defaults)
                for cost, size in _instead(value, site):
                    shared = 0.8 * (size in site.batch and id(node) not in made)
                    yield place.replaced(cost + more + shared, (node, str(size)))
            if told and 1 < len(nodes) < 5 and value > 1:
                for cost, size in _instead(value, site):
                    edits = spliced(source, [(node, str(size)) for node in nodes])
                    more = 0.5 + 0.7 * any(id(node) in made for node in nodes)
                    more += 1.8 * any(id(node) in drawn for node in nodes)
                    yield Candidate(cost + more, edits)


def sizes(site: Site, place: Place) -> Iterator[Candidate]:
    """Sizes that are computed, or taken from a dimension, in another way."""
    for part in place.parts():
        yield from _dimensions(place, part)
    raises = any(place.statement is each.statement for each in site.raising)
    for call in place.calls():
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            value = place.value(argument)
            if not raises and not isinstance(argument, (ast.Constant, ast.Starred)):
                if value is MISSING or type(value) is int:
                    for cost, new in _reckoned(place, argument, value, site):
                        yield place.replaced(cost, (argument, new))
        if raises:
            yield from _rest(place, call, site)
    if raises:
        yield from _taken(place, site)


def _rest(place: Place, call: ast.Call, site: Site) -> Iterator[Candidate]:
    """The last of the sizes of all parts as what the others leave of the whole."""
    for whole in call.args[:1]:
        for parts in call.args[1:]:
            sizes = place.value(parts)
            with suppress(Exception):
                if isinstance(parts, ast.List) and sum(sizes) != len(place.value(whole)):
                    *others, last = parts.elts
                    left = " - ".join((f"len({place.text(whole)})", *map(place.text, others)))
                    yield place.replaced(0.4, (last, left))
                    if (bound := site.binding(place, last)) is not None:
                        value = bound.statement.value  # type: ignore[attr-defined]
                        yield bound.replaced(0.0, (value, left))


def _reckoned(place: Place, node: ast.expr, value: Any, site: Site) -> Iterator[tuple[float, str]]:
    """A size that is computed, computed in another way."""
    text = place.text(node)
    loose = f"({text})" if isinstance(node, ast.BinOp) else text
    told = list(dict.fromkeys(n for n in site.told if n > 1))[:6]
    for a in told if value is MISSING else [value]:
        for at, b in enumerate(told if value is MISSING else site.sizes[:12]):
            cost = 1.0 + 0.3 * (value is MISSING) + 0.02 * at
            if b > a and b % a == 0:
                yield cost, f"{loose} * {b // a}"
            elif b < a and a % b == 0:
                yield cost, f"{loose} // {a // b}"
            elif b != a:
                yield cost + 0.1, f"{text} {'+' if b > a else '-'} {abs(b - a)}"
    yield 1.3, f"{text} + 1"
    for name in _unread(function_around(place.source.tree, node)):
        yield 0.75, f"{text} + {name}"
        yield 0.8, f"{loose} * {name}"
        yield 0.85, name
    if value in site.told:
        for loop in ast.walk(site.raising[0].source.tree):
            if isinstance(loop, ast.For) and hasattr(site.raising[-1].value(loop.iter), "__len__"):
                if loop.lineno < site.raising[0].statement.lineno <= (loop.end_lineno or 0):
                    yield 0.7, f"{loose} * len({ast.unparse(loop.iter)})"


def _unread(function: ast.AST | None) -> list[str]:
    """Arguments that a function takes and never reads."""
    if not isinstance(function, Function):
        return []
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    return [a.arg for a in function.args.args if a.arg not in read | {"self", "cls"}]


def _taken(place: Place, site: Site) -> Iterator[Candidate]:
    """A size that is written in a function, taken from what the function was given."""
    function = place.function
    if function is None:
        return
    names = [each.arg for each in function.args.args]
    given = {n: v for n in names if isinstance(v := place.frame.f_locals.get(n), Tensor)}
    nodes: dict[int, list[ast.AST]] = {}
    for node in ast.walk(function):
        if isinstance(node, (ast.Constant, ast.Name)) and type(v := place.value(node)) is int:
            if v in site.told and v > 1 and not isinstance(getattr(node, "ctx", None), ast.Store):
                nodes.setdefault(v, []).append(node)
    for old, same in nodes.items():
        for name, tensor in given.items():
            for d, size in enumerate(tensor.shape):
                if size != old and size in site.told:
                    own = ((node, f"{name}.size({d})") for node in same)
                    yield place.replaced(0.6, *own)


def _dimensions(place: Place, node: ast.AST) -> Iterator[Candidate]:
    """Another dimension: of ``x.size(1)``, ``x.shape[1]``, ``dim=1``."""
    number: ast.expr | None = None
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "size" and node.args:
        number = node.args[0]
    elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape":
        number = node.slice
    elif isinstance(node, ast.keyword) and node.arg in ("dim", "axis"):
        number = node.value
    elif isinstance(node, ast.Call) and len(node.args) == 1:
        method = (
            getattr(Tensor, called_name(node), None) if isinstance(node.func, ast.Attribute) else 0
        )
        if re.match(r"\s*\w+\(dim\b", getattr(method, "__doc__", "") or ""):
            number = node.args[0]
    old: Any = number_of(number) if number is not None else MISSING
    for other in (0, 1, -1, 2) if type(old) is int else ():
        if other != old and number is not None:
            far = abs(other - old) if other >= 0 else 1.5
            yield place.replaced(0.95 + 0.02 * far, (number, str(other)))


def _is_data(node: ast.AST) -> bool:
    """Whether an expression makes data: its sizes are what they are."""
    name = called_name(node)
    return name == "tensor" or name in having("makes")


def _is_drawn(node: ast.AST) -> bool:
    """Whether an expression stands for what a program would read."""
    name = called_name(node)
    return name == "tensor" or ("rand" in name and name in having("makes"))


def _instead(value: int, site: Site) -> Iterator[tuple[float, int]]:
    """Sizes in the place of one: (cost, size); what the message says of both is the likeliest."""
    common = [math.gcd(value, n) for n in site.sizes]
    lacking = [n - value for n in site.sizes]
    fitting = [max(d for d in range(1, value + 1) if n % d == 0) for n in site.sizes]
    parts = fitting if "divi" in site.text else []
    for at, size in enumerate(dict.fromkeys([*parts, *site.sizes, *common, *lacking])):
        if 0 < size <= 64 * value and size != value and at < 20:
            cost = 0.8 if value in site.told else 1.3
            cost += 0.0 if size in site.told else 0.5
            yield cost + 0.02 * at + (0.8 if size < 3 else 0.0), size


def _literals(tree: ast.AST) -> Iterator[ast.expr]:
    """Whole numbers and products of them, as they are written."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Constant, ast.BinOp)):
            with suppress(Exception):
                if type(number_of(node)) is int and number_of(node) > 0:
                    yield node
                    continue
        yield from _literals(node)


def structures(site: Site, place: Place) -> Iterator[Candidate]:
    """Results of several parts taken apart, layers registered, lists joined."""
    for node in place.parts() if "operand type" in site.text else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = f"[*{place.text(node.left)}, *{place.text(node.right)}]"
            yield place.replaced(0.5, (node, both))
    yield from _unpacked(place)
    yield from _registered(place, site)
    yield from _loaded(site, place)


def definitions(site: Site) -> Iterator[Candidate]:
    """Statements added or left out, in classes and functions of the program."""
    if re.search("data-dependent|Boolean value of Tensor|traced", site.text):
        yield from _chosen(site)
    for place in site.raising:
        if place.distance == 0 and "has already been" in site.text:
            yield place.written(0.6, "")
        if place.distance == 0 and "already exists" in site.text:
            for source in site.program.sources:
                for node in ast.walk(source.tree):
                    if isinstance(node, ast.Assign) and any(
                        f"'{name.removeprefix('self.')}'" in site.text for name in bound_by(node)
                    ):
                        other = Place(source, node, place.frame, 0.0)
                        yield other.replaced(1.0, (node, "pass"))
    for source in site.program.texts:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and node.name == "backward":
                for each in ast.walk(node):
                    if isinstance(each, ast.Return) and each.value and "gradients" in site.text:
                        own = Place(source, each, site.raising[0].frame, 0.0)
                        lacking = abs(site.told[0] - site.told[1]) if len(site.told) == 2 else 1
                        text = own.text(each.value) + lacking * ", None"
                        yield own.replaced(0.5, (each.value, text))
            if isinstance(node, ast.ClassDef) and any(
                "Module" in ast.unparse(b) for b in node.bases
            ):
                yield from _initialised(source, node, site)


def _loaded(site: Site, place: Place) -> Iterator[Candidate]:
    """Batches made in another way, and modules that are not trained."""
    rows = [f.f_locals.get("batch") for f in site.inner if f.f_code.co_name == "default_collate"]
    for call in place.calls():
        name = place.text(call.func)
        if called_name(call) == "DataLoader" and "when training" in site.text:
            yield place.replaced(0.9, (call, _with(place, call, "drop_last=True")))
        elif called_name(call) == "DataLoader" and rows and isinstance(rows[0], list):
            more = f"collate_fn=lambda rows: {_padded(rows[0], 'rows')}"
            yield place.replaced(0.9, (call, _with(place, call, more)))
        elif (
            isinstance(place.value(call.func), nn.Module)
            and "when training" in site.text
            and not name.startswith("self.")  # it would stay so, in training too
        ):
            top = site.raising[-1]
            learns = "backward(" in "\n".join(top.source.lines[top.statement.lineno - 1 :])
            above = [s for s in ast.walk(place.source.tree) if isinstance(s, ast.With)]
            off = any(
                s.lineno < call.lineno <= (s.end_lineno or 0) and _OFF.search(ast.unparse(s))
                for s in above
            )
            cost = (0.4 if off else 1.0 + learns) + (place.frame is not site.frames[-1][0])
            yield place.replaced(cost, (call.func, f"{name}.eval()"))


def _padded(rows: list[Any], name: str) -> str:
    """An expression of a batch of ``rows``, those of unequal size padded."""
    first = rows[0]
    if isinstance(first, tuple):
        parts = (
            _padded([r[i] for r in rows], f"[r[{i}] for r in {name}]") for i in range(len(first))
        )
        return f"({', '.join(parts)})"
    if isinstance(first, Tensor) and len({r.shape for r in rows}) > 1:
        return f"torch.nn.utils.rnn.pad_sequence({name}, batch_first=True)"
    return f"torch.utils.data.default_collate({name})"


def _chosen(site: Site) -> Iterator[Candidate]:
    """A branch on a tensor as a choice between its elements."""
    place = site.raising[0]
    branch = place.statement
    for rows in map(rows_of, ast.walk(place.source.tree)):
        if isinstance(branch, ast.If) and branch in rows:
            after = rows[rows.index(branch) + 1 :]
            one, *more = branch.body
            other = (branch.orelse or after or branch.body)[0]
            values = [v for each in (one, other) if (v := getattr(each, "value", None)) is not None]
            alike = type(one) is type(other) and bound_by(one) == bound_by(other)
            if alike and len(values) == 2 and not more:
                head = place.text(one).removesuffix(place.text(values[0]))
                texts = ", ".join(map(place.text, (branch.test, *values)))
                text = f"{branch.col_offset * ' '}{head}torch.where({texts})"
                last = other.end_lineno or other.lineno
                yield Candidate(0.4, (lines_edit(place.source, branch.lineno, last, text),))
    for node in place.parts():
        if isinstance(node, ast.IfExp):
            texts = ", ".join(map(place.text, (node.test, node.body, node.orelse)))
            yield place.replaced(0.4, (node, f"torch.where({texts})"))


def _unpacked(place: Place) -> Iterator[Candidate]:
    statement = place.statement
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        for at, part in enumerate(statement.value.elts):
            yield place.replaced(0.9 + 0.1 * at, (statement.value, place.text(part)))
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.For):
        target = statement.target
    if isinstance(target, ast.Tuple) and len(target.elts) > 2:  # a part has parts of its own
        first, *rest = map(place.text, target.elts)
        yield place.replaced(0.5, (target, f"{first}, ({', '.join(rest)})"))
    if target is None or not spelled_name(target) or spelled_name(target).startswith("self."):
        return
    value = place.value(ast.copy_location(ast.Name(spelled_name(target), ast.Load()), target))
    listed = isinstance(value, list) and isinstance(statement, ast.For)
    if (listed or isinstance(value, tuple)) and 2 <= len(value) <= 4:
        if any(isinstance(each, Tensor) for each in value):
            yield place.replaced(0.3, (target, spelled_name(target) + ", _" * (len(value) - 1)))


def _registered(place: Place, site: Site) -> Iterator[Candidate]:
    statement = place.statement
    if not isinstance(statement, ast.Assign):
        return
    target = statement.targets[0]
    made = place.value(target)
    if "device" in site.text and isinstance(target, ast.Attribute) and isinstance(made, Tensor):
        if not isinstance(made, nn.Parameter) and spelled_name(target):
            value = place.text(statement.value)
            text = f'self.register_buffer("{target.attr}", {value})'
            yield place.replaced(0.0, (statement, text))
    listed = isinstance(statement.value, (ast.List, ast.ListComp))
    if listed or isinstance(statement.value, (ast.Dict, ast.DictComp)):
        for kind in ("Module", "Parameter"):
            text = f"torch.nn.{kind}{'List' if listed else 'Dict'}({place.text(statement.value)})"
            yield place.replaced(0.9, (statement.value, text))


def _initialised(source: Source, node: ast.ClassDef, site: Site) -> Iterator[Candidate]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            written = "\n".join(map(ast.unparse, method.body))
            if "super()" not in written and "__init__(self" not in written:
                first = method.body[0]
                old = source.lines[first.lineno - 1]
                indent = old[: len(old) - len(old.lstrip())]
                edit = lines_edit(
                    source, first.lineno, first.lineno, f"{indent}super().__init__()\n{old}"
                )
                yield Candidate(0.3, (edit,))
            for statement in method.body:
                if isinstance(statement, ast.Assign) and "param" in site.text:
                    own = Place(source, statement, site.raising[0].frame, 0.2)
                    yield from _registered(own, site)


def cuts(site: Site) -> Iterator[Candidate]:
    """Values left in their graph that were cut from it, and gradients left on."""
    if re.search(r"does not require grad|inf checks|empty parameter list", site.text):
        known = {id(p.statement): p for p in (*site.fault, *site.bindings)}.values()
        apart = [found for place in known if (found := list(_uncut(place)))]
        for each in apart:
            yield from each
        for one, other in itertools.combinations(apart, 2):  # neither of them may be left
            for a, b in itertools.product(one, other):
                yield Candidate((a.cost + b.cost) / 2, (*a.edits, *b.edits))
        yield from _switched(site)
        yield from _ordered(site)
        names = site.frames[-1][0].f_locals
        for optimizer in (v for v in names.values() if isinstance(v, torch.optim.Optimizer)):
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for place in site.statements():
                made: Any = place.result()
                value: Any = getattr(place.statement, "value", None)
                if isinstance(made, Tensor) and id(made) in held and not made.requires_grad:
                    yield place.replaced(0.3, (value, f"{place.text(value)}.requires_grad_()"))


def writes(site: Site) -> Iterator[Candidate]:
    """What is written in place as a new tensor, and the other way round."""
    lost = "NoneType" in site.text and ".grad" in site.raising[0].text(site.raising[0].statement)
    for place in site.bindings if lost else ():
        yield from _in_place(place)
    for rows in map(rows_of, ast.walk(site.raising[0].source.tree)) if lost else ():
        for at, row in enumerate(rows):
            if at and isinstance(row, ast.Expr) and called_name(row.value) == "zero_grad":
                source, first = site.raising[0].source, rows[0].lineno
                before = source.lines[first - 1 : row.lineno - 1]
                text = "\n".join((*source.lines[row.lineno - 1 : row.end_lineno], *before))
                edit = lines_edit(source, first, row.end_lineno or row.lineno, text)
                yield Candidate(0.4, (edit,))
    for place in (*site.fault, *site.bindings) if re.search("in-?place", site.text) else ():
        yield from _out_of_place(place)


def graphs(site: Site) -> Iterator[Candidate]:
    """Values cut from a graph, graphs kept, writes without gradient."""
    if not re.search(r"grad|backward|in-?place|leaf|graph|inf checks|empty param", site.text):
        return
    for place in site.raising[:1]:
        block = place.function or place.source.tree
        loops = [
            n
            for n in ast.walk(block)
            if isinstance(n, (ast.For, ast.While))
            and n.lineno <= place.statement.lineno <= (n.end_lineno or 0)
        ]
        around = min(loops, key=lambda n: (n.end_lineno or 0) - n.lineno) if loops else block
        carried = _carried(around) if loops else set()
        for statement in ast.walk(around):
            if not isinstance(statement, (ast.Assign, ast.Expr, ast.AugAssign)):
                continue
            own = Place(place.source, statement, place.frame, 0.0)
            for call in own.calls():
                if getattr(call.func, "attr", "") == "backward":
                    cost = 0.75 if statement is not place.statement else 1.3
                    yield own.replaced(cost, (call, _with(own, call, "retain_graph=True")))
            for argument in own.parts():
                name = spelled_name(argument)
                given = isinstance(argument, ast.Name) and isinstance(argument.ctx, ast.Load)
                if given and name and isinstance(value := own.value(argument), Tensor):
                    cost = 0.7 if name in carried else 1.0
                    later = 0.3 * (statement.lineno >= place.statement.lineno - 1)
                    later += 0.5 * (not value.requires_grad)
                    text = (
                        ast.unparse(statement)
                        + ast.unparse(around).partition(ast.unparse(statement))[2]
                    )
                    if re.search(rf"(\w+)\({name}\)(?s:.*)\.backward\((?s:.*)\b\1\({name}\)", text):
                        later = -0.35  # a network judges it, and later again
                    yield own.replaced(cost + later, (argument, f"{name}.detach()"))
        if "second time" in site.text and loops:
            yield from _moved_into(place, around, carried)
        if place.statement.lineno == place.statement.end_lineno:
            yield place.written(1.2, f"with torch.no_grad():\n    {place.text(place.statement)}")


_OFF = re.compile(r"(torch\.)?(no_grad|inference_mode|set_grad_enabled)\([^)]*\)")
_LEAVES = "detach item tolist numpy float long int bool round sign cpu".split()
_ANEW = "tensor as_tensor from_numpy array asarray".split()


def _inside(node: ast.AST) -> ast.expr | None:
    """What an expression was computed from that has no gradient of its own."""
    if isinstance(node, ast.Call) and called_name(node) in _LEAVES and not node.args:
        return getattr(node.func, "value", None)
    if isinstance(node, ast.Call) and called_name(node) in _ANEW and node.args:
        return node.args[0]
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    return node.left if isinstance(node, ast.Compare) else None


def _uncut(place: Place) -> Iterator[Candidate]:
    """An expression without what cuts it from its graph."""
    for node in place.parts():
        inner, count = node, 0
        while (deeper := _inside(inner)) is not None:
            inner, count = deeper, count + 1
            yield place.replaced(0.5 - 0.05 * count, (node, place.text(inner)))
        if count:
            yield place.replaced(0.6, (node, f"torch.stack(list({place.text(inner)}))"))
        name = called_name(node)
        if name == "sample":
            head = place.text(node.func)[: -len(name)]  # type: ignore[attr-defined]
            yield place.replaced(0.5, (node, f"{head}rsample()"))
        elif (
            name == "argmax" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ):
            of, d = place.text(node.func.value), place.text(node.args[0]) if node.args else "-1"
            yield place.replaced(
                0.9, (node, f"({of}.softmax({d}) * torch.arange({of}.shape[{d}])).sum({d})")
            )


def _switched(site: Site) -> Iterator[Candidate]:
    """Gradients left on where they were switched off, for a block or for parameters."""
    for place in site.fault:
        for node in ast.walk(place.source.tree):
            line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            parts = [item.context_expr for item in getattr(node, "items", [])]
            parts += getattr(node, "decorator_list", [])
            if line <= place.statement.lineno <= last:
                for part in parts:
                    if _OFF.search(place.text(part)):
                        own = Place(place.source, place.statement, place.frame, 0.0)
                        yield own.replaced(0.45, (part, "torch.enable_grad()"))
    for place in site.statements():
        for node in place.parts():
            if isinstance(node, ast.Attribute) and node.attr == "parameters":
                whole = place.value(node.value)
                for name, value in place.names().items():
                    if isinstance(value, nn.Module) and name != place.text(node.value):
                        if place.frame is site.frames[-1][0]:
                            inside = isinstance(whole, nn.Module) and value in whole.children()
                            yield place.replaced(0.9 - 0.2 * inside, (node.value, name))
            if isinstance(node, ast.Constant) and node.value is False:
                if "requires_grad" in place.text(place.statement):
                    yield place.replaced(0.8, (node, "True"))


def _ordered(site: Site) -> Iterator[Candidate]:
    """What names the parameters of a model, after the model has its last layer."""
    for source in site.program.texts:
        for block in ast.walk(source.tree):
            rows = rows_of(block) if isinstance(block, (ast.Module, ast.FunctionDef)) else []
            for a, first in enumerate(rows):
                for later in rows[a + 1 :]:
                    pair = [(first, later), (later, first)]
                    if any(_names_parameters(x) & _gives_layers(y) for x, y in pair):
                        lines = source.lines
                        begin, end = first.lineno, later.end_lineno or later.lineno
                        own = first.end_lineno or begin
                        text = "\n".join((*lines[own:end], *lines[begin - 1 : own]))
                        yield Candidate(0.3, (lines_edit(source, begin, end, text),))


def _names_parameters(statement: ast.stmt) -> set[str]:
    text = ast.unparse(statement)
    return set(re.findall(r"([\w.]+?)(?:\.\w+)?\.(?:parameters|requires_grad_)\(", text)) | set(
        re.findall(r"([\w.]+)\.(?:parameters|requires_grad_)\(", text)
    )


def _gives_layers(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {
        ast.unparse(t.value) for t in targets if isinstance(t, (ast.Attribute, ast.Subscript))
    } - {"self"}


def _out_of_place(place: Place) -> Iterator[Candidate]:
    """A write into a tensor as a new tensor."""
    statement = place.statement
    if isinstance(statement, ast.AugAssign) and not isinstance(statement.target, ast.Subscript):
        name, value = place.text(statement.target), place.text(statement.value)
        sign = re.search(r"(\S+)=$", place.text(statement)[len(name) :].split(value)[0].rstrip())
        if sign is not None:
            yield place.written(0.4, f"{name} = {name} {sign[1]} ({value})")
    elif isinstance(statement, (ast.Assign, ast.AugAssign)):
        target = [*getattr(statement, "targets", []), getattr(statement, "target", None)][0]
        if isinstance(target, ast.Subscript) and (name := spelled_name(target.value)):
            yield place.written(0.4, f"{name} = {name}.clone()\n{{}}")
    elif isinstance(statement, ast.Expr) and called_name(statement.value).endswith("_"):
        call = place.text(statement.value)
        name, _, method = call.partition("(")[0].rpartition(".")
        new = call.replace(f"{name}.{method}", f"{name}.{method[:-1]}", 1)
        yield place.written(0.4, f"{name} = {new}")


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _in_place(place: Place) -> Iterator[Candidate]:
    """A tensor that was bound anew, written in place: it stays a leaf, with its gradient."""
    value = getattr(place.statement, "value", None)
    if isinstance(value, ast.BinOp) and spelled_name(value.left) in bound_by(place.statement):
        if sign := _SIGNS.get(type(value.op)):
            text = f"{place.text(value.left)} {sign}= {place.text(value.right)}"
            yield place.written(0.4, text)


def _moved_into(place: Place, loop: ast.AST, carried: set[str]) -> Iterator[Candidate]:
    """What was computed once before a loop, computed in each of its rounds."""
    for before in place.source.tree.body:
        last = before.end_lineno or before.lineno
        if not isinstance(before, ast.Assign) or last >= loop.lineno:  # type: ignore[attr-defined]
            continue
        if carried.intersection(bound_by(before)):
            continue
        value = Place(place.source, before, place.frame, 0.0).result()
        if isinstance(value, Tensor) and value.grad_fn is not None:
            lines, body = place.source.lines, loop.body[0]  # type: ignore[attr-defined]
            own = [" " * body.col_offset + row for row in lines[before.lineno - 1 : last]]
            text = "\n".join((*lines[last : body.lineno - 1], *own))
            edit = lines_edit(place.source, before.lineno, body.lineno - 1, text)
            yield Candidate(0.65, (edit,))


def _carried(loop: ast.AST) -> set[str]:
    """Names that a loop reads before it binds them anew."""
    found = set()
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign):
            read = {spelled_name(n) for n in ast.walk(statement.value)}
            found |= set(bound_by(statement)) & read
    return found
