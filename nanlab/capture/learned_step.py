"""A step that repeats the calls of the last one: they are compared and noted, not worked out."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable
from operator import is_ as _is
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode  # as in torch 2.6 to 2.13

from nanlab.capture.learned_optimizer import Numbers, settings_of, tensors_of
from nanlab.capture.ledger import PLAIN, Entry, tracked_by
from nanlab.capture.plans import LEAF, Call
from nanlab.capture.step_pattern import (
    Engine,
    Known,
    Optimizer,
    Pattern,
    StepLearner,
    Worked,
    is_alike,
    of_kind,
    which_bad,
)
from nanlab.trace.chunk import CALL, NODE, PASS, STAT, WIDTH
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER
from nanlab.trace.program import EngineRun

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
_ATTEMPTS = 12  # of learning a program's steps
_MOST_CALLS = 5_000  # of a step that is learned
_enabled = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr
_node = torch._C._current_autograd_node


def _gone() -> Any:
    """Replaces the reference to a storage that is not known."""


class _Slots:
    """The storages, in the running step, behind the slots of a pattern."""

    def __init__(self, ops: OpRecorder, pattern: Pattern) -> None:
        assert ops.program is not None
        self._ops, self._program, self._leaves = ops, ops.program, pattern.leaves
        count, first = len(pattern.slots), ops.ledger.number(len(pattern.made))
        numbers = np.zeros(count, np.int64)
        numbers[pattern.made] = np.arange(first, first + len(pattern.made))
        self.numbers = array("q", numbers.tobytes())  # of the storages; 0: of a leaf not yet read
        self.refs: list[Callable[[], Any]] = [_gone] * count  # to the storages
        self.sources = array("q", bytes(8 * count))  # of the leaves
        self.tensors: list[Tensor | None] = [None] * count  # seen in the step of an optimizer
        self.taken = set[int]()  # numbers of the leaves

    def meet(self, slot: int, value: Tensor, storage: Any) -> bool:
        """Whether a leaf that this step reads for the first time may take the place of the last
        step's leaf in a slot."""
        ops, segment = self._ops, self._program.segment
        leaf, entry = self._leaves[slot], ops.ledger.entries.get(storage._cdata)
        if entry is None:
            ops.source(value)  # which may enter it as a result, first
            entry = ops.ledger.entries.get(storage._cdata)
        if (
            entry is None
            or entry.serial in self.taken
            or (entry.serial in segment.known and entry.serial not in segment.leaves)
            or entry.nbytes != leaf.nbytes
            or (leaf.fixed and entry.serial != leaf.number)
            or ((entry.views or entry.bad) and leaf.nbytes != value.numel() * value.itemsize)
            or entry.parts
            or entry.odd
            or entry.uninit
            or (entry.last in ops.recording.bad and not ops.recording.puts_off)
        ):
            return False
        self.take(slot, entry, entry.last)
        if entry.serial not in segment.known:
            self._program.met(entry.serial, storage)
        return True

    def take(self, slot: int, entry: Entry, source: int) -> None:
        """Put a leaf into a slot, with the row that describes its contents."""
        self.numbers[slot], self.sources[slot] = entry.serial, source
        self.refs[slot] = entry.alive
        self.taken.add(entry.serial)

    def hold(self, slots: list[int], tensors: list[Tensor]) -> bool:
        """Whether each of these tensors is the one in its slot, and its storage was last written
        whole."""
        entries, recording = self._ops.ledger.entries, self._ops.recording
        for slot, t in zip(slots, tensors, strict=True):
            storage = t.untyped_storage()
            entry = entries.get(storage._cdata)
            if entry is None or entry.parts:
                return False
            if entry.last in recording.bad and not recording.puts_off:
                return False
            if not self.numbers[slot]:
                if not self.meet(slot, t, storage):
                    return False
            elif storage is not self.refs[slot]():
                return False
            self.tensors[slot] = t
        return True

    def entry(self, slot: int) -> Entry | None:
        """The ledger's entry of a slot's storage; None where the storage is gone."""
        storage, ledger = self.refs[slot](), self._ops.ledger
        if storage is None:
            return None
        entry = ledger.entries.get(storage._cdata)
        if entry is None:
            ledger.promised[storage._cdata] = self.numbers[slot]
            entry = ledger.enter(storage)
        return entry


