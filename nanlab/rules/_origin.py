"""The finding of an origin, before anything is known of its cause."""

from __future__ import annotations

import linecache
from typing import Any

from nanlab.analysis.provenance import Origin, operator_name, phase_of
from nanlab.rules._rule import Finding
from nanlab.trace import Trace
from nanlab.trace.recording import LINE, MODULE, NODE, OP, PHASE, PHASES, Recording

_SYMPTOMS = {"loss": "loss", "gradient": "grad", "parameter": "param", "state": "state", "output": "output"}


def finding_of(trace: Trace, origin: Origin) -> Finding:
    """What, where and which step; cause "unknown"."""
    recording = trace.recording
    phase = phase_of(recording, origin)
    used = origin.kind == "intended" or (phase in ("data", "init") and origin.kind != "uninitialised")
    position = origin.first_use(recording) if used else origin.position
    row = recording.row(position)
    file, line, real = recording.places[row[LINE]] if row else ("", 0, "")
    stats = recording.stats(origin.sink.position)
    what = "nan" if stats is not None and stats.nan else "inf"
    op = operator_name(recording, position)
    module = recording.modules.items[row[MODULE]] if row else ""
    return Finding(
        cause="unknown",
        severity="error",
        title=f"{op} made a non-finite value",
        explanation="",
        phase=phase,
        op=op,
        node=row[NODE] if row and row[NODE] >= 0 else None,
        module=module,
        step=recording.step_of(origin.sink.step_position),
        file=file,
        line=line,
        source=linecache.getline(real, line).strip() if line else "",
        symptom=f"{_SYMPTOMS[origin.sink.kind]}-{what}",
        path=path_rows(recording, origin),
        position=position,
        harmful=True,
    )


def path_rows(recording: Recording, origin: Origin) -> list[dict[str, Any]]:
    """The rows from the origin to the symptom: position, op, phase, module, file, line, and how many elements were bad."""
    rows: list[dict[str, Any]] = []
    for position in origin.path:
        stats = recording.stats(position)
        nonfinite, numel = (stats.nonfinite, stats.numel) if stats is not None else (0, 0)
        entry: dict[str, Any] = {"position": position, "nonfinite": nonfinite, "numel": numel}
        row = recording.row(position) if position >= 0 else None
        if row is None:
            source = recording.sources.get(position)
            entry |= {"op": source.kind if source else "", "phase": "data", "module": source.name if source else "", "file": "", "line": 0}
        else:
            file, line, _ = recording.places[row[LINE]]
            entry |= {
                "op": recording.ops.items[row[OP]],
                "phase": PHASES[row[PHASE]],
                "module": recording.modules.items[row[MODULE]],
                "file": file,
                "line": line,
            }
        rows.append(entry)
    return rows
