"""A long run stays small: the tables of old steps are folded into one summary row each."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from nanlab.capture.evidence import Evidence
from nanlab.capture.ledger import Ledger
from nanlab.trace.chunk import Chunk
from nanlab.trace.frames import parameter_numbers, step_numbers
from nanlab.trace.op import BORN, TURNED, walk
from nanlab.trace.recording import MOST_SINKS, Recording

Array = npt.NDArray[Any]
MOST_ROWS = 1_000_000  # rows of folded steps in ``trace.parameters``: some 100 MB
NEAR = 64  # steps before and after the first symptom that keep all their rows
THINNED = (
    "trace.parameters leaves out every second of its older steps, or more of them, for there are"
    " too many rows; the first steps, the latest, and those around the first symptom are all there"
)


def shrink(recording: Recording) -> None:
    """Pack the newest block of rows, and thin the older ones out where there are too many."""
    blocks = recording.folded_parameters
    if not blocks:
        return
    blocks[-1] = packed(blocks[-1])
    if sum(len(block["position"]) for block in blocks) > MOST_ROWS:
        _thin(recording)


def packed(block: dict[str, Array]) -> dict[str, Array]:
    """The columns in a third of the memory: one number for a column of equal values, one array for
    equal columns. Numbers of statistics, which are gone, are left out."""
    kept: dict[str, Array] = {}
    for name, column in block.items():
        if name.endswith("_stat"):
            continue
        like = (
            kept.get(f"gradient_{name.removeprefix('used_')}") if name.startswith("used_") else None
        )
        if name.endswith("_numel"):
            like = next((kept[other] for other in kept if other.endswith("_numel")), None)
        if len(column) and (_bits(column) == _bits(column[:1])).all():
            kept[name] = np.broadcast_to(column[:1].copy(), column.shape)
        elif like is not None and np.array_equal(_bits(column), _bits(like)):
            kept[name] = like
        else:
            kept[name] = column.copy()  # it may be a view of all the numbers of these rows
    return kept


def _bits(column: Array) -> Array:
    """Floats as integers, for a NaN equals no other."""
    return np.ascontiguousarray(column).view(np.int64) if column.dtype == np.float64 else column


def _thin(recording: Recording) -> None:
    """Drop every second step of the older half; keep the first block and the first symptom's."""
    blocks = recording.folded_parameters
    if THINNED not in recording.notes:
        recording.notes.append(THINNED)
    ends = np.cumsum([len(block["position"]) for block in blocks])
    older = max(int(np.searchsorted(ends, ends[-1] // 2)), 1)
    steps = [
        np.searchsorted(recording.starts, block["position"], side="right") - 1
        for block in blocks[:older]
    ]
    kept = np.unique(np.concatenate(steps))[::2]
    if recording.sinks:
        first = recording.step_of(recording.sinks[0].step_position)
        kept = np.append(kept, np.arange(first - NEAR, first + NEAR + 1))
    for i in range(1, older):
        rows = np.isin(steps[i], kept)
        blocks[i] = packed({name: column[rows] for name, column in blocks[i].items()})
    blocks[1:] = [block for block in blocks[1:] if len(block["position"])]


WHOLE_ROWS = 32768  # of the steps in which the first faults began, that are kept whole: some 10 MB
MOST_BIRTHS = 200  # whose surroundings are kept, in whichever step they are
# operations upstream of a birth that are kept with it: a rule walks 8, and looks at what these read
DEPTH = 12
DEPTH_AFTER = 5  # forward operations downstream of it: what hid its value from the loss
MOST_READERS = 16  # that are followed at each depth


def fold(
    recording: Recording, ledger: Ledger, evidence: Evidence, last: int, final: bool = False
) -> None:
    """Fold the training steps up to number ``last``: whole chunks only, or all if ``final``.

    Rows on the way to a symptom, or to a bad value still in memory, stay: a bad value may show many
    steps later. So do the steps in which the first bad values were born: a fault is judged by the
    rows around it.
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
    shrink(recording)
    led = _ancestry(recording, ledger)
    near = led | _surroundings(recording, led)
    recording.whole = _whole_steps(recording, led)
    wanted, nodes = _with_operands(recording, near | _rows_of(recording, recording.whole))
    live = {entry.last for entry in ledger.entries.values()}
    # a call is kept by its first result
    calls = {row.call for p in near if (row := recording.op(p)) is not None}
    evidence.drop([p for p in recording.guilty if p < limit and p not in calls])
    _forget(recording, limit, wanted, live)
    _forget_sinks(recording, chunks[0].start, limit)
    _forget_nodes(recording, limit, wanted, nodes)
    folded = [c for c in recording.chunks if c.positions is not None and len(c.stats)]
    left = {id(c) for c in chunks}
    references = _references(
        recording, [c for c in recording.chunks if len(c.meta) and id(c) not in left], live
    )
    for chunk in chunks:
        _fold_chunk(chunk, wanted, limit, references.get(chunk.number, set()))
    _release(folded, chunks, references)


def _ancestry(recording: Recording, ledger: Ledger) -> set[int]:
    """Every bad row on the way to a sink, or to a storage that still lives."""
    if not recording.bad:
        return set()
    waiting = [s.position for s in recording.sinks[:MOST_SINKS]]
    # else everything that follows is poisoned
    if not any(s.kind in ("parameter", "state") for s in recording.sinks):
        for entry in ledger.entries.values():
            if entry.bad:
                waiting.extend((entry.last, *entry.parts))
    return _ancestors(recording, waiting)


def _ancestors(recording: Recording, waiting: list[int]) -> set[int]:
    """The bad ones of these rows, and every bad row that they came from."""
    bad = recording.bad
    return set(
        walk(
            (p for p in waiting if p in bad),
            lambda at: (p for p in recording.parents(at) if p in bad),
        )
    )


def _births(recording: Recording, wanted: set[int]) -> list[int]:
    return sorted(p for p in wanted if p >= 0 and recording.status.get(p) in (BORN, TURNED))


def _whole_steps(recording: Recording, wanted: set[int]) -> set[int]:
    """The steps in which the first bad values behind a symptom were born or read, or a quotient hid
    a bad value for the first time."""
    led = _ancestors(recording, [s.position for s in recording.sinks[:MOST_SINKS]])
    read = [recording.sources[p].first for p in led if p in recording.sources]
    hidden = [f.first for f in recording.training.flushes.values() if f.cost == "part"]
    bounds, found, rows = [*recording.starts, recording.end], set[int](), 0
    for step in dict.fromkeys(
        recording.step_of(p) for p in sorted([*_births(recording, wanted), *read, *hidden])
    ):
        rows += bounds[step + 1] - bounds[step]
        if rows > WHOLE_ROWS:
            break
        found.add(step)
    before = min(found, default=0) - 1  # which went well: no fix may change it
    if before >= 0 and rows + bounds[before + 1] - bounds[before] <= WHOLE_ROWS:
        found.add(before)
    return found


def _rows_of(recording: Recording, steps: set[int]) -> set[int]:
    bounds = [*recording.starts, recording.end]
    return {position for step in steps for position in range(bounds[step], bounds[step + 1])}


def _surroundings(recording: Recording, wanted: set[int]) -> set[int]:
    """The rows around each birth: makers of its operands, its node's forward operation, readers."""
    around = set(_births(recording, wanted)[:MOST_BIRTHS])
    nodes = [recording.nodes.get(recording.at(position).node) for position in around]
    around |= {info.position for info in nodes if info is not None}
    after = _readers(recording, around) if around else set()
    return {*walk(around, recording.parents, depth=DEPTH), *after}


def _with_operands(recording: Recording, rows: set[int]) -> tuple[set[int], set[int]]:
    """(these rows with all their operands, bad or good; their autograd nodes)."""
    wanted, nodes, at = set(rows), set[int](), np.array(sorted(rows), dtype=np.int64)
    for chunk in recording.chunks:
        low, high = np.searchsorted(at, (chunk.start, chunk.end))
        if low < high:
            table, edges = chunk.columns()[np.isin(chunk.where(), at[low:high])], chunk.edge_table()
            wanted.update(edges[np.isin(edges[:, 0], table.call), 1].tolist())
            nodes.update(table.node[table.node >= 0].tolist())
    return wanted, nodes


def _readers(recording: Recording, start: set[int]) -> set[int]:
    """The forward operations that were made from these rows, in the chunks of these rows."""
    found: set[int] = set()
    for chunk in {id(c): c for c in (recording.chunk_of(p) for p in start if p >= 0)}.values():
        edges, level = chunk.edge_table(), [p for p in start if chunk.start <= p < chunk.end]
        for _ in range(DEPTH_AFTER):
            calls = np.unique(edges[np.isin(edges[:, 1], level), 0]).tolist()
            forward = [
                c
                for c in calls
                if c not in found and (row := recording.op(c)) is not None and not row.backward
            ]
            found.update(forward)
            level = forward[: MOST_READERS * max(len(start), 1)]
    return found


def _forget(recording: Recording, limit: int, wanted: set[int], live: set[int]) -> None:
    harmed = min((s.step_position for s in recording.sinks), default=limit)
    for position, status in recording.status.items():
        if status == BORN and position < min(harmed, limit) and position not in wanted:
            row = recording.at(position)
            if not row.backward and not row.stats.nan:
                recording.usual.add((row.place, row.name))
    old = [p for p in recording.bad if 0 <= p < limit and p not in wanted]
    recording.bad.difference_update(old)
    for table in (recording.status, recording.scalars):
        for position in [p for p in table if p < limit and p not in wanted]:
            del table[position]
    for number, source in list(recording.sources.items()):
        if source.first < limit and number not in wanted and number not in live:
            del recording.sources[number]
            recording.bad.discard(number)


def _forget_sinks(recording: Recording, first: int, limit: int) -> None:
    """Drop symptoms between two positions that are not looked into, but the first of each kind in
    each step. A poisoned run has dozens in each."""
    sinks, seen, kept = recording.sinks, set[tuple[str, int]](), []
    low = max(bisect_left(sinks, first, key=attrgetter("step_position")), MOST_SINKS)
    for sink in sinks[low:]:
        key = sink.kind, recording.step_of(sink.step_position)
        if sink.step_position >= limit or key not in seen:
            kept.append(sink)
            seen.add(key)
    sinks[low:] = kept


def _forget_nodes(recording: Recording, limit: int, wanted: set[int], nodes: set[int]) -> None:
    """Forget nodes without a wanted row, and graphs before ``limit``; whole steps keep theirs."""
    whole = _passes_of(recording, recording.whole)
    recording.nodes.keep(
        lambda number, position: position >= limit or position in wanted or number in nodes
    )
    runs = recording.node_runs
    runs.rows = [run for run in runs.rows if run[3] >= limit or run[0] in nodes or run[2] in whole]
    for i in range(len(recording.passes) - 1, -1, -1):
        run = recording.passes[i]
        if run.position < limit and i not in whole:
            if not run.edges:
                break
            recording.passes[i] = run.folded()


def _passes_of(recording: Recording, steps: set[int]) -> set[int]:
    """Numbers of the backward passes in these steps."""
    bounds, place = [*recording.starts, recording.end], attrgetter("position")
    found: set[int] = set()
    for step in steps:
        low, high = (bisect_left(recording.passes, bounds[step + i], key=place) for i in (0, 1))
        found.update(range(low, high))
    return found


def _references(recording: Recording, chunks: list[Chunk], live: set[int]) -> dict[int, set[int]]:
    """By chunk, the statistics to which rows outside of the folded chunks refer."""
    found: dict[int, set[int]] = {}
    for chunk in chunks:
        stats = chunk.columns().stat
        for stat in np.unique(stats[stats >> 32 != chunk.number]).tolist():
            found.setdefault(stat >> 32, set()).add(stat & 0xFFFFFFFF)
    updates = [r.update for r in recording.training.parameters if r.update is not None]
    for stat in (
        [s.stat for s in recording.sources.values()]
        + [recording.stat_of(p) for p in live if p >= 0]
        + updates
    ):
        if stat >= 0:
            found.setdefault(stat >> 32, set()).add(stat & 0xFFFFFFFF)
    return found


def _release(folded: list[Chunk], chunks: list[Chunk], references: dict[int, set[int]]) -> None:
    """Drop rows of older chunks that only rows just folded had needed."""
    for chunk in chunks:
        for stat in np.unique(chunk.columns().stat).tolist():
            references.setdefault(stat >> 32, set()).add(stat & 0xFFFFFFFF)
    for chunk in folded:
        own = chunk.columns().stat
        own = own[own >> 32 == chunk.number] & 0xFFFFFFFF
        chunk.release(
            np.array(
                sorted(references.get(chunk.number, set()) | set(own.tolist())), dtype=np.int64
            )
        )


def _fold_chunk(chunk: Chunk, wanted: set[int], limit: int, references: set[int]) -> None:
    table, where = chunk.columns(), chunk.where()
    calls = np.unique(table.call[np.isin(where, list(wanted))]) if wanted else where[:0]
    mask = np.isin(table.call, calls) | (where >= limit)
    own = table.stat[mask & (table.stat >= 0) & (table.stat >> 32 == chunk.number)] & 0xFFFFFFFF
    stats = np.array(sorted(references | set(own.tolist())), dtype=np.int64)
    chunk.fold(where[mask], stats)
