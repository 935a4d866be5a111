"""Is a fix right? The failing step runs with it, against the truth of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.analysis.exact import count_work
from nanlab.analysis.limits import (
    Agreement,
    Evaluation,
    Truth,
    Wide,
    agrees,
    evaluate,
    tolerance,
    truth,
)
from nanlab.errors import NanlabError, NotReplayable
from nanlab.operators import having
from nanlab.program.edit import Edited, EditLike, Region, Results, Values, apply, is_sum
from nanlab.program.rebuild import (
    Beginning,
    Functions,
    Graph,
    Patch,
    Rebuilt,
    backward_of,
    differentiate,
    run_patches,
    same_bits,
)
from nanlab.program.replay import (
    FiniteGate,
    Replay,
    check_rebuilt,
    gradient_runs,
    last_backward,
    observed,
    patched,
    place_of,
)
from nanlab.program.rerun import Window, operate, seed
from nanlab.trace import Trace
from nanlab.trace.op import CARRIED, INTENDED, OK, location
from nanlab.trace.program import Call, EngineRun, FunctionUse, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

# A part of the step as a function: from what it depends on to a value, in any arithmetic that
# answers torch's operators.

Tensor = torch.Tensor
Stop = Callable[[Call], bool]
Item = Call | EngineRun | FunctionUse


@dataclass
class Slice:
    """The calls that some tensors are made of, a function of their operands."""

    values: Values  # of the step's calls
    targets: tuple[Any, ...]
    items: list[tuple[int, int, Item]]  # (segment, index, what runs there)
    last: int  # number of the segment that it ends in
    reads: dict[tuple[int, ...], list[Ref]] = field(default_factory=dict)  # of each item
    size: int = 0  # elements of all results
    given: dict[Ref, Tensor] | None = None  # operands, where they are not the recorded ones

    @cached_property
    def operands(self) -> dict[Ref, Tensor]:
        """What the calls read that none of them made, with its recorded value."""
        return _operands(self) if self.given is None else self.given

    @property
    def extent(self) -> int:
        """Elements of all results, or of the largest tensor that is read, whichever is more."""
        read = (_numel(ref) for each in self.reads.values() for ref in each)
        return max(self.size, max(read, default=0))

    @property
    def differentiated(self) -> list[bool]:
        """Which operands the program has gradients of."""
        return [bool(ref.tracked) for ref in self.operands]

    def function(self, patches: Sequence[Patch] = ()) -> Callable[..., Any]:
        """The targets as a function of the operands; with patches in the places of some calls."""
        by_call: dict[tuple[int, int], list[Patch]] = {}
        made = {(segment, index) for segment, index, _ in self.items}
        for patch in patches:
            # of several calls that it stands for, the last may be one that nothing here needs
            own = [i for i in {*patch.skipped, patch.at} if (patch.segment, i) in made]
            at = patch.at if patch.at in own else max(own, default=patch.at)
            by_call.setdefault((patch.segment, at), []).append(patch)
        skipped = {(p.segment, i) for p in patches for i in p.skipped}
        given = {ref.storage for ref in self.operands}

        def run(*values: Any) -> Any:
            graph = Graph()
            for ref, value in zip(self.operands, values, strict=True):
                graph.bind(ref, value)
            last = max((segment for segment, _, _ in self.items), default=0)

            def patch(at: tuple[int, int], ahead: bool, grad: bool) -> None:
                run_patches(graph, [p for p in by_call.get(at, ()) if p.ahead is ahead], grad)

            def make(segment: int, index: int, item: Call) -> None:
                patch((segment, index), True, item.grad)
                if (segment, index) not in skipped:
                    args = graph.get(item.args)
                    kwargs = {name: graph.get(value) for name, value in item.kwargs.items()}
                    seed(self.values.segments[segment], index)
                    with torch.set_grad_enabled(item.grad):
                        graph.bind(item.out, operate(item.func, args, kwargs))
                patch((segment, index), False, item.grad)

            def go_back(first: int, end: int, engine: Sequence[EngineRun]) -> None:
                if engine:
                    raise NotReplayable("a Function runs the autograd engine within its backward")
                for index in range(first, end):
                    make(last, index, self.values.segments[last].calls[index])

            # of what the program makes of numbers alone another may be made
            for p in patches:
                if (p.segment, p.at) not in made and {r.storage for r in refs_in(p.out)} & given:
                    run_patches(graph, [p], False)
            functions = Functions(graph, go_back)
            functions.enter(self.values.segments[last])
            for segment, index, item in self.items:
                if isinstance(item, EngineRun):
                    functions.running.append(item)
                    differentiate(item, graph)
                    functions.running.pop()
                elif isinstance(item, FunctionUse):
                    functions.apply(item)
                else:
                    make(segment, index, item)
            return [graph.get(target) for target in self.targets]

        return run


def cut(
    values: Values,
    targets: Sequence[Any],
    before: tuple[int, int],
    stop: Stop | None = None,
    most: int = 1 << 62,
) -> Slice:
    """The slice that makes these tensors, from the calls before (segment, index).

    stop: calls that are not followed further; their results become operands, as constants that the
    program makes do. most: elements of its results, at most.
    """
    segments = values.segments
    needed = {ref.storage for target in targets for ref in refs_in(target)}
    reads: dict[tuple[int, ...], list[Ref]] = {}
    items: list[tuple[int, int, Item]] = []
    size, ended = 0, set[int]()
    for at in range(before[0], -1, -1):
        segment = segments[at]
        last = before[1] if at == before[0] else len(segment.calls)
        runs = (r for r in segment.engine if not r.nested and not r.unrolled)
        windows = sorted(runs, key=lambda r: r.first, reverse=True)
        applied: dict[int, list[FunctionUse]] = {}
        for use in segment.functions:
            applied.setdefault(use.last, []).append(use)
        for index in range(last - 1, -1, -1):
            for use in reversed(applied.get(index + 1, ())):
                if any(r.storage in needed - ended for r in refs_in((*use.outputs.values(),))):
                    items.append((at, index + 1, use))
                    reads[at, index + 1, use.number] = list(_read_by(segments[before[0]], use))
                    needed |= {r.storage for r in reads[at, index + 1, use.number]}
            while windows and windows[0].first > index:
                windows.pop(0)
            run = windows[0] if windows else None
            if run is not None and run.first <= index < run.last:
                if index == run.last - 1 or index == last - 1:
                    given = {ref.storage for ref in refs_in(run.results)}
                    if given & needed and not run.accumulates and run.last <= last:
                        items.append((at, run.first, run))
                        needed |= {
                            r.storage for r in refs_in((*run.roots, *run.inputs, *run.gradients))
                        }
                continue
            call = segment.calls[index]
            made = list(refs_in(call.out))
            if not any(ref.storage in needed and ref.storage not in ended for ref in made):
                continue
            count = sum(_numel(ref) for ref in made)
            read = call.read
            followed = call.grad and any(ref.tracked for ref in made)
            # numbers drawn in another dtype would be others
            drawn = index in segment.states and not followed
            constant = (not read or drawn) and made[0].dtype.is_floating_point
            if (
                call.given
                or constant
                or (stop is not None and stop(call) and items)
                or size + count > most
            ):
                ended |= {ref.storage for ref in made}
                continue
            size += count
            items.append((at, index, call))
            reads[at, index] = call.read
            needed |= {ref.storage for ref in reads[at, index]}
    items.reverse()
    return Slice(values, tuple(targets), items, before[0], reads, size)


def _numel(ref: Ref) -> int:
    count = 1
    for n in ref.size:
        count *= n
    return count


def _read_by(segment: Segment, use: FunctionUse) -> Iterator[Ref]:
    """The inputs of a Function, and what its backward reads that it does not make itself."""
    yield from refs_in(use.inputs)
    run = backward_of(segment, use, None)
    if run is None:
        return
    own = {ref.view for ref in refs_in(run.arrived)}
    for call in segment.calls[run.first : run.last]:
        read = call.read
        yield from (ref for ref in read if ref.view not in own)
        own |= {ref.view for ref in refs_in(call.out)}


def _calls_of(found: Slice) -> Iterator[tuple[int, int]]:
    """(segment, index) of the calls whose operands tell what the slice reads."""
    for at, index, item in found.items:
        if isinstance(item, Call):
            yield at, index
        elif isinstance(item, FunctionUse):
            run = backward_of(found.values.segments[found.last], item, None)
            if run is not None:
                yield from ((found.last, i) for i in range(run.first, run.last))


def _operands(found: Slice) -> dict[Ref, Tensor]:
    operands: dict[Ref, Tensor] = {}
    last, results = found.last, Results(found.values)
    for at, index in _calls_of(found):
        results.want(at, [index])
    with _disable_current_modes():
        results.run()
    made: set[Any] = set()
    for at, index, item in found.items:
        if isinstance(item, EngineRun):
            made |= {ref.view for ref in refs_in(item.results)}
            continue
        if isinstance(item, FunctionUse):
            wanted = found.reads[at, index, item.number]
        else:
            wanted = found.reads[at, index]
        for ref in wanted:
            if ref.view not in made and not any(ref.view == other.view for other in operands):
                value = results.values[at].get(ref.view)
                if value is None:
                    value = results.values[last].get(ref.view)
                if value is None:
                    raise NotReplayable("a tensor is read whose value is not at hand")
                operands[ref] = value
        if isinstance(item, Call):
            made |= {ref.view for ref in refs_in(item.out)}
    return operands


# A slice on some rows of its results: in a large one every row is computed alike.

ROWS = 4  # at least, in one dimension; half as many in each of several
ALIKE = 1e-3  # relative: by how much the order of a sum may change it


def narrowed(part: Slice, elements: int) -> Slice | None:
    """The slice on fewer rows of its results, bad ones first; None if they give other numbers."""
    found: Slice | None = None
    try:
        part = _shaped(part)
        old = _evaluated(part)
        for dim in range(old.values[0].dim()):
            count = old.values[0].shape[dim]
            if any(t.dim() <= dim or t.shape[dim] != count for t in old.values):
                return None
            size = max((t.numel() for t in part.operands.values()), default=0)
            least = ROWS if old.values[0].dim() == 1 else ROWS // 2
            keep = elements * count // max(size, 1)
            if max(keep, least) >= count:
                continue
            # one row alone has more elements
            wide = keep == 0 and (dim > 0 or size > elements * old.values[0].numel())
            rows = _telling(part, old, dim, least if wide else max(keep, least), wide)
            given = {ref: _rows(t, dim, count, rows) for ref, t in part.operands.items()}
            fewer = replace(part, given=given, size=part.size * len(rows) // count)
            new = _evaluated(fewer)
            pairs = list(zip(old.values, new.values, strict=True))
            pairs += [
                (a, b)
                for a, b, t in zip(old.gradients, new.gradients, given.values(), strict=True)
                if a is not None and b is not None and t.shape != a.shape
            ]
            if all(_alike(_rows(a, dim, count, rows), b) for a, b in pairs):
                part, old, found = fewer, new, fewer
    except Exception:
        return None
    return found


def _shaped(part: Slice) -> Slice:
    """The slice of operands in the given shapes, in numbers that the program wrote."""
    results = Results(part.values)
    at = {
        (item.args[0].view): (segment, index, item)
        for segment, index, item in part.items
        if isinstance(item, Call) and _is_sized(item) and item.args[0] in part.operands
    }
    reads = [ref.view for each in part.reads.values() for ref in each]
    at = {view: found for view, found in at.items() if reads.count(view) == 1}
    if not at:
        return part
    for segment, index, _ in at.values():
        results.want(segment, [index])
    results.run()
    given: dict[Ref, Tensor] = {}
    for ref, value in part.operands.items():
        if ref.view in at:
            segment, _, call = at[ref.view]
            value = results.values[segment][call.out.view]
            ref = Ref((*call.out[:5], ref.tracked, call.out[6]))
        given[ref] = value
    gone = {(segment, index) for segment, index, _ in at.values()}
    items = [each for each in part.items if each[:2] not in gone]
    return replace(part, items=items, given=given)


def _is_sized(call: Call) -> bool:
    name = getattr(call.func, "_opname", "")
    return name in _SIZED and call.args[0].__class__ is Ref and call.out.__class__ is Ref


def _evaluated(part: Slice) -> Evaluation:
    return evaluate(part.function(), list(part.operands.values()), None, part.differentiated)


def _rows(t: Tensor, dim: int, count: int, rows: Tensor) -> Tensor:
    fits = t.dim() > dim and t.shape[dim] == count
    return t.index_select(dim, rows.to(t.device)) if fits else t


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not a.dtype.is_floating_point:
        return a.shape == b.shape and bool((a == b).all())
    return torch.allclose(a.double(), b.double(), rtol=ALIKE, atol=1e-30, equal_nan=True)


def _telling(part: Slice, found: Evaluation, dim: int, keep: int, few: bool) -> Tensor:
    """Rows of each way to go wrong: the smallest, largest, some between; a quarter right.

    few: one row of each way alone.
    """
    count = found.values[0].shape[dim]

    def by_row(t: Tensor) -> Tensor:
        return t.detach().cpu().movedim(dim, 0).reshape(count, -1)

    floats = [t for t in found.tensors if t.dim() > dim and t.shape[dim] == count]
    codes = torch.cat(
        [
            2 * by_row(t.isnan()).byte() + 3 * by_row(t.isposinf()) + 4 * by_row(t.isneginf())
            for t in floats
        ],
        1,
    )
    read = [
        t
        for t in part.operands.values()
        if t.dim() > dim and t.shape[dim] == count and t.is_floating_point()
    ]
    size = sum(by_row(t).double().nan_to_num(0, 0, 0).abs().sum(1) for t in read)
    order = torch.argsort(torch.as_tensor(size).expand(count), stable=True)
    kinds = torch.unique(codes, dim=0, return_inverse=True)[1][order]
    bad = codes.any(1)[order]
    groups = [order[(kinds == kind) & bad] for kind in kinds[bad].unique()]
    if few and groups:
        return torch.cat([group[:1] for group in groups])[:keep].sort().values
    well = order[~bad]
    healthy = min(len(well), max(keep // 4, keep - int(bad.sum())))
    each = max((keep - healthy) // max(len(groups), 1), 1)
    chosen = [_spread(group, each) for group in groups][:keep]
    return torch.cat([*chosen, _spread(well, healthy)])[:keep].sort().values


def _spread(rows: Tensor, count: int) -> Tensor:
    """So many of them, evenly spaced, the first and the last among them."""
    at = torch.linspace(0, len(rows) - 1, min(count, len(rows))).round().long()
    return rows[at]


# Is a fix right? The whole failing step is run with it, and held against the truth of the
# program as it was written.

RAISES = "it raises"  # how the reason of a fix begins that cannot be run
WITHIN = 0.01  # how far a healthy element may move
NUDGE = 1e-7  # relative, of operands in float64: a value that it moves by more than WITHIN jumps
FEW_ERRORS = 4  # of an expression's own rounding are no change
SMALLER = (0.1, 0.01, 0.001)  # operands, where the loss itself has no finite limit
SMALL = 1e-3  # of the largest element: what is below is compared with that
WHOLE = 60_000  # elements of a step whose truth is sought in exact numbers, and as a whole
LOCAL = 400_000  # elements of the expression and what it is made of, where the step is larger
LARGE = 1 << 24  # of the same where some of its rows stand for all
FEW = 2_000  # elements of operands that need no narrowing
NARROW = 256  # of those that are narrowed, for their truth
_SIZED = having("sized")
NOT_COMPUTED = "what is right there could not be computed"
KEPT = 1 << 28  # bytes of what edits leave as it was, between two questions
MOST_RUNS = 3  # of the engine that are held against their truth
MOST_REGIONS = 4  # runs of the edited expression that are held against their truth one by one


@dataclass(frozen=True)
class Judgement:
    """What became of the step with some edits."""

    verdict: Literal["verified", "finite", "fails", "untried"]
    why: str = ""
    distortion: float | None = None
    gradient_max: float | None = None
    replay: Replay | None = None

    @property
    def verified(self) -> bool:
        """Whether the step came out right."""
        return self.verdict == "verified"


@dataclass(frozen=True)
class SumsBefore:
    """Sums of calls before a row."""

    position: int = 1 << 62

    def __call__(self, call: Call) -> bool:
        """Whether a call is one."""
        return call.position < self.position and is_sum(call)


@dataclass
class Judge:
    """Holds edits against the truth of one step, which is found out once."""

    where: Window
    _wrong: list[tuple[int, EngineRun]] | None = None
    _parts: dict[tuple[int, int, SumsBefore], Slice] = field(default_factory=dict)
    _truths: dict[int, Truth | None] = field(default_factory=dict)
    _slices: dict[Any, Slice] = field(default_factory=dict)
    _local: dict[tuple[int, int], tuple[Slice, int, Truth | None]] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], Judgement] = field(default_factory=dict)  # by edits
    _beginnings: dict[int, Beginning] = field(default_factory=dict)  # by the first call after
    _askers: int = 0  # that are in ``sharing``

    @property
    def recording(self) -> Recording:
        return self.where.recording

    @cached_property
    def values(self) -> Values:
        """What the step's calls read and returned, shared by all edits."""
        return Values(self.where.segments)

    def judge(self, edits: Sequence[EditLike]) -> Judgement:
        """The verdict on these edits, all at once."""
        key = tuple((e.file, e.first, e.last, e.text) for e in edits)
        if key not in self._known:
            found = self._judged(edits)
            # tensors are kept of the first alone that is right: it is the cure, as a rule
            first = found.verified and not any(each.verified for each in self._known.values())
            self._known[key] = found if first else replace(found, replay=None)
        return self._known[key]

    def observed(self, edits: Sequence[EditLike], updates: bool) -> Trace:
        """What a watch sees of the step with these edits. Raises NotReplayable."""
        count_work(*self._size())
        segments = self.where.segments
        return observed(self.where, apply(self.recording, segments, edits, self.values), updates)

    def replayed(self, edits: Sequence[EditLike]) -> Replay:
        """The step with these edits. Raises NotReplayable."""
        edited = apply(self.recording, self.where.segments, edits, self.values)
        return self._run(edited)[0]

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """What edits leave as it was is run once for all that are judged in here."""
        self._askers += 1
        try:
            yield
        finally:
            self._askers -= 1
            if not self._askers and sum(b.nbytes for b in self._beginnings.values()) > KEPT:
                self._forget()

    def _forget(self) -> None:
        self._beginnings, self.values.beginning = {}, None

    def _run(self, edited: Edited, gate: FiniteGate | None = None) -> tuple[Replay, Graph, Rebuilt]:
        """The step with edits, from the first call that they change on."""
        beginning = None
        if self._askers:
            with suppress(Exception):  # why it cannot be built is told below
                beginning = self._before(edited)
        check_rebuilt(self.where, beginning)
        found = patched(self.where, edited, gate, beginning)
        begin = beginning.index if beginning is not None else 0
        count_work(*self._size(begin, found[2].ended))
        if beginning is None or beginning.is_intact:
            return found
        self._forget()  # new code wrote what it did not make
        return patched(self.where, edited, gate)

    def _size(self, begin: int = 0, ended: bool = False) -> tuple[int, int]:
        """Calls of the step, five for each for what a graph takes, and elements that they make.

        ended: by the first bad gradient.
        """
        segments = self.where.segments
        at, run = last_backward(self.where)
        end = (at, run.first) if ended and run is not None else (len(segments), 0)
        made = [
            sum(_numel(ref) for ref in refs_in(call.out))
            for number, segment in enumerate(segments)
            for index, call in enumerate(segment.calls)
            if (0, begin) <= (number, index) < end
        ]
        return 5 * len(made), sum(made)

    def _before(self, edited: Edited) -> Beginning | None:
        """What comes before the edited calls, made once."""
        places = [(p.segment, min((*p.skipped, p.at))) for p in edited.patches]
        segments = self.where.segments
        at, index = min(places, default=(1, 0))
        return self._made_before(index if not at else len(segments[0].calls))

    def _made_before(self, index: int) -> Beginning | None:
        """What comes before a call of the first segment, made once."""
        segments = self.where.segments
        earlier = max((i for i in self._beginnings if i <= index), default=None)
        found = Beginning.up_to(
            segments, index, None if earlier is None else self._beginnings[earlier]
        )
        if found is None:
            return None
        if earlier is None:
            self._beginnings = {}  # of which the tensors are others
        self._beginnings[found.index] = found
        self.values.beginning = found
        return found

    @cached_property
    def _first_calls(self) -> dict[tuple[str, int], int]:
        """By line, the first call of the module or function that runs it for the first time."""
        found: dict[tuple[str, int], int] = {}
        module, begin = None, 0
        for index, call in enumerate(self.where.segments[0].calls):
            op = self.recording.op(call.position)
            if op is not None:
                module, begin = op.module, begin if op.module == module else index
                found.setdefault((op.file, op.line), begin)
        return found

    def _judged(self, edits: Sequence[EditLike]) -> Judgement:
        firsts = [self._first_calls.get((e.file, n)) for e in edits for n in (e.first, e.last)]
        known = [first for first in firsts if first is not None]
        if self._askers and not self._beginnings and known:
            with suppress(Exception):  # why it cannot be built is told below
                self._made_before(min(known))
        try:
            edited = apply(self.recording, self.where.segments, edits, self.values)
            replay, graph, _ = self._run(edited, FiniteGate(self.where))
        except NotReplayable as error:
            return Judgement("untried", str(error))
        except NanlabError as error:
            return Judgement("fails", f"{RAISES} {type(error).__name__}: {_first_line(error)}")
        except Exception as error:
            return Judgement("fails", f"{RAISES} {type(error).__name__}: {_first_line(error)}")
        largest = _largest(replay.gradients.values())
        if not replay.finite:
            why = self._what_fails(replay, graph, edited)
            largest = largest if math.isfinite(largest or math.nan) else None
            return Judgement("fails", why, None, largest, replay)
        self._fetch(edited)
        moved = [self._distortion(edited, *part) for part in self._changed(edited)]
        distortion = max((d for d in moved if d is not None), default=None)
        if (distortion or 0.0) > WITHIN:  # perhaps of elements that fail behind the line
            moved = [self._distortion(edited, *part, True) for part in self._changed(edited)]
            distortion = max((d for d in moved if d is not None), default=None)
        found = Judgement("verified", "", distortion, largest, replay)
        agreement, whole = self._agreement(edited)
        right = whole and agreement.kind == "agrees" and not self._shows_more(replay)
        if not right and (distortion or 0.0) > WITHIN:
            why = f"it changes healthy values by {_percent(distortion or 0.0)}"
            return Judgement("finite", why, distortion, largest, replay)
        if agreement.kind != "agrees":
            return Judgement("finite", agreement.why, distortion, largest, replay)
        if (distortion or 0.0) > WITHIN:  # loss and gradients are right; what is between is another
            return replace(found, distortion=None)
        return found

    def _shows_more(self, replay: Replay) -> bool:
        """Whether the program has read another value than its losses that is now another."""
        losses = {ref.storage for _, run in self._runs() for ref in refs_in(run.roots)}
        others = {
            place_of(self.recording, look.place)
            for segment in self.where.segments
            for look in segment.looks
            if not {ref.storage for ref in refs_in(look.ref)} <= losses
        }
        return not others.isdisjoint(replay.looked_at)

    # -- the truth

    def _fetch(self, edited: Edited) -> None:
        """Make all values in one run that these edits are held against."""
        with suppress(Exception):  # what cannot be made is told where it is asked for
            parts = [self._whole(run) for run in self._runs()]
            if any(part.size > WHOLE for part in parts):
                around = [self._after(r, True)[0] for r in edited.regions[:MOST_REGIONS]]
                parts = [part for part in around if part.extent <= FEW]
                if len(parts) < len(around):
                    parts += [self._after(r, False)[0] for r in edited.regions[:MOST_REGIONS]]
            stop = self._sums_before(edited)
            parts += [self._line_of(r, stop) for r in edited.regions[:MOST_REGIONS]]
            self.values.of({each for part in parts for each in _calls_of(part)})

    def _agreement(self, edited: Edited) -> tuple[Agreement, bool]:
        """Whether loss and gradients are exact; and whether that is known of every element."""
        found, complete = Agreement("unknown", NOT_COMPUTED), True
        for run in self._runs():
            try:
                whole, true = self._truth(run)
            except NotReplayable:
                complete = False
                continue
            complete = complete and true is not None and true.is_known
            if true is not None:
                found = self._compared(whole, edited, true)
            if true is None or found.kind == "unknown":
                found = self._locally(edited)
            elif found.kind == "agrees" and all(bool(v.unknown.all()) for v in true.values):
                near = self._locally(edited)  # a loss without a limit tells no sign
                found = near if near.kind == "sign" else found
            if true is None or found.kind != "agrees":
                return found, False
        return found, complete

    def _compared(self, whole: Slice, edited: Edited, true: Truth) -> Agreement:
        operands = list(whole.operands.values())
        old, new = whole.function(), whole.function(edited.patches)
        try:
            got = evaluate(new, operands, None, whole.differentiated)
        except NotReplayable:  # the new lines read what the old ones did not
            return Agreement("unknown", NOT_COMPUTED)
        found = agrees(new, old, operands, None, whole.differentiated, known=true)
        if not all(bool(value.exists.all()) for value in true.values):
            off = _off_in_range(old, new, operands, whole.differentiated)
            if off is not None:
                return off
        return self._named(whole, got, true) or found

    def _named(self, whole: Slice, got: Evaluation, true: Truth) -> Agreement | None:
        """The first parameter whose gradient differs from exact, healthy elements included."""
        names = self.recording.program.names
        for value, limit in zip(got.values, true.values, strict=True):
            off = _off(value, limit.value)
            if off is not None:
                return Agreement("value", f"the loss is {off[0]:.4g}, its limit {off[1]:.4g}")
        largest = true.largest(got)
        for ref, gradient, known in zip(whole.operands, got.gradients, true.gradients, strict=True):
            if gradient is None or known is None:
                continue
            off = _off(gradient, known.value, largest)
            if off is not None:
                name = names.get(ref.storage, "")
                short = f" of {name}" if name else ""
                return Agreement(
                    "gradient", f"the gradient{short} is {off[0]:.4g}, its limit {off[1]:.4g}"
                )
        return None

    def _runs(self) -> list[tuple[int, EngineRun]]:
        """The runs of the engine that leave gradients, and went wrong; the last where none did."""
        if self._wrong is None:
            runs = gradient_runs(self.where)
            wrong = check_rebuilt(self.where)
            bad = [(at, run) for at, run in runs if any(run is each for each in wrong)]
            self._wrong = bad[:MOST_RUNS] or runs[-1:]
        return self._wrong

    def _truth(self, run: tuple[int, EngineRun]) -> tuple[Slice, Truth | None]:
        """The slice of a run's roots, their values and gradients; None if too large."""
        whole = self._whole(run)
        key = id(run[1])
        if key not in self._truths:
            self._truths[key] = _truth_of(whole) if whole.size <= WHOLE else None
        return whole, self._truths[key]

    def _whole(self, run: tuple[int, EngineRun]) -> Slice:
        """The slice of a run's roots."""
        return self._cut(run[1].roots, (run[0], run[1].first))

    def _cut(
        self,
        targets: Sequence[Any],
        before: tuple[int, int],
        stop: Stop | None = None,
        most: int = 1 << 62,
    ) -> Slice:
        """A slice of the step, cut once."""
        key = tuple(ref.view for ref in refs_in(tuple(targets))), before, stop, most
        if key not in self._slices:
            self._slices[key] = cut(self.values, targets, before, stop, most=most)
        return self._slices[key]

    def _locally(self, edited: Edited) -> Agreement:
        """What edited lines are used for until summed again, as a function of the sums in."""
        found = Agreement("unknown", NOT_COMPUTED)
        for region in edited.regions[:MOST_REGIONS]:
            try:
                part, last, true = self._around(region)
                if true is None:
                    return Agreement("unknown", NOT_COMPUTED)
                own = [p for p in edited.patches if p.segment == region.segment and p.at <= last]
                calls = {i for p in own if not p.follows for i in {*p.skipped, p.at}}
                if not calls & {index for _, index, _ in part.items}:
                    return Agreement("unknown", NOT_COMPUTED)
                new, old, operands = part.function(own), part.function(), [*part.operands.values()]
                found = agrees(new, old, operands, None, part.differentiated, known=true)
            except Exception:
                return Agreement("unknown", NOT_COMPUTED)
            if found.kind != "agrees":
                return found
        return found

    def _around(self, region: Region) -> tuple[Slice, int, Truth | None]:
        """What a line goes into by element, or its own results if many; last call; truth."""
        index = region.outer[0]
        key = region.segment, index
        if key not in self._local:
            part, last = self._after(region, whole=True)
            if part.extent > FEW:
                fewer = self._on_few_rows(region)
                if fewer is not None:
                    part, last = fewer
                elif part.extent >= LOCAL // 2 or len(part.targets) > MOST_REGIONS:
                    part, last = self._line(region), index
            self._local[key] = part, last, _truth_of(part)
        return self._local[key]

    def _after(self, region: Region, whole: bool) -> tuple[Slice, int]:
        """What a line goes into, and the last call among these; whole: single numbers too."""
        segments, at = self.where.segments, region.segment
        targets, last = _frontier(segments[at], *region.outer, whole)
        most = LOCAL if whole else LARGE
        return self._cut(targets, (at, last + 1), SumsBefore(), most), last

    def _on_few_rows(self, region: Region) -> tuple[Slice, int] | None:
        """What a line goes into before it becomes one number, or else the line, on a few rows."""
        part, last = self._after(region, whole=False)
        fewer = narrowed(part, NARROW) if len(part.targets) <= MOST_REGIONS else None
        if fewer is None:
            fewer, last = narrowed(self._line(region), NARROW), region.outer[0]
        return (fewer, last) if fewer is not None else None

    def _changed(self, edited: Edited) -> Iterator[tuple[Region, Slice]]:
        """What an edit changes; of several what no other goes on with: for it alone it may be."""
        parts, stop = [], self._sums_before(edited)
        for region in edited.regions[:MOST_REGIONS]:
            with suppress(Exception):
                parts.append((region, self._line(region, stop)))
        for region, part in parts:
            index, own = region.outer[0], region.segment
            later = (
                other
                for each, other in parts
                if each.segment == own and each.outer[0] > index
                if any((at, i) == (own, index) for at, i, _ in other.items)
            )
            if next(later, None) is None:
                yield region, part

    def _sums_before(self, edited: Edited) -> SumsBefore:
        """Where the lines of edits begin: at sums that none of them changes."""
        places = {(r.segment, r.outer[0]) for r in edited.regions[:MOST_REGIONS]}
        if len(places) < 2:
            return SumsBefore()
        calls = [(p.segment, i) for p in edited.patches for i in {*p.skipped, p.at}]
        return SumsBefore(
            min(self.where.segments[at].calls[i].position for at, i in {*calls, *places})
        )

    def _distortion(
        self, edited: Edited, region: Region, part: Slice, behind: bool = False
    ) -> float | None:
        """Largest relative change of the line's healthy values and derivatives, by float64.

        behind: values that what follows fails at are not healthy either.
        """
        try:
            at, index = region.segment, region.outer[0]
            patches = [p for p in edited.patches if p.segment == at and p.at <= index]
            operands, wanted = list(part.operands.values()), part.differentiated
            old, new = (
                evaluate(fn, operands, None, wanted)
                for fn in (part.function(), part.function(patches))
            )
            # of a leaf that the step itself makes no derivative is asked
            telling = old if any(wanted) else evaluate(part.function(), operands)
            old = _without_offending(
                old, [*telling.gradients, *(self._arriving(region) if behind else ())]
            )
            wide_operands = [_widened(t) for t in operands]
            with Wide():
                wide, *near = (
                    evaluate(
                        part.function(), [_nudged(t, way) for t in wide_operands], None, wanted
                    )
                    for way in (0.0, NUDGE, -NUDGE)
                )
        except Exception:
            return None
        found = (_joined(each, operands) for each in (new, old, wide, *near))
        rows = zip(*found, strict=True)
        changes = [_change(n, o, w, beside) for n, o, w, *beside in rows]
        return max((c for c in changes if c is not None), default=None)

    def _arriving(self, region: Region) -> Sequence[Tensor | None]:
        """The gradients of the losses by what a line gives: not finite at elements that something
        behind it fails at; none where they cannot be computed."""
        at, (index, out) = region.segment, region.outer
        own, views = self.where.segments[at].calls[index], {ref.view for ref in refs_in(out)}
        found: list[Tensor | None] = []
        for run in (run for segment, run in self._runs() if segment == at and run.first > index):
            with suppress(Exception):
                part = cut(self.values, run.roots, (at, run.first), lambda call: call is own)
                wanted = [ref.view in views for ref in part.operands]
                operands = list(part.operands.values())
                if any(wanted):
                    found += evaluate(part.function(), operands, None, wanted).gradients
        return found

    def _line(self, region: Region, stop: SumsBefore | None = None) -> Slice:
        """The line as a function of the last sums that went into it."""
        stop = stop or SumsBefore()
        key = region.segment, region.outer[0], stop
        if key not in self._parts:
            part = self._line_of(region, stop)
            if part.size > LOCAL:
                part = narrowed(part, LOCAL // 4) or part
            self._parts[key] = part
        return self._parts[key]

    def _line_of(self, region: Region, stop: SumsBefore) -> Slice:
        index, out = region.outer
        return self._cut(tuple(refs_in(out)), (region.segment, index + 1), stop, LARGE)

    # -- what fails

    def _what_fails(self, replay: Replay, graph: Any, edited: Edited) -> str:
        """Where the step is still not finite."""
        first = min((p.segment, min(p.skipped, default=p.at)) for p in edited.patches)
        for (at, index), call in (
            ((at, index), call)
            for at, segment in enumerate(self.where.segments)
            for index, call in enumerate(segment.calls)
        ):
            op = self.recording.op(call.position)
            if op is None or not op.line or op.backward or op.status in (CARRIED, INTENDED):
                continue
            if op.status == OK and (at, index) < first:  # what was finite, and is as it was
                continue
            slot = graph.live.get(call.out.view) if hasattr(call.out, "view") else None
            result = next((t for t in slot if t is not None), None) if slot else None
            if result is None or not (result.is_floating_point() or result.is_complex()):
                continue
            if not bool(torch.isfinite(result.detach()).all()):
                kind = "NaN" if bool(torch.isnan(result.detach()).any()) else "infinite"
                return f"{op.name} at {location(op.file, op.line)} is {kind} too"
        if replay.loss is not None and not math.isfinite(replay.loss):
            return f"the loss is {replay.loss}"
        for name, gradient in replay.gradients.items():
            if not bool(torch.isfinite(gradient).all()):
                kind = "NaN" if bool(torch.isnan(gradient).any()) else "infinite"
                return f"the gradient of {name} is {kind}"
        bad = next(n for n, p in replay.parameters.items() if not bool(torch.isfinite(p).all()))
        return f"the update makes {bad} non-finite"


def _frontier(segment: Segment, index: int, out: Any, whole: bool) -> tuple[tuple[Ref, ...], int]:
    """What a result goes into before a sum or the engine; the last call. whole: sums too."""
    stop = min((r.first for r in segment.engine if r.first > index), default=len(segment.calls))
    ends, last = {ref.storage: ref for ref in refs_in(out)}, index
    reached = set(ends)
    for at in range(index + 1, stop):
        call = segment.calls[at]
        read = {r.storage for r in call.read} & reached
        made = [r for r in refs_in(call.out) if r.dtype.is_floating_point]
        shape_alone = getattr(call.func, "_opname", "").endswith("_like")
        if not read or not made or shape_alone or is_sum(call):
            continue
        if not whole and all(_numel(r) == 1 for r in made):
            continue
        for storage in read:
            ends.pop(storage, None)
        reached |= {r.storage for r in made}
        ends |= {r.storage: r for r in made}
        last = at
    return tuple(ends.values()), last


def _truth_of(part: Slice) -> Truth | None:
    """What its results and gradients are; None where it cannot be computed in float64."""
    operands = list(part.operands.values())
    wide = [t.double() if t.is_floating_point() else t for t in operands]
    try:
        with Wide():
            evaluate(part.function(), wide, None, part.differentiated)
    except Exception:
        return None
    return truth(part.function(), operands, None, part.differentiated)


def _off(got: Tensor, limit: Tensor, largest: float = 0.0) -> tuple[float, float] | None:
    """The element that is farthest from a limit that exists; None where all are near.

    largest: of all gradients.
    """
    limit = limit.double().cpu()
    known = limit.isfinite()
    if got.shape != limit.shape or not bool(known.any()):
        return None
    near = tolerance(got, limit, largest)
    got = got.double().cpu()
    gap = torch.where(known, (got - limit).abs() - near, 0.0)
    if not bool((gap > 0).any()):
        return None
    at = int(gap.flatten().argmax())
    return float(got.flatten()[at]), float(limit.flatten()[at])


def _off_in_range(
    old: Callable[..., Any],
    new: Callable[..., Any],
    operands: Sequence[Tensor],
    wanted: Sequence[bool],
) -> Agreement | None:
    """How the loss and its gradients differ from the program's at operands so small that these are
    finite; None where they are the same at some, as those of a bound are that is not reached."""
    first = None
    for factor in SMALLER:
        near = [x * factor if x.is_floating_point() else x for x in operands]
        try:
            now, before = (evaluate(fn, near, None, wanted) for fn in (new, old))
        except Exception:
            return None
        if not all(bool(t.isfinite().all()) for t in before.tensors):
            continue
        largest = _largest(t for t in before.gradients if t is not None) or 0.0
        found = _first_off(now.values, before.values, "where the loss is in range it")
        found = found or _first_off(
            [t for t in now.gradients if t is not None],
            [t for t in before.gradients if t is not None],
            "where the loss is in range its gradient",
            largest,
        )
        if found is None:
            return None
        first = first or found
    return first


def _first_off(
    got: Sequence[Tensor], right: Sequence[Tensor], what: str, largest: float = 0.0
) -> Agreement | None:
    """The first pair of tensors that differ."""
    for a, b in zip(got, right, strict=True):
        if (off := _off(a, b, largest)) is not None:
            kind: Literal["value", "gradient"] = "gradient" if largest else "value"
            return Agreement(kind, f"{what} is {off[0]:.4g} and not {off[1]:.4g}")
    return None


def _without_offending(found: Evaluation, gradients: Sequence[Tensor | None]) -> Evaluation:
    """The evaluation with NaN where a derivative is not finite: no element is healthy there."""
    values = []
    for value in found.values:
        for gradient in gradients:
            if gradient is not None and gradient.shape == value.shape:
                value = torch.where(gradient.isfinite(), value, torch.nan)
        values.append(value)
    return replace(found, values=tuple(values))


def _joined(found: Evaluation, operands: Sequence[Tensor]) -> list[Tensor]:
    """Values and gradients, those of equal operands summed: products may be joined."""
    first: dict[int, int] = {}
    for i, x in enumerate(operands):
        twins = (j for j in first.values() if same_bits(operands[j], x))
        first[i] = next(twins, i)
    sums: dict[int, Tensor] = {}
    for i, gradient in enumerate(found.gradients):
        if gradient is not None:
            have = sums.get(first[i])
            sums[first[i]] = gradient if have is None else have + gradient
    return [*found.values, *sums.values()]


def _nudged(t: Tensor, way: float) -> Tensor:
    computed = t.is_floating_point() or t.is_complex()
    return t + way * t.abs().clamp_min(1.0) if way and computed else t


def _widened(t: Tensor) -> Tensor:
    if t.is_complex():
        return t.to(torch.complex128)
    return t.double() if t.is_floating_point() else t


def _reals(t: Tensor) -> Tensor:
    """The numbers themselves in float64, of complex ones their real and imaginary parts."""
    return torch.view_as_real(_widened(t).resolve_conj()) if t.is_complex() else t.double()


def _change(new: Tensor, old: Tensor, wide: Tensor, near: Sequence[Tensor]) -> float | None:
    """The largest change of an element that is finite and does not jump, as 0**p does."""
    computed = wide.is_floating_point() or wide.is_complex()
    if not new.shape == old.shape == wide.shape or not computed:
        return None
    new, old, wide, *near = (_reals(t) for t in (new, old, wide, *near))
    healthy = new.isfinite() & old.isfinite() & wide.isfinite()
    apart = torch.stack([(n - wide).abs() > WITHIN * torch.maximum(n, wide).abs() for n in near])
    healthy &= ~apart.all(0)
    if not bool(healthy.any()):
        return None
    size = wide[healthy].abs()
    # an element far below the others is compared with them: of two numbers either may be the
    # rounding of the other
    if bool((size > 0).any()):
        middle = max(float(size[size > 0].median()), SMALL * float(size.max()))
    else:
        middle = 1.0
    # what the expression itself gets wrong by rounding is no change, nor what is of its size
    # elsewhere: all of a derivative may cancel out
    own = (old - wide).abs()[healthy]
    middle = max(middle, FEW_ERRORS / WITHIN * float(own.max()))
    gap = ((new - wide).abs()[healthy] - own).clamp_min(0.0)
    return float((gap / size.clamp_min(middle)).max())


def _largest(tensors: Any) -> float | None:
    found = [float(t.detach().abs().max()) for t in tensors if t.numel()]
    return max(found) if found else None


def _percent(x: float) -> str:
    return f"{100 * x:.3g} %" if x < 100 else f"a factor of {x:.3g}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:160]


__all__ = ["Slice", "cut", "narrowed"]
