"""The calls of a training step in a form in which the next step's calls are recognised."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nanlab.capture.ledger import PLAIN, Entry, tracked_by, view_key
from nanlab.capture.places import torch_caller
from nanlab.capture.plans import Plan
from nanlab.capture.program import NUMBERS
from nanlab.trace.chunk import CALL, DEVICE, FLAGS, INPLACE, NODE, PASS, PHASE, SHAPE, STAT, WIDTH
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER
from nanlab.trace.program import EngineRun, Held, Ref, View
from nanlab.trace.recording import ACCUMULATES, Recording

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
_SHAPED = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_row_of = attrgetter("row")


class _Unlike(Exception):
    """A run of the engine does more than give leaves a first gradient."""


@dataclass(slots=True)
class Leaf:
    """A storage that the step reads and did not make."""

    number: int  # in the step in which it was learned
    nbytes: int
    # whether it is the same in every step: a parameter, a buffer, memory that the step writes
    fixed: bool


@dataclass(slots=True)
class Row:
    """A result of a call, or an argument that it wrote."""

    result: int  # index among the results, -1 for the only one; of what was written: -2
    argument: int  # index of what was written
    slot: int
    new: bool  # whether the call made the storage
    alias: bool  # whether it shows a storage that was there
    whole: bool  # whether it shows all of it
    key: Any  # of a part
    numel: int  # -1 where it has no statistics
    grad: bool  # whether it holds what was computed from gradients

    def of(self, args: Any, out: Any) -> Tensor:
        """The tensor that the row describes."""
        if self.result == -2:
            return args[self.argument]  # type: ignore[no-any-return]
        return out if self.result < 0 else out[self.result]  # type: ignore[no-any-return]


@dataclass(slots=True)
class Known:
    """A learned call, with tensors given as slots of their storages."""

    func: Any
    plan: Plan
    row: int  # its first row in the step
    edge: int
    number: int  # its first among the numbers of storages
    phase: int
    stretch: int = -1  # the engine's or optimizer's run that it belongs to
    # whether it is worked out in every step, and compared then
    slow: bool = True
    bad: tuple[bool, ...] = ()  # of what it reads and makes: whether it is bad
    count: int = 0  # of its arguments
    # argument, index in it or -1, slot, shape, strides, offset, dtype, tracked
    operands: list[tuple[Any, ...]] = field(default_factory=list)
    lengths: list[tuple[int, Any, int]] = field(default_factory=list)  # of lists of tensors
    fixed: list[tuple[int, Any, Any]] = field(default_factory=list)  # argument, class, value
    floats: tuple[int, ...] = ()  # arguments that may be others
    kwargs: dict[str, Any] = field(default_factory=dict)
    place: tuple[int, int] = (0, 0)
    module: int = 0
    grad: bool = False
    node: int = -1  # counted from the beginning of the step
    sequence: int = 0  # of the next node
    rows: list[Row] = field(default_factory=list)
    own: list[tuple[int, Row]] = field(default_factory=list)  # those with own statistics
    made: list[tuple[int, int]] = field(default_factory=list)  # index of a result, slot
    saves: list[int] = field(default_factory=list)  # slots of leaves that it writes
    last_use: tuple[int, ...] = ()  # slots that no later call of an optimizer's step reads
    notices: bool = False  # whether it writes a parameter or buffer
    inside: tuple[Any, int] | None = None


@dataclass(slots=True)
class Gradient:
    """A gradient that a run of the engine gives a leaf."""

    leaf: Tensor
    ref: Ref  # of the leaf
    leaf_slot: int
    view: View
    slot: int
    source: int  # its row
    own: int  # the row whose statistics it has
    rows: int  # that were there when it came


@dataclass(slots=True)
class Engine:
    """A learned run of the autograd engine."""

    first: int  # its calls
    end: int
    place: tuple[int, int]
    run: EngineRun
    gradients: list[Gradient]
    # node, name, rows, gradients that came and went; -1 - slot for what the step did not make
    runs: list[tuple[int, str, int, tuple[int, ...], tuple[int, ...]]]
    graph: Any  # edges between nodes
    nodes: list[int]
    oldest: int
    needs: set[int]  # slots that it reads and did not make

    def leads_to(self, run: EngineRun, slots: dict[int, int], numbers: Sequence[int]) -> bool:
        """Whether a run begins from the same results, with leaves that have no gradient.

        slots: by storage number, when learned; numbers: of the slots' storages in this step.
        """

        def is_same(old: Any, new: Any) -> bool:
            if old.__class__ is not Ref:
                return bool(old == new)
            slot = slots.get(old.storage)
            number = -1 if slot is None else numbers[slot]
            return new.__class__ is Ref and number == new.storage and old[1:] == new[1:]

        before, now = (*self.run.roots, *self.run.gradients), (*run.roots, *run.gradients)
        return (
            len(before) == len(now)
            and all(map(is_same, before, now))
            and all(numbers[slot] for slot in self.needs)
            and all(
                g.leaf.grad is None and numbers[g.leaf_slot] == g.ref.storage
                for g in self.gradients
            )
        )

    def graph_from(self, base: int) -> tuple[list[tuple[int, int]], set[int], int, bool]:
        """Edges of the graph, its nodes, the oldest of them, and False for gradients present;
        ``base`` is the number of the step's first node."""
        edges = list(map(tuple, (self.graph + base).tolist()))
        nodes = {n + base if n >= 0 else n for n in self.nodes}
        return edges, nodes, self.oldest + base, False


