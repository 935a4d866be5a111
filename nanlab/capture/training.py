"""The training loop: optimizer steps, loss scaler, parameters, checks at the end of a step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nanlab.capture.dispatch import OpRecorder
from nanlab.capture.execution import is_watched
from nanlab.capture.ledger import Entry, storage_of
from nanlab.capture.steps import StepClock
from nanlab.stats.memory import unobserved
from nanlab.trace.frames import StepRows
from nanlab.trace.history import History, Loss, OptimizerStep, ParameterStep, ScaleUpdate, Unscale
from nanlab.trace.op import walk
from nanlab.trace.recording import Recording, Sink

# Parameters, state and settings of an optimizer, copied so that a step can be taken back.


class OptimizerCopy:
    """Parameters, state and settings of an optimizer as they were."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        with torch.no_grad():
            self.parameters = [
                (p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]
            ]
            self.state = {
                p: {k: _copied(v) for k, v in s.items()} for p, s in optimizer.state.items()
            }
        self.groups = [
            {k: _copied(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups
        ]

    def put(self) -> None:
        for parameter, value in self.parameters:
            write(parameter, value)
        state = self.optimizer.state
        for key in [k for k in state if k not in self.state]:
            del state[key]
        for key, values in self.state.items():
            current = state.setdefault(key, {})
            for name in [n for n in current if n not in values]:
                del current[name]
            for name, value in values.items():
                there = current.get(name)
                if (
                    isinstance(value, torch.Tensor)
                    and isinstance(there, torch.Tensor)
                    and there.shape == value.shape
                    and there.dtype == value.dtype
                ):
                    write(there, value)
                else:
                    current[name] = _copied(value)
        for group, values in zip(self.optimizer.param_groups, self.groups, strict=True):
            group.update({k: _copied(v) for k, v in values.items()})


def size_of(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that a copy of an optimizer takes."""
    states = (
        v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)
    )
    tensors = [*(p for g in optimizer.param_groups for p in g["params"]), *states]
    return sum(t.numel() * t.element_size() for t in tensors)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    # LBFGS keeps lists, and never writes to what is in them
    return list(value) if isinstance(value, list) else value


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write a value into a tensor, unseen by autograd."""
    with torch.no_grad():
        target.detach().copy_(value)


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """The closure that ``Optimizer.step`` was given; ``args`` begins with the optimizer."""
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    return closure if callable(closure) else None


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[..., Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``Optimizer.step`` with another closure."""
    if len(args) > 1:
        return (args[0], closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure}


@dataclass(frozen=True, slots=True)
class Written:
    """The gradients and writes of parameters and buffers in a step, by their numbers."""

    gradients: dict[int, int]  # row of the gradient
    by_hand: list[tuple[int, int]]  # (number, row) of each write outside of an optimizer
    all: list[tuple[int, int]]  # and of each write

    def then(self, later: Written) -> Written:
        """The gradients and writes of this part of a step and of a later part together."""
        return Written(
            self.gradients | later.gradients,
            [*self.by_hand, *later.by_hand],
            [*self.all, *later.all],
        )


class StepChecks:
    """Looks through each step: at once for misuse, and later, several steps at a time, for what
    grows or was lost.

    What is done for several steps in a row finds the processor's caches warm, and takes a third of
    the time.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        # steps: begin and end of their rows, and whether these have statistics already: by the time
        # that a step is looked through it may be forgotten
        self._waiting: list[tuple[int, int, Written, bool]] = []
        self._end = 0  # position up to which steps were looked through
        self.failed: Callable[[Exception], None] = lambda error: None

    def run(self, written: Written) -> None:
        recording = self._recording
        start, self._end = self._end, recording.end
        if start == recording.end:
            return
        rows = StepRows(recording, start, recording.end)
        recording.check(rows)
        self._wait(rows.start, rows.end, written)

    def _is_summarised(self, start: int, end: int) -> bool:
        """Whether the rows between two positions have statistics."""
        recording = self._recording
        if recording.detail == "full":
            return True
        segments = recording.program.between(start, end)
        return bool(segments) and all(s.summarised >= len(s.calls) for s in segments)

    def _wait(self, start: int, end: int, written: Written) -> None:
        """Let a step wait for its checks, joined with the rest of a step that seemed to have
        ended."""
        began = next((s for s in reversed(self._recording.starts) if s < end), 0)
        while self._waiting and self._waiting[-1][0] >= began:
            start, _, before, _ = self._waiting.pop()
            written = before.then(written)
        self._waiting.append((start, end, written, self._is_summarised(start, end)))

    def catch_up(self) -> None:
        """Follow the series, and look for what was lost, in the steps that wait for it."""
        waiting, self._waiting = self._waiting, []
        try:
            for start, end, written, summarised in waiting:
                rows = StepRows(self._recording, start, end)
                measured = summarised or self._is_summarised(rows.start, rows.end)
                self._recording.look_through(rows, written, measured)
        except Exception as error:
            self.failed(error)


# The loop around the model: optimizer steps, loss scaler, parameters and what becomes of them.

# Bytes of parameters copied before an optimizer step to measure the update; above this there is
# none.
COPY_LIMIT = 1 << 30
_SETTINGS = "eps weight_decay momentum foreach fused capturable centered amsgrad alpha".split()


class TrainingRecorder:
    """Fills a ``History`` and notes sinks: gradients, parameters, optimizer state turned bad."""

    def __init__(self, ops: OpRecorder, clock: StepClock, history: History) -> None:
        self.ops, self.clock, self.history = ops, clock, history
        self.step_checks = StepChecks(ops.recording)
        # Called where a harmful fault may stop the program, with the rows of the gradients that are
        # about to be used.
        self.judge: Callable[[Sequence[int | None]], None] = lambda taken: None
        # ... as an optimizer uses them
        self.stepping: Callable[[Sequence[int | None]], None] = lambda taken: None
        # whether a bad gradient does harm that the program wrote after backward
        self.notes_used = False
        self._handles: list[Any] = []
        self._owners: dict[int, int] = {}  # storage address -> number of the parameter or buffer
        self._gradients: dict[int, int] = {}  # owner -> row of its gradient in this step
        self._arrived: dict[int, int] = {}  # owner -> position at which its gradient last came
        self._done: set[int] = set()  # owners with a row in this step
        self._running: list[tuple[int, list[torch.Tensor], bool, list[int | None], bool]] = []
        self._optimizers: dict[int, int] = {}
        # number of an optimizer -> rows of the gradients of its last step
        self._used: dict[int, list[int | None]] = {}
        # (owner, offset in its storage) -> copy of the parameter, and the row it is of
        self._before: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        # (owner, row) of every write to a parameter or buffer in this step
        self._written: list[tuple[int, int]] = []
        self._by_hand: list[tuple[int, int]] = []  # those outside of an optimizer
        self._bad_buffers: dict[int, int] = {}  # by owner, where each was written bad first
        # buffers that a later step made of their own bad numbers: a running mean keeps them
        self.kept: list[Sink] = []
        self._scaled: tuple[int, int] | None = None  # rows of a loss and of the scaled loss
        self._scale_method: Any = None
        # whether an update of this step changed nothing though its gradient is not zero; of a watch
        # that puts statistics off
        self._still = False
        self._lost = 0  # steps in which signal was lost

    # -- life

    def start(self, model: nn.Module | None) -> None:
        if model is not None:
            self.module_seen("", model, recurse=True)
        self._handles = [
            register_optimizer_step_pre_hook(self._guarded(self._before_step)),
            register_optimizer_step_post_hook(self._guarded(self._after_step)),
        ]
        self._wrap_scale()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.ops.learned.stop()
        if self._scale_method is not None:
            torch.amp.GradScaler.scale = self._scale_method  # type: ignore[method-assign]
            self._scale_method = None
        self._running, self._before = [], {}

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if self.ops.off or not is_watched(self.ops):
                return None
            try:
                return function(*args)
            except Exception as error:
                self.ops.failed(error)
                return None

        return run

    def _wrap_scale(self) -> None:
        original = self._scale_method = torch.amp.GradScaler.scale

        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if not self.ops.off and isinstance(outputs, torch.Tensor) and scaled is not outputs:
                self._guarded(self._loss_scaled)(outputs, scaled)
            return scaled

        torch.amp.GradScaler.scale = scale  # type: ignore[method-assign, assignment]

    def _loss_scaled(self, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        self._scaled = (self.ops.source(loss), self.ops.source(scaled))

    # -- parameters

    def module_seen(self, path: str, module: nn.Module, recurse: bool = False) -> bool:
        """Learn the names of parameters and buffers; False if some do not exist yet."""
        complete = True
        for kind, named in (
            ("parameter", module.named_parameters),
            ("buffer", module.named_buffers),
        ):
            for name, tensor in named(recurse=recurse):
                if nn.parameter.is_lazy(tensor):
                    complete = False
                else:
                    self._register(tensor, f"{path}.{name}" if path else name, kind)
        return complete

    def _register(self, tensor: torch.Tensor, name: str, kind: Any) -> int:
        storage = storage_of(tensor)
        if storage is None:
            return -1
        owner = self._owners.get(storage._cdata)
        recording = self.ops.recording
        if owner is None or (owner < 0):
            owner = self._owners[storage._cdata] = recording.new_owner(name, kind)
            self.ops.reader.own(tensor, owner)
        return owner

    def owner_of(self, parameter: torch.Tensor) -> int:
        storage = storage_of(parameter)
        if storage is None:
            return -1
        owner = self._owners.get(storage._cdata)
        entry = self.ops.ledger.entries.get(storage._cdata)
        if owner is not None and entry is not None and entry.owner == owner:
            return owner
        self._owners.pop(storage._cdata, None)
        shape = "nested" if parameter.is_nested else "x".join(map(str, parameter.shape)) or "scalar"
        return self._register(
            parameter, f"parameter {len(self.ops.recording.parameter_names)} ({shape})", "parameter"
        )

    # -- events

    def loss_seen(self, source: int, adds: bool) -> None:
        """Note the loss from which backward is about to run; ``adds``: to present gradients."""
        scaled = self._scaled is not None and self._scaled[1] == source
        unscaled = self._scaled[0] if scaled and self._scaled else source
        recording = self.ops.recording
        self.history.losses.append(
            Loss(recording.end, unscaled, scaled, source, line=recording.passes[-1].line, adds=adds)
        )

    def gradient_seen(self, parameter: torch.Tensor, source: int, end: int) -> int:
        """A parameter got a gradient, before the row at ``end``; its number."""
        owner = self.owner_of(parameter)
        recording = self.ops.recording
        if recording.puts_off and parameter.grad is not None:
            self.ops.know(source, parameter.grad)
        self._gradients[owner] = source
        self._arrived[owner] = end - 1
        if recording.may_be_bad(source):
            recording.sinks.append(
                Sink("gradient", source, end - 1, recording.parameter_names[owner])
            )
        return owner

    def wrote(self, entry: Entry, position: int, target: torch.Tensor) -> None:
        """A parameter or buffer was written under no_grad."""
        recording = self.ops.recording
        self._written.append((entry.owner, position))
        if not self.ops.where.in_optimizer:
            self._by_hand.append((entry.owner, position))
            if (
                not self.ops.where.depth
                and recording.passes
                and recording.parameter_kinds[entry.owner] == "parameter"
            ):
                self.clock.updated(position)
                updates = self.history.updates_by_hand
                if not updates or updates[-1] < recording.starts[-1]:
                    updates.append(position)
        if not self.ops.where.in_optimizer:
            self.ops.know(position, target)
        if recording.may_be_bad(position):
            name = recording.parameter_names[entry.owner]
            if recording.parameter_kinds[entry.owner] == "parameter":
                recording.sinks.append(Sink("parameter", position, position, name))
                return
            before = self._bad_buffers.setdefault(entry.owner, position)
            if before < recording.starts[-1] and before in recording.parents(position):
                self.kept.append(Sink("buffer", before, before, name))

    def left_bad(self) -> list[Sink]:
        """Sinks for buffers that went bad and were computed from their own value: they stay bad."""
        recording = self.ops.recording
        sinks = []
        for owner, position in self._bad_buffers.items():
            name = recording.parameter_names[owner]
            read = map(recording.sources.get, walk([position], recording.parents))
            if any(source is not None and source.name == name for source in read):
                sinks.append(Sink("buffer", position, position, name))
        return sinks

    def special(self, kind: str, position: int, args: tuple[Any, ...]) -> None:
        """A scaler's operation: (grads, found_inf, inv_scale) or (scale, tracker, found_inf)."""
        recording, source = self.ops.recording, self.ops.source
        if kind == "unscale":
            self.history.unscales.append(
                Unscale(position, len(args[0]), recording.value(source(args[1])) != 0)
            )
            return
        operands = recording.operands(position)
        before = recording.value(operands[0][0]) if operands else None
        after, found = recording.value(position), recording.value(source(args[2]))
        self.history.scales.append(ScaleUpdate(position, before or 0.0, after or 0.0, found != 0))
        self.clock.completed(self.ops.lines.outside(sys._getframe(1)))
        self.judge(())

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        ops, closure = self.ops, closure_of(args, kwargs)
        ops.settle()
        if (
            not ops.where.in_optimizer and closure is not None
        ):  # the whole step may run inside of it
            ops.where.notice_loop(ops.lines.outside(sys._getframe(1)))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        ops.collectives.before_read([p.grad for p in parameters if p.grad is not None])
        ops.collectives.settle(self.clock.starts[-1])
        with ops.quiet():
            used = [
                ops.know(ops.source(p.grad), p.grad) if p.grad is not None else None
                for p in parameters
            ]
        self._note_arrived(parameters, used)
        self.stepping(used)
        small = sum(p.numel() * p.itemsize for p in parameters) <= COPY_LIMIT
        owners = [self.owner_of(p) for p in parameters]
        self.clock.stepping(self._came(owners, used), id(optimizer))
        if small:
            with ops.quiet():
                self._remember(parameters, owners)
        self._running.append((ops.recording.end, parameters, small, used, not optimizer.state))
        ops.recording.sinks.extend(bad_rates(ops.recording, ops.source, optimizer))
        ops.where.in_optimizer += 1
        own = type(optimizer).__module__.startswith("torch.optim.")
        ops.where.step_place = ops.lines.here(sys._getframe(1)) if own else None
        if ops.program is not None:
            grad = torch.is_grad_enabled()
            with ops.quiet():
                ops.program.optimizers.begins(optimizer, closure is not None, grad, ops.source)
        if own and closure is None:
            with unobserved():
                ops.learned.optimizer_begins(optimizer)
        if closure is None:
            return None
        return with_closure(args, kwargs, self._judged(optimizer, closure))

    def _judged(self, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure after which a harmful fault stops the program, with the parameters as before
        the step."""
        before: list[OptimizerCopy] = []

        def closed(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            self._guarded(self._closed)(optimizer, before)
            return result

        return closed

    def _closed(self, optimizer: Any, before: list[OptimizerCopy]) -> None:
        """A closure of an optimizer has returned; it may move the parameters next."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        with self.ops.quiet():
            used = [self.ops.know(self.ops.source(g), g) for g in gradients if g is not None]
            if not before and size_of(optimizer) <= COPY_LIMIT:
                before.append(OptimizerCopy(optimizer))
        try:
            self.judge(used)
        except BaseException:
            with self.ops.quiet():
                for copy in before:
                    copy.put()
            raise

    def _note_arrived(self, parameters: list[torch.Tensor], used: list[int | None]) -> None:
        """Note gradients that turned bad after backward: in other processes, or by hand."""
        recording = self.ops.recording
        if not (self.ops.collectives.seen or self.notes_used):
            return
        for parameter, row in zip(parameters, used, strict=True):
            if row is None or not recording.may_be_bad(row):
                continue
            owner = self.owner_of(parameter)
            if self._gradients.get(owner) != row:
                recording.sinks.append(
                    Sink("gradient", row, recording.end - 1, recording.parameter_names[owner])
                )

    def _came(self, owners: list[int], used: list[int | None]) -> int:
        """The position to which a step with these gradients reaches back; -1: unknown."""
        arrived = max((self._arrived.get(owner, -1) for owner in owners), default=-1)
        # the program made them itself
        if arrived < 0 and self.clock.certain < self.clock.starts[-1]:
            return earliest_of(
                self.ops.recording, used, self.clock.certain, {row for _, row in self._written}
            )
        return arrived

    def _remember(self, parameters: list[torch.Tensor], owners: list[int]) -> None:
        """Copies of the parameters now, within the budget; those still good are kept."""
        program = self.ops.program
        room = 0 if program is None else program.copies.budget - program.copies.spent
        for parameter, owner in zip(parameters, owners, strict=True):
            if parameter.grad is None or parameter.layout is not torch.strided or parameter.is_meta:
                continue
            key, row = _key(owner, parameter), self.ops.source(parameter)
            if program is not None and program.will_save(parameter, room):
                room -= parameter.untyped_storage().nbytes()
                self._let_go(key)
                continue
            known = self._before.get(key)
            if (
                known is None
                or known[0].shape != parameter.shape
                or known[0].dtype != parameter.dtype
                or known[0].device != parameter.device
            ):
                self._let_go(key)
                if program is None or program.copies.afford(parameter.nbytes):
                    self._before[key] = (parameter.detach().clone(), row)
            elif known[1] != row:
                known[0].copy_(parameter)

    def _let_go(self, key: tuple[int, int]) -> None:
        """Drop the copy of a parameter, and give its bytes back to the budget."""
        known = self._before.pop(key, None)
        if known is not None and self.ops.program is not None:
            self.ops.program.copies.spent -= known[0].nbytes

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ops, recording = self.ops, self.ops.recording
        ops.learned.optimizer_ended()
        ops.where.in_optimizer = max(0, ops.where.in_optimizer - 1)
        if not self._running:
            return
        position, parameters, copied, used, begins = self._running.pop()
        if ops.program is not None:
            ops.program.optimizers.ended()
        rates = tuple(number_of(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        settings = tuple(
            (k, optimizer.param_groups[0][k]) for k in _SETTINGS if k in optimizer.param_groups[0]
        )
        line, site = ops.lines.here(sys._getframe(1))
        number = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
        row = recording.op(ops.source(parameters[0])) if parameters else None
        writer = row.name if row is not None else ""
        left, self._used[number] = adds_to_last(recording, used, self._used.get(number, ())), used
        with ops.quiet():
            owners = [self.owner_of(p) for p in parameters]
            unreached = tuple(
                (owner, ops.source(p))
                for owner, p, gradient in zip(owners, parameters, used, strict=True)
                if gradient is None and p.requires_grad
            )
        kind = type(optimizer).__name__
        how = (rates, settings, line, site, writer, left, unreached, begins)
        self.history.optimizer_steps.append(
            OptimizerStep(position, recording.end, kind, number, *how)
        )
        rate = [number_of(g.get("lr")) for g in optimizer.param_groups for _ in g["params"]]
        with ops.quiet():
            saved = self._saved(parameters, owners, used, copied)
            for parameter, owner, gradient, lr, old in zip(
                parameters, owners, used, rate, saved, strict=True
            ):
                if gradient is not None:
                    self._parameter_row(parameter, owner, old, gradient, lr)
        recording.sinks.extend(bad_moments(ops, optimizer, self.owner_of))
        self.clock.completed(ops.lines.outside(sys._getframe(1)))

    def _parameter_row(
        self,
        parameter: torch.Tensor,
        owner: int,
        old: torch.Tensor | None,
        used: int,
        lr: float | None,
    ) -> None:
        ops, chunk = self.ops, self.ops.chunk
        value, update = ops.know(ops.source(parameter), parameter), None
        key = _key(owner, parameter)
        known = self._before.get(key) if self._before else None
        if old is not None:
            update = (chunk.number << 32) | chunk.stats.add_change(parameter, old)
            if ops.recording.puts_off and chunk.stats.all_zero(update & 0xFFFFFFFF):
                self._still = not self._all_zero(used)
            if known is not None:
                self._before[key] = (old.copy_(parameter.detach()), value)
        self._done.add(owner)
        made, gradient = ops.recording.end - 1, self._gradients.get(owner, used)
        self.history.parameters.append(
            ParameterStep(made, owner, value, gradient, used, update, lr)
        )

    def _saved(
        self,
        parameters: list[torch.Tensor],
        owners: list[int],
        used: list[int | None],
        copied: bool,
    ) -> list[torch.Tensor | None]:
        """The value of each parameter before the step, from copies or from the program record; or
        None."""
        program, found = self.ops.program, []
        with unobserved():
            for parameter, owner, gradient in zip(parameters, owners, used, strict=True):
                old = None
                if copied and gradient is not None:
                    known = self._before.get(_key(owner, parameter))
                    if known is not None:
                        old = known[0]
                    elif program is not None:
                        old = program.saved_value(parameter)
                found.append(old)
        return found

    def _forget_untouched(self, now: set[str]) -> None:
        """Drop the rows of gradients that no optimizer took before this step seemed to end, if the
        step went on and the gradients have come again.

        now: names of the parameters whose gradient has come or been used since.
        """
        rows, last = self.history.parameters, self.ops.recording.end - 1
        start = next((s for s in reversed(self.clock.starts) if s <= last), 0)
        first = len(rows)
        while first and rows[first - 1].position >= start:
            first -= 1
        names = self.ops.recording.parameter_names
        rows[first:] = [
            row for row in rows[first:] if row.used is not None or names[row.owner] not in now
        ]

    def _all_zero(self, number: int) -> bool:
        """Whether a row or source is known to hold nothing but zeros."""
        recording = self.ops.recording
        table, row = recording.table_of(recording.stat_of(number))
        return table is not None and table.all_zero(row)

    def lost_signal(self) -> bool:
        """Whether a gradient is zero or an update changed nothing; asked ever more rarely."""
        if not self._still and not any(map(self._all_zero, self._gradients.values())):
            return False
        self._lost += 1
        return self._lost <= 4 or not self._lost & (self._lost - 1)

    def step_ended(self) -> None:
        """Rows for parameters with a gradient and no optimizer; a look at the whole step."""
        position = self.ops.recording.end - 1
        names = self.ops.recording.parameter_names
        # by name: a sharded parameter is another one while it is whole
        done = {names[owner] for owner in self._done}
        self._forget_untouched(done.union(names[owner] for owner in self._gradients))
        for owner, gradient in self._gradients.items():
            if names[owner] not in done:
                self.history.parameters.append(
                    ParameterStep(position, owner, None, gradient, None, None, None)
                )
        self.step_checks.run(Written(self._gradients, self._by_hand, self._written))
        self._gradients, self._done, self._still = {}, set(), False
        self._written, self._by_hand = [], []


def _key(owner: int, parameter: torch.Tensor) -> tuple[int, int]:
    """A key for a parameter, distinct among those that share a storage."""
    return owner, int(parameter.storage_offset()) if parameter.layout is torch.strided else -1


# What an optimizer step is given, and what it keeps.

MOST_VISITS = 4000  # rows that are walked back over from the gradients of one optimizer step


def bad_rates(
    recording: Recording, source: Callable[[torch.Tensor], int], optimizer: Any
) -> list[Sink]:
    """A sink for each learning rate in a tensor that holds a NaN or an infinity."""
    rates = [
        source(g["lr"]) for g in optimizer.param_groups if isinstance(g.get("lr"), torch.Tensor)
    ]
    return [
        Sink("state", rate, recording.end - 1, "learning rate")
        for rate in rates
        if recording.may_be_bad(rate)
    ]


def bad_moments(
    ops: OpRecorder, optimizer: Any, owner_of: Callable[[torch.Tensor], int]
) -> list[Sink]:
    """A sink for each tensor of an optimizer's state that holds a NaN or an infinity."""
    recording, found = ops.recording, []
    states = optimizer.state.items() if recording.bad or recording.pending else ()
    for parameter, state in states:
        if not isinstance(parameter, torch.Tensor):
            continue
        for name, value in state.items():
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            entry = ops.ledger.of(value) if floating else None
            if entry is not None and recording.may_be_bad(entry.last):
                owner = recording.parameter_names[owner_of(parameter)]
                found.append(Sink("state", entry.last, recording.end - 1, f"{owner}.{name}"))
    return found


def adds_to_last(
    recording: Recording, used: Sequence[int | None], last: Sequence[int | None]
) -> bool:
    """Whether a step's gradients (rows) were added to those of the last step: never cleared."""
    for now, before in zip(used, last, strict=False):
        row = recording.op(now) if now is not None and now >= 0 and before is not None else None
        if row is not None and row.name in ("add", "add_"):
            return before in recording.parents(now)  # type: ignore[arg-type]
    return False


def earliest_of(
    recording: Recording, used: Sequence[int | None], start: int, written: set[int]
) -> int:
    """The first row from ``start`` behind gradients, by a way without ``written`` rows; or -1."""
    own = [row for row in used if row is not None and row >= start]
    made = walk(
        own,
        lambda at: (p for p in recording.parents(at) if p >= start and p not in written),
        MOST_VISITS,
    )
    return min(made, default=-1)


def number_of(value: Any) -> float | None:
    """A setting of an optimizer as a number; None if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
