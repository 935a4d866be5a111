"""The processes of a distributed run: their collectives, and what they agree on."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch

from nanlab.capture.evidence import UNHELD
from nanlab.capture.ledger import shape_of, storage_of
from nanlab.capture.plans import FUNCTIONAL, Call, Plan, tensors_of
from nanlab.stats.memory import has_memory
from nanlab.trace.chunk import ARRIVED, pack_edge
from nanlab.trace.ranks import Ranks
from nanlab.trace.recording import Sink

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder


# What the processes of a distributed run agree on: whether to stop, and where the fault began.
#
# They write to the store by which the process group was set up, over a connection of their own:
# no collective, so that nothing is mixed with those of the program, and each wait has an end.

Verdict = Literal["alone", "go", "stop"]
# what is judged: gradients about to be used, a training step that has ended
Kind = Literal["optimizer", "step"]

PATIENCE = 1.0  # seconds to wait for the others where nobody has found anything
LEAST = 0.01  # ... where they did not come before
DIAGNOSIS = 60.0  # ... while one of them works out what it found
WANTED = 5.0  # ... once one wants to stop
# of a count of votes: added by who wants to stop, by who has waited long enough
_STOP, _VOID = 1 << 20, 1 << 40
_MOST_TOLD = 16  # culprits that are read
# Watches begun at each place of the program, by which processes know the one that they share.
_watches: dict[str, int] = {}
_lonely: list[bool] = []  # whether the last watch of this process found the others not watching


class Agreement:
    """This process among the others during one watch; of no effect where there is one process only.

    A rank stops only where all agree in the same vote: a fault that nobody else was there to hear
    of is put to the next vote. So no process waits in a collective for one that has left.
    """

    def __init__(self, place: str) -> None:
        number = _watches[place] = _watches.get(place, 0) + 1
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._name = f"nanlab/{attempt}/{place}/{number}"
        self._store: Any = None
        self._gone = False  # whether the store is out of reach
        self.rank, self.world = 0, 1
        self._joined = False  # whether this process has said that it votes
        self._complete = False  # whether all do
        self._left = False  # whether one has ended its watch
        self._patience: dict[str, float] = {}
        self._updates, self._turns = 0, 0  # optimizer steps judged, and other votes since the last
        self._decided = ""  # the last vote that all took part in
        self._wants = False
        self.all_stop = False  # whether that is agreed

    # -- who is there

    def attach(self) -> bool:
        """Whether there are other processes to share collectives with; connects to them."""
        distributed = sys.modules.get("torch.distributed.distributed_c10d")
        if distributed is None or not distributed.is_initialized():
            return False
        if not self.connected and not self._gone and distributed.get_world_size() > 1:
            store = distributed.PrefixStore(self._name, _own_connection(distributed))
            self.connect(store, distributed.get_rank(), distributed.get_world_size())
        return self.connected

    def connect(self, store: Any, rank: int, world: int) -> None:
        """Use this store, which all processes of the run share."""
        self._store, self.rank, self.world = store, rank, world

    @property
    def connected(self) -> bool:
        """Whether the others can be reached; also when the program has left its process group."""
        return self._store is not None

    @property
    def _all_watch(self) -> bool:
        """Whether all processes vote; at the first question those that are late are waited for."""
        if not self._joined:
            self._joined = True
            if self._store.add("joined", 1) == self.world:
                self._store.set("complete", "1")
            self._complete = self._wait("complete", PATIENCE / 5 if _lonely else 2 * PATIENCE)
            _lonely[:] = [] if self._complete else [True]
        elif not self._complete:
            self._complete = self._store.check(["complete"])
        return self._complete and not self._left

    def _wait(self, key: str, seconds: float) -> bool:
        """Whether a key is written within some seconds.

        Asks again and again: where a ``wait`` of the store times out, torch 2.13 prints warnings.
        """
        end, pause = time.monotonic() + seconds, 1e-4
        while not self._store.check([key]):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(1.5 * pause, 0.02)
        return True

    # -- whether to stop

    def diagnosing(self, begins: bool) -> None:
        """Tell the other processes that this one diagnoses its fault, so that they wait."""
        if self._store is not None:
            self._guarded(lambda: self._store.add("diagnosing", 1 if begins else -1))

    def vote(self, kind: Kind, stop: bool) -> Verdict:
        """Whether all processes end here."""
        verdict = self._guarded(lambda: self._vote(kind, stop))
        # the store is gone, and with it who would wait
        return "alone" if verdict is None else verdict

    def _vote(self, kind: Kind, stop: bool) -> Verdict:
        store, key = self._store, self._next(kind)
        if not self._all_watch:
            return "go"
        if stop and not self._wants:
            self._wants = True
            store.add("wanted", 1)
        votes = store.add(key, 1 + _STOP * stop)
        if votes < _VOID and votes % _STOP == self.world:
            store.set(f"{key}/done", "stop" if votes >= _STOP else "go")
            self._forget()
        elif votes >= _VOID or not self._heard(key, kind):
            self._patience[kind] = max(LEAST, self._patience.get(kind, PATIENCE) / 4)
            return "go"
        self._patience[kind], self._decided = PATIENCE, key
        self.all_stop = store.get(f"{key}/done") == b"stop"
        return "stop" if self.all_stop else "go"

    def _next(self, kind: Kind) -> str:
        """The name of the next vote, by optimizer steps: ranks need not judge equally often."""
        if kind == "optimizer":
            self._updates, self._turns = self._updates + 1, 0
        else:
            self._turns += 1
        return f"{self._updates}.{self._turns}"

    def _heard(self, key: str, kind: Kind) -> bool:
        """Whether all processes came to a vote while this one waited."""
        store, began, seconds = self._store, time.monotonic(), self._patience.get(kind, PATIENCE)
        while not self._wait(f"{key}/done", seconds):
            waited = time.monotonic() - began
            if store.add("left", 0):
                self._left = True
            elif (waited < DIAGNOSIS and store.add("diagnosing", 0) > 0) or (
                waited < WANTED and store.add("wanted", 0)
            ):
                seconds = PATIENCE
                continue
            return store.add(key, _VOID) % _STOP == self.world and self._wait(
                f"{key}/done", PATIENCE
            )
        return True

    def _forget(self) -> None:
        """Delete the vote before the last: all have read its outcome."""
        if self._decided:
            for key in (self._decided, f"{self._decided}/done"):
                self._store.delete_key(key)

    # -- where it began

    def tell(self, culprit: dict[str, Any] | None, struck: Any, wait: bool) -> Ranks | None:
        """Send this rank's culprit to the other ranks and receive theirs; None where there are no
        others.

        struck: what to report of a bad value that came from another rank; None if nothing. wait:
        wait a short while for ranks that have not reported.
        """
        if self._store is None:
            return None
        told: Ranks | None = self._guarded(lambda: self._tell(culprit, struck, wait))
        return told

    def _tell(self, culprit: dict[str, Any] | None, struck: Any, wait: bool) -> Ranks:
        store = self._store
        kind, said = ("culprit", culprit) if culprit is not None else ("struck", struck)
        if said is not None:
            store.set(f"{kind}/{store.add(kind, 1)}", json.dumps(said))
        if store.add("told", 1) == self.world:
            store.set("all told", "1")
        elif wait:
            seconds = PATIENCE / 5 if _lonely else 2 * PATIENCE
            heard, began = self._wait("all told", seconds), time.monotonic()
            while not heard and time.monotonic() - began < DIAGNOSIS and self._is_one_at_work():
                heard = self._wait("all told", PATIENCE)
        ranks = Ranks(self.rank, self.world, heard=store.add("told", 0))
        ranks.told += self._said("culprit", _MOST_TOLD)
        if not ranks.told and store.add("struck", 0) == self.world:  # each of them is a summand
            ranks.struck += self._said("struck", self.world)
        return ranks

    def _said(self, kind: str, most: int) -> list[dict[str, Any]]:
        """The messages of one kind that the processes have sent."""
        numbers = range(1, min(self._store.add(kind, 0), most) + 1)
        keys = [f"{kind}/{number}" for number in numbers]
        return [json.loads(self._store.get(key)) for key in keys if self._wait(key, PATIENCE)]

    def _is_one_at_work(self) -> bool:
        """Whether a process is still to report: it diagnoses, or it stops by agreement."""
        store = self._store
        return bool(store.add("diagnosing", 0) > 0 or (self.all_stop and not store.add("left", 0)))

    def leave(self) -> None:
        """Say that this process votes no more."""
        if self._store is not None and self._joined:
            self._guarded(lambda: self._store.add("left", 1))

    def _guarded(self, act: Any) -> Any:
        """The result of a call to the store; None where the store is gone, now or before."""
        try:
            return act()
        except Exception:
            self._store, self._gone = None, True
            return None


def _own_connection(distributed: Any) -> Any:
    """The store of the default process group, over a connection of our own where it has such.

    Uses ``distributed_c10d._get_default_store``; tried with torch 2.13.
    """
    store = distributed._get_default_store()
    try:
        return store.clone()
    except Exception:
        return store


# Collectives: what each process gives to the others, and what arrives in its memory.

Tensor = torch.Tensor


@dataclass(slots=True, eq=False)
class Arrival:
    """The results that a collective brings into one storage, perhaps while the program goes on."""

    func: Any
    plan: Plan
    place: tuple[int, int, int, int, int]  # phase, node, line, site, module
    targets: list[Tensor]  # what it writes
    sources: list[int]  # what this process gave
    work: Any  # c10d's handle; None where there is none
    since: int  # position at which it was called
    left: int = 0  # bytes that it has not copied, where it copies its results in the end


class Collectives:
    """Writes the rows of collectives when their results are first read. By then the program has
    waited for them.

    A collective returns before it has written its results. To wait for them here could block
    processes on each other that otherwise would not wait.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self._ops = ops
        self.flying: dict[int, Arrival] = {}  # by address of the storage that is written
        self.seen = 0  # collectives called so far

    def call(self, func: Any, plan: Plan, args: Any, kwargs: Any, frame: FrameType | None) -> Any:
        """Run a collective, and note what it reads and what it will write."""
        ops = self._ops
        try:
            if plan.name == "wait_tensor":
                out = func(*args, **kwargs)
                self._land(tensors_of(args))
                return out
            place = ops.where.place(frame)
            given, written = operands_of(func, args, kwargs)
            self._land(given)
            if ops.program is not None and has_others():
                ops.program.lose(f"{plan.name} brings values of other processes")
            ops.reset()
            sources = [ops.source(t) for t in given]
        except Exception as error:
            ops.failed(error)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        with ops.harmless:
            self.seen, ops.ledger.latest_collective = self.seen + 1, ops.recording.end
            if not written and "send" not in plan.name:
                written = tensors_of(out if isinstance(out, (tuple, list)) else (out,))
            work = None if plan.namespace in FUNCTIONAL else work_of(out)
            place = (place[0], -1, *place[2:])  # of no node
            for targets in _by_storage(written):
                self._enter(Arrival(func, plan, place, targets, sources, work, ops.recording.end))
        return out

    def _enter(self, arrival: Arrival) -> None:
        """Note the memory that a collective will write."""
        recording, ledger, target = self._ops.recording, self._ops.ledger, arrival.targets[0]
        storage = storage_of(target)
        if storage is None:
            return
        if storage._cdata not in ledger.entries:
            number = recording.new_source("data", shape_of(target), target.dtype)
            ledger.enter(storage).last = number
        arrival.left = sum(t.numel() * t.itemsize for t in arrival.targets)
        self.flying[storage._cdata] = arrival

    # -- landing

    def before_read(self, args: Any) -> None:
        """Wait, as the operation would, for results that it reads and that are under way."""
        tensors = tensors_of(args)
        for tensor in tensors:
            if type(tensor).__name__ == "AsyncCollectiveTensor":
                tensor.trigger_wait()  # type: ignore[attr-defined]
        self._land(tensors)

    def before_write(self, targets: list[Tensor]) -> None:
        """Write the rows of completed collectives before an operation writes their memory."""
        for arrival in self._flying_to(targets):
            if is_complete(arrival.work):
                self._arrived(arrival)

    def after_write(self, targets: list[Tensor]) -> None:
        """Count memory that was written as part of a collective: some results are copied when
        waited for."""
        for target in targets:
            for arrival in self._flying_to([target]):
                arrival.left -= target.numel() * target.itemsize
                if arrival.left <= 0:
                    self._arrived(arrival)

    def settle(self, until: int | None = None) -> None:
        """Write the rows of collectives that are complete, or that were called before a
        position."""
        for arrival in list(self.flying.values()):
            if until is None or arrival.since < until or is_complete(arrival.work):
                self._arrived(arrival)

    def _land(self, tensors: list[Tensor]) -> None:
        for arrival in self._flying_to(tensors):
            self._arrived(arrival)

    def _flying_to(self, tensors: list[Tensor]) -> list[Arrival]:
        storages = [storage_of(tensor) for tensor in tensors] if self.flying else []
        found = [self.flying.get(storage._cdata) for storage in storages if storage is not None]
        return [arrival for arrival in dict.fromkeys(found) if arrival is not None]

    def _arrived(self, arrival: Arrival) -> None:
        """Write the rows of a collective, with its results as they are now."""
        ops, recording = self._ops, self._ops.recording
        self.flying.pop(next(key for key, other in self.flying.items() if other is arrival))
        targets = [t for t in arrival.targets if has_memory(t)]
        if not targets:
            return
        self._forget_parts(targets)
        with ops.aside(ARRIVED):
            call = recording.end
            for slot, source in enumerate(arrival.sources):
                ops.chunk.edges.frombytes(pack_edge(call, source, slot))
            plan, place, sources, bad = arrival.plan, arrival.place, arrival.sources, False
            for output, target in enumerate(targets):
                if ops.add_row(plan, place, output, call, target, sources, True) > 0:
                    bad = True
                    self._note_sink(target, call + output)
            if not recording.pending and (bad or not recording.bad.isdisjoint(sources)):
                rows = call, len(targets), targets, sources
                ops.evidence.judge(Call(arrival.func, plan, *rows, (), {}, None, 0, None, UNHELD))

    def _forget_parts(self, targets: list[Tensor]) -> None:
        """Forget what a storage held before results that fill it piece by piece."""
        entry, size = self._ops.ledger.of(targets[0]), sum(t.numel() * t.itemsize for t in targets)
        if entry is not None and size >= entry.nbytes:
            entry.parts, entry.bad, entry.uninit, entry.views = (), 0, False, None

    def _note_sink(self, target: Tensor, position: int) -> None:
        """Note a parameter that arrived bad as a sink."""
        recording, entry = self._ops.recording, self._ops.ledger.of(target)
        owner = -1 if entry is None else entry.owner
        if owner >= 0 and recording.parameter_kinds[owner] == "parameter":
            name = recording.parameter_names[owner]
            recording.sinks.append(Sink("parameter", position, position, name))


