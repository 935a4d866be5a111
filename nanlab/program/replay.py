"""``trace.replay()`` and ``trace.tensor()``: a recorded step run again, as it was or changed."""

from __future__ import annotations

import math
import operator
import threading
import warnings
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from nanlab.capture.plans import plan_of
from nanlab.capture.state import are_finite
from nanlab.capture.watching import running, watch
from nanlab.errors import NanlabError, NotReplayable, TypeMismatchError, UsageError
from nanlab.program.batch import Batch, LeftOut, batch_of, batch_without
from nanlab.program.edit import Edited, apply
from nanlab.program.edit_text import EditLike
from nanlab.program.rebuild import (
    Beginning,
    Ended,
    Graph,
    Patch,
    Rebuilt,
    rebuild,
    same_bits,
)
from nanlab.program.recount import Recount
from nanlab.program.rerun import (
    Instead,
    Memory,
    Run,
    Window,
    first_of_fault,
    operate_call,
    rerun,
    step_that_shows,
    window,
    with_refs,
    written_by,
)
from nanlab.program.settings import (
    Steps,
    joined,
    other_scale,
    other_settings,
    watched_steps,
    with_references,
)
from nanlab.stats import StatsTable
from nanlab.trace import Trace
from nanlab.trace.history import UNSCALE
from nanlab.trace.mode import apart
from nanlab.trace.op import OPTIMIZER, location
from nanlab.trace.program import Call, Calls, EngineRun, Look, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

if TYPE_CHECKING:
    import pandas as pd


# What is other in a replay, and whether the step can be run above autograd at all.


@dataclass(frozen=True)
class Change:
    """What is other in a replay."""

    segments: Sequence[Segment]
    edited: Edited | None = None
    steps: Steps = field(default_factory=dict)  # of optimizers with other settings
    skipped: Steps = field(default_factory=dict)  # steps of optimizers that a GradScaler may skip
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer
    batch: Batch | None = None  # without some of its rows

    @property
    def patches(self) -> Sequence[Patch]:
        """The edits as patches."""
        return self.edited.patches if self.edited is not None else ()

    @property
    def instead(self) -> Steps:
        """What is run in the place of the optimizers' calls."""
        return joined(self.steps, self.skipped)

    def is_any(self, where: Window) -> bool:
        """Whether anything is."""
        return bool(self.segments is not where.segments or self.edited or self.instead)


def check_rebuilt(where: Window, beginning: Beginning | None = None) -> list[EngineRun]:
    """Bad engine runs. Raises NotReplayable unless the unchanged step is as recorded.

    beginning: what was made of it already.
    """
    ends = where.segments[0], where.segments[-1]
    key = id(ends[0]), id(ends[1])
    known = _REBUILT.get(key)
    if known is None or any(a is not b for a, b in zip(known[0], ends, strict=True)):
        wrong: list[EngineRun] = []
        known = _REBUILT[key] = ends, _difference(where, wrong, beginning), wrong
        while len(_REBUILT) > 16:
            _REBUILT.pop(next(iter(_REBUILT)))
    if known[1]:
        raise NotReplayable(known[1])
    return known[2]


# by the first and the last segment of a window, which are kept with it
_REBUILT: dict[tuple[int, int], tuple[tuple[Segment, Segment], str, list[EngineRun]]] = {}


def _difference(where: Window, wrong: list[EngineRun], beginning: Beginning | None = None) -> str:
    """The difference between the record and the step run above autograd, "" for none; bad engine
    runs."""
    runs = [
        (run, [*refs_in((*run.roots, *run.after.values(), *run.results))])
        for segment in where.segments
        for run in segment.engine
    ]
    segment, last = last_backward(where)
    end = (segment, last.last - 1) if last is not None else (len(where.segments), 0)
    try:
        graph, _ = rebuild(where.segments, around=partial(_ending, last), beginning=beginning)
        above = [[graph.get(ref).detach() for ref in refs] for _, refs in runs]
        del graph  # memory does not hold a large model twice
        memory = rerun(where.segments, lambda at, index, *_: (at, index) >= end)
        recorded = [[memory.tensor(ref) for ref in refs] for _, refs in runs]
        for (run, _), made, known in zip(runs, above, recorded, strict=True):
            if not are_finite(known):
                wrong.append(run)
            if not all(same_bits(a, b) for a, b in zip(made, known, strict=True)):
                return (
                    "the step does something between its calls that a graph of them does not"
                    " repeat: a hook, or a function with a backward of its own"
                )
    except NotReplayable as error:
        return str(error)
    except Exception as error:
        return f"the step cannot be run above autograd ({type(error).__name__}: {error})"
    return ""


