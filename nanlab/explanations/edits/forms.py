"""Other forms of an operand: of another type, dtype or shape, by what it is."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_value,
    callee,
    elements,
    function_around,
    is_whole,
    spelled,
    unread,
)
from nanlab.operators import having


def other_forms(site: Site, place: Place, expression: ast.expr, role: str) -> Iterator[Candidate]:
    """An operand in another form, alone and with all those of its shape."""
    operands = place.operands
    ordered = sorted((e for e, _ in operands), key=lambda e: (e.lineno, e.col_offset))
    tensors = {spelled(e): v for e in ordered if isinstance(v := place.value(e), Tensor)}
    value = place.value(expression)
    if value is MISSING and role == "value":
        value = place.result()
    if value is MISSING and isinstance(given := site.given(expression), list):
        value = given
    if value is MISSING:
        value = site.computed(expression)
    in_place: Iterator[Any] = filter(keeps, place.calls())
    written = {id(c.func.value) for c in in_place}
    stored = (n for n in place.parts() if isinstance(getattr(n, "ctx", None), ast.Store))
    written |= {id(n.value) for n in stored if isinstance(n, ast.Subscript)}
    mask = role == "index" and getattr(value, "dtype", None) == torch.bool
    for cost, new in _forms(_Operand(site, place, expression, value, tensors)):
        if mask and re.search(r"\.(long|float|to)\(", new):  # it would choose rows by number
            continue
        if id(expression) in written and "detach" not in new:  # a copy would be written
            continue
        plain = isinstance(
            expression, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Tuple)
        )
        old = place.text(expression)
        text = new if plain or not new.startswith(old) else f"({old}){new[len(old) :]}"
        more = 0.0 if value is not MISSING else 0.3
        more += 0.2 if role == "value" else 0.0
        if role == "value" and isinstance(value, tuple) and new.startswith(f"{old}."):
            more -= place.distance + 0.25  # it is taken where it was computed, not where it is read
        if text == f"{old}.float()":  # data is cast where it is read
            double = torch.float64 in (getattr(v, "dtype", None) for v in (value, place.result()))
            whole = isinstance(value, Tensor) and is_whole(value)
            more += 0.7 * ((double or whole) and _is_argument(place, expression))
            halved = isinstance(place.result(), nn.Module) and "ouble" not in site.text
            more += 0.7 * halved  # its precision was chosen
        elif text in (f"{old}.half()", f"{old}.bfloat16()", f"{old}.unsqueeze(0)"):
            more += 0.7 * _is_argument(place, expression)
        yield place.replaced(cost + more, (expression, text))
        if not spelled(expression) or not isinstance(value, (Tensor, np.ndarray)):
            continue
        alike = [
            other
            for other, _ in operands
            if spelled(other)
            and id(other) not in written
            and getattr(place.value(other), "shape", None) == value.shape
        ]
        same = [other for other in alike if place.text(other) == old]
        each = re.compile(rf"\b{re.escape(old)}\b")
        bound = 0.6 * (", None" in new and site.binding(place, expression) is not None)
        for apart, group in ((0.02, same), (0.1, alike)):  # all of its name, all of its shape
            apart += bound * (len(group) == len(same))  # it is changed once, where it is bound
            if len(group) > 1:
                pairs = [(other, each.sub(place.text(other), new)) for other in group]
                yield place.replaced(cost + more + apart, *pairs)


_VIEWS = re.compile(r"\[[:, None]+\]|\.unsqueeze\(-?\d+\)|\.reshape\(-1, \*\[1\].*")


def in_functions(site: Site, place: Place) -> Iterator[Candidate]:
    """What a function of the program gives with more dimensions, where it is called more than once:
    its ``return`` is one edit for all of them."""
    if "must match the size" not in site.text:
        return
    tensors = {spelled(e): v for e, _ in place.operands if isinstance(v := place.value(e), Tensor)}
    for expression, role in place.operands:
        bound = site.binding(place, expression) or place
        call = expression if bound is place else bound_value(bound, spelled(expression))
        if role != "side" or not isinstance(call, ast.Call):
            continue
        returns = list(site.returns(bound.value(call.func)))
        uses = [n for s in site.program.texts for n in s.nodes if callee(n) == callee(call)]
        value: Any = getattr(returns[0].statement, "value", None) if len(returns) == 1 else None
        if value is None or isinstance(value, ast.Tuple) or len(uses) < 2:
            continue
        giving = returns[0]
        old = giving.text(value)
        for cost, new in _forms(_Operand(site, giving, value, place.value(expression), tensors)):
            if new.startswith(old) and _VIEWS.fullmatch(new[len(old) :]):
                text = f"{giving.whole(value)}{new[len(old) :]}"
                yield giving.replaced(cost + 0.02, (value, text))  # before all of its uses


def _is_argument(place: Place, expression: ast.expr) -> bool:
    """Whether an expression is what the function of a module was given."""
    function = place.function
    names = [each.arg for each in function.args.args] if function is not None else []
    return names[:1] == ["self"] and spelled(expression) in names[1:]


def written_into(call: ast.Call) -> bool:
    """Whether a call writes into the tensor whose method it is."""
    return (
        isinstance(call.func, ast.Attribute) and re.search(r"[a-z]_$", call.func.attr) is not None
    )


def keeps(call: ast.Call) -> bool:
    """Whether a call writes into the tensor whose method it is, or registers a hook of it."""
    return written_into(call) or re.fullmatch("register_.*hook", callee(call)) is not None


@dataclass(frozen=True)
class _Operand:
    """An expression of a statement, and what is known of it."""

    site: Site
    place: Place
    node: ast.expr
    value: Any  # MISSING where it would have to be computed
    others: dict[str, Tensor]  # all operands of the statement that are known tensors

    @cached_property
    def text(self) -> str:
        return self.place.text(self.node)

    @property
    def role(self) -> str:
        """The parameter that it is given for."""
        return self.site.roles.get(id(self.node), "")

    @property
    def shape(self) -> tuple[int, ...] | None:
        return tuple(self.value.shape) if self.value is not MISSING else None

    @property
    def rank(self) -> int:
        """How many dimensions it has; two where that is not known."""
        return len(self.shape) if self.shape is not None else 2


Forms = Iterator[tuple[float, str]]  # texts in the place of an expression: (cost, text)


def _forms(own: _Operand) -> Forms:
    if not own.text or re.search("positive-definite|singular", own.site.text):
        return  # no other form of it makes a matrix definite
    yield from _of_syntax(own)
    yield from _of_objects(own)
    yield from _of_numbers_and_texts(own)
    yield from _of_sequences(own)
    if own.value is MISSING or isinstance(own.value, Tensor):
        yield from _of_tensors(own)


_TURNS = having("transposes") | {"T"}
_ROUNDS = having("flat")
_OF_BITS = re.compile("[lr]shift|bitwise")


_SIZED = r"size|shape|dim|\dx\d"


def _of_syntax(own: _Operand) -> Forms:
    """By how the expression is written."""
    node, old, place = own.node, own.text, own.place
    if isinstance(node, ast.Call) and callee(node) in ("half", "bfloat16", "double"):
        model = isinstance(place.result(), nn.Module)  # what it is given is rather to be cast
        yield 0.7 + 0.5 * model, place.text(node.func).rpartition(".")[0]
    if callee(node) == "size" and not node.args:  # type: ignore[attr-defined]
        yield 0.4, f"{old[:-1]}0)"
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        yield 0.4, f"{old}[0]"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and "bool" in own.site.text:
        if isinstance(mask := place.value(node.operand), Tensor) and elements(mask) <= {0, 1}:
            yield 0.3, f"({place.text(node.operand)} == 0)"
    turn = node.func if isinstance(node, ast.Call) else node
    shaped = re.search(_SIZED, own.site.text) and "stride" not in own.site.text
    if shaped and isinstance(turn, ast.Attribute) and turn.attr in _TURNS:
        if not isinstance(place.value(turn.value), ModuleType):  # it was turned already
            yield 0.3, place.text(turn.value)
    inner = getattr(turn, "value", None)
    if inner is not None and "as parameter" in own.site.text:  # it is one as it is
        if isinstance(place.value(inner), nn.Parameter):
            yield -0.05, place.text(inner)
    if isinstance(node, ast.Subscript) and "0-dim" in own.site.text:
        yield 0.4, place.text(node.value)


def _of_objects(own: _Operand) -> Forms:
    """By the type of what is no tensor; another of the program's objects."""
    value, old, site, place = own.value, own.text, own.site, own.place
    if isinstance(value, torch.device) and "of type `str`" in site.text:
        yield 0.3, f"{old}.type"
    if isinstance(value, nn.Module) and re.search("not iterable|can only optim", site.text):
        yield 0.4, f"{old}.parameters()"
    if isinstance(value, dict):
        for key in (key for key in value if isinstance(key, str)):
            if isinstance(value[key], Tensor) or not _GRAPH.search(site.text):
                yield 0.8, f"{old}[{key!r}]"
        yield 0.5, f"{old}.values()"
    if isinstance(value, Iterator) and (bound := site.binding(place, own.node)) is not None:
        yield 0.4, bound.text(bound.statement.value)  # type: ignore[attr-defined]
    refused = isinstance(site.error, KeyError) or re.search("ndarray|Series|DataF", site.text)
    table = isinstance(value, (pd.Series, pd.DataFrame))
    table |= value is MISSING and re.search(r"(got|type) '?(Series|DataF)", site.text) is not None
    if table and refused:  # torch reads arrays alone
        yield 0.2, f"{old}.to_numpy()"
        yield 0.35, f"torch.tensor({old}.to_numpy())"
    for kind in re.findall(r"\bnot an? (\w+)", site.text):
        for name, other in place.names().items():
            if kind in (base.__name__ for base in type(other).__mro__) and name != old:
                yield 0.6, name
    if "is not a Module subclass" in site.text and callable(value):  # of functions
        name = getattr(value, "__name__", "").replace("_", "")
        for layer in (n for n in dir(nn) if n.lower() == name and isinstance(getattr(nn, n), type)):
            yield 0.3, f"torch.nn.{layer}()"
    for kind in re.findall(r"\(torch\.(nn\.\w+) or None expected", site.text):
        yield 0.1, f"torch.{kind}({old})"
    plain = not isinstance(value, (Tensor, nn.Module, type))
    parts = getattr(value, "__dict__", {}).items() if plain and "Tensor" in site.text else ()
    for far, name in enumerate(name for name, part in parts if isinstance(part, Tensor)):
        yield 0.5 + 0.02 * far, f"{old}.{name}"
    if isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module)):
        yield 0.5, f"{old}()"
    if value is MISSING:
        yield 1.4, f"*{old}"
        if "tuple" in site.text:
            yield 1.6, f"{old}[0]"
    elif "_parameters" in getattr(value, "__dict__", {}) and len(_dtypes(value)) == 1:
        if old != "self" and _dtypes(value) != {torch.float32} and old[-2:] != "()":
            yield 1.0, f"{old}.float()"