@dataclass(slots=True)
class Optimizer:
    """A step of an optimizer of torch's."""

    first: int
    end: int
    place: tuple[int, int]
    kept: list[Tensor]  # parameters and state, the same tensors in every step
    gradients: list[View | None]  # of each parameter
    settings: list[dict[str, Any]] | None  # of each group; None where it is always observed
    slots: list[int] = field(default_factory=list)  # of kept, then of the gradients
    # slot, row, whether a parameter is written
    writes: list[tuple[int, int, bool]] = field(default_factory=list)
    # operator, arguments, whether their numbers are noted, row
    calls: list[tuple[Any, tuple[Any, ...], bool, int]] = field(default_factory=list)


@dataclass(slots=True)
class Pattern:
    """The calls of a step."""

    calls: list[Known] = field(default_factory=list)
    stretches: list[Engine | Optimizer] = field(default_factory=list)
    cut: bool = False  # whether the step went on
    slots: dict[int, int] = field(default_factory=dict)  # number of a storage -> slot
    leaves: dict[int, Leaf] = field(default_factory=dict)  # by slot
    made: Any = field(default_factory=list)  # slots; an array once it is learned
    written: set[int] = field(default_factory=set)  # leaves
    noted: list[Any] = field(default_factory=list)
    # of all rows and edges
    rows: Any = None
    edges: Any = None
    has_node: Any = None
    has_pass: Any = None
    inner: Any = None  # of each edge's numbers: whether it is a position in the step
    own: list[int] = field(default_factory=list)  # rows with statistics of their own
    numels: list[int] = field(default_factory=list)  # of these
    # (row, whose statistics it has: a row's, -1 - slot: a leaf's)
    shared: list[tuple[int, int]] = field(default_factory=list)
    outer: Any = None  # edges that come from leaves
    outer_slots: Any = None  # these leaves
    order: list[int] = field(default_factory=list)  # slots, in the order of the views
    numbers: Any = None  # the same as an array
    sources: dict[int, int] = field(default_factory=dict)  # slot of a leaf -> its source
    stats: dict[int, int] = field(default_factory=dict)  # statistics -> row, or -1 - slot

    def end_of(self, at: int) -> tuple[int, int, int]:
        """The ends of a call's rows, edges and storage numbers."""
        if at + 1 < len(self.calls):
            after = self.calls[at + 1]
            return after.row, after.edge, after.number
        return len(self.rows), len(self.edges), len(self.order)

    def add(self, stretch: Engine | Optimizer) -> None:
        """Add a run that is over, and mark its calls as its own."""
        self.stretches.append(stretch)
        for known in self.calls[stretch.first : stretch.end]:
            known.stretch = len(self.stretches) - 1


