"""What an operation made or changed: its rows, and what the ledger knows of the memory behind them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from nanlab.capture.absorbed_evidence import AbsorbedEvidence
from nanlab.capture.calls import Call, saved_names, saved_values, tensors_of
from nanlab.capture.evidence import Evidence
from nanlab.capture.known_stats import known_stat
from nanlab.capture.ledger import Entry, Ledger, shape_of, shows_all, storage_of, view_key
from nanlab.capture.pending import Pending
from nanlab.capture.placing import Place
from nanlab.capture.plans import Plan
from nanlab.trace.recording import (
    BACKWARD,
    FACTOR,
    FORWARD,
    INPLACE,
    NOGRAD,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
    UNINIT,
    VIEW,
    Chunk,
    Recording,
    pack_edge,
    pack_row,
)

Tensor = torch.Tensor
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


class Writing:
    """The part of the recorder that appends rows."""

    recording: Recording
    ledger: Ledger
    evidence: Evidence
    absorbed: AbsorbedEvidence
    pending: Pending
    chunk: Chunk
    depth: int
    backward_pass: int
    in_backward: int
    in_optimizer: int
    special: Callable[[str, int, tuple[Any, ...]], None]
    wrote: Callable[[Entry, int, Tensor, Tensor | None], None]
    adopt: Callable[[Tensor], int]
    source: Callable[[Tensor], int]
    quiet: Callable[[], Any]
    _flags: int  # of the running call
    _grad: bool  # whether the running call reads a gradient
    _vague: bool

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
        targets, made = ([out], 1) if plan.plain and isinstance(out, Tensor) else targets_of(plan, args, kwargs, out)
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
        if plan.scalars:
            self._note_scalars(call, args)
        if phase == RECOMPUTE:
            self.evidence.recomputed.note(func, plan.name, plan.number, line, call, args, targets)
        bad, output = False, 0
        for target in targets:
            bad |= self._row(plan, place, output, call, target, sources, output >= made) > 0
            output += 1
        if recording.pending or bad or (recording.bad and not recording.bad.isdisjoint(sources)):
            running = torch._C._current_autograd_node() if self.in_backward else None
            judged = Call(func, plan, call, output, targets, sources, args, kwargs, old, self._flags, running)
            self.pending.add(judged) if recording.pending else self.evidence.judge(judged)
        if (plan.writes or plan.hidden) and (not torch.is_grad_enabled() or _outside(targets)):
            self._notice_owners(targets, call, old)
            if not self.absorbed.idle:
                self._notice_standing(targets, func, args, kwargs, call)
        if plan.special:
            self.special(plan.special, call, args)
        return call

    def _note_scalars(self, call: int, args: Any) -> None:
        """Keep the Python numbers among the operands."""
        numbers = tuple([v for v in args[1:] if v.__class__ is float or v.__class__ is int])
        if numbers:
            self.recording.scalars[call] = numbers

    def record_node(self, node: Any, name: str, taken: list[Tensor], given: list[Tensor]) -> None:
        """One row for each gradient that a node gave, where its operations were not observed."""
        recording, chunk = self.recording, self.chunk
        backward = name.rstrip("0123456789").removesuffix("Backward").lower() + "_backward"
        plan = Plan(backward, *_NODE_PLAN, number=recording.ops(backward))
        self._flags, self._grad, self._vague = 0, False, False
        saved = tensors_of(saved_values(node, saved_names(node)).values())
        sources = [self.source(t) for t in (*taken, *saved)]
        number = node._sequence_nr()
        info = recording.nodes.get(number)
        place = (BACKWARD, number, info.line, info.site, info.module) if info else (BACKWARD, number, 0, 0, 0)
        call = recording.end
        for slot, source in enumerate(sources):
            chunk.edges.frombytes(pack_edge(call, source, slot))
        for output, target in enumerate(given):
            self._row(plan, place, output, call, target, sources, False)
        if recording.pending or not recording.bad.isdisjoint((*sources, *range(call, recording.end))):
            judged = Call(None, plan, call, len(given), given, sources, (*taken, *saved), {}, None, 0, node)
            with self.quiet():
                self.pending.add(judged) if recording.pending else self.evidence.judge(judged)

    def _row(
        self, plan: Plan, place: Place, output: int, call: int, target: Tensor, sources: list[int], written: bool
    ) -> int:
        """Append the row of one output; the number of its bad elements (-1: not known yet)."""
        recording, chunk = self.recording, self.chunk
        meta, position = chunk.meta, call + output
        try:
            storage: torch.UntypedStorage | None = target.untyped_storage()
            sizes: tuple[int, ...] = target.shape
        except Exception:
            storage, sizes = storage_of(target), shape_of(target)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        view = entry is not None and not written  # an alias of something known
        whole = entry is not None and entry.nbytes == target.numel() * target.itemsize
        if entry is not None and whole and (entry.odd or (view and not plan.same_elements)):
            whole = shows_all(target, entry.nbytes)
            entry.odd = entry.odd or not whole
        if plan.uninitialised or output in plan.opaque:
            stat, bad = -1, 0
        else:
            stat = -1 if self._vague else known_stat(recording, plan, entry if view else None, target, whole, sources)
            if stat < 0:
                stats = chunk.stats
                stat, bad = (chunk.number << 32) | stats.add(target), stats.bad
            else:
                bad = 1 if sources[0] in recording.bad else -1 if recording.pending else 0
            if bad > 0:
                recording.bad.add(position)
            elif bad:
                recording.pending = True
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
            self._enter(plan, entry, target, whole, position, bad, view)
        elif storage is not None:
            self._begin(plan, place, storage, position, bad)
        return bad

    def _begin(self, plan: Plan, place: Place, storage: torch.UntypedStorage, position: int, bad: int) -> None:
        """Note in the ledger which row tells what a storage not seen before holds."""
        entry = self.ledger.enter(storage)
        entry.last = position
        if bad:
            entry.bad = bad
        if plan.uninitialised:
            entry.uninit = True
        if self._grad and place[0] == OPTIMIZER:
            entry.grad = True

    def _enter(
        self, plan: Plan, entry: Entry, target: Tensor, whole: bool, position: int, bad: int, view: bool
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

    def _notice_owners(self, targets: list[Tensor], call: int, old: Tensor | None) -> None:
        """Parameters and buffers that were written outside of the graph: an update, whoever makes it."""
        for i, target in enumerate(targets):
            storage = storage_of(target)
            entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
            if entry is not None and (entry.owner >= 0 or (entry.asked and self.adopt(target) >= 0)):
                if not self.in_optimizer and not self.depth and not self.in_backward:
                    if self.chunk.phase_of(call + i) in (FORWARD, OTHER):
                        self.chunk.set_phase(call + i, OPTIMIZER)
                self.wrote(entry, call + i, target, old if i == 0 else None)

    def _notice_standing(self, targets: list[Tensor], func: Any, args: Any, kwargs: Any, call: int) -> None:
        """Updates that may have changed nothing."""
        with self.quiet():
            self.absorbed.wrote([(self._owner(t), t) for t in targets], func, args, kwargs, call)

    def _owner(self, target: Tensor) -> int:
        """The number of the parameter or buffer that a tensor is; -1 if it is none."""
        storage = storage_of(target)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        return -1 if entry is None else entry.owner


def _outside(targets: list[Tensor]) -> bool:
    """Whether none of the tensors that were written is part of a graph: under no_grad, or by way of ``.data``."""
    return not any(t.requires_grad for t in targets)


def targets_of(plan: Plan, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], int]:
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