class _ComingRows:
    """Rows of repeated calls, written only when somebody reads them."""

    def __init__(self, ops: OpRecorder, pattern: Pattern, slots: _Slots) -> None:
        assert ops.program is not None
        self._ops, self._pattern, self._slots = ops, pattern, slots
        self._segment, self._chunk, self._start = ops.program.segment, ops.chunk, ops.recording.end
        self._base, self._reads = ops.where.sequence, not ops.recording.puts_off
        self.written = self.row = 0  # calls and rows that are written
        # of calls: arguments that are other numbers
        self.others: dict[int, tuple[Any, Any]] = {}
        # calls that wrote parameters or buffers, and these
        self.owned: list[tuple[int, list[Tensor]]] = []
        self.stats = [-1] * len(pattern.rows)
        # of the whole step, but for what is known only when a call comes
        self._rows = pattern.rows.copy()
        self._edges = pattern.edges + pattern.inner * self._start
        self._rows[:, CALL] += self._start
        self._rows[:, NODE] += pattern.has_node * self._base

    def flush(self, end: int) -> None:
        """Write the rows of calls up to ``end``, and enter the memory that these wrote."""
        if self.written == end:
            return
        self._enter(self.write(end))
        owned, self.owned = self.owned, []
        for at, targets in owned:
            row = self._start + self._pattern.calls[at].row
            self._ops.notice_owners(targets, row, {}, inside=True)

    def write(self, end: int, told: bool = True) -> list[Known]:
        """Write rows, edges and calls up to ``end``; returns the calls. told: with their
        numbers."""
        pattern, first = self._pattern, self.written
        row, edge, number = pattern.end_of(end - 1)
        self.written, self.row = end, row
        ops, chunk, calls, start = self._ops, self._chunk, self._segment.calls, self._start
        known = pattern.calls[first:end]
        low, index = known[0], len(calls)
        serials = np.frombuffer(self._slots.numbers, np.int64)
        moved = len(calls.numbers) - low.number
        calls.numbers.frombytes(serials[pattern.numbers[low.number : number]].tobytes())
        noted = pattern.noted[8 * first : 8 * end]
        noted[4::8] = [start + each.row for each in known]
        noted[7::8] = [moved + each.number for each in known]
        others, self.others = self.others, {}
        for at, (args, kwargs) in others.items():
            noted[8 * (at - first) + 1 : 8 * (at - first) + 3] = args, kwargs
        for at, each in enumerate(known):
            if told and each.plan.scalars:
                ops.note_scalars(start + each.row, noted[8 * at + 1])
            if each.inside is not None and not self._reads:
                self._segment.inside[index + at] = each.inside
        calls.noted += noted
        sources = np.frombuffer(self._slots.sources, np.int64)
        self._edges[pattern.outer, 1] = sources[pattern.outer_slots]
        chunk.edges.frombytes(self._edges[low.edge : edge].tobytes())
        rows = self._rows[low.row : row]
        rows[pattern.has_pass[low.row : row], PASS] = ops.where.backward_pass
        self._number_stats(low.row, row)
        rows[:, STAT] = self.stats[low.row : row]
        chunk.meta.frombytes(rows.tobytes())
        return known

    def _number_stats(self, first: int, end: int) -> None:
        """The numbers of the statistics of the rows from one to another."""
        pattern, chunk, stats = self._pattern, self._chunk, self.stats
        recording, sources = self._ops.recording, self._slots.sources
        if not self._reads:
            low, high = (bisect_left(pattern.own, at) for at in (first, end))
            late = [at for at in range(low, high) if stats[pattern.own[at]] < 0]
            if late:
                new = (chunk.number << 32) | chunk.stats.put_off([pattern.numels[i] for i in late])
                for number, at in enumerate(late, new):
                    stats[pattern.own[at]] = number
        for at, row in pattern.shared[bisect_left(pattern.shared, (first, -(1 << 62))) :]:
            if at >= end:
                break
            stats[at] = stats[row] if row >= 0 else recording.stat_of(sources[-1 - row])

    def _enter(self, known: list[Known]) -> None:
        """Enter in the ledger which rows describe the memory that calls wrote."""
        slots, start, segment = self._slots, self._start, self._segment
        bad, nodes = self._ops.recording.bad, self._ops.recording.nodes.rows
        for each in known:
            position = start + each.row
            if each.node >= 0 and each.phase == FORWARD:
                where = (*each.place, each.module, False)
                nodes[self._base + each.node] = (position, each.plan.number, *where)
            for number, row in enumerate(each.rows, position):
                if row.new:
                    segment.known.add(slots.numbers[row.slot])
                entry = slots.entry(row.slot)
                if entry is None:
                    continue
                if not row.alias:
                    told = int(number in bad) if self._reads else -1 if row.numel >= 0 else 0
                    entry.write(number, told, True, each.plan.uninitialised)
                    entry.grad |= row.grad
                elif not row.whole:
                    entry.show(row.key, number)


