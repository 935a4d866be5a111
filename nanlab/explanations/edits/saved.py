"""What the forward of an autograd function saves, as its backward takes it apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from nanlab.explanations.site import (
    Candidate,
    Function,
    Place,
    Site,
    bound_by,
    callee,
    rows_of,
    spelled,
    spliced,
)


def all_that_is_read(site: Site) -> Iterator[Candidate]:
    """All tensors saved that are taken apart, in their order; all that were saved taken apart."""
    for place in site.raising[:1] if "values to unpack" in site.text else ():
        row: Any = place.statement
        target = row.targets[0] if isinstance(row, ast.Assign) else None
        saved = getattr(getattr(row, "value", None), "attr", "") == "saved_tensors"
        if not isinstance(target, ast.Tuple) or not saved:
            continue
        read = [spelled(each) for each in target.elts]
        for function, call in _saving(place):
            kept = [spelled(each) for each in call.args]
            rows = [part for row in function.body for part in ast.walk(row)]
            known = {a.arg for a in function.args.args} | {n for r in rows for n in bound_by(r)}
            given = [argument.arg for argument in function.args.args[1:]]
            every = given if {*kept} < {*given} and len(given) == len(read) else []
            if {*kept} < {*read} <= known or every:
                names = read if {*read} <= known else every  # they have others there
                text = f"{place.text(call.func)}({', '.join(names)})"
                yield Candidate(0.15, spliced(place.source, [(call, text)]))
            elif "" not in kept and {*read} < {*kept}:
                yield Candidate(0.15, spliced(place.source, [(target, ", ".join(kept))]))


def _saving(place: Place) -> Iterator[tuple[Any, ast.Call]]:
    """The calls by which the class of a statement saves tensors, with the functions around."""
    kinds = [n for n in place.source.nodes if isinstance(n, ast.ClassDef)]
    for kind in (kind for kind in kinds if place.function in kind.body):
        for function in (each for each in rows_of(kind) if isinstance(each, Function)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and callee(node) == "save_for_backward":
                    yield function, node
