"""The finding of an origin: its place and path, and its cause once a rule knows it."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import Any

from nanlab.analysis.origin_names import operator_name, phase_of
from nanlab.analysis.provenance import Origin
from nanlab.rules._rule import Finding, Match, Rule
from nanlab.trace import Trace
from nanlab.trace.recording import PHASES, Recording

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
    shown = (
        origin.position
        if recording.updates_apart and origin.position >= 0
        else origin.sink.step_position
    )
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
    """The fields of a Finding that follow from its row: op, node, module, file, line, source,
    position."""
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