def _dtypes(module: nn.Module) -> set[torch.dtype]:
    """The dtypes of the parameters of a module."""
    return {parameter.dtype for parameter in module.parameters()}


def _of_numbers_and_texts(own: _Operand) -> Forms:
    """Arrays, numbers and texts as tensors or numbers."""
    value, old = own.value, own.text
    if isinstance(value, np.ndarray):
        for other in own.others.values() if value.ndim == 1 else ():  # a number for each sample
            if other.dim() > 1 and len(other) == len(value) != other.shape[-1]:
                yield 0.6, f"torch.from_numpy({old})[:{(other.dim() - 1) * ', None'}]"
        yield 0.7, f"torch.from_numpy({old})"
        yield 0.8, f"{old}.copy()"
        yield 1.0, f'{old}.astype("float32")'
        if value.ndim == 2 and own.site.met == {*value.shape}:
            yield 0.4, f"{old}.T"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield 1.2, f"torch.tensor({old})"
    if isinstance(value, list) and value and (of := _of_numbers(value)):
        yield 0.7, f"torch.tensor({old})"
        if of is not float:
            yield 0.72, f"torch.tensor({old}, dtype=torch.float32)"
    if isinstance(value, str):  # a number that was read from a file
        yield 0.5, f"float({old})"
        yield 0.52, f"int({old})"
        for name, known in own.place.names().items() if own.role == "" else ():
            if isinstance(known, dict) and type(known.get(value)) is int:
                yield 0.4, f"{name}[{old}]"
            elif isinstance(known, list) and value in known and len({*known}) == len(known):
                yield 0.42, f"{name}.index({old})"
    texts = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    told = texts and re.search("'str'|must be Tensor", own.site.text)
    for name, known in own.place.names().items() if told and value else ():
        words = isinstance(known, (list, tuple, dict)) and all(isinstance(k, str) for k in known)
        if words and known is not value and {*value} <= {*known}:
            number = f"{name}[each]" if isinstance(known, dict) else f"{name}.index(each)"
            numbers = f"[{number} for each in {old}]"
            yield 0.3, f"torch.tensor({numbers})" if "Tensor" in own.site.text else numbers
    numbers_as_text = texts and value and all(re.fullmatch(_NUMBER, each) for each in value)
    words = (texts and not numbers_as_text) or isinstance(own.node, ast.ListComp)
    if "'str'" in own.site.text and words:
        yield 0.4, f"[sorted(set({old})).index(each) for each in {old}]"


_NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"


def _of_sequences(own: _Operand) -> Forms:
    """A part of a list or a tuple, its parts one by one or as one tensor; with more of them."""
    value, old, site, node = own.value, own.text, own.site, own.node
    listed = isinstance(value, list) and len(value) in site.told
    if listed and isinstance(node, ast.List) and node.elts:
        if len(node.elts) > 1 and _of_numbers(value):
            yield 0.8, f"[{', '.join(map(own.place.text, node.elts[:-1]))}]"
        for more in (n - len(value) for n in site.told if n > len(value)):
            yield 1.4, f"{old[:-1]}{more * (', ' + own.place.text(node.elts[-1]))}]"
    if not isinstance(value, (list, tuple)) or not value:
        return
    yield 0.9, f"*{old}"
    for name in dir(value):  # of a named tuple
        if isinstance(getattr(value, name), Tensor):
            yield 0.8 - 0.1 * (name in site.text), f"{old}.{name}"
    taken = _in_parts(own.place, old)
    if isinstance(value[0], Tensor) and (taken or isinstance(value, tuple)):
        yield 0.5 if taken else 1.2, f"{old}[0]"
    if all(isinstance(v, Tensor) for v in value):
        yield 1.2, f"torch.stack({old})"
        if "except in dim" in site.text and len({v.dim() for v in value}) == 1:
            parts = old[1:-1] if isinstance(node, (ast.List, ast.Tuple)) else f"*{old}"
            yield 0.6, f"torch.broadcast_tensors({parts})"


