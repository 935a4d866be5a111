"""Operations whose statistics are still on a device: operands are held until these arrive."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch

from nanlab.capture.evidence import UNHELD, Evidence
from nanlab.capture.ledger import ViewKey, storage_of, view_key
from nanlab.capture.plans import (
    Call,
    SavedValues,
    saved_names,
    saved_values,
    tensors_of,
    told_and_hidden,
)
from nanlab.stats.device import AsyncCopy, Copier, copier_of
from nanlab.stats.memory import is_wrapper, unobserved
from nanlab.trace.recording import Recording, Source

Tensor = torch.Tensor
MOST = 1 << 30  # bytes held
SHARE = 10  # one part in so many of a device's free memory
COPY_EACH = 64 << 20  # bytes of the largest tensor that is copied


class Held:
    """One tensor, for all calls that read or made it: an alias of it without its graph, or a copy
    made before it was overwritten.

    An alias, for the autograd engine takes other paths where somebody else holds the tensor itself.
    """

    __slots__ = ("identity", "key", "nbytes", "original", "tensor", "uses", "version")

    def __init__(self, tensor: Tensor | None, key: int, nbytes: int) -> None:
        self.tensor = tensor  # None: it is gone
        self.key = key  # of its storage; 0: none
        self.nbytes = nbytes  # of its storage
        # the tensor whose version tells of writes that no operation made
        self.original: weakref.ref[Tensor] | None = None
        self.version = -1
        self.identity = 0  # id of the original
        self.uses = 1  # calls

    def now(self) -> Tensor | None:
        """The tensor as it was when it was taken; None if it is gone or was overwritten."""
        original = self.original() if self.original is not None else None
        if original is not None and version_of(original) != self.version:
            self.tensor = None
        elif self.tensor is not None and self.key:
            storage = storage_of(self.tensor)
            # freed under our hands, as sharding does
            if storage is not None and storage.nbytes() != self.nbytes:
                self.tensor = None
        return self.tensor


class HeldTensors:
    """All that is held.

    owned: whether the storage with this key belongs to a parameter or buffer, which is in memory
    anyway.
    """

    def __init__(self, owned: Callable[[int], bool]) -> None:
        self.nbytes = 0  # of distinct storages
        self._owned = owned
        self.limit = MOST  # bytes from which on the oldest are to be dropped
        self._asked = False  # whether a device was asked for it
        self._cells: dict[int, set[Held]] = {}  # by storage
        self._known: dict[int, Held] = {}  # by the identity of the original
        self._counted: dict[int, int] = {}  # bytes of each storage, as far as they count

    def take(self, tensor: Tensor, watched: bool) -> Held:
        """Hold a tensor. To be called within ``unobserved()``.

        watched: notice by its version that it was overwritten (not where the call that is running
        writes it).
        """
        known = self._known.get(id(tensor))
        if known is not None and known.original is not None and known.original() is tensor:
            if known.version == version_of(tensor):
                known.uses += 1
                return known
        if not self._asked and tensor.is_cuda:
            self.limit, self._asked = limit_of(tensor.device), True
        try:
            alias = None if is_wrapper(tensor) else tensor.detach()
        except Exception:  # odd tensors fail in many ways; this one is not held
            alias = None
        storage = None if alias is None or tensor.is_meta else storage_of(alias)
        if storage is None:
            return Held(alias, 0, 0)
        held = Held(alias, storage._cdata, storage.nbytes())
        if watched:
            held.original, held.version, held.identity = (
                weakref.ref(tensor),
                version_of(tensor),
                id(tensor),
            )
            self._known[held.identity] = held
        self._count(held)
        return held

    def release(self, cells: Iterable[Held]) -> None:
        """Let go of tensors."""
        for held in cells:
            held.uses -= 1
            if not held.uses:
                held.tensor = held.original = None
                if self._known.get(held.identity) is held:
                    del self._known[held.identity]
                self._discount(held)

    def before_write(self, targets: list[Tensor]) -> None:
        """Copy what is held of the memory that is about to be written."""
        for target in targets:
            storage = storage_of(target)
            if storage is not None and storage._cdata in self._cells:
                with unobserved():
                    self._copy(list(self._cells[storage._cdata]))

    def _copy(self, cells: list[Held]) -> None:
        copies: dict[tuple[ViewKey, torch.dtype], Tensor] = {}
        for held in cells:
            self._discount(held)
            tensor = held.now()
            held.original = None
            if tensor is None or tensor.numel() * tensor.itemsize > COPY_EACH:
                held.tensor, held.key = None, 0
                continue
            key = (view_key(tensor), tensor.dtype)
            try:
                held.tensor = (
                    copies[key] if key in copies else copies.setdefault(key, tensor.clone())
                )
            except RuntimeError:  # no memory for it
                held.tensor, held.key = None, 0
                continue
            storage = storage_of(held.tensor)
            held.key, held.nbytes = (
                (storage._cdata, storage.nbytes()) if storage is not None else (0, 0)
            )
            self._count(held)

    def _count(self, held: Held) -> None:
        if not held.key:
            return
        cells = self._cells.get(held.key)
        if cells is None:
            cells = self._cells[held.key] = set()
            counted = self._counted[held.key] = 0 if self._owned(held.key) else held.nbytes
            self.nbytes += counted
        cells.add(held)

    def _discount(self, held: Held) -> None:
        cells = self._cells.get(held.key)
        if cells is None:
            return
        cells.discard(held)
        if not cells:
            del self._cells[held.key]
            self.nbytes -= self._counted.pop(held.key)


def limit_of(device: torch.device) -> int:
    """The budget on a CUDA device: 1 GiB, or a tenth of what is free now, if that is less."""
    free = (
        torch.cuda.mem_get_info(device)[0]
        + torch.cuda.memory_reserved(device)
        - torch.cuda.memory_allocated(device)
    )
    return min(MOST, int(free) // SHARE)


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place, as torch counts; -1 where it does not."""
    return -1 if tensor.is_inference() else tensor._version