def _outer_runs(where: Window) -> list[tuple[int, EngineRun]]:
    """The runs of the engine, by segment, that are not inside of others."""
    return [(at, r) for at, s in enumerate(where.segments) for r in s.engine if not r.nested]


def last_backward(where: Window) -> tuple[int, EngineRun | None]:
    """Segment and run of the engine after which the step has all its gradients."""
    return next(reversed(_outer_runs(where)), (0, None))


def gradient_runs(where: Window) -> list[tuple[int, EngineRun]]:
    """The runs of the engine, by segment, through whose gradients no later run goes back."""
    return [run for run in _outer_runs(where) if run[1].accumulates or not _goes_on(where, *run)]


def _goes_on(where: Window, at: int, run: EngineRun) -> bool:
    """Whether a later run of the engine begins from what came of this run's results."""
    reached = {ref.storage for ref in refs_in(run.results)}
    for number, segment in enumerate(where.segments[at:], at):
        begin = run.last if number == at else 0
        later = [other for other in segment.engine if other.first >= begin and other is not run]
        for index, call in enumerate(segment.calls[begin:], begin):
            roots = [ref for each in later if each.first == index for ref in refs_in(each.roots)]
            if any(ref.storage in reached for ref in roots):
                return True
            if not call.grad:  # an update: what comes after it is another step of the program
                continue
            if any(r.storage in reached for r in call.read):
                reached |= {ref.storage for ref in refs_in(call.out)}
    return False


@contextmanager
def _ending(last: EngineRun | None, run: EngineRun, graph: Graph) -> Iterator[None]:
    """While a run of the engine runs; the last one ends the step. Raises Ended."""
    yield
    if run is last:
        raise Ended


# A changed step under a watch of its own: what nanlab would have said of the program written
# so.


def observed(where: Window, change: Change | Edited | None = None, updates: bool = True) -> Trace:
    """The trace of the step with these changes, at the lines of the recorded one.

    updates: what comes after the last gradient too. Raises NotReplayable where the step cannot be
    run above autograd, or while another watch is running.
    """
    if running() is not None or threading.current_thread() is not threading.main_thread():
        raise NotReplayable("a watch is running")
    check_rebuilt(where)
    if change is None or isinstance(change, Edited):
        change = Change(where.segments, change)
    steps, around = change.skipped, partial(_ending, last_backward(where)[1])
    if updates:
        steps = joined(watched_steps(where, change.segments, change.settings), steps)
    recording = where.recording
    watcher = watch(on_fault="record")
    lines, ops = watcher._lines, watcher._ops
    lines.places[:], lines.spans[:] = recording.places, recording.spans
    names = recording.program.names
    kinds = dict(zip(recording.parameter_names, recording.parameter_kinds, strict=True))
    starting: list[int] = []  # where the training begins

    def about_to_call(segment: int, index: int, call: Call, graph: Graph) -> None:
        if not starting and call.position >= recording.began:
            starting.append(trace.recording.end)
        row = recording.op(call.position)
        if row is not None:
            lines.forced = row.place, row.site
            ops.where.module = watcher.recording.modules(row.module)
            ops.where.in_optimizer = int(row.phase == OPTIMIZER and (segment, index) not in steps)
        for ref in refs_in(call.args):
            name = names.get(ref.storage)
            if name is not None and ref.storage not in known:
                known.add(ref.storage)
                kind: Any = kinds.get(name, "parameter" if ref.tracked else "buffer")
                with ops.quiet():
                    watcher._training._register(graph.get(ref), name, kind)

    known: set[int] = set()
    lines.forced = 0, 0
    watcher.is_last = False
    try:
        with warnings.catch_warnings(action="ignore"), watcher as trace:
            rebuild(
                change.segments,
                change.patches,
                about_to_call,
                steps,
                change.batch,
                None if updates else around,
            )
    finally:
        lines.forced = None
    trace.recording.began = min(starting, default=trace.recording.began)
    if not trace.recording.sinks:
        trace.recording.sinks.extend(watcher._training.left_bad())
    return trace