def _of_tensors(own: _Operand) -> Forms:
    """Tensors with other numbers, of another dtype, device or shape, or cut from their graph."""
    value, old, site = own.value, own.text, own.site
    quantized = isinstance(value, Tensor) and value.is_quantized
    if quantized or (value is MISSING and re.search(_QUANTIZED, site.text)):
        yield 0.3 + 0.1 * (not quantized), f"{old}.dequantize()"
    if isinstance(value, Tensor) and value.numel():
        yield from _moved(old, value, site)
        yield from _of_each_class(own)
    if any(isinstance(module, (nn.LSTM, nn.LSTMCell)) for module in site.running):
        yield 0.9, f"({old}, torch.zeros_like({old}))"
    used = map(site.raising[0].value, site.raising[0].parts())
    real = not any(isinstance(each, nn.Parameter) for each in used)
    spectrum = real and re.search(r"Complex|complex\d", site.text)
    if spectrum and (value is MISSING or value.is_complex()):
        parts = [n for n in own.place.parts() if isinstance(n, ast.BinOp)]
        squared = any(n.left is own.node and isinstance(n.op, ast.Pow) for n in parts)
        whole = own.node in parts
        yield 0.5 - 0.3 * whole - 0.15 * squared, f"{old}.abs()"
        return
    if "device" in site.text:
        for name, other in own.others.items():
            if value is not MISSING and name and other.device != value.device:
                yield 0.6 + 0.1 * isinstance(value, nn.Parameter), f"{old}.to({name}.device)"
    kinds = re.search(r"type|Long|Float|Half|Double|Int|Bool|float|integer|bool", site.text)
    yield from _cast(own, 0.7 if kinds else 2.0)
    yield from _of_graph(own)
    dtype = _wanted(own)
    for cost, text in _shaped(own):
        yield cost, text
        if dtype:
            yield cost + 0.02, text + dtype
        elif kinds and value is not MISSING and is_whole(value):
            yield cost + 0.5, f"{text}.float()"


_QUANTIZED = r"'Quantized\w+'|quantized [nNtT]|\bQU?Int\d"  # what an operator does not take


_GRAPH = re.compile(r"grad|backward|inplace|in-place|leaf|leaves")


def _of_graph(own: _Operand) -> Forms:
    """A leaf of the graph, one number, or cut from the graph."""
    old, site = own.text, own.site
    whole = own.node is getattr(own.place.statement, "value", None)
    if "differentiated" in site.text and whole:
        yield 0.5, f"{old}.requires_grad_()"
    if "non-leaf" in site.text and whole:
        yield 0.5, f"{old}.detach().requires_grad_()"
    elif re.search("scalar (outputs|Tensor)", site.text):
        inputs = [n for n, v in site.raising[0].frame.f_locals.items() if _asks_of_data(v)]
        read = re.search(rf"\b({'|'.join(inputs)})\.grad\b", own.place.source.text)
        asked = "grad(" in own.place.text(own.place.statement)
        summed = asked or bool(inputs and read)  # each element by its own
        yield 0.5 - 0.3 * (whole or summed), f"{old}.{'sum' if summed else 'mean'}()"
    elif _GRAPH.search(site.text) and type(site.error).__name__ != "CheckpointError":
        if not re.search("does not require grad|second time|non-leaf", site.text):
            yield 0.85, f"{old}.detach()"
            yield 0.8, f"{old}.clone()"


def _asks_of_data(value: Any) -> bool:
    """Whether a value is data, one row for each sample, that a gradient is asked for."""
    asked = isinstance(value, Tensor) and value.requires_grad and value.is_leaf
    return asked and not isinstance(value, nn.Parameter) and value.dim() > 1


