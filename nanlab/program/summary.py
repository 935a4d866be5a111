"""The statistics of steps that were recorded without them, made by running these steps again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nanlab.capture.evidence import Evidence, is_telling
from nanlab.capture.ledger import Ledger
from nanlab.capture.places import frame_of
from nanlab.capture.plans import Call as JudgedCall
from nanlab.capture.plans import Plan, SavedValues, plan_of, saved_names, saved_values
from nanlab.errors import NotReplayable
from nanlab.operators import having, with_forms
from nanlab.program.replay import results_of
from nanlab.program.rerun import Memory, complete, operate, rerun, seed
from nanlab.trace.frames import stat_columns
from nanlab.trace.op import BACKWARD, BORN, CARRIED, TURNED, Op, location
from nanlab.trace.program import Call, Ref, Segment
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
Judge = Callable[[JudgedCall], None]
# pointwise operators whose result is bad wherever an operand is
_KEEPS_BAD = having("adds", in_place=True) | with_forms("mul", in_place=True)


def summarise(recording: Recording, judge: Judge | None = None) -> None:
    """Give the rows of the kept steps the statistics that they lack, and judge the calls in which
    something non-finite came in or out.

    What cannot be run again, or gives other results than the run, is told in the notes.
    """
    complete(recording.program, recording.program.segments)
    for segment in recording.program.segments:
        if segment.calls and segment.summarised < len(segment.calls):
            _summarise(recording, segment, judge)


def _summarise(recording: Recording, segment: Segment, judge: Judge | None) -> None:
    first, segment.summarised = segment.summarised, len(segment.calls)
    try:
        different = _fill(recording, segment, first)
    except NotReplayable as error:
        different = None
        if segment.lost is None or recording.bad:
            _note(recording, segment, str(error))
    except Exception as error:
        different = None
        _note(recording, segment, f"{type(error).__name__}: {error}")
    if different:
        _note(recording, segment, f"run again it gives other results, the first {different}")
    _choose_parents(recording, segment.start)
    start = segment.calls[first].position
    _judge(recording, start, _end(recording, segment), judge or Evidence(recording, Ledger()).judge)


def _end(recording: Recording, segment: Segment) -> int:
    """Position after the last row of a segment."""
    return min(segment.end, recording.end)


def fetch(recording: Recording, judge: Judge) -> None:
    """Fetch the statistics that are still on a device, and judge the calls in which something
    non-finite came in or out; those whose operands matter by running the step again.
    """
    recording.pending, first = False, max(recording.pending_from, recording.chunks[-1].start)
    numbers = stat_columns(recording, recording.chunks[-1].columns(first, recording.end).stat)
    nonfinite = numbers["nan"] + numbers["posinf"] + numbers["neginf"]
    recording.bad.update((np.flatnonzero(nonfinite) + first).tolist())
    for number, source in recording.sources.items():
        if source.first >= first and recording.stats(number).nonfinite:
            recording.bad.add(number)
    _choose_parents(recording, first)
    _judge(recording, first, recording.end, judge, sparing=True)


def _note(recording: Recording, segment: Segment, reason: str) -> None:
    note = (
        f"step {recording.step_of(segment.start)} cannot be summarised: {reason}; what went wrong"
        ' in it may be told wrongly or not at all, so watch it with detail="full"'
    )
    if note not in recording.notes:
        recording.notes.append(note)


def _fill(recording: Recording, segment: Segment, first: int) -> str:
    """Fill the rows from a call on; the first result that is not as it was, "" if all are."""
    different: list[str] = []
    compared: set[int] = set()

    def visit(_: int, index: int, call: Call, out: Any) -> bool:
        if index < first:
            return False
        for position, result in enumerate(results_of(call, out, memory), call.position):
            stat = recording.stat_of(position)
            if stat < 0:
                continue
            chunk = recording.chunks[stat >> 32]
            row = chunk.stat_row(stat)
            if chunk.stats.is_put_off(row):
                chunk.stats.fill(row, result)
            elif not different and stat not in compared and _comparable(result):
                compared.add(stat)
                op = recording.at(position)
                if op and not chunk.stats.agrees(row, result):
                    different.append(f"{op.name} at {location(op.file, op.line)}")
            if chunk.stats.nonfinite(row):
                recording.bad.add(position)
        return False

    memory = Memory()
    rerun([segment], visit, memory=memory)
    return different[0] if different else ""


def _comparable(result: Tensor) -> bool:
    """Whether a result can be compared element by element."""
    return result.layout is torch.strided and result.itemsize > 1 and not result._is_zerotensor()


def _choose_parents(recording: Recording, first: int) -> None:
    """Reduce the parents of memory written piece by piece to the bad ones, else to the last."""
    for number, source in list(recording.sources.items()):
        if source.kind != "snapshot" or source.first < first or len(source.parents) < 2:
            continue
        chosen = tuple(p for p in source.parents if p in recording.bad)
        if not chosen and recording.at(source.parents[0]).uninitialised:
            chosen = source.parents
            if number in recording.bad:
                recording.bad.add(source.parents[0])
        recording.sources[number] = replace(source, parents=chosen or source.parents[-1:])


# -- what went wrong


def _judge(recording: Recording, first: int, end: int, judge: Judge, sparing: bool = False) -> None:
    """Judge the calls of a segment between two positions in which something bad came in or out.

    sparing: run the step again only for those that the counts of bad elements do not settle.
    """
    bad = recording.bad
    if not bad:
        return
    segment = next(iter(recording.program.between(first, end)[-1:]), Segment(first))
    indices = {call.position: index for index, call in enumerate(segment.calls)}
    touched: dict[int, list[int]] = {}  # index of a call -> its sources
    nodes: dict[int, SavedValues] = {}  # autograd nodes of these
    wanted: dict[int, int] = {}  # index of a forward call -> its node
    names = {run[0]: run[1] for run in recording.node_runs.rows if run[3] >= segment.start}
    for position in range(first, end):
        op = recording.at(position)
        if op.call != position:
            continue
        sources = [source for source, _ in op.operands]
        rows = range(position, position + recording.outputs_of(position))
        if bad.isdisjoint(sources) and bad.isdisjoint(rows):
            continue
        index = indices.get(position)
        if index is None or (sparing and _is_settled(op, rows, segment.calls[index].func)):
            unseen = Call(None, (), {}, None, position, False)
            call = unseen if index is None else segment.calls[index]
            judge(_call(recording, call, sources, None, None, None, nodes))
            continue
        touched[index] = sources
        if op.phase == BACKWARD and not bad.isdisjoint(rows):
            nodes[op.node] = SavedValues(names.get(op.node, ""), {})
            made = recording.nodes.get(op.node)
            at = indices.get(made.position) if made is not None else None
            if at is not None:
                wanted[at] = op.node
    if not touched:
        return
    old: list[Tensor | None] = [None]
    place = [0]

    def run(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = place[0]
        old[0] = None
        if index in wanted:
            found = _saved(segment, index, call, args, kwargs)
            if found is not None:
                nodes[wanted[index]] = found
            seed(segment, index)
        if index in touched and args and isinstance(args[0], Tensor):
            plan = plan_of(call.func)
            if plan.writes and not plan.overwrites:
                old[0] = args[0].detach().clone()
        return operate(call.func, args, kwargs)

    def visit(_: int, index: int, call: Call, out: Any) -> bool:
        place[0] = index + 1
        if index in touched:
            judge(_call(recording, call, touched.pop(index), memory, out, old[0], nodes))
            _note_place(recording, segment, index, call)
        return not touched

    memory = Memory()
    with suppress(Exception):  # it was told why; the rest is judged without its tensors
        rerun([segment], visit, run, memory)
    for index, sources in touched.items():
        judge(_call(recording, segment.calls[index], sources, None, None, None, nodes))


def _is_settled(op: Op, rows: range, func: Any) -> bool:
    """Whether the counts of bad values suffice to judge a call: nothing was born in it."""
    recording, plan = op.recording, plan_of(func) if func is not None else _unseen(op.name)
    reads = [recording.stats(s) for s in dict.fromkeys(op.inputs) if s in recording.bad]
    made = [recording.stats(row) for row in rows if row in recording.bad]
    if not made or op.uninitialised or (op.literal and not reads and not made[0].nan):
        return True
    if not reads or is_telling(plan.name, len(reads)) or len(rows) > 1:
        return False
    if made[0].nan and not any(stats.nan for stats in reads):
        return False
    if not plan.pointwise or any(stats.nan == stats.numel for stats in reads):
        return True
    # neither takes a bad value out: what is bad beyond those of the operands was born here
    explained = sum(stats.nonfinite * made[0].numel // max(stats.numel, 1) for stats in reads)
    return plan.name in _KEEPS_BAD and made[0].nonfinite <= explained


def _call(
    recording: Recording,
    call: Call,
    sources: list[int],
    memory: Memory | None,
    out: Any,
    old: Tensor | None,
    nodes: dict[int, SavedValues],
) -> JudgedCall:
    """The call in the form in which it is judged, as when it ran."""
    op = recording.at(call.position)
    plan = plan_of(call.func) if call.func is not None else _unseen(op.name)
    outputs = recording.outputs_of(call.position)
    flags = recording.flags(call.position)
    known = (call.func, plan, call.position, outputs)
    if memory is None:
        lost = "its step could not be run again"
        return JudgedCall(*known, [], sources, (), {}, None, flags, None, lost)
    results, args = results_of(call, out, memory), memory.unpack(call.args)
    kwargs = {name: memory.unpack(value) for name, value in call.kwargs.items()}
    saved = nodes.get(op.node) if op.phase == BACKWARD else None
    return JudgedCall(*known, results, sources, args, kwargs, old, flags, saved)


def _note_place(recording: Recording, segment: Segment, index: int, call: Call) -> None:
    """Record torch's own line that made a guilty call."""
    rows = range(call.position, call.position + recording.outputs_of(call.position))
    inside = segment.inside.get(index)
    guilty = (BORN, TURNED, CARRIED)
    if inside is not None and any(recording.status.get(row) in guilty for row in rows):
        recording.inside_torch[call.position] = frame_of(*inside)