# ``trace.replay()`` and ``trace.tensor()``: a recorded step run again, as it was or changed.

Tensor = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)


@apart
@dataclass
class Replay:
    """A step run again.

    step: its number in the run. identical: whether every result has the statistics, to the last
    bit, that were recorded; None where something was changed. loss: what backward was called on
    last, without a loss scale. gradients, parameters: as the step leaves them, by name. looked_at:
    the places where the program read a value that is now another, so that it might have gone
    another way.
    """

    step: int
    identical: bool | None
    loss: float | None
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    looked_at: list[str] = field(default_factory=list)
    # positions of the results that are not as recorded
    different: list[int] = field(default_factory=list)
    where: Window | None = field(default=None, repr=False)
    change: Change | None = field(default=None, repr=False)
    recorded: Trace | None = field(default=None, repr=False)  # of the step as it was
    # the step that it is run in the place of, whose fault shows in each
    instead_of: int = field(default=-1, repr=False)
    unchanged: str = field(default="", repr=False)  # why what was asked for changes nothing
    _trace: Trace | None = field(default=None, repr=False)

    @property
    def trace(self) -> Trace:
        """What a watch sees of the step as it is now; the recorded trace where nothing was changed.

        Raises NotReplayable where it cannot be run above autograd, or while a watch is running.
        """
        if self._trace is None:
            if self.where is None or self.change is None:
                raise NotReplayable("this replay has lost its recording")
            if self.identical:
                self._trace = self.recorded or Trace(self.where.recording)
            else:
                self._trace = observed(self.where, self.change)
                self._trace.recording.first_step = self.step
        return self._trace

    @property
    def ops(self) -> pd.DataFrame:
        """A row per output of each operation of the step, as ``trace.ops`` has them."""
        table = self.trace.ops
        return table[table.step == self.step] if self.identical else table

    @property
    def findings(self) -> list[Any]:
        """What is wrong with the step as it is now, most harmful first."""
        found, own = self.trace.findings, (self.step, self.instead_of)
        return type(found)(f for f in found if f.step in own) if self.identical else found

    @property
    def culprit(self) -> Any:
        """The harmful fault of the step as it is now; None if it is healthy."""
        found = self.trace.culprit
        own = (self.step, self.instead_of)
        elsewhere = self.identical and found is not None and found.step not in own
        return None if elsewhere else found

    @property
    def finite(self) -> bool:
        """Whether loss, gradients and parameters are."""
        tensors = [*self.gradients.values(), *self.parameters.values()]
        value = self.loss is None or abs(self.loss) < float("inf")
        return value and are_finite(tensors)

    @property
    def state(self) -> str:
        """``identical``, ``changed``, how many results differ, or why none could."""
        if self.identical:
            return "identical"
        if self.unchanged:
            return f"as it was: {self.unchanged}"
        count = len(self.different)
        return "changed" if self.identical is None else f"{count} results differ"

    def _bad(self) -> list[str]:
        """What is not finite, in words."""
        told = []
        for what, tensors in (("gradients", self.gradients), ("parameters", self.parameters)):
            bad = [name for name, t in tensors.items() if not are_finite([t])]
            if bad:
                more = f" and {len(bad) - 3:,} more" if len(bad) > 3 else ""
                told.append(f"{what} not finite: {', '.join(bad[:3])}{more}")
        return told

    def __repr__(self) -> str:
        loss = "no loss" if self.loss is None else f"loss {self.loss:.6g}"
        looked = f"the program read other values at {', '.join(self.looked_at[:3])}"
        parts = [self.state, loss, *self._bad(), *([looked] if self.looked_at else [])]
        return f"<nanlab.Replay of step {self.step}: {', '.join(parts)}>"