def _of_numbers(rows: Any) -> type | None:
    """The type of the numbers of a list of numbers, or of lists of one length; None: it has
    others."""
    while isinstance(rows, list) and rows and isinstance(rows[0], list):
        if not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
            return None
        rows = [each for row in rows for each in row]
    kinds = set(map(type, rows))
    known = bool(kinds) and kinds <= {bool, int, float}
    return max(kinds, key=(bool, int, float).index) if known else None


def _in_parts(place: Place, name: str) -> bool:
    """Whether the program takes a part of a name by its number somewhere."""
    return re.search(rf"(?<![\w.]){re.escape(name)}\[\d+\]", place.source.text) is not None


def _of_each_class(own: _Operand) -> Forms:
    """Class numbers as one number for each class, where what is compared with them has scores."""
    value, numbers = own.value, elements(own.value)
    compared = re.search("(?i)size of tensor|target size", own.site.text) and own.role == "target"
    if not compared or value.dtype != torch.int64 or min(numbers, default=-1) < 0:
        return
    given = (n for call in own.site.failed for n in getattr(call, "args", []))
    known = [(str(v.shape[-1]), v) for n in given if isinstance(v := own.site.computed(n), Tensor)]
    for size, other in [*((f"{n}.size(-1)", v) for n, v in own.others.items()), *known]:
        if other.shape[:-1] == value.shape and max(numbers) < other.shape[-1] > 1:
            classes = f"torch.nn.functional.one_hot({own.text}, {size})"
            yield 0.5, f"{classes}.float()"


def _wanted(own: _Operand) -> str:
    """The cast of a target for the loss that was computed; empty if it needs none."""
    value = own.value
    if own.role != "target" or value is MISSING:
        return ""
    losses = {frame.f_code.co_name for frame in own.site.inner}
    if losses & {"cross_entropy", "nll_loss"}:  # class numbers stay class numbers
        whole = all(float(n).is_integer() for n in elements(value))
        return ".long()" if whole and value.dtype != torch.int64 else ""
    return ".float()" if is_whole(value) and "cross_entropy" in " ".join(losses) else ""


def _moved(old: str, value: Tensor, site: Site) -> Forms:
    """Numbers that count from one, or lie between others than those that are allowed."""
    if value.is_complex() or value.requires_grad:
        return
    numbers = elements(value)
    if not numbers:
        return
    yield from _inside_bounds(old, value, numbers, site)
    if numbers == {0, 1} and value.dim() > 1:  # is one of them each time 1?
        for d in range(1, value.dim()):
            if bool((value.sum(d) == 1).all()):
                yield 0.6, f"{old}.argmax({d})"
    if value.dtype == torch.int64 and value.dim() and "dtype" in site.text:
        for number in (n for n in site.sizes if n > max(1, *numbers)):
            yield 1.0, f"torch.nn.functional.one_hot({old}, {number}).float()"


def _inside_bounds(old: str, value: Tensor, numbers: set[Any], site: Site) -> Forms:
    low, high = min(numbers), max(numbers)
    whole = is_whole(value) and value.dtype != torch.bool
    beyond = low > 0 and len(numbers) > 1 and int(high) in site.told
    if whole and beyond and re.search(r"out of|outside", site.text):
        yield 0.4, f"({old} - {int(low)})"
    if whole and low < 0 and re.search(r"out of|outside", site.text):
        half = site.rows // 2
        if -half <= low < 0 < high < site.rows - half:  # they count from the middle
            yield 0.4, f"({old} + {site.raising[0].named_number(half)})"
        if low not in (-1, -100):  # labels of no class
            yield 1.3, f"{old}.clamp(min=0)"
    if re.search(r"between 0 and 1|support \(Boolean", site.text) and len(numbers) == 2:
        shifted = f"{old} {'-' if low > 0 else '+'} {abs(low):g}"
        yield 0.4, shifted if high - low == 1 else f"({shifted}) / {high - low:g}"


# Arguments of attention in which True stands for what is ignored: never for a whole row.
IGNORED = re.compile("(key_padding|src|tgt|memory)_mask$")


def ignored(place: Place, mask: ast.expr) -> str:
    """What a mask of zeros and ones leaves out, where a row of it is all ones; else empty."""
    inner = mask.func.value if callee(mask) == "bool" else mask  # type: ignore[attr-defined]
    value = place.value(inner)
    if isinstance(value, Tensor) and value.dim() and elements(value) == {0, 1}:
        if bool((value == 1).all(-1).any()):
            return f"({place.text(inner)} == 0)"
    return ""


