"""From where a result that grows or shrinks step after step has its growth."""

from __future__ import annotations

import math

import numpy as np

from nanlab.analysis.trends import growing_origins, growth
from nanlab.history import Series
from nanlab.operators import having
from nanlab.trace.locations import location
from nanlab.trace.recording import BACKWARD, Recording

ENLARGED = 1.5  # a constant factor from which on it is named
CONSTANT = 0.05  # bits between the largest and the smallest ratio of two results that bear a constant one
HOPS = 12  # operations upstream
_PRODUCTS = having("matmul", "dot", "composed_product")


def _named(recording: Recording, column: int) -> str:
    """A result by its operation and its place."""
    place = recording.training.series.places[column]
    return f"{place.op} ({location(*recording.places[place.line][:2])})"


def decay(recording: Recording, column: int) -> str:
    """From where the decay comes."""
    series = recording.training.series
    origins = growing_origins(series, column, sign=-1.0)
    if not origins:
        return ""
    smaller = 2 ** -growth(series, origins[-1])
    return f"It begins at {_named(recording, origins[-1])}, {smaller:.3g} times smaller than at first."


def story(recording: Recording, column: int) -> str:
    """From where the growth comes: the results upstream that grow as well, an unnormalised product, a constant factor."""
    series = recording.training.series
    told = []
    product, weights, factor = (
        product_of_growing(recording, column),
        growing_weights(recording, column),
        constant_factor(series, column),
    )
    origins = [c for c in growing_origins(series, column) if series.places[c].phase != BACKWARD]
    if product is not None:
        told.append(
            f"the product {_named(recording, product)} multiplies vectors whose norms grow, for nothing normalises them"
        )
    elif weights is not None:
        name, times = weights
        told.append(f"the parameters behind it grow: {name} is {times:.3g} times larger than at first")
    if factor is not None:
        told.append(
            f"the constant factor of {_named(recording, factor[0])} makes it {factor[1]:.3g} times larger still"
        )
    if origins:
        times = 2 ** growth(series, origins[-1])
        told.append(f"the growth begins at {_named(recording, origins[-1])}, {times:.3g} times larger than at first")
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def product_of_growing(recording: Recording, column: int) -> int | None:
    """The product of growing vectors, not of a layer's weights, that a result comes from, itself included."""
    series = recording.training.series
    for at in (column, *growing_origins(series, column, hops=4)):
        if series.places[at].op in _PRODUCTS and any(growth(series, p) > 0.5 for p in series.parents[at]):
            return None if _own_parameters(recording, at) else at
    return None


def _own_parameters(recording: Recording, column: int) -> list[str]:
    """The parameters of the module in which an operation ran."""
    module = recording.modules.items[recording.training.series.places[column].module]
    names = recording.parameter_names
    return [name for name in names if module and name.rpartition(".")[0] == module]


def growing_weights(recording: Recording, column: int) -> tuple[str, float] | None:
    """(name, times by which it grew) of the parameter that grew most, of the modules that a growing result came through."""
    series = recording.training.series
    found = {n for at in (column, *growing_origins(series, column)) for n in _own_parameters(recording, at)}
    grown = [(growth(series, at), recording.parameter_names[owner]) for at, owner in series.owners.items() if at >= 0]
    most = max((g for g in grown if g[1] in found and g[0] > 0.5), default=None)
    return None if most is None else (most[1], 2.0 ** most[0])


def constant_factor(series: Series, column: int) -> tuple[int, float] | None:
    """(column, factor) of the multiplication or division by a constant upstream that enlarges a result most, if one does."""
    seen, waiting, best = {column}, [(column, 0)], (-1, math.log2(ENLARGED))
    for at, depth in waiting:
        if series.places[at].op in ("div", "mul") and len(series.parents[at]) == 1:
            after, before = series.table[:, at], series.table[:, series.parents[at][0]]
            both = np.isfinite(after) & np.isfinite(before)
            change = after[both] - before[both]
            if len(change) and np.ptp(change) < CONSTANT and (bits := float(np.median(change))) > best[1]:
                best = at, bits
        waiting += [(p, depth + 1) for p in series.parents[at] if depth < HOPS and p not in seen]
        seen.update(series.parents[at])
    return None if best[0] < 0 else (best[0], 2.0 ** best[1])