def _by_storage(tensors: list[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups that share memory."""
    groups: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None:
            groups.setdefault(storage._cdata, []).append(tensor)
    return list(groups.values())


def operands_of(func: Any, args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that a collective reads, and those that it writes.

    c10d's schemas do not say what is written, but the names of arguments do: ``output...``,
    ``input...``, and ``tensors`` for both. A collective may be called with its own operands only.
    """
    given: list[Tensor] = []
    written: list[Tensor] = []
    name = func._schema.name.rpartition("::")[2]
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        tensors = tensors_of(_flat(value))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        if argument.name.startswith("output") or argument.name == "out" or "recv" in name:
            written += tensors
        else:
            given += tensors
            if changed or (argument.name == "tensors" and name != "send"):
                written += tensors
    return given, written


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in _flat(each)]
    return [value]


def has_others() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and distributed.is_initialized()
        and bool(distributed.get_world_size() > 1)
    )


def work_of(out: Any) -> Any:
    """c10d's handle among the results of one of its operators.

    Uses ``torch._C._distributed_c10d.Work.unbox``; tried with torch 2.13.
    """
    boxed = out[-1] if isinstance(out, (tuple, list)) and out else out
    c10d = sys.modules.get("torch._C._distributed_c10d")
    try:
        return c10d.Work.unbox(boxed) if c10d is not None else None
    except Exception:
        return None


def is_complete(work: Any) -> bool:
    """Whether a collective surely has written its results; not every handle can tell."""
    try:
        return work is not None and bool(work.is_completed())
    except Exception:
        return False
