"""Tensors in other layouts: sparse ones whose entries are added up, dense ones, quantized ones,
states as bytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    function_around,
    is_text,
    is_whole,
    lines_as,
    own_nodes,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source

_ENTRIES = ("indices", "values")


def added_up(site: Site) -> Iterator[Candidate]:
    """The entries of a sparse tensor read once those of one place are added up: where it is made,
    else wherever they are read."""
    for place in site.raising[:1] if "coalesce" in site.text else ():
        functions: list[Any] = [n.func for n in place.calls() if callee(n) in _ENTRIES]
        owners = [function.value for function in functions]
        for node in owners:
            text, bound = place.text(node), site.binding(place, node)
            made = bound_value(bound, spelled(node))
            if bound is not None and isinstance(made, ast.expr):
                own = replace(bound, distance=0.0)
                yield own.replaced(0.2, (made, f"{bound.whole(made)}.coalesce()"))
            elif isinstance(node, ast.Name) and place.function is not None:
                first = replace(place, statement=place.function.body[0], distance=0.0)
                yield first.written(0.22, f"{text} = {text}.coalesce()\n{{}}")
            read: list[Any] = [n for n in place.source.nodes if callee(n) in _ENTRIES]
            same = [n.func.value for n in read if place.text(n.func.value) == text]
            inside = [n for n in same if function_around(place.source, n) is place.function]
            yield Candidate(
                0.25, spliced(place.source, [(n, f"{place.whole(n)}.coalesce()") for n in inside])
            )


_OF_LAYOUTS = re.compile(r"(?i)sparse|layout|strided|CSR|CSC|BSR")


def in_other_layouts(
    site: Site, place: Place, expression: ast.expr, role: str
) -> Iterator[Candidate]:
    """A sparse tensor as a dense one, where an operator takes no other; or the other way round."""
    if not _OF_LAYOUTS.search(site.text) or isinstance(expression, ast.Tuple):
        return
    value: Any = place.value(expression)
    value = place.result() if value is MISSING and role == "value" else value
    text = place.whole(expression)
    if isinstance(value, Tensor) and value.layout != torch.strided:
        more = 0.2 * (role in ("value", "indexed"))
        bound = site.binding(place, expression) if value.dim() == 1 else None
        made = bound_value(bound, spelled(expression))
        if bound is not None and isinstance(made, ast.Call) and place in site.raising[:1]:
            dense = f"{bound.text(made)}.to_dense()"  # a vector is as well dense from the beginning
            yield replace(bound, distance=0.0).replaced(0.33, (made, dense))
        yield place.replaced(0.35 + more, (expression, f"{text}.to_dense()"))
        if value.layout != torch.sparse_coo:
            yield place.replaced(0.45 + more, (expression, f"{text}.to_sparse_coo()"))
        else:
            yield place.replaced(0.5 + more, (expression, f"{text}.coalesce()"))
            yield place.replaced(0.55 + more, (expression, f"{text}.to_sparse_csr()"))
    elif isinstance(value, Tensor) and not value.requires_grad and value.dim() == 2:
        yield place.replaced(0.75, (expression, f"{text}.to_sparse()"))
    elif value is MISSING and isinstance(expression, ast.Call):
        yield place.replaced(0.8, (expression, f"{text}.to_dense()"))


_SPECTRA = re.compile(r"(stft|(?<!i)r?fft[2n]?)$")
_COMPLEX = re.compile(r"(?i)complex(<|float|double|\d)")


def magnitudes(site: Site) -> Iterator[Candidate]:
    """The magnitudes of a spectrum, where it is made, for what takes real numbers."""
    for place in site.statements() if _COMPLEX.search(site.text) else ():
        for call in (c for c in place.calls() if _SPECTRA.search(callee(c))):
            at = replace(place, distance=0.0)
            yield at.replaced(0.28, (call, f"{place.text(call)}.abs()"))


def by_rows(site: Site) -> Iterator[Candidate]:
    """The places of the entries of a sparse tensor, given as a list of pairs, turned to a row for
    each dimension where they were made."""
    for place in site.raising[:1]:
        for call in (c for c in place.calls() if callee(c) == "sparse_coo_tensor" and c.args):
            sizes = [*call.args[2:3], *(k.value for k in call.keywords if k.arg == "size")]
            given, rank = call.args[0], len(getattr(sizes[0], "elts", ())) if sizes else 2
            value, bound = place.value(given), site.binding(place, given)
            made = bound_value(bound, spelled(given)) if bound is not None else None
            pairs = isinstance(value, Tensor) and value.dim() == 2 and is_whole(value)
            turned = pairs and len(value) != value.shape[1] == rank
            if turned and bound is not None and isinstance(made, ast.Call):
                yield replace(bound, distance=0.0).replaced(0.3, (made, f"{bound.text(made)}.t()"))


def as_bytes(site: Site, place: Place) -> Iterator[Candidate]:
    """The state of a random generator as the bytes that it was."""
    if "ByteTensor" not in site.text:
        return
    for call in place.calls():
        for node in call.args[:1]:
            value, text = place.value(node), place.text(node)
            value = site.computed(node) if value is MISSING else value
            made = bound_value(site.binding(place, node), spelled(node)) or node
            if callee(made) in ("tensor", "as_tensor") and made is node:
                yield place.added(0.2, node, "dtype=torch.uint8")  # type: ignore[arg-type]
            elif isinstance(value, Tensor) and value.dtype != torch.uint8:
                whole = is_whole(value) or bool((value == value.round()).all())
                yield from [place.replaced(0.25, (node, f"{place.whole(node)}.byte()"))] * whole
            elif isinstance(value, Tensor):
                yield place.replaced(0.25, (node, f"{place.whole(node)}.cpu()"))
            elif value is not MISSING and hasattr(value, "__len__") and not isinstance(value, str):
                yield place.replaced(0.22, (node, f"torch.tensor({text}, dtype=torch.uint8)"))
            else:
                yield place.replaced(0.3, (node, f"{place.whole(node)}.byte()"))


def as_generators(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A generator with a seed, where the seed was given for it or as its device."""
    for keyword in call.keywords:
        if keyword.arg == "generator" and type(place.value(keyword.value)) is int:
            text = f"generator=torch.Generator().manual_seed({place.text(keyword.value)})"
            yield replace(place, distance=0.0).replaced(0.2, (keyword, text))
    if place.value(call.func) is torch.Generator and len(call.args) == 1:
        if type(place.value(call.args[0])) is int:
            text = f"{place.text(call.func)}().manual_seed({place.text(call.args[0])})"
            yield replace(place, distance=0.0).replaced(0.2, (call, text))


