"""A step that makes the calls of the last one: they are compared and noted, not worked out."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from operator import is_ as _is
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import torch

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from nanlab.capture.learned_optimizer import Numbers, settings_of, tensors_of
from nanlab.capture.ledger import PLAIN, Entry, tracked_by, view_key
from nanlab.capture.places import torch_caller
from nanlab.capture.plans import Call, Plan
from nanlab.capture.program import NUMBERS
from nanlab.trace.chunk import CALL, DEVICE, FLAGS, INPLACE, NODE, PASS, PHASE, STAT, WIDTH
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER
from nanlab.trace.program import EngineRun, Held, Ref, View
from nanlab.trace.recording import ACCUMULATES

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
_ATTEMPTS = 12  # of learning a program's steps
_MOST_CALLS = 5_000  # of a step that is learned
_LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this
_SHAPED = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_enabled = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr
_node = torch._C._current_autograd_node
_row_of = attrgetter("row")


def _gone() -> Any:
    """Stands for the reference to a storage that is not known."""


class _Unlike(Exception):
    """A run of the engine does more than to compute gradients of leaves that have none."""


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
    numel: int  # -1 where it has no statistics
    grad: bool  # whether it holds what was computed from gradients

    def of(self, args: Any, out: Any) -> Tensor:
        """The tensor that it tells of."""
        if self.result == -2:
            return args[self.argument]  # type: ignore[no-any-return]
        return out if self.result < 0 else out[self.result]  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Known:
    """One call; tensors are told by the slot of their storage."""

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
    rows: list[_Row] = field(default_factory=list)
    own: list[tuple[int, _Row]] = field(default_factory=list)  # those with own statistics
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
    """A run of the autograd engine."""

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


@dataclass(slots=True)
class Optimizer:
    """A step of an optimizer of torch's."""

    first: int
    end: int
    place: tuple[int, int]
    kept: list[Tensor]  # parameters and state, the same tensors in every step
    gradients: list[View | None]  # of each parameter
    slots: list[int]  # of kept, then of the gradients
    writes: list[tuple[int, int, bool]]  # slot, row, whether a parameter is written
    settings: list[dict[str, Any]] | None  # of each group; None where it is always observed
    # operator, arguments, whether their numbers are noted, row
    calls: list[tuple[Any, tuple[Any, ...], bool, int]]


@dataclass(slots=True)
class _Pattern:
    """The calls of a step."""

    calls: list[_Known] = field(default_factory=list)
    stretches: list[Engine | Optimizer] = field(default_factory=list)
    cut: bool = False  # whether the step went on
    slots: dict[int, int] = field(default_factory=dict)  # number of a storage -> slot
    leaves: dict[int, _Leaf] = field(default_factory=dict)  # by slot
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

    def end_of_numbers(self, known: _Known) -> int:
        """Where the numbers of a call end."""
        at = bisect_left(self.calls, known.number, key=attrgetter("number"))
        return self.calls[at + 1].number if at + 1 < len(self.calls) else len(self.order)

    def end_of(self, at: int) -> tuple[int, int, int]:
        """Where the rows, edges and numbers of a call end."""
        if at + 1 < len(self.calls):
            after = self.calls[at + 1]
            return after.row, after.edge, after.number
        return len(self.rows), len(self.edges), len(self.order)


class _Counts:
    """How much was noted when a run of the engine began."""

    def __init__(self, ops: OpRecorder, pattern: _Pattern) -> None:
        program, recording = ops.program, ops.recording
        assert program is not None
        segment = self.segment = program.segment
        self.calls, self.slots = len(pattern.calls), len(pattern.slots)
        self.position, self.runs = recording.end, len(recording.node_runs)
        self.backward_pass, self.sources = len(recording.passes), len(recording.sources)
        rare = segment.states, segment.loads, segment.results, segment.function_runs
        self.rare = (*map(len, rare), len(segment.leaves), len(segment.hooks))
        self.engine_runs = len(segment.engine)


