"""Collectives: what each process gives to the others, and what arrives in its memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nanlab.capture.calls import Call, tensors_of
from nanlab.capture.evidence import UNHELD
from nanlab.capture.ledger import shape_of, storage_of
from nanlab.capture.plans import FUNCTIONAL, Plan
from nanlab.stats._memory import has_memory
from nanlab.trace.recording import ARRIVED, Sink, Source, pack_edge

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
Place = tuple[int, int, int, int, int]  # phase, node, line, site, module


@dataclass(slots=True, eq=False)
class Arrival:
    """What a collective that was called brings into one storage; it may come later, while the
    program goes on."""

    func: Any
    plan: Plan
    place: Place
    targets: list[Tensor]  # what it writes
    sources: list[int]  # what this process gave
    work: Any  # c10d's handle; None where there is none
    since: int  # position at which it was called
    left: int = 0  # bytes that it has not copied, where it copies its results in the end


class Collectives:
    """Writes the rows of collectives when what they brought is first read; by then the program has
    waited for it.

    A collective returns before it has written its results, and to wait for it here could make
    processes wait for each other that otherwise would not.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self._ops = ops
        self.flying: dict[int, Arrival] = {}  # by address of the storage that is written
        self.seen = 0  # collectives called so far
        self.latest = -1  # position at which the latest was called

    def call(self, func: Any, plan: Plan, args: Any, kwargs: Any, frame: FrameType | None) -> Any:
        """Run a collective, and note what it reads and what it will write."""
        ops = self._ops
        try:
            if plan.name == "wait_tensor":
                return self._waited(func, args, kwargs)
            place = ops.place(frame)
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
        try:
            self.seen, self.latest = self.seen + 1, ops.recording.end
            if not written and "send" not in plan.name:
                written = tensors_of(out if isinstance(out, (tuple, list)) else (out,))
            work = None if plan.namespace in FUNCTIONAL else work_of(out)
            place = (place[0], -1, *place[2:])  # of no node
            for targets in _by_storage(written):
                self._enter(Arrival(func, plan, place, targets, sources, work, ops.recording.end))
        except Exception as error:
            ops.failed(error)
        return out

    def _waited(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        self._land(tensors_of(args))
        return out

    def _enter(self, arrival: Arrival) -> None:
        """Note which memory it writes."""
        recording, ledger, target = self._ops.recording, self._ops.ledger, arrival.targets[0]
        storage = storage_of(target)
        if storage is None:
            return
        if storage._cdata not in ledger.entries:
            number = recording.new_number()
            dtype = str(target.dtype).removeprefix("torch.")
            shape = tuple(shape_of(target))
            recording.sources[number] = Source(number, "data", "", -1, recording.end, shape, dtype)
            ledger.enter(storage).last = number
        arrival.left = sum(t.numel() * t.itemsize for t in arrival.targets)
        self.flying[storage._cdata] = arrival

    # -- landing
    # ------------------------------------------------------------

    def before_read(self, args: Any) -> None:
        """An operation computes with these: what it reads has arrived, or is waited for as the
        operation would."""
        tensors = tensors_of(args)
        for tensor in tensors:
            if type(tensor).__name__ == "AsyncCollectiveTensor":
                tensor.trigger_wait()  # type: ignore[attr-defined]
        self._land(tensors)

    def before_write(self, targets: list[Tensor]) -> None:
        """An operation writes to these. Where the collective is not complete, the write is a part
        of it."""
        for arrival in self._flying_to(targets):
            if is_complete(arrival.work):
                self._arrived(arrival)

    def after_write(self, targets: list[Tensor]) -> None:
        """An operation has written to these, as a part of the collective: some copy their results
        when they are waited for."""
        for target in targets:
            for arrival in self._flying_to([target]):
                arrival.left -= target.numel() * target.itemsize
                if arrival.left <= 0:
                    self._arrived(arrival)

    def settle(self, until: int | None = None) -> None:
        """Write the rows of those that are complete, and of those that were called before a
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
        """Write the rows of a collective, as its results are now."""
        ops, recording = self._ops, self._ops.recording
        self.flying.pop(next(key for key, other in self.flying.items() if other is arrival))
        targets = [t for t in arrival.targets if has_memory(t)]
        if not targets:
            return
        self._forget_parts(targets)
        with ops.aside():
            ops.reset(ARRIVED)
            call = recording.end
            for slot, source in enumerate(arrival.sources):
                ops.chunk.edges.frombytes(pack_edge(call, source, slot))
            bad = False
            for output, target in enumerate(targets):
                if (
                    ops.add_row(
                        arrival.plan, arrival.place, output, call, target, arrival.sources, True
                    )
                    > 0
                ):
                    bad = True
                    self._note_sink(target, call + output)
            if recording.pending or bad or not recording.bad.isdisjoint(arrival.sources):
                judged = Call(
                    arrival.func,
                    arrival.plan,
                    call,
                    len(targets),
                    targets,
                    arrival.sources,
                    (),
                    {},
                    None,
                    0,
                    None,
                    UNHELD,
                )
                ops.pending.add(judged) if recording.pending else ops.evidence.judge(judged)

    def _forget_parts(self, targets: list[Tensor]) -> None:
        """Where the results fill a whole storage piece by piece, nothing is left of what was in
        it."""
        storage, size = storage_of(targets[0]), sum(t.numel() * t.itemsize for t in targets)
        entry = self._ops.ledger.entries.get(storage._cdata) if storage is not None else None
        if entry is not None and size >= entry.nbytes:
            entry.parts, entry.bad, entry.uninit, entry.views = (), 0, False, None

    def _note_sink(self, target: Tensor, position: int) -> None:
        """A parameter came in bad."""
        recording, storage = self._ops.recording, storage_of(target)
        entry = self._ops.ledger.entries.get(storage._cdata) if storage is not None else None
        if (
            entry is not None
            and entry.owner >= 0
            and recording.parameter_kinds[entry.owner] == "parameter"
        ):
            recording.sinks.append(
                Sink("parameter", position, position, recording.parameter_names[entry.owner])
            )


def _by_storage(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Tensors that share memory, together."""
    groups: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None:
            groups.setdefault(storage._cdata, []).append(tensor)
    return list(groups.values())


def operands_of(func: Any, args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that a collective reads and those that it writes; it may be called with its own
    operands only.

    c10d's schemas do not say what is written; their names do: ``output...``, ``input...``, and
    ``tensors`` for both.
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
    """Whether the program runs in several processes."""
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
    """Whether a collective is known to have written its results; a handle need not know."""
    try:
        return work is not None and bool(work.is_completed())
    except Exception:
        return False
