"""Calls of an optimizer's step that repeat its last one: noted without working them out."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)

from nanlab.capture.ledger import Entry, tracked_by
from nanlab.capture.plans import Call, Plan
from nanlab.capture.program import NUMBERS
from nanlab.trace.chunk import CALL, DEVICE, FLAGS, INPLACE, OUTPUT, PASS, STAT, VIEW, WIDTH
from nanlab.trace.program import Ref, View

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
_ATTEMPTS = 6  # of learning the calls of one optimizer
# Optimizers whose calls follow from their settings and which state there is, numbers apart.
_REGULAR: frozenset[Any] = frozenset(
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW Adamax NAdam Adagrad Adadelta RMSprop Rprop".split()
)


class _Unlike(Exception):
    """A step's calls do more than to read and write whole tensors."""


@dataclass(slots=True)
class _Known:
    """One call of the step; tensors are told by the number of their slot."""

    func: Any
    plan: Plan
    run: Callable[..., Any]
    operands: tuple[tuple[int, int], ...]  # index of an argument, slot
    args: tuple[Any, ...]  # with views for tensors
    free: tuple[int, ...]  # arguments that are numbers
    fixed: tuple[int, ...]  # other arguments
    scalars: bool
    out: View
    target: int  # slot that it writes, or makes
    makes: bool
    numel: int  # of the result
    inside: tuple[Any, ...] | None  # torch's own line
    first: int  # of the numbers of its storages, among those of the step
    last_use: tuple[int, ...] = ()  # slots that no later call reads


@dataclass(slots=True)
class _Pattern:
    """The calls of one optimizer's step."""

    kept: list[Tensor]  # parameters and state, the same tensors in every step
    gradients: list[View | None]  # of each parameter
    place: tuple[int, int]
    calls: list[_Known]
    rows: Any  # of the table, a row for each call
    edges: Any  # (call, source, slot); a source at least 0 is a call, else -1 minus its slot
    slots: Any  # of the storages, in the order of the views
    made: int  # slots that calls make
    writes: list[tuple[int, int]]  # (slot, call) for memory that the step did not make
    inside: list[tuple[int, Any]]  # (call, torch's own line)
    settings: list[dict[str, Any]] | None  # of each group; None where it is always observed
    noted: list[Any]  # as the program notes its calls, but for their numbers
    numels: Any  # of the results