class LearnedStep:
    """Learns the calls of a step, and only notes those that the next step repeats.

    A call repeats another if operator, line, module and numbers are the same, on the same views of
    corresponding results and leaves. Rows are written when somebody reads them, or a call differs.
    A run of the engine, or an optimizer's step, that begins like the last one runs unobserved while
    statistics are put off. If its calls do differ, a replay gives other results, and says so.
    """

    _pattern: Pattern  # of the step that runs, while it is active
    _slots: _Slots
    _coming: _ComingRows

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops
        self.pattern: Pattern | None = None
        self.came: list[bool] = []  # of each learned step: whether all calls were its
        self.silent = 0  # runs that were not observed
        # leaves whose gradient came, its row, and the end of the rows at that time
        self.arrivals: list[tuple[Tensor, int, int]] = []
        # hooks the nodes of the running engine, whose calls turned out to be others
        self.hook: Callable[[], Any] = _gone
        self.gradient_seen: Callable[[Tensor, int, int], int] = lambda tensor, source, end: -1
        self._learner: StepLearner | None = None
        self._attempts = self._missed = 0
        self._active = False
        self._unobserved: Numbers | None = None
        self._inside, self._silent = -1, False
        # whether an optimizer steps whose calls follow from how its step began
        self._follows = False

    # -- a step

    def begin(self) -> None:
        self.end()
        ops = self.ops
        program, recording = ops.program, ops.recording
        learns = self._attempts <= _ATTEMPTS and (self.pattern is None or self.pattern.cut)
        if (
            program is None
            or not recording.passes
            or recording.pending
            or ops.flying
            or ops.views.odd
            or ops.where.in_backward
            or ops.where.in_optimizer
            or program.applies
            or program.segment.lost is not None
            or (self.pattern is None and not learns)
        ):
            return
        self._segment, self._chunk, self._start = program.segment, ops.chunk, recording.end
        self._base, self._at, self._inside, self._next = ops.where.sequence, 0, -1, 0
        ops.noting, ops.effects = self, []
        if learns:
            self._attempts, self._missed = self._attempts + 1, 0
            self._learner = StepLearner(ops)
            return
        assert self.pattern is not None
        self._pattern, self._edge = self.pattern, len(ops.chunk.edges) // 3
        self._varied = self._moved = self._careful = False
        self._reads = not recording.puts_off
        self._slots = _Slots(ops, self._pattern)
        self._coming = _ComingRows(ops, self._pattern, self._slots)
        self._active, ops.again = True, self

    def end(self) -> None:
        self._learned(cut=False)
        self.stop()

    def stop(self) -> None:
        """Stop comparing: the rest of the step is not known."""
        self._learned(cut=True)
        if not self._active:
            return
        self.flush()
        pattern, inside, self._inside = self._pattern, self._inside, -1
        self.came.append(self._at == len(pattern.calls) and inside < 0)
        self._missed = 0 if self.came[-1] else self._missed + 1
        if self.came[-1] and not pattern.cut:
            self._attempts = 0
        stretch = pattern.stretches[inside] if inside >= 0 else None
        if isinstance(stretch, Engine):
            self._note_gradients(stretch)
        self._let_go()
        if isinstance(stretch, Engine) and self.ops.where.in_backward:
            self.hook()
        if self._missed > 1:  # not only one step that differs: the last batch of an epoch
            self.pattern = None

    def _learned(self, cut: bool) -> None:
        """Keep the pattern of the step that ends, or of its first calls."""
        learner, self._learner, self.ops.noting = self._learner, None, None
        pattern = learner.learned(cut) if learner is not None else None
        old = self.pattern
        if pattern is not None and (old is None or not cut or len(pattern.calls) > len(old.calls)):
            self.pattern = pattern

    def _let_go(self) -> None:
        self._active, self.ops.again, self._follows = False, None, False
        del self._pattern, self._slots, self._coming

    # -- a call that comes again

    def expects(self, func: Any, args: Any, kwargs: Any) -> Known | None:
        """The learned call that this call is about to repeat; None where it differs."""
        calls, at = self._pattern.calls, self._at
        known = calls[at] if at < len(calls) else None
        if known is None or known.func is not func or known.stretch != self._inside:
            self.stop()
            return None
        try:
            if not (known.slow or self._careful):
                if self._follows or self._is_as_known(known, args, kwargs):
                    return known
        except Exception:
            self.stop()
            return None
        self.flush()
        return None

    def _is_as_known(self, known: Known, args: Any, kwargs: Any) -> bool:
        slots, frame = self._slots, sys._getframe(3)
        refs, tensors, numbers = slots.refs, slots.tensors, slots.numbers
        if len(args) != known.count or _enabled() is not known.grad:
            return False
        if known.phase == OPTIMIZER:
            if not self._comes_from_optimizer(known, frame, kwargs):
                return False
        elif (kwargs or known.kwargs) and kwargs != known.kwargs:
            return False
        elif known.phase == BACKWARD:
            if not self._comes_from_node(known, frame):
                return False
        elif not self._comes_from_line(known, frame):
            return False
        for i, kind, value in known.fixed:
            given = args[i]
            if given.__class__ is not kind or given != value:
                return False
        for i in known.floats:
            given = args[i]
            if given.__class__ is not float or given - given != 0.0 or not given:
                return False
        for i, kind, count in known.lengths:
            if args[i].__class__ is not kind or len(args[i]) != count:
                return False
        for i, j, slot, shape, strides, offset, dtype, tracked in known.operands:
            value = args[i] if j < 0 else args[i][j]
            if value is tensors[slot]:
                continue
            if (
                value.__class__ not in PLAIN
                or value.shape != shape
                or value.stride() != strides
                or value.storage_offset() != offset
                or value.dtype is not dtype
                or value.requires_grad is not (tracked != 0)
                or (tracked and value.is_leaf is not (tracked == 2))
            ):
                return False
            storage = value.untyped_storage()
            if not numbers[slot]:
                if not slots.meet(slot, value, storage):
                    return False
            elif storage is not refs[slot]():
                return False
        return self._about_to_run(known)

    def _comes_from_line(self, known: Known, frame: Any) -> bool:
        """Whether a call comes from the same line of the same module."""
        where, place = self.ops.where, self.ops.lines.here(frame)
        return (
            place == known.place
            and where.module == known.module
            and not where.in_backward
            and _sequence() - self._base == known.sequence
            and bool(where.depth or where.in_optimizer or self._is_same_step(frame, place[0]))
        )

    def _comes_from_node(self, known: Known, frame: Any) -> bool:
        """Whether a call comes from the same node in the backward pass."""
        node = _node()
        if node is None or frame is None or id(frame.f_code) not in self.ops.where.engine_codes:
            return False
        number = node._sequence_nr()
        here = number - self._base if number < LEAF else -1
        return here == known.node and _sequence() == self.ops.where.sequence

    def _comes_from_optimizer(self, known: Known, frame: Any, kwargs: Any) -> bool:
        """Whether a call comes from the same line of an optimizer; its numbers may differ."""
        ops = self.ops
        here = ops.where.step_place
        if not ops.where.in_optimizer or ops.where.in_backward or len(kwargs) != len(known.kwargs):
            return False
        if self._inside < 0:  # else it began as its last step
            if here is None or not ops.lines.torch_code(frame):
                here = ops.lines.here(frame)
            if here != known.place:
                return False
        for name, value in kwargs.items() if kwargs else ():
            if name not in known.kwargs or value.__class__ is not known.kwargs[name].__class__:
                return False
            if value.__class__ is float and value - value != 0.0:
                return False
        return True

    def _is_same_step(self, frame: Any, line: int) -> bool:
        """Whether a call on this line, outside of every module, begins no new step."""
        ops, segment = self.ops, self._segment
        if line not in ops.clock.checked:
            if line in ops.clock.openers:
                return False
            ops.clock.checked.add(line)
            ops.where.notice_loop(frame, line)
        return ops.program is not None and segment is ops.program.segment and self._active

    def _about_to_run(self, known: Known) -> bool:
        """Copy memory that a call will write, and generator states; whether there was room."""
        program, segment = self.ops.program, self._segment
        assert program is not None
        for slot in known.saves:
            number = self._slots.numbers[slot]
            if number in program.unsaved:
                program.save(number, self._slots.refs[slot]())
        if known.plan.draws:
            segment.states[self._at] = torch.get_rng_state()
        return segment.lost is None

    def note(self, known: Known, args: Any, kwargs: Any, out: Any) -> None:
        """Note the call, which has run."""
        ops, chunk, at, phase = self.ops, self._chunk, self._at, known.phase
        slots, coming = self._slots, self._coming
        for j, slot in known.made:
            result = out if j < 0 else out[j]
            slots.refs[slot] = ref(result.untyped_storage())
            if phase == OPTIMIZER:
                slots.tensors[slot] = result
        if known.floats or (kwargs and phase == OPTIMIZER):
            before = self._pattern.noted[8 * at + 1]
            packed = [*before]
            for i in known.floats:
                packed[i] = args[i]
                self._varied |= args[i] != before[i] and phase != OPTIMIZER
            coming.others[at] = tuple(packed), kwargs or {}
        if known.notices:
            coming.owned.append((at, [row.of(args, out) for row in known.rows]))
        for slot in known.last_use:
            slots.tensors[slot] = None
        self._at = at + 1
        if phase == FORWARD:
            ops.where.sequence = self._base + known.sequence
        chunk.late, chunk.coming = self.flush, known.row + len(known.rows) - coming.row
        if self._reads:
            self._summarise(known, args, kwargs, out)

    def _summarise(self, known: Known, args: Any, kwargs: Any, out: Any) -> None:
        """Make the statistics of its results; after a bad one, calls are worked out."""
        chunk, recording = self._chunk, self.ops.recording
        stats, bad = chunk.stats, False
        for at, row in known.own:
            self._coming.stats[at] = (chunk.number << 32) | stats.add(row.of(args, out))
            if stats.bad > 0:
                recording.bad.add(self._start + at)
                bad = True
        if not bad:
            return
        self._careful = True
        self.flush()
        call = self._start + known.row
        made = Call(
            func=known.func,
            plan=known.plan,
            position=call,
            outputs=len(known.rows),
            targets=[row.of(args, out) for row in known.rows],
            sources=[source for source, _ in recording.operands(call)],
            args=args,
            kwargs=kwargs or {},
            old=None,
            flags=recording.flags(call),
            node=_node() if self.ops.where.in_backward else None,
        )
        self.ops.evidence.judge(made)

    def flush(self) -> None:
        """Write the rows of the calls that came, and what is known of the memory they wrote."""
        self._chunk.late = None
        if self._active:
            self._coming.flush(self._at)

    # -- a call that was worked out

    def noted(
        self, call: int, place: tuple[int, ...], args: Any, kwargs: Any, out: Any, frame: Any
    ) -> None:
        """Learn a call that was worked out, or compare it with the last step's."""
        ops, calls = self.ops, self._segment.calls
        effects, ops.effects = ops.effects, []
        tensors = [*of_kind((args, *kwargs.values(), out), Tensor)]
        try:
            entries = [ops.ledger.entries.get(t.untyped_storage()._cdata) for t in tensors]
        except Exception:  # sparse, wrapped
            return self.stop()
        if ops.program is None or ops.program.segment is not self._segment or not calls.noted:
            return self.stop()
        numbers = calls.numbers[calls.noted[-1] :].tolist()
        seen = [-1 if entry is None else entry.serial for entry in entries]
        if (
            seen != numbers
            or self._segment.lost is not None
            or ops.views.odd
            or ops.recording.pending
            or len(calls) > _MOST_CALLS
        ):
            return self.stop()
        worked = Worked(call, place, args, out, numbers, entries, effects)
        if self._learner is not None:
            self._learner.learn(worked, frame)
        elif not self._is_same(worked):
            self.stop()
        return None

    def _is_same(self, worked: Worked) -> bool:
        pattern, at, chunk, recording = self._pattern, self._at, self._chunk, self.ops.recording
        if at >= len(pattern.calls):
            return False
        known, (row, edge, number) = pattern.calls[at], pattern.end_of(at)
        old, new = pattern.noted[8 * at : 8 * at + 8], self._segment.calls.noted[-8:]
        if (
            known.stretch != self._inside
            or worked.call - self._start != known.row
            or chunk.end - self._start != row
            or len(chunk.edges) // 3 - self._edge != edge
            or any(new[i] != old[i] for i in (0, 3, 5, 6))
            or not all(is_alike(old[i], new[i]) for i in (1, 2))
        ):
            return False
        reads = [source for source, _ in recording.operands(worked.call)]
        if self._reads and which_bad(recording, worked.call, reads, row - known.row) != known.bad:
            self._careful = True
        phase, node, line, site, module = worked.place
        node -= self._base if node >= 0 else 0
        self._moved |= (node, (line, site), module) != (known.node, known.place, known.module)
        if phase != OPTIMIZER:
            self._varied |= new[1] != old[1] or new[2] != old[2]
        lasts = dict(zip(reversed(worked.numbers[: len(reads)]), reversed(reads), strict=True))
        slots, order = self._slots, pattern.order[known.number : number]
        for slot, number, entry in zip(order, worked.numbers, worked.entries, strict=True):
            leaf = pattern.leaves.get(slot)
            if leaf is not None and not slots.numbers[slot]:
                if number in slots.taken or (leaf.fixed and leaf.number != number):
                    return False
                slots.take(slot, entry, lasts.get(number, entry.last))
            elif slots.refs[slot] is _gone:  # it has just been made
                slots.numbers[slot], slots.refs[slot] = number, entry.alive
            elif slots.numbers[slot] != number:
                return False
        first, coming = (known.row + self._start - chunk.start) * WIDTH, self._coming
        coming.stats[known.row : row] = chunk.meta[first + STAT :: WIDTH]
        self._at = coming.written = at + 1
        coming.row = row
        return True

    # -- runs of the engine

    def engine_begins(self, run: EngineRun, place: tuple[int, int]) -> Engine | None:
        """Begin a run of the engine; returns the last step's run if its calls are to repeat."""
        ops, program = self.ops, self.ops.program
        ops.where.ran_python = False
        self.arrivals.clear()
        assert program is not None
        segment = program.segment
        usual = not (
            ops.where.in_backward
            or ops.where.in_optimizer
            or program.applies
            or program.shared
            or segment.hooks
            or segment.lost is not None
            or not run.accumulates
            or run.create_graph
            or run.inputs
            or _get_current_dispatch_mode() is not ops
        )
        if self._learner is not None:
            self._learner.engine_begins(usual and segment is self._segment)
        if not self._active:
            return None
        stretch: Engine | None = self._due(Engine)
        if stretch is None:
            return None
        if not (
            usual
            and place == stretch.place
            and not self._moved
            and stretch.leads_to(run, self._pattern.slots, self._slots.numbers)
        ):
            self.stop()
            return None
        self._inside, self._next, self._run = self._next, self._next + 1, run
        if not (self._reads or self._varied or self._careful):
            self.silent += 1
            self._silent = ops.stop_observing()
        return stretch

    def graph_of(self, stretch: Engine) -> tuple[list[tuple[int, int]], set[int], int, bool]:
        return stretch.graph_from(self._base)

    def _due(self, kind: Any) -> Any:
        """The learned engine run or optimizer step that the next call begins; None: there is
        none."""
        stretches = self._pattern.stretches
        if self._inside < 0 and self._next < len(stretches):
            stretch = stretches[self._next]
            if stretch.first == self._at and isinstance(stretch, kind):
                return stretch
        return None

    def engine_ended(self, run: EngineRun, stretch: Engine | None, failed: bool) -> None:
        """End a run of the engine: note its calls, or learn them."""
        if stretch is None:
            if self._learner is not None and not (failed or self.ops.where.ran_python):
                self._learner.engine_ended(run, self.arrivals)
        elif self._inside >= 0:  # else its calls were others, and were worked out
            silent, self._silent = self._silent, False
            if silent and (failed or not self._was_silent(stretch)):
                self._inside, self.pattern = -1, None
                self._let_go()
            elif self._at != stretch.end or failed:
                self.stop()
            else:
                self._note_gradients(stretch)
                self._inside = -1

    def _was_silent(self, stretch: Engine) -> bool:
        """Note the calls of an unobserved run; whether it left the gradients it did before."""
        ops, chunk = self.ops, self._chunk
        assert ops.program is not None
        for g in stretch.gradients:
            gradient = g.leaf.grad
            if (
                gradient is None
                or ops.views.of(gradient, None) is not g.view
                or gradient.untyped_storage()._cdata in ops.ledger.entries
            ):
                reason = "a run of the engine gave other gradients than in the step before"
                ops.program.lose(reason)
                return False
            self._slots.refs[g.slot] = ref(gradient.untyped_storage())
            self._coming.stats[g.own] = (chunk.number << 32) | chunk.stats.add(gradient)
        self._at = stretch.end
        self._coming.write(stretch.end)
        return True

    def _note_gradients(self, stretch: Engine) -> None:
        """Note the gradients that arrived, and the nodes that ran."""
        ops, start, sources = self.ops, self._start, self._slots.sources
        program, recording, number = ops.program, ops.recording, ops.where.backward_pass
        assert program is not None
        self.flush()
        done = recording.end - start
        for g in stretch.gradients:
            entry = self._slots.entry(g.slot) if g.rows <= done else None
            if entry is None or g.leaf.grad is None:
                break
            entry.last, entry.grad = start + g.source, True
            entry.bad = int(entry.last in recording.bad) if self._reads else -1
            program.segment.known.add(entry.serial)
            self._run.after[g.ref] = g.view.of(entry.serial)
            self.gradient_seen(g.leaf, entry.last, start + g.rows)

        def moved(source: int) -> int:
            return source + start if source >= 0 else sources[-1 - source]

        base = self._base
        recording.node_runs.late.append(
            lambda: [
                (
                    *(node + base if node >= 0 else node, name, number, end + start),
                    *(tuple([moved(s) for s in came]), tuple([moved(s) for s in went])),
                )
                for node, name, end, came, went in stretch.runs
                if end <= done
            ]
        )

    # -- steps of an optimizer

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        ops, program, learner = self.ops, self.ops.program, self._learner
        place = ops.where.step_place
        if learner is not None:
            learner.stepping = None
        if (
            not (self._active or learner is not None)
            or program is None
            or place is None
            or ops.where.in_optimizer != 1
            or program.segment is not self._segment
            or optimizer.defaults.get("differentiable", False)
        ):
            return
        kept, gradients = tensors_of(optimizer)
        views = [None if g is None else ops.views.of(g, tracked_by(g)) for g in gradients]
        tensors = [*kept, *(g for g in gradients if g is not None)]
        if not all(t.is_cpu and t.layout is torch.strided for t in tensors):
            return
        if learner is not None:
            first = len(learner.pattern.calls)
            made = Optimizer(first, -1, place, kept, views, settings_of(optimizer))
            learner.stepping = made, tensors
            return
        self.flush()
        stretch: Optimizer | None = self._due(Optimizer)
        if stretch is None:
            return
        if not (
            stretch.place == place
            and len(kept) == len(stretch.kept)
            and all(map(_is, kept, stretch.kept))
            and len(views) == len(stretch.gradients)
            and all(map(_is, views, stretch.gradients))
            and self._slots.hold(stretch.slots, tensors)
        ):
            return self.stop()
        self._inside, self._next = self._next, self._next + 1
        if self._careful or stretch.settings is None or settings_of(optimizer) != stretch.settings:
            return
        numbers = self._slots.numbers
        unsaved = [slot for slot, _, _ in stretch.writes if numbers[slot] in program.unsaved]
        if not self._reads and len(unsaved) < len(stretch.writes):
            return
        for slot in unsaved:
            program.save(numbers[slot], self._slots.refs[slot]())
        if not self._reads:
            self._step_silently(stretch, type(optimizer))
        else:
            self._follows = program.segment.lost is None

    def _step_silently(self, stretch: Optimizer, kind: Any) -> None:
        """Let the step run unobserved."""
        if self.ops.stop_observing():
            self._unobserved = Numbers(self.ops, stretch.calls, kind, self._start)
            self.silent += 1

    def optimizer_ended(self) -> None:
        numbers, self._unobserved, self._follows = self._unobserved, None, False
        self.ops.observe_again()
        self.ops.settle()
        if self._learner is not None:
            self._learner.optimizer_ended()
        if not self._active or self._inside < 0:
            return
        stretch = self._pattern.stretches[self._inside]
        if not isinstance(stretch, Optimizer):
            return
        if numbers is not None:
            self._stepped_silently(stretch, numbers)
        if self._at != stretch.end:
            return self.stop()
        self._inside = -1
        self.flush()
        # else gradients would outlive zero_grad()
        self._slots.tensors = [None] * len(self._slots.tensors)

    def _stepped_silently(self, stretch: Optimizer, numbers: Numbers) -> None:
        """Note the calls of a step that was not observed."""
        calls, slots = self._segment.calls, self._slots
        numbers.first, self._at = len(calls.noted), stretch.end
        self._coming.write(stretch.end, told=False)
        calls.late.append(numbers.fill)
        for slot, row, notices in stretch.writes:
            entry, tensor = slots.entry(slot), slots.tensors[slot]
            if entry is not None and tensor is not None:
                entry.views, entry.last, entry.bad = None, self._start + row, -1
                if notices:
                    self.ops.notice_owners([tensor], self._start + row, {}, inside=True)

    def interrupted(self) -> None:
        """Forget an unobserved step that was not seen to end: an exception left it."""
        if self._unobserved is not None:
            self._unobserved = None
            self.ops.observe_again()
            self._inside = -1
            self._let_go()
            if self.ops.program is not None:
                self.ops.program.lose("a step of its optimizer raised an exception")