def _cast(own: _Operand, cost: float) -> Forms:
    old, value, site = own.text, own.value, own.site
    if callee(own.node) in ("half", "bfloat16", "double"):  # it was chosen
        return
    met = site.running if "Double" in site.text else []
    double = any(_dtypes(module) == {torch.float64} for module in met)
    dtype = value.dtype if value is not MISSING else None
    floats = dtype is not None and dtype.is_floating_point
    for name, words in (("half", "half"), ("bfloat16", "bfloat16"), ("cfloat", "ComplexFloat")):
        if re.search(rf"\b(c10::)?{words}\b", site.text, re.I):
            yield cost + 0.3, f"{old}.{name}()"
    if double and dtype not in (None, torch.float64):
        yield cost - 0.1, f"{old}.double()"
    if dtype != torch.float32:
        yield cost, f"{old}.float()"
    graph = (value is not MISSING and value.requires_grad) or re.search("grad|leaves", site.text)
    if graph and not re.search(r"Long|\b(long|int)", site.text):
        return
    if dtype != torch.int64:
        loses = floats and not all(map(float.is_integer, elements(value)))
        if loses and "the support" in site.text:  # it would be the score of another sample
            return
        rounded = not loses and {callee(n) for n in ast.walk(own.node)} & _ROUNDS
        kept = 0.6 * bool(rounded and _OF_BITS.search(site.text))  # it is done where they are made
        yield cost + 0.2 * floats + 0.8 * loses - kept, f"{old}.long()"
        low = min(elements(value), default=0) if floats and not loses else 0
        if low > 0:  # they count from another number than 0
            yield cost + 0.25, f"({old}.long() - {int(low)})"
    if dtype != torch.bool:
        flags = "bool" in site.text.lower() and dtype is not None and elements(value) == {0, 1}
        flagged = (IGNORED.search(own.role) and ignored(own.place, own.node)) or f"{old}.bool()"
        loses = dtype is not None and not elements(value) <= {0, 1}
        if not loses or "bool" in site.text.lower():
            yield cost + (-0.2 if flags else 0.6) + loses, flagged
    for name, other in own.others.items():
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


def _shaped(own: _Operand) -> Forms:
    """A tensor in another shape."""
    site, text = own.site, own.site.text
    indexed = re.search("^(?!Dimension).*out of (range|bounds)", text)
    learned = isinstance(own.value, nn.Parameter)  # it was given the shape that it shall have
    far = 1.5 if _GRAPH.search(text) or indexed or learned else 0.0
    if "dtype" in text and not re.search(_SIZED, text):
        far += 0.5
    yield from _ranked(own, far)
    for cost, fewest, most, form in _SHAPES:
        if fewest <= own.rank <= most or (own.shape is None and most > own.rank):
            yield far + cost, form.format(own.text)
    yield from _turned(own, far)
    for name, other in own.others.items():
        if name and name != own.text:
            yield from _like(own, name, other, far)
    yield from _square(own)
    for size in dict.fromkeys(n for n in site.told if n > 1):
        yield far + 2.0, f"{own.text}[..., :{size}]"
        yield far + 2.1, f"{own.text}[:{size}]"