@dataclass(slots=True)
class Worked:
    """A call that was worked out."""

    call: int
    place: tuple[int, ...]
    args: Any
    out: Any
    numbers: list[int]  # of the storages of its tensors
    entries: list[Any]
    effects: list[tuple[int, bool, bool, bool]]  # of each row: storage, new, alias, whole


class _Counts:
    """The counts of calls, rows and slots when a run of the engine began."""

    def __init__(self, ops: OpRecorder, pattern: Pattern) -> None:
        program, recording = ops.program, ops.recording
        assert program is not None
        segment = self.segment = program.segment
        self.calls, self.slots = len(pattern.calls), len(pattern.slots)
        self.position, self.runs = recording.end, len(recording.node_runs)
        self.backward_pass, self.sources = len(recording.passes), len(recording.sources)
        rare = segment.states, segment.loads, segment.results, segment.function_runs
        self.rare = (*map(len, rare), len(segment.leaves), len(segment.hooks))
        self.engine_runs = len(segment.engine)


class StepLearner:
    """Learns the pattern of a step from its calls, which are worked out."""

    def __init__(self, ops: OpRecorder) -> None:
        assert ops.program is not None
        self.ops, self.pattern = ops, Pattern()
        self._segment, self._chunk, self._start = ops.program.segment, ops.chunk, ops.recording.end
        self._base, self._first_stat = ops.where.sequence, ops.chunk.stats.n
        self._edge = len(ops.chunk.edges) // 3
        self._begun: _Counts | None = None  # of the run of the engine
        # the step of an optimizer that runs, and its tensors
        self.stepping: tuple[Optimizer, list[Tensor]] | None = None

    def learn(self, worked: Worked, frame: Any) -> None:
        """Learn the call that was worked out last."""
        pattern, ops, chunk, recording = self.pattern, self.ops, self._chunk, self.ops.recording
        noted = self._segment.calls.noted[-8:]
        func, packed, named, _, _, grad, _, _ = noted
        plan, call = ops.plans[id(func)], worked.call
        rows = np.array(chunk.meta[(call - chunk.start) * WIDTH :], np.int64).reshape(-1, WIDTH)
        reads = [source for source, _ in recording.operands(call)] if len(rows) else []
        edge = len(chunk.edges) // 3 - self._edge - len(reads)
        phase, node, line, site, module = worked.place
        known = Known(func, plan, call - self._start, edge, len(pattern.order), phase)
        pattern.calls.append(known)
        pattern.noted += noted
        inputs = sum(1 for _ in of_kind((packed, *named.values()), View))
        for at, (number, entry) in enumerate(zip(worked.numbers, worked.entries, strict=True)):
            if number in pattern.slots:
                continue
            slot = pattern.slots[number] = len(pattern.slots)
            if at < inputs:
                pattern.leaves[slot] = Leaf(number, entry.nbytes, entry.owner >= 0)
                if len(reads) == inputs:
                    pattern.sources[slot] = reads[at]
                    stat = recording.stat_of(reads[at])
                    if reads[at] < self._start and stat >= 0:
                        pattern.stats.setdefault(stat, -1 - slot)
            else:
                pattern.made.append(slot)
        slots = [pattern.slots[number] for number in worked.numbers]
        pattern.order += slots
        known.sequence, known.grad, known.module = ops.where.sequence - self._base, grad, module
        known.place, known.node = (line, site), node - self._base if node >= 0 else -1
        before = pattern.calls[-2].sequence if len(pattern.calls) > 1 else 0
        made_node = phase == FORWARD and node >= 0
        if recording.puts_off:
            known.inside = torch_caller(frame)
        known.bad = which_bad(recording, call, reads, len(rows))
        known.slow = not (
            len(rows)
            and phase in (FORWARD, BACKWARD, OPTIMIZER)
            and (phase == BACKWARD) == bool(ops.where.in_backward)
            and (len(reads) == inputs or (not reads and (plan.uninitialised or plan.blind)))
            and (rows[:, PHASE] == phase).all()
            and not rows[:, DEVICE].any()
            and known.sequence - before == made_node
            and (phase == BACKWARD or node == (ops.where.sequence - 1 if node >= 0 else -1))
            and (
                recording.puts_off or not (known.bad or plan.keeps(worked.args, phase == OPTIMIZER))
            )
            and _may_come_again(plan, func)
            and _learn_arguments(known, worked.args, packed, named, slots)
            and self._learn_rows(known, worked, rows)
            and all(
                source >= self._start or pattern.sources.get(slot) == source
                for source, slot in zip(reads, slots, strict=False)
            )
        )
        for at, stat in enumerate(rows[:, STAT].tolist(), known.row):
            if stat >= 0:
                pattern.stats.setdefault(stat, at)

    def _learn_rows(self, known: Known, worked: Worked, rows: Any) -> bool:
        """Learn what a call made and wrote; returns whether the call can be recognised by its
        rows."""
        pattern, plan, args, out = self.pattern, known.plan, worked.args, worked.out
        where: list[tuple[int, int]] = []
        if plan.plain or plan.fresh or not plan.writes:
            if isinstance(out, Tensor):
                where.append((-1, -1))
            elif out.__class__ is tuple or out.__class__ is list:
                where += [(j, -1) for j, t in enumerate(out) if isinstance(t, Tensor)]
        where += [(-2, i) for i in plan.writes if i.__class__ is int]
        where += [(-2, i) for i in plan.hidden if isinstance(args[i], Tensor) and args[5]]
        if len(where) != len(rows) or len(rows) != len(worked.effects):
            return False
        saves: list[int] = []
        for at, ((j, i), (serial, new, alias, whole), stat) in enumerate(
            zip(where, worked.effects, rows[:, STAT].tolist(), strict=True), known.row
        ):
            t = args[i] if j == -2 else out if j < 0 else out[j]
            if serial not in pattern.slots or not isinstance(t, Tensor) or t.is_complex():
                return False
            slot, entry = pattern.slots[serial], worked.entries[worked.numbers.index(serial)]
            if new:
                known.made.append((j, slot))
            elif not alias and entry.grad and known.phase == FORWARD:
                return False  # such as a gradient that is clipped: it is looked at
            elif not alias and slot in pattern.leaves:
                again = known.phase == OPTIMIZER
                again |= slot not in pattern.written and self._is_buffer(entry)
                if plan.overwrites or not again:
                    return False
                known.notices |= entry.owner >= 0 or entry.asked
                saves.append(slot)
            # whose statistics it has: a row's, a leaf's (-1 - slot)
            whose = pattern.stats.get(stat, at if self._is_own(stat) else None)
            if not (alias or whole) or (stat >= 0 and whose is None):
                return False
            numel = t.numel() if stat >= 0 else -1
            told = Row(j, i, slot, new, alias, whole, view_key(t), numel, entry.grad)
            known.rows.append(told)
            if stat >= 0 and whose == at:
                known.own.append((at, told))
        for slot in saves:
            pattern.leaves[slot].fixed |= known.phase != BACKWARD
            if slot not in pattern.written:
                known.saves.append(slot)
        pattern.written.update(saves)
        return True

    def _is_buffer(self, entry: Entry) -> bool:
        """Whether the memory that a call wrote is a buffer's, or no module's."""
        kinds, ops = self.ops.recording.parameter_kinds, self.ops
        if entry.owner < 0:
            return not entry.asked
        return kinds[entry.owner] == "buffer" and bool(ops.where.depth)

    def _is_own(self, stat: int) -> bool:
        """Whether the statistics were made in this step."""
        return stat >> 32 == self._chunk.number and stat & 0xFFFFFFFF >= self._first_stat

    def learned(self, cut: bool) -> Pattern | None:
        """The pattern of the step, or of its first calls; None where there are none."""
        pattern, ops, start, chunk = self.pattern, self.ops, self._start, self._chunk
        if not pattern.calls or ops.program is None or chunk.positions is not None:
            return None
        first, last = (start - chunk.start) * WIDTH, start + pattern.calls[-1].row
        rows = np.array(chunk.meta[first:], np.int64).reshape(-1, WIDTH)
        edges = np.array(chunk.edges[3 * self._edge :], np.int64).reshape(-1, 3)
        rows = rows[: int(np.searchsorted(rows[:, CALL], last, side="right"))]
        edges = edges[edges[:, 0] < start + len(rows)]
        for known in pattern.calls:
            if known.phase == BACKWARD and known.stretch < 0:
                known.slow = True  # hooks look at what it makes
        shapes = ops.recording.shapes.items
        for at, row in enumerate(rows.tolist()):
            whose = pattern.stats.get(row[STAT])
            if whose == at:
                pattern.own.append(at)
                pattern.numels.append(math.prod(shapes[row[SHAPE]]))
            elif whose is not None:
                pattern.shared.append((at, whose))
        rows[:, CALL] -= start
        pattern.has_node, pattern.has_pass = rows[:, NODE] >= 0, rows[:, PASS] >= 0
        rows[pattern.has_node, NODE] -= self._base
        edges[:, 0] -= start
        inner = edges[:, 1] >= start
        pattern.inner = np.stack([np.ones_like(inner), inner, np.zeros_like(inner)], axis=1)
        leaf_of = {source: slot for slot, source in pattern.sources.items()}
        outer = [(at, leaf_of.get(int(edges[at, 1]))) for at in np.flatnonzero(~inner)]
        known_leaves = [(int(at), slot) for at, slot in outer if slot is not None]
        pattern.outer = np.array([at for at, _ in known_leaves], np.int64)
        pattern.outer_slots = np.array([slot for _, slot in known_leaves], np.int64)
        edges[inner, 1] -= start
        pattern.rows, pattern.edges = rows, edges
        pattern.numbers = np.array(pattern.order, np.int64)
        pattern.made = np.array(pattern.made, np.int64)
        pattern.cut = cut
        return pattern

    # -- runs of the engine

    def engine_begins(self, usual: bool) -> None:
        """The engine is about to run; ``usual``: in a way that may come again."""
        self._begun = _Counts(self.ops, self.pattern) if usual else None

    def engine_ended(self, run: EngineRun, arrivals: list[tuple[Tensor, int, int]]) -> None:
        """The engine has run, and only torch's code in it.

        arrivals: leaves whose gradient came, its row, and the end of the rows at that time.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            with suppress(_Unlike):
                self.pattern.add(self._engine(run, begun, arrivals))

    def _engine(
        self, run: EngineRun, begun: _Counts, arrivals: list[tuple[Tensor, int, int]]
    ) -> Engine:
        """The engine run that is over, in the form in which it may repeat."""
        ops, chunk, start, recording = self.ops, self._chunk, self._start, self.ops.recording
        pattern = self.pattern
        now, first = _Counts(ops, pattern), begun.position - chunk.start
        rows = np.array(chunk.meta[first * WIDTH :], np.int64).reshape(-1, WIDTH)
        calls, noted = pattern.calls[begun.calls :], pattern.noted
        if (
            run.before
            or now.sources != begun.sources
            or now.rare != begun.rare
            or now.engine_runs != begun.engine_runs + 1
            or now.segment is not begun.segment
            or any(known.phase != BACKWARD for known in calls)
            or (rows[:, PHASE] != BACKWARD).any()
            or rows[:, DEVICE].any()
            or any(noted[6::8])
            or any(_is_held(value) for at in (1, 3) for value in noted[at::8])
            or any(slot >= begun.slots for slot in pattern.leaves)
        ):
            raise _Unlike
        leaf_of = {source: slot for slot, source in pattern.sources.items()}

        def relative(source: int) -> int:
            if source < start and source not in leaf_of:
                raise _Unlike
            return source - start if source >= start else -1 - leaf_of[source]

        def node_of(number: int) -> int:
            if 0 <= number < self._base:
                raise _Unlike
            return number - self._base if number >= 0 else number

        edge = chunk.edges_from(begun.position)
        for source in chunk.edges[edge + 1 :: 3]:
            relative(source)
        for at, row in enumerate(rows.tolist(), begun.position - start):
            own = pattern.stats.get(row[STAT]) != at or self._is_own(row[STAT])
            known = calls[bisect_left(calls, row[CALL] - start, key=_row_of)]
            written = pattern.order[known.number]
            made_here = written >= begun.slots and known.plan.writes == (0,)
            if not own or (row[FLAGS] & INPLACE and not made_here):
                raise _Unlike  # it writes what it has not made
        runs = [
            (
                *(node_of(node), name, end - start),
                *(tuple([relative(s) for s in came]), tuple([relative(s) for s in went])),
            )
            for node, name, _, end, came, went in recording.node_runs.rows[begun.runs :]
        ]
        backward = recording.passes[begun.backward_pass]
        nodes = [node_of(n) for n in backward.nodes]
        gradients = self._gradients(run, begun, arrivals)
        made = {n for n, slot in pattern.slots.items() if slot >= begun.slots}
        made -= {gradient.storage for gradient in run.after.values()}
        if (
            len([each for each in runs if each[1] == ACCUMULATES]) != len(gradients)
            # something else remains of it
            or any(entry.serial in made for entry in ops.ledger.entries.values())
            or not any(n >= 0 for n in nodes)
        ):
            raise _Unlike
        number = calls[0].number if calls else len(pattern.order)
        graph = [(node_of(a), node_of(b)) for a, b in backward.edges]
        return Engine(
            first=begun.calls,
            end=len(pattern.calls),
            place=(backward.line, backward.site),
            run=run,
            gradients=gradients,
            runs=runs,
            graph=np.array(graph, np.int64).reshape(-1, 2),
            nodes=nodes,
            oldest=min(n for n in nodes if n >= 0),
            needs={slot for slot in pattern.order[number:] if slot < begun.slots},
        )

    def _gradients(
        self, run: EngineRun, begun: _Counts, arrivals: list[tuple[Tensor, int, int]]
    ) -> list[Gradient]:
        """The gradients that leaves got, in the order in which they came."""
        pattern, ops, start, found = self.pattern, self.ops, self._start, []
        if len(run.after) != len(arrivals):
            raise _Unlike
        for (leaf, source, end), (told, gradient) in zip(arrivals, run.after.items(), strict=True):
            slot = pattern.slots.get(getattr(gradient, "storage", -1), -1)
            leaf_slot = pattern.slots.get(getattr(told, "storage", -1), -1)
            given = leaf.grad
            if given is None or leaf.__class__ not in PLAIN or leaf_slot < 0:
                raise _Unlike
            view = ops.views.of(given, None)
            entry = ops.ledger.entries.get(given.untyped_storage()._cdata)
            own = pattern.stats.get(ops.recording.stat_of(source), -1)
            if (
                view is None
                or slot < begun.slots
                or source < begun.position
                or entry is None
                or entry.nbytes != view.nbytes
                or entry.parts
                or entry.odd
                or entry.uninit
                or entry.last != source
                or own < begun.position - start
            ):
                raise _Unlike
            found.append(
                Gradient(leaf, told, leaf_slot, view, slot, source - start, own, end - start)
            )
        if len({each.slot for each in found}) != len(found):
            raise _Unlike
        return found

    # -- steps of an optimizer

    def optimizer_ended(self) -> None:
        """The step of an optimizer is over: learn it."""
        if self.stepping is None:
            return
        (made, tensors), self.stepping = self.stepping, None
        pattern, entries, slots = self.pattern, self.ops.ledger.entries, made.slots
        calls = pattern.calls[made.first :]
        for t in tensors:
            entry = entries.get(t.untyped_storage()._cdata)
            slot = -1 if entry is None else pattern.slots.get(entry.serial, -1)
            if entry is None or slot < 0 or entry.nbytes != t.numel() * t.itemsize:
                return
            slots.append(slot)
        if not calls or len(set(slots)) != len(slots) or any(k.phase != OPTIMIZER for k in calls):
            return
        later, end = set(slots), len(pattern.order)
        for known in reversed(calls):
            used = set(pattern.order[known.number : end])
            known.last_use = tuple(used - later)
            later, end = later | used, known.number
        made.writes = [
            (row.slot, known.row + at, known.notices)
            for known in calls
            for at, row in enumerate(known.rows)
            if row.slot in pattern.leaves and not row.alias
        ]
        simple = not any(known.slow or known.plan.draws for known in calls)
        simple &= {slot for slot, _, _ in made.writes} <= set(slots[: len(made.kept)])
        simple &= later & pattern.leaves.keys() <= set(slots)
        made.settings = made.settings if simple else None
        arguments = pattern.noted[8 * made.first + 1 :: 8]
        made.calls = [
            (known.func, args, known.plan.scalars, known.row)
            for known, args in zip(calls, arguments, strict=True)
        ]
        made.end = len(pattern.calls)
        pattern.add(made)


def which_bad(recording: Recording, call: int, reads: list[int], rows: int) -> tuple[bool, ...]:
    """Whether each operand and result of a call is bad; () where none is."""
    bad = recording.bad
    told = tuple([at in bad for at in (*reads, *range(call, call + rows))]) if bad else ()
    return told if any(told) else ()


def _learn_arguments(known: Known, args: Any, packed: Any, named: Any, slots: list[int]) -> bool:
    """Learn what to compare of the arguments; returns whether that is all."""
    known.count, known.kwargs = len(args), named
    following, floats = iter(slots), []
    for i, (value, kept) in enumerate(zip(args, packed, strict=True)):
        if kept.__class__ is View:
            known.operands.append((i, -1, next(following), *_shown(value)))
        elif kept.__class__ is list and kept and all(v.__class__ is View for v in kept):
            known.lengths.append((i, list, len(kept)))
            for j, each in enumerate(value):
                known.operands.append((i, j, next(following), *_shown(each)))
        elif kept.__class__ is float and known.plan.pointwise and kept:
            floats.append(i)
        elif kept.__class__ in NUMBERS or _is_of_numbers(kept):
            known.fixed.append((i, kept.__class__, kept))
        else:
            return False
    known.floats = tuple(floats)
    numbers = [v for v in (*args, *named.values()) if v.__class__ is float]
    return all(v - v == 0.0 for v in numbers) and all(
        value.__class__ in NUMBERS for value in named.values()
    )


def _may_come_again(plan: Plan, func: Any) -> bool:
    """Whether a call's effects follow from its arguments, and its rows show them."""
    return not (
        (plan.rare and not (plan.copies or plan.uninitialised or plan.blind))
        or plan.fills
        or plan.special
        or plan.lifts
        or plan.pads
        or plan.namespace != "aten"
        or not _SHAPED.isdisjoint(func.tags)
        or any(where.__class__ is not int for where in plan.writes)
    )


def _shown(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.storage_offset(), t.dtype, tracked_by(t)


def _is_of_numbers(value: Any) -> bool:
    return value.__class__ is list and all(
        v.__class__ in NUMBERS and (v.__class__ is not float or v - v == 0.0) for v in value
    )


def is_alike(old: Any, new: Any) -> bool:
    """Whether arguments are equal; floats may differ."""
    if old is new or old.__class__ is not new.__class__:
        return old is new
    if old.__class__ is tuple or old.__class__ is list:
        return len(old) == len(new) and all(map(is_alike, old, new))
    if old.__class__ is dict:
        return old.keys() == new.keys() and all(is_alike(old[k], new[k]) for k in old)
    return old.__class__ is float or bool(old == new)


def _is_held(value: Any) -> bool:
    """Whether an argument or result holds a tensor that is no plain view."""
    return next(of_kind(value, (Held, Tensor, torch.Generator)), None) is not None


def of_kind(value: Any, kind: Any) -> Iterator[Any]:
    """The values of a kind among arguments or results, in order."""
    if isinstance(value, kind):
        yield value
    elif value.__class__ is tuple or value.__class__ is list:
        for item in value:
            yield from of_kind(item, kind)
