"""Each ATen operation, forward and backward: the hot path."""

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
from torch.utils._python_dispatch import TorchDispatchMode

from nanlab.capture.evidence import Evidence
from nanlab.capture.indices import IndexGuard
from nanlab.capture.ledger import Entry, Ledger, shape_of, storage_of, view_key
from nanlab.capture.placing import Place, Placing
from nanlab.capture.plans import Plan, plan_for
from nanlab.capture.reading import Reading
from nanlab.capture.shadow import ShadowRecorder
from nanlab.capture.source import SourceLines
from nanlab.capture.steps import StepClock
from nanlab.trace.failure import ReadOut
from nanlab.trace.recording import (
    BACKWARD,
    FACTOR,
    FORWARD,
    INPLACE,
    NOGRAD,
    OPTIMIZER,
    OTHER,
    UNINIT,
    VIEW,
    WIDTH,
    Chunk,
    Recording,
    pack_edge,
    pack_row,
)

Tensor = torch.Tensor
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets
_LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this
_NODE_PLAN = (
    False,
    (),
    False,
    (),
    False,
    False,
    False,
    False,
    False,
    False,
    False,
    False,
    False,
    True,
    False,
    "",
)  # of an unobserved node: reads, makes something new
WORTH_SAVING = 4096  # elements from which statistics are worked out from others rather than read from memory
_active: WeakSet[OpRecorder] = WeakSet()


def _forked() -> None:
    for recorder in _active:
        recorder.off = True  # a DataLoader worker inherits the watch; it is not the program that is watched


os.register_at_fork(after_in_child=_forked)