class OptimizerCalls:
    """Learns the calls of each optimizer's step, and notes those that come again."""

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops
        self._patterns: dict[int, _Pattern] = {}
        self._attempts: dict[int, int] = {}
        self._learning: tuple[Any, ...] | None = None
        self._pattern: _Pattern | None = None  # of the step that is running
        self._unobserved: _Numbers | None = None  # of the step that runs without a dispatch mode

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer of torch's is about to step."""
        ops, self._learning = self.ops, None
        program, key = ops.program, id(optimizer)
        if (
            program is None
            or ops.in_optimizer != 1
            or ops.step_place is None
            or ops.flying
            or ops.views.odd
            or ops.recording.pending
            or (ops.recording.bad and not ops.recording.puts_off)
            or program.segment.lost is not None
            or optimizer.defaults.get("differentiable", False)
            or self._attempts.get(key, 0) > _ATTEMPTS
        ):
            return
        kept, gradients = _tensors(optimizer)
        views = [None if g is None else ops.views.of(g, tracked_by(g)) for g in gradients]
        entries = self._entries([*kept, *(g for g in gradients if g is not None)])
        if entries is None:
            return
        pattern = self._patterns.get(key)
        if (
            pattern is not None
            and pattern.place == ops.step_place
            and len(kept) == len(pattern.kept)
            and all(a is b for a, b in zip(kept, pattern.kept, strict=True))
            and len(views) == len(pattern.gradients)
            and all(a is b for a, b in zip(views, pattern.gradients, strict=True))
        ):
            self._start(pattern, [*kept, *(g for g in gradients if g is not None)], entries)
            settings = _settings(optimizer) if ops.recording.puts_off else None
            if settings is not None and settings == pattern.settings:
                self._stop_observing(pattern, optimizer)
            return
        self._attempts[key] = self._attempts.get(key, 0) + 1
        calls, chunk = program.segment.calls, ops.chunk
        lasts = [entry.last for entry in entries]
        begun = program.segment, chunk, len(calls.noted), len(calls), chunk.end, len(chunk.edges)
        settings = _settings(optimizer)
        self._learning = key, kept, views, entries, lasts, ops.step_place, settings, begun

    def _stop_observing(self, pattern: _Pattern, optimizer: torch.optim.Optimizer) -> None:
        if self._is_first and _get_current_dispatch_mode() is self.ops:
            self._unobserved = _Numbers(self.ops, pattern, type(optimizer), self._base)
            _pop_mode()

    def _observe_again(self) -> bool:
        if self._unobserved is None:
            return False
        self._unobserved = None
        _push_mode(self.ops)
        return True

    def interrupted(self) -> None:
        """The program runs on, or ends, though no step was seen to end."""
        if self._observe_again():
            self._pattern = self.ops.again = None
            self._let_go()
            if self.ops.program is not None:
                self.ops.program.lose("a step of its optimizer raised an exception")

    def end(self) -> None:
        """The step is over."""
        numbers = self._unobserved
        if self._observe_again():
            assert numbers is not None
            self._note_all(numbers)
        elif self._pattern is not None:
            self.stop()
        elif self._learning is not None:
            learning, self._learning = self._learning, None
            try:
                self._patterns[learning[0]] = self._learn(*learning[1:])
            except _Unlike:
                self._patterns.pop(learning[0], None)

    def _entries(self, tensors: list[Tensor]) -> list[Entry] | None:
        """What is known of their storages; None unless each is shown whole and healthy."""
        known, found, ours = self.ops.ledger.entries, [], self.ops.recording.puts_off
        for t in tensors:
            if not t.is_cpu or t.layout is not torch.strided:
                return None
            entry = known.get(t.untyped_storage()._cdata)
            if (
                entry is None
                or entry.nbytes != t.numel() * t.itemsize
                or entry.parts
                or entry.odd
                or entry.uninit
                or entry.bad > 0
                or (entry.bad and not ours)
            ):
                return None
            found.append(entry)
        return found if len({entry.serial for entry in found}) == len(found) else None

    # -- learning

    def _learn(
        self,
        kept: list[Tensor],
        gradients: list[View | None],
        entries: list[Entry],
        lasts: list[int],
        place: tuple[int, int],
        settings: list[dict[str, Any]] | None,
        begun: tuple[Any, ...],
    ) -> _Pattern:
        """The pattern of the step that has just run."""
        segment, chunk, noted, index, start, first_edge = begun
        ops, calls = self.ops, segment.calls
        assert ops.program is not None
        count = (len(calls.noted) - noted) // 8
        if (
            segment is not ops.program.segment
            or chunk is not ops.chunk
            or len(calls) - index != count
            or chunk.end - start != count
            or not count
        ):
            raise _Unlike
        rows = np.array(chunk.meta[-count * WIDTH :], np.int64).reshape(-1, WIDTH)
        if (
            (rows[:, CALL] != np.arange(start, start + count)).any()
            or (rows[:, (OUTPUT, DEVICE)] != 0).any()
            or (rows[:, STAT] < 0).any()
            or (rows[:, FLAGS] & VIEW).any()
        ):
            raise _Unlike
        reader = _Reader(ops, entries, lasts, start)
        known: list[_Known] = []
        fields = iter(calls.noted[noted:])
        for at, call in enumerate(zip(*[fields] * 8, strict=True)):
            inside = segment.inside.get(index + at)
            known.append(reader.read(at, call, calls.numbers, rows[at], inside))
        edges = np.array(chunk.edges[first_edge:], np.int64).reshape(-1, 3)
        expected = np.array(reader.edges, np.int64).reshape(-1, 3)
        if edges.shape != expected.shape or (edges != reader.as_noted(expected)).any():
            raise _Unlike
        later: set[int] = set()
        for each in reversed(known):
            used = {slot for _, slot in each.operands} | {each.target}
            each.last_use = tuple(slot for slot in used - later if slot >= len(entries))
            later |= used
        kind = kept, gradients, place
        writes = [(each.target, at) for at, each in enumerate(known) if not each.makes]
        outer = [(slot, at) for slot, at in writes if slot < len(entries)]
        lines = [(at, each.inside) for at, each in enumerate(known) if each.inside is not None]
        slots = np.array(reader.slots)
        again: list[Any] = []
        for each in known:
            again += (each.func, each.args, {}, each.out, 0, False, "", 0)
        numels = np.array([each.numel for each in known])
        seen = reader.made, outer, lines
        return _Pattern(*kind, known, rows, expected, slots, *seen, settings, again, numels)

    # -- the step again

    def _start(self, pattern: _Pattern, tensors: list[Tensor], entries: list[Entry]) -> None:
        ops = self.ops
        program, ledger = ops.program, ops.ledger
        assert program is not None
        segment = program.segment
        first_made = ledger.number(pattern.made)
        self._serials = [entry.serial for entry in entries]
        self._serials += range(first_made, first_made + pattern.made)
        for tensor, entry in zip(tensors, entries, strict=True):
            if entry.serial not in segment.known:
                program.met(entry.serial, tensor.untyped_storage())
        # whether the segment has written none of it yet
        self._is_first = all(self._serials[slot] in program.unsaved for slot, _ in pattern.writes)
        numbers = segment.calls.numbers
        self._first = len(numbers)
        numbers.frombytes(np.array(self._serials, np.int64)[pattern.slots].tobytes())
        self._tensors: list[Tensor | None] = [*tensors, *[None] * pattern.made]
        self._held = entries
        for slot, _ in pattern.writes:
            if self._serials[slot] in program.unsaved:
                program.save(self._serials[slot], tensors[slot].untyped_storage())
        self._base, self._index = ops.chunk.end, len(segment.calls)
        self._least = ops.least_put_off() if ops.recording.puts_off else sys.maxsize
        self._at = 0
        self._stats: list[int] = []
        self._bad: list[int] = []
        self._pattern, ops.again = pattern, self

    def expects(self, func: Any, args: Any, kwargs: Any) -> _Known | None:
        """The call of the last step that is about to come again; None where another one is."""
        pattern, at, tensors = self._pattern, self._at, self._tensors
        known = pattern.calls[at] if pattern is not None and at < len(pattern.calls) else None
        if known is None or known.func is not func or len(args) != len(known.args):
            self.stop()
            return None
        for i, slot in known.operands:
            if args[i] is not tensors[slot]:
                self.stop()
                return None
        for i in known.free:
            if args[i].__class__ is not float and args[i].__class__ is not int:
                self.stop()
                return None
        if known.fixed and any(args[i] is not known.args[i] for i in known.fixed):
            self.stop()
            return None
        for value in kwargs.values() if kwargs else ():
            if value.__class__ not in NUMBERS:
                self.stop()
                return None
        return known

    def note(self, known: _Known, args: Any, kwargs: Any, out: Any) -> None:
        """Note the call, which has run."""
        ops, tensors, at = self.ops, self._tensors, self._at
        assert ops.program is not None
        self._at = at + 1
        position = self._base + at
        if known.makes:
            tensors[known.target] = out
        packed = known.args
        if known.free:
            given = list(packed)
            for i in known.free:
                given[i] = args[i]
            packed = tuple(given)
            if known.scalars:
                ops.note_scalars(position, args)
        noted, first = ops.program.segment.calls.noted, self._first + known.first
        noted += (known.func, packed, kwargs, known.out, position, False, "", first)
        if known.numel >= self._least:
            self._stats.append(-1)
            self._bad.append(-1)
        else:
            stats = ops.chunk.stats
            self._stats.append(stats.add(out))
            self._bad.append(stats.bad)
            if stats.bad:
                self._turned_bad(known, args, kwargs, out)
                return
        for slot in known.last_use:
            tensors[slot] = None

    def _note_all(self, numbers: _Numbers) -> None:
        """Note the calls of a step that was not observed."""
        pattern, program = self._pattern, self.ops.program
        assert pattern is not None and program is not None
        calls, base, first = program.segment.calls, self._base, self._first
        numbers.first = len(calls.noted)
        count = self._at = len(pattern.calls)
        noted = pattern.noted[:]
        noted[4::8] = range(base, base + count)
        noted[7::8] = [first + known.first for known in pattern.calls]
        calls.noted += noted
        calls.late.append(numbers.fill)
        self._stats = self._bad = [-1] * count
        self.stop()

    def _turned_bad(self, known: _Known, args: Any, kwargs: Any, out: Any) -> None:
        """The call that has just run made a bad value: the rest is recorded call by call."""
        ops, position = self.ops, self._base + self._at - 1
        self.stop()
        ops.recording.bad.add(position)
        if not ops.recording.puts_off:
            edges = ops.chunk.edges
            sources = edges[ops.chunk.edges_from(position) + 1 :: 3].tolist()
            flags = ops.recording.flags(position)
            plan, target = known.plan, [out if known.makes else args[0]]
            made = Call(
                func=known.func,
                plan=plan,
                position=position,
                outputs=1,
                targets=target,
                sources=sources,
                args=args,
                kwargs=kwargs,
                old=None,
                flags=flags,
                node=None,
            )
            ops.evidence.judge(made)

    def stop(self) -> None:
        """Write the rows of the calls that came, and what is known of the memory they wrote."""
        pattern, self._pattern = self._pattern, None
        self.ops.again = None
        if pattern is not None and self._at:
            try:
                self._write(pattern, self._at)
            except Exception as error:
                self.ops.failed(error)
        self._let_go()

    def _let_go(self) -> None:
        self._tensors, self._held = [], []  # else gradients would outlive zero_grad()

    def _write(self, pattern: _Pattern, count: int) -> None:
        ops, base, chunk = self.ops, self._base, self.ops.chunk
        rows = pattern.rows[:count].copy()
        rows[:, CALL] = np.arange(base, base + count)
        rows[:, STAT] = self._put_off(pattern) | (chunk.number << 32)
        rows[:, PASS] = ops.backward_pass
        edges = pattern.edges[pattern.edges[:, 0] < count].copy()
        edges[:, 0] += base
        before = np.array([entry.last for entry in self._held] or [0], np.int64)
        source = edges[:, 1]
        outer = np.maximum(-1 - source, 0)
        edges[:, 1] = np.where(source >= 0, source + base, before[outer])
        chunk.meta.frombytes(rows.tobytes())
        chunk.edges.frombytes(edges.tobytes())
        self._write_ledger(pattern, count)

    def _put_off(self, pattern: _Pattern) -> Any:
        """The statistics of each call, with new rows for those that were put off."""
        rows = np.array(self._stats, np.int64)
        late = np.flatnonzero(rows < 0)
        if len(late):
            first = self.ops.chunk.stats.put_off(pattern.numels[late])
            rows[late] = np.arange(first, first + len(late))
        return rows

    def _write_ledger(self, pattern: _Pattern, count: int) -> None:
        """Note which rows tell what memory holds now."""
        ops, base, held = self.ops, self._base, self._held
        assert ops.program is not None
        segment, tensors = ops.program.segment, self._tensors
        segment.known.update(self._serials[len(held) :])
        if ops.recording.puts_off:
            segment.inside.update({self._index + at: line for at, line in pattern.inside})
        for slot, at in pattern.writes:
            if at >= count:
                break
            entry = held[slot]
            entry.views, entry.last, entry.bad = None, base + at, self._bad[at]
            if entry.owner >= 0 or entry.asked:
                tensor = tensors[slot]
                assert tensor is not None
                if entry.owner >= 0 or ops.adopt(tensor) >= 0:
                    ops.wrote(entry, base + at, tensor)
        if count == len(pattern.calls):
            return
        for known, at in zip(pattern.calls, range(count), strict=False):  # what is still used
            made = tensors[known.target]
            if known.target >= len(held) and made is not None:
                storage, entries = made.untyped_storage(), ops.ledger.entries
                if storage._cdata not in entries:
                    ops.ledger.promised[storage._cdata] = self._serials[known.target]
                    ops.ledger.enter(storage)
                entry = entries[storage._cdata]
                entry.last, entry.bad, entry.grad = base + at, self._bad[at], True


