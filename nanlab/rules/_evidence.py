"""The table that proves a fault: the offending elements, what they were made from, what became of
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

from nanlab.rules._fault import Fault
from nanlab.rules._rule import Match

SHOWN = 20  # offending elements in the table


def number(value: Any) -> str:
    """A number as a sentence writes it."""
    value = value.item() if isinstance(value, torch.Tensor) else value
    if isinstance(value, complex):
        return f"{value:.4g}"
    return "NaN" if value != value else f"{value:.6g}"


def plural(count: int, one: str, many: str = "") -> str:
    """``1 zero``, ``3 zeros``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def verb(count: int, one: str, many: str) -> str:
    """The form of a verb that agrees with a count."""
    return one if count == 1 else many


def table(
    fault: Fault, columns: Mapping[str, Any], only: torch.Tensor | None = None
) -> pd.DataFrame:
    """A row for each of the most extreme offending elements: its index, these operands at it, its
    value.

    Columns that cannot be broadcast to the result are left out. ``attrs["total"]`` says how many
    elements there are in all.
    only: mask in the shape of the result, of the elements that show this cause; None: all that are
    bad.
    """
    mask = fault.bad if only is None or fault.bad is None else fault.bad & only
    if mask is None or fault.result is None:
        return pd.DataFrame()
    where = _extreme_first(fault, mask, columns)[:SHOWN]
    index = [tuple(i) if len(i) != 1 else i[0] for i in where.tolist()]
    found: dict[str, Any] = {"index": index}
    at = tuple(where.T)
    for name, operand in columns.items():
        if isinstance(operand, (int, float)):
            found[name.replace("_", " ")] = [operand] * len(index)
        elif isinstance(operand, torch.Tensor) and (wide := fault.spread(operand)) is not None:
            found[name.replace("_", " ")] = _listed(wide[at])
    found["value"] = _listed(fault.result[at])
    frame = pd.DataFrame(found)
    frame.attrs["total"] = int(mask.sum())
    return frame


def _extreme_first(fault: Fault, mask: torch.Tensor, columns: Mapping[str, Any]) -> torch.Tensor:
    """Indices of the offending elements, those whose first operand is farthest from the healthy
    ones' before the others: by its value where all lie beyond them on one side, else by its
    magnitude."""
    where = mask.nonzero()
    operand = next((c for c in columns.values() if isinstance(c, torch.Tensor)), None)
    wide = None if operand is None else fault.spread(operand)
    if wide is None or not wide.is_floating_point() or len(where) < 2:
        return where
    bad, good = wide[tuple(where.T)].double(), wide[~mask].double()
    if len(good) and bool(bad.isfinite().all() and good.isfinite().all()):
        above = bool(bad.min() >= good.max())
        if above or bool(bad.max() <= good.min()):
            return where[bad.argsort(descending=above, stable=True)]
    sizes, healthy = bad.abs().nan_to_num(nan=-1.0), good.abs()
    smaller = len(healthy) > 0 and bool(sizes.median() < healthy.median())
    return where[sizes.argsort(descending=not smaller, stable=True)]


def _listed(values: torch.Tensor) -> list[Any]:
    if values.dtype.itemsize == 1 and values.is_floating_point():
        values = values.float()
    listed = values.reshape(-1).tolist()
    return [str(v) if isinstance(v, complex) else v for v in listed]


def algebra(fault: Fault, derivative: str, only: torch.Tensor | None = None) -> str:
    """The local derivative times the gradient that came in: "the derivative is inf; incoming 0 x
    inf = NaN".

    only: mask in the shape of the result, of the elements that show this cause; None: all that are
    bad.
    """
    incoming, result = fault.at(fault.incoming), fault.at(fault.result)
    if incoming is None or not len(incoming) or result is None or len(incoming) != len(result):
        return f"Its derivative there is {derivative}"
    first = 0 if only is None or fault.bad is None else int(only[fault.bad].int().argmax())
    product = f"incoming {number(incoming[first])} × {derivative} = {number(result[first])}"
    return f"Its derivative there is {derivative}; {product}"


def match(
    fault: Fault,
    title: str,
    explanation: str = "",
    columns: Mapping[str, Any] | None = None,
    only: torch.Tensor | None = None,
    **more: Any,
) -> Match:
    """A Match with its table, whose columns are these operands (backward the incoming gradient
    too), and samples."""
    shown = {**(columns or {}), **more}
    if fault.backward and fault.incoming is not None:
        shown = {name: v for name, v in shown.items() if v is not fault.incoming}
        shown["incoming_gradient"] = fault.incoming
    return Match(title, table(fault, shown, only), explanation, fault.samples)