class LearnedStep:
    """Learns the calls of a step, and notes those that come again in the next.

    A call comes again where it is the same operator at the same line of the same module, with the
    same numbers, on the same views of what are the same results and leaves. Its rows are written
    when somebody reads, or another call comes. A run of the engine, or a step of an optimizer,
    that begins as its last one runs unobserved while statistics are put off. Were its calls others
    for all that, a replay would give other results than those that were read, and would say so.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops
        self.pattern: _Pattern | None = None
        self.came: list[bool] = []  # of each learned step: whether all calls were its
        self.silent = 0  # runs that were not observed
        self.ran_python = False  # whether code of the program ran inside of the engine
        # leaves whose gradient came, its row, and the end of the rows at that time
        self.arrivals: list[tuple[Tensor, int, int]] = []
        # hooks the nodes of the running engine, whose calls turned out to be others
        self.hook: Callable[[], Any] = _gone
        self.gradient_seen: Callable[[Tensor, int, int], int] = lambda tensor, source, end: -1
        self._learning: _Pattern | None = None
        self._attempts = self._missed = 0
        self._active = False
        self._begun: _Counts | None = None
        self._stepping: tuple[Any, ...] | None = None
        self._unobserved: Numbers | None = None
        self._tensors: list[Tensor | None] = []
        self._inside, self._popped, self._silent = -1, False, False
        # whether an optimizer steps whose calls follow from how its step began
        self._follows = False

    # -- a step

    def begin(self) -> None:
        """A training step begins."""
        self.end()
        ops = self.ops
        program, recording = ops.program, ops.recording
        learns = self.pattern is None or self.pattern.cut
        if (
            program is None
            or not recording.passes
            or recording.pending
            or ops.flying
            or ops.views.odd
            or ops.in_backward
            or ops.in_optimizer
            or program.applies
            or program.segment.lost is not None
            or (self.pattern is None and self._attempts > _ATTEMPTS)
        ):
            return
        self._segment, self._chunk, self._start = program.segment, ops.chunk, recording.end
        self._base, self._at, self._inside, self._next = ops.sequence, 0, -1, 0
        self._edge, self._first_stat = len(ops.chunk.edges) // 3, ops.chunk.stats.n
        self._begun = self._stepping = None
        ops.noting, ops.effects = self, []
        if learns and self._attempts <= _ATTEMPTS:
            self._attempts, self._missed = self._attempts + 1, 0
            self._learning = _Pattern()
            return
        pattern = self.pattern
        assert pattern is not None
        self._written = self._row = 0  # calls and rows that are written
        self._varied = self._moved = self._careful = False
        self._reads = not recording.puts_off
        # arguments that are other numbers; calls that wrote parameters or buffers, and these
        self._others: dict[int, tuple[Any, Any]] = {}
        self._owned: list[tuple[int, list[Tensor]]] = []
        self._stats = [-1] * len(pattern.rows)
        # of the whole step, but for what is known only when a call comes
        self._rows, self._edges = pattern.rows.copy(), pattern.edges + pattern.inner * recording.end
        self._rows[:, CALL] += recording.end
        self._rows[:, NODE] += pattern.has_node * ops.sequence
        count, first = len(pattern.slots), ops.ledger.number(len(pattern.made))
        self._refs, self._sources = [_gone] * count, array("q", bytes(8 * count))
        self._tensors, self._taken = [None] * count, set[int]()  # numbers of the leaves
        numbers = np.zeros(count, np.int64)
        numbers[pattern.made] = np.arange(first, first + len(pattern.made))
        self._numbers = array("q", numbers.tobytes())
        self._active, ops.again = True, self

    def end(self) -> None:
        """The step is over."""
        pattern, self._learning = self._learning, None
        self.ops.noting = None
        if pattern is not None:
            self._learned(pattern, cut=False)
        self.stop()

    def stop(self) -> None:
        """The rest of the step is not known."""
        pattern, self._learning = self._learning, None
        self.ops.noting = None
        if pattern is not None:
            self._learned(pattern, cut=True)
        if not self._active:
            return
        self.flush()
        assert self.pattern is not None
        pattern, inside, self._inside = self.pattern, self._inside, -1
        self.came.append(self._at == len(pattern.calls) and inside < 0)
        self._missed = 0 if self.came[-1] else self._missed + 1
        if self.came[-1] and not pattern.cut:
            self._attempts = 0
        stretch = pattern.stretches[inside] if inside >= 0 else None
        if isinstance(stretch, Engine):
            self._note_gradients(stretch)
        self._let_go()
        if isinstance(stretch, Engine) and self.ops.in_backward:
            self.hook()
        if self._missed > 1:  # not only one step that differs: the last batch of an epoch
            self.pattern = None

    def _let_go(self) -> None:
        self._active, self.ops.again, self._refs, self._tensors = False, None, [], []
        self._follows = False

    # -- a call that comes again

    def expects(self, func: Any, args: Any, kwargs: Any) -> _Known | None:
        """The call of the last step that is about to come again; None where another one is."""
        pattern, at = self.pattern, self._at
        assert pattern is not None
        known = pattern.calls[at] if at < len(pattern.calls) else None
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

    def _is_as_known(self, known: _Known, args: Any, kwargs: Any) -> bool:
        refs, tensors = self._refs, self._tensors
        frame = sys._getframe(3)
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
            if not self._numbers[slot]:
                if not self._meet(slot, value, storage):
                    return False
            elif storage is not refs[slot]():
                return False
        return self._about_to_run(known)

    def _comes_from_line(self, known: _Known, frame: Any) -> bool:
        """Whether the program makes a call at the same line of the same module."""
        ops = self.ops
        place = ops.lines.here(frame)
        return (
            place == known.place
            and ops.module == known.module
            and not ops.in_backward
            and _sequence() - self._base == known.sequence
            and bool(ops.depth or ops.in_optimizer or self._is_same_step(frame, place[0]))
        )

    def _comes_from_node(self, known: _Known, frame: Any) -> bool:
        """Whether the engine makes a call for the same node."""
        node = _node()
        if node is None or frame is None or id(frame.f_code) not in self.ops.engine_codes:
            return False
        number = node._sequence_nr()
        here = number - self._base if number < _LEAF else -1
        return here == known.node and _sequence() == self.ops.sequence

    def _comes_from_optimizer(self, known: _Known, frame: Any, kwargs: Any) -> bool:
        """Whether an optimizer makes a call at the same line, whatever numbers it is given."""
        ops = self.ops
        here = ops.step_place
        if not ops.in_optimizer or ops.in_backward or len(kwargs) != len(known.kwargs):
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
        """Whether no step begins with the call on this line, outside of every module."""
        ops, segment = self.ops, self._segment
        if line not in ops.clock.checked:
            if line in ops.clock.openers:
                return False
            ops.clock.checked.add(line)
            ops.notice_loop(frame, line)
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
            or entry.serial in self._taken
            or (entry.serial in segment.known and entry.serial not in segment.leaves)
            or entry.nbytes != leaf.nbytes
            or (leaf.fixed and entry.serial != leaf.number)
            or ((entry.views or entry.bad) and leaf.nbytes != value.numel() * value.itemsize)
            or entry.parts
            or entry.odd
            or entry.uninit
            or (self._reads and entry.last in ops.recording.bad)
        ):
            return False
        self._numbers[slot], self._sources[slot] = entry.serial, entry.last
        self._refs[slot] = entry.alive
        self._taken.add(entry.serial)
        if entry.serial not in segment.known:
            program.met(entry.serial, storage)
        return True

    def _about_to_run(self, known: _Known) -> bool:
        """Copy what it writes, and keep what it draws from; whether there was room."""
        program, segment = self.ops.program, self._segment
        assert program is not None
        for slot in known.saves:
            number = self._numbers[slot]
            if number in program.unsaved:
                program.save(number, self._refs[slot]())
        if known.plan.draws:
            segment.states[self._at] = torch.get_rng_state()
        return segment.lost is None

    def note(self, known: _Known, args: Any, kwargs: Any, out: Any) -> None:
        """Note the call, which has run."""
        ops, chunk, at, phase = self.ops, self._chunk, self._at, known.phase
        for j, slot in known.made:
            result = out if j < 0 else out[j]
            self._refs[slot] = ref(result.untyped_storage())
            if phase == OPTIMIZER:
                self._tensors[slot] = result
        if known.floats or (kwargs and phase == OPTIMIZER):
            before = self.pattern.noted[8 * at + 1]  # type: ignore[union-attr]
            packed = [*before]
            for i in known.floats:
                packed[i] = args[i]
                self._varied |= args[i] != before[i] and phase != OPTIMIZER
            self._others[at] = tuple(packed), kwargs or {}
        if known.notices:
            self._owned.append((at, [row.of(args, out) for row in known.rows]))
        for slot in known.last_use:
            self._tensors[slot] = None
        self._at = at + 1
        if phase == FORWARD:
            ops.sequence = self._base + known.sequence
        chunk.late, chunk.coming = self.flush, known.row + len(known.rows) - self._row
        if self._reads:
            self._summarise(known, args, kwargs, out)

    def _summarise(self, known: _Known, args: Any, kwargs: Any, out: Any) -> None:
        """Make the statistics of its results; from a bad one on calls are worked out."""
        chunk, recording = self._chunk, self.ops.recording
        stats, bad = chunk.stats, False
        for at, row in known.own:
            self._stats[at] = (chunk.number << 32) | stats.add(row.of(args, out))
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
            node=_node() if self.ops.in_backward else None,
        )
        self.ops.evidence.judge(made)

    # -- what came

    def flush(self) -> None:
        """Write the rows of the calls that came, and what is known of the memory they wrote."""
        pattern, first, end = self.pattern, self._written, self._at
        self._chunk.late = None
        if not self._active or first == end:
            return
        assert pattern is not None
        known, start = self._write_calls(pattern, first, end), self._start
        self._enter(known)
        owned, self._owned = self._owned, []
        for at, targets in owned:
            self.ops.notice_owners(targets, start + pattern.calls[at].row, {}, inside=True)

    def _write_calls(
        self, pattern: _Pattern, first: int, end: int, told: bool = True
    ) -> list[_Known]:
        """Write rows, edges, and the program's calls; the calls. told: with their numbers."""
        self._written, self._row = end, pattern.end_of(end - 1)[0]
        ops, chunk, segment = self.ops, self._chunk, self._segment
        known, start, calls = pattern.calls[first:end], self._start, segment.calls
        low, (row, edge, number) = known[0], pattern.end_of(end - 1)
        serials, moved = np.frombuffer(self._numbers, np.int64), len(calls.numbers) - low.number
        calls.numbers.frombytes(serials[pattern.numbers[low.number : number]].tobytes())
        noted = pattern.noted[8 * first : 8 * end]
        noted[4::8] = [start + each.row for each in known]
        noted[7::8] = [moved + each.number for each in known]
        others, self._others = self._others, {}
        for at, (args, kwargs) in others.items():
            noted[8 * (at - first) + 1 : 8 * (at - first) + 3] = args, kwargs
        for at, each in enumerate(known):
            if told and each.plan.scalars:
                ops.note_scalars(start + each.row, noted[8 * at + 1])
        calls.noted += noted
        sources = np.frombuffer(self._sources, np.int64)
        self._edges[pattern.outer, 1] = sources[pattern.outer_slots]
        chunk.edges.frombytes(self._edges[low.edge : edge].tobytes())
        rows = self._rows[low.row : row]
        rows[pattern.has_pass[low.row : row], PASS] = ops.backward_pass
        self._put_off(pattern, low.row, row)
        rows[:, STAT] = self._stats[low.row : row]
        chunk.meta.frombytes(rows.tobytes())
        return known

    def _put_off(self, pattern: _Pattern, first: int, end: int) -> None:
        """The numbers of the statistics of the rows from one to another."""
        chunk, recording, stats = self._chunk, self.ops.recording, self._stats
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
            stats[at] = stats[row] if row >= 0 else recording.stat_of(self._sources[-1 - row])

    def _enter(self, known: list[_Known]) -> None:
        """Note which rows tell what memory holds now."""
        ops, start, base, segment = self.ops, self._start, self._base, self._segment
        bad, nodes = ops.recording.bad, ops.recording.nodes.rows
        index = len(segment.calls) - len(known)
        for at, each in enumerate(known, index):
            position = start + each.row
            if each.node >= 0 and each.phase == FORWARD:
                nodes[base + each.node] = (
                    *(position, each.plan.number),
                    *(*each.place, each.module, False),
                )
            if each.inside is not None and not self._reads:
                segment.inside[at] = each.inside
            for number, row in enumerate(each.rows, position):
                if row.new:
                    segment.known.add(self._numbers[row.slot])
                entry = self._entry(row.slot)
                if entry is None:
                    continue
                if row.alias:
                    if not row.whole:
                        if entry.views is None:
                            entry.views = {}
                        entry.views[row.key] = number
                    continue
                entry.views, entry.uninit, entry.last = None, each.plan.uninitialised, number
                entry.bad = int(number in bad) if self._reads else -1 if row.numel >= 0 else 0
                entry.grad |= row.grad

    def _entry(self, slot: int) -> Entry | None:
        """What is known of the storage of a slot; None where it is gone."""
        storage, ledger = self._refs[slot](), self.ops.ledger
        if storage is None:
            return None
        entry = ledger.entries.get(storage._cdata)
        if entry is None:
            ledger.promised[storage._cdata] = self._numbers[slot]
            entry = ledger.enter(storage)
        return entry

    # -- learning

    def noted(
        self, call: int, place: tuple[int, ...], args: Any, kwargs: Any, out: Any, frame: Any
    ) -> None:
        """A call was worked out: learn it, or compare it with that of the last step."""
        ops, calls = self.ops, self._segment.calls
        effects, ops.effects = ops.effects, []
        tensors = [*_of_kind((args, *kwargs.values(), out), Tensor)]
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
        worked = _Worked(call, place, args, kwargs, out, numbers, entries, effects)
        if self._learning is not None:
            self._learn(self._learning, worked, frame)
        elif not self._is_same(worked):
            self.stop()
        return None

    def _is_same(self, worked: _Worked) -> bool:
        """Whether a call that was worked out is that of the last step."""
        pattern, at, chunk, ops = self.pattern, self._at, self._chunk, self.ops
        assert pattern is not None
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
            or not all(_is_alike(old[i], new[i]) for i in (1, 2))
        ):
            return False
        reads = [source for source, _ in ops.recording.operands(worked.call)]
        if self._reads and self._which_bad(worked.call, reads, row - known.row) != known.bad:
            self._careful = True
        phase, node, line, site, module = worked.place
        node -= self._base if node >= 0 else 0
        self._moved |= (node, (line, site), module) != (known.node, known.place, known.module)
        if phase != OPTIMIZER:
            self._varied |= new[1] != old[1] or new[2] != old[2]
        lasts = dict(zip(reversed(worked.numbers[: len(reads)]), reversed(reads), strict=True))
        slots = pattern.order[known.number : number]
        for slot, number, entry in zip(slots, worked.numbers, worked.entries, strict=True):
            leaf = pattern.leaves.get(slot)
            if leaf is not None and not self._numbers[slot]:
                if number in self._taken or (leaf.fixed and leaf.number != number):
                    return False
                self._taken.add(number)
                self._numbers[slot], self._sources[slot] = number, lasts.get(number, entry.last)
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

    def _learn(self, pattern: _Pattern, worked: _Worked, frame: Any) -> None:
        """Learn the call that was worked out last."""
        ops, chunk, recording = self.ops, self._chunk, self.ops.recording
        noted = self._segment.calls.noted[-8:]
        func, packed, named, _, _, grad, _, _ = noted
        plan, call = ops.plans[id(func)], worked.call
        rows = np.array(chunk.meta[(call - chunk.start) * WIDTH :], np.int64).reshape(-1, WIDTH)
        reads = [source for source, _ in recording.operands(call)] if len(rows) else []
        edge = len(chunk.edges) // 3 - self._edge - len(reads)
        phase, node, line, site, module = worked.place
        known = _Known(func, plan, call - self._start, edge, len(pattern.order), phase)
        pattern.calls.append(known)
        pattern.noted += noted
        inputs = sum(1 for _ in _of_kind((packed, *named.values()), View))
        for at, (number, entry) in enumerate(zip(worked.numbers, worked.entries, strict=True)):
            if number in pattern.slots:
                continue
            slot = pattern.slots[number] = len(pattern.slots)
            if at < inputs:
                pattern.leaves[slot] = _Leaf(number, entry.nbytes, entry.owner >= 0)
                if len(reads) == inputs:
                    pattern.sources[slot] = reads[at]
                    stat = recording.stat_of(reads[at])
                    if reads[at] < self._start and stat >= 0:
                        pattern.stats.setdefault(stat, -1 - slot)
            else:
                pattern.made.append(slot)
        slots = [pattern.slots[number] for number in worked.numbers]
        pattern.order += slots
        known.sequence, known.grad, known.module = ops.sequence - self._base, grad, module
        known.place, known.node = (line, site), node - self._base if node >= 0 else -1
        before = pattern.calls[-2].sequence if len(pattern.calls) > 1 else 0
        made_node = phase == FORWARD and node >= 0
        if recording.puts_off:
            known.inside = torch_caller(frame)
        known.bad = self._which_bad(call, reads, len(rows))
        known.slow = not (
            len(rows)
            and phase in (FORWARD, BACKWARD, OPTIMIZER)
            and (phase == BACKWARD) == bool(ops.in_backward)
            and (len(reads) == inputs or (not reads and (plan.uninitialised or plan.blind)))
            and (rows[:, PHASE] == phase).all()
            and not rows[:, DEVICE].any()
            and known.sequence - before == made_node
            and (phase == BACKWARD or node == (ops.sequence - 1 if node >= 0 else -1))
            and (
                recording.puts_off or not (known.bad or plan.keeps(worked.args, phase == OPTIMIZER))
            )
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

    def _which_bad(self, call: int, reads: list[int], rows: int) -> tuple[bool, ...]:
        """Of what a call reads and makes, whether it is bad; () where nothing is."""
        bad = self.ops.recording.bad
        told = tuple([at in bad for at in (*reads, *range(call, call + rows))]) if bad else ()
        return told if any(told) else ()

    def _learn_arguments(
        self, known: _Known, args: Any, packed: Any, named: Any, slots: list[int]
    ) -> bool:
        """What there is to compare of the arguments; whether no more is."""
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

    def _learn_rows(self, pattern: _Pattern, known: _Known, worked: _Worked, rows: Any) -> bool:
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
        saves: list[int] = []
        for at, ((j, i), effect, row) in enumerate(
            zip(where, worked.effects, rows.tolist(), strict=True), known.row
        ):
            serial, new, alias, whole = effect
            t = args[i] if j == -2 else out if j < 0 else out[j]
            if serial not in pattern.slots or not isinstance(t, Tensor) or t.is_complex():
                return False
            slot, entry = pattern.slots[serial], worked.entry(serial)
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
            if not (alias or whole):
                return False
            if row[STAT] >= 0 and self._whose(pattern, row[STAT], at) is None:
                return False
            numel = t.numel() if row[STAT] >= 0 else -1
            told = _Row(j, i, slot, new, alias, whole, view_key(t), numel, entry.grad)
            known.rows.append(told)
            if row[STAT] >= 0 and self._whose(pattern, row[STAT], at) == at:
                known.own.append((at, told))
        for slot in saves:
            pattern.leaves[slot].fixed |= known.phase != BACKWARD
            if slot not in pattern.written:
                known.saves.append(slot)
        pattern.written.update(saves)
        return True

    def _is_buffer(self, entry: Entry) -> bool:
        """Whether what a call wrote is a buffer, or nothing that a module holds."""
        kinds, ops = self.ops.recording.parameter_kinds, self.ops
        if entry.owner < 0:
            return not entry.asked
        return kinds[entry.owner] == "buffer" and bool(ops.depth)

    def _whose(self, pattern: _Pattern, stat: int, at: int) -> int | None:
        """Whose statistics a row has: a row's (its own: ``at``), a leaf's (-1 - slot)."""
        if stat in pattern.stats:
            return pattern.stats[stat]
        return at if self._is_own(stat) else None

    def _is_own(self, stat: int) -> bool:
        """Whether the step made the statistics."""
        return stat >> 32 == self._chunk.number and stat & 0xFFFFFFFF >= self._first_stat

    def _learned(self, pattern: _Pattern, cut: bool) -> None:
        """The calls of a step, or the first of them, are learned."""
        ops, start, chunk = self.ops, self._start, self._chunk
        if not pattern.calls or ops.program is None or chunk.positions is not None:
            return
        first = (start - chunk.start) * WIDTH
        rows = np.array(chunk.meta[first:], np.int64).reshape(-1, WIDTH)
        edges = np.array(chunk.edges[3 * self._edge :], np.int64).reshape(-1, 3)
        rows = rows[: self._end_of_rows(pattern, rows)]
        edges = edges[edges[:, 0] < start + len(rows)]
        for known in pattern.calls:
            if known.phase == BACKWARD and known.stretch < 0:
                known.slow = True  # hooks look at what it makes
        for at, row in enumerate(rows.tolist()):
            whose = pattern.stats.get(row[STAT]) if row[STAT] >= 0 else None
            if whose == at:
                pattern.own.append(at)
                pattern.numels.append(self._numel(row))
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
        if self.pattern is None or not cut or len(pattern.calls) > len(self.pattern.calls):
            self.pattern = pattern

    def _end_of_rows(self, pattern: _Pattern, rows: Any) -> int:
        """Rows of the calls that were learned."""
        last = self._start + pattern.calls[-1].row
        return int(np.searchsorted(rows[:, CALL], last, side="right"))

    def _numel(self, row: list[int]) -> int:
        shape: tuple[int, ...] = self.ops.recording.shapes.items[row[4]]
        return int(np.prod(shape, dtype=np.int64))

    # -- runs of the engine

    def engine_begins(self, run: EngineRun, place: tuple[int, int]) -> Engine | None:
        """The engine is about to run; its last run where its calls will come again."""
        ops, program = self.ops, self.ops.program
        self._begun, self.ran_python = None, False
        self.arrivals.clear()
        assert program is not None
        segment = program.segment
        usual = not (
            ops.in_backward
            or ops.in_optimizer
            or program.applies
            or program.shared
            or segment.hooks
            or segment.lost is not None
            or not run.accumulates
            or run.create_graph
            or run.inputs
            or _get_current_dispatch_mode() is not ops
        )
        if self._learning is not None and usual and segment is self._segment:
            self._begun = _Counts(ops, self._learning)
        if not self._active:
            return None
        assert self.pattern is not None
        stretch: Engine | None = self._due(Engine)
        if stretch is None:
            return None
        if not (
            usual and place == stretch.place and not self._moved and self._leads_to(stretch, run)
        ):
            self.stop()
            return None
        self._inside, self._next, self._run = self._next, self._next + 1, run
        if not (self._reads or self._varied or self._careful):
            self.silent += 1
            _pop_mode()
            self._popped = self._silent = True
        return stretch

    def _due(self, kind: Any) -> Any:
        """The stretch that begins with the next call; None where there is none."""
        assert self.pattern is not None
        stretches = self.pattern.stretches
        if self._inside < 0 and self._next < len(stretches):
            stretch = stretches[self._next]
            if stretch.first == self._at and isinstance(stretch, kind):
                return stretch
        return None

    def _leads_to(self, stretch: Engine, run: EngineRun) -> bool:
        """Whether it begins from the same results, and its leaves have no gradient."""
        pattern = self.pattern
        assert pattern is not None
        before = (*stretch.run.roots, *stretch.run.gradients)
        now = (*run.roots, *run.gradients)
        return (
            len(before) == len(now)
            and all(
                a == b
                if a.__class__ is not Ref
                else b.__class__ is Ref and self._number_of(a) == b.storage and a[1:] == b[1:]
                for a, b in zip(before, now, strict=True)
            )
            and all(self._numbers[slot] for slot in stretch.needs)
            and all(
                g.leaf.grad is None and self._numbers[g.leaf_slot] == g.ref.storage
                for g in stretch.gradients
            )
        )

    def _number_of(self, old: Ref) -> int:
        """The number in this step of a storage of the learned one."""
        assert self.pattern is not None
        slot = self.pattern.slots.get(old.storage)
        return -1 if slot is None else self._numbers[slot]

    def observe_again(self) -> None:
        """Observe what the program calls."""
        if self._popped:
            self._popped = False
            _push_mode(self.ops)

    def engine_ended(self, run: EngineRun, stretch: Engine | None, failed: bool) -> None:
        """The engine has run: note its calls, or learn them."""
        if stretch is None:
            begun, self._begun, pattern = self._begun, None, self._learning
            if begun is not None and pattern is not None and not failed:
                with suppress(_Unlike):
                    self._stretch(pattern, self._engine(pattern, run, begun))
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

    def _stretch(self, pattern: _Pattern, stretch: Engine | Optimizer) -> None:
        pattern.stretches.append(stretch)
        for known in pattern.calls[stretch.first : stretch.end]:
            known.stretch = len(pattern.stretches) - 1

    def _was_silent(self, stretch: Engine) -> bool:
        """Note the calls of a run that was not observed; whether it gave what it had given."""
        ops, chunk, pattern = self.ops, self._chunk, self.pattern
        assert ops.program is not None and pattern is not None
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
            self._refs[g.slot] = ref(gradient.untyped_storage())
            self._stats[g.own] = (chunk.number << 32) | chunk.stats.add(gradient)
        first, self._at = self._at, stretch.end
        known = self._write_calls(pattern, first, stretch.end)
        index = len(self._segment.calls) - len(known)
        for at, each in enumerate(known, index):
            if each.inside is not None:
                self._segment.inside[at] = each.inside
        return True

    def _note_gradients(self, stretch: Engine) -> None:
        """Note the gradients that came, and the nodes that ran."""
        ops, start, sources = self.ops, self._start, self._sources
        program, recording, number = ops.program, ops.recording, ops.backward_pass
        assert program is not None
        self.flush()
        done = recording.end - start
        for g in stretch.gradients:
            entry = self._entry(g.slot) if g.rows <= done else None
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

    def graph_of(self, stretch: Engine) -> tuple[list[tuple[int, int]], set[int], int, bool]:
        """Edges of the graph, its nodes, the oldest of them, and that no gradients are there."""
        edges = list(map(tuple, (stretch.graph + self._base).tolist()))
        nodes = {n + self._base if n >= 0 else n for n in stretch.nodes}
        return edges, nodes, stretch.oldest + self._base, False

    def _engine(self, pattern: _Pattern, run: EngineRun, begun: _Counts) -> Engine:
        """The run that is over, as it may come again."""
        ops, chunk, start, recording = self.ops, self._chunk, self._start, self.ops.recording
        now, first = _Counts(ops, pattern), begun.position - chunk.start
        rows = np.array(chunk.meta[first * WIDTH :], np.int64).reshape(-1, WIDTH)
        calls, noted = pattern.calls[begun.calls :], pattern.noted
        if (
            self.ran_python
            or run.before
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
            own = row[STAT] < 0 or pattern.stats[row[STAT]] != at or self._is_own(row[STAT])
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
        gradients = self._gradients(pattern, run, begun)
        if len([each for each in runs if each[1] == ACCUMULATES]) != len(gradients):
            raise _Unlike
        made = {n for n, slot in pattern.slots.items() if slot >= begun.slots}
        made -= {gradient.storage for gradient in run.after.values()}
        if any(entry.serial in made for entry in ops.ledger.entries.values()):
            raise _Unlike  # something else remains of it
        if not any(n >= 0 for n in nodes):
            raise _Unlike
        number = calls[0].number if calls else len(pattern.order)
        return Engine(
            first=begun.calls,
            end=len(pattern.calls),
            place=(backward.line, backward.site),
            run=run,
            gradients=gradients,
            runs=runs,
            graph=np.array([(node_of(a), node_of(b)) for a, b in backward.edges], np.int64).reshape(
                -1, 2
            ),
            nodes=nodes,
            oldest=min(n for n in nodes if n >= 0),
            needs={slot for slot in pattern.order[number:] if slot < begun.slots},
        )

    def _gradients(self, pattern: _Pattern, run: EngineRun, begun: _Counts) -> list[Gradient]:
        """The gradients that leaves got, in the order in which they came."""
        ops, start, found = self.ops, self._start, []
        if len(run.after) != len(self.arrivals):
            raise _Unlike
        arrived = zip(self.arrivals, run.after.items(), strict=True)
        for (leaf, source, end), (told, gradient) in arrived:
            slot = pattern.slots.get(getattr(gradient, "storage", -1), -1)
            leaf_slot = pattern.slots.get(getattr(told, "storage", -1), -1)
            given = leaf.grad
            if given is None or leaf.__class__ not in PLAIN or leaf_slot < 0:
                raise _Unlike
            view = ops.views.of(given, None)
            entry = ops.ledger.entries.get(given.untyped_storage()._cdata)
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
            ):
                raise _Unlike
            own = pattern.stats[ops.recording.stat_of(source)]
            if own < begun.position - start:
                raise _Unlike
            found.append(
                Gradient(leaf, told, leaf_slot, view, slot, source - start, own, end - start)
            )
        if len({each.slot for each in found}) != len(found):
            raise _Unlike
        return found

    # -- steps of an optimizer

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        ops, program = self.ops, self.ops.program
        self._stepping, place = None, ops.step_place
        learns = self._learning is not None
        if (
            not (self._active or learns)
            or program is None
            or place is None
            or ops.in_optimizer != 1
            or program.segment is not self._segment
            or optimizer.defaults.get("differentiable", False)
        ):
            return
        kept, gradients = tensors_of(optimizer)
        views = [None if g is None else ops.views.of(g, tracked_by(g)) for g in gradients]
        tensors = [*kept, *(g for g in gradients if g is not None)]
        if not all(t.is_cpu and t.layout is torch.strided for t in tensors):
            return
        if self._learning is not None:
            first, settings = len(self._learning.calls), settings_of(optimizer)
            self._stepping = first, tensors, place, kept, views, settings
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
            and self._has(stretch, tensors)
        ):
            return self.stop()
        self._inside, self._next = self._next, self._next + 1
        if self._careful or stretch.settings is None or settings_of(optimizer) != stretch.settings:
            return None
        unsaved = [slot for slot, _, _ in stretch.writes if self._numbers[slot] in program.unsaved]
        if not self._reads and len(unsaved) < len(stretch.writes):
            return None
        for slot in unsaved:
            program.save(self._numbers[slot], self._refs[slot]())
        if not self._reads:
            self._step_silently(stretch, type(optimizer))
        else:
            self._follows = program.segment.lost is None
        return None

    def _has(self, stretch: Optimizer, tensors: list[Tensor]) -> bool:
        """Whether each tensor is what it was in the last step, and whole."""
        entries, bad = self.ops.ledger.entries, self.ops.recording.bad
        for slot, t in zip(stretch.slots, tensors, strict=True):
            storage = t.untyped_storage()
            entry = entries.get(storage._cdata)
            if entry is None or entry.parts or (self._reads and entry.last in bad):
                return False
            if not self._numbers[slot]:
                if not self._meet(slot, t, storage):
                    return False
            elif storage is not self._refs[slot]():
                return False
            self._tensors[slot] = t
        return True

    def _step_silently(self, stretch: Optimizer, kind: Any) -> None:
        """Let the step run unobserved."""
        ops = self.ops
        if _get_current_dispatch_mode() is not ops:
            return
        self._unobserved = Numbers(ops, stretch.calls, kind, self._start)
        self.silent += 1
        _pop_mode()
        self._popped = True

    def optimizer_ended(self) -> None:
        """The step of the optimizer is over."""
        numbers, self._unobserved, self._follows = self._unobserved, None, False
        self.observe_again()
        self.ops.settle()
        stepping, self._stepping = self._stepping, None
        if self._learning is not None and stepping is not None:
            self._learn_optimizer(self._learning, *stepping)
        if self.pattern is None or not self._active or self._inside < 0:
            return
        stretch = self.pattern.stretches[self._inside]
        if not isinstance(stretch, Optimizer):
            return
        if numbers is not None:
            self._stepped_silently(stretch, numbers)
        if self._at != stretch.end:
            return self.stop()
        self._inside = -1
        self.flush()
        self._tensors = [None] * len(self._tensors)  # else gradients would outlive zero_grad()

    def _stepped_silently(self, stretch: Optimizer, numbers: Numbers) -> None:
        """Note the calls of a step that was not observed."""
        ops, calls, start = self.ops, self._segment.calls, self._start
        assert self.pattern is not None
        numbers.first = len(calls.noted)
        first, self._at = self._at, stretch.end
        known = self._write_calls(self.pattern, first, stretch.end, told=False)
        calls.late.append(numbers.fill)
        index = len(calls) - len(known)
        for at, each in enumerate(known, index):
            if each.inside is not None:
                self._segment.inside[at] = each.inside
        for slot, row, notices in stretch.writes:
            entry, tensor = self._entry(slot), self._tensors[slot]
            if entry is not None and tensor is not None:
                entry.views, entry.last, entry.bad = None, start + row, -1
                if notices:
                    ops.notice_owners([tensor], start + row, {}, inside=True)

    def _learn_optimizer(
        self,
        pattern: _Pattern,
        first: int,
        tensors: list[Tensor],
        place: tuple[int, int],
        kept: list[Tensor],
        views: list[View | None],
        settings: list[dict[str, Any]] | None,
    ) -> None:
        """Learn the step that is over."""
        calls, slots = pattern.calls[first:], []
        for t in tensors:
            entry = self.ops.ledger.entries.get(t.untyped_storage()._cdata)
            slot = -1 if entry is None else pattern.slots.get(entry.serial, -1)
            if entry is None or slot < 0 or entry.nbytes != t.numel() * t.itemsize:
                return
            slots.append(slot)
        if not calls or len(set(slots)) != len(slots) or any(k.phase != OPTIMIZER for k in calls):
            return
        later = set(slots)
        for known in reversed(calls):
            used = set(pattern.order[known.number : pattern.end_of_numbers(known)])
            known.last_use = tuple(used - later)
            later |= used
        writes = [
            (row.slot, known.row + at, known.notices)
            for known in calls
            for at, row in enumerate(known.rows)
            if row.slot in pattern.leaves and not row.alias
        ]
        simple = not any(known.slow or known.plan.draws for known in calls)
        simple &= {slot for slot, _, _ in writes} <= set(slots[: len(kept)])
        simple &= later & pattern.leaves.keys() <= set(slots)
        told = settings if simple else None
        end, noted = len(pattern.calls), pattern.noted[8 * first :]
        made = zip(calls, noted[1::8], strict=True)
        told_calls = [(known.func, args, known.plan.scalars, known.row) for known, args in made]
        self._stretch(
            pattern,
            Optimizer(first, end, place, kept, views, slots, writes, told, told_calls),
        )

    def interrupted(self) -> None:
        """The program runs on, or ends, though no step was seen to end."""
        if self._unobserved is not None:
            self._unobserved = None
            self.observe_again()
            self._inside = -1
            self._let_go()
            if self.ops.program is not None:
                self.ops.program.lose("a step of its optimizer raised an exception")


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


def _is_alike(old: Any, new: Any) -> bool:
    """Whether arguments are the same, but for numbers that are no integers."""
    if old is new or old.__class__ is not new.__class__:
        return old is new
    if old.__class__ is tuple or old.__class__ is list:
        return len(old) == len(new) and all(map(_is_alike, old, new))
    if old.__class__ is dict:
        return old.keys() == new.keys() and all(_is_alike(old[k], new[k]) for k in old)
    return old.__class__ is float or bool(old == new)


def _is_held(value: Any) -> bool:
    """Whether an argument or result holds a tensor that is no plain view."""
    if value.__class__ is tuple or value.__class__ is list:
        return any(map(_is_held, value))
    return isinstance(value, (Held, Tensor, torch.Generator))


def _of_kind(value: Any, kind: Any) -> Iterator[Any]:
    """What is of a kind among arguments or results, in their order."""
    if isinstance(value, kind):
        yield value
    elif value.__class__ is tuple or value.__class__ is list:
        for item in value:
            yield from _of_kind(item, kind)
