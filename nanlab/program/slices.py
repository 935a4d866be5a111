"""A part of the step as a function: from what it depends on to a value, in any arithmetic that
answers torch's operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.exact.limits import Evaluation, evaluate
from nanlab.operators import having
from nanlab.program.rebuild import (
    Functions,
    Graph,
    Patch,
    backward_of,
    differentiate,
    is_skipped,
    run_patches,
)
from nanlab.program.rerun import grouped, make
from nanlab.program.values import Results, Values
from nanlab.trace.program import (
    Call,
    EngineRun,
    FunctionRun,
    FunctionUse,
    Ref,
    Segment,
    refs_in,
)

Tensor = torch.Tensor
NUDGE = 1e-7  # relative, of operands in float64: a value that it moves by more than WITHIN jumps
_UNINITIALISED = having("uninitialised")
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
        """The tensors that the slice reads and does not make, with their recorded values."""
        return _operands(self) if self.given is None else self.given

    @property
    def extent(self) -> int:
        """The number of elements of all results, or of the largest tensor read if that is more."""
        read = (numel(ref) for each in self.reads.values() for ref in each)
        return max(self.size, max(read, default=0))

    @property
    def differentiates(self) -> bool:
        """Whether derivatives are computed in it."""
        segments = self.values.segments
        windows = [
            {(at, i) for i in range(run.first, run.last)}
            for at, segment in enumerate(segments)
            for run in segment.engine
            if run.unrolled
        ]
        return any(
            isinstance(item, EngineRun) or any((at, index) in own for own in windows)
            for at, index, item in self.items
        )

    @cached_property
    def evaluated(self) -> Evaluation:
        """What the program itself has there."""
        return evaluate(self.function(), list(self.operands.values()), self.differentiated)

    @cached_property
    def healthy(self) -> list[Tensor] | None:
        """Masks of the finite elements of each result, of all elements where none is finite; None
        if all results are finite."""
        finite = [value.isfinite() for value in self.evaluated.values]
        if all(bool(each.all()) for each in finite):
            return None
        return [each if bool(each.any()) else ~each for each in finite]

    @property
    def differentiated(self) -> list[bool]:
        """Which operands the program has gradients of."""
        return [bool(ref.tracked) for ref in self.operands]

    def function(self, patches: Sequence[Patch] = ()) -> Callable[..., Any]:
        """The targets as a function of the operands; with patches in the places of some calls."""
        by_call: dict[tuple[int, int], list[Patch]] = {}
        made = {(segment, index) for segment, index, _ in self.items}
        calls = sorted((s, i) for s, i, item in self.items if isinstance(item, Call))
        given = {ref.storage for ref in self.operands}
        lent = [patch.out for patch in patches if patch.ahead]  # for some calls, and then put back
        here = {r.storage for _, _, c in self.items if isinstance(c, Call) for r in refs_in(c.out)}
        for patch in patches:
            place = patch.segment, patch.at
            # of what is given: when what it follows is
            if place not in made and (patch.follows or patch.out in lent):
                later = next((each for each in calls if each > place), None)
                known = given if patch.follows else given | here
                if later is not None and {r.storage for r in refs_in(patch.out)} & known:
                    by_call.setdefault(later, []).append(replace(patch, ahead=True))
                continue
            # of several calls that it stands for, the last may be one that nothing here needs
            own = [i for i in {*patch.skipped, patch.at} if (patch.segment, i) in made]
            at = patch.at if patch.at in own else max(own, default=patch.at)
            by_call.setdefault((patch.segment, at), []).append(patch)
        skipped = {(p.segment, i) for p in patches for i in p.skipped}
        not_run = {(p.segment, first) for p in patches for first in p.runs}
        last = max((segment for segment, _, _ in self.items), default=0)
        whole, changed = _with_parameters(self.values.segments[last])

        def run(*values: Any) -> Any:
            graph = Graph()
            for ref, value in zip(self.operands, values, strict=True):
                graph.bind(ref, value)

            def patch(at: tuple[int, int], ahead: bool, grad: bool) -> None:
                run_patches(graph, [p for p in by_call.get(at, ()) if p.ahead is ahead], grad)

            def run_call(segment: int, index: int) -> None:
                grad = self.values.segments[segment].calls[index].grad
                patch((segment, index), True, grad)
                if (segment, index) not in skipped:
                    make(self.values.segments[segment], index, graph.get, graph.bind)
                patch((segment, index), False, grad)

            def go_back(first: int, end: int, engine: Sequence[EngineRun]) -> None:
                passes, index = {each.first: each for each in engine}, first
                while index < end:
                    if (run := passes.get(index)) is not None:
                        _go_back_within(run, graph)
                        index = run.last
                    else:
                        run_call(last, index)
                        index += 1

            # of what the program makes of numbers alone another may be made
            for p in patches:
                outside = (p.segment, p.at) not in made and not (p.follows or p.out in lent)
                if outside and {r.storage for r in refs_in(p.out)} & given:
                    run_patches(graph, [p], False)
            functions = Functions(graph, go_back)
            functions.enter(whole)
            for at, index, item in self.items:
                if isinstance(item, EngineRun):
                    if (at, index) in not_run:
                        continue
                    functions.running.append(item)
                    differentiate(item, graph)
                    functions.running.pop()
                elif isinstance(item, FunctionUse):
                    own = ({i for n, i in each if n == last} for each in (skipped, by_call))
                    if not is_skipped(item, *own):
                        functions.apply(changed.get(id(item), item))
                else:
                    run_call(at, index)
            return [graph.get(target) for target in self.targets]

        return run


def nudged(t: Tensor, way: float) -> Tensor:
    """Beside where it is."""
    computed = t.is_floating_point() or t.is_complex()
    return t + way * t.abs().clamp_min(1.0) if way and computed else t


def widened(t: Tensor) -> Tensor:
    """In float64, or complex128."""
    if t.is_complex():
        return t.to(torch.complex128)
    return t.double() if t.is_floating_point() else t


def _go_back_within(run: EngineRun, graph: Graph) -> None:
    """Make a run of the engine within a Function's backward again; its gradients go where it had
    added them up."""
    if not run.accumulates:
        differentiate(run, graph)
        return
    added = {leaf: g for leaf, g in run.after.items() if {leaf.__class__, g.__class__} == {Ref}}
    roots, given, leaves = ([*map(graph.get, r)] for r in (run.roots, run.gradients, added))
    made = torch.autograd.grad(
        roots,
        leaves,
        given,
        retain_graph=True,
        create_graph=run.create_graph,
        allow_unused=True,
    )
    for ref, gradient in zip(added.values(), made, strict=True):
        if gradient is not None:
            graph.bind(ref, gradient)


def _with_parameters(segment: Segment) -> tuple[Segment, dict[int, FunctionUse]]:
    """A segment in which reentrant checkpoints take parameters as inputs and return their
    gradients, which their own engine runs had added up; the changed Functions, by identity of the
    old ones."""
    changed: dict[int, FunctionUse] = {}
    ran: dict[int, FunctionRun] = {}
    for use in segment.functions:
        inputs = {ref.storage for ref in use.inputs if ref is not None}
        own = [run for run in segment.function_runs if run.number == use.number]
        added = [
            {r: g for r, g in _added_in(segment, run) if r.storage not in inputs} for run in own
        ]
        leaves = list(dict.fromkeys(leaf for each in added for leaf in each))
        if leaves:
            changed[id(use)] = replace(use, inputs=(*use.inputs, *leaves))
            for run, each in zip(own, added, strict=True):
                ran[id(run)] = replace(run, left=(*run.left, *map(each.get, leaves)))
    if not changed:
        return segment, changed
    functions = [changed.get(id(use), use) for use in segment.functions]
    runs = [ran.get(id(run), run) for run in segment.function_runs]
    return replace(segment, functions=functions, function_runs=runs), changed


def _added_in(segment: Segment, run: FunctionRun) -> Iterator[tuple[Ref, Any]]:
    """(leaf, gradient) of what the engine adds up within a Function's backward."""
    for each in segment.engine:
        if run.first <= each.first and each.last <= run.last:
            yield from ((leaf, g) for leaf, g in each.after.items() if leaf.__class__ is Ref)