def tensor_at(recording: Recording, position: int, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor of a row, forward or backward, made again. Raises NotReplayable, UsageError.

    dtype: in which the operations in half precision are computed instead.
    """
    where = window(recording, recording.step_of(position))
    if dtype is not None:
        where = replace(where, segments=[_retyped(s, dtype) for s in where.segments])
    results, output = results_at(where, position)
    return results[output].detach().clone()


def results_at(where: Window, position: int, run: Run = operate_call) -> tuple[list[Tensor], int]:
    """The results of a row's call, made again, and which of them is the row's own.

    run: what is done in the place of a call. Raises NotReplayable, UsageError.
    """
    at, index, output = where.find(position)
    memory, found = Memory(), list[Tensor]()

    def visit(segment: int, place: int, call: Call, out: Any) -> bool:
        if (segment, place) == (at, index):
            found.extend(results_of(call, out, memory))
        return (segment, place) == (at, index)

    rerun(where.segments, visit, run, memory)
    if output >= len(found):
        raise NotReplayable(f"row {position} has no result of its own")
    return found, output


def results_of(call: Call, out: Any, memory: Memory) -> list[Tensor]:
    """The tensors of a call in the order of its rows: results first, then what it wrote in
    place."""
    from nanlab.capture.dispatch import targets_of

    if call.func is None:
        return [t for t in out if isinstance(t, Tensor)]
    plan = plan_of(call.func)
    if isinstance(out, Tensor) and plan.writes and not plan.fresh:
        return [out]  # its shape may be another than that of the operand, as of squeeze_
    args = memory.unpack(call.args) if plan.writes or plan.hidden else ()
    kwargs = {k: memory.unpack(v) for k, v in call.kwargs.items()} if plan.writes else {}
    return targets_of(plan, args, kwargs, out)[0]


def replay_step(
    recording: Recording,
    edits: Sequence[EditLike] = (),
    step: int | None = None,
    dtype: torch.dtype | None = None,
    loss_scale: float | None = None,
    settings: Mapping[str, Any] | None = None,
    without: Sequence[int] = (),
    begin: int | None = None,
) -> Replay:
    """A step run again: as it was, or with changes.

    begin: an earlier step to run from. edits: of the source. dtype: of half-precision operations.
    settings: of the optimizer, by name. without: rows of the batch that are left out.
    """
    where = window(recording, step, begin)
    change = Change(where.segments)
    if loss_scale is not None:
        segments, skipped = other_scale(where, loss_scale)
        change = replace(change, segments=segments, skipped=skipped)
    if dtype is not None:
        change = replace(change, segments=[_retyped(s, dtype) for s in change.segments])
    if settings:
        steps = other_settings(where, change.segments, settings)
        change = replace(change, steps=steps, settings=settings)
    if without:
        change = replace(change, batch=batch_of(where, without))
    if edits:
        change = replace(change, edited=apply(recording, where.segments, edits))
    if without:
        return _narrowed(where, change, without)
    if edits:
        return patched(where, change)[0]
    return _again(where, change, dtype)


def _narrowed(where: Window, change: Change, without: Sequence[int]) -> Replay:
    """The step without rows of its batch; a refusal names another way to see it."""
    try:
        return patched(where, change)[0]
    except NotReplayable as error:
        told = str(error)
    rows = f"row{'s' if len(without) > 1 else ''} {', '.join(map(str, without))}"
    raise NotReplayable(  # out here, as the frames of the replay tell the user nothing
        f"the recorded step cannot be run without {rows}: {told}. To see the step without, leave"
        " them out where the program makes the batch, and watch it again"
    )


def without_rows(where: Window, out: LeftOut) -> Replay:
    """A step in which some tensors have fewer rows. Raises NotReplayable.

    A library's call of which one call cannot be made on fewer rows is made by its own code.
    """
    patches: list[Patch] = []
    while True:
        batch = batch_without(where, out)
        library = Recount(where, batch.rows, batch.kept)
        batch.recount = library.number
        change = Change(where.segments, Edited(patches, []), batch=batch)
        try:
            return patched(where, change)[0]
        except NotReplayable:
            more = library.live(batch.running) if batch.running is not None else []
            known = {(patch.segment, i) for patch in patches for i in patch.skipped}
            if not more or any((patch.segment, patch.at) in known for patch in more):
                raise
            patches += more


def replay(
    trace: Trace,
    fix: Any = None,
    step: int | None = None,
    dtype: torch.dtype | None = None,
    loss_scale: float | None = None,
    lr: float | None = None,
    without: Any = None,
) -> Replay:
    """``trace.replay``; see there."""
    with warnings.catch_warnings(action="ignore"):  # the run itself has warned
        return _replay(trace, fix, step, dtype, loss_scale, lr, without)


def _replay(
    trace: Trace,
    fix: Any,
    step: int | None,
    dtype: torch.dtype | None,
    loss_scale: float | None,
    lr: float | None,
    without: Any,
) -> Replay:
    first, begin, instead_of = trace.recording.first_step, None, -1
    if step is None:
        culprit = trace.culprit
        if culprit is not None and culprit.step >= 0:
            shown = step_that_shows(trace.recording, culprit.step - first, culprit)
            step, instead_of = (shown, -1) if shown >= 0 else (None, culprit.step)
            if fix is not None and step is not None:
                begin = first_of_fault(trace.recording, step, culprit.position)
    elif first and type(step) is int:  # numbered as in the longer run that this is a replay of
        step -= first
    out = getattr(fix, "left_out", None)
    if out is not None:
        others = {"dtype": dtype, "loss_scale": loss_scale, "lr": lr, "without": without}
        if given := [name for name, value in others.items() if value is not None]:
            raise UsageError(f"a fix that leaves samples out does not go together with {given[0]}=")
        found = without_rows(window(trace.recording, step, begin), out)
        found.recorded = trace
        return found
    edits, fixed = edits_of(fix), settings_of(fix)
    for each in _each(fix):  # a setting of earlier steps
        since = getattr(each, "since", -1) - first
        if step is not None and 0 <= since < step:
            begin = since if begin is None else min(since, begin)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeMismatchError(f"expected a floating dtype such as torch.float32, got {dtype!r}")
    scale = None if loss_scale is None else _positive("loss_scale", loss_scale)
    settings = {} if lr is None else {"lr": _positive("lr", lr, zero=True)}
    scale = fixed.pop("loss_scale", None) if scale is None else scale
    settings = {**fixed, **settings}
    rows = _rows(without)
    if dtype is not None and (edits or rows):
        raise UsageError(
            f"dtype= does not go together with {'fix=' if edits else 'without='}; it does with"
            " loss_scale= and lr="
        )
    if edits and rows:
        raise UsageError("fix= does not go together with without=; give one of them")
    found = replay_step(trace.recording, edits, step, dtype, scale, settings, rows, begin)
    alone = dtype is not None and scale is None and not settings
    if alone and found.where is not None and not _has_half(found.where):
        found.unchanged = "no operation is in half precision"
    found.recorded, found.instead_of = trace, instead_of
    return found


@dataclass(frozen=True)
class RateTrial:
    """Some training steps run again at another learning rate."""

    finite: bool  # whether the last of them was, at the row asked for and in its loss
    before: float  # the loss of the first batch, as the first step computes it
    after: float  # the loss of the same batch, by what the steps leave


def try_rate(recording: Recording, first: int, last: int, position: int, rate: float) -> RateTrial:
    """Training steps, whose last one the row belongs to, at another learning rate.

    Raises NotReplayable.
    """
    begin, end = window(recording, first), window(recording, last)
    if recording.program.lacks(begin.start, end.end):
        raise NotReplayable("the steps between are no longer kept")
    segments = recording.program.between(begin.start, end.end)
    where = Window(recording, last, begin.start, end.end, segments)
    at, index, output = where.find(position)
    memory, bad = Memory(), False

    def visit(segment: int, place: int, call: Call, out: Any) -> None:
        nonlocal bad
        if (segment, place) == (at, index):
            bad = not bool(results_of(call, out, memory)[output].isfinite().all())

    def move(get: Any) -> None:
        for number in names:
            moved.storages[number] = memory.storages[number].clone()

    steps, moved = other_settings(where, segments, {"lr": rate}), Memory()
    try:
        rerun(segments, visit, memory=memory, instead=steps)
        names = [n for n in recording.program.names if n in memory.storages]
        standing = {
            (i, run.first): Instead(run.last, lambda get: None)
            for i, segment in enumerate(begin.segments)
            for run in segment.optimizers
        }
        reads = _first_reading(begin.segments, names)
        standing[reads] = Instead(reads[1], move)
        rerun(begin.segments, memory=moved, instead=standing)
    except NotReplayable:
        raise
    except RuntimeError:  # an operator refuses a NaN, as it did when the program ran
        return RateTrial(False, math.nan, math.nan)
    before, reached = loss_of(begin, memory.tensor), loss_of(end, memory.tensor)
    after = loss_of(begin, moved.tensor)
    if before is None or after is None:
        raise NotReplayable(f"step {first} has no loss")
    fine = not bad and (reached is None or math.isfinite(reached))
    return RateTrial(fine, before, after)


def _first_reading(segments: Sequence[Segment], parameters: Container[int]) -> tuple[int, int]:
    """(segment, index) of the first call that reads a parameter; calls before it initialise
    them."""
    for at, segment in enumerate(segments):
        for index, call in enumerate(segment.calls):
            read = {ref.storage for ref in call.read}
            own = {ref.storage for ref in refs_in(call.out)}.union(written_by(call))
            if any(number in parameters for number in read - own):
                return at, index
    return 0, 0


def _positive(name: str, value: Any, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatchError(f"expected a number for {name}=, got {value!r}")
    if not 0 <= value < float("inf") or (value == 0 and not zero):
        raise UsageError(f"expected a finite number above 0 for {name}=, got {value!r}")
    return float(value)


def _rows(without: Any) -> tuple[int, ...]:
    if without is None:
        return ()
    rows = [without] if isinstance(without, int) else without
    try:
        found = [operator.index(row) for row in rows]
    except TypeError:
        raise TypeMismatchError(
            f"expected row numbers for without=, such as [17], got {without!r}"
        ) from None
    return tuple(dict.fromkeys(found))


def _each(fix: Any) -> list[Any]:
    """The items of a list of fixes or cures; a single one is a list of one."""
    if isinstance(fix, list | tuple):
        return [one for each in fix for one in _each(each)]
    return [] if fix is None else [fix]


def settings_of(fix: Any) -> dict[str, Any]:
    """The numbers that a fix, a cure, or a list of them sets, by name."""
    return {name: value for each in _each(fix) for name, value in getattr(each, "settings", ())}


def edits_of(fix: Any) -> list[EditLike]:
    """The edits of a fix, a cure, or a list of them, without those of settings. Raises
    TypeMismatchError, UsageError."""
    found: list[EditLike] = []
    for each in _each(fix):
        edits = getattr(each, "tried", None)
        if edits is None:
            raise TypeMismatchError(
                f"expected a Fix, a Cure or a list of them, got {type(each).__name__}"
            )
        if getattr(each, "settings", ()):
            continue
        if not edits:
            raise UsageError(
                f"the fix {getattr(each, 'title', '')!r} has no edits: it cannot be written into"
                " the program by itself"
            )
        found += edits
    return found


# -- below autograd


def _again(where: Window, change: Change, dtype: torch.dtype | None) -> Replay:
    memory, table, different = Memory(), StatsTable(), list[int]()
    looked: list[str] = []
    known = _known_looks(where) if change.instead else frozenset[Any]()

    def visit(segment: int, index: int, call: Call, out: Any) -> None:
        if where.start <= call.position < where.end:
            for i, result in enumerate(results_of(call, out, memory)):
                if not _as_recorded(where.recording, call.position + i, result, table):
                    different.append(call.position + i)

    def look(each: Look, now: Any) -> None:
        if each.ref not in known and differs(each, now):
            looked.append(place_of(where.recording, each.place))

    def get(ref: Any) -> Any:
        return memory.tensor(ref if dtype is None else _retype(ref, dtype))

    unchanged = not change.is_any(where) and dtype is None
    seen = visit if unchanged else None
    rerun(change.segments, seen, memory=memory, looked=look, instead=change.instead)
    return Replay(
        where.recording.first_step + where.step,
        not different if unchanged else None,
        loss_of(where, get),
        _by_name(where, get, True),
        _by_name(where, get, False),
        list(dict.fromkeys(looked)),
        different,
        where=where,
        change=change,
    )


def _known_looks(where: Window) -> frozenset[Any]:
    """The reads of a GradScaler's check of gradients: what it does for another value is known."""
    return frozenset(
        ref
        for segment in where.segments
        for call in segment.calls
        if getattr(call.func, "_opname", "") == UNSCALE
        for look in segment.looks
        for ref in refs_in(look.ref)
        if ref.storage == call.args[1].storage
    )


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


def _retype(value: Any, dtype: torch.dtype) -> Any:
    if value.__class__ is torch.dtype:
        return dtype if value in _HALF else value
    return with_refs(
        value, lambda ref: Ref((*ref[:4], dtype, *ref[5:])) if ref.dtype in _HALF else ref
    )


def _has_half(where: Window) -> bool:
    """Whether an operation of the step has a result in half precision."""
    calls = (call for segment in where.segments for call in segment.calls)
    return any(ref.dtype in _HALF for call in calls for ref in refs_in(call.out))


def _retyped(segment: Segment, dtype: torch.dtype) -> Segment:
    """The segment with another dtype in place of half precision, its leaves converted to that
    dtype."""
    half: dict[int, torch.dtype] = {}
    for call in segment.calls:
        for ref in call.read:
            if ref.dtype in _HALF and ref.storage in segment.leaves:
                half[ref.storage] = ref.dtype
    leaves, saved = dict(segment.leaves), dict(segment.saved)
    for number, narrow in half.items():
        storage = saved.get(number, leaves[number])
        flat = torch.empty(0, dtype=narrow, device=storage.device).set_(storage)
        saved[number] = flat.to(dtype).untyped_storage()
    retype = partial(_retype, dtype=dtype)
    calls = Calls(
        c._replace(
            args=retype(c.args),
            kwargs={k: retype(v) for k, v in c.kwargs.items()},
            out=retype(c.out),
        )
        for c in segment.calls
    )
    ran = {name: with_references(getattr(segment, name), retype) for name in _RAN}
    return replace(segment, calls=calls, leaves=leaves, saved=saved, **ran)


_RAN = ("engine", "functions", "hooks", "function_runs", "optimizers", "looks")


# -- above autograd


class FiniteGate:
    """Ends a step that is run again at the first sign that loss or a gradient will not be finite,
    whatever comes: in its last run of the engine."""

    def __init__(self, where: Window) -> None:
        self.where, segments = where, where.segments
        at, self.last = last_backward(where)
        self.final: list[Ref] = []  # leaves whose gradients nothing writes afterwards
        self.found: dict[str, Tensor] = {}  # the gradient that is not finite
        if self.last is not None and self.last.accumulates:
            later = segments[at].calls[self.last.last :]
            later += [call for segment in segments[at + 1 :] for call in segment.calls]
            written = {number for call in later for number in written_by(call)}
            for leaf, gradient in self.last.after.items():
                plain = leaf.__class__ is Ref and gradient.__class__ is Ref
                if plain and gradient.storage not in written:
                    self.final.append(leaf)

    @contextmanager
    def around(self, run: EngineRun, graph: Graph) -> Iterator[None]:
        """While a run of the engine runs. Raises Ended."""
        if run is not self.last:
            yield
            return
        losses = _losses(self.where)
        value = _value_of(losses[-1], self.where, graph.get) if losses else None
        if value is not None and not math.isfinite(value):
            raise Ended
        hooks = [
            graph.get(leaf).register_post_accumulate_grad_hook(partial(self._check, leaf))
            for leaf in self.final
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _check(self, ref: Ref, leaf: Tensor) -> None:
        """Raise Ended where a leaf's gradient is not finite: whatever is added, it stays so."""
        if leaf.grad is not None and not are_finite([leaf.grad.detach()]):
            name = self.where.recording.program.names.get(ref.storage, f"leaf {ref.storage}")
            self.found = {name: leaf.grad}
            raise Ended


def patched(
    where: Window,
    change: Change | Edited,
    gate: FiniteGate | None = None,
    beginning: Beginning | None = None,
) -> tuple[Replay, Graph, Rebuilt]:
    """The step with changes. Raises NotReplayable where it cannot be run above autograd.

    gate: where loss and gradients are of interest only as long as they are finite. beginning: what
    was made of the step already, and is not changed.
    """
    if isinstance(change, Edited):
        change = Change(where.segments, change)
    check_rebuilt(where)
    try:
        graph, result = rebuild(
            change.segments,
            change.patches,
            instead=change.instead,
            rows=change.batch,
            around=gate.around if gate is not None else None,
            beginning=beginning,
        )
    except NanlabError:
        raise
    except Exception as error:
        if change.batch is None:
            raise
        raise NotReplayable(
            f"with fewer rows a call of it fails ({type(error).__name__}:"
            f" {str(error).splitlines()[0][:160]}): a size in it does not follow that of the batch"
        ) from error
    known = _known_looks(where) if change.instead else frozenset[Any]()
    looked = [
        place_of(where.recording, look.place)
        for look, now in result.looked
        if look.ref not in known and differs(look, now)
    ]
    gone = {
        ref.storage
        for patch in change.patches
        for index in patch.skipped
        for ref in refs_in(change.segments[patch.segment].calls[index].out)
    }
    found = Replay(
        where.recording.first_step + where.step,
        None,
        loss_of(where, graph.get),
        gate.found if gate and result.ended else _by_name(where, graph.get, True, True, gone),
        {} if result.ended else _by_name(where, graph.get, False, True, gone),
        list(dict.fromkeys(looked)),
        where=where,
        change=change,
    )
    return found, graph, result


# -- what comes out


def differs(look: Look, now: Any) -> bool:
    """Whether a value that the program read has changed."""
    try:
        value = now.item() if isinstance(now, Tensor) else now
    except (RuntimeError, ValueError):
        return False
    return bool(value != look.value) and not (value != value and look.value != look.value)


def place_of(recording: Recording, place: int) -> str:
    file, line, _ = recording.places[place]
    return location(file, line)


def loss_of(where: Window, get: Any) -> float | None:
    """The loss of the step, before a loss scale."""
    for loss in reversed(_losses(where)):
        known = _value_of(loss, where, get)
        if known is not None:
            return known
    for ref in reversed([ref for _, run in _outer_runs(where) for ref in refs_in(run.roots)]):
        value = get(ref)
        if value.numel() == 1:
            return _number(value)
    return None


def _losses(where: Window) -> list[Any]:
    """The losses on which the step called backward."""
    losses = where.recording.history.losses
    return [each for each in losses if where.start <= each.position <= where.end]


def _value_of(loss: Any, where: Window, get: Any) -> float | None:
    """A loss, before a loss scale; None where it is not at hand."""
    for position in (loss.source, loss.root):
        try:
            at, index, output = where.find(position)
            value = get(list(refs_in(where.segments[at].calls[index].out))[output])
        except Exception:
            continue
        if value.numel() == 1:
            return _number(value)
    return None


def _number(loss: torch.Tensor) -> float:
    loss = loss.detach()
    return float(loss.real if loss.is_complex() else loss)


def _by_name(
    where: Window,
    get: Any,
    gradients: bool,
    own: bool = False,
    gone: Collection[int] = (),
) -> dict[str, Tensor]:
    """Gradients, or values, of leaves by name: those that the engine gave gradients, and those
    whose gradients the program set before an optimizer stepped.

    gone: storages of results that are not made; leaves in them may have no gradient.
    """
    names = where.recording.program.names
    found: dict[str, Tensor] = {}
    results = {id(run) for _, run in gradient_runs(where) if not run.accumulates}
    for segment in where.segments:
        for run in segment.engine:
            pairs = [*run.after.items()]
            if id(run) in results:
                pairs += [each for each in zip(run.inputs, run.results, strict=False) if each[1]]
            for leaf, gradient in pairs:
                known = leaf.__class__ is Ref  # else it is sparse, nested or a subclass
                number = leaf.storage if known else -1 - len(found)
                try:
                    value = get(gradient if gradients else leaf)
                except NotReplayable:
                    if number in gone:
                        continue
                    raise
                name = names.get(number, f"leaf {abs(number)}")
                found[name] = value.detach() if own else value.detach().clone()
        groups = (group for run in segment.optimizers for group in run.groups)
        for group in groups:
            for leaf, gradient in zip(group.parameters, group.gradients, strict=True):
                if leaf.__class__ is Ref and gradient.__class__ is Ref:
                    name = names.get(leaf.storage, f"leaf {leaf.storage}")
                    if name not in found:
                        with suppress(NotReplayable):  # of a gradient that nothing holds any more
                            found[name] = get(gradient if gradients else leaf).detach().clone()
    return found
