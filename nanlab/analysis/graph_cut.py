"""Where a graph was cut: the operation whose operands carried gradient and whose result does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from nanlab.analysis.graph_flow import GraphFlow, place, place_of
from nanlab.analysis.graph_values import dead_ends, held_by, read_before
from nanlab.operators import having
from nanlab.trace.recording import Op

# What cut the graph; of several cuts the one named first here explains most.
Kind = Literal[
    "no-grad", "literal", "number", "detach", "data", "numpy", "index", "cast", "comparison", "frozen", "unknown"
]
_CHOICES = having("ranks")
_COMPARISONS = having("compares")
_ORDER: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where gradient was lost on the way to a result."""

    kind: Kind
    position: int  # row that lost it
    op: str
    module: str
    file: str
    line: int
    source: str
    carrier: int  # row (or parameter, negative) that still carried it; 0 tells nothing if ``known`` is False
    known: bool
    steps: int  # operations between it and the result
    carriers: tuple[int, ...] = ()  # for a literal: the rows whose values it holds


def cuts_before(flow: GraphFlow, root: int) -> list[Cut]:
    """The cuts on the way to the row ``root``, the most telling first, and of two alike the one nearest to it."""
    found: list[Cut] = []
    for position, steps in flow.walk(root, lambda parent, child: not flow.lost_between(parent, child)):
        if _is_literal(flow, position):
            found.append(_literal(flow, position, steps))
        elif position >= 0 and not flow.is_parameter(position):
            lost = next((p for p in flow.parents(position) if flow.lost_between(p, position)), None)
            if lost is not None:
                found.append(_cut(flow, position, lost, steps))
    return sorted(found, key=lambda cut: (not cut.known, _ORDER.index(cut.kind), cut.steps))


def cuts_off_parameters(flow: GraphFlow, cut: Cut) -> bool:
    """Whether what a cut lost had been computed from parameters (of the optimizer, where these are known)."""
    return cut.known and any(flow.comes_from_parameter(p) for p in cut.carriers or (cut.carrier,))


def _cut(flow: GraphFlow, reader: int, carrier: int, steps: int) -> Cut:
    recording = flow.recording
    at = _detached(flow, carrier, reader)
    row = recording.op(at)
    assert row is not None
    op, module = row.name, row.module
    file, line, source = place(recording, row.place)
    kind = _kind(flow, row, carrier, source)
    return Cut(kind, at, op, module, file, line, source, carrier, True, steps)


def _detached(flow: GraphFlow, carrier: int, reader: int) -> int:
    """The row that took ``carrier`` out of the graph before ``reader`` read it; ``reader`` if it did so itself.

    A detached tensor is an alias, so that the edge of its reader does not name the row of ``detach``.
    """
    row = flow.recording.op(reader)
    if row is not None and row.without_grad:
        return reader
    for position in range(reader - 1, max(carrier, flow.recording.chunk_of(reader).start - 1), -1):
        if flow.op(position) == "detach" and carrier in flow.recording.parents(position):
            return position
    return reader


def _kind(flow: GraphFlow, row: Op, carrier: int, source: str) -> Kind:
    op = row.name.rstrip("_")
    if op == "detach":
        return _kind_of_detach(source)
    if row.without_grad:
        return "no-grad"
    if op in _COMPARISONS:
        return "comparison"
    dtype = row.dtype
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if op in _CHOICES and whole:
        return "index"
    if whole:
        return "cast"
    return "frozen" if flow.is_parameter(carrier) else "unknown"


def _kind_of_detach(source: str) -> Kind:
    if ".numpy(" in source or "np." in source:
        return "numpy"
    if ".detach(" in source:
        return "detach"
    if "torch.tensor(" in source or "torch.as_tensor(" in source:
        return "literal"
    return "data" if ".data" in source else "detach"


def _is_literal(flow: GraphFlow, position: int) -> bool:
    source = flow.recording.sources.get(position) if position < 0 else None
    return source is not None and source.kind == "literal" and "float" in source.dtype


def _literal(flow: GraphFlow, number: int, steps: int) -> Cut:
    """A tensor made from Python numbers or an array, where these may be values that carried gradient."""
    recording = flow.recording
    position = recording.sources[number].first
    ends = dead_ends(flow, position)
    held = held_by(flow, number, ends)
    read = read_before(flow, position, held or ends)
    arrays = [end for end in held or ends if flow.op(end) == "detach"]
    row = recording.op(position)
    module = row.module if row is not None else ""
    spot = place_of(recording, position)
    if read is not None:
        return Cut("number", position, "item", module, *place(recording, read[1]), read[0], True, steps)
    if arrays:
        return Cut("numpy", position, "numpy", module, *place_of(recording, arrays[-1]), arrays[-1], True, steps)
    if held:
        return Cut("literal", position, "lift_fresh", module, *spot, held[-1], True, steps, tuple(held))
    return Cut("literal", position, "lift_fresh", module, *spot, 0, False, steps)