def cut(
    values: Values,
    targets: Sequence[Any],
    before: tuple[int, int],
    stop: Stop | None = None,
    most: int = 1 << 62,
    enter: Callable[[EngineRun], bool] | None = None,
) -> Slice:
    """The slice that makes these tensors, from the calls before (segment, index).

    stop: calls that are not followed further; their results become operands, as constants that the
    program makes do. most: elements of its results, at most. enter: the runs of the engine that are
    followed; None: all.
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
        loaded = {storage for storage, _ in segment.loads.values()}
        applied = grouped(segment.functions, lambda use: use.last)
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
                    entered = run.last <= last and (enter is None or enter(run))
                    if given & needed and not run.accumulates and entered:
                        items.append((at, run.first, run))
                        needed |= {
                            r.storage for r in refs_in((*run.roots, *run.inputs, *run.gradients))
                        }
                continue
            call = segment.calls[index]
            made = list(refs_in(call.out))
            if not any(ref.storage in needed and ref.storage not in ended for ref in made):
                continue
            count = sum(numel(ref) for ref in made)
            followed = call.grad and any(ref.tracked for ref in made)
            # numbers drawn in another dtype would be others
            drawn = index in segment.states and not followed
            constant = (not call.read or drawn) and made[0].dtype.is_floating_point
            # memory that torch writes unseen, as the lengths of padded sequences
            filled = any(ref.storage in loaded for ref in made) and _allocates(call)
            stops = stop is not None and stop(call) and items
            if call.given or constant or filled or stops or size + count > most:
                ended |= {ref.storage for ref in made}
                continue
            size += count
            items.append((at, index, call))
            reads[at, index] = call.read
            needed |= {ref.storage for ref in reads[at, index]}
    items.reverse()
    return Slice(values, tuple(targets), items, before[0], reads, size)


def _allocates(call: Call) -> bool:
    """Whether a call only allocates memory, and leaves it unwritten."""
    return getattr(call.func, "_opname", "") in _UNINITIALISED


def numel(ref: Ref) -> int:
    """The number of elements of a reference."""
    return math.prod(ref.size)


def _read_by(segment: Segment, use: FunctionUse) -> Iterator[Ref]:
    """The inputs of a Function, and all else that its backward reads from outside."""
    yield from refs_in(use.inputs)
    run = backward_of(segment, use, None)
    if run is None:
        return
    own = {ref.view for ref in refs_in(run.arrived)}
    for call in segment.calls[run.first : run.last]:
        yield from (ref for ref in call.read if ref.view not in own)
        own |= {ref.view for ref in refs_in(call.out)}


def calls_of(found: Slice) -> Iterator[tuple[int, int]]:
    """(segment, index) of each call whose operands the slice may read."""
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
    for at, index in calls_of(found):
        results.want(at, [index])
    with _disable_current_modes():
        results.run()
    made: set[Any] = set()
    for at, index, item in found.items:
        if isinstance(item, EngineRun):
            made |= {ref.view for ref in refs_in(item.results)}
            continue
        number = [item.number] if isinstance(item, FunctionUse) else []
        for ref in found.reads[(at, index, *number)]:
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
_SIZED = having("sized")
ALIKE = 1e-3  # relative: by how much the order of a sum may change it


def narrowed(part: Slice, elements: int) -> Slice | None:
    """The slice on fewer rows, bad ones first; None where their values would change."""
    found: Slice | None = None
    try:
        part = _shaped(part)
        old = part.evaluated
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
            new = fewer.evaluated
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
    """The slice with operands already in the shapes that the program gives them by plain
    numbers."""
    results = Results(part.values)
    reads = Counter(ref.view for each in part.reads.values() for ref in each)
    at = {
        item.args[0].view: (segment, index, item)
        for segment, index, item in part.items
        if isinstance(item, Call) and _is_sized(item) and item.args[0] in part.operands
        if reads[item.args[0].view] == 1
    }
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


def _rows(t: Tensor, dim: int, count: int, rows: Tensor) -> Tensor:
    fits = t.dim() > dim and t.shape[dim] == count
    return t.index_select(dim, rows.to(t.device)) if fits else t


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not a.dtype.is_floating_point:
        return a.shape == b.shape and bool((a == b).all())
    return torch.allclose(a.double(), b.double(), rtol=ALIKE, atol=1e-30, equal_nan=True)


def _telling(part: Slice, found: Evaluation, dim: int, keep: int, few: bool) -> Tensor:
    """Rows to keep: for each kind of failure the smallest, the largest and some between; a quarter
    of them healthy.

    few: one row of each kind alone.
    """
    count = found.values[0].shape[dim]

    def by_row(t: Tensor) -> Tensor:
        return t.detach().cpu().movedim(dim, 0).reshape(count, -1)

    def fitting(tensors: Iterable[Tensor]) -> list[Tensor]:
        return [t for t in tensors if t.dim() > dim and t.shape[dim] == count]

    kinds_of = [
        2 * by_row(t.isnan()).byte() + 3 * by_row(t.isposinf()) + 4 * by_row(t.isneginf())
        for t in fitting(found.tensors)
    ]
    codes = torch.cat(kinds_of, 1)
    read = [t for t in fitting(part.operands.values()) if t.is_floating_point()]
    codes = codes[:, codes.any(0)] if bool(codes.any()) else codes[:, :1]
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
    """A number of items, evenly spaced, the first and the last among them."""
    at = torch.linspace(0, len(rows) - 1, min(count, len(rows))).round().long()
    return rows[at]
