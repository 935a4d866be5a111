"""The offending elements, and a plot of the failing function around them."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import shorten
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch

from nanlab import safe
from nanlab.analysis.run_up import limit_of
from nanlab.operators import CARDS, having
from nanlab.program.expression import replaced as with_others
from nanlab.rules import Finding, Fix
from nanlab.trace import Trace
from nanlab.views.card import cure_of
from nanlab.views.charts import AMBER, BLUE, GREEN, GREY, RED, Level, Line, chart
from nanlab.views.columns import as_typed, known
from nanlab.views.html import data_table, escape, inline, number, plural

# The offending elements: under the user's own names, the most extreme first, what is the same
# in all said once.

ROWS = 8
LONGEST = 28  # characters of an expression that names a column
FIRST = {"x", "base", "numerator", "operand 0", "scores", "argument", "input"}
SECOND = {"divisor", "operand 1", "denominator", "exponent"}
_OPERATORS = {one.name: getattr(ast, one.symbol) for one in CARDS.values() if one.symbol}
_LIBRARIES = frozenset("torch F nn np numpy math nanlab functional linalg special".split())


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
    if total > len(rows):
        shown = f"{len(rows):,} of {plural(total, 'element')}"
    else:
        shown = plural(total, "element")
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
    if text in {"NaN", "nan", "inf", "-inf"}:
        return f'<span class="nl-tag nl-fails">{text.replace("nan", "NaN")}</span>'
    return escape(text)


def renamed(frame: pd.DataFrame, finding: Finding) -> pd.DataFrame:
    """The frame with its operands named as on the user's line."""
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
    """The operands of an operator on a line, as written; empty unless it occurs once."""
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
    """The receiver of a method call; None for a library function."""
    if not isinstance(function, ast.Attribute):
        return []
    base = function.value
    while isinstance(base, ast.Attribute):
        base = base.value
    return [] if isinstance(base, ast.Name) and base.id in _LIBRARIES else [function.value]


# The lens: the function at fault drawn around the user's own values, its limits, and each fix
# as a curve over it.

FUNCTIONS = having("unary") & having("singular", "lossy") | {"tan"}
_EXPONENTIAL = having("exponential")
_QUOTIENTS = having("quotient")
POINTS = 80
SHOWN = 60  # of the user's values
FIXES = (GREEN, AMBER)  # colours of the fixes that are drawn


def lens(trace: Trace, finding: Finding) -> str:
    """A chart of the failing function with the values it got; "" if it cannot be drawn."""
    subject = quotient(trace, finding) or function_of_one(trace, finding)
    if subject is None:
        return ""
    values, function = subject.values, subject.function
    finite = values[torch.isfinite(values)].double()
    if not len(finite):
        return ""
    limit = (
        limit_of(finding.op, values.dtype) if finding.op in (*_EXPONENTIAL, "square") else math.inf
    )
    grid = _grid(finite, finding.op, limit).to(values.dtype)
    lines = [Line(finding.op, grid.tolist(), _numbers(function(grid)), BLUE)]
    chosen = [fix for fix in finding.fixes if fix.verified] or _of_cure(trace, finding)
    drawn: dict[str, list[float]] = {}
    for fix in chosen:
        y = curve(fix.edits[0].text if fix.edits else fix.code, subject.name, grid)
        if y is not None:
            drawn.setdefault(_short(fix), y)
    for (name, y), colour in zip(drawn.items(), FIXES, strict=False):
        lines.append(Line(name, grid.tolist(), y, colour))
    bad = finite[:SHOWN]
    dots = _numbers(function(bad.to(values.dtype)))
    known_ = [y for y in lines[0].y if math.isfinite(y)] or [1.0]
    ends = {math.inf: max(known_), -math.inf: min(known_)}
    lines.append(
        Line(
            "",
            bad.tolist(),
            [ends.get(y, min(known_)) if not math.isfinite(y) else y for y in dots],
            RED,
            dots=True,
        )
    )
    if math.isfinite(limit):
        levels = [Level(f"limit {limit:.4g}", limit, GREY, upright=True)]
    else:  # at its pole the function is drawn at the edge: the true value stands there
        poles = {
            number(y): x for x, y in zip(bad.tolist(), dots, strict=True) if not math.isfinite(y)
        }
        levels = [Level(y, x, RED, upright=True) for y, x in poles.items()]
    told = f"`{finding.op}` around {_counted(finding, values)} of `{subject.name}` (red)"
    told += f", {subject.held}" if subject.held else ""
    log = math.isfinite(limit)
    picture = chart(
        lines,
        told.replace("`", ""),
        log=log,
        levels=levels,
        x_label=subject.name,
        counted=False,
        size=(440, 170),
    )
    return f'<div class="nl-dim">{inline(told)}</div>{picture}'


@dataclass(frozen=True)
class Subject:
    """A function of one variable to draw, and the values of that variable."""

    name: str
    values: torch.Tensor
    function: Callable[[torch.Tensor], torch.Tensor]
    held: str = ""  # the other operand, in words


def function_of_one(trace: Trace, finding: Finding) -> Subject | None:
    """The function of an operation with one operand; None for others."""
    values = operand(trace, finding)
    function = getattr(torch, finding.op, None) or getattr(torch.special, finding.op, None)
    if values is None or function is None or finding.op not in FUNCTIONS:
        return None
    names = operand_names(as_typed(finding.source), finding.op)
    return Subject(names[0] if names and names[0] else "x", values, function)


