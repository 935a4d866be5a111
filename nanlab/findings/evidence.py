"""The finding of an origin, and the table that proves it."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.provenance import Origin, operator_name, phase_of
from nanlab.findings.fault import Fault
from nanlab.findings.rule import Finding, Match, Rule
from nanlab.trace import Trace
from nanlab.trace.recording import PHASES, Recording

# The finding of an origin: its place and path, and its cause once a rule knows it.

_SYMPTOMS = {
    "loss": "loss",
    "gradient": "grad",
    "parameter": "param",
    "state": "state",
    "output": "output",
}


def finding_of(trace: Trace, origin: Origin) -> Finding:
    """What, where and which step; cause "unknown"."""
    recording = trace.recording
    phase = phase_of(recording, origin)
    used = origin.kind not in ("operation", "uninitialised") and not (
        origin.kind == "rank" and origin.position >= 0
    )
    position = origin.first_use(recording) if used else origin.position
    stats = recording.stats(origin.sink.position)
    what = "nan" if stats is not None and stats.nan else "inf"
    place = place_of(trace, position)
    # A bad value among new parameters is a symptom in the step that made them, though no gradient
    # of torch's own shows it.
    if recording.updates_apart and origin.position >= 0:
        shown = origin.position
    else:
        shown = origin.sink.step_position
    return Finding(
        cause="unknown",
        severity="error",
        title=f"{place['op']} made a non-finite value",
        explanation="",
        phase=phase,
        step=recording.step_of(shown),
        symptom=f"{_SYMPTOMS[origin.sink.kind]}-{what}",
        path=path_rows(recording, origin),
        harmful=True,
        **place,
    )


def place_of(trace: Trace, position: int) -> dict[str, Any]:
    """Fields of a Finding that its row gives: op, node, module, file, line, source, position."""
    recording = trace.recording
    row = recording.op(position)
    file, line, real = recording.places[row.place] if row else ("", 0, "")
    return {
        "op": operator_name(recording, position) if row else "",
        "node": row.node if row and row.node >= 0 else None,
        "module": row.module if row else "",
        "file": file,
        "line": line,
        "source": linecache.getline(real, line).strip() if line else "",
        "position": position,
    }


def matched(trace: Trace, finding: Finding, rule: Rule, match: Match | Finding) -> Finding:
    """The finding of a fault, now that a rule knows its cause."""
    if isinstance(match, Finding):
        return match
    place = {} if match.position is None else place_of(trace, match.position)
    given = {"step": match.step, "phase": match.phase, "op": match.op, "symptom": match.symptom}
    place |= {name: value for name, value in given.items() if value is not None}
    return replace(
        finding,
        cause=rule.name,
        severity=match.severity or rule.severity,
        title=match.title,
        explanation=" ".join(text for text in (rule.explanation, match.explanation) if text),
        evidence=match.evidence,
        samples=match.samples,
        **place,
    )


def surveyed(trace: Trace, rule: Rule, match: Match | Finding) -> Finding:
    """The finding of a rule that looked at the whole trace."""
    if isinstance(match, Finding):
        return match
    recording = trace.recording
    position = -1 if match.position is None else match.position
    row = recording.op(position)
    bare = Finding(
        cause="",
        severity="note",
        title="",
        explanation="",
        phase=PHASES[row.phase] if row else "other",
        step=recording.step_of(max(position, 0)),
        symptom="",
        harmful=match.harmful,
        **place_of(trace, position),
    )
    return matched(trace, bare, rule, match)


def path_rows(recording: Recording, origin: Origin) -> list[dict[str, Any]]:
    """The rows from the origin to the symptom: what ran, where, and how many elements were bad."""
    rows: list[dict[str, Any]] = []
    for position in origin.path:
        stats = recording.stats(position)
        nonfinite, numel = (stats.nonfinite, stats.numel) if stats is not None else (0, 0)
        entry: dict[str, Any] = {"position": position, "nonfinite": nonfinite, "numel": numel}
        row = recording.op(position)
        if row is None:
            source = recording.sources.get(position)
            entry |= {
                "op": source.kind if source else "",
                "phase": "data",
                "module": source.name if source else "",
                "file": "",
                "line": 0,
            }
        else:
            file, line = row.file, row.line
            entry |= {
                "op": row.name,
                "phase": PHASES[row.phase],
                "module": row.module,
                "file": file,
                "line": line,
            }
        rows.append(entry)
    return rows


# The table that proves a fault: the offending elements, what they were made from, what became
# of them.

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
    """Offending elements, the farthest from healthy ones first, by value if on one side."""
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
    """A Match with its table of these operands (and incoming gradient), and samples."""
    shown = {**(columns or {}), **more}
    if fault.backward and fault.incoming is not None:
        shown = {name: v for name, v in shown.items() if v is not fault.incoming}
        shown["incoming_gradient"] = fault.incoming
    return Match(title, table(fault, shown, only), explanation, fault.samples)