class OpRecorder(Reading, Placing, TorchDispatchMode):
    """Writes one row for each output of each operation.

    ``step_began`` is called with the position at which a training step begins, ``special`` with (kind, position, args) after an operation of a
    loss scaler, ``wrote`` with (entry, position, tensor, old value or None) after a parameter or buffer was written under ``no_grad``, ``failed`` with an exception of our own.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that keeps dynamo out costs 2 us an operation and does nothing outside torch.compile

    def __init__(self, recording: Recording, lines: SourceLines, clock: StepClock) -> None:
        super().__init__()
        self.recording, self.lines, self.clock = recording, lines, clock
        self.ledger = Ledger()
        self.evidence = Evidence(recording, self.ledger)
        self.guard = IndexGuard(self)
        self.chunk = recording.chunks[-1]
        self.plans: dict[int, Plan] = {}
        self.module = 0  # number of the running module's path
        self.depth = 0  # how many modules are running inside each other
        self.backward_pass = -1  # number of the running backward pass
        self.in_backward = 0
        self.in_optimizer = 0
        self.shadow: ShadowRecorder | None = None
        self.step_place: tuple[int, int] | None = None
        self.engine_codes: set[Any] = set()
        self.sequence = _sequence()
        self.off = False
        self.step_began: Callable[[int], None] = lambda position: None
        self.special: Callable[[str, int, tuple[Any, ...]], None] = lambda kind, position, args: None
        self.wrote: Callable[[Entry, int, Tensor, Tensor | None], None] = lambda entry, position, tensor, old: None
        self.failed: Callable[[Exception], None] = lambda error: None
        self._flags = 0
        self._grad = False  # whether the running call reads a gradient
        self.opening: dict[int, int] = {}
        self.first_call = 1 << 62  # position at which an outermost module was first called
        self._lifting = False  # whether the running call brings in a literal: torch.tensor([...])
        _active.add(self)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Our own operations: not recorded, not differentiated."""
        before, self.off = self.off, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.off = before

    # -- one operation ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plan = self.plans.get(id(func))  # overloads live for ever, and hashing one costs a Python call
        if plan is None:
            plan = self.plans[id(func)] = plan_for(func, self.recording.ops)
        if plan.skip or self.off:
            if plan.reads_out and not self.off:
                self._read_out(args[0], sys._getframe().f_back)
            return func(*args, **kwargs)
        frame = sys._getframe().f_back
        try:
            place = self.place(frame)
            sources = self.read(plan, args, kwargs)
            old = self._before_write(plan, args) if plan.writes else None
        except Exception as error:
            self.failed(error)
            return func(*args, **kwargs)
        twins = self.shadow.before(func, plan, args, kwargs) if self.shadow is not None else None
        if plan.indexes:
            self.guard.before(plan.name, args, frame)
        out = func(*args, **kwargs)
        try:
            call = self._write(func, plan, args, kwargs, out, sources, old, place)
            if twins is not None and self.shadow is not None:
                self.shadow.after(self.chunk, call, _targets(plan, args, kwargs, out)[0], twins)
        except Exception as error:
            self.failed(error)
        return out

    def _read_out(self, tensor: Tensor, frame: FrameType | None) -> None:
        """A tensor is read as a Python number: what is computed from that carries no gradient."""
        try:
            if tensor.requires_grad and not self.in_backward:
                self.recording.escapes.add(ReadOut(self.recording.end, self.source(tensor), self.lines.here(frame)[0]))
        except Exception as error:
            self.failed(error)

    def _before_write(self, plan: Plan, args: Any) -> Tensor | None:
        """A copy of what an in-place operation overwrites, where it is evidence and small, or a low-precision parameter."""
        target = args[0] if args else None
        if not isinstance(target, Tensor) or plan.overwrites or target.layout is not torch.strided:
            return None
        if self.in_optimizer and not plan.optimizer_risk:
            return None
        wanted = plan.inplace_risk and target.numel() <= 4096
        if (
            not wanted
            and not self.in_optimizer
            and target.dtype in (torch.float16, torch.bfloat16)
            and not torch.is_grad_enabled()
        ):
            storage = storage_of(target)
            entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
            wanted = entry is not None and entry.owner >= 0
        return target.detach().clone() if wanted else None

    def _write(
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
        call = chunk.start + len(chunk.meta) // WIDTH
        targets, made = ([out], 1) if plan.plain and isinstance(out, Tensor) else _targets(plan, args, kwargs, out)
        if not targets:
            return call
        slot, edges = 0, chunk.edges
        for number in sources:
            edges.frombytes(pack_edge(call, number, slot))
            slot += 1
        phase, node, line, site, module = place
        if phase == FORWARD and not torch.is_grad_enabled():
            self._flags |= NOGRAD
            if self._grad and not self.depth:  # reads gradients under no_grad: an optimizer written by hand, clipping
                phase, place = OPTIMIZER, (OPTIMIZER, node, line, site, module)
        if node >= 0 and phase != BACKWARD:
            recording.nodes.rows[node] = (call, plan.number, line, site, module, False)
        if plan.uninitialised:
            self._flags |= UNINIT
        elif plan.scales and len(args) > 1 and isinstance(args[1], (float, int)) and 0.0 < abs(args[1]) < math.inf:
            self._flags |= FACTOR
        bad, output = False, 0
        for target in targets:
            bad |= self._row(plan, place, output, call, target, sources, output >= made) > 0
            output += 1
        if bad or (recording.bad and not recording.bad.isdisjoint(sources)):
            running = torch._C._current_autograd_node() if self.in_backward else None
            self.evidence.judge(func, plan, call, targets, sources, args, kwargs, old, self._flags, running)
        if (plan.writes or plan.hidden) and not torch.is_grad_enabled():
            self._notice_owners(targets, call, old)
        if plan.special:
            self.special(plan.special, call, args)
        return call

    def record_node(self, node: Any, name: str, taken: list[Tensor], given: list[Tensor]) -> None:
        """One row for each gradient that a node gave, where its operations were not observed."""
        recording, chunk = self.recording, self.chunk
        backward = name.rstrip("0123456789").removesuffix("Backward").lower() + "_backward"
        plan = Plan(backward, *_NODE_PLAN, number=recording.ops(backward))
        self._flags, self._grad = 0, False
        saved = [
            v for v in (getattr(node, key) for key in dir(node) if key.startswith("_saved_")) if isinstance(v, Tensor)
        ]
        sources = [self.source(t) for t in (*taken, *saved)]
        number = node._sequence_nr()
        info = recording.nodes.get(number)
        place = (BACKWARD, number, info.line, info.site, info.module) if info else (BACKWARD, number, 0, 0, 0)
        call = recording.end
        for slot, source in enumerate(sources):
            chunk.edges.frombytes(pack_edge(call, source, slot))
        for output, target in enumerate(given):
            self._row(plan, place, output, call, target, sources, False)
        if not recording.bad.isdisjoint((*sources, *range(call, recording.end))):
            with self.quiet():
                self.evidence.judge(None, plan, call, given, sources, (*taken, *saved), {}, None, 0, node)

    def _row(
        self, plan: Plan, place: Place, output: int, call: int, target: Tensor, sources: list[int], written: bool
    ) -> int:
        """Append the row of one output; the number of its bad elements (-1: not known yet)."""
        recording, chunk = self.recording, self.chunk
        meta, position, numel = chunk.meta, call + output, target.numel()
        try:
            storage: torch.UntypedStorage | None = target.untyped_storage()
            sizes: tuple[int, ...] = target.shape
        except Exception:
            storage, sizes = storage_of(target), shape_of(target)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        view = entry is not None and not written  # an alias of something known
        if plan.uninitialised:
            stat, bad = -1, 0
        else:
            stat = self._known_stat(plan, entry if view else None, numel, sources)
            if stat < 0:
                stats = chunk.stats
                stat, bad = (chunk.number << 32) | stats.add(target), stats.bad
            else:
                bad = int(sources[0] in recording.bad)
            if bad > 0:
                recording.bad.add(position)
            elif bad:
                self.evidence.postpone(position)
        shape, dtype = recording.shapes.ids.get(sizes), recording.dtypes.ids.get(target.dtype)
        meta.frombytes(
            pack_row(
                plan.number,
                place[0],
                place[4],
                output,
                recording.shapes(sizes) if shape is None else shape,
                recording.dtypes(target.dtype) if dtype is None else dtype,
                0 if target.is_cpu else recording.devices(str(target.device)),
                stat,
                place[1],
                place[2],
                place[3],
                self._flags | (VIEW if view else INPLACE if written else 0),
                call,
                self.backward_pass,
            )
        )
        if entry is not None:
            self._enter(plan, entry, target, numel, position, bad, view)
        elif storage is not None:
            entry = self.ledger.enter(storage, storage.nbytes() // (target.itemsize or 1))
            entry.last = position
            if bad:
                entry.bad = bad
            if plan.uninitialised:
                entry.uninit = True
            if self._grad and place[0] == OPTIMIZER:
                entry.grad = True
        return bad

    def _known_stat(self, plan: Plan, entry: Entry | None, numel: int, sources: list[int]) -> int:
        """The statistics that hold for a result too, as it has the elements of its first operand; -1 if there are none.

        entry: what the result is a view of, or None.
        """
        if not sources:
            return -1
        if plan.copies or (entry is not None and not entry.parts and (plan.same_elements or entry.numel == numel)):
            return self.recording.stat_of(sources[0])
        if plan.pads and numel > WORTH_SAVING:
            known, chunk = self.recording.stat_of(sources[0]), self.chunk
            if known >> 32 == chunk.number and (row := chunk.stats.add_padded(known & 0xFFFFFFFF, numel)) >= 0:
                return (chunk.number << 32) | row
        return -1

    def _enter(self, plan: Plan, entry: Entry, target: Tensor, numel: int, position: int, bad: int, view: bool) -> None:
        """Note in the ledger which row tells what a known storage (or a view of it) holds now."""
        if view:
            if entry.numel != numel:
                if entry.views is None:
                    entry.views = {}
                entry.views[view_key(target)] = position
            return
        entry.views = None
        if entry.numel == numel:
            entry.last, entry.bad, entry.uninit = position, bad, plan.uninitialised
            if entry.parts:
                entry.parts = ()
        else:
            if isinstance(entry.parts, list):
                entry.parts.append(position)
            else:
                entry.parts = [position]
            entry.bad = entry.bad or bad
        if self._grad and entry.owner < 0 and self.chunk.meta[-WIDTH + 1] == OPTIMIZER:
            entry.grad = True

    def _notice_owners(self, targets: list[Tensor], call: int, old: Tensor | None) -> None:
        """Parameters and buffers that were written under no_grad: an update, whoever makes it."""
        for i, target in enumerate(targets):
            storage = storage_of(target)
            entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
            if entry is not None and entry.owner >= 0:
                if not self.in_optimizer and not self.depth and not self.in_backward:
                    at = (call + i - self.chunk.start) * WIDTH + 1
                    if self.chunk.meta[at] in (FORWARD, OTHER):
                        self.chunk.meta[at] = OPTIMIZER
                self.wrote(entry, call + i, target, old if i == 0 else None)

    def new_chunk(self, position: int) -> None:
        """Begin the table of a new training step."""
        self.chunk = Chunk(len(self.recording.chunks), position)
        self.recording.chunks.append(self.chunk)


def _targets(plan: Plan, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], int]:
    """The tensors that an operation made, then those that it changed; how many it made."""
    found: list[Tensor] = []
    if not plan.writes or plan.fresh:
        _collect(out, found)
    made = len(found)
    for where in plan.writes:
        value = kwargs.get(where) if isinstance(where, str) else (args[where] if where < len(args) else None)
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