def _ranked(own: _Operand, more: float) -> Forms:
    """With fewer dimensions, or with more."""
    old, shape, rank, site = own.text, own.shape, own.rank, own.site
    apart = re.search(r"must match the size of .* dimension ([2-9])", site.text)
    if apart is not None and shape and 1 < rank < 4 and shape[0] in site.met and len({*shape}) > 1:
        yield more + 0.5, f"{old}[:{int(apart[1]) * ', None'}]"  # the samples come first
    if apart is not None and (shape is None or rank == 1):  # a number for each sample
        for name in unread(function_around(own.place.source, own.node)):
            count = f"len({name})" if re.search("shape|size", name) else f"{name}.dim()"
            yield more + 0.1, f"{old}.reshape(-1, *[1] * ({count} - 1))"
        yield more + 0.4, f"{old}[:{int(apart[1]) * ', None'}]"
    shapes = {tuple(other.shape) for other in own.others.values()}
    channels = [s for s in shapes if len(s) > 2 and s[1:2] == shape and s[-1] != s[1]]
    for each in channels if apart is not None or "dimension 2" in site.text else ():
        yield 0.4, f"{old}[:{(len(each) - 2) * ', None'}]"
    for d in range(rank):
        if shape is None or shape[d] == 1:  # a column and a row give a table
            spread = rank == 2 and shape is not None and shape[:d] + shape[d + 1 :] in shapes
            yield more + 0.8 - 0.3 * spread, f"{old}.squeeze({d})"
    for d in (*range(rank), -1):
        yield more + 1.0 + _unlike(own, d), f"{old}.unsqueeze({d})"
    layers = [layer for layer in site.running if isinstance(layer, _ConvNd)]
    size = shape[-1] if shape and rank == 2 and "4D (batched)" in site.text else 0
    for layer in layers if size else ():
        side = math.isqrt(size // layer.in_channels)
        if layer.in_channels * side**2 == size:
            yield 0.4, f"{old}.view(-1, {layer.in_channels}, {side}, {side})"
    for wanted in re.findall(r"should be \(([\d, ]+)\)", site.text) if shape else ():
        sizes = [int(size) for size in wanted.split(", ")]
        pairs = [*enumerate(zip(shape or (), sizes, strict=False))]
        other = [(d, b // a) for d, (a, b) in pairs if a != b and a > 1 and b % a == 0]
        if len(sizes) == rank and len(other) == 1 == sum(a != b for _, (a, b) in pairs):
            d, times = other[0]
            yield 0.4, f"{old}.repeat_interleave({own.place.named_number(times)}, {d})"
    if shape and re.search(rf"hidden\S* size \(1, .*got \[{shape[0]}, ", site.text):
        if any(getattr(module, "bidirectional", False) for module in site.modules):
            yield 0.4, f"{old}.sum(0, keepdim=True)"
    if rank > 2 and shape is not None and math.prod(shape[1:]) in site.told:
        yield more + 0.6, f"{old}.flatten(1)"
    if rank == 2 and "spatial dimensions of []" in site.text:
        yield 0.4, f"{old}[None, None]"
    for wanted in re.findall(r"\b(\d)D\b", site.text) if shape is not None else ():
        if int(wanted) == rank + 2:  # one that is lacking alone was added above
            yield more + 1.0, f"{old}[..., None, None]"


def _unlike(own: _Operand, d: int) -> float:
    """How little a tensor would be like the others with one more dimension."""
    found = 0.05 * (d not in (0, 1))
    if own.shape is not None:
        found += 0.3 * any(other.dim() < own.rank for other in own.others.values())
        new = [*own.shape]
        new.insert(d if d >= 0 else own.rank, 1)
        alike = [other.shape for other in own.others.values() if other.dim() == own.rank + 1]
        pairs = [[*zip(new, shape, strict=True)] for shape in alike]
        other_sizes = [sum(a not in (1, b) for a, b in each) for each in pairs]
        no_same = [not any(a == b > 1 for a, b in each) for each in pairs]
        found += 0.1 * min(map(sum, zip(other_sizes, no_same, strict=True)), default=0)
    return found


def _turned(own: _Operand, more: float) -> Forms:
    """With its dimensions in another order."""
    old, shape, rank, site = own.text, own.shape, own.rank, own.site
    joined = re.search(r"Expected size (\d+) but got size (\d+)", site.text)
    lengths = [int(size) for size in joined.groups()] if joined is not None else []
    if lengths and min(lengths) > 1 and shape and {*lengths} <= {*shape}:
        yield 0.5, f"{old}.transpose({', '.join(str(shape.index(size)) for size in lengths)})"
    last = [d for n, v in own.others.items() if n != old for d in v.shape[-1:] if v.dim() > 1]
    others = [v.shape for n, v in own.others.items() if n != old and v.dim() == rank]
    met = "must match the size" in site.text
    first = (shape or (0,))[0] == 1  # the batch comes first: rather cut at another size
    cut = 0.6 * (first and isinstance(own.node, ast.Subscript))
    for a, b in itertools.combinations(range(rank), 2) if met and 1 in (shape or ()) else ():
        new = [*(shape or ())]
        new[a], new[b] = new[b], new[a]
        if any(all(n in (1, m) for n, m in zip(new, other, strict=True)) for other in others):
            yield more + 0.5 + cut, f"{old}.transpose({a}, {b})"
    product = re.search("mat1|matmul|mat2|bmm|batch2", site.text) and old != next(
        iter(own.others), ""
    )
    if product and shape and shape[-1] in last:  # the second of two is the one to turn
        yield 0.65, f"{old}.transpose(-2, -1)"
    layered = rank > 2 and "must match" not in site.text
    flipped = [tuple(v.shape) == (shape or ())[::-1] for n, v in own.others.items() if n != old]
    if rank == 2 and shape and site.met == {*shape} and any(flipped):
        yield 0.6, f"{old}.t()"
    if layered and shape and shape[-1] > 1 and (shape[-2], shape[-1]) in site.refused:
        yield 0.4, f"{old}.transpose(-2, -1)"
    scored = next((v for n, v in own.others.items() if n != old and v.dim() == 4), None)
    if own.role == "attn_mask" and rank == 2 and shape and scored is not None:
        if shape == (scored.shape[0], scored.shape[-2]):  # of keys: they come last
            yield 0.4, f"{old}[:, None, None, :]"
    if re.search("Expected target size|got input: .*target:", site.text) and own.role == "input":
        turn = "transpose(1, 2)" if shape is None or rank == 3 else "movedim(-1, 1)"
        yield 0.3, f"{old}.{turn}"  # the classes come second
    if rank > 2:
        turned = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        channels = shape is not None and "channels" in site.text and shape[-1] in site.told
        if shape and rank == 4 and shape[2] == shape[3] != shape[1]:  # they come first already
            channels = False
        for cost, order in zip((0.6 if channels else 1.2, 1.25), turned, strict=True):
            yield more + cost, f"{old}.permute({', '.join(map(str, order))})"


def _square(own: _Operand) -> Forms:
    """A square table, as a mask is, cut to as many rows and columns as are used."""
    shape, told = own.shape or (), own.site.told
    table = own.rank == 2 or isinstance(own.node, ast.Attribute) or "mask" in own.role
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] not in told or not table:
        return
    for name, other in own.others.items():
        for far, d in enumerate(reversed(range(other.dim()))):
            if name != own.text and 1 < other.shape[d] < shape[-1] and other.shape[d] in told:
                head = "..., " * (len(shape) > 2)
                cut = f": {name}.size({d})"
                yield 0.4 + 0.02 * far, f"{own.text}[{head}{cut}, {cut}]"


def _like(own: _Operand, name: str, other: Tensor, more: float) -> Forms:
    """In the shape of another operand: viewed, cut, spread or resized."""
    old, shape, rank = own.text, own.shape, own.rank
    resized = f"torch.nn.functional.interpolate({old}, size={name}.shape[2:])"
    joined = re.search("must match except in dimension 1", own.site.text) and other.dim() > 2
    if joined and (shape is None or (len(shape) == other.dim() and shape[:1] == other.shape[:1])):
        small = shape is None or shape[2:] < other.shape[2:]
        yield more + (0.5 if small else 0.6), resized
    measured = shape and rank == 1 and not is_whole(own.value)
    if shape and measured and other.dim() > 1 and shape[0] % (other.shape[-1] or 1) == 0:
        yield more + 0.75, f"{old}.view({name}.size(-1), -1)"
    if shape and other.dim() and len(other) < shape[0]:  # the last batch may be smaller
        scored = getattr(own.value, "grad_fn", None) is not None  # for each sample: none too many
        yield more + 1.25 + 1.5 * scored, f"{old}[: len({name})]"
    if shape and other.dim() == rank and len(other) > shape[0] == 1:
        yield 0.55, f"{old}.expand(len({name}){', -1' * (rank - 1)})"
    if shape and other.dim() == rank + 1 and "same number of dimensions" in own.site.text:
        yield 0.5, f"{old}.expand(len({name}){', -1' * rank})"
        for d, sizes in ((0, other.shape[1:]), (rank, other.shape[:-1])):  # one more of its rows
            if shape == sizes:
                yield 0.38, f"{old}.unsqueeze({d})"
    axes = itertools.combinations(range(other.dim()), rank)
    for kept in reversed(list(axes)) if other.dim() > rank + 1 else ():
        pairs = [(a, other.shape[d]) for a, d in zip(shape or (), kept, strict=False)]
        if any(a > 1 for a, _ in pairs) and all(a in (1, b) for a, b in pairs):
            index = ", ".join(":" if d in kept else "None" for d in range(other.dim()))
            yield more + 0.95 + 0.05 * (other.dim() - 1 - kept[-1]), f"{old}[{index}]"
    once = sum(own.place.text(n) == old for n in own.place.parts()) == 1
    once = once and shape is not None and not is_whole(own.value)
    if once and other.dim() == 2 and (shape, own.site.met) == (other.shape[:1], {*other.shape}):
        yield 0.4, f"{old}[:, None]"  # a number for each row
    if shape is not None and other.dim() > rank:
        nones = ", None" * (other.dim() - rank)
        yield more + 1.05, f"{old}[:{nones}]" if rank == 1 else f"{old}[..., None]"
        yield more + 1.3, f"{old}.unsqueeze(-1).expand_as({name})"
    if shape is not None and other.dim() < rank and "shape" in own.site.text:
        yield more + 1.2, f"{old}.mean(0)"
    for d, (size, less) in enumerate(zip((shape or ())[::-1], other.shape[::-1], strict=False), 1):
        if 1 < less < size:  # a table longer than what is looked up in it
            table = isinstance(own.node, ast.Attribute) and not own.value.grad_fn
            convs = (m for m in own.site.modules if isinstance(m, _ConvNd))
            table = table or any(size - less in each.padding for each in convs)  # of both sides
            at = f"{':, ' * (rank - d)}: {name}.size({other.dim() - d})"
            given = 0.3 * isinstance(own.node, ast.Call)  # a layer has the wrong size
            yield more + (0.7 if table else 1.7) + given, f"{old}[{at}]"
    if other.shape != shape and other.dim() == rank:
        yield more + 1.5, f"{old}.expand_as({name})"
        yield more + 1.6, f"{old}.reshape({name}.shape)"
        if rank > 3:
            yield more + 1.3, resized
