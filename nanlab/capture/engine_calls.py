"""The calls of a run of the autograd engine that are those of the last step: the engine runs
unobserved, and its calls are noted as they were."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nanlab.capture.forward_calls import ForwardPattern
from nanlab.trace.chunk import (
    CALL,
    DEVICE,
    DTYPE,
    FLAGS,
    INPLACE,
    LINE,
    MODULE,
    NODE,
    OP,
    OUTPUT,
    PASS,
    PHASE,
    SHAPE,
    SITE,
    STAT,
    WIDTH,
)
from nanlab.trace.op import BACKWARD
from nanlab.trace.program import EngineRun, Held, Ref, View
from nanlab.trace.recording import ACCUMULATES

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
_ATTEMPTS = 12  # of learning one run of the engine
_SAME = (OP, PHASE, MODULE, OUTPUT, SHAPE, DTYPE, DEVICE, LINE, SITE, FLAGS)  # from step to step


class _Unlike(Exception):
    """A run of the engine does more than to compute gradients of leaves that have none."""


class _Counts:
    """How much was noted at some moment of a segment."""

    def __init__(self, ops: OpRecorder) -> None:
        program, recording, chunk = ops.program, ops.recording, ops.chunk
        assert program is not None
        segment = program.segment
        self.segment, self.chunk = segment, chunk
        self.calls, self.numbers = len(segment.calls), len(segment.calls.numbers)
        self.position, self.edges = chunk.end, len(chunk.edges)
        self.runs, self.stats = len(recording.node_runs), chunk.stats.n
        self.serials, self.backward_pass = ops.ledger.last, len(recording.passes)
        self.sources = len(recording.sources)
        rare = segment.states, segment.loads, segment.results, segment.function_runs
        self.rare = (*map(len, rare), len(segment.leaves))
        self.engine_runs = len(segment.engine)


class _Prefix:
    """The calls of a segment before the engine runs, as arrays."""

    def __init__(self, at: _Counts) -> None:
        segment, chunk = at.segment, at.chunk
        first = (segment.start - chunk.start) * WIDTH
        self.noted = segment.calls.noted[: 8 * at.calls]
        self.numbers = np.array(segment.calls.numbers[: at.numbers], np.int64)
        self.rows = np.array(chunk.meta[first:], np.int64).reshape(-1, WIDTH)
        self.rows = self.rows[: at.position - segment.start]
        edge = chunk.edges_from(segment.start)
        self.edges = np.array(chunk.edges[edge : at.edges], np.int64).reshape(-1, 3)
        self.start, self.backward_pass = segment.start, at.backward_pass


@dataclass(slots=True)
class _Leaf:
    """A leaf that gets a gradient."""

    tensor: Tensor
    ref: Ref
    view: View  # of its gradient
    slot: int  # of its gradient's storage
    source: int  # row of its gradient, from the first of the run
    rows: int  # that were there when it came


@dataclass(slots=True)
class EnginePattern:
    """A run of the engine, and the calls before it."""

    place: tuple[int, int]
    run: EngineRun
    forward: ForwardPattern | None  # that the calls before it are known by
    prefix: _Prefix
    same: Any  # columns of the prefix that no step changes
    first: Any  # of each number of a storage: index of the first that is the same
    distinct: int  # storages of the prefix
    inner: Any  # of the edges of the prefix: whether they come from its own rows
    nodes: Any  # rows of the prefix that have a node
    noted: list[Any]
    slots: Any  # of the storages: index in the numbers of the prefix, and beyond it
    made: int
    rows: Any
    edges: Any
    outer: dict[int, int]  # source from before the segment -> index of an edge of the prefix
    own_stats: Any  # of each row: index among the statistics that the run makes, else -1
    numels: list[int]
    prefix_stats: list[tuple[int, int]]  # (row, row of the prefix that it shares statistics with)
    outer_stats: list[tuple[int, int]]  # (row, source)
    runs: list[tuple[int, str, int, tuple[int, ...], tuple[int, ...]]]
    graph: Any  # edges between nodes
    graph_nodes: list[int]
    oldest: int
    leaves: list[_Leaf]
    scalars: dict[int, tuple[float, ...]]
    inside: dict[int, tuple[Any, int]]


class EngineCalls:
    """Learns the calls of each run of the engine, of a watch that puts statistics off, and notes
    those that come again.

    They come again where the calls before them are the same, on the same views of memory, and the
    same leaves have no gradient. Were they others for all that, a replay of the step would give
    other gradients than those that were read, and would say so.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops
        self.ran_python = False  # whether code of the program ran inside of the engine
        # leaves whose gradient came, its row, and the end of the rows at that time
        self.arrivals: list[tuple[Tensor, int, int]] = []
        self._patterns: dict[
            int, EnginePattern
        ] = {}  # by how many runs came before it in the segment
        self._attempts: dict[int, int] = {}
        self._begun: _Counts | None = None
        self._prefix: _Prefix | None = None

    def begins(self, run: EngineRun, place: tuple[int, int]) -> EnginePattern | None:
        """The engine is about to run; its last run where its calls will come again."""
        ops, program = self.ops, self.ops.program
        self._begun, self.ran_python = None, False
        self.arrivals.clear()
        assert program is not None
        recording, segment = ops.recording, program.segment
        if (
            not recording.puts_off
            or recording.pending
            or ops.in_backward
            or ops.in_optimizer
            or ops.flying
            or ops.views.odd
            or program.applies
            or program.shared
            or segment.hooks
            or segment.lost is not None
            or segment.calls.is_read
            or not run.accumulates
            or run.create_graph
            or run.inputs
            or ops.chunk.start > segment.start
            or _get_current_dispatch_mode() is not ops
        ):
            return None
        self._begun = _Counts(ops)
        self._prefix = _Prefix(self._begun)
        pattern = self._patterns.get(len(segment.engine))
        if pattern is not None and pattern.place == place and self._comes_again(pattern, run):
            return pattern
        return None

    def _comes_again(self, pattern: EnginePattern, run: EngineRun) -> bool:
        """Whether all before the engine's run is what it was."""
        old, new = pattern.prefix, self._prefix
        assert new is not None
        known = self.ops.forward_calls.current
        if known is not None and known is pattern.forward:
            return self._reaches_the_same(pattern, run)
        if (
            len(old.noted) != len(new.noted)
            or len(old.numbers) != len(new.numbers)
            or old.rows.shape != new.rows.shape
            or old.edges.shape != new.edges.shape
        ):
            return False
        for field in (0, 1, 2, 3, 5, 6):  # func, args, kwargs, out, grad, given
            if old.noted[field::8] != new.noted[field::8]:
                return False
        moved = new.start - old.start
        calls, nodes = new.rows[:, CALL] - old.rows[:, CALL], new.rows[:, NODE]
        passes = new.rows[:, PASS] - old.rows[:, PASS]
        offset = nodes[pattern.nodes] - old.rows[pattern.nodes, NODE]
        sources = new.edges[:, 1] - old.edges[:, 1]
        return bool(
            np.array_equal(new.rows[:, _SAME], pattern.same)
            and (calls == moved).all()
            and (offset == offset[:1]).all()
            and ((nodes >= 0).sum() == len(offset))
            and ((passes == new.backward_pass - old.backward_pass) | (new.rows[:, PASS] < 0)).all()
            and (new.edges[:, 0] - old.edges[:, 0] == moved).all()
            and np.array_equal(new.edges[:, 2], old.edges[:, 2])
            and (sources[pattern.inner] == moved).all()
            and ((new.edges[:, 1] >= new.start) == pattern.inner).all()
            and np.array_equal(new.numbers[pattern.first], new.numbers)
            and len(np.unique(new.numbers)) == pattern.distinct
            and self._reaches_the_same(pattern, run)
        )

    def _reaches_the_same(self, pattern: EnginePattern, run: EngineRun) -> bool:
        """Whether it begins from the same results, and its leaves have no gradient."""
        return self._same_roots(pattern, run) and all(
            leaf.tensor.grad is None for leaf in pattern.leaves
        )

    def _same_roots(self, pattern: EnginePattern, run: EngineRun) -> bool:
        old, new = pattern.prefix.numbers.tolist(), self._prefix_numbers()
        known = dict(zip(old, new, strict=True))
        before = (*pattern.run.roots, *pattern.run.gradients)
        now = (*run.roots, *run.gradients)
        return (
            len(before) == len(now)
            and all(
                a == b
                if a.__class__ is not Ref
                else b.__class__ is Ref and known.get(a.storage) == b.storage and a[1:] == b[1:]
                for a, b in zip(before, now, strict=True)
            )
            and all(known.get(leaf.ref.storage) == leaf.ref.storage for leaf in pattern.leaves)
        )

    def _prefix_numbers(self) -> list[int]:
        assert self._prefix is not None
        return self._prefix.numbers.tolist()  # type: ignore[no-any-return]

    # -- learning

    def ended(self, run: EngineRun) -> None:
        """A run that was observed is over: learn it."""
        begun, prefix = self._begun, self._prefix
        self._begun = self._prefix = None
        if begun is None or prefix is None or self.ops.program is None:
            return
        ordinal = begun.engine_runs
        self._patterns.pop(ordinal, None)
        if self._attempts.get(ordinal, 0) >= _ATTEMPTS:
            return
        self._attempts[ordinal] = self._attempts.get(ordinal, 0) + 1
        with suppress(_Unlike):
            self._patterns[ordinal] = self._learn(run, begun, prefix)

    def _learn(self, run: EngineRun, begun: _Counts, prefix: _Prefix) -> EnginePattern:
        ops, now = self.ops, _Counts(self.ops)
        segment, chunk, recording = now.segment, now.chunk, ops.recording
        rows = np.array(chunk.meta[(begun.position - chunk.start) * WIDTH :], np.int64)
        rows = rows.reshape(-1, WIDTH)
        noted = segment.calls.noted[8 * begun.calls :]
        if (
            segment is not begun.segment
            or chunk is not begun.chunk
            or self.ran_python
            or run.before
            or segment.hooks
            or segment.lost is not None
            or segment.calls.is_read
            or now.sources != begun.sources
            or now.rare != begun.rare
            or now.engine_runs != begun.engine_runs + 1
            or (rows[:, PHASE] != BACKWARD).any()
            or (rows[:, DEVICE] != 0).any()
            or any(noted[6::8])
            or len(prefix.noted) != 8 * begun.calls
            or any(_held(value) for at in (1, 3) for value in (*prefix.noted[at::8], *noted[at::8]))
        ):
            raise _Unlike
        reader = _Reader(prefix, begun.position, ops)
        numbers = segment.calls.numbers[begun.numbers :].tolist()
        slots = [reader.slot(number, begun.serials) for number in numbers]
        edges = np.array(chunk.edges[begun.edges :], np.int64).reshape(-1, 3)
        for source in edges[:, 1].tolist():
            reader.source(source)
        self._check_writes(rows, noted, slots, len(prefix.numbers), begun.position)
        runs = [
            (reader.node(r[0]), r[1], r[3] - begun.position, r[4], r[5])
            for r in recording.node_runs.rows[begun.runs :]
        ]
        for each in runs:
            for source in (*each[3], *each[4]):
                reader.source(source)
        leaves = self._leaves(run, reader, begun, runs)
        made = set(numbers) - set(prefix.numbers.tolist())
        kept = {segment_ref.storage for segment_ref in run.after.values()}
        if any(entry.serial in made - kept for entry in ops.ledger.entries.values()):
            raise _Unlike  # something else remains of it
        backward = recording.passes[begun.backward_pass]
        if not any(n >= 0 for n in backward.nodes):
            raise _Unlike
        own, numels, shared, outer = reader.stats(rows, edges, begun)
        _, first, inverse = np.unique(prefix.numbers, return_index=True, return_inverse=True)
        rows[:, NODE] = [reader.node(n) if n >= 0 else n for n in rows[:, NODE].tolist()]
        end = now.position
        return EnginePattern(
            place=(backward.line, backward.site),
            run=run,
            forward=None if begun.engine_runs else ops.forward_calls.current,
            prefix=prefix,
            same=prefix.rows[:, _SAME].copy(),
            first=first[inverse],
            distinct=len(first),
            inner=prefix.edges[:, 1] >= prefix.start,
            nodes=np.flatnonzero(prefix.rows[:, NODE] >= 0),
            noted=noted,
            slots=np.array(slots, np.int64),
            made=reader.made,
            rows=rows,
            edges=edges,
            outer=reader.outer,
            own_stats=own,
            numels=numels,
            prefix_stats=shared,
            outer_stats=outer,
            runs=runs,
            graph=np.array(
                [(reader.node(a), reader.node(b)) for a, b in backward.edges], np.int64
            ).reshape(-1, 2),
            graph_nodes=[reader.node(n) if n >= 0 else n for n in backward.nodes],
            oldest=min(n for n in backward.nodes if n >= 0),
            leaves=leaves,
            scalars={p: v for p, v in recording.scalars.items() if begun.position <= p < end},
            inside={i: at for i, at in segment.inside.items() if i >= begun.calls},
        )

    def _check_writes(
        self, rows: Any, noted: list[Any], slots: list[int], outer: int, start: int
    ) -> None:
        """What it writes in place, it made itself."""
        for call in set(rows[(rows[:, FLAGS] & INPLACE) != 0, CALL].tolist()):
            index = noted[4::8].index(call)
            first = noted[8 * index + 7] - noted[7]
            if slots[first] < outer or self.ops.plans[id(noted[8 * index])].writes != (0,):
                raise _Unlike

    def _leaves(
        self, run: EngineRun, reader: _Reader, begun: _Counts, runs: list[Any]
    ) -> list[_Leaf]:
        """The leaves that got a gradient, in the order in which they came."""
        ops, found = self.ops, []
        came = [each for each in runs if each[1] == ACCUMULATES]
        arrived = self.arrivals
        if len(came) != len(arrived) or len(run.after) != len(arrived):
            raise _Unlike
        for (leaf, source, end), (ref, gradient) in zip(arrived, run.after.items(), strict=True):
            number = ref.storage if ref.__class__ is Ref else -1
            if (
                gradient.__class__ is not Ref
                or leaf.grad is None
                or leaf.__class__ not in (Tensor, torch.nn.Parameter)
                or source < begun.position
                or number not in reader.numbers
            ):
                raise _Unlike
            slot = reader.slot(gradient.storage, begun.serials)
            view = ops.views.of(leaf.grad, None)
            entry = ops.ledger.entries.get(leaf.grad.untyped_storage()._cdata)
            if (
                view is None
                or slot < len(reader.numbers_in_order)
                or entry is None
                or entry.nbytes != view.nbytes
                or entry.parts
                or entry.odd
                or entry.uninit
                or entry.last != source
            ):
                raise _Unlike
            own = source - begun.position, end - begun.position
            found.append(_Leaf(leaf, ref, view, slot, *own))
        if len({leaf.slot for leaf in found}) != len(found):
            raise _Unlike
        return found

    # -- the run again

    def note(self, pattern: EnginePattern, run: EngineRun, gradient_seen: Any) -> None:
        """The engine has run: write the rows of its calls, and what is known of the gradients."""
        ops, prefix = self.ops, self._prefix
        program, recording, chunk = ops.program, ops.recording, ops.chunk
        assert program is not None and prefix is not None
        self._begun = self._prefix = None
        if not all(self._is_alike(leaf) for leaf in pattern.leaves):
            self._patterns.clear()
            program.lose("a run of the engine gave other gradients than in the step before")
            return
        segment, base = program.segment, chunk.end
        before = pattern.prefix
        shift = base - (before.start + len(before.rows))
        first_made = ops.ledger.number(pattern.made)
        serials = np.concatenate([prefix.numbers, np.arange(first_made, first_made + pattern.made)])
        outer = {old: int(prefix.edges[at, 1]) for old, at in pattern.outer.items()}
        calls, numbers = segment.calls, segment.calls.numbers
        index, first_number = len(calls), len(numbers)
        numbers.frombytes(serials[pattern.slots].tobytes())
        noted = pattern.noted[:]
        noted[4::8] = [position + shift for position in pattern.noted[4::8]]
        moved = first_number - pattern.noted[7] if noted else 0
        noted[7::8] = [first + moved for first in pattern.noted[7::8]]
        calls.noted += noted
        segment.known.update(range(first_made, first_made + pattern.made))
        for i, inside in pattern.inside.items():
            segment.inside[i - len(before.noted) // 8 + index] = inside
        for position, values in pattern.scalars.items():
            recording.scalars[position + shift] = values
        offset = self._offset(pattern, prefix)
        rows = pattern.rows.copy()
        rows[:, CALL] += shift
        rows[:, NODE] += np.where(rows[:, NODE] >= 0, offset, 0)
        rows[:, PASS] = prefix.backward_pass
        rows[:, STAT] = self._stats(pattern, prefix, rows[:, STAT], outer)
        edges = pattern.edges.copy()
        edges[:, 0] += shift
        own = edges[:, 1] >= before.start
        for at in np.flatnonzero(~own).tolist():
            edges[at, 1] = outer[int(edges[at, 1])]
        edges[own, 1] += shift
        chunk.edges.frombytes(edges.tobytes())

        def moved_source(source: int) -> int:
            return source + shift if source >= before.start else outer[source]

        recording.node_runs.late.append(
            lambda: [
                (
                    node + offset if node >= 0 else node,
                    name,
                    prefix.backward_pass,
                    end + base,
                    tuple([moved_source(s) for s in came]),
                    tuple([moved_source(s) for s in went]),
                )
                for node, name, end, came, went in pattern.runs
            ]
        )
        self._write(pattern, run, rows, serials, gradient_seen)

    def _is_alike(self, leaf: _Leaf) -> bool:
        """Whether the gradient of a leaf is new memory, laid out as it was."""
        gradient = leaf.tensor.grad
        return (
            gradient is not None
            and self.ops.views.of(gradient, None) is leaf.view
            and gradient.untyped_storage()._cdata not in self.ops.ledger.entries
        )

    def _write(
        self, pattern: EnginePattern, run: EngineRun, rows: Any, serials: Any, gradient_seen: Any
    ) -> None:
        """Write the rows, and between them what is known of each gradient that came."""
        ops, chunk, written = self.ops, self.ops.chunk, 0
        base = chunk.end
        for leaf in pattern.leaves:
            gradient = leaf.tensor.grad
            assert gradient is not None
            chunk.meta.frombytes(rows[written : leaf.rows].tobytes())
            written = leaf.rows
            storage = gradient.untyped_storage()
            number = int(serials[leaf.slot])
            ops.ledger.promised[storage._cdata] = number
            entry = ops.ledger.enter(storage)
            entry.last, entry.bad, entry.grad = base + leaf.source, -1, True
            run.after[leaf.ref] = leaf.view.of(number)
            gradient_seen(leaf.tensor, entry.last)
        chunk.meta.frombytes(rows[written:].tobytes())

    def _stats(
        self, pattern: EnginePattern, prefix: _Prefix, old: Any, outer: dict[int, int]
    ) -> Any:
        """Numbers of the statistics of each row, with new ones for what the run made."""
        chunk, recording = self.ops.chunk, self.ops.recording
        first = (chunk.number << 32) | chunk.stats.put_off(pattern.numels)
        stats = np.where(pattern.own_stats >= 0, pattern.own_stats + first, old)
        for row, at in pattern.prefix_stats:
            stats[row] = prefix.rows[at, STAT]
        for row, source in pattern.outer_stats:
            stats[row] = recording.stat_of(outer[source])
        return stats

    def graph_of(self, pattern: EnginePattern) -> tuple[list[tuple[int, int]], set[int], int, bool]:
        """Edges of the graph, its nodes, the oldest of them, and that no gradients are there."""
        assert self._prefix is not None
        offset = self._offset(pattern, self._prefix)
        edges = [(a, b) for a, b in (pattern.graph + offset).tolist()]
        nodes = {n + offset if n >= 0 else n for n in pattern.graph_nodes}
        return edges, nodes, pattern.oldest + offset, False

    def _offset(self, pattern: EnginePattern, prefix: _Prefix) -> int:
        """How far the numbers of the nodes have moved on."""
        if not len(pattern.nodes):
            return 0
        at = int(pattern.nodes[0])
        return int(prefix.rows[at, NODE]) - int(pattern.prefix.rows[at, NODE])


class _Reader:
    """Tells what a run of the engine reads by where the calls before it have it."""

    def __init__(self, prefix: _Prefix, start: int, ops: OpRecorder) -> None:
        self._prefix, self._start, self._ops = prefix, start, ops
        self.numbers_in_order: list[int] = prefix.numbers.tolist()
        self.numbers: dict[int, int] = {
            n: at for at, n in reversed(list(enumerate(self.numbers_in_order)))
        }
        self._edges = {s: at for at, s in reversed(list(enumerate(prefix.edges[:, 1].tolist())))}
        self._nodes = set(prefix.rows[prefix.rows[:, NODE] >= 0, NODE].tolist())
        self._made: dict[int, int] = {}
        self.outer: dict[int, int] = {}

    @property
    def made(self) -> int:
        return len(self._made)

    def slot(self, number: int, last: int) -> int:
        """Index of a storage among those of the prefix, then those that the run made."""
        at = self.numbers.get(number)
        if at is not None:
            return at
        if number <= last:
            raise _Unlike
        return len(self.numbers_in_order) + self._made.setdefault(number, len(self._made))

    def source(self, source: int) -> None:
        """Learn where a row or source from before the segment is read."""
        if source < self._prefix.start:
            if source not in self._edges:
                raise _Unlike
            self.outer[source] = self._edges[source]

    def node(self, number: int) -> int:
        if number >= 0 and number not in self._nodes:
            raise _Unlike
        return number

    def stats(
        self, rows: Any, edges: Any, begun: _Counts
    ) -> tuple[Any, list[int], list[tuple[int, int]], list[tuple[int, int]]]:
        """Whose statistics each row has: its own, those of a row of the prefix, or of a source."""
        recording, chunk = self._ops.recording, begun.chunk
        before = {s: at for at, s in enumerate(self._prefix.rows[:, STAT].tolist())}
        reads = {call: source for call, source, slot in reversed(edges.tolist()) if slot == 0}
        fresh: dict[int, int] = {}
        own = np.full(len(rows), -1, np.int64)
        numels: list[int] = []
        shared: list[tuple[int, int]] = []
        outer: list[tuple[int, int]] = []
        for at, row in enumerate(rows.tolist()):
            stat = row[STAT]
            if stat < 0:
                continue
            if stat >> 32 == chunk.number and stat & 0xFFFFFFFF >= begun.stats:
                if stat not in fresh:
                    fresh[stat] = len(fresh)
                    numels.append(prod(recording.shapes.items[row[SHAPE]]))
                own[at] = fresh[stat]
            elif stat in before:
                shared.append((at, before[stat]))
            else:
                source = reads.get(row[CALL], 0)
                if source not in self.outer or recording.stat_of(source) != stat:
                    raise _Unlike
                outer.append((at, source))
        return own, numels, shared, outer


def _held(value: Any) -> bool:
    """Whether an argument or result holds a tensor that is no plain view."""
    if value.__class__ is Held:
        return True
    if value.__class__ is tuple or value.__class__ is list:
        return any(_held(item) for item in value)
    return isinstance(value, (Tensor, torch.Generator))
