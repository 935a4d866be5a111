"""The lens: the function at fault drawn around the user's own values, its limits, and each fix as a
curve over it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import shorten
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from nanlab import safe
from nanlab.analysis.run_up import limit_of
from nanlab.operators import having
from nanlab.views._charts import AMBER, BLUE, GREEN, GREY, RED, Level, Line, chart
from nanlab.views._columns import known
from nanlab.views._evidence import operand_names
from nanlab.views._html import escape, inline, number, plural
from nanlab.views._remedy import cure_of
from nanlab.views._source import as_typed

if TYPE_CHECKING:
    from nanlab.rules import Finding, Fix
    from nanlab.trace import Trace

FUNCTIONS = having("unary") & having("singular", "lossy") | {"tan"}
_EXPONENTIAL = having("exponential")
_QUOTIENTS = having("quotient")
POINTS = 80
SHOWN = 60  # of the user's values
FIXES = (GREEN, AMBER)  # colours of the fixes that are drawn


def lens(trace: Trace, finding: Finding) -> str:
    """A chart of the function at fault with the values that it was given; of a quotient over its
    divisor; "" of any other operation."""
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
    for fix, colour in zip(chosen, FIXES, strict=False):
        drawn = curve(fix, subject.name, grid)
        if drawn is not None:
            lines.append(Line(_short(fix), grid.tolist(), drawn, colour))
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
    levels = (
        [Level(f"limit {limit:.4g}", limit, GREY, upright=True)] if math.isfinite(limit) else []
    )
    told = f"`{finding.op}` around {_counted(finding, values)} of `{subject.name}` (red)"
    told += f", {subject.held}" if subject.held else ""
    log = math.isfinite(limit)
    picture = chart(
        lines, told.replace("`", ""), log=log, levels=levels, x_label=subject.name, size=(440, 170)
    )
    return f'<div class="nl-dim">{inline(told)}</div>{picture}'


@dataclass(frozen=True)
class Subject:
    """What is drawn: a function of one variable, and the values that the variable had."""

    name: str
    values: torch.Tensor
    function: Callable[[torch.Tensor], torch.Tensor]
    held: str = ""  # the other operand, in words


def function_of_one(trace: Trace, finding: Finding) -> Subject | None:
    """An operation of one operand; None of any other."""
    values = operand(trace, finding)
    function = getattr(torch, finding.op, None) or getattr(torch.special, finding.op, None)
    if values is None or function is None or finding.op not in FUNCTIONS:
        return None
    names = operand_names(as_typed(finding.source), finding.op)
    return Subject(names[0] if names and names[0] else "x", values, function)


def quotient(trace: Trace, finding: Finding) -> Subject | None:
    """A division as a function of its divisor, the numerator held at its first offending value;
    None of any other operation."""
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
    """``20 of 128 values``: the evidence holds the first of them."""
    total = int(finding.evidence.attrs.get("total", len(values)))
    if total <= len(values):
        return plural(len(values), "value")
    return f"{len(values):,} of {plural(total, 'value')}"


def operand(trace: Trace, finding: Finding) -> torch.Tensor | None:
    """The operand's offending elements, as kept with the evidence; None where they are not
    known."""
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
    """Of the faulty result, where that is a floating one."""
    at = finding.position if finding.position in trace.ops.index else -1
    name = str(known(trace.ops.at[at, "dtype"])) if at >= 0 else "float32"
    dtype = getattr(torch, name, torch.float32)
    return dtype if dtype.is_floating_point else torch.float32


def _grid(values: torch.Tensor, op: str, limit: float) -> torch.Tensor:
    """Points around the values, far enough on either side to show the function's shape; of values
    beyond its limit the way from 0 to there as well."""
    low, high = float(values.min()), float(values.max())
    if high > limit:
        below = torch.linspace(min(low, 0.0), limit, POINTS // 2, dtype=torch.float64)
        beyond = torch.linspace(limit, 1.1 * high, POINTS // 2, dtype=torch.float64)
        return torch.cat([below, beyond])
    width = max(high - low, 0.5 * max(abs(low), abs(high)), 1.0 if op != "log" else 0.5)
    return torch.linspace(low - 0.4 * width, high + 0.6 * width, POINTS, dtype=torch.float64)


def _numbers(values: torch.Tensor) -> list[float]:
    return [float(v) for v in values.double().tolist()]


def curve(fix: Fix, name: str, grid: torch.Tensor) -> list[float] | None:
    """The largest part of a fix's code that is a function of the operand alone, over the grid."""
    text = fix.edits[0].text if fix.edits else fix.code
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
    replaced = _Replaced(target).visit(tree)
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


class _Replaced(ast.NodeTransformer):
    """The operand's expression as the name ``_operand``."""

    def __init__(self, target: str) -> None:
        self.target = target

    def visit(self, node: ast.AST) -> Any:
        """The node, or the operand's stand-in."""
        if isinstance(node, ast.expr) and ast.dump(node) == self.target:
            return ast.Name("_operand", ast.Load())
        return self.generic_visit(node)


def _is_closed(part: ast.AST) -> bool:
    """Whether it reads the operand, and no other variable."""
    names = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
    return "_operand" in names and names <= {"_operand", "torch", "F", "nanlab"}


def _short(fix: Fix) -> str:
    return escape(shorten(fix.title.split(":")[0], 30, placeholder=" …"))