class _Numbers(TorchDispatchMode):
    """The numbers among the arguments of a step that was not observed: found, when somebody reads
    them, by a step on tensors without memory, scalars apart."""

    def __init__(self, ops: OpRecorder, pattern: _Pattern, kind: Any, base: int) -> None:
        super().__init__()
        assert ops.program is not None
        self._recording, self._segment, self._plans = ops.recording, ops.program.segment, ops.plans
        self._known, self._base, self._kind = pattern.calls, base, kind
        self._groups = ops.program.optimizing.groups
        self.first = 0  # index of the first call in what was noted
        self._given: list[tuple[Any, Any]] = []

    def fill(self, noted: list[Any]) -> None:
        """Put them into what was noted of the calls."""
        try:
            with _disable_current_modes(), torch.no_grad():
                self._step()
            if len(self._given) != len(self._known):
                raise RuntimeError("it makes other calls than the step before")
        except Exception as error:
            if self._segment.lost is None:
                index = len(self._segment.calls) - (len(noted) - self.first) // 8
                self._segment.lost = index, f"its optimizer cannot step again ({error})"
            return
        for at, (known, (args, kwargs)) in enumerate(zip(self._known, self._given, strict=True)):
            given = list(known.args)
            for i in known.free:
                given[i] = args[i]
            noted[self.first + 8 * at + 1], noted[self.first + 8 * at + 2] = tuple(given), kwargs
            numbers = tuple([args[i] for i in known.free if i])
            if known.scalars and numbers:
                self._recording.scalars[self._base + at] = numbers

    def _step(self) -> None:
        made: Any = self._kind([torch.zeros(1)])
        made.state.clear()
        groups = []
        for group in self._groups:
            parameters = []
            for ref, gradient, state in zip(
                group.parameters, group.gradients, group.state, strict=True
            ):
                if gradient is None:
                    continue
                parameter = self._like(ref)
                parameter.grad = torch.empty_like(parameter)
                if state:
                    made.state[parameter] = {name: self._like(v) for name, v in state.items()}
                parameters.append(parameter)
            groups.append({**group.settings, "params": parameters})
        made.param_groups = groups
        step = type(made).step
        with self:
            getattr(step, "__wrapped__", step)(made)

    def _like(self, value: Any) -> Any:
        """A single number as it was before the step; of other tensors shape and dtype."""
        if value.__class__ is not Ref:
            return value
        if value.size:
            return torch.empty(value.size, dtype=value.dtype, device="meta")
        number = torch.empty(0, dtype=value.dtype)
        return number.set_(self._segment.saved[value.storage], value[1], (), ()).clone()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plan = self._plans.get(id(func))
        if plan is None or not plan.skip:
            at = len(self._given)
            if at >= len(self._known) or self._known[at].func is not func:
                raise RuntimeError("it makes other calls than the step before")
            self._given.append((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]] | None:
    """The settings on which it depends what calls an optimizer makes; None where other code than
    torch's may run in its step."""
    if (
        type(optimizer) not in _REGULAR
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or len(torch_optimizer._global_optimizer_pre_hooks) > 1
        or len(torch_optimizer._global_optimizer_post_hooks) > 1
        or getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    ):
        return None
    found = []
    for group in optimizer.param_groups:
        if group["lr"].__class__ is not float or not 0.0 < group["lr"] < math.inf:
            return None
        kept = {n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")}
        if any(v.__class__ not in NUMBERS and v.__class__ is not tuple for v in kept.values()):
            return None
        found.append(kept)
    return found


def _tensors(optimizer: torch.optim.Optimizer) -> tuple[list[Tensor], list[Tensor | None]]:
    """Parameters that have a gradient and their state; the gradients."""
    kept: list[Tensor] = []
    gradients: list[Tensor | None] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            gradient = p.grad
            gradients.append(gradient)
            if gradient is not None:
                kept.append(p)
                kept += [v for v in optimizer.state.get(p, {}).values() if isinstance(v, Tensor)]
    return kept, gradients


class _Reader:
    """Reads the calls that were noted, in their order."""

    def __init__(self, ops: OpRecorder, entries: list[Entry], lasts: list[int], start: int) -> None:
        self._ops, self._start = ops, start
        self._before = lasts
        self._slot_of = {entry.serial: slot for slot, entry in enumerate(entries)}
        self._nbytes = [entry.nbytes for entry in entries]
        self._last = [-1 - slot for slot in range(len(entries))]
        self.edges: list[tuple[int, int, int]] = []
        self.slots: list[int] = []
        self.made = 0

    def read(self, at: int, call: tuple[Any, ...], numbers: Any, row: Any, inside: Any) -> _Known:
        func, args, kwargs, out, position, grad, given, first = call
        plan = self._ops.plans[id(func)]
        makes = plan.plain
        if (
            grad
            or given
            or position != self._start + at
            or out.__class__ is not View
            or not (plan.plain or plan.writes == (0,))
            or _does_more(plan)
            or not all(value.__class__ in NUMBERS for value in kwargs.values())
        ):
            raise _Unlike
        operands: list[tuple[int, int]] = []
        first_number = len(self.slots)
        for i, value in enumerate(args):
            if value.__class__ is View:
                slot = self._slot_of.get(numbers[first + len(operands)])
                if slot is None or self._nbytes[slot] != value.nbytes:
                    raise _Unlike
                self.edges.append((at, self._last[slot], len(operands)))
                operands.append((i, slot))
            elif value.__class__ not in NUMBERS:
                raise _Unlike
        self.slots += [slot for _, slot in operands]
        serial = numbers[first + len(operands)]
        if makes:
            if serial in self._slot_of:
                raise _Unlike
            target = self._slot_of[serial] = len(self._nbytes)
            self._nbytes.append(out.nbytes)
            self._last.append(at)
            self.made += 1
        else:
            if not operands or operands[0][0] or self._slot_of.get(serial) != operands[0][1]:
                raise _Unlike
            target = operands[0][1]
            if self._nbytes[target] != out.nbytes or not row[FLAGS] & INPLACE:
                raise _Unlike
            self._last[target] = at
        self.slots.append(target)
        free = tuple(i for i, v in enumerate(args) if v.__class__ is float or v.__class__ is int)
        run, numel = plan.run, out.nbytes // out.rest[3].itemsize
        taken = {*free, *(i for i, _ in operands)}
        fixed = tuple(i for i in range(len(args)) if i not in taken)
        shown = tuple(operands), args, free, fixed, plan.scalars, out
        return _Known(func, plan, run, *shown, target, makes, numel, inside, first_number)

    def as_noted(self, edges: Any) -> Any:
        """The edges with the sources that they had in this step."""
        found = edges.copy()
        found[:, 0] += self._start
        found[:, 1] = [
            source + self._start if source >= 0 else self._before[-1 - source]
            for source in edges[:, 1].tolist()
        ]
        return found


def _does_more(plan: Plan) -> bool:
    """Whether a call needs more than its rows."""
    return bool(
        plan.rare
        or plan.skip
        or plan.special
        or plan.view
        or plan.copies
        or plan.pads
        or plan.draws
        or plan.indexes
        or plan.opaque
        or plan.hidden
        or (plan.writes and plan.inplace_risk and plan.optimizer_risk)
    )