def _unseen(name: str) -> Plan:
    """The plan of an autograd node whose calls were not seen."""
    return replace(plan_of(torch.ops.aten.add.Tensor), name=name, pointwise=False)


def _saved(
    segment: Segment, index: int, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SavedValues | None:
    """The values that a forward call's node had saved: the call runs again on copies, with
    autograd."""
    if not call.grad or call.func is None:
        return None
    tracked = {id(ref): ref.tracked for ref in call.read}

    def twin(ref: Any, value: Any) -> Any:
        if isinstance(value, Tensor) and isinstance(ref, Ref):
            copy = value.detach().clone(memory_format=torch.preserve_format)
            if tracked.get(id(ref)) and (copy.is_floating_point() or copy.is_complex()):
                copy.requires_grad_()
                # a leaf may not be written
                return copy.view_as(copy)
            return copy
        if isinstance(value, (list, tuple)) and isinstance(ref, (list, tuple)):
            return type(value)([twin(r, v) for r, v in zip(ref, value, strict=True)])
        return value

    try:
        with torch.enable_grad():
            seed(segment, index)
            out = operate(
                call.func,
                tuple(twin(r, v) for r, v in zip(call.args, args, strict=True)),
                {name: twin(call.kwargs[name], value) for name, value in kwargs.items()},
            )
    except Exception:
        return None
    first = out[0] if isinstance(out, (tuple, list)) and out else out
    node = getattr(first, "grad_fn", None)
    if node is None:
        return None
    return SavedValues(node.name(), saved_values(node, saved_names(node)))
