"""The operands of the calls that made a bad value, by running their step again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nanlab.capture.calls import local_parts, read_by_derivative, tensors_of
from nanlab.errors import NotReplayable
from nanlab.operators import having
from nanlab.program.memory import Memory, operate
from nanlab.program.replay import plan_of, results_of
from nanlab.program.rerun import rerun
from nanlab.program.window import Window, window
from nanlab.stats import summarize
from nanlab.trace.op import RECOMPUTE, Op
from nanlab.trace.program import Call, refs_in
from nanlab.trace.recording import GuiltyCall, Kept, Recording

Tensor = torch.Tensor
EACH = 256 << 20  # bytes of the operands of one call
ALL = 512 << 20  # bytes of those of all calls
# Operators whose derivative may be infinite or NaN at finite operands.
_SINGULAR = having("singular")
# How a node names the first and the second operand of its operation.
_NAMES = (("self",), ("other", "exponent"))


def make_operands(recording: Recording, step: int) -> None:
    """Run a step again as far as its last guilty call, and put the operands of all of them into
    ``recording.evidence``; None and a note where that is not possible."""
    bounds = [*recording.starts, 1 << 62]
    asked = [
        p
        for p in sorted(recording.guilty)
        if bounds[step] <= p < bounds[step + 1] and p not in recording.evidence
    ]
    reason = ""
    try:
        run = _Run(window(recording, step), asked)
        if run.asked:
            rerun(run.where.segments, run.after, run.before, run.memory, kept=run.storages)
    except NotReplayable as error:
        reason = str(error)
    except Exception as error:  # an operator that fails in many ways where it did not before
        reason = f"running the step again failed ({type(error).__name__}: {error})"
    for position in asked:
        if position not in recording.evidence:
            recording.evidence[position] = None
            _tell(recording, position, reason)


def _tell(recording: Recording, position: int, reason: str) -> None:
    """Say once for each reason why a guilty call has no operands."""
    op = recording.op(position)
    if op is None or any(note.endswith(reason) for note in recording.notes):
        return
    recording.notes.append(
        f"no cause and no fixes for {op.name} (row {position}), for its operands are not known:"
        f" {reason}"
    )


class _Run:
    """One run of a step, that stops at each guilty call."""

    def __init__(self, where: Window, asked: list[int]) -> None:
        self.where, self.recording, self.memory = where, where.recording, Memory()
        self.storages: set[int] = set()
        self.asked: dict[int, GuiltyCall] = {}  # id of a call
        self._saved: dict[int, dict[str, Any]] = {}
        self._given: dict[int, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {}
        self._bytes = sum(_size(k) for k in self.recording.evidence.values() if k is not None)
        for position in asked:
            try:
                at, index, _ = where.find(position)
            except NotReplayable as error:
                self._give_up(position, str(error))
                continue
            call, guilty = where.segments[at].calls[index], self.recording.guilty[position]
            self.asked[id(call)] = guilty
            self._saved[id(call)] = saved = _hidden(where, guilty) | guilty.saved
            self.storages |= {ref.storage for ref in refs_in((tuple(saved.values()), guilty.args))}

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call; what a guilty one is given is copied first, for it may be overwritten."""
        if id(call) in self.asked:
            self._take(call)
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> bool:
        """Note what a guilty call made; True after the last of them."""
        guilty = self.asked.get(id(call))
        if guilty is None:
            return False
        if id(call) not in self._given:  # it was not run: its results are leaves
            self._take(call)
        args, kwargs, saved = self._given.pop(id(call))
        results = local_parts(results_of(call, out, self.memory))
        del self.asked[id(call)]
        if not self._as_bad(guilty.position, results):
            self._give_up(guilty.position, "the step gave other numbers when it was run again")
            return not self.asked
        outputs = _copy(tuple(results), {})
        if call.func is not None and plan_of(call.func).overwrites and outputs:
            args = (outputs[0], *args[1:])  # what was there before is no operand
        if "self" not in saved:
            saved = read_by_derivative(guilty.node_name, call.func, args) | saved
        kept = Kept(guilty.position, call.func, args, kwargs, outputs, saved, guilty.node_name)
        size = _size(kept)
        if size <= EACH and self._bytes + size <= ALL:
            self._bytes += size
            self.recording.evidence[guilty.position] = kept
        else:
            self._give_up(guilty.position, f"they fill {size >> 20:,} MiB")
        return not self.asked

    def _give_up(self, position: int, reason: str) -> None:
        self.recording.evidence[position] = None
        _tell(self.recording, position, reason)

    def _take(self, call: Call) -> None:
        """Copy what a call is given and what its autograd node had saved; one copy of each
        tensor."""
        copies: dict[Any, Any] = {}
        guilty = self.asked[id(call)]

        def given(value: Any) -> Any:
            if value.__class__ in (tuple, list):
                return value.__class__([given(each) for each in value])
            try:
                key = hash(value)
            except TypeError:
                key = id(value)
            if (value.__class__, key) not in copies:
                copies[value.__class__, key] = _copy(local_parts(self.memory.unpack(value)), {})
            return copies[value.__class__, key]

        self._given[id(call)] = (
            given(guilty.args or call.args),
            {name: given(value) for name, value in call.kwargs.items()},
            {name: given(value) for name, value in self._saved[id(call)].items()},
        )

    def _as_bad(self, position: int, results: list[Tensor]) -> bool:
        """Whether the results have as many NaN and infinities as the recorded ones."""
        for i, result in enumerate(results):
            known = self.recording.stats(position + i)
            if known is None or not known.known:
                continue
            now = summarize(result)
            if (now.nan, now.posinf, now.neginf) != (known.nan, known.posinf, known.neginf):
                return False
        return True


