"""Each ATen operation, forward and backward: the hot path."""

from __future__ import annotations

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
from nanlab.capture.ledger import Entry, Ledger, storage_of, view_key
from nanlab.capture.plans import Plan, plan_for
from nanlab.capture.source import SourceLines
from nanlab.capture.steps import StepClock
from nanlab.trace.failure import ReadOut
from nanlab.trace.recording import (
    BACKWARD,
    FORWARD,
    INPLACE,
    LITERAL,
    NOGRAD,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
    UNINIT,
    VIEW,
    WIDTH,
    Chunk,
    NodeInfo,
    Recording,
    Source,
)

Tensor = torch.Tensor
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13
_sequence = torch.autograd._get_sequence_nr  # the number that the next autograd node gets
_LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this
_NODE_PLAN = (False, (), False, (), False, False, False, False, False, False, False, "")  # of an unobserved node: reads, makes something new
_active: WeakSet[OpRecorder] = WeakSet()


def _forked() -> None:
    for recorder in _active:
        recorder.off = True  # a DataLoader worker inherits the watch; it is not the program that is watched


os.register_at_fork(after_in_child=_forked)


class OpRecorder(TorchDispatchMode):
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
        self.plans: dict[Any, Plan] = {}
        self.module = 0  # number of the running module's path
        self.depth = 0  # how many modules are running inside each other
        self.backward_pass = -1  # number of the running backward pass
        self.in_backward = 0
        self.in_optimizer = 0
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

    # -- what an operation reads ---------------------------------------------------------------------------------------

    def source(self, tensor: Tensor) -> int:
        """The row (or source, negative) that describes what a tensor holds now."""
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
        if entry.grad:
            self._grad = True
        if entry.uninit:
            return self._read_uninitialised(entry, tensor)
        if entry.numel == tensor.numel():
            if not entry.parts:
                return entry.last
            if not entry.bad:
                return entry.parts[-1]
            return self._snapshot(entry, tensor, whole=True)
        if entry.views is not None and (row := entry.views.get(view_key(tensor))) is not None:
            return row
        if entry.bad:
            return self._snapshot(entry, tensor, whole=False)
        return entry.parts[-1] if entry.parts else entry.last

    def new_source(self, tensor: Tensor, kind: Any, name: str = "", parents: tuple[int, ...] = ()) -> int:
        recording, stats = self.recording, self.chunk.stats
        number = recording.new_number()
        stat = (self.chunk.number << 32) | stats.add(tensor)
        if stats.bad > 0:
            recording.bad.add(number)
        recording.sources[number] = Source(
            number, kind, name, stat, recording.end, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), parents
        )
        return number

    def _first_sight(self, tensor: Tensor, storage: torch.UntypedStorage, owner: int = -1) -> int:
        numel = storage.nbytes() // max(tensor.itemsize, 1)
        kind, name = "data", ""
        if owner >= 0:
            kind, name = self.recording.parameter_kinds[owner], self.recording.parameter_names[owner]
        elif type(tensor) is torch.nn.Parameter:
            kind = "parameter"
        elif self._lifting:
            kind = "literal"
        number = self.new_source(tensor, kind, name)
        entry = self.ledger.enter(storage, numel)
        entry.last, entry.owner = number, owner
        entry.bad = self.chunk.stats.bad
        if numel != tensor.numel() and not entry.bad:
            entry.bad = -1  # the rest of the storage was not looked at
        return number

    def _snapshot(self, entry: Entry, tensor: Tensor, whole: bool) -> int:
        """What a tensor holds now, when its storage was written piece by piece and something bad may be in it."""
        parents = (entry.last, *entry.parts)
        bad = tuple(p for p in parents if p in self.recording.bad)
        number = self.new_source(tensor, "snapshot", parents=bad or parents[-1:])
        if whole:
            entry.last, entry.parts = number, []
            entry.bad = self.chunk.stats.bad
        elif entry.views is None:
            entry.views = {view_key(tensor): number}
        else:
            entry.views[view_key(tensor)] = number
        return number

    def _read_uninitialised(self, entry: Entry, tensor: Tensor) -> int:
        """Memory that was allocated and never written as a whole: what is in it counts from now on."""
        number = self.new_source(tensor, "snapshot", parents=(entry.last, *entry.parts))
        if number in self.recording.bad:
            self.recording.bad.add(entry.last)
        return number

    def own(self, tensor: Tensor, owner: int) -> None:
        """Say that a tensor is the parameter or buffer with this number."""
        storage = storage_of(tensor)
        if storage is None:
            return
        entry = self.ledger.entries.get(storage._cdata)
        if entry is None:
            self._first_sight(tensor, storage, owner)
        else:
            entry.owner = owner
            self.recording.owned.add(entry.last)

    # -- one operation ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = plan_for(func)
        if plan.skip or self.off:
            if plan.reads_out and not self.off:
                self._read_out(args[0], sys._getframe().f_back)
            return func(*args, **kwargs)
        try:
            if not self.depth and not self.in_backward and not self.in_optimizer:
                self.notice_loop(sys._getframe().f_back)
            sources = self._read(plan, args, kwargs)
            old = self._before_write(plan, args) if plan.inplace_risk or (plan.writes and not self.in_optimizer) else None
        except Exception as error:
            self.failed(error)
            return func(*args, **kwargs)
        if plan.indexes:
            self.guard.before(plan.name, args, sys._getframe().f_back)
        out = func(*args, **kwargs)
        try:
            self._write(func, plan, args, kwargs, out, sources, old, sys._getframe().f_back)
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

    def notice_loop(self, frame: FrameType | None) -> None:
        """Begin a new training step if the program's loop came round."""
        position = self.recording.end
        if not self.recording.passes:
            self._note_opening(frame, position)
        if self.clock.operation(frame, position, _sequence(), not torch.is_grad_enabled()):
            self.step_began(position)

    def _note_opening(self, frame: FrameType | None, position: int) -> None:
        """Before the first backward: at which position each function was first seen at work."""
        while frame is not None:
            self.opening.setdefault(id(frame.f_code), position)
            frame = frame.f_back

    def training_began(self, frame: FrameType | None, oldest: int) -> int:
        """Where building the program ends and training begins, told at the first backward.

        That is with the function that calls backward, the first call of a module, or the first operation of the graph, whichever
        came first. In a cell or script that does all in one place the function tells nothing.
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

    def _read(self, plan: Plan, args: Any, kwargs: Any) -> list[int]:
        self._flags, self._grad = 0, False
        sources: list[int] = []
        source = self.source
        if plan.uninitialised:
            return sources
        self._lifting = plan.name == "lift_fresh"
        for value in args if not kwargs else (*args, *(v for k, v in kwargs.items() if k not in plan.writes)):
            if isinstance(value, Tensor):
                sources.append(source(value))
            elif value.__class__ is list or value.__class__ is tuple:
                for item in value:
                    if isinstance(item, Tensor):
                        sources.append(source(item))
            elif value.__class__ is float and value - value != 0.0:
                self._flags |= LITERAL
        if plan.overwrites and plan.writes and plan.writes[0] == 0 and sources and not args[0].__class__ is list:
            del sources[0]
        return sources

    def _before_write(self, plan: Plan, args: Any) -> Tensor | None:
        """A copy of what an in-place operation overwrites, where it is evidence and small, or a low-precision parameter."""
        target = args[0] if args else None
        if not isinstance(target, Tensor) or plan.overwrites or target.layout is not torch.strided:
            return None
        wanted = plan.inplace_risk and target.numel() <= 4096
        if not wanted and target.dtype in (torch.float16, torch.bfloat16) and not torch.is_grad_enabled():
            storage = storage_of(target)
            entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
            wanted = entry is not None and entry.owner >= 0
        return target.detach().clone() if wanted else None

    def _phase_and_place(self, frame: FrameType | None) -> tuple[int, int, int, int, int]:
        """(phase, node, line, site, module) of the running operation."""
        if not self.in_backward:
            line, site = self.lines.here(frame)
            grad = torch.is_grad_enabled()
            if self.in_optimizer and not grad:
                return OPTIMIZER, -1, line, site, 0
            now, node = _sequence(), -1
            if now > self.sequence:
                node = self._new_nodes(now, grad, frame, line, site)
            if grad:
                return FORWARD, node, line, site, self.module
            self._flags |= NOGRAD
            return (OPTIMIZER if self._grad and not self.depth else FORWARD), node, line, site, self.module
        return self._backward_place(frame)

    def _new_nodes(self, now: int, grad: bool, frame: FrameType | None, line: int, site: int) -> int:
        """Tie the autograd nodes made since the last operation to it; the node of this operation itself, or -1."""
        nodes, position = self.recording.nodes, self.recording.end
        own = now - 1 if grad else -1
        for number in range(max(self.sequence, now - 64), now):
            if number == own:
                continue
            # Made without an operation of its own: a torch.autograd.Function, whose forward runs under no_grad.
            here, there = self._apply_line(frame) if not grad else (line, site)
            nodes[number] = NodeInfo(position, -1, here, there, self.module, custom=not grad)
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
        node = _node()
        number = node._sequence_nr() if node is not None else -1
        info = self.recording.nodes.get(number)
        now = _sequence()
        python = frame is not None and frame.f_code not in self.engine_codes
        where = self._python_in_backward(frame) if python else ""
        if where == "recompute" or (where and torch.is_grad_enabled() and where != "custom"):
            line, site = self.lines.here(frame)
            made = now - 1 if now > self.sequence and torch.is_grad_enabled() else -1
            self.sequence = now
            return (RECOMPUTE if where == "recompute" else BACKWARD), made, line, site, self.module
        if now > self.sequence:  # create_graph: the backward operation has a node of its own
            for made in range(max(self.sequence, now - 64), now):
                if info is not None:
                    self.recording.nodes[made] = NodeInfo(self.recording.end, info.op, info.line, info.site, info.module, info.custom)
            self.sequence = now
        if info is not None and (where in ("", "custom")):
            return BACKWARD, number, info.line, info.site, info.module
        line, site = self.lines.here(frame)
        return BACKWARD, number if 0 <= number < _LEAF else -1, line, site, 0

    def _python_in_backward(self, frame: FrameType | None) -> str:
        """Whose Python code runs inside the engine: "recompute" of a checkpoint, a "custom" Function, or a "hook"."""
        found = "hook"
        while frame is not None and frame.f_code not in self.engine_codes:
            name = frame.f_code.co_filename
            if name.endswith("checkpoint.py") and "torch" in name:
                return "recompute"
            if name.endswith("function.py") and frame.f_code.co_name == "apply":
                found = "custom"
            frame = frame.f_back
        return found

    def _write(
        self, func: Any, plan: Plan, args: Any, kwargs: Any, out: Any, sources: list[int], old: Tensor | None, frame: FrameType | None
    ) -> None:
        recording, chunk = self.recording, self.chunk
        call = chunk.start + len(chunk.meta) // WIDTH
        place = self._phase_and_place(frame)
        targets, changed = _targets(plan, args, kwargs, out)
        if not targets:
            return
        edges = chunk.edges
        for slot, number in enumerate(sources):
            edges.extend((call, number, slot))
        op = recording.ops(plan.name)
        if place[1] >= 0 and place[0] != BACKWARD:
            recording.nodes[place[1]] = NodeInfo(call, op, place[2], place[3], place[4])
        if plan.uninitialised:
            self._flags |= UNINIT
        bad = False
        for output, (target, written) in enumerate(zip(targets, changed, strict=True)):
            bad |= self._row(plan, op, place, output, call, target, sources, written) > 0
        if bad or (recording.bad and not recording.bad.isdisjoint(sources)):
            node = _node() if self.in_backward else None
            self.evidence.judge(func, plan, call, targets, sources, args, kwargs, old, self._flags, node)
        if (plan.writes or plan.hidden) and not torch.is_grad_enabled():
            self._notice_owners(targets, call, old)
        if plan.special:
            self.special(plan.special, call, args)

    def record_node(self, node: Any, name: str, taken: list[Tensor], given: list[Tensor]) -> None:
        """One row for each gradient that a node gave, where its operations were not observed."""
        recording, chunk = self.recording, self.chunk
        plan = Plan(name.rstrip("0123456789").removesuffix("Backward").lower() + "_backward", *_NODE_PLAN)
        self._flags, self._grad = 0, False
        saved = [v for v in (getattr(node, key) for key in dir(node) if key.startswith("_saved_")) if isinstance(v, Tensor)]
        sources = [self.source(t) for t in (*taken, *saved)]
        number = node._sequence_nr()
        info = recording.nodes.get(number)
        place = (BACKWARD, number, info.line, info.site, info.module) if info else (BACKWARD, number, 0, 0, 0)
        call, op = recording.end, recording.ops(plan.name)
        for slot, source in enumerate(sources):
            chunk.edges.extend((call, source, slot))
        for output, target in enumerate(given):
            self._row(plan, op, place, output, call, target, sources, False)
        if not recording.bad.isdisjoint((*sources, *range(call, recording.end))):
            with self.quiet():
                self.evidence.judge(None, plan, call, given, sources, (*taken, *saved), {}, None, 0, node)

    def _row(
        self, plan: Plan, op: int, place: tuple[int, int, int, int, int], output: int, call: int, target: Tensor, sources: list[int], written: bool
    ) -> int:
        recording, chunk = self.recording, self.chunk
        phase, node, line, site, module = place
        position = chunk.start + len(chunk.meta) // WIDTH
        numel = target.numel()
        try:
            storage = target.untyped_storage()
        except Exception:
            storage = storage_of(target)  # type: ignore[assignment]
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        flags = self._flags
        stat, view = -1, False
        if entry is not None and not written:  # an alias of something known
            view = True
            flags |= VIEW
            if sources and (plan.same_elements or entry.numel == numel) and not entry.parts:
                stat = recording.stat_of(sources[0])
        elif plan.copies and len(sources) == 1:
            stat = recording.stat_of(sources[0])
        if plan.uninitialised:
            bad = 0
        elif stat < 0:
            stats = chunk.stats
            stat = (chunk.number << 32) | stats.add(target)
            bad = stats.bad
        else:
            bad = int(sources[0] in recording.bad)
        if bad > 0:
            recording.bad.add(position)
        elif bad < 0 and self.evidence.unsettled < 0:
            self.evidence.unsettled = position
        if written:
            flags |= INPLACE
        chunk.meta.extend(
            (
                op,
                phase,
                module,
                output,
                recording.shapes(target.shape),
                recording.dtypes(target.dtype),
                0 if target.is_cpu else recording.devices(str(target.device)),
                stat,
                node,
                line,
                site,
                flags,
                call,
                self.backward_pass,
            )
        )
        if storage is None:
            return bad
        if view and entry is not None:
            if entry.numel != numel:
                if entry.views is None:
                    entry.views = {}
                entry.views[view_key(target)] = position
            return bad
        if entry is None:
            size = numel if storage.nbytes() == numel * target.itemsize else storage.nbytes() // max(target.itemsize, 1)
            entry = self.ledger.enter(storage, size)
            entry.uninit = plan.uninitialised
        entry.views = None
        if entry.numel == numel:
            entry.last, entry.parts, entry.bad = position, [], bad
            entry.uninit = plan.uninitialised
        else:
            entry.parts.append(position)
            entry.bad = entry.bad or bad
        if self._grad and entry.owner < 0 and phase == OPTIMIZER:
            entry.grad = True
        return bad

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

    def mark_gradient(self, tensor: Tensor) -> None:
        """Say that a tensor is a parameter's gradient."""
        storage = storage_of(tensor)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        if entry is not None:
            entry.grad = True


def _targets(plan: Plan, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], list[bool]]:
    """The tensors that an operation made (False) or changed (True)."""
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
    return found, [False] * made + [True] * (len(found) - made)


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, Tensor):
                found.append(item)
