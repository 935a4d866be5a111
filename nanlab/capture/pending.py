"""Operations whose statistics are still on a device: their operands are held until it is known which of them are guilty."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch

from nanlab.capture.calls import Call, SavedValues, saved_names, saved_values, tensors_of
from nanlab.capture.evidence import KEEP_EACH, UNHELD, Evidence
from nanlab.capture.held_tensors import HeldTensors
from nanlab.capture.unjudged_call import Waiting, emptied, held
from nanlab.stats._async_counts import AsyncCopy, Copier, copier_of
from nanlab.stats._memory import unobserved
from nanlab.trace.recording import Recording, Source

Tensor = torch.Tensor
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

    After every ``CALLS`` operations the counts of NaN and infinities are sent to the host, and nothing waits for them: whether
    they have come is asked when the next are sent. What is then known to be sound is let go, the rest is judged.
    """

    def __init__(self, recording: Recording, evidence: Evidence) -> None:
        self.recording, self.evidence = recording, evidence
        self.held = HeldTensors(self._is_owned)
        self._waiting: deque[Waiting] = deque()
        self._holding: deque[Waiting] = deque()  # those of them that hold something, and some that did
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
                waiting = held(call, self.held, self._saved(call.node) if call.node is not None else None)
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
        """Fetch what is still on a device, and judge all that waits; one transfer for each device."""
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
            recording.sinks[:] = [sink for sink in recording.sinks if sink.position in recording.bad]
        self.let_go()
        self._waiting.clear()
        self._batches.clear()
        self._streams.clear()
        self.evidence.early.clear()
        self._open = self._sent = self._held_then = 0
        recording.pending = False

    # -- holding ---------------------------------------------------------------------------------------------------

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
            found = self.evidence.recomputed.values(node, settled=False) | saved_values(node, names)
            values = {name: _detached(value) for name, value in found.items()}
            self._node = key, SavedValues(node.name(), values)
        return self._node[1]

    def _release(self, waiting: Waiting, reason: str) -> None:
        self.held.release(waiting.cells)
        waiting.cells, waiting.form = [], ()
        waiting.call.lost = waiting.call.lost or reason

    def _make_room(self) -> None:
        """Let go of the oldest operands, until the rest is within the budget."""
        self._look()
        reason = f"they were dropped, for more than {self.held.limit >> 20:,} MiB waited for the statistics of a device"
        while self._holding and self.held.nbytes > self.held.limit:
            self._release(self._holding.popleft(), reason)

    # -- judging ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send the counts of the rows that are new."""
        table = self.recording.chunks[-1].stats
        by_device: dict[torch.device, list[Any]] = {}
        for row in table.waiting(self._sent):
            by_device.setdefault(row[1].words.device, []).append(row)
        copies = [self._copier(device).send(rows, self._streams_of(device)) for device, rows in by_device.items()]
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
        if self.recording.bad or self.evidence.early or table.stats.any_nonfinite(batch.first, batch.end):
            touched = [waiting for waiting in calls if self._is_touched(waiting.call)]
        for source in sources:
            self._choose_parents(source)
        if touched:
            for copier in self._copiers.values():
                copier.wait()
            with _undisturbed():
                for waiting in touched:
                    self.evidence.judge(waiting.recall())
        for waiting in calls:
            self._release(waiting, UNHELD)
        while self._holding and not self._holding[0].form:
            self._holding.popleft()

    def _judge_sources(self, end: int) -> list[Source]:
        """The sources that are new and whose statistics are before row ``end``; those that are bad are marked."""
        recording, chunk = self.recording, self.recording.chunks[-1]
        found = []
        for number in list(takewhile(lambda number: number < self._sources, reversed(recording.sources)))[::-1]:
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
        """Of the rows that a snapshot may have come from: the bad ones, else the last; uninitialised memory is bad itself."""
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
        bad.update(row for row in rows if row not in bad and self._nonfinite(self.recording.stat_of(row)))
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
    """Our own operations, whatever mode the program is in; past every dispatch mode, which would take a number for a tensor of it."""
    with unobserved():
        if not torch.is_inference_mode_enabled():
            yield
            return
        with torch.inference_mode(False), torch.no_grad():
            yield


def _worth_holding(call: Call) -> bool:
    """Whether its operands may be asked for: a view makes nothing, and too large ones are not kept."""
    if call.plan.view or call.plan.uninitialised:
        return False
    size = 0
    for tensor in () if call.plan.pointwise else (*tensors_of(call.args), *call.targets):
        size += tensor.numel() * tensor.itemsize
    return size <= KEEP_EACH


def _detached(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_detached(part) for part in value)
    return value.detach() if isinstance(value, Tensor) else value