def quotient(trace: Trace, finding: Finding) -> Subject | None:
    """A division as a function of its divisor, with the numerator fixed unless it is a function of
    the divisor too; None for others."""
    frame = finding.evidence
    function = getattr(torch, finding.op, None)
    if frame is None or not len(frame) or function is None or finding.op not in _QUOTIENTS:
        return None
    if not {"numerator", "divisor"} <= set(frame.columns):
        return None
    divisors = [float(v) for v in frame["divisor"].tolist() if isinstance(v, (int, float))]
    above = frame["numerator"].iloc[0]
    if not divisors or not isinstance(above, (int, float)) or not math.isfinite(above):
        return None
    names = operand_names(as_typed(finding.source), finding.op)
    numerator, divisor = names if len(names) == 2 and all(names) else ("the numerator", "divisor")
    dtype = _dtype(trace, finding)
    top = torch.tensor(float(above), dtype=dtype)
    nodes = (n for tree in _parsed(numerator) for n in ast.walk(tree))
    read = {n.id for n in nodes if isinstance(n, ast.Name)}
    if read - _LIBRARIES == {divisor}:
        text = f"({numerator}) / ({divisor})"
        return Subject(
            divisor,
            torch.tensor(divisors, dtype=dtype),
            lambda grid: torch.tensor(curve(text, divisor, grid) or [math.nan] * len(grid)),
        )
    return Subject(
        divisor,
        torch.tensor(divisors, dtype=dtype),
        lambda grid: function(top, grid),
        f"`{numerator}` held at {number(float(above))}",
    )


def _of_cure(trace: Trace, finding: Finding) -> list[Fix]:
    """The finding's own fix in the cure of a step with several faults."""
    cure = cure_of(trace)
    return [] if cure is None else [fix for fix in cure.fixes if fix in finding.fixes]


def _counted(finding: Finding, values: torch.Tensor) -> str:
    """``20 of 128 values``: the evidence holds only the first."""
    total = int(finding.evidence.attrs.get("total", len(values)))
    if total <= len(values):
        return plural(len(values), "value")
    return f"{len(values):,} of {plural(total, 'value')}"


def operand(trace: Trace, finding: Finding) -> torch.Tensor | None:
    """The operand's offending elements in the evidence; None if unknown."""
    frame = finding.evidence
    if frame is None or not len(frame):
        return None
    column = next(
        (c for c in ("x", "argument", "base", "operand 0", "operand_0") if c in frame.columns), None
    )
    if column is not None:
        values = [float(v) for v in frame[column].tolist() if isinstance(v, (int, float))]
    elif finding.op == "sqrt" and "root" in frame.columns:
        values = [float(v) ** 2 for v in frame["root"].tolist()]
    else:
        return None
    return torch.tensor(values, dtype=_dtype(trace, finding))


def _dtype(trace: Trace, finding: Finding) -> torch.dtype:
    """The dtype of the faulty result, if it is a floating-point one."""
    at = finding.position if finding.position in trace.ops.index else -1
    name = str(known(trace.ops.at[at, "dtype"])) if at >= 0 else "float32"
    dtype = getattr(torch, name, torch.float32)
    return dtype if dtype.is_floating_point else torch.float32


def _grid(values: torch.Tensor, op: str, limit: float) -> torch.Tensor:
    """Points around the values to draw the function at, from 0 if they overflow."""
    low, high = float(values.min()), float(values.max())
    if high > limit:
        below = torch.linspace(min(low, 0.0), limit, POINTS // 2, dtype=torch.float64)
        beyond = torch.linspace(limit, 1.1 * high, POINTS // 2, dtype=torch.float64)
        return torch.cat([below, beyond])
    width = max(high - low, 0.5 * max(abs(low), abs(high)), 1.0 if op != "log" else 0.5)
    return torch.linspace(low - 0.4 * width, high + 0.6 * width, POINTS, dtype=torch.float64)


def _numbers(values: torch.Tensor) -> list[float]:
    return [float(v) for v in values.double().tolist()]


def curve(text: str, name: str, grid: torch.Tensor) -> list[float] | None:
    """The largest part of some code that depends on the operand alone, over the grid."""
    try:
        tree, target = ast.parse(text.strip()), ast.dump(ast.parse(name, mode="eval").body)
    except (SyntaxError, ValueError):
        return None
    scope: dict[str, Any] = {
        "torch": torch,
        "F": torch.nn.functional,
        "nanlab": SimpleNamespace(safe=safe),
        "_operand": grid,
    }
    stands = ast.Name("_operand", ast.Load())
    replaced = with_others(tree, lambda node: stands if ast.dump(node) == target else None)
    parts = [
        n for n in ast.walk(replaced) if isinstance(n, (ast.Call, ast.BinOp)) and _is_closed(n)
    ]
    for part in sorted(parts, key=lambda n: -len(ast.dump(n))):
        try:
            made = eval(
                compile(ast.Expression(ast.fix_missing_locations(part)), "<fix>", "eval"), scope
            )
        except Exception:  # a part that is no function of one tensor
            continue
        if isinstance(made, torch.Tensor) and made.shape == grid.shape:
            return _numbers(made)
    return None


def _is_closed(part: ast.AST) -> bool:
    """Whether an expression reads the operand and no other variable."""
    names = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
    return "_operand" in names and names <= {"_operand", "torch", "F", "nanlab"}


def _short(fix: Fix) -> str:
    return escape(shorten(fix.title.split(":")[0], 30, placeholder=" …"))
