"""The calls between the beginning of a step and the engine's first run that are those of the last
step: noted without working them out anew."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import torch

from nanlab.capture.ledger import PLAIN, Entry, tracked_by, view_key
from nanlab.capture.places import torch_caller
from nanlab.capture.plans import Plan
from nanlab.capture.program import NUMBERS
from nanlab.trace.chunk import CALL, DEVICE, NODE, PHASE, STAT, WIDTH
from nanlab.trace.op import FORWARD
from nanlab.trace.program import View

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
_ATTEMPTS = 12  # of learning a program's calls
_MOST_CALLS = 5_000  # of a step that is learned
_SHAPED = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_enabled = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr


def _gone() -> Any:
    """Stands for the reference to a storage that is not known."""


@dataclass(slots=True)
class _Leaf:
    """A storage that the step reads and did not make."""

    number: int  # in the step in which it was learned
    nbytes: int
    # whether it is the same in every step: a parameter, a buffer, memory that the step writes
    fixed: bool


@dataclass(slots=True)
class _Row:
    """A result of a call, or what it wrote."""

    result: int  # index among the results, -1 for the only one; of what was written: -2
    argument: int  # index of what was written
    slot: int
    new: bool  # whether the call made the storage
    alias: bool  # whether it shows a storage that was there
    whole: bool  # whether it shows all of it
    key: Any  # of a part
    stat: int  # row of the step whose statistics it shares; -1 - slot: those of a leaf
    numel: int  # -1 where it has no statistics


@dataclass(slots=True)
class _Known:
    """One call; tensors are told by the slot of their storage."""

    func: Any
    plan: Plan
    row: int  # its first row in the step
    edge: int
    number: int  # its first among the numbers of storages
    # whether it is worked out in every step, and compared then
    slow: bool = True
    run: Callable[..., Any] = _gone
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
    rows: list[_Row] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)  # index of a result, slot
    saves: list[int] = field(default_factory=list)  # slots of leaves that it writes
    notices: bool = False  # whether it writes a buffer
    inside: tuple[Any, int] | None = None


@dataclass(slots=True)
class ForwardPattern:
    """The calls of a step up to the engine's first run."""

    calls: list[_Known] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)  # number of a storage -> slot
    leaves: dict[int, _Leaf] = field(default_factory=dict)  # by slot
    made: list[int] = field(default_factory=list)  # slots
    written: set[int] = field(default_factory=set)  # leaves
    noted: list[Any] = field(default_factory=list)
    # of all rows and edges
    rows: Any = None
    edges: Any = None
    has_node: Any = None
    inner: Any = None  # of each edge: whether it comes from a row of the step
    own: list[int] = field(default_factory=list)  # rows with statistics of their own
    numels: list[int] = field(default_factory=list)  # of these
    # (row, whose statistics it has: a row's, -1 - slot: a leaf's)
    shared: list[tuple[int, int]] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)  # edges that come from leaves
    outer_slots: Any = None  # these leaves
    numbers: Any = None  # slots, in the order of the views
    sources: dict[int, int] = field(default_factory=dict)  # slot of a leaf -> its source
    stats: dict[int, int] = field(default_factory=dict)  # statistics -> row

    def end_of(self, at: int) -> tuple[int, int, int]:
        """Where the rows, edges and numbers of a call end."""
        if at + 1 < len(self.calls):
            after = self.calls[at + 1]
            return after.row, after.edge, after.number
        return len(self.rows), len(self.edges), len(self.numbers)


