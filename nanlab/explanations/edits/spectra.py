"""Complex numbers where one that is real is meant, as in a loss of differences of spectra, and
real ones where one that is complex is: magnitudes, or what a spectrum is multiplied by."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from nanlab.explanations.edits.texts import given_for
from nanlab.explanations.site import (
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    number_of,
    spelled,
    spliced,
)


def squared_lengths(site: Site) -> Iterator[Candidate]:
    """The squares of complex numbers as those of their lengths: one, all of a statement, and all
    of the program."""
    if not re.search("(?i)complex", site.text):
        return
    found: list[tuple[Place, list[tuple[ast.AST, str]]]] = []
    for place in site.statements():
        found.append((place, [pair for node in place.parts() for pair in _squares(place, node)]))
    for place, pairs in found:
        at = replace(place, distance=0.0)
        yield from (at.replaced(0.1, pair) for pair in pairs)
        if len(pairs) > 1:
            yield at.replaced(0.12, *pairs)
    for source in site.program.texts:
        own = [pair for place, pairs in found if place.source is source for pair in pairs]
        if len(own) > 1:
            yield Candidate(0.15, spliced(source, own))


def _squares(place: Place, node: Any) -> Iterator[tuple[ast.AST, str]]:
    """A node that squares something, with the text that squares how long it is."""
    if isinstance(node, ast.BinOp):
        power = isinstance(node.op, ast.Pow) and number_of(node.right) == 2
        left, right = place.text(node.left), place.text(node.right)
        twice = isinstance(node.op, ast.Mult) and right in (left, f"{left}.conj()")
        if (power or twice) and not isinstance(node.left, ast.Constant):
            yield node, f"{place.whole(node.left)}.abs() ** 2"
    elif callee(node) in ("square", "pow"):
        squares = callee(node) == "square"
        of = node.args if squares else node.args[:-1]
        of = (*of, getattr(node.func, "value", None))  # of a method, what it belongs to
        if of[0] is not None and (squares or (node.args and number_of(node.args[-1]) == 2)):
            yield of[0], f"{place.whole(of[0])}.abs()"


def learned_as_complex(site: Site) -> Iterator[Candidate]:
    """A real parameter that meets complex numbers made a complex one: likely, where the program
    turns spectra back to signals, which their magnitudes do not give."""
    if not re.search("(?i)complex", site.text):
        return
    calls = map(callee, (n for s in site.program.texts for n in s.nodes))
    cost = 0.2 if any(map(_INVERSE.fullmatch, calls)) else 0.5
    read = map(site.raising[0].value, site.raising[0].parts())
    met = {id(v) for v in read if isinstance(v, nn.Parameter) and not v.is_complex()}
    own = [vars(module)["_parameters"].items() for module in site.modules]
    names = {f"self.{name}" for each in own for name, value in each if id(value) in met}
    for place in site.statements():
        for call in place.calls() if names.intersection(bound_by(place.statement)) else ():
            if "dtype" not in (each.arg for each in call.keywords):  # it fails where it takes none
                yield place.added(cost, call, "dtype=torch.cfloat")


_INVERSE = re.compile(r"ih?r?fft[2n]?|istft")


def real_again(site: Site) -> Iterator[Candidate]:
    """The inverse of the transform of a real signal for what its half of a spectrum is turned back
    with, which gives complex numbers."""
    if not re.search("(?i)complex", site.text):
        return
    for place in site.statements():
        for call in (c for c in place.calls() if re.fullmatch("ifft[2n]?", callee(c))):
            inverse, of = f"ir{callee(call)[1:]}", place.function or place.source.tree
            calls: Iterator[Any] = (n for n in ast.walk(of) if callee(n) == inverse[1:])
            made = [n for n in calls if n.args]
            head = place.text(call.func).removesuffix(callee(call)) + inverse
            text = head + place.text(call).removeprefix(place.text(call.func))
            at, sizes = replace(place, distance=0.0), ("s" if inverse[-1] in "2n" else "n")
            told = len(call.args) > 1 or sizes in (each.arg for each in call.keywords)
            bound = {name for row in ast.walk(of) for name in bound_by(row)}
            signal = next((spelled(n.args[0]) for n in made if len(n.args) == 1), "")
            if signal not in {"", *bound} and sizes == "n" and not told and not made[0].keywords:
                yield at.replaced(0.12, (call, f"{text[:-1]}, n={signal}.size(-1))"))
            if made:
                yield at.replaced(0.15, (call, text))


def with_phases(site: Site) -> Iterator[Candidate]:
    """Magnitudes that are turned back to a signal, with the phases of the spectrum that they were
    taken of: where they were bound, else where they are given."""
    for place in site.raising[:1] if "istft requires a complex" in site.text else ():
        for call in (c for c in place.calls() if callee(c) == "istft" and c.args):
            value = place.value(call.args[0])
            at, node = _origin(site, place, call.args[0])
            shape = value.shape if isinstance(value, Tensor) else None
            own = at.names().items()
            spectra = [n for n, v in own if isinstance(v, Tensor) and v.is_complex()]
            spectra = [n for n in spectra if shape in (None, at.names()[n].shape)]
            yield from (each for n in spectra for each in _turned(site, at, node, n))
            if not spectra:
                yield from _with_its_spectrum(site, at, node)


def _origin(site: Site, place: Place, node: ast.expr) -> tuple[Place, ast.expr]:
    """Where what a name stands for was computed, if by the function around or one that called it,
    and the expression."""
    name, own = spelled(node), replace(place, distance=0.0)
    bound = site.binding(place, node) if name else None
    made = bound_value(bound, name)
    if bound is not None and isinstance(made, ast.expr) and name in bound_by(bound.statement):
        part = made is bound_value(bound, "") and len(bound_by(bound.statement)) > 1
        return (own, node) if part else (replace(bound, distance=0.0), made)
    given = given_for(site, place, name) if name else []
    outer = [each for each in given if each[0].distance > place.distance]
    return _origin(site, *outer[0]) if outer else (own, node)


def _turned(site: Site, place: Place, node: ast.expr, spectrum: str) -> Iterator[Candidate]:
    """A product of magnitudes as one of the spectrum; anything else with its phases."""
    product = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div))
    for side in (node.left, node.right) if product else ():  # type: ignore[attr-defined]
        made = bound_value(site.binding(place, side), spelled(side)) if spelled(side) else side
        if made is not None and _is_length(made, spectrum):
            yield place.replaced(0.2, (side, spectrum))
    if not spelled(node) or not _is_length(node, spectrum):
        yield place.replaced(0.25, (node, f"torch.polar({place.text(node)}, {spectrum}.angle())"))


def _is_length(node: ast.AST, spectrum: str) -> bool:
    """Whether an expression says how long the numbers of a spectrum are."""
    return ast.unparse(node) in (f"{spectrum}.abs()", f"torch.abs({spectrum})", f"abs({spectrum})")


def _with_its_spectrum(site: Site, place: Place, node: ast.expr) -> Iterator[Candidate]:
    """Magnitudes with the phases of their spectrum, which is kept where they are taken of it."""
    for other in site.statements():
        made: Any = bound_value(other, "")
        method = callee(made) == "abs" and isinstance(made.func, ast.Attribute)
        whole = made.func.value if method and not made.args else (*getattr(made, "args", ()), None)
        whole = whole if isinstance(whole, ast.AST) else whole[0]
        if callee(made) == "abs" and callee(whole) == "stft" and other.function is place.function:
            (edit,) = spliced(other.source, [(whole, "spectrum")])
            kept = replace(edit, text=f"spectrum = {other.text(whole)}\n{edit.text}")
            text = f"torch.polar({place.text(node)}, spectrum.angle())"
            yield Candidate(0.3, (kept, *spliced(place.source, [(node, text)])))