def _copy(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone()
        return copies[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_copy(v, copies) for v in value)
    return value


def _size(kept: Kept) -> int:
    tensors = (*tensors_of(kept.args), *tensors_of(kept.outputs), *tensors_of(kept.saved.values()))
    return sum(t.numel() * t.itemsize for t in tensors)


# -- what activation checkpointing computed again, for nodes that do not show what they had saved
# ------------------------------------------------------------


def _hidden(where: Window, guilty: GuiltyCall) -> dict[str, Any]:
    """What a node had saved behind a hook, by name, as far as its operation (or what it reads) ran
    again and is told from others."""
    recording, op = where.recording, where.recording.op(guilty.position)
    info = recording.nodes.get(op.node) if op is not None and guilty.hidden else None
    if info is None or info.op < 0 or recording.ops.items[info.op].rstrip("_") not in _SINGULAR:
        return {}
    for again, call in _again(where, guilty.position):
        if (again.place, again.name) != (info.line, recording.ops.items[info.op]):
            continue
        if not _same(recording, again.call, info.position):
            continue
        names = [argument.name for argument in call.func._schema.arguments]
        found = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
        returns = [result.name for result in call.func._schema.returns]
        results = call.out if call.out.__class__ is tuple else (call.out,)
        found |= (
            {"result": results[0]}
            if len(results) == 1
            else dict(zip(returns, results, strict=False))
        )
        return {name: value for name, value in found.items() if name in guilty.hidden}
    found = {}
    for source, slot in recording.operands(info.position):
        names = [name for name in _NAMES[slot] if name in guilty.hidden] if slot < 2 else []
        ref = _made_again(where, guilty.position, source) if names else None
        if ref is not None:
            found[names[0]] = ref
    return found


def _again(where: Window, end: int) -> Iterator[tuple[Op, Call]]:
    """The recomputed calls of a step up to a position, the latest first."""
    for segment in reversed(where.segments):
        for call in reversed(segment.calls):
            op = where.recording.op(call.position) if call.position < end else None
            if op is not None and op.phase == RECOMPUTE and call.func is not None:
                yield op, call


def _made_again(where: Window, end: int, source: int) -> Any:
    """A Ref to the recomputed result of a row of the forward pass."""
    row = where.recording.op(source)
    for again, call in _again(where, end) if row is not None else ():
        if row is not None and (again.place, again.name) == (row.place, row.name):
            results = list(refs_in(call.out))
            if row.output < len(results):
                same = _same(where.recording, again.call + row.output, source)
                return results[row.output] if same else None
    return None


def _same(recording: Recording, again: int, before: int) -> bool:
    """Whether two rows hold the same numbers, as far as their statistics tell."""
    stats = recording.stats(before)
    return stats is not None and recording.stats(again) == stats