class ForwardCalls:
    """Learns the calls of a step up to the engine's first run, and notes those that come again.

    A call comes again where it is the same operator at the same line of the same module, with the
    same numbers, on the same views of what are the same results and leaves. Its rows are written
    when somebody reads, or another call comes.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops
        self.pattern: ForwardPattern | None = None
        self.current: ForwardPattern | None = None  # where all calls of this step are its
        self._learning: ForwardPattern | None = None
        self._attempts = self._missed = 0
        self._active = False
        self._others: dict[int, tuple[Any, ...]] = {}  # arguments that are other numbers
        self._owned: list[tuple[int, list[Tensor]]] = []  # calls that wrote buffers, and these

    # -- a step

    def begin(self) -> None:
        """A training step begins."""
        self.stop()
        ops, self.current = self.ops, None
        program, recording = ops.program, ops.recording
        if (
            program is None
            or not recording.passes
            or recording.pending
            or not recording.puts_off
            or ops.flying
            or ops.views.odd
            or program.applies
            or program.segment.lost is not None
            or self._attempts > _ATTEMPTS
        ):
            return
        self._segment, self._start = program.segment, recording.end
        self._base, self._at = ops.sequence, 0
        self._edge, self._first_stat = len(ops.chunk.edges) // 3, ops.chunk.stats.n
        ops.noting, ops.effects = self, []
        if self.pattern is None:
            self._attempts, self._missed = self._attempts + 1, 0
            self._learning = ForwardPattern()
            return
        pattern = self.pattern
        self._written, self._varied = 0, False
        self._others, self._owned = {}, []
        self._stats = np.empty(len(pattern.rows), np.int64)
        self._row = 0  # rows that are written
        count, first = len(pattern.slots), ops.ledger.number(len(pattern.made))
        self._refs, self._sources = [_gone] * count, array("q", bytes(8 * count))
        numbers = np.zeros(count, np.int64)
        numbers[pattern.made] = np.arange(first, first + len(pattern.made))
        self._numbers = array("q", numbers.tobytes())
        self._active, ops.again = True, self

    def ended(self) -> None:
        """The engine is about to run."""
        if self._learning is not None:
            self._learned(self._learning)
        came = self._active and self.pattern is not None and self._at == len(self.pattern.calls)
        if came:
            self.current = None if self._varied else self.pattern
            self._attempts = self._missed = 0
        self.stop(matched=came)

    def stop(self, matched: bool = False) -> None:
        """No more calls are compared; ``matched``: all were as they had been."""
        self._learning = self.ops.noting = None
        if not self._active:
            return
        self.flush()
        self._active, self._refs = False, []
        if self.ops.again is self:
            self.ops.again = None
        if not matched:
            self._missed += 1
            if self._missed > 1:  # not only one step that differs: the last batch of an epoch
                self.pattern = None

    # -- a call that comes again

    def expects(self, func: Any, args: Any, kwargs: Any) -> _Known | None:
        """The call of the last step that is about to come again; None where another one is."""
        pattern, at = self.pattern, self._at
        assert pattern is not None
        known = pattern.calls[at] if at < len(pattern.calls) else None
        if known is None or known.func is not func:
            self.stop()
            return None
        try:
            if not known.slow and self._is_as_known(known, args, kwargs):
                return known
        except Exception:
            self.stop()
            return None
        self.flush()
        return None

    def _is_as_known(self, known: _Known, args: Any, kwargs: Any) -> bool:
        ops, refs = self.ops, self._refs
        line, _ = place = ops.lines.here(sys._getframe(3))
        if (
            len(args) != known.count
            or place != known.place
            or ops.module != known.module
            or _sequence() - self._base != known.sequence
            or _enabled() is not known.grad
            or kwargs != known.kwargs
            or (not ops.depth and not self._is_same_step(line))
        ):
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
            if not self._numbers[slot]:
                if not self._meet(slot, value, storage):
                    return False
            elif storage is not refs[slot]():
                return False
        return self._about_to_run(known)

    def _is_same_step(self, line: int) -> bool:
        """Whether no step begins with the call on this line, outside of every module."""
        ops, segment = self.ops, self._segment
        if line not in ops.clock.checked:
            if line in ops.clock.openers:
                return False
            ops.clock.checked.add(line)
            ops.notice_loop(sys._getframe(4), line)
        return ops.program is not None and segment is ops.program.segment and self._active

    def _meet(self, slot: int, value: Tensor, storage: Any) -> bool:
        """Whether a leaf that is read for the first time in this step may be one of the last."""
        ops, pattern, segment = self.ops, self.pattern, self._segment
        program = ops.program
        assert pattern is not None and program is not None
        leaf, entry = pattern.leaves[slot], ops.ledger.entries.get(storage._cdata)
        if entry is None:
            self.flush()  # it may be a result that was not entered yet
            ops.source(value)
            entry = ops.ledger.entries.get(storage._cdata)
        if (
            entry is None
            or entry.serial in segment.known
            or entry.nbytes != leaf.nbytes
            or (leaf.fixed and entry.serial != leaf.number)
            or ((entry.views or entry.bad) and leaf.nbytes != value.numel() * value.itemsize)
            or not _is_simple(entry)
        ):
            return False
        self._numbers[slot], self._sources[slot] = entry.serial, entry.last
        self._refs[slot] = entry.alive
        program.met(entry.serial, storage)
        return True

    def _about_to_run(self, known: _Known) -> bool:
        """Copy what it writes, and keep what it draws from; whether there was room."""
        program, segment = self.ops.program, self._segment
        assert program is not None
        for slot in known.saves:
            number, storage = self._numbers[slot], self._refs[slot]()
            if number in program.unsaved:
                program.save(number, storage)
        if known.plan.draws:
            segment.states[self._at] = torch.get_rng_state()
        return segment.lost is None

    def note(self, known: _Known, args: Any, kwargs: Any, out: Any) -> None:
        """Note the call, which has run."""
        ops, chunk = self.ops, self.ops.chunk
        for j, slot in known.made:
            self._refs[slot] = ref((out if j < 0 else out[j]).untyped_storage())
        if known.floats:
            before = self.pattern.noted[8 * self._at + 1]  # type: ignore[union-attr]
            packed = [*before]
            for i in known.floats:
                packed[i] = args[i]
                self._varied |= args[i] != before[i]
            self._others[self._at] = tuple(packed)
        if known.notices:
            self._owned.append((self._at, _results(known, args, out)))
        self._at += 1
        ops.sequence = self._base + known.sequence
        chunk.late, chunk.coming = self.flush, known.row + len(known.rows) - self._row

    # -- what came

    def flush(self) -> None:
        """Write the rows of the calls that came, and what is known of the memory they wrote."""
        ops, pattern, first, end = self.ops, self.pattern, self._written, self._at
        ops.chunk.late = None
        if not self._active or first == end:
            return
        assert pattern is not None
        self._written, self._row = end, pattern.end_of(end - 1)[0]
        program, chunk, calls = ops.program, ops.chunk, self._segment.calls
        assert program is not None
        known, start = pattern.calls[first:end], self._start
        low, (row, edge, number) = known[0], pattern.end_of(end - 1)
        serials = np.frombuffer(self._numbers, np.int64)
        calls.numbers.frombytes(serials[pattern.numbers[low.number : number]].tobytes())
        noted = pattern.noted[8 * first : 8 * end]
        noted[4::8] = [start + each.row for each in known]
        others, self._others = self._others, {}
        for at, packed in others.items():
            noted[8 * (at - first) + 1] = packed
        for at, each in enumerate(known):
            if each.plan.scalars:
                ops.note_scalars(start + each.row, noted[8 * at + 1])
        calls.noted += noted
        edges = pattern.edges[low.edge : edge].copy()
        edges[:, 0] += start
        edges[:, 1] += pattern.inner[low.edge : edge] * start
        lower, upper = (bisect_left(pattern.outer, at) for at in (low.edge, edge))
        sources = np.frombuffer(self._sources, np.int64)
        outer = np.array(pattern.outer[lower:upper], np.int64) - low.edge
        edges[outer, 1] = sources[pattern.outer_slots[lower:upper]]
        chunk.edges.frombytes(edges.tobytes())
        rows = pattern.rows[low.row : row].copy()
        rows[:, CALL] += start
        rows[:, NODE] += pattern.has_node[low.row : row] * self._base
        self._put_off(pattern, low.row, row)
        rows[:, STAT] = self._stats[low.row : row]
        chunk.meta.frombytes(rows.tobytes())
        self._write(known, first)
        owned, self._owned = self._owned, []
        for at, targets in owned:
            call = pattern.calls[at]
            ops.notice_owners(targets, start + call.row, {}, inside=True)

    def _put_off(self, pattern: ForwardPattern, first: int, end: int) -> None:
        """The numbers of the statistics of the rows from one to another."""
        chunk, recording, stats = self.ops.chunk, self.ops.recording, self._stats
        low, high = (bisect_left(pattern.own, at) for at in (first, end))
        stats[first:end] = -1
        if low < high:
            late = (chunk.number << 32) | chunk.stats.put_off(pattern.numels[low:high])
            stats[pattern.own[low:high]] = np.arange(late, late + high - low)
        for at, row in pattern.shared[bisect_left(pattern.shared, (first, -(1 << 62))) :]:
            if at >= end:
                break
            source = row if row >= 0 else self._sources[-1 - row]
            stats[at] = stats[row] if row >= 0 else recording.stat_of(source)

    def _write(self, known: list[_Known], first: int) -> None:
        """Note which rows tell what memory holds now."""
        ops, start = self.ops, self._start
        entries, promised, met = ops.ledger.entries, ops.ledger.promised, self._segment.known
        nodes = ops.recording.nodes.rows
        for index, each in enumerate(known, first):
            position = start + each.row
            if each.node >= 0:
                here = (position, each.plan.number, *each.place, each.module, False)
                nodes[self._base + each.node] = here
            if each.inside is not None:
                self._segment.inside[index] = each.inside
            for at, row in enumerate(each.rows, position):
                number = self._numbers[row.slot]
                storage = self._refs[row.slot]()
                if row.new:
                    met.add(number)
                if storage is None:
                    continue
                entry = entries.get(storage._cdata)
                if entry is None:
                    promised[storage._cdata] = number
                    entry = ops.ledger.enter(storage)
                if row.alias:
                    if not row.whole:
                        if entry.views is None:
                            entry.views = {}
                        entry.views[row.key] = at
                    continue
                entry.views, entry.uninit = None, each.plan.uninitialised
                entry.last, entry.bad = at, -1 if row.numel >= 0 else 0

    # -- learning

    def noted(self, call: int, place: tuple[int, ...], args: Any, kwargs: Any, out: Any) -> None:
        """A call was worked out: learn it, or compare it with that of the last step."""
        ops, calls = self.ops, self._segment.calls
        effects, ops.effects = ops.effects, []
        if ops.program is None or ops.program.segment is not self._segment:
            return self.stop()
        tensors = [*_of_kind((args, *kwargs.values(), out), Tensor)]
        numbers = calls.numbers[calls.noted[-1] :].tolist()
        entries = [ops.ledger.entries.get(t.untyped_storage()._cdata) for t in tensors]
        seen = [-1 if entry is None else entry.serial for entry in entries]
        if (
            seen != numbers
            or self._segment.lost is not None
            or ops.views.odd
            or len(calls) > _MOST_CALLS
        ):
            return self.stop()
        worked = _Worked(call, place, args, kwargs, out, numbers, entries, effects)
        if self._learning is not None:
            self._learn(self._learning, worked)
        elif not self._is_same(worked):
            self.stop()
        return None

    def _is_same(self, worked: _Worked) -> bool:
        """Whether a call that was worked out is that of the last step."""
        pattern, at, chunk = self.pattern, self._at, self.ops.chunk
        assert pattern is not None
        if at >= len(pattern.calls):
            return False
        known, (row, edge, number) = pattern.calls[at], pattern.end_of(at)
        old, new = pattern.noted[8 * at : 8 * at + 8], self._segment.calls.noted[-8:]
        if (
            worked.call - self._start != known.row
            or chunk.end - self._start != row
            or len(chunk.edges) // 3 - self._edge != edge
            or new[7] != known.number
            or any(new[i] != old[i] for i in (0, 1, 2, 3, 5, 6))
        ):
            return False
        _, node, line, site, module = worked.place
        node -= self._base if node >= 0 else 0
        self._varied |= (node, (line, site), module) != (known.node, known.place, known.module)
        reads = [source for source, _ in self.ops.recording.operands(worked.call)]
        lasts = dict(zip(reversed(worked.numbers[: len(reads)]), reversed(reads), strict=True))
        slots = pattern.numbers[known.number : number].tolist()
        for slot, number, entry in zip(slots, worked.numbers, worked.entries, strict=True):
            leaf = pattern.leaves.get(slot)
            if leaf is not None and not self._numbers[slot]:
                if number not in lasts or (leaf.fixed and leaf.number != number):
                    return False
                self._numbers[slot], self._sources[slot] = number, lasts[number]
                self._refs[slot] = entry.alive
            elif self._refs[slot] is _gone:  # it has just been made
                self._numbers[slot], self._refs[slot] = number, entry.alive
            elif self._numbers[slot] != number:
                return False
        first = (known.row + self._start - chunk.start) * WIDTH
        self._stats[known.row : row] = chunk.meta[first + STAT :: WIDTH]
        self._at = self._written = at + 1
        self._row = row
        return True

    def _learn(self, pattern: ForwardPattern, worked: _Worked) -> None:
        """Learn the call that was worked out last."""
        ops, chunk = self.ops, self.ops.chunk
        func, packed, named, _, _, grad, _, first = self._segment.calls.noted[-8:]
        plan, call = ops.plans[id(func)], worked.call
        rows = np.array(chunk.meta[(call - chunk.start) * WIDTH :], np.int64).reshape(-1, WIDTH)
        reads = [source for source, _ in ops.recording.operands(call)] if len(rows) else []
        edge = len(chunk.edges) // 3 - self._edge - len(reads)
        known = _Known(func, plan, call - self._start, edge, first)
        pattern.calls.append(known)
        inputs = sum(1 for _ in _of_kind((packed, *named.values()), View))
        for at, (number, entry) in enumerate(zip(worked.numbers, worked.entries, strict=True)):
            if number in pattern.slots:
                continue
            slot = pattern.slots[number] = len(pattern.slots)
            if at < inputs:
                pattern.leaves[slot] = _Leaf(number, entry.nbytes, entry.owner >= 0)
                if len(reads) == inputs:
                    pattern.sources[slot] = reads[at]
            else:
                pattern.made.append(slot)
        slots = [pattern.slots[number] for number in worked.numbers]
        known.sequence, known.grad = ops.sequence - self._base, grad
        phase, node, line, site, known.module = worked.place
        known.place, known.node = (line, site), node - self._base if node >= 0 else -1
        before = pattern.calls[-2].sequence if len(pattern.calls) > 1 else 0
        known.inside = torch_caller(sys._getframe(3))
        known.slow = not (
            phase == FORWARD
            and (len(reads) == inputs or (not reads and (plan.uninitialised or plan.blind)))
            and (rows[:, PHASE] == FORWARD).all()
            and not rows[:, DEVICE].any()
            and known.sequence - before == (node >= 0)
            and node == (ops.sequence - 1 if node >= 0 else -1)
            and _may_come_again(plan, func)
            and self._learn_arguments(known, worked.args, packed, named, slots)
            and self._learn_rows(pattern, known, worked, rows)
            and all(
                source >= self._start or pattern.sources.get(slot) == source
                for source, slot in zip(reads, slots, strict=False)
            )
        )
        for at, stat in enumerate(rows[:, STAT].tolist(), known.row):
            pattern.stats.setdefault(stat, at)

    def _learn_arguments(
        self, known: _Known, args: Any, packed: Any, named: Any, slots: list[int]
    ) -> bool:
        """What there is to compare of the arguments; whether no more is."""
        known.run, known.count, known.kwargs = known.plan.run, len(args), named
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

    def _learn_rows(
        self, pattern: ForwardPattern, known: _Known, worked: _Worked, rows: Any
    ) -> bool:
        """What a call made and wrote; whether it is known by its rows."""
        plan, args, out = known.plan, worked.args, worked.out
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
        owned = False
        for at, ((j, i), effect, row) in enumerate(
            zip(where, worked.effects, rows.tolist(), strict=True), known.row
        ):
            serial, new, alias, whole = effect
            t = args[i] if j == -2 else out if j < 0 else out[j]
            if serial not in pattern.slots or not isinstance(t, Tensor) or t.is_complex():
                return False
            slot = pattern.slots[serial]
            if new:
                known.made.append((j, slot))
            elif not alias and slot in pattern.leaves:
                if plan.overwrites:
                    return False
                leaf, entry = pattern.leaves[slot], worked.entry(serial)
                if slot in pattern.written or not self._is_buffer(entry):
                    return False
                owned |= entry.owner >= 0
                leaf.fixed = True
                pattern.written.add(slot)
                known.saves.append(slot)
            if not (alias or whole):
                return False
            stat = row[STAT]
            shared = self._shared(pattern, stat, at)
            if shared is None:
                return False
            numel = t.numel() if stat >= 0 else -1
            known.rows.append(_Row(j, i, slot, new, alias, whole, view_key(t), shared, numel))
        known.notices = owned
        return True

    def _is_buffer(self, entry: Entry) -> bool:
        """Whether what a call wrote is a buffer, or nothing that a module holds."""
        kinds, ops = self.ops.recording.parameter_kinds, self.ops
        if entry.owner < 0:
            return not entry.asked
        return kinds[entry.owner] == "buffer" and bool(ops.depth)

    def _shared(self, pattern: ForwardPattern, stat: int, at: int) -> int | None:
        """Whose statistics a row has: a row's (its own: ``at``), a leaf's (-1 - slot)."""
        if stat < 0 or stat in pattern.stats:
            return pattern.stats.get(stat, at)
        for slot, source in pattern.sources.items():
            if self.ops.recording.stat_of(source) == stat:
                return -1 - slot
        own = stat >> 32 == self.ops.chunk.number and stat & 0xFFFFFFFF >= self._first_stat
        return at if own else None

    def _learned(self, pattern: ForwardPattern) -> None:
        """All calls up to the engine's run are learned."""
        ops, segment, start = self.ops, self._segment, self._start
        chunk, calls = ops.chunk, segment.calls
        first = (start - chunk.start) * WIDTH
        if (
            ops.program is None
            or segment is not ops.program.segment
            or segment.functions
            or segment.hooks
            or len(calls.noted) != 8 * len(pattern.calls)
            or not pattern.calls
        ):
            return
        rows = np.array(chunk.meta[first:], np.int64).reshape(-1, WIDTH)
        rows[:, CALL] -= start
        pattern.has_node = rows[:, NODE] >= 0
        rows[pattern.has_node, NODE] -= self._base
        edges = np.array(chunk.edges[3 * self._edge :], np.int64).reshape(-1, 3)
        edges[:, 0] -= start
        pattern.inner = edges[:, 1] >= start
        leaf_of = {source: slot for slot, source in pattern.sources.items()}
        outer = [(at, leaf_of.get(int(edges[at, 1]))) for at in np.flatnonzero(~pattern.inner)]
        known = [(int(at), slot) for at, slot in outer if slot is not None]
        pattern.outer = [at for at, _ in known]
        pattern.outer_slots = np.array([slot for _, slot in known], np.int64)
        for call in pattern.calls:
            for at, row in enumerate(call.rows if not call.slow else (), call.row):
                if row.numel >= 0 and row.stat == at:
                    pattern.own.append(at)
                    pattern.numels.append(row.numel)
                elif row.numel >= 0:
                    pattern.shared.append((at, row.stat))
        edges[pattern.inner, 1] -= start
        pattern.rows, pattern.edges, pattern.noted = rows, edges, calls.noted[:]
        pattern.numbers = np.array([pattern.slots[n] for n in calls.numbers], np.int64)
        self.pattern = self.current = pattern


@dataclass(slots=True)
class _Worked:
    """A call that was worked out."""

    call: int
    place: tuple[int, ...]
    args: Any
    kwargs: Any
    out: Any
    numbers: list[int]  # of the storages of its tensors
    entries: list[Any]
    effects: list[tuple[int, bool, bool, bool]]  # of each row: storage, new, alias, whole

    def entry(self, number: int) -> Any:
        return self.entries[self.numbers.index(number)]


def _may_come_again(plan: Plan, func: Any) -> bool:
    """Whether what a call does follows from its arguments, and is told by its rows."""
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


def _of_kind(value: Any, kind: Any) -> Iterator[Any]:
    """What is of a kind among arguments or results, in their order."""
    if isinstance(value, kind):
        yield value
    elif value.__class__ is tuple or value.__class__ is list:
        for item in value:
            yield from _of_kind(item, kind)


def _results(known: _Known, args: Any, out: Any) -> list[Tensor]:
    """The tensors of a call's rows."""
    return [
        args[row.argument] if row.result == -2 else out if row.result < 0 else out[row.result]
        for row in known.rows
    ]


def _is_simple(entry: Entry) -> bool:
    """Whether its latest row tells all of it."""
    return not (entry.parts or entry.odd or entry.uninit or entry.grad)
