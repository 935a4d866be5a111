"""Values that left the graph: results whose numbers were read, and tensors that were made of such numbers."""

from __future__ import annotations

from nanlab.analysis.graph_flow import MOST_ROWS, GraphFlow, place
from nanlab.trace.recording import FORWARD, OPTIMIZER, Op


def dead_ends(flow: GraphFlow, before: int) -> list[int]:
    """Rows since the last update that carry gradient, or were detached from such, and that no operation has read."""
    recording = flow.recording
    chunk = recording.chunk_of(before)
    used = set(chunk.edge_table()[:, 1].tolist())
    ends = []
    for position in range(_since(flow, before), before):
        row = recording.op(position)
        if row is None or position in used or row.phase != FORWARD or flow.is_parameter(position):
            continue
        if row.view and all(flow.is_parameter(p) for p in recording.parents(position)):
            continue
        if _detached_by_program(flow, position, row) or flow.carries(position):
            ends.append(position)
    return ends


def _detached_by_program(flow: GraphFlow, position: int, row: Op) -> bool:
    """Whether a row is a ``detach`` that the program wrote.

    Autograd detaches what it saves, right after the operation that made it.
    """
    recording = flow.recording
    if flow.op(position) != "detach":
        return False
    parents = recording.parents(position)
    written = any(word in place(recording, row.place)[2] for word in ("detach", "numpy", ".data"))
    return any(flow.carries(p) for p in parents) and (written or position - 1 not in parents)


def read_before(flow: GraphFlow, position: int, ends: list[int]) -> tuple[int, int] | None:
    """(row, place) of the last value that was read as a number before and led nowhere else."""
    recording = flow.recording
    start = _since(flow, position)
    for read in reversed(recording.escapes.read_outs):
        if start <= read.position <= position and read.source in ends:
            return read.source, read.line
    return None


def _since(flow: GraphFlow, position: int) -> int:
    """Position after the last update of a parameter before this one."""
    recording = flow.recording
    chunk = recording.chunk_of(position)
    first = max(chunk.start, position - MOST_ROWS)
    for at in range(position - 1, first - 1, -1):
        row = recording.op(at)
        if row is not None and row.phase == OPTIMIZER and row.inplace:
            return at + 1
    return first


def held_by(flow: GraphFlow, number: int, ends: list[int]) -> list[int]:
    """The dead ends whose values a literal holds: as many elements, in the same range."""
    recording = flow.recording
    stats = recording.stats(number)
    if stats is None or stats.min is None:
        return []
    by_size: dict[int, list[int]] = {}
    for end in ends:
        each = recording.stats(end)
        if each is not None and each.min is not None and stats.min <= each.min and each.max <= stats.max:
            by_size.setdefault(each.numel, []).append(end)
    for size, rows in by_size.items():
        if size * len(rows) >= stats.numel and stats.numel % size == 0:
            return rows[-(stats.numel // size) :]
    return []
