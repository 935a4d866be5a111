"""Each ATen operation: where it runs, what it reads, what it writes. The hot path."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch

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
from nanlab.capture.places import SourceLines, in_loader, torch_caller
from nanlab.capture.plans import (
    LEAF,
    Call,
    IndexGuard,
    Plan,
    plan_for,
    saved_names,
    saved_values,
    tensors_of,
)
from nanlab.capture.program import NUMBERS, ProgramRecorder
from nanlab.capture.ranks import Collectives
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
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, OTHER, RECOMPUTE
from nanlab.trace.program import View
from nanlab.trace.recording import Recording, Source

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets
Place = tuple[int, int, int, int, int]  # phase, node, line, site, module
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


class OpRecorder(DispatchMode):
    """Writes one row for each output of each operation.

    ``step_began`` is called with the position at which a training step begins, ``special`` with
    (kind, position, args) after an operation of a loss scaler, ``wrote`` with (entry, position,
    tensor) after a parameter or buffer was written under ``no_grad``, ``adopt``
    with a tensor that turns out to be a parameter, ``failed`` with an exception of our own.
    """

    supports_higher_order_operators = True

    def __init__(self, recording: Recording, lines: SourceLines, clock: StepClock) -> None:
        super().__init__()
        self.recording, self.lines, self.clock = recording, lines, clock
        self.ledger = Ledger()
        self.views = TensorViews(recording.shapes, recording.dtypes)
        self.evidence = Evidence(recording, self.ledger)
        self.guard = IndexGuard(self)
        self.chunk = recording.chunks[-1]
        self.plans: dict[int, Plan] = {}
        self.module = 0  # number of the running module's path
        self.depth = 0  # how many modules are running inside each other
        self.backward_pass = -1  # number of the running backward pass
        self.in_backward = 0
        # node of an operation in the backward of a Function that is differentiated again
        self.made_in_function = -1
        self.creates_graph = False  # whether the running backward pass is differentiated again
        self.in_optimizer = 0
        self.program: ProgramRecorder | None = None
        self.learned = LearnedStep(self)
        # while a step makes the calls of the last one
        self.again: LearnedStep | None = None
        # what learns or compares the calls that are worked out
        self.noting: LearnedStep | None = None
        # of each row of the running call: number of the storage; whether the call made it, the row
        # shows memory that was there, the row shows all of its memory
        self.effects: list[tuple[int, bool, bool, bool]] = []
        # line and site of the running step of an optimizer of torch's
        self.step_place: tuple[int, int] | None = None
        self.engine_codes: set[int] = set()  # ids of the code that runs the engine
        self.sequence = _sequence()
        self.off = False
        self.step_began: Callable[[int], None] = lambda position: None
        self.special: Callable[[str, int, tuple[Any, ...]], None] = lambda kind, position, args: (
            None
        )
        self.wrote: Callable[[Entry, int, Tensor], None] = lambda entry, position, tensor: None
        self.adopt: Callable[[Tensor], int] = lambda tensor: -1
        self.failed: Callable[[Exception], None] = lambda error: None
        self._flags = 0  # of the row of the running call
        self._grad = False  # whether the running call reads a gradient
        # whether the row found for an operand tells of more than its elements, or of others
        self._vague = False
        self.opening: dict[int, int] = {}  # position at which each function was first seen at work
        self.first_call = 1 << 62  # position at which an outermost module was first called
        # of the last row: id of the tensor, number of its storage, view
        self._result: tuple[int, int, View | None] = (0, 0, None)
        self._lifting = False  # whether the running call brings in a literal: torch.tensor([...])
        # the row from which a NaN, an "inf" or a "-inf" was last read as a Python number
        self._read_out: dict[str, int] = {}
        self.collectives = Collectives(self)
        self.flying = self.collectives.flying  # collectives whose results have not been read
        self.evidence.latest_collective = lambda: self.collectives.latest
        _active.add(self)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Rows of another call, written while one is running."""
        before = self._flags, self._grad, self._vague, self._lifting
        try:
            yield
        finally:
            self._flags, self._grad, self._vague, self._lifting = before

    def reset(self, flags: int = 0) -> None:
        """Begin a call."""
        self._flags, self._grad, self._vague, self._lifting = flags, False, False, False

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
            place = self.place(frame)
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

    def settle(self) -> None:
        """Write down the calls that have run."""
        if self.chunk.late is not None:
            self.chunk.late()

    def _note_read_out(self, tensor: Tensor, value: Any, frame: FrameType | None) -> None:
        """A tensor was read as a Python number: what is computed from that has no gradient."""
        try:
            if self.flying:
                self.collectives.before_read((tensor,))
            self.note_number(tensor, value)
            if self.in_backward or self.in_optimizer:
                return
            self.settle()
            escapes, source = self.recording.escapes, self.source(tensor)
            if self.program is not None:
                self.program.looked(tensor, value, self.lines.here(frame)[0])
            escapes.last_read = self.recording.end, source
            if tensor.requires_grad:
                escapes.add(ReadOut(self.recording.end, source, self.lines.here(frame)[0]))
        except Exception as error:
            self.failed(error)

    def take(self, plan: Plan, args: Any, kwargs: Any) -> tuple[list[int], Any]:
        """What a call reads: sources of its operands; its arguments as the program keeps them."""
        program = self.program
        if program is None:
            return self.read(plan, args, kwargs), None
        if plan.rare or self.flying or self.views.odd or (kwargs and not _are_numbers(kwargs)):
            sources = self.read(plan, args, kwargs)
            return sources, program.before(plan, args, kwargs)
        self.reset()
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
                        self._grad = True
                    sources.append(entry.last)
                else:
                    sources.append(self._held_by(entry, value))
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
                strange = self._take_others(value, sources) or strange
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

    def _take_others(self, value: Any, sources: list[int]) -> float:
        """Add the sources of an argument that is no plain tensor; a bad number in it, else 0."""
        strange = 0.0
        if isinstance(value, Tensor):
            sources.append(self.source(value))
        elif value.__class__ is list or value.__class__ is tuple:
            for item in value:
                if isinstance(item, Tensor):
                    sources.append(self.source(item))
                elif item.__class__ is float and item - item != 0.0:
                    strange = item
        elif value.__class__ is float and value - value != 0.0:
            strange = value
        return strange

    def _note_strange(self, plan: Plan, value: float, sources: list[int]) -> None:
        """A Python number among the operands is NaN or infinite."""
        origin = self._number_read(value, plan.name in _COMPUTES)
        if origin is None:
            self._flags |= LITERAL
        else:
            sources.append(origin)

    def _before_write(self, plan: Plan, args: Any, kwargs: Any) -> Tensor | None:
        """A copy of what an in-place operation overwrites, where it is evidence and small."""
        if self.flying:
            self.collectives.before_write(targets_of(plan, args, kwargs, None)[0])
        wanted = plan.keeps(args, bool(self.in_optimizer))
        return args[0].detach().clone() if wanted else None

    def new_chunk(self, position: int) -> None:
        """Begin the table of a new training step."""
        self.chunk = Chunk(len(self.recording.chunks), position)
        self.recording.chunks.append(self.chunk)

    # -- where it runs: phase, autograd node, line, module

    def place(self, frame: FrameType | None) -> Place:
        """Of the operation that is about to run. A new training step may begin with it."""
        if self.in_backward:
            return self._backward_place(frame)
        grad = torch.is_grad_enabled()
        if self.in_optimizer and not grad:
            here = self.step_place
            if here is None or not self.lines.torch_code(frame):
                here = self.lines.here(frame)
            return OPTIMIZER, -1, *here, 0
        line, site = self.lines.here(frame)
        if not self.depth and not self.in_optimizer and line not in self.clock.checked:
            if line not in self.clock.openers:
                self.clock.checked.add(line)
            self.notice_loop(frame, line)
        now, node = _sequence(), -1
        if now > self.sequence:
            node = self._new_nodes(now, grad, frame, line, site)
        return FORWARD, node, line, site, self.module

    def notice_loop(self, frame: FrameType | None, line: int = 0) -> None:
        """Begin a new training step if the program's loop came round."""
        position = self.recording.end
        if not self.recording.passes:
            self._note_opening(frame, position)
        # Not _sequence(): the node of the operation that is about to run is made already, and
        # belongs to the new step.
        if self.clock.operation(frame, position, self.sequence, not torch.is_grad_enabled(), line):
            self.step_began(position)

    def _note_opening(self, frame: FrameType | None, position: int) -> None:
        """Before the first backward: at which position each function was first seen at work."""
        while frame is not None:
            self.opening.setdefault(id(frame.f_code), position)
            frame = frame.f_back

    def training_began(self, frame: FrameType | None, oldest: int) -> int:
        """Where building the program ends and training begins, told at the first backward.

        That is with the function that calls backward, the first call of a module, or the first
        operation of the graph, whichever came first. In a cell or script that does all in one place
        the function tells nothing.
        """
        node = self.recording.nodes.get(oldest)
        found = [self.recording.end, self.first_call]
        if node is not None:
            found.append(node.position)
        caller = self.lines.outside(frame)
        if caller is not None and caller.f_code.co_name != "<module>":
            found.append(self.opening.get(id(caller.f_code), found[0]))
        self.opening.clear()
        return min(found)

    def _new_nodes(
        self, now: int, grad: bool, frame: FrameType | None, line: int, site: int
    ) -> int:
        """Tie the autograd nodes made since the last operation to it; its own node, or -1."""
        own = now - 1 if grad else -1
        if own == self.sequence:  # no other was made
            self.sequence = now
            return own
        nodes, position = self.recording.nodes, self.recording.end
        for number in range(max(self.sequence, now - 64), now):
            if number == own:
                continue
            # Made without an operation of its own: a torch.autograd.Function, whose forward runs
            # under no_grad.
            here, there = self._apply_line(frame) if not grad else (line, site)
            if not here and not grad:
                # a hook packs what the next operation's node saves: the node is that operation's
                return -1
            nodes.rows[number] = (position, -1, here, there, self.module, not grad)
        self.sequence = now
        return own

    def _apply_line(self, frame: FrameType | None) -> tuple[int, int]:
        """The line that applied the running torch.autograd.Function."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == "apply" and code.co_filename.endswith("function.py"):
                return self.lines.here(frame.f_back)
            frame = frame.f_back
        return 0, 0

    def _backward_place(self, frame: FrameType | None) -> tuple[int, int, int, int, int]:
        self.made_in_function = -1
        node = _node()
        number = node._sequence_nr() if node is not None else -1
        info = self.recording.nodes.rows.get(number)
        now = _sequence()
        python = frame is not None and id(frame.f_code) not in self.engine_codes
        where = self._python_in_backward(frame) if python else ""
        self.learned.ran_python |= python
        if where == "recompute" or (where and torch.is_grad_enabled() and where != "custom"):
            line, site = self.lines.here(frame)
            made = now - 1 if now > self.sequence and torch.is_grad_enabled() else -1
            self.sequence = now
            return (RECOMPUTE if where == "recompute" else BACKWARD), made, line, site, self.module
        if now > self.sequence:  # create_graph: the backward operation has a node of its own
            for made in range(max(self.sequence, now - 64), now):
                if info is not None:
                    self.recording.nodes.rows[made] = (self.recording.end, *info[1:])
            self.made_in_function = now - 1 if where == "custom" else -1
            self.sequence = now
        if info is not None and where == "custom" and (inside := self._line_in_function(frame)):
            return BACKWARD, number, *inside, info[4]
        if info is not None and (where in ("", "custom")):
            return BACKWARD, number, info[2], info[3], info[4]
        line, site = self.lines.here(frame)
        return BACKWARD, number if 0 <= number < LEAF else -1, line, site, 0

    def _python_in_backward(self, frame: FrameType | None) -> str:
        """Whose Python code runs inside the engine: "custom", "hook" or "recompute"."""
        found = "hook"
        while frame is not None and id(frame.f_code) not in self.engine_codes:
            name = frame.f_code.co_filename
            if name.endswith("checkpoint.py") and "torch" in name:
                return "recompute"
            if name.endswith("function.py") and frame.f_code.co_name == "apply":
                # What computes with a graph of its own, though none is made of this backward pass,
                # computes anew.
                found = (
                    "recompute" if torch.is_grad_enabled() and not self.creates_graph else "custom"
                )
            frame = frame.f_back
        return found

    def _line_in_function(self, frame: FrameType | None) -> tuple[int, int] | None:
        """The user's line in the backward of the running Function; None where it is a library's."""
        caller = frame
        while caller is not None and id(caller.f_code) not in self.engine_codes:
            if self.lines.user_code(caller):
                return self.lines.here(frame)
            caller = caller.f_back
        return None

    # -- what it reads: the row or source behind each operand

    def read(self, plan: Plan, args: Any, kwargs: Any) -> list[int]:
        """The sources of a call's tensor operands, in the order of its arguments."""
        self._flags, self._grad, self._vague = 0, False, False
        sources: list[int] = []
        if plan.uninitialised:
            return sources
        self._lifting = plan.lifts
        strange = 0.0
        if plan.blind:
            args = args[:1] if plan.fills else args[1:]
        if kwargs:
            args = (*args, *(v for k, v in kwargs.items() if k not in plan.writes))
        if self.flying and not plan.view:
            self.collectives.before_read(args)
        for value in args:
            strange = self._take_others(value, sources) or strange
        if strange:
            self._note_strange(plan, strange, sources)
        # the copy holds other numbers than the memory
        if plan.copies and (args[0].is_conj() or args[0].is_neg()):
            self._vague = True
        return sources

    def note_number(self, tensor: Tensor, value: Any) -> None:
        """Remember the row a bad Python number was read from: it may come back as a factor."""
        if value.__class__ is float and value - value != 0.0:
            source = self.source(tensor)
            if self.recording.may_be_bad(source):
                self._read_out.pop(str(value), None)
                self._read_out[str(value)] = source

    def _number_read(self, value: float, computes: bool) -> int | None:
        """The row that a non-finite Python number among the operands was read from, as far as can
        be told.

        Python keeps no trace of it, so this is the last that was read: a NaN from any, for Python
        makes NaN of infinities too; an infinity from one of its kind, and only to compute with.
        """
        if not self._read_out or (value == value and not computes):
            return None
        if value != value:
            return next(reversed(self._read_out.values()))
        return self._read_out.get(str(value))

    def source(self, tensor: Tensor) -> int:
        """The row (or source, negative) that describes what a tensor holds now."""
        if self.chunk.late is not None:
            self.chunk.late()
        try:
            storage = tensor.untyped_storage()
        except Exception:
            found = storage_of(tensor)
            if found is None:
                return self.new_source(tensor, "data")
            storage = found
        entry = self.ledger.entries.get(storage._cdata)
        if entry is None:
            return self._first_sight(tensor, storage)
        return self._held_by(entry, tensor)

    def _held_by(self, entry: Entry, tensor: Tensor) -> int:
        """The row that describes what a tensor on a known storage holds now."""
        if entry.grad:
            self._grad = True
        if entry.uninit:
            return self._read_uninitialised(entry, tensor)
        if entry.nbytes == tensor.numel() * tensor.itemsize and (
            not entry.odd or shows_all(tensor, entry.nbytes)
        ):
            if not entry.parts:
                return entry.last
            if not entry.bad:
                self._vague = True
                return entry.parts[-1]
            return self._snapshot(entry, tensor, whole=True)
        if entry.views is not None and (row := entry.views.get(view_key(tensor))) is not None:
            return row
        if entry.bad:
            return self._snapshot(entry, tensor, whole=False)
        self._vague = True
        return entry.parts[-1] if entry.parts else entry.last

    def new_source(
        self, tensor: Tensor, kind: Any, name: str = "", parents: tuple[int, ...] = ()
    ) -> int:
        recording, stats = self.recording, self.chunk.stats
        number = recording.new_number()
        stat = (self.chunk.number << 32) | stats.add(tensor)
        if recording.puts_off:
            stats.flush()
        if stats.bad > 0:
            recording.bad.add(number)
        elif stats.bad:
            self._await_device(recording.end)
        recording.sources[number] = Source(
            number,
            kind,
            name,
            stat,
            recording.end,
            tuple(shape_of(tensor)),
            str(tensor.dtype).removeprefix("torch."),
            parents,
        )
        return number

    def _first_sight(self, tensor: Tensor, storage: torch.UntypedStorage, owner: int = -1) -> int:
        local = local_part(tensor)
        if local is not tensor and owner < 0:
            return self.source(local)
        tensor = local
        kind, name = "data", ""
        if owner >= 0:
            kind = self.recording.parameter_kinds[owner]
            name = self.recording.parameter_names[owner]
        elif type(tensor) is torch.nn.Parameter:
            kind = "parameter"
        elif self._lifting:
            kind = "literal"
        number = self.new_source(tensor, kind, name)
        if kind == "literal" and number in self.recording.bad:
            sources, stats = self.recording.sources, self.recording.stats(number)
            if in_loader(sys._getframe(1)):
                sources[number] = replace(sources[number], kind="data")
            elif stats.nan and (origin := self._number_read(math.nan, True)) is not None:
                sources[number] = replace(sources[number], parents=(origin,))
        entry = self.ledger.enter(storage)
        entry.last, entry.owner = number, owner
        entry.bad = self.chunk.stats.bad
        if not shows_all(tensor, entry.nbytes):
            entry.odd = True
            entry.bad = entry.bad or -1  # the rest of the storage was not looked at
        return number

    def _snapshot(self, entry: Entry, tensor: Tensor, whole: bool) -> int:
        """What a tensor holds now, if its storage was written in parts and may be bad."""
        parents = (entry.last, *entry.parts)
        # else they are chosen when it is known which are bad
        if not self.recording.pending and not self.recording.puts_off:
            parents = tuple(p for p in parents if p in self.recording.bad) or parents[-1:]
        number = self.new_source(tensor, "snapshot", parents=parents)
        if whole:
            entry.last, entry.parts = number, ()
            entry.bad = self.chunk.stats.bad
        elif entry.views is None:
            entry.views = {view_key(tensor): number}
        else:
            entry.views[view_key(tensor)] = number
        return number

    def _read_uninitialised(self, entry: Entry, tensor: Tensor) -> int:
        """Memory that was allocated and never written whole: what it holds counts from now on."""
        recording = self.recording
        unknown = recording.pending or recording.puts_off
        bad = () if unknown else tuple(p for p in entry.parts if p in recording.bad)
        number = self.new_source(tensor, "snapshot", parents=bad or (entry.last, *entry.parts))
        if number in recording.bad and not bad and not recording.puts_off:
            # written by a hook, in another thread
            if entry.parts and self.collectives.latest > max(entry.parts):
                recording.sources[number] = replace(
                    recording.sources[number], kind="arrival", parents=()
                )
            else:
                recording.bad.add(entry.last)
        return number

    def own(self, tensor: Tensor, owner: int) -> None:
        """Say that a tensor is the parameter or buffer with this number."""
        storage = storage_of(tensor)
        if storage is None:
            return
        entry = self.ledger.entries.get(storage._cdata)
        if entry is None:
            self._first_sight(tensor, storage, owner)
            entry = self.ledger.entries[storage._cdata]
        else:
            entry.owner = owner
            self.recording.owned.add(entry.last)
        self.recording.program.names[entry.serial] = self.recording.parameter_names[owner]

    def mark_gradient(self, tensor: Tensor) -> None:
        """Say that a tensor is a parameter's gradient."""
        storage = storage_of(tensor)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        if entry is not None:
            entry.grad = True

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
            if self._grad and not self.depth:
                phase, place = OPTIMIZER, (OPTIMIZER, node, line, site, module)
        if node >= 0 and phase != BACKWARD:
            recording.nodes.rows[node] = (call, plan.number, line, site, module, False)
        elif phase == BACKWARD and self.made_in_function >= 0:
            recording.nodes.rows[self.made_in_function] = (
                call,
                plan.number,
                line,
                site,
                module,
                False,
            )
        if plan.marked:
            self._mark(plan, call, args)
        bad, output = False, 0
        for target in targets:
            bad |= self.add_row(plan, place, output, call, target, sources, output >= made) > 0
            output += 1
        if self.judges_now and (bad or (recording.bad and not recording.bad.isdisjoint(sources))):
            running = torch._C._current_autograd_node() if self.in_backward else None
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
        """Flags and numbers of a call that its operands do not tell."""
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
        self._flags, self._grad, self._vague = 0, False, False
        with self.quiet():  # reading what a node saved makes tensors anew
            saved = tensors_of(saved_values(node, saved_names(node)).values())
        sources = [self.source(t) for t in (*taken, *saved)]
        number = node._sequence_nr()
        info = recording.nodes.get(number)
        if info:
            place = (BACKWARD, number, info.line, info.site, info.module)
        else:
            place = (BACKWARD, number, 0, 0, 0)
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
                self._await_device(call)
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
                self.backward_pass,
            )
        )
        if entry is not None:
            self._enter(plan, entry, local, whole, position, bad, alias)
        elif storage is not None:
            entry = self.ledger.enter(storage)
            entry.last = position
            if bad:
                entry.bad = bad
            if plan.uninitialised:
                entry.uninit = True
            if self._grad and place[0] == OPTIMIZER:
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
        if not self._vague and (alias or plan.copies or plan.pads):
            known = known_stat(recording, plan, entry if alias else None, target, whole, sources)
            if known >= 0:
                unknown = recording.pending
                if recording.puts_off:
                    unknown = recording.chunks[known >> 32].is_put_off(known)
                return known, 1 if sources[0] in recording.bad else -1 if unknown else 0
        stats = self.chunk.stats
        if recording.puts_off:
            inside = self.in_backward or self.in_optimizer
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
        """Whether it is known at once what is bad; else calls are judged when their step ends."""
        return not self.recording.puts_off and not self.recording.pending

    def _await_device(self, call: int) -> None:
        """Note that from this call on statistics are still on a device."""
        recording = self.recording
        if not recording.pending:
            recording.pending, recording.pending_from = True, call

    def put_off(self) -> None:
        """Put statistics off from here on, if asked for: the program has been built."""
        recording = self.recording
        if recording.detail == "fault" and self.program is not None:
            recording.puts_off = True
            self.program.segment.summarised = len(self.program.segment.calls)

    def _put_off(self, target: Tensor) -> int:
        """Elements of a result not read now; 0 for one that is: small, or not replayable."""
        try:
            numel = target.numel()
        except Exception:  # a nested tensor, symbolic sizes
            return 0
        return numel if numel >= self.least_put_off(target.is_cpu) else 0

    def least_put_off(self, on_cpu: bool = True) -> int:
        """The number of elements from which results are not read now."""
        program = self.program
        if program is None or program.segment.lost is not None:
            return sys.maxsize
        return WORTH_PUTTING_OFF if on_cpu else 2

    def know(self, number: int, tensor: Tensor) -> int:
        """The same row, with its statistics made now from ``tensor`` if they were put off."""
        recording = self.recording
        if not recording.puts_off or number < 0:
            return number
        stat = recording.stat_of(number)
        if stat >= 0:
            chunk = recording.chunks[stat >> 32]
            row = chunk.stat_row(stat)
            if chunk.stats.is_put_off(row):
                chunk.stats.fill(row, local_part(tensor))
            if chunk.stats.nonfinite(row):
                recording.bad.add(number)
        return number

    def _enter(
        self,
        plan: Plan,
        entry: Entry,
        target: Tensor,
        whole: bool,
        position: int,
        bad: int,
        view: bool,
    ) -> None:
        """Note in the ledger which row tells what a known storage (or a view of it) holds now."""
        if view:
            if not whole:
                if entry.views is None:
                    entry.views = {}
                entry.views[view_key(target)] = position
            return
        entry.views = None
        if whole:
            entry.last, entry.bad, entry.uninit = position, bad, plan.uninitialised
            if entry.parts:
                entry.parts = ()
        else:
            if isinstance(entry.parts, list):
                entry.parts.append(position)
            else:
                entry.parts = [position]
            entry.bad = entry.bad or bad
        if self._grad and entry.owner < 0 and self.chunk.phase_of(self.chunk.end - 1) == OPTIMIZER:
            entry.grad = True

    def notice_owners(
        self, targets: list[Tensor], call: int, kwargs: Any, inside: bool = False
    ) -> None:
        """Parameters and buffers that were written outside of the graph: an update by anybody.

        inside: by a module.
        """
        for i, target in enumerate(targets):
            try:
                entry = self.ledger.entries.get(target.untyped_storage()._cdata)
            except Exception:
                storage = storage_of(target)
                entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
            if entry is not None and (
                entry.owner >= 0 or (entry.asked and self.adopt(target) >= 0)
            ):
                inside = bool(inside or self.in_optimizer or self.depth or self.in_backward)
                if not inside:
                    if self.chunk.phase_of(call + i) in (FORWARD, OTHER):
                        self.chunk.set_phase(call + i, OPTIMIZER)
                    if kwargs and target.dtype in HALF_PRECISION:
                        self._note_factor(call + i, kwargs)
                self.wrote(entry, call + i, target)

    def _note_factor(self, position: int, kwargs: Any) -> None:
        """Keep the number by which what an update by hand adds is multiplied."""
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
    found: list[Tensor] = []
    if plan.fills:
        return ([out[0]] if out else []), 0
    if not plan.writes or plan.fresh:
        _collect(out, found)
    made = len(found)
    for where in plan.writes:
        value = (
            kwargs.get(where)
            if isinstance(where, str)
            else (args[where] if where < len(args) else None)
        )
        _collect(value, found)
    for i in plan.hidden:
        if i < len(args) and isinstance(args[i], Tensor) and args[5]:
            found.append(args[i])
    return found, made


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, Tensor):
                found.append(item)