OVERWRITTEN = "they were overwritten before their device had told its statistics"


@dataclass(slots=True)
class Waiting:
    """One call."""

    call: Call  # without its tensors
    cells: list[Held]
    # targets, args, kwargs, old, saved values, with Held in place of tensors; (): they were let go
    form: tuple[Any, ...]

    def recall(self) -> Call:
        """The call with its tensors, or with the reason why they are lost."""
        if not self.form:
            return self.call
        try:
            targets, args, kwargs, old = (_given_back(part) for part in self.form[:4])
        except _GoneError:
            return replace(self.call, lost=OVERWRITTEN)
        node = self.call.node
        if node is not None:
            node = SavedValues(node.label, dict(_still_there(self.form[4])), node.hidden)
        return replace(self.call, targets=targets, args=args, kwargs=kwargs, old=old, node=node)


def emptied(call: Call, reason: str) -> Waiting:
    """The call, which lets go of its tensors, and why."""
    call.targets, call.args, call.kwargs = [], (), {}
    call.old = call.node = None
    call.lost = reason
    return Waiting(call, [], ())


def held(call: Call, holding: HeldTensors, node: SavedValues | None) -> Waiting:
    """The call without its tensors, and what holds them; ``node``: what its node had saved."""
    cells: dict[int, Held] = {}
    take, watched = (
        holding.take,
        call.plan.plain,
    )  # else the version of what it writes is told only when it has returned

    def hold(value: Any) -> Any:
        if isinstance(value, Tensor):
            cell = cells.get(id(value))
            if cell is None:
                cell = cells[id(value)] = take(value, watched)
            return cell
        if type(value) in (list, tuple):
            return type(value)(
                [hold(v) if isinstance(v, (Tensor, list, tuple)) else v for v in value]
            )
        return value

    targets, args, old = hold(call.targets), hold(tuple(call.args)), hold(call.old)
    kwargs = {name: hold(value) for name, value in call.kwargs.items()}
    watched = False
    saved = {name: hold(value) for name, value in node.values.items()} if node is not None else {}
    waiting = emptied(call, "")
    if node is not None:
        call.node = SavedValues(node.label, {}, node.hidden)
    waiting.cells, waiting.form = list(cells.values()), (targets, args, kwargs, old, saved)
    return waiting


class _GoneError(Exception):
    """A tensor that was held is no longer what it was."""


def _given_back(value: Any) -> Any:
    """The value with tensors in place of what holds them; raises _GoneError."""
    if isinstance(value, Held):
        tensor = value.now()
        if tensor is None:
            raise _GoneError
        return tensor
    if isinstance(value, dict):
        return {name: _given_back(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_given_back(part) for part in value])
    return value


