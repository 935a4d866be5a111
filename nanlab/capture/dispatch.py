"""Each ATen operation: where it runs, what it reads, what it writes. The hot path."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from nanlab.capture.evidence import Evidence
from nanlab.capture.learned_step import LearnedStep
from nanlab.capture.ledger import (
    PLAIN,
    Entry,
    Ledger,
    TensorViews,
    known_stat,
    shape_of,
    shows_all,
    storage_of,
    view_key,
)
from nanlab.capture.location import Locator, Place, _node
from nanlab.capture.places import SourceLines, torch_caller
from nanlab.capture.plans import (
    Call,
    IndexGuard,
    Plan,
    argument,
    plan_for,
    saved_names,
    saved_values,
    tensors_of,
)
from nanlab.capture.program import NUMBERS, ProgramRecorder
from nanlab.capture.ranks import Collectives
from nanlab.capture.reader import Reader
from nanlab.capture.steps import StepClock
from nanlab.formats import HALF_PRECISION
from nanlab.operators import having
from nanlab.stats.memory import local_part
from nanlab.stats.table import WORTH_PUTTING_OFF
from nanlab.trace.chunk import (
    FACTOR,
    INPLACE,
    LITERAL,
    NOGRAD,
    UNINIT,
    VIEW,
    Chunk,
    pack_edge,
    pack_edges,
    pack_row,
)
from nanlab.trace.escapes import ReadOut
from nanlab.trace.mode import DispatchMode
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, OTHER
from nanlab.trace.program import View
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
# Operators in which a Python infinity computes; in others it is a bound, a mask, what memory is
# filled with.
_COMPUTES = having("arithmetic", "updates", in_place=True)
_active: WeakSet[OpRecorder] = WeakSet()


def _forked() -> None:
    for recorder in _active:
        # a DataLoader worker inherits the watch; it is not the program that is watched
        recorder.off = True


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


class _Harmless:
    """A block of our own code: an exception in it does not reach the program."""

    def __init__(self, ops: OpRecorder) -> None:
        self._ops = ops

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self._ops.failed(error)
        return True


class OpRecorder(DispatchMode):
    """Writes one row for each output of each operation.

    ``special`` is called with (kind, position, args) after an operation of a loss scaler, ``wrote``
    with (entry, position, tensor) after a parameter or buffer was written under ``no_grad``,
    ``adopt`` with a tensor that turns out to be a parameter, ``failed`` with an exception of our
    own, ``fault_shown`` where a loss is bad.
    """

    supports_higher_order_operators = True

    def __init__(self, recording: Recording, lines: SourceLines, clock: StepClock) -> None:
        super().__init__()
        self.recording, self.lines, self.clock = recording, lines, clock
        self.where = Locator(recording, lines, clock)
        self.ledger = Ledger()
        self.reader = Reader(recording, self.ledger)
        self.source, self.know = self.reader.source, self.reader.know
        self.views = TensorViews(recording.shapes, recording.dtypes)
        self.evidence = Evidence(recording, self.ledger)
        self.guard = IndexGuard(self)
        self.chunk = recording.chunks[-1]
        self.plans: dict[int, Plan] = {}
        self.program: ProgramRecorder | None = None
        self.learned = LearnedStep(self)
        # while a step makes the calls of the last one
        self.again: LearnedStep | None = None
        # what learns or compares the calls that are worked out
        self.noting: LearnedStep | None = None
        # of each row of the running call: number of the storage; whether the call made it, the row
        # shows memory that was there, the row shows all of its memory
        self.effects: list[tuple[int, bool, bool, bool]] = []
        self.off = False
        self.is_aside = False  # whether the dispatch mode is off for a while
        self.special: Callable[[str, int, tuple[Any, ...]], None] = lambda kind, position, args: (
            None
        )
        self.wrote: Callable[[Entry, int, Tensor], None] = lambda entry, position, tensor: None
        self.adopt: Callable[[Tensor], int] = lambda tensor: -1
        self.failed: Callable[[Exception], None] = lambda error: None
        self.fault_shown: Callable[[], None] = lambda: None
        self.harmless = _Harmless(self)
        self._flags = 0  # of the row of the running call
        # of the last row: id of the tensor, number of its storage, view
        self._result: tuple[int, int, View | None] = (0, 0, None)
        self.collectives = Collectives(self)
        self.flying = self.collectives.flying  # collectives whose results have not been read
        _active.add(self)

    @contextmanager
    def aside(self, flags: int) -> Iterator[None]:
        """Set the running call's flags aside while rows of another call are written."""
        reader = self.reader
        before = self._flags, reader.grad, reader.vague, reader.lifting
        self.reset(flags)
        try:
            yield
        finally:
            self._flags, reader.grad, reader.vague, reader.lifting = before

    def reset(self, flags: int = 0) -> None:
        reader = self.reader
        self._flags, reader.grad, reader.vague, reader.lifting = flags, False, False, False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Our own operations: not recorded, not differentiated."""
        before, self.off = self.off, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.off = before

    # -- one operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # overloads live for ever, and hashing one costs a Python call
        plan = self.plans.get(id(func))
        if plan is None:
            try:
                plan = self.plans[id(func)] = plan_for(func, self.recording.ops)
            except Exception as error:
                self.failed(error)
                return func(*args, **kwargs)
        if plan.skip or self.off:
            if plan.collective and not self.off:
                self.learned.stop()
                return self.collectives.call(func, plan, args, kwargs, sys._getframe().f_back)
            value = func(*args, **kwargs)
            if plan.reads_out and not self.off:
                self._note_read_out(args[0], value, sys._getframe().f_back)
            elif plan.name == "resize_" and not self.off and self.program is not None:
                self.learned.stop()
                self.program.lose("resize_ changes the size of a storage")
            return value
        again = self.again
        if again is not None:
            known = None
            try:
                known = again.expects(func, args, kwargs)
            except Exception as error:
                self.failed(error)
            if known is not None:
                try:
                    out = plan.run(*args, **kwargs)
                except Exception:
                    sources = self.read(plan, args, kwargs)  # read from this frame
                    raise
                try:
                    again.note(known, args, kwargs, out)
                except Exception as error:
                    self.failed(error)
                return out
        frame = sys._getframe().f_back
        try:
            place = self.where.place(frame)
            sources, packed = self.take(plan, args, kwargs)
            old = None if plan.plain else self._before_write(plan, args, kwargs)
        except Exception as error:
            self.failed(error)
            return func(*args, **kwargs)
        if plan.indexes:
            self.guard.before(plan.name, args, frame)
        out = plan.run(*args, **kwargs)
        try:
            call = self.write(func, plan, args, kwargs, out, sources, old, place)
            program = self.program
            if packed is not None and program is not None:
                late = self.recording.puts_off or self.recording.pending
                if late and (inside := torch_caller(frame)) is not None:
                    program.segment.inside[len(program.segment.calls)] = inside
                same, number, view = self._result
                if same == id(out) and view is not None and isinstance(out, Tensor):
                    program.segment.known.add(number)
                    program.segment.calls.numbers.append(number)
                    packed_out = view
                else:
                    packed_out = program.pack_result(out)
                program.after(func, plan, packed, packed_out, out, call)
                if self.noting is not None:
                    self.noting.noted(call, place, args, kwargs, out, frame)
        except Exception as error:
            self.failed(error)
        return out

    def stop_observing(self) -> bool:
        """Let calls run unobserved until ``observe_again``; returns False if they already do."""
        if _get_current_dispatch_mode() is not self:
            return False
        _pop_mode()
        self.is_aside = True
        return True

    def observe_again(self) -> None:
        if self.is_aside:
            self.is_aside = False
            _push_mode(self)

    def settle(self) -> None:
        """Write down the calls that have run."""
        if self.chunk.late is not None:
            self.chunk.late()

    def _note_read_out(self, tensor: Tensor, value: Any, frame: FrameType | None) -> None:
        """Note a tensor read as a Python number: what is computed from it has no gradient."""
        with self.harmless:
            if self.flying:
                self.collectives.before_read((tensor,))
            self.reader.note_number(tensor, value)
            # an optimizer of torch's reads its own numbers
            updates = self.where.in_optimizer
            if self.where.in_backward or (updates and self.lines.torch_code(frame)):
                return
            self.settle()
            if self.program is not None:
                self.program.looked(tensor, value, self.lines.here(frame)[0])
            if updates:
                return
            escapes, source = self.recording.escapes, self.source(tensor)
            escapes.last_read = self.recording.end, source
            if tensor.requires_grad:
                escapes.add(ReadOut(self.recording.end, source, self.lines.here(frame)[0]))

    def take(self, plan: Plan, args: Any, kwargs: Any) -> tuple[list[int], Any]:
        """The sources of a call's operands, and its arguments as the program record keeps them."""
        program = self.program
        if program is None:
            return self.read(plan, args, kwargs), None
        if plan.rare or self.flying or self.views.odd or (kwargs and not _are_numbers(kwargs)):
            sources = self.read(plan, args, kwargs)
            return sources, program.before(plan, args, kwargs)
        reader = self.reader
        self._flags, reader.grad, reader.vague, reader.lifting = 0, False, False, False
        known, met, entries = self.views.known, program.segment.known, self.ledger.entries
        numbers = program.segment.calls.numbers
        first = len(numbers)
        sources, packed, shared = [], [], True
        strange = 0.0
        for value in args:
            kind = value.__class__
            if kind is Tensor or kind is Parameter:
                try:
                    storage = value.untyped_storage()
                    entry = entries[storage._cdata]
                    tracked = 0
                    if value.requires_grad:
                        tracked = 2 if value.is_leaf else 1
                    view = known[
                        value.storage_offset(), value.shape, value.stride(), value.dtype, tracked
                    ]
                    number = entry.serial
                    if entry.uninit or self.views.odd or (tracked and number in program.shared):
                        raise LookupError
                except Exception:  # seen for the first time, or more than a view of memory
                    sources.append(self.source(value))
                    packed.append(program.pack(value))
                    shared = False
                    continue
                if number not in met:
                    program.met(number, storage)
                numbers.append(number)
                packed.append(view)
                if entry.nbytes == view.nbytes and not entry.parts and not entry.odd:
                    if entry.grad:
                        reader.grad = True
                    sources.append(entry.last)
                else:
                    sources.append(reader.held_by(entry, value))
                continue
            if value is None:
                packed.append(value)
                continue
            shared = False
            if kind in NUMBERS:
                packed.append(value)
                if kind is float and value - value != 0.0:
                    strange = value
            else:
                strange = reader.take(value, sources) or strange
                packed.append(program.pack(value))
        for value in kwargs.values():
            if value.__class__ is float and value - value != 0.0:
                strange = value
        if strange:
            self._note_strange(plan, strange, sources)
        if not plan.plain or plan.draws:
            # most write their first argument only, after it was copied or made
            saved = plan.writes == (0,) and packed[0].__class__ is View and not plan.draws
            if not saved or numbers[first] in program.unsaved:
                program.about_to_run(plan, args, kwargs)
        arguments = tuple(packed)
        if shared:
            arguments = self.views.together.setdefault(arguments, arguments)
        return sources, (arguments, kwargs, first)

    def _note_strange(self, plan: Plan, value: float, sources: list[int]) -> None:
        """Note a Python number among the operands that is NaN or infinite."""
        origin = self.reader.number_read(value, plan.name in _COMPUTES)
        if origin is None:
            self._flags |= LITERAL
        else:
            sources.append(origin)

    def _before_write(self, plan: Plan, args: Any, kwargs: Any) -> Tensor | None:
        """A copy of what an in-place operation overwrites, where it is evidence and small."""
        if self.flying:
            self.collectives.before_write(targets_of(plan, args, kwargs, None)[0])
        wanted = plan.keeps(args, bool(self.where.in_optimizer))
        return args[0].detach().clone() if wanted else None

    def new_chunk(self, position: int) -> None:
        """Begin the table of a new training step."""
        self.chunk = self.reader.chunk = Chunk(len(self.recording.chunks), position)
        self.recording.chunks.append(self.chunk)

    # -- what it reads: the row or source behind each operand

    def read(self, plan: Plan, args: Any, kwargs: Any) -> list[int]:
        """The sources of a call's tensor operands, in the order of its arguments."""
        self.reset()
        sources: list[int] = []
        if plan.uninitialised:
            return sources
        self.reader.lifting = plan.lifts
        strange = 0.0
        if plan.blind:
            args = args[:1] if plan.fills else args[1:]
        if kwargs:
            args = (*args, *(v for k, v in kwargs.items() if k not in plan.writes))
        if self.flying and not plan.view:
            self.collectives.before_read(args)
        for value in args:
            strange = self.reader.take(value, sources) or strange
        if strange:
            self._note_strange(plan, strange, sources)
        # the copy holds other numbers than the memory
        if plan.copies and (args[0].is_conj() or args[0].is_neg()):
            self.reader.vague = True
        return sources

    # -- what it made or changed: its rows, and the memory behind them

    def write(
        self,
        func: Any,
        plan: Plan,
        args: Any,
        kwargs: Any,
        out: Any,
        sources: list[int],
        old: Tensor | None,
        place: Place,
    ) -> int:
        """Append the rows of a call; position of the first."""
        recording, chunk = self.recording, self.chunk
        call = chunk.end
        targets, made = (
            ([out], 1)
            if plan.plain and isinstance(out, Tensor)
            else targets_of(plan, args, kwargs, out)
        )
        if not targets:
            return call
        if len(sources) == 2:
            chunk.edges.frombytes(pack_edges(call, sources[0], 0, call, sources[1], 1))
        else:
            for slot, number in enumerate(sources):
                chunk.edges.frombytes(pack_edge(call, number, slot))
        phase, node, line, site, module = place
        if phase == FORWARD and not torch.is_grad_enabled():
            self._flags |= NOGRAD
            # reads gradients under no_grad: an optimizer written by hand, clipping
            if self.reader.grad and not self.where.depth:
                phase, place = OPTIMIZER, (OPTIMIZER, node, line, site, module)
        if phase == BACKWARD:
            node = self.where.made_in_function
        if node >= 0:
            recording.nodes.rows[node] = (call, plan.number, line, site, module, False)
        if plan.marked:
            self._mark(plan, call, args)
        bad, output = False, 0
        for target in targets:
            bad |= self.add_row(plan, place, output, call, target, sources, output >= made) > 0
            output += 1
        if self.judges_now and (bad or (recording.bad and not recording.bad.isdisjoint(sources))):
            running = _node() if self.where.in_backward else None
            judged = Call(
                func, plan, call, output, targets, sources, args, kwargs, old, self._flags, running
            )
            self.evidence.judge(judged)
        if plan.plain:
            return call
        if (plan.writes or plan.hidden) and (not torch.is_grad_enabled() or _outside(targets)):
            self.notice_owners(targets, call, kwargs)
        if plan.special:
            self.special(plan.special, call, args)
        if self.flying and plan.writes:
            self.collectives.after_write(targets)
        return call

    def _mark(self, plan: Plan, call: int, args: Any) -> None:
        """Note flags and numbers of a call that its operands do not show."""
        if plan.uninitialised:
            self._flags |= UNINIT
        elif (
            plan.scales
            and len(args) > 1
            and isinstance(args[1], (float, int))
            and 0.0 < abs(args[1]) < math.inf
        ):
            self._flags |= FACTOR
        if plan.scalars:
            self.note_scalars(call, args)

    def note_scalars(self, call: int, args: Any) -> None:
        """Keep the Python numbers among the operands."""
        numbers = tuple([v for v in args[1:] if v.__class__ is float or v.__class__ is int])
        if numbers:
            self.recording.scalars[call] = numbers

    def record_node(self, node: Any, name: str, taken: list[Tensor], given: list[Tensor]) -> None:
        """One row for each gradient that a node gave, where its operations were not observed."""
        recording, chunk = self.recording, self.chunk
        backward = name.rstrip("0123456789").removesuffix("Backward").lower() + "_backward"
        # reads, makes something new
        plan = Plan(backward, plain=True, number=recording.ops(backward))
        self.reset()
        with self.quiet():  # reading what a node saved makes tensors anew
            saved = tensors_of(saved_values(node, saved_names(node)).values())
        sources = [self.source(t) for t in (*taken, *saved)]
        number = node._sequence_nr()
        info = recording.nodes.get(number)
        where = (info.line, info.site, info.module) if info else (0, 0, 0)
        place = (BACKWARD, number, *where)
        call = recording.end
        for slot, source in enumerate(sources):
            chunk.edges.frombytes(pack_edge(call, source, slot))
        for output, target in enumerate(given):
            self.add_row(plan, place, output, call, target, sources, False)
        if self.judges_now and not recording.bad.isdisjoint(
            (*sources, *range(call, recording.end))
        ):
            judged = Call(
                None, plan, call, len(given), given, sources, (*taken, *saved), {}, None, 0, node
            )
            with self.quiet():
                self.evidence.judge(judged)

    def add_row(
        self,
        plan: Plan,
        place: Place,
        output: int,
        call: int,
        target: Tensor,
        sources: list[int],
        written: bool,
    ) -> int:
        """Append the row of one output; the number of its bad elements (-1: not known yet)."""
        recording, chunk, position = self.recording, self.chunk, call + output
        storage: torch.UntypedStorage | None
        try:
            if target.__class__ not in PLAIN:
                raise LookupError
            storage = target.untyped_storage()
            view: View | None = self.views.known[
                target.storage_offset(), target.shape, target.stride(), target.dtype, None
            ]
            assert view is not None
            local, nbytes = target, view.nbytes
            shape, dtype = view.shape_number, view.dtype_number
        except Exception:
            storage, view, local, nbytes, shape, dtype = self._look_at(target)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        new, alias = entry is None, entry is not None and not written  # of something known
        whole = entry is not None and entry.nbytes == nbytes
        if entry is not None and whole and (entry.odd or (alias and not plan.same_elements)):
            whole = shows_all(local, entry.nbytes)
            entry.odd = entry.odd or not whole
        arriving = (
            alias and bool(self.flying) and storage is not None and storage._cdata in self.flying
        )
        if plan.uninitialised or output in plan.opaque or arriving:
            stat, bad = -1, 0
        else:
            stat, bad = self._summarise(plan, entry, target, whole, sources, alias, written)
            if bad > 0:
                recording.bad.add(position)
            elif bad and not recording.puts_off:
                self.reader.await_device(call)
        chunk.meta.frombytes(
            pack_row(
                plan.number,
                place[0],
                place[4],
                output,
                shape,
                dtype,
                0 if target.is_cpu else recording.devices(str(target.device)),
                stat,
                place[1],
                place[2],
                place[3],
                self._flags | (VIEW if alias else INPLACE if written else 0),
                call,
                self.where.backward_pass,
            )
        )
        if entry is not None and alias:
            if not whole:
                entry.show(view_key(local), position)
        elif entry is not None:
            entry.write(position, bad, whole, plan.uninitialised)
            if self.reader.grad and place[0] == OPTIMIZER and entry.owner < 0:
                entry.grad = True
        elif storage is not None:
            entry = self.ledger.enter(storage)
            entry.last = position
            if bad:
                entry.bad = bad
            if plan.uninitialised:
                entry.uninit = True
            if self.reader.grad and place[0] == OPTIMIZER:
                entry.grad = True
        if self.noting is not None and entry is not None:
            whole = entry.nbytes == nbytes if new else whole
            self.effects.append((entry.serial, new, alias, whole))
        self._result = id(target), -1 if entry is None else entry.serial, view
        return bad

    def _look_at(
        self, target: Tensor
    ) -> tuple[torch.UntypedStorage | None, View | None, Tensor, int, int, int]:
        """Storage and view of a result, its local part, bytes, numbers of shape and dtype."""
        try:
            view = self.views.of(target, None)
        except Exception:
            view = None
        storage, local = storage_of(target), target
        known = storage is not None and storage._cdata in self.ledger.entries
        if not known and (local := local_part(target)) is not target:
            storage = storage_of(local)
            known = storage is not None and storage._cdata in self.ledger.entries
        shape = self.recording.shapes(shape_of(target))
        nbytes = local.numel() * local.itemsize if known else 0
        return storage, view, local, nbytes, shape, self.recording.dtypes(target.dtype)

    def _summarise(
        self,
        plan: Plan,
        entry: Entry | None,
        target: Tensor,
        whole: bool,
        sources: list[int],
        alias: bool,
        written: bool,
    ) -> tuple[int, int]:
        """The number of the statistics of a result; its count of bad elements (-1: unknown yet)."""
        recording = self.recording
        if not self.reader.vague and (alias or plan.copies or plan.pads):
            known = known_stat(recording, plan, entry if alias else None, target, whole, sources)
            if known >= 0:
                unknown = recording.pending
                if recording.puts_off:
                    unknown = recording.chunks[known >> 32].is_put_off(known)
                return known, 1 if sources[0] in recording.bad else -1 if unknown else 0
        stats = self.chunk.stats
        if recording.puts_off:
            inside = self.where.in_backward or self.where.in_optimizer
            clipped = written and not inside and entry is not None and entry.grad
            if not clipped and (numel := self._put_off(target)):
                return (self.chunk.number << 32) | stats.put_off((numel,)), -1
            row = stats.add(target)
            stats.flush()
        else:
            row = stats.add(target)
        return (self.chunk.number << 32) | row, stats.bad

    @property
    def judges_now(self) -> bool:
        """Whether bad values are known at once; else calls are judged when their step ends."""
        return not self.recording.puts_off and not self.recording.pending

    def put_off(self) -> None:
        """Put statistics off from here on, if asked for: the program has been built."""
        recording = self.recording
        if recording.detail == "fault" and self.program is not None:
            recording.puts_off = True
            self.program.segment.summarised = len(self.program.segment.calls)

    def _put_off(self, target: Tensor) -> int:
        """Elements of a result whose statistics are put off; 0: it is small, or not replayable."""
        program = self.program
        if program is None or program.segment.lost is not None:
            return 0
        try:
            numel = target.numel()
        except Exception:  # a nested tensor, symbolic sizes
            return 0
        return numel if numel >= (WORTH_PUTTING_OFF if target.is_cpu else 2) else 0

    def notice_owners(
        self, targets: list[Tensor], call: int, kwargs: Any, inside: bool = False
    ) -> None:
        """Note parameters and buffers written outside of the graph, by whatever code.

        inside: the code is in a module.
        """
        for i, target in enumerate(targets):
            try:
                entry = self.ledger.entries.get(target.untyped_storage()._cdata)
            except Exception:
                entry = self.ledger.of(target)
            if entry is not None and (
                entry.owner >= 0 or (entry.asked and self.adopt(target) >= 0)
            ):
                inside = bool(
                    inside or self.where.in_optimizer or self.where.depth or self.where.in_backward
                )
                if not inside:
                    if self.chunk.phase_of(call + i) in (FORWARD, OTHER):
                        self.chunk.set_phase(call + i, OPTIMIZER)
                    if kwargs and target.dtype in HALF_PRECISION:
                        self._note_factor(call + i, kwargs)
                self.wrote(entry, call + i, target)

    def _note_factor(self, position: int, kwargs: Any) -> None:
        """Keep the factor by which an update by hand multiplies what it adds."""
        factor = kwargs.get("alpha", kwargs.get("value"))
        if factor.__class__ in (float, int):
            self.recording.history.factors[position] = float(factor)


def _are_numbers(kwargs: dict[str, Any]) -> bool:
    """Whether none of the keyword arguments holds tensors."""
    for value in kwargs.values():
        if value.__class__ not in NUMBERS:
            return False
    return True


def _outside(targets: list[Tensor]) -> bool:
    """Whether no tensor that was written is in a graph: under no_grad, or by ``.data``."""
    return not any(t.requires_grad for t in targets)


def targets_of(plan: Plan, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], int]:
    """The tensors that an operation made, then those that it changed; how many it made."""
    if plan.fills:
        return ([out[0]] if out else []), 0
    found = tensors_of((out,)) if plan.fresh or not plan.writes else []
    made = len(found)
    for where in plan.writes:
        found += tensors_of((argument(where, args, kwargs),))
    for i in plan.hidden:
        if i < len(args) and isinstance(args[i], Tensor) and args[5]:
            found.append(args[i])
    return found, made
