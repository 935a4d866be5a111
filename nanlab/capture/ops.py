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

from nanlab.capture.absorbed_evidence import AbsorbedEvidence
from nanlab.capture.evidence import Evidence
from nanlab.capture.indices import IndexGuard
from nanlab.capture.ledger import Entry, Ledger, storage_of
from nanlab.capture.pending import Pending
from nanlab.capture.placing import Placing
from nanlab.capture.plans import Plan, plan_for
from nanlab.capture.program import ProgramRecorder
from nanlab.capture.reading import Reading
from nanlab.capture.shadow import ShadowRecorder
from nanlab.capture.source import SourceLines
from nanlab.capture.steps import StepClock
from nanlab.capture.writing import Writing, targets_of
from nanlab.trace.failure import ReadOut
from nanlab.trace.recording import (
    Chunk,
    Recording,
)

Tensor = torch.Tensor
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets
_LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this
_active: WeakSet[OpRecorder] = WeakSet()


def _forked() -> None:
    for recorder in _active:
        recorder.off = True  # a DataLoader worker inherits the watch; it is not the program that is watched


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


def _keep_dynamo_out() -> None:
    """Let torch.compile run our code as it is: it would trace it, at the price of seconds and warnings.

    Uses ``torch._C._dynamo.eval_frame.set_code_exec_strategy``, which came with torch 2.8; tried with torch 2.13.
    """
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)  # this frame, and all that it calls
        frames.set_code_exec_strategy(OpRecorder.__torch_dispatch__.__code__, strategy)


class OpRecorder(Reading, Writing, Placing, TorchDispatchMode):
    """Writes one row for each output of each operation.

    ``step_began`` is called with the position at which a training step begins, ``special`` with (kind, position, args) after an operation of a
    loss scaler, ``wrote`` with (entry, position, tensor, old value or None) after a parameter or buffer was written under ``no_grad``,
    ``adopt`` with a tensor that turns out to be a parameter, ``failed`` with an exception of our own.
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
        self.absorbed = AbsorbedEvidence(recording)
        self.pending = Pending(recording, self.evidence)
        self.guard = IndexGuard(self)
        self.chunk = recording.chunks[-1]
        self.plans: dict[int, Plan] = {}
        self.module = 0  # number of the running module's path
        self.depth = 0  # how many modules are running inside each other
        self.backward_pass = -1  # number of the running backward pass
        self.in_backward = 0
        self.in_optimizer = 0
        self.shadow: ShadowRecorder | None = None
        self.program: ProgramRecorder | None = None
        self.step_place: tuple[int, int] | None = None
        self.engine_codes: set[Any] = set()
        self.sequence = _sequence()
        self.off = False
        self.step_began: Callable[[int], None] = lambda position: None
        self.special: Callable[[str, int, tuple[Any, ...]], None] = lambda kind, position, args: None
        self.wrote: Callable[[Entry, int, Tensor, Tensor | None], None] = lambda entry, position, tensor, old: None
        self.adopt: Callable[[Tensor], int] = lambda tensor: -1
        self.failed: Callable[[Exception], None] = lambda error: None
        self._flags = 0
        self._grad = False  # whether the running call reads a gradient
        self._vague = False
        self.opening: dict[int, int] = {}
        self.first_call = 1 << 62  # position at which an outermost module was first called
        self._lifting = False  # whether the running call brings in a literal: torch.tensor([...])
        self._read_out = {}
        _active.add(self)

    def __enter__(self) -> Any:
        _keep_dynamo_out()
        return super().__enter__()

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
            try:
                plan = self.plans[id(func)] = plan_for(func, self.recording.ops)
            except Exception as error:
                self.failed(error)
                return func(*args, **kwargs)
        if plan.skip or self.off:
            value = func(*args, **kwargs)
            if plan.reads_out and not self.off:
                self._note_read_out(args[0], value, sys._getframe().f_back)
            elif plan.name == "resize_" and not self.off and self.program is not None:
                self.program.lose("resize_ changes the size of a storage")
            return value
        frame = sys._getframe().f_back
        try:
            place = self.place(frame)
            sources = self.read(plan, args, kwargs)
            old = None if plan.plain else self._before_write(plan, args, kwargs)
            program = self.program
            packed = program.before(func, plan, args, kwargs) if program is not None else None
            twins = self.shadow.before(func, plan, args, kwargs) if self.shadow is not None else None
        except Exception as error:
            self.failed(error)
            return func(*args, **kwargs)
        if plan.indexes:
            self.guard.before(plan.name, args, frame)
        out = func(*args, **kwargs)
        try:
            call = self.write(func, plan, args, kwargs, out, sources, old, place)
            if program is not None and packed is not None:
                program.after(func, plan, packed, out, call)
            if twins is not None and self.shadow is not None:
                self.shadow.after(self.chunk, call, targets_of(plan, args, kwargs, out)[0], twins)
        except Exception as error:
            self.failed(error)
        return out

    def _note_read_out(self, tensor: Tensor, value: Any, frame: FrameType | None) -> None:
        """A tensor was read as a Python number: somebody looks at it, and what is computed from that carries no gradient."""
        try:
            self.note_number(tensor, value)
            if self.in_backward or self.in_optimizer:
                return
            escapes, source = self.recording.escapes, self.source(tensor)
            if self.program is not None:
                self.program.looked(tensor, value, self.lines.here(frame)[0])
            escapes.last_read = self.recording.end, source
            if tensor.requires_grad:
                escapes.add(ReadOut(self.recording.end, source, self.lines.here(frame)[0]))
        except Exception as error:
            self.failed(error)

    def _before_write(self, plan: Plan, args: Any, kwargs: Any) -> Tensor | None:
        """A copy of what an in-place operation overwrites, where it is evidence and small, or a low-precision parameter."""
        if self.recording.pending:
            self.pending.before_write(targets_of(plan, args, kwargs, None)[0])
        target = args[0] if args else None
        if plan.writes and isinstance(target, list) and not self.in_optimizer and not torch.is_grad_enabled():
            with self.quiet():
                self.absorbed.about_to_write(target)
        if not plan.writes or not isinstance(target, Tensor) or plan.overwrites or target.layout is not torch.strided:
            return None
        if self.in_optimizer and not plan.optimizer_risk:
            return None
        wanted = plan.inplace_risk and target.numel() <= 4096 and (target.is_floating_point() or target.is_complex())
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

    def new_chunk(self, position: int) -> None:
        """Begin the table of a new training step."""
        self.chunk = Chunk(len(self.recording.chunks), position)
        self.recording.chunks.append(self.chunk)