def _still_there(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        with suppress(_GoneError):
            yield name, _given_back(value)


CALLS = 64  # operations that share a copy to the host


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls whose statistics come with the same copies."""

    calls: int
    first: int  # of their rows of statistics
    end: int
    copies: list[AsyncCopy]


class Pending:
    """The calls since the first of which the statistics are not known, in their order.

    After every ``CALLS`` operations the counts of NaN and infinities are sent to the host, and
    nothing waits for them: whether they have come is asked when the next are sent. What is then
    known to be sound is let go, the rest is judged.
    """

    def __init__(self, recording: Recording, evidence: Evidence) -> None:
        self.recording, self.evidence = recording, evidence
        self.held = HeldTensors(self._is_owned)
        self._waiting: deque[Waiting] = deque()
        # those of them that hold something, and some that did
        self._holding: deque[Waiting] = deque()
        self._batches: deque[Batch] = deque()
        self._open = 0  # calls since the last batch
        self._sent = 0  # rows of statistics up to the last batch
        self._held_then = 0  # bytes held when it was sent
        self._sources = 0  # number of the last source that was looked at
        self._copiers: dict[torch.device, Copier] = {}
        self._streams: set[torch.Stream] = set()  # on which rows were enqueued
        self._names: dict[type, list[str]] = {}  # what the autograd nodes of a type save
        self._node: tuple[tuple[int, int], SavedValues] | None = None  # the node that ran last

    def add(self, call: Call) -> None:
        """Let a call wait. To be called where our operations are not recorded."""
        if call.targets[0].is_cuda:
            self._streams.add(torch.cuda.current_stream(call.targets[0].device))
        capturing = bool(self._streams) and torch.cuda.is_current_stream_capturing()
        if capturing or not _worth_holding(call):
            waiting = emptied(call, UNHELD)
        else:
            with unobserved():
                waiting = held(
                    call, self.held, self._saved(call.node) if call.node is not None else None
                )
            self._holding.append(waiting)
        self._waiting.append(waiting)
        self._open += 1
        if capturing:
            return
        if self._open >= CALLS or self.held.nbytes - self._held_then > self.held.limit // 4:
            self._send()
            self._look()
        if self.held.nbytes > self.held.limit:
            self._make_room()

    def before_write(self, targets: list[Tensor]) -> None:
        """Memory is about to be written: what is held of it is copied first."""
        self.held.before_write(targets)

    def settle(self) -> None:
        """Fetch what is still on a device, in one transfer each, and judge all that waits."""
        recording = self.recording
        if not recording.pending:
            return
        try:
            for chunk in recording.chunks:
                chunk.stats.flush()
            first = self._batches[0].first if self._batches else self._sent
            self._judge(Batch(len(self._waiting), first, recording.chunks[-1].stats.n, []))
            recording.chunks[-1].stats.flush()  # of operands that turned bad behind our back
        finally:
            self.clear()

    def let_go(self) -> None:
        """Hold nothing more."""
        for waiting in self._holding:
            self._release(waiting, UNHELD)
        self._holding.clear()
        self._node = None

    def clear(self) -> None:
        """Forget all that waits; what is not known to be bad by now is no symptom."""
        recording = self.recording
        if recording.pending:
            recording.sinks[:] = [
                sink for sink in recording.sinks if sink.position in recording.bad
            ]
        self.let_go()
        self._waiting.clear()
        self._batches.clear()
        self._streams.clear()
        self.evidence.early.clear()
        self._open = self._sent = self._held_then = 0
        recording.pending = False

    # -- holding

    def _is_owned(self, storage: int) -> bool:
        entry = self.evidence.ledger.entries.get(storage)
        return entry is not None and entry.owner >= 0

    def _saved(self, node: Any) -> SavedValues:
        """What the running node has saved; read once for all of its operations."""
        key = len(self.recording.passes), node._sequence_nr()
        if self._node is None or self._node[0] != key:
            names = self._names.get(type(node))
            if names is None:
                names = self._names[type(node)] = saved_names(node)
            found, hidden = told_and_hidden(names, saved_values(node, names))
            values = {name: _detached(value) for name, value in found.items()}
            self._node = key, SavedValues(node.name(), values, hidden)
        return self._node[1]

    def _release(self, waiting: Waiting, reason: str) -> None:
        self.held.release(waiting.cells)
        waiting.cells, waiting.form = [], ()
        waiting.call.lost = waiting.call.lost or reason

    def _make_room(self) -> None:
        """Let go of the oldest operands, until the rest is within the budget."""
        self._look()
        reason = (
            f"they were dropped, for more than {self.held.limit >> 20:,} MiB waited for the"
            " statistics of a device"
        )
        while self._holding and self.held.nbytes > self.held.limit:
            self._release(self._holding.popleft(), reason)

    # -- judging

    def _send(self) -> None:
        """Send the counts of the rows that are new."""
        table = self.recording.chunks[-1].stats
        by_device: dict[torch.device, list[Any]] = {}
        for row in table.waiting(self._sent):
            by_device.setdefault(row[1].words.device, []).append(row)
        copies = [
            self._copier(device).send(rows, self._streams_of(device))
            for device, rows in by_device.items()
        ]
        self._batches.append(Batch(self._open, self._sent, table.n, copies))
        self._open, self._sent, self._held_then = 0, table.n, self.held.nbytes

    def _copier(self, device: torch.device) -> Copier:
        if device not in self._copiers:
            self._copiers[device] = copier_of(device)
        return self._copiers[device]

    def _streams_of(self, device: torch.device) -> list[torch.Stream]:
        return [stream for stream in self._streams if stream.device == device]

    def _look(self) -> None:
        """Judge the batches whose copies have arrived."""
        while self._batches and all(copy.arrived() for copy in self._batches[0].copies):
            self._judge(self._batches.popleft())

    def _judge(self, batch: Batch) -> None:
        table = self.recording.chunks[-1]
        for copy in batch.copies:
            for row, counts in zip(copy.rows, copy.read().tolist(), strict=True):
                if any(counts):
                    self.evidence.early[(table.number << 32) | row] = counts[0]
        calls = [self._waiting.popleft() for _ in range(batch.calls)]
        sources = self._judge_sources(batch.end)
        touched = []
        if (
            self.recording.bad
            or self.evidence.early
            or table.stats.any_nonfinite(batch.first, batch.end)
        ):
            touched = [waiting for waiting in calls if self._is_touched(waiting.call)]
        for source in sources:
            self._choose_parents(source)
        if touched:
            for copier in self._copiers.values():
                copier.wait()
            with _undisturbed():
                for waiting in touched:
                    self.evidence.judge(waiting.recall(), late=True)
        for waiting in calls:
            self._release(waiting, UNHELD)
        while self._holding and not self._holding[0].form:
            self._holding.popleft()

    def _judge_sources(self, end: int) -> list[Source]:
        """Judge new sources whose statistics are before row ``end``; mark the bad ones."""
        recording, chunk = self.recording, self.recording.chunks[-1]
        found = []
        for number in list(
            takewhile(lambda number: number < self._sources, reversed(recording.sources))
        )[::-1]:
            source = recording.sources[number]
            if source.stat >> 32 == chunk.number:
                if source.stat & 0xFFFFFFFF >= end:
                    break
                if self._nonfinite(source.stat):
                    recording.bad.add(number)
                found.append(source)
            self._sources = number
        return found

    def _choose_parents(self, source: Source) -> None:
        """The rows a snapshot may come from: the bad ones, else the last; none if unwritten."""
        recording, parents = self.recording, source.parents
        if source.kind != "snapshot":
            return
        chosen = tuple(p for p in parents if p in recording.bad)
        row = recording.op(parents[0]) if parents[0] >= 0 else None
        if not chosen and row is not None and row.uninitialised:
            chosen = parents
            if source.number in recording.bad:
                recording.bad.add(parents[0])
        recording.sources[source.number] = replace(source, parents=chosen or parents[-1:])

    def _is_touched(self, call: Call) -> bool:
        """Whether something bad came in or out; bad rows are marked."""
        bad = self.recording.bad
        rows = range(call.position, call.position + call.outputs)
        bad.update(
            row for row in rows if row not in bad and self._nonfinite(self.recording.stat_of(row))
        )
        return not (bad.isdisjoint(rows) and bad.isdisjoint(call.sources))

    def _nonfinite(self, stat: int) -> bool:
        """Whether statistics, as far as they are known, count a NaN or an infinity."""
        if stat < 0 or stat in self.evidence.early:
            return stat >= 0
        chunk = self.recording.chunks[stat >> 32]
        row = chunk.stat_row(stat)
        return not chunk.stats.is_pending(row) and chunk.stats.nonfinite(row) > 0


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Our own operations, past every mode of the program and every dispatch mode."""
    with unobserved():
        if not torch.is_inference_mode_enabled():
            yield
            return
        with torch.inference_mode(False), torch.no_grad():
            yield


def _worth_holding(call: Call) -> bool:
    """Whether its operands may be asked for: no view, and not too large."""
    if call.plan.view or call.plan.uninitialised:
        return False
    size = 0
    for tensor in () if call.plan.pointwise else (*tensors_of(call.args), *call.targets):
        size += tensor.numel() * tensor.itemsize
    return size <= COPY_EACH


def _detached(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_detached(part) for part in value)
    return value.detach() if isinstance(value, Tensor) else value