_OF_STUBS = {"DeQuantStub": "'Quantized\\w+'|quantized", "QuantStub": "quantized::"}


def through_stubs(site: Site) -> Iterator[Candidate]:
    """What goes into a quantized model, or what it gives, through the stub that it has for that
    and does not call."""
    kinds = [name for name, told in _OF_STUBS.items() if re.search(told, site.text)]
    for source in site.program.texts if kinds else ():
        for node in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            inside = [*ast.walk(node)]
            called = {spelled(n.func) for n in inside if isinstance(n, ast.Call)}
            pairs = [
                pair
                for row in (n for n in inside if isinstance(n, ast.Assign))
                for pair in zip(
                    getattr(row.value, "elts", [row.value]), bound_by(row), strict=False
                )
            ]
            stubs = [(callee(value), name) for value, name in pairs if callee(value) in kinds]
            forward = next((n for n in node.body if getattr(n, "name", "") == "forward"), None)
            for kind, stub in stubs:
                if not isinstance(forward, ast.FunctionDef) or stub in called:
                    continue
                if kind == "DeQuantStub":
                    yield from _dequantized(site, source, forward, stub)
                elif len(forward.args.args) > 1:
                    first = next(n for n in forward.body if not is_text(n))
                    name = forward.args.args[1].arg
                    own = site.place(source, first, 0.0)
                    yield own.written(0.15, f"{name} = {stub}({name})\n{{}}")


def wrapped_for_quantization(site: Site) -> Iterator[Candidate]:
    """A model with the stubs that it has not, where a program quantizes it."""
    whole = "\n".join(source.text for source in site.program.texts)
    if "quantized::" not in site.text or re.search("QuantStub|QuantWrapper", whole):
        return
    places = site.statements()
    heads = [t for at in places for t in getattr(at.statement, "targets", [])]
    own = {spelled(t.value) for t in heads if getattr(t, "attr", "") == "qconfig"}
    for place in (at for at in places if {*bound_by(at.statement)} & own):
        value: Any = bound_value(place, "")
        text = f"torch.ao.quantization.QuantWrapper({place.text(value)})"
        yield replace(place, distance=0.0).replaced(0.2, (value, text))


_SUMS: dict[type, str] = {ast.Add: "add", ast.Mult: "mul"}


def as_float_functions(site: Site) -> Iterator[Candidate]:
    """A sum or a product of quantized tensors by a module that knows the scale of the result."""
    place = site.raising[0]
    kind = place.in_class
    init = (
        next((n for n in kind.body if getattr(n, "name", "") == "__init__"), None) if kind else None
    )
    rows = [n for n in getattr(init, "body", []) if "super().__init__" in ast.unparse(n)]
    for node in place.parts() if rows and re.search("aten::(add|mul)", site.text) else ():
        name = _SUMS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
        if name is not None and isinstance(node, ast.BinOp):
            both = f"{place.text(node.left)}, {place.text(node.right)}"
            taken = re.findall(rf"self\.{name}\w*", place.source.text)  # each has its own scale
            sums = f"self.{name}" + f"_{len({*taken}) + 1}" * bool(taken)
            own = replace(place, distance=0.0).replaced(0.15, (node, f"{sums}.{name}({both})"))
            line, indent = rows[0].end_lineno or 0, " " * rows[0].col_offset
            more = f"{indent}{sums} = torch.ao.nn.quantized.FloatFunctional()"
            text = f"{place.source.lines[line - 1]}\n{more}"
            yield replace(own, edits=(*own.edits, lines_as(place.source, line, line, text)))


def _dequantized(
    site: Site, source: Source, forward: ast.FunctionDef, stub: str
) -> Iterator[Candidate]:
    """The results of a function through a stub, each of several."""
    pairs: list[tuple[ast.AST, str]] = []
    for row in own_nodes(forward):
        if isinstance(row, ast.Return) and row.value is not None:
            parts = row.value.elts if isinstance(row.value, ast.Tuple) else [row.value]
            pairs += [(part, f"{stub}({source.part(part)})") for part in parts]
    yield Candidate(0.15, spliced(source, pairs))
    if len(pairs) > 1:  # one of them may be none that is quantized
        yield from (Candidate(0.2, spliced(source, [pair])) for pair in pairs)
