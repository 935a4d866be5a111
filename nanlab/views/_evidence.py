"""The offending elements: under the user's own names, the most extreme first, what is the same in
all said once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.operators import CARDS
from nanlab.views._columns import known
from nanlab.views._html import escape, number, plural
from nanlab.views._tables import data_table

if TYPE_CHECKING:
    from nanlab.rules import Finding

ROWS = 8
LONGEST = 28  # characters of an expression that names a column
FIRST = {"x", "base", "numerator", "operand 0", "scores", "argument", "input"}
SECOND = {"divisor", "operand 1", "denominator", "exponent"}
_OPERATORS = {one.name: getattr(ast, one.symbol) for one in CARDS.values() if one.symbol}
_LIBRARIES = {
    "torch",
    "F",
    "nn",
    "np",
    "numpy",
    "math",
    "nanlab",
    "functional",
    "linalg",
    "special",
}


def evidence(finding: Finding) -> str:
    """The offending elements and the operands that made them; "" without any."""
    frame = finding.evidence
    if frame is None or not len(frame):
        return ""
    frame = renamed(frame, finding)
    # the frame itself may hold the first of them only
    total = int(frame.attrs.get("total", len(frame)))
    same = {
        str(name): frame[name].iloc[0]
        for name in frame.columns
        if len(frame) > 1 and _is_constant(frame[name])
    }
    rest = [name for name in frame.columns if str(name) not in same]
    said = ", ".join(
        f"<code>{escape(name)}</code> = {_value(value)}" for name, value in same.items()
    )
    if same and len(rest) <= 1:
        where = _indices(frame[rest[0]], total) if rest else ""
        return f'<div class="nl-evidence">{plural(total, "element")}, all with {said}{where}</div>'
    rows = [
        [_value(value) for value in row] for row in frame[rest].head(ROWS).itertuples(index=False)
    ]
    aligns = ["right" if pd.api.types.is_numeric_dtype(frame[name]) else "left" for name in rest]
    shown = (
        f"{len(rows):,} of {plural(total, 'element')}"
        if total > len(rows)
        else plural(total, "element")
    )
    caption = shown + (f"; in all of them {said}" if same else "")
    return data_table([str(name) for name in rest], rows, aligns, caption)


def _is_constant(column: pd.Series[Any]) -> bool:
    texts = column.map(repr)
    return bool((texts == texts.iloc[0]).all())


def _indices(index: pd.Series[Any], total: int) -> str:
    first = ", ".join(escape(str(value)) for value in index.head(4))
    return f", at {first}{' …' if total > 4 else ''}"


def _value(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = number(value) if is_number else str(known(value))
    bad = text in {"nan", "inf", "-inf"}
    return (
        f'<span class="nl-tag nl-fails">{"NaN" if text == "nan" else text}</span>'
        if bad
        else escape(text)
    )


def renamed(frame: pd.DataFrame, finding: Finding) -> pd.DataFrame:
    """The frame with its operands under the names that they have on the user's line."""
    names = operand_names(finding.source, finding.op)
    columns = {}
    for name in map(str, frame.columns):
        plain = name.replace("_", " ")
        at = 0 if plain in FIRST else 1 if plain in SECOND else -1
        columns[name] = names[at] if 0 <= at < len(names) and names[at] else plain
    if len(set(columns.values())) < len(columns):
        return frame
    made = frame.rename(columns=columns)
    made.attrs = dict(frame.attrs)
    return made


def operand_names(source: str, op: str) -> list[str]:
    """The expressions that an operator is given on a line; empty where it occurs there not exactly
    once."""
    name = op.strip("_").rpartition("_")[2] if op.startswith("linalg") else op.strip("_")
    found = [operands for tree in _parsed(source) for operands in _operands_of(tree, name)]
    if len(found) != 1:
        return []
    texts = [ast.unparse(operand) for operand in found[0]]
    return [text if len(text) <= LONGEST else "" for text in texts]


def _parsed(source: str) -> list[ast.Module]:
    text = source.strip()
    for tried in (text, f"{text} pass", f"if 1: pass\n{text} pass"):
        try:
            return [ast.parse(tried)]
        except (SyntaxError, ValueError):
            continue
    return []


def _operands_of(tree: ast.Module, name: str) -> Iterator[list[ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and type(node.op) is _OPERATORS.get(name):
            yield [node.left, node.right]
        elif isinstance(node, ast.Call) and _called(node.func) == name:
            yield [*_receiver(node.func), *node.args]


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _receiver(function: ast.expr) -> list[ast.expr]:
    """What a method is called on; nothing of a function of a library."""
    if not isinstance(function, ast.Attribute):
        return []
    base = function.value
    while isinstance(base, ast.Attribute):
        base = base.value
    return [] if isinstance(base, ast.Name) and base.id in _LIBRARIES else [function.value]
