"""The parts of a step against which fixes are judged, each with its values and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch

from nanlab.exact.limits import Evaluation, Limit, Truth, Wide, evaluate, truth
from nanlab.exact.numbers import ORDERING, Comparisons, unmoved
from nanlab.operators import CARDS, having
from nanlab.program.edit import Region, is_sum
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get
from nanlab.program.slices import (
    NUDGE,
    Slice,
    Stop,
    calls_of,
    cut,
    narrowed,
    nudged,
    numel,
    widened,
)
from nanlab.program.values import Results, Values
from nanlab.trace.mode import DispatchMode
from nanlab.trace.program import Call, EngineRun, Ref, Segment, refs_in

Tensor = torch.Tensor
WHOLE = 60_000  # elements of a step whose truth is sought in exact numbers, and as a whole
LOCAL = 400_000  # elements of the expression and what it is made of, where the step is larger
LARGE = 1 << 24  # of the same where some of its rows stand for all
FEW = 2_000  # elements of operands that need no narrowing
NARROW = 256  # of those that are narrowed, for their truth
MOST_TARGETS = 4  # results of a part that is held against its truth


@dataclass(frozen=True)
class SumsBefore:
    """Sums of calls before a row."""

    position: int = 1 << 62

    def __call__(self, call: Call) -> bool:
        """Whether a call is one."""
        return call.position < self.position and is_sum(call)


class Parts:
    """Slices of one step, each cut once, and their truths, each found out once."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._slices: dict[Any, Slice] = {}
        self._lines: dict[tuple[int, int, SumsBefore], Slice] = {}
        self._local: dict[tuple[int, int, SumsBefore], tuple[Slice, int, Truth | None]] = {}
        # by the identity of a slice, which is kept with it: another would get the same number
        self._truths: dict[int, tuple[Slice, Truth | None]] = {}
        self._edges: dict[int, tuple[Slice, Truth | None]] = {}
        self._wide: dict[int, tuple[Slice, list[Evaluation]]] = {}

    def _cut(
        self,
        targets: Sequence[Any],
        before: tuple[int, int],
        stop: Stop | None = None,
        most: int = 1 << 62,
    ) -> Slice:
        key = tuple(ref.view for ref in refs_in(tuple(targets))), before, stop, most
        if key not in self._slices:
            self._slices[key] = cut(self.values, targets, before, stop, most=most)
        return self._slices[key]

    def whole(self, at: int, run: EngineRun) -> Slice:
        """The slice of the roots of a run of the engine."""
        return self._cut(run.roots, (at, run.first))

    def truth(self, part: Slice) -> Truth | None:
        """What its results and gradients are; None if it is too large."""
        if id(part) not in self._truths:
            self._truths[id(part)] = part, _truth_of(part) if part.size <= WHOLE else None
        return self._truths[id(part)][1]

    def truth_at_the_edge(self, part: Slice) -> Truth | None:
        """What its results and gradients tend to at the edge of a domain that operands have left
        by a little; None where none has, and if it is too large."""
        if id(part) not in self._edges:
            inside = at_the_edge(part) if part.size <= WHOLE else []
            given = part.function(inside), [*part.operands.values()], part.differentiated
            self._edges[id(part)] = part, truth(*given) if inside else None
        return self._edges[id(part)][1]

    def in_float64(self, part: Slice) -> list[Evaluation]:
        """What the program gives in float64, at its operands and next to them on both sides."""
        if id(part) not in self._wide:
            operands, wanted = [widened(t) for t in part.operands.values()], part.differentiated
            here, near = Comparisons(), Comparisons()

            def at(ways: Sequence[float], comparisons: Comparisons) -> Evaluation:
                there = [nudged(t, way) for t, way in zip(operands, ways, strict=True)]
                with Wide(comparisons):
                    return evaluate(part.function(), there, wanted, summed=part.healthy)

            found = [at([0.0] * len(wanted), here)]
            if here.seen:  # what only constants decide stays: a label is what it is
                at([NUDGE * w for w in wanted], near)
            held = unmoved(here.seen, near.seen)
            found += [at([way] * len(wanted), Comparisons(held)) for way in (NUDGE, -NUDGE)]
            if part.extent > LOCAL:
                return found
            self._wide[id(part)] = part, found
        return self._wide[id(part)][1]

    def line(self, region: Region, stop: SumsBefore | None = None) -> Slice:
        """A line as a function of the last sums that it was computed from."""
        stop = stop or SumsBefore()
        key = region.segment, region.outer[0], stop
        if key not in self._lines:
            part = self.all_of_line(region, stop)
            if part.size > LOCAL:
                part = narrowed(part, LOCAL // 4) or part
            self._lines[key] = part
        return self._lines[key]

    def all_of_line(self, region: Region, stop: SumsBefore) -> Slice:
        """The whole slice of a line, however large."""
        index, out = region.outer
        return self._cut(tuple(refs_in(out)), (region.segment, index + 1), stop, LARGE)

    def after(self, region: Region, whole: bool, stop: SumsBefore) -> tuple[Slice, int]:
        """What a line flows into, and the last call among these. whole: single numbers too."""
        at = region.segment
        targets, last = _frontier(self.values.segments[at], *region.outer, whole)
        most = LOCAL if whole else LARGE
        return self._cut(targets, (at, last + 1), stop, most), last

    def around(self, region: Region, stop: SumsBefore) -> tuple[Slice, int, Truth | None]:
        """What a line flows into by element, or a large line's own results; last call; truth."""
        index = region.outer[0]
        key = region.segment, index, stop
        if key not in self._local:
            part, last = self.after(region, True, stop)
            if part.extent > FEW:
                fewer = self._on_few_rows(region, stop)
                if fewer is not None:
                    part, last = fewer
                elif part.extent >= LOCAL // 2 or len(part.targets) > MOST_TARGETS:
                    part, last = self.line(region, stop), index
            self._local[key] = part, last, _truth_of(part)
        return self._local[key]

    def _on_few_rows(self, region: Region, stop: SumsBefore) -> tuple[Slice, int] | None:
        """What a line flows into before it is one number, or the line itself, on a few rows."""
        part, last = self.after(region, False, stop)
        fewer = narrowed(part, NARROW) if len(part.targets) <= MOST_TARGETS else None
        if fewer is None:
            fewer, last = narrowed(self.line(region, stop), NARROW), region.outer[0]
        return (fewer, last) if fewer is not None else None


def _frontier(segment: Segment, index: int, out: Any, whole: bool) -> tuple[tuple[Ref, ...], int]:
    """What a result flows into before a sum or the engine; the last call. whole: numbers too."""
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
        if not whole and all(numel(r) == 1 for r in made):
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
    function = part.function(taken_out(part))
    try:
        with Wide():
            evaluate(function, wide, part.differentiated)
    except Exception:
        return None
    return truth(function, operands, part.differentiated)


_TESTS = having("compares") | {"nan_to_num"}


def taken_out(part: Slice) -> list[Patch]:
    """Patches that keep out, next to the operands too, what the program takes out for not being
    finite: by ``nan_to_num`` or a test of the value. A NaN that is only compared is not kept
    out."""
    results = Results(part.values)
    asked = [(at, i, c) for at, i, c in part.items if isinstance(c, Call) and _name(c) in _TESTS]
    if not asked:
        return []
    for at, index, _ in asked:
        results.want(at, [index])
    results.run()
    found = []
    for at, index, call in asked:
        read = [results.value(at, index, ref) for ref in refs_in(call.args)]
        real = [v for v in read if isinstance(v, Tensor) and v.is_floating_point()]
        # every order of NaN fails: that takes nothing out on purpose
        hidden = [v.isinf() if _name(call) in ORDERING else ~v.isfinite() for v in real]
        if any(bool(mask.any()) for mask in hidden):
            where = reduce(torch.logical_or, hidden)
            run = partial(_kept_where, call, where, results.results[at, index])
            found.append(Patch(at, index, frozenset({index}), call.out, run))
    return found


def _kept_where(call: Call, hidden: Tensor, kept: Any, get: Get) -> Any:
    args = [get(each) if isinstance(each, Ref) else each for each in call.args]
    made = call.func(*args, **call.kwargs)
    if not isinstance(kept, Tensor) or made.shape != kept.shape or hidden.shape != kept.shape:
        return made  # of a few rows
    return torch.where(hidden, kept if made.dtype == torch.bool else kept.double(), made)


DRIFT = 1e-3  # how far beyond the edge of a domain a value may be that belongs to the edge


def at_the_edge(part: Slice) -> list[Patch]:
    """Patches that move operands back to the edge of a function's domain that they have left by a
    little, through rounding or a step; what is farther out stays there."""
    asked = [
        (at, index, item, CARDS[_name(item)].domain)
        for at, index, item in part.items
        if isinstance(item, Call) and _name(item) in _WITH_EDGES and isinstance(item.args[0], Ref)
    ]
    results = Results(part.values)
    for at, index, _, _ in asked:
        results.want(at, [index])
    if asked:
        results.run()
    found = []
    for at, index, call, (low, high) in asked:
        x, made = results.value(at, index, call.args[0]), results.results[at, index]
        if not (isinstance(x, Tensor) and isinstance(made, Tensor)):
            continue
        by = x.double().clamp(low, high) - x.double()
        small = by.abs() <= DRIFT * (x.double() + by).abs().clamp_min(1.0)
        by = torch.where(small & ~made.isfinite(), by, 0.0)
        if bool(by.any()):
            run = partial(_moved_by, call, by)
            found.append(Patch(at, index, frozenset({index}), call.out, run))
    return found


_WITH_EDGES = having("singular") & {
    name for name, one in CARDS.items() if one.domain != (-math.inf, math.inf)
}


def _moved_by(call: Call, distance: Tensor, get: Get) -> Any:
    x, *others = (get(each) if isinstance(each, Ref) else each for each in call.args)
    return call.func(x + distance, *others, **call.kwargs)


def _name(call: Call) -> str:
    return str(getattr(call.func, "_opname", ""))


# A Python number that is 0, and that the program divides or multiplies by: what loss and gradients
# tend to where it moves.

MOVED = 1e-4  # how far, off its singular point
TOGETHER = 1e-2  # relative, what tends to one limit from both sides


def by_zero(part: Slice) -> Iterator[tuple[int, int, Call]]:
    """The divisions by a Python number that is 0, and the products with one."""
    for segment, index, item in part.items:
        if isinstance(item, Call) and len(item.args) > 1:
            factor, multiplies = item.args[1], _name(item).rstrip("_") == "mul"
            if isinstance(factor, int | float) and factor == 0 and (multiplies or divides(item)):
                yield segment, index, item


def divides(call: Call) -> bool:
    """Whether a call is a division."""
    return _name(call).rstrip("_") == "div"


def counts_nothing(part: Slice) -> bool:
    """Whether a slice may count an empty selection: a result has no elements, or an untracked one
    is a mask of zeros."""
    results = Results(part.values)
    for segment, index in calls_of(part):
        results.want(segment, [index])
    results.run()
    refs = [ref for _, _, call in part.items if isinstance(call, Call) for ref in refs_in(call.out)]
    if not all(map(numel, refs)):
        return True
    made = (
        results.values[s].get(ref.view) for s in results.values for ref in refs if not ref.tracked
    )
    read = (t for t, w in zip(part.operands.values(), part.differentiated, strict=True) if not w)
    return any(t is not None and t.dim() and not bool(t.count_nonzero()) for t in (*made, *read))


def counted(part: Slice) -> Iterator[tuple[int, int, Call]]:
    """The divisions by a whole number, Python's or a tensor."""
    for segment, index, item in part.items:
        if isinstance(item, Call) and len(item.args) > 1 and divides(item):
            by = item.args[1]
            whole = not by.dtype.is_floating_point if isinstance(by, Ref) else type(by) is int
            if whole and not (isinstance(by, Ref) and by.dtype.is_complex):
                yield segment, index, item


_SUMMING = having("sums") - having("log_sum")


class _SaturatedSums(DispatchMode):
    """Notices sums of numbers where two overflow."""

    noticed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _SUMMING and isinstance(made, Tensor):
            several = args and isinstance(args[0], Tensor) and args[0].numel() > made.numel()
            if several and args[0].is_floating_point():
                x = args[0].detach()  # the lowest number is what a mask writes
                large = x.isfinite() & (x > torch.finfo(x.dtype).max / 2)
                self.noticed |= bool(large.any())
        return made


def saturates(part: Slice, patches: Sequence[Patch]) -> bool:
    """Whether a sum reads a number that patches put in the place of an infinity, at the end of its
    dtype's range: two of them sum to an infinity again."""
    mode = _SaturatedSums()
    with mode:
        evaluate(part.function(patches), [*part.operands.values()], [False] * len(part.operands))
    return mode.noticed


def divided_by(segment: int, index: int, call: Call, distance: float) -> list[Patch]:
    """A patch that divides by another number in the place of 0."""

    def run(get: Get) -> Any:
        by = get(call.args[1]) if isinstance(call.args[1], Ref) else 0
        by = torch.where(by == 0, distance, by) if isinstance(by, Tensor) else distance
        return call.func(get(call.args[0]), by, *call.args[2:], **call.kwargs)

    return [Patch(segment, index, frozenset({index}), call.out, run)]


def moved(part: Slice, patches: Sequence[Patch]) -> Evaluation:
    """The evaluation of a slice in float64 with some calls changed."""
    with Wide():
        operands = [widened(t) for t in part.operands.values()]
        return evaluate(part.function(patches), operands, part.differentiated)


def tends(at: Callable[[float], Evaluation]) -> Truth | None:
    """The limit of an evaluation at 0, from both sides; None where its values have none."""
    near, far = ([at(way * d) for way in (1, -1)] for d in (MOVED, 2 * MOVED))

    def limit(*there: Tensor) -> Limit:
        after, before, *further = (t.double() for t in there)
        inner, outer = (after + before) / 2, (further[0] + further[1]) / 2
        value = (4 * inner - outer) / 3  # without the term in the square of the distance
        scale = TOGETHER * value.abs().max() if value.numel() else 0.0
        same = (after - before).abs() <= TOGETHER * (value.abs() + scale)
        known = same & value.isfinite()
        return Limit(
            torch.where(known, value, math.nan), ~known, value.abs(), torch.zeros_like(known)
        )

    pairs = [*near, *far]
    values = tuple(limit(*each) for each in zip(*(e.values for e in pairs), strict=True))
    if not all(bool(v.exists.all()) for v in values):
        return None
    gradients = (
        None if each[0] is None else limit(*each)
        for each in zip(*(e.gradients for e in pairs), strict=True)
    )
    return Truth(values, tuple(gradients))
