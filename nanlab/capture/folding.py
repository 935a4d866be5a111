"""A long run stays small: the tables of old steps are folded into one summary row each."""

from __future__ import annotations

import numpy as np

from nanlab.capture.evidence import Evidence
from nanlab.capture.ledger import Ledger
from nanlab.trace.recording import BACKWARD, BORN, CALL, MOST_SINKS, NODE, PHASE, STAT, TURNED, Chunk, Recording
from nanlab.trace.training_frames import parameter_numbers, step_numbers

MOST_BIRTHS = 500  # whose surroundings are kept
DEPTH = 4  # operations upstream of a birth that are kept with it
DEPTH_AFTER = 5  # forward operations downstream of it: what hid its value from the loss
MOST_READERS = 16  # that are followed at each depth


def fold(recording: Recording, ledger: Ledger, evidence: Evidence, last: int, final: bool = False) -> None:
    """Fold the training steps up to number ``last``: while the program runs, whole chunks only; ``final``: all of them.

    What leads to a symptom, or to a bad value that is still in memory, stays: a poison may show many steps later.
    """
    if last < 0:
        return
    limit = recording.starts[last + 1]
    ends = [c.start for c in recording.chunks[1:]] + [recording.end]
    if not final:
        limit = max((end for end in ends if end <= limit), default=0)
    chunks = [c for c in recording.chunks if c.positions is None and c.start < limit]
    if not chunks:
        return
    for step in range(len(recording.folded), recording.step_of(limit - 1) + 1):
        recording.folded.append(step_numbers(recording, step))
    parameter_numbers(recording, limit)
    wanted = _ancestry(recording, ledger)
    wanted |= _surroundings(recording, wanted)
    live = {entry.last for entry in ledger.entries.values()}
    _forget(recording, evidence, limit, wanted, live)
    references = _references(recording, [c for c in recording.chunks if c not in chunks], live)
    for chunk in chunks:
        _fold_chunk(chunk, wanted, limit, references.get(chunk.number, set()))


def _ancestry(recording: Recording, ledger: Ledger) -> set[int]:
    """Every bad row that leads to a sink, or to a storage that is still there."""
    if not recording.bad:
        return set()
    waiting = [s.position for s in recording.sinks[:MOST_SINKS]]
    if not any(s.kind in ("parameter", "state") for s in recording.sinks):  # else everything that follows is poisoned
        for entry in ledger.entries.values():
            if entry.bad:
                waiting.extend((entry.last, *entry.parts))
    seen: set[int] = set()
    while waiting:
        position = waiting.pop()
        if position in seen or position not in recording.bad:
            continue
        seen.add(position)
        waiting.extend(recording.parents(position))
    return seen


def _surroundings(recording: Recording, wanted: set[int]) -> set[int]:
    """Around each birth: the operations that made its operands, and the forward operation of its autograd node."""
    births = sorted(p for p in wanted if p >= 0 and recording.status.get(p) in (BORN, TURNED))[:MOST_BIRTHS]
    found: set[int] = set()
    level = set(births)
    for position in births:
        row = recording.row(position)
        info = recording.nodes.get(row[NODE]) if row is not None else None
        if info is not None:
            level.add(info.position)
    after = _readers(recording, level) if level else set()
    for _ in range(DEPTH):
        found |= level
        level = {parent for p in level for parent in recording.parents(p)} - found
    return found | level | after


def _readers(recording: Recording, start: set[int]) -> set[int]:
    """The forward operations that were made from these rows, in the chunks of these rows."""
    found: set[int] = set()
    for chunk in {id(c): c for c in (recording.chunk_of(p) for p in start if p >= 0)}.values():
        edges, level = chunk.edge_table(), [p for p in start if chunk.start <= p < chunk.end]
        for _ in range(DEPTH_AFTER):
            calls = np.unique(edges[np.isin(edges[:, 1], level), 0]).tolist()
            forward = [
                c for c in calls if c not in found and (row := recording.row(c)) is not None and row[PHASE] != BACKWARD
            ]
            found.update(forward)
            level = forward[: MOST_READERS * max(len(start), 1)]
    return found


def _forget(recording: Recording, evidence: Evidence, limit: int, wanted: set[int], live: set[int]) -> None:
    old = [p for p in recording.bad if 0 <= p < limit and p not in wanted]
    recording.bad.difference_update(old)
    for table in (recording.status, recording.kept, recording.shadows, recording.bounds):
        gone = [p for p in table if p < limit and p not in wanted]
        if table is recording.kept:
            evidence.drop(gone)
        else:
            for position in gone:
                del table[position]
    for number, source in list(recording.sources.items()):
        if source.first < limit and number not in wanted and number not in live:
            del recording.sources[number]
            recording.bad.discard(number)
    nodes = {row[NODE] for p in wanted if p >= 0 and (row := recording.row(p)) is not None}
    recording.nodes.keep(lambda number, position: position >= limit or position in wanted or number in nodes)
    recording.node_runs.keep_from(limit)
    for i in range(len(recording.passes) - 1, -1, -1):
        run = recording.passes[i]
        if run.position < limit:
            if not run.edges:
                break
            recording.passes[i] = run.folded()


def _references(recording: Recording, chunks: list[Chunk], live: set[int]) -> dict[int, set[int]]:
    """Statistics that rows outside the folded chunks refer to, by chunk."""
    found: dict[int, set[int]] = {}
    for chunk in chunks:
        stats = chunk.table()[:, STAT]
        for stat in np.unique(stats[stats >> 32 != chunk.number]).tolist():
            found.setdefault(stat >> 32, set()).add(stat & 0xFFFFFFFF)
    updates = [r.update for r in recording.training.parameters if r.update is not None]
    updates += [shadow.stat for shadow in recording.shadows.values()]
    for stat in [s.stat for s in recording.sources.values()] + [recording.stat_of(p) for p in live if p >= 0] + updates:
        if stat >= 0:
            found.setdefault(stat >> 32, set()).add(stat & 0xFFFFFFFF)
    return found


def _fold_chunk(chunk: Chunk, wanted: set[int], limit: int, references: set[int]) -> None:
    table, where = chunk.table(), chunk.where()
    calls = np.unique(table[np.isin(where, list(wanted)), CALL]) if wanted else where[:0]
    mask = np.isin(table[:, CALL], calls) | (where >= limit)
    own = table[mask & (table[:, STAT] >= 0) & (table[:, STAT] >> 32 == chunk.number), STAT] & 0xFFFFFFFF
    stats = np.array(sorted(references | set(own.tolist())), dtype=np.int64)
    chunk.fold(where[mask], stats)
