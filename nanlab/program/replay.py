"""``trace.replay()`` and ``trace.tensor()``: a recorded step run again, as it was or changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nanlab.errors import NotReplayable, TypeMismatchError, UsageError
from nanlab.program.edit import Edited, EditLike, apply
from nanlab.program.memory import Memory, operate
from nanlab.program.rebuild import Graph, Rebuilt, rebuild, same_bits
from nanlab.program.rerun import rerun
from nanlab.stats import StatsTable
from nanlab.trace.locations import location
from nanlab.trace.program import Call, Look, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)


@dataclass
class Replay:
    """A step run again.

    identical: whether every result has the statistics, to the last bit, that were recorded; None
    where something was changed. loss: what backward was called on last, without a loss scale.
    gradients, parameters: as the step leaves them, by name. looked_at: the places where the program
    read a value that is now another, so that it might have gone another way.
    """

    step: int
    identical: bool | None
    loss: float | None
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    looked_at: list[str] = field(default_factory=list)
    # positions of the results that are not as recorded
    different: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        loss = "no loss" if self.loss is None else f"loss {self.loss:.6g}"
        what = {True: "identical", False: f"{len(self.different)} results differ", None: "changed"}[
            self.identical
        ]
        bad = [name for name, t in self.gradients.items() if not bool(torch.isfinite(t).all())]
        wrong = (
            f", gradients not finite: {', '.join(bad[:3])}{' ...' if len(bad) > 3 else ''}"
            if bad
            else ""
        )
        return f"<nanlab.Replay of step {self.step}: {what}, {loss}{wrong}>"

    @property
    def finite(self) -> bool:
        """Whether loss, gradients and parameters are."""
        tensors = [*self.gradients.values(), *self.parameters.values()]
        value = self.loss is None or abs(self.loss) < float("inf")
        return value and all(bool(torch.isfinite(t).all()) for t in tensors)


@dataclass(frozen=True)
class Window:
    """The segments of a step, and which of their calls belong to it."""

    recording: Recording
    step: int
    start: int
    end: int
    segments: list[Segment]

    def find(self, position: int) -> tuple[int, int, int]:
        """(segment, index of the call, number of its result) of a row."""
        op = self.recording.op(position)
        if op is None:
            raise UsageError(
                f"no row at position {position}; trace.ops.position lists those at hand"
            )
        first = op.call
        for at, segment in enumerate(self.segments):
            index = bisect_right(segment.calls, first, key=lambda call: call.position) - 1
            if index >= 0 and segment.calls[index].position == first:
                return at, index, op.output
        raise NotReplayable(f"the call of row {position} was not recorded")


def window(recording: Recording, step: int | None = None) -> Window:
    """The segments of a training step; of the failing one by default, else the last. Raises
    NotReplayable."""
    program = recording.program
    if program.reason:
        raise NotReplayable(f"the steps were not recorded: {program.reason}")
    if step is None:
        step = len(recording.starts) - 1
        while step and recording.starts[step] >= recording.end:
            step -= 1
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeMismatchError(f"expected the number of a training step, got {step!r}")
    if not 0 <= step < len(recording.starts):
        raise UsageError(f"no step {step}; the watch saw steps 0 to {len(recording.starts) - 1}")
    start = recording.starts[step]
    end = recording.starts[step + 1] if step + 1 < len(recording.starts) else 1 << 62
    if start < program.forgotten:
        raise NotReplayable(
            f"step {step} is no longer kept: the last steps and those of the first faults are; try"
            f" keep={len(recording.starts) - step}"
        )
    segments = program.between(start, end)
    if not segments:
        raise NotReplayable("nothing was recorded in that step")
    return Window(recording, step, start, end, segments)


def tensor_at(recording: Recording, position: int) -> Tensor:
    """The tensor of a row, forward or backward, made again. Raises NotReplayable, UsageError."""
    where = window(recording, recording.step_of(position))
    at, index, output = where.find(position)
    found: list[Tensor] = []

    def visit(segment: int, place: int, call: Call, out: Any) -> bool:
        if (segment, place) != (at, index):
            return False
        results = results_of(call, out, memory)
        if output < len(results):
            found.append(results[output].detach().clone())
        return True

    memory = Memory()
    rerun(where.segments, visit, memory=memory)
    if not found:
        raise NotReplayable(f"row {position} has no result of its own")
    return found[0]


def results_of(call: Call, out: Any, memory: Memory) -> list[Tensor]:
    """The tensors of a call in the order of its rows: what it made, then what it wrote."""
    from nanlab.capture.dispatch import targets_of

    if call.func is None:
        return [t for t in out if isinstance(t, Tensor)]
    plan = plan_of(call.func)
    args = memory.unpack(call.args) if plan.writes or plan.hidden else ()
    kwargs = {k: memory.unpack(v) for k, v in call.kwargs.items()} if plan.writes else {}
    return targets_of(plan, args, kwargs, out)[0]


def plan_of(func: Any) -> Any:
    """What capture knows of an operator: what it writes, whether it makes a view."""
    from nanlab.capture.plans import plan_for
    from nanlab.trace.names import Names

    plan = _PLANS.get(func)
    if plan is None:
        plan = _PLANS[func] = plan_for(func, Names())
    return plan


_PLANS: dict[Any, Any] = {}


def replay_step(
    recording: Recording,
    edits: Sequence[EditLike] = (),
    step: int | None = None,
    dtype: torch.dtype | None = None,
) -> Replay:
    """A step run again: as it was, with edits, or with half-precision operations in another
    dtype."""
    where = window(recording, step)
    if edits:
        return patched(where, apply(recording, where.segments, edits))[0]
    return _again(where, dtype)


def replay(
    trace: Any,
    fix: Any = None,
    step: int | None = None,
    dtype: torch.dtype | None = None,
) -> Replay:
    """``trace.replay``; see there."""
    if step is None:
        culprit = trace.culprit
        step = culprit.step if culprit is not None and culprit.step >= 0 else None
    first = trace.recording.first_step
    if first and type(step) is int:  # numbered as in the longer run that this is a replay of
        step -= first
    edits = edits_of(fix)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeMismatchError(f"expected a floating dtype such as torch.float32, got {dtype!r}")
    return replay_step(trace.recording, edits, step, dtype)


def edits_of(fix: Any) -> list[EditLike]:
    """The edits of a fix, a cure, or a list of them. Raises TypeMismatchError, UsageError."""
    if fix is None:
        return []
    if isinstance(fix, list | tuple):
        return [edit for each in fix for edit in edits_of(each)]
    edits = getattr(fix, "edits", None)
    if edits is None:
        raise TypeMismatchError(
            f"expected a Fix, a Cure or a list of them, got {type(fix).__name__}"
        )
    if not edits:
        raise UsageError(
            f"the fix {getattr(fix, 'title', '')!r} has no edits: it cannot be written into the"
            " program by itself"
        )
    return list(edits)


# -- below autograd
# ------------------------------------------------------------


def _again(where: Window, dtype: torch.dtype | None) -> Replay:
    memory, table, different = Memory(), StatsTable(), list[int]()
    looked: list[str] = []

    def visit(segment: int, index: int, call: Call, out: Any) -> None:
        if dtype is None and where.start <= call.position < where.end:
            for i, result in enumerate(results_of(call, out, memory)):
                if not _as_recorded(where.recording, call.position + i, result, table):
                    different.append(call.position + i)

    def look(each: Look, now: Any) -> None:
        if differs(each, now):
            looked.append(_place(where.recording, each.place))

    segments = where.segments if dtype is None else [_retyped(s, dtype) for s in where.segments]
    rerun(segments, visit, _as_is, memory, look)
    identical = None if dtype is not None else not different
    return Replay(
        where.step,
        identical,
        _loss(where, lambda ref: memory.tensor(ref if dtype is None else _retype(ref, dtype))),
        _by_name(
            where, lambda ref: memory.tensor(ref if dtype is None else _retype(ref, dtype)), True
        ),
        _by_name(
            where, lambda ref: memory.tensor(ref if dtype is None else _retype(ref, dtype)), False
        ),
        list(dict.fromkeys(looked)),
        different,
    )


def _as_is(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return operate(call.func, args, kwargs)


def _as_recorded(recording: Recording, position: int, result: Tensor, table: StatsTable) -> bool:
    op = recording.op(position)
    if op is None or op.stat < 0:
        return True
    known = recording.stats(position)
    at = table.add(result)
    now = table.stats(at)
    if known is None or not known.known:
        return True
    if now == known:
        return True
    # A row may refer to the statistics of a tensor with the same elements in another order: sums
    # round otherwise.
    counts = ("numel", "nan", "posinf", "neginf", "zero", "subnormal", "min", "max", "absmin")
    return all(getattr(now, name) == getattr(known, name) for name in counts) and _close(now, known)


def _close(a: Any, b: Any) -> bool:
    pairs = ((a.mean, b.mean), (a.rms, b.rms))
    return all(
        (x is None) == (y is None)
        and (x is None or abs(x - y) <= 1e-9 * max(abs(a.rms or 0.0), 1e-300))
        for x, y in pairs
    )


def _retype(ref: Any, dtype: torch.dtype) -> Any:
    if ref.__class__ is Ref:
        return Ref((*ref[:4], dtype, *ref[5:])) if ref.dtype in _HALF else ref
    if ref.__class__ is tuple or ref.__class__ is list:
        return ref.__class__([_retype(item, dtype) for item in ref])
    return dtype if ref.__class__ is torch.dtype and ref in _HALF else ref


def _retyped(segment: Segment, dtype: torch.dtype) -> Segment:
    """The segment with another dtype in the place of half precision; its half-precision leaves are
    widened."""
    half: dict[int, torch.dtype] = {}
    for call in segment.calls:
        for ref in refs_in((call.args, tuple(call.kwargs.values()))):
            if ref.dtype in _HALF and ref.storage in segment.leaves:
                half[ref.storage] = ref.dtype
    leaves, saved = dict(segment.leaves), dict(segment.saved)
    for number, narrow in half.items():
        storage = saved.get(number, leaves[number])
        flat = torch.empty(0, dtype=narrow, device=storage.device).set_(storage)
        saved[number] = flat.to(dtype).untyped_storage()
    calls = [
        Call(
            c.func,
            _retype(c.args, dtype),
            {k: _retype(v, dtype) for k, v in c.kwargs.items()},
            _retype(c.out, dtype),
            *c[4:],
        )
        for c in segment.calls
    ]
    looks = [
        Look(each.index, _retype(each.ref, dtype), each.value, each.place) for each in segment.looks
    ]
    return replace(segment, calls=calls, leaves=leaves, saved=saved, looks=looks)


# -- above autograd
# ------------------------------------------------------------


def patched(where: Window, edited: Edited) -> tuple[Replay, Graph, Rebuilt]:
    """The step with patches. Raises NotReplayable where it cannot be run above autograd."""
    check_rebuilt(where)
    graph, result = rebuild(where.segments, edited.patches)
    looked = [
        _place(where.recording, look.place) for look, now in result.looked if differs(look, now)
    ]
    found = Replay(
        where.step,
        None,
        _loss(where, graph.get),
        _by_name(where, graph.get, True),
        _by_name(where, graph.get, False),
        list(dict.fromkeys(looked)),
    )
    return found, graph, result


def check_rebuilt(where: Window) -> None:
    """Raises NotReplayable unless the unchanged step, run above autograd, gives the loss and
    gradients that were recorded."""
    segment = where.segments[-1]
    reason = _REBUILT.get(id(segment))
    if reason is None or reason[0] is not segment:
        reason = _REBUILT[id(segment)] = segment, _difference(where)
        while len(_REBUILT) > 16:
            _REBUILT.pop(next(iter(_REBUILT)))
    if reason[1]:
        raise NotReplayable(reason[1])


_REBUILT: dict[int, tuple[Segment, str]] = {}


def _difference(where: Window) -> str:
    """Why the step run above autograd is not what was recorded; "" where it is."""
    try:
        graph, _ = rebuild(where.segments)
    except NotReplayable as error:
        return str(error)
    except Exception as error:
        return f"the step cannot be run above autograd ({type(error).__name__}: {error})"
    memory = rerun(where.segments)
    for segment in where.segments:
        for run in segment.engine:
            for ref in refs_in((*run.roots, *run.after.values())):
                try:
                    same = same_bits(graph.get(ref).detach(), memory.tensor(ref))
                except NotReplayable as error:
                    return str(error)
                if not same:
                    return (
                        "the step does something between its calls that a graph of them does not"
                        " repeat: a hook, or a function with a backward of its own"
                    )
    return ""


# -- what comes out
# ------------------------------------------------------------


def differs(look: Look, now: Any) -> bool:
    """Whether a value that the program read is another now."""
    try:
        value = now.item() if isinstance(now, Tensor) else now
    except (RuntimeError, ValueError):
        return False
    return bool(value != look.value) and not (value != value and look.value != look.value)


def _place(recording: Recording, place: int) -> str:
    file, line, _ = recording.places[place]
    return location(file, line)


def _loss(where: Window, get: Any) -> float | None:
    """The loss of the step, before a loss scale."""
    losses = [
        each for each in where.recording.history.losses if where.start <= each.position <= where.end
    ]
    for loss in reversed(losses):
        for position in (loss.source, loss.root):
            try:
                at, index, output = where.find(position)
                ref = list(refs_in(where.segments[at].calls[index].out))[output]
                value = get(ref)
            except Exception:
                continue
            if value.numel() == 1:
                return float(value.detach().real) if value.is_complex() else float(value.detach())
    roots = [
        ref
        for s in where.segments
        for run in s.engine
        if not run.nested
        for ref in refs_in(run.roots)
    ]
    for ref in reversed(roots):
        value = get(ref)
        if value.numel() == 1:
            return float(value.detach())
    return None


def _by_name(where: Window, get: Any, gradients: bool) -> dict[str, Tensor]:
    """Gradients, or values, of the leaves that the engine gave gradients to."""
    names = where.recording.program.names
    found: dict[str, Tensor] = {}
    for segment in where.segments:
        for run in segment.engine:
            for leaf, gradient in run.after.items():
                name = names.get(leaf.storage, f"leaf {leaf.storage}")
                value = get(gradient if gradients else leaf)
                found[name] = value.detach().clone()
    return found
