"""The limit of an expression, and of its derivatives, where the expression itself is singular.

The true value is the expression in exact arithmetic (:mod:`nanlab.exact.numbers`); where that is
singular too, the limit along healthy neighbours. Every question takes the expression as a function
of *all* that it depends on, as far up as it can be followed: of ``sin(x / 2)`` and ``x`` as two
independent operands the quotient has no limit; of ``x`` alone it has.
"""

from __future__ import annotations

import contextlib
import gc
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal

import mpmath
import numpy as np
import torch
from mpmath import mpf
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.exact.numbers import (
    MOST_DIGITS,
    ORDERING,
    AllExact,
    Comparisons,
    Exact,
    Moved,
    NotExact,
    Tape,
    Undecided,
    WrittenPart,
    count_work,
    digits,
    lift,
    plain,
    rounded,
    unmoved,
    work,
)
from nanlab.trace.mode import DispatchMode

Function = Callable[..., Any]  # of tensors, to a tensor or a sequence of them
ROUNDING = 100  # units of the dtype's eps: of a sum that cancels out
FEW = 10  # of one where some of the largest terms are known
WITHIN = 0.01  # a fix may differ by that much from the limit
BEYOND = 2.0  # of the largest along a few directions what may be there where there is no limit
SAME = 1e-3  # limits along different directions that differ by no more are one
# digits, and distances from the singular point, evenly spaced in their logarithm
EXACT = ((80, (1e-4, 1e-8, 1e-12, 1e-16)), (MOST_DIGITS, (1e-12, 1e-20, 1e-28, 1e-36)))
DISTANCES = tuple(4.0**-k for k in range(1, 14))  # in float64, which cancels nearer by
MOST_DIFFERENCES = 24  # elements
MOST_RESULTS = 60  # of operators inside of an expression that are moved, one after the other
WORK = 1_500_000  # for one question in exact arithmetic: 1 to 2 s; as much in float64


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of each element of a tensor."""

    # float64: ±inf where it diverges with one sign, NaN where there is none, or unknown
    value: Tensor
    unknown: Tensor  # bool: nothing could be found out
    bound: Tensor  # float64: largest magnitude along any direction; inf where it diverges
    # bool: no neighbour by what is differentiated has a value, so that there is none
    nowhere: Tensor
    along: Tensor | None = None  # float64: limits of all elements, direction by direction

    @property
    def open(self) -> Tensor:
        """Where there may be a limit, and it is not known."""
        return self.unknown & ~self.nowhere

    @property
    def exists(self) -> Tensor:
        """Where the limit is a finite number."""
        return self.value.isfinite()

    @property
    def spread(self) -> Tensor:
        """Distance between the largest and the smallest limit found along several directions. So
        few directions seldom meet the extremes: another limit may lie as far beyond them."""
        if self.along is None:
            return torch.zeros_like(self.value)
        known = self.along.isfinite()
        high, low = (torch.where(known, self.along, end) for end in (-math.inf, math.inf))
        return (high.amax(0) - low.amin(0)).clamp_min(0.0)


@dataclass(frozen=True, slots=True)
class Truth:
    """What an expression and its vector-Jacobian product are at the operands, or tend to."""

    values: tuple[Limit, ...]  # one for each result
    gradients: tuple[Limit | None, ...]  # one for each operand; None: not differentiated

    @property
    def is_known(self) -> bool:
        """Whether every element has a finite limit."""
        limits = [*self.values, *(t for t in self.gradients if t is not None)]
        return all(bool(limit.exists.all()) for limit in limits)

    def largest(self, found: Evaluation) -> float:
        """Largest magnitude of the gradients' limits; without a limit, of the gradient found."""
        sizes = [
            torch.where(limit.exists, limit.value, got.detach().cpu()).abs()
            for limit, got in zip(self.gradients, found.gradients, strict=True)
            if limit is not None and got is not None and got.numel()
        ]
        return max((float(t.max()) for t in sizes), default=0.0)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results and gradients, in one evaluation."""

    values: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The values, and the gradients that were computed."""
        return self.values + tuple(g for g in self.gradients if g is not None)


SIGNS = (torch.ops.aten.sgn.default, torch.ops.aten.sign.default)


class Wide(DispatchMode):
    """Casts to narrower dtypes, and tensors made in them, stay float64 or complex128.

    Each operator is counted as work. The sign of NaN is NaN. In the backward part what depends on a
    NaN is NaN too: torch would pass no gradient to a clamp's NaN, as NaN fails every comparison.
    comparisons: those of the forward part.
    """

    def __init__(self, comparisons: Comparisons | None = None) -> None:
        super().__init__()
        self.node = torch._C._current_autograd_node()  # of a backward pass that asks for it
        self.comparisons = comparisons or Comparisons()
        self.undecided: Undecided | None = None  # as of AllExact
        self._backward = Undecided()  # of the backward part always

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        if kwargs:
            dtype = kwargs.get("dtype")
            if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
                kwargs = {**kwargs, "dtype": torch.float64}
            elif isinstance(dtype, torch.dtype) and dtype.is_complex:
                kwargs = {**kwargs, "dtype": torch.complex128}
        count_work(1, sum([x.numel() for x in args if isinstance(x, Tensor)]))
        made: Any = func(*args, **(kwargs or {}))
        if func in SIGNS:  # torch has 0 for that of NaN: a derivative of |x| that nobody knows
            return torch.where(args[0].isnan(), args[0], made)
        if not isinstance(made, Tensor):
            return made
        backward = torch._C._current_autograd_node() is not self.node
        if not backward and made.dtype == torch.bool and any(map(_is_real, args)):
            result = self.comparisons.result(made)
            if result is not made:
                return result
        undecided = self.undecided or (self._backward if backward else None)
        if undecided is None:
            return made
        return _with_undecided(undecided, func, made, args, backward)


def _with_undecided(
    undecided: Undecided, func: Any, made: Tensor, args: Sequence[Any], backward: bool
) -> Tensor:
    """The result, with NaN where an undecided mask chose an element. In the backward part, where
    all operands have the result's shape, also where one after the first is NaN."""
    nowhere = undecided.chosen(made, args)
    if made.dtype == torch.bool:
        read = [x for x in args if _is_real(x)]
        if read and func.overloadpacket.__name__ in ORDERING:
            nowhere = Undecided.compared(made, read)
        undecided.note(made, nowhere)
        return made
    if not _is_real(made):
        return made
    if backward:
        every = [x for x in args if isinstance(x, Tensor)]
        if all(_is_real(x) and x.shape == made.shape for x in every):
            bad = [each for x in every[1:] if bool((each := x.isnan()).any())]
            nowhere = torch.stack(bad).any(0) if bad else nowhere
    if nowhere is None:
        return made
    fill = made.masked_fill_ if made is args[0] else made.masked_fill
    filled: Tensor = fill(nowhere, math.nan)
    return filled


def evaluate(
    fn: Function,
    operands: Sequence[Any],
    differentiated: Sequence[bool] | None = None,
    *,
    outside: bool = False,
    summed: Sequence[Tensor] | None = None,
) -> Evaluation:
    """Results of ``fn`` at the operands, and the gradients of their sum, as an ordinary program has
    them.

    differentiated: which operands get a gradient; None: see :func:`default_differentiated`.
    outside: gradients are NaN where the value is, as of ``log(x)`` at a negative x, where 1 / x is
    not. summed: which elements of each result are in the sum; None: all.
    """
    wanted = default_differentiated(operands) if differentiated is None else differentiated
    leaves = [
        # what the expression writes is its own
        x.detach().clone().requires_grad_(bool(w)) if isinstance(x, Tensor) else x
        for x, w in zip(operands, wanted, strict=True)
    ]
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        found = fn(*leaves)
        results = [found] if isinstance(found, Tensor) else [t for t in found if t is not None]
        tracked = [i for i, y in enumerate(results) if y.requires_grad and y.is_floating_point()]
        followed = [results[i] for i in tracked]
        sources = [x for x, w in zip(leaves, wanted, strict=True) if w]
        gradients: Sequence[Tensor | None] = [None] * len(sources)
        if followed and sources:
            ones = [torch.ones_like(y) for y in followed]
            if summed is not None:
                ones = [one * summed[i] for i, one in zip(tracked, ones, strict=True)]
            if outside:
                pairs = zip(followed, ones, strict=True)
                ones = [torch.where(y.isnan(), y.detach(), one) for y, one in pairs]
            end = _End.apply(ones, *followed)
            gradients = torch.autograd.grad(end, sources, allow_unused=True)
    have = iter(
        # that of ``nn.Embedding(sparse=True)`` has a few rows
        torch.zeros_like(x) if g is None else g if g.layout is torch.strided else g.to_dense()
        for x, g in zip(sources, gradients, strict=True)
    )
    return Evaluation(
        tuple(y.detach() for y in results),
        tuple(next(have).detach() if w else None for w in wanted),
    )


class _End(torch.autograd.Function):
    """One number, through which results are given their gradients: with those as an argument
    ``torch.autograd.grad`` imports sympy, which takes half a second."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *results: Tensor) -> Tensor:
        ctx.gradients = gradients
        with _disable_current_modes():
            return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *one: Any) -> Any:
        return None, *ctx.gradients


def default_differentiated(operands: Sequence[Any]) -> list[bool]:
    """The operands that require a gradient; if none does, all of floating point."""
    asked = [isinstance(x, Tensor) and x.requires_grad for x in operands]
    return asked if any(asked) else [_is_real(x) for x in operands]


def _is_real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def truth(
    fn: Function, operands: Sequence[Any], differentiated: Sequence[bool] | None = None
) -> Truth:
    """Results of ``fn`` at the operands, and the gradients of their sum, in exact arithmetic, or
    their limits.

    A limit is sought by moving operands along several directions, which must agree: first the
    differentiated operands with the others held, then the others, then all. The expression is
    evaluated in exact numbers where the operands' size and the operators allow it, else in float64.
    """
    wanted = default_differentiated(operands) if differentiated is None else list(differentiated)
    problem = _Problem(fn, operands, wanted)
    with _uncollected():
        return problem.truth(_solved(problem))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector. Exact numbers are very many objects, none of which it would find
    to free, and each collection would walk every object of the process."""
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            gc.enable()


def _solved(problem: _Problem) -> list[Limit] | None:
    """The limits of each result and gradient; None: nothing is known."""
    deadline = work() + WORK
    found: list[Limit] | None = None
    approached = False  # whether neighbours were looked at in any numbers
    for kind in (
        *(_Arithmetic(*exactly, deadline) for exactly in EXACT),
        _Arithmetic(0, DISTANCES),
    ):
        if kind.digits and problem.late:
            continue  # more digits take longer
        if not kind.digits:
            kind = replace(kind, deadline=work() + WORK)
        try:
            limits = problem.solve(kind)
        except Exception:  # an operator that these numbers do not know, or too much work
            continue
        now = problem.approached
        found = limits if found is None else _filled(found, limits, approached, now)
        approached |= now
        if kind.digits:
            with contextlib.suppress(Exception):
                found = problem.by_differences(kind, found)
                found = problem.from_within(kind, found)
                found = problem.with_constants_held(kind, found)
                found = problem.behind_masks(kind, found)
        if not any(bool(limit.open.any()) for limit in found):
            break
    return found


def _filled(found: list[Limit], more: list[Limit], before: bool, now: bool) -> list[Limit]:
    """The limits, with the unknown ones taken from a second list.

    before, now: whether the first list and the second one were sought next to the operands.
    """
    return [
        replace(
            _merged(a, b, a.unknown),
            nowhere=(a.nowhere | (not before)) & (b.nowhere | (not now)) & (before or now),
        )
        for a, b in zip(found, more, strict=True)
    ]


@dataclass(frozen=True)
class _Arithmetic:
    """Numbers to evaluate in, and the distances at which they still resolve differences."""

    digits: int  # 0: float64
    distances: tuple[float, ...]
    deadline: float = math.inf  # of :func:`work`

    @contextmanager
    def active(
        self,
        moved: Moved | None = None,
        masks: Sequence[Tensor | None] | None = None,
        counted: bool = False,
        choices: AbstractContextManager[Any] | None = None,
    ) -> Iterator[AllExact | Wide]:
        """Evaluate in these numbers; moved, masks, counted: as of AllExact. choices: None for
        those of :class:`_Choices`."""
        choices = choices or _Choices()
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
            torch.default_generator.manual_seed(0)  # no device is asked
            if self.digits:
                exact = AllExact(self.deadline, moved, masks, counted)
                with digits(self.digits), exact as mode, choices:
                    yield mode
            else:
                before = torch.get_default_dtype()
                torch.set_default_dtype(torch.float64)
                try:
                    with Wide(Comparisons(masks)) as mode, choices:
                        yield mode
                finally:
                    torch.set_default_dtype(before)


class _Choices(TorchFunctionMode):
    """``nan_to_num`` as the choices that it makes. They are masks like any others, and what they
    take out is a constant."""

    made = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one function."""
        if getattr(func, "__name__", "").split(".")[0] != "nan_to_num":
            return func(*args, **(kwargs or {}))
        self.made += 1
        return _chosen(*args, **(kwargs or {}))


def _chosen(input: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    large = torch.finfo(torch.float64).max
    high, low = (end if x is None else x for x, end in ((posinf, large), (neginf, -large)))
    ends = torch.where(input == math.inf, high, torch.where(input == -math.inf, low, input))
    return torch.where(input.isnan(), nan or 0.0, ends)


class _Problem:
    """An expression at its operands."""

    def __init__(self, fn: Function, operands: Sequence[Any], wanted: list[bool]) -> None:
        self.fn, self.operands, self.wanted = fn, operands, wanted
        real = [_is_real(x) for x in operands]
        held = [r and not w for r, w in zip(real, wanted, strict=True)]
        self.late = False  # whether exact numbers would not have ended in time
        self.approached = False  # whether neighbours were looked at in the numbers that were last
        # where no neighbour by what is differentiated has a value, and others agree on none
        self.doubted: list[Tensor] = []
        self.mode: AllExact | None = None  # of the evaluation that was last at the operands
        self.seen: list[Tensor] = []  # results of comparisons, in the evaluation that was last
        self.here: list[Tensor] = []  # the same at the operands
        # what comparisons give, wherever operands are moved; None: what they find there
        self.masks: list[Tensor | None] | None = None
        # what only constants decide: a label is what it is
        self.decided: list[Tensor | None] | None = None
        self.tape: Tape | None = None  # of the first evaluation next to the operands
        self.written: set[int] = set()  # operands that the last total overwrote: they tell nothing
        self.cost = 0.0  # of one evaluation in the numbers that were last
        # whether it calls what `_Choices` stands for: watching for that costs a fourth of the time
        self.chooses = True
        self.movable = [m for m in (wanted, held, real) if any(m)]
        self.still: list[Tensor | None] = [None] * len(operands)  # the operands as they are
        # whether NaN is among them, which the program may leave out by any comparison
        self.given = any(_is_real(x) and bool(x.isnan().any()) for x in operands)
        self.lifted: dict[int, tuple[Tensor, np.ndarray]] = {}  # by identity

    def truth(self, limits: list[Limit] | None) -> Truth:
        """The limits in their places; None: nothing is known."""
        if limits is None:
            now = evaluate(self.fn, self.operands, self.wanted)
            limits = [_unknown(t.double()) for t in now.tensors]
        count = len(limits) - sum(self.wanted)
        rest = iter(limits[count:])
        return Truth(tuple(limits[:count]), tuple(next(rest) if w else None for w in self.wanted))

    def moved(
        self, arithmetic: _Arithmetic, moving: list[Tensor | None], distance: float
    ) -> list[Any]:
        """The operands in these numbers, moved by a distance along the given directions."""
        found = []
        for x, direction in zip(self.operands, moving, strict=True):
            if not _is_real(x):
                found.append(x)
            elif arithmetic.digits:
                numbers = self._numbers(x)
                if direction is None or not distance:
                    found.append(Exact(numbers.copy()))
                    continue
                step = plain(direction) * mpf(distance)
                found.append(Exact(np.asarray(numbers + step, dtype=object)))
            else:
                here = x.detach().double()
                found.append(here if direction is None else here + distance * direction)
        return found

    def _numbers(self, x: Any) -> np.ndarray:
        """The elements as exact numbers, converted once."""
        if id(x) not in self.lifted:
            self.lifted[id(x)] = x, lift(x).numbers
        return self.lifted[id(x)][1]

    def at(
        self,
        arithmetic: _Arithmetic,
        moving: list[Tensor | None],
        distance: float,
        moved: Moved | None = None,
    ) -> Evaluation:
        """The expression with its operands moved by a distance along directions, or with one result
        moved."""
        outside = bool(distance) or moved is not None
        counted = moved is not None or not distance
        choices = _Choices() if self.chooses else nullcontext()
        with arithmetic.active(moved, self.masks, counted, choices) as mode:
            if not self.given:
                mode.undecided = Undecided()
            operands = self.moved(arithmetic, moving, distance)
            by_tape = outside and (self.tape is None or self.tape.fits)
            if isinstance(mode, Wide) or not by_tape:
                found = evaluate(self.fn, operands, self.wanted, outside=outside)
                self.chooses = isinstance(choices, _Choices) and choices.made > 0
            else:
                found = self._written_down(mode, operands)
            if moved is None and not distance:
                self.mode = None if isinstance(mode, Wide) else mode
            self.seen = mode.comparisons.seen
        return Evaluation(
            tuple(rounded(y).double() for y in found.values),
            tuple(None if g is None else rounded(g).double() for g in found.gradients),
        )

    def _written_down(self, mode: AllExact, operands: list[Any]) -> Evaluation:
        """The expression next to the operands, by what was run there for the first time."""
        if self.tape is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Evaluation(*self.tape.run(mode, operands))
        mode.tape = Tape(operands)
        found = evaluate(self.fn, operands, self.wanted, outside=True)
        mode.tape.end((found.values, found.gradients))
        self.tape, mode.tape = mode.tape, None
        return found

    def solve(self, arithmetic: _Arithmetic) -> list[Limit]:
        """The limit of each tensor of the evaluation."""
        self.approached = False
        outside: list[Tensor] = []
        self.decided = None
        began = work()
        limits = [_here(t) for t in self.at(arithmetic, self.still, 0.0).tensors]
        self.cost, self.here = work() - began, self.seen
        # what is finite exactly is true; in float64 it may have cancelled
        trusted = bool(arithmetic.digits)
        for movable in self._ways(arithmetic):
            if trusted and not any(bool(limit.unknown.any()) for limit in limits):
                break
            ways = len(list(_directions(self.operands, movable))) * len(arithmetic.distances)
            if work() + ways * self.cost > arithmetic.deadline:
                if not trusted:
                    raise NotExact("it takes too long")
                self.late = True
                break
            try:
                with self.holding(self.decided):
                    limits = self._approached(arithmetic, movable, limits, trusted)
            except NotExact:  # too much work: what is finite at the operands is known
                if not trusted:
                    raise
                break
            if movable is self.movable[0]:
                self.approached = True
                outside = [limit.unknown for limit in limits]
                self.decided = unmoved(self.here, self.seen)
            trusted = True
        pairs = [*zip(outside, limits, strict=False)]
        self.doubted = [o & ~limit.exists & ~limit.unknown for o, limit in pairs]
        if any(bool(d.any()) for d in self.doubted[: len(limits) - sum(self.wanted)]):
            # some of its gradients may yet agree along the few directions
            self.doubted = [o & ~limit.unknown for o, limit in pairs]
        return limits

    @contextmanager
    def holding(self, masks: list[Tensor | None] | None) -> Iterator[None]:
        """Let comparisons give these masks wherever something is moved."""
        self.masks = masks
        try:
            yield
        finally:
            self.masks = None

    def with_constants_held(self, arithmetic: _Arithmetic, limits: list[Limit]) -> list[Limit]:
        """The limits, with some more found by moving a result inside of the expression, where only
        constants stand in the way: a 0 of an adjacency matrix stays 0, whatever degree it makes."""
        doubted = self.doubted
        if not any(bool((d & ~t.exists).any()) for d, t in zip(doubted, limits, strict=False)):
            return limits
        asked = [replace(limit, unknown=d) for limit, d in zip(limits, doubted, strict=True)]
        found = self.from_within(arithmetic, asked, existing=True)
        better = [d & new.exists for d, new in zip(doubted, found, strict=True)]
        return _all_merged(limits, found, better)

    def _ways(self, arithmetic: _Arithmetic) -> list[list[bool]]:
        """Choices of operands to move; each once only in exact numbers, where repeats tell
        nothing."""
        unlike = [m for i, m in enumerate(self.movable) if m not in self.movable[:i]]
        return unlike if arithmetic.digits else self.movable

    def from_within(
        self, arithmetic: _Arithmetic, limits: list[Limit], existing: bool = False
    ) -> list[Limit]:
        """The limits, with unknown ones found by moving a result inside of the expression.

        Some expressions are singular at any operands: ``x - x.max()`` is 0 next to them too. There
        the earliest result that can be moved away from the singular point serves as the variable.
        existing: take the earliest result that gives a limit, and no operand.
        """
        steps = 1 + 4 * len(arithmetic.distances)
        if work() + steps * self.cost > arithmetic.deadline:
            self.late = True
            return limits
        mode = self.mode
        first = sum(map(_is_real, self.operands)) if existing else 0
        places = range(first, min(len(mode.inputs), MOST_RESULTS) if mode is not None else 0)
        for place in places:
            if not any(bool(limit.unknown.any()) for limit in limits):
                break
            beside = self._beside(place) if not existing else []
            if beside is None:
                continue
            try:
                with self.holding(self.decided):
                    alone = self._moved_alone(arithmetic, place, limits)
                    found = self._shared(arithmetic, alone, beside, limits)
                    if existing and found is not None and self._has_values(limits, found):
                        others = (each for each in places if each != place)
                        found = self._undisputed(arithmetic, found, others, limits)
            except NotExact:
                break
            if beside and alone is not None:  # there may be a limit, and this one need not be it
                limits = [
                    replace(now, nowhere=now.nowhere & ~one.exists)
                    for now, one in zip(limits, alone, strict=True)
                ]
            if found is None or not self._has_values(limits, found):
                continue
            pairs = zip(limits, found, strict=True)
            better = [now.unknown & (new.exists | (not existing)) for now, new in pairs]
            limits = _all_merged(limits, found, better)
        return limits

    def _shared(
        self,
        arithmetic: _Arithmetic,
        found: list[Limit] | None,
        beside: list[int],
        limits: list[Limit],
    ) -> list[Limit] | None:
        """The limits that moving each of the other results gives, too; None where one of the moves
        makes nothing finite."""
        for each in beside:
            if found is None or not any(bool(limit.exists.any()) for limit in found):
                break
            other = self._moved_alone(arithmetic, each, limits)
            found = other and [
                _merged(a, _unknown(a.value), ~(_same(a.value, b.value) & b.exists))
                for a, b in zip(found, other, strict=True)
            ]
        return found

    def _undisputed(
        self,
        arithmetic: _Arithmetic,
        found: list[Limit],
        places: Iterable[int],
        limits: list[Limit],
    ) -> list[Limit]:
        """The limits that no move of another result contradicts. In ``(x - low) / (high - low)``
        with x, low and high equal, moving low gives 1 and moving high gives 0."""
        for place in places:
            other = self._moved_alone(arithmetic, place, limits)
            if other is not None:
                found = [
                    _merged(a, _unknown(a.value), b.exists & ~_same(a.value, b.value))
                    for a, b in zip(found, other, strict=True)
                ]
        return found

    def _has_values(self, limits: list[Limit], found: list[Limit]) -> bool:
        """Whether a move gives a value to what lacks one, or no value is missing: limits of
        gradients do not count while values are missing."""
        count = len(limits) - sum(self.wanted)
        values = list(zip(limits[:count], found, strict=False))
        lacking = any(bool(old.unknown.any()) for old, _ in values)
        return not lacking or any(
            bool((old.unknown & ~new.value.isnan()).any()) for old, new in values
        )

    def _moved_alone(
        self, arithmetic: _Arithmetic, place: int, limits: list[Limit]
    ) -> list[Limit] | None:
        """The limits found by moving one result inside; None where that makes nothing finite."""
        began = work()
        move = _nudge(place, arithmetic.distances[0], 0)
        try:
            away = self.at(arithmetic, self.still, 0.0, move).tensors
        except WrittenPart:
            return None
        pairs = zip(limits, away, strict=True)
        if not any(bool((limit.unknown & t.isfinite()).any()) for limit, t in pairs):
            return None
        now = work()
        if now + 4 * len(arithmetic.distances) * (now - began) > arithmetic.deadline:
            self.late = True
            raise NotExact("it takes too long")
        paths = []
        for way in range(4):
            seen = [] if way else [away]
            seen += [
                self.at(arithmetic, self.still, 0.0, _nudge(place, h, way)).tensors
                for h in arithmetic.distances[len(seen) :]
            ]
            paths.append([_path_exact(torch.stack(list(a))) for a in zip(*seen, strict=True)])
        return [_agreed(list(along)) for along in zip(*paths, strict=True)]

    def _beside(self, place: int) -> list[int] | None:
        """Other results by which differentiated operands reach the same singular point: each, moved
        alone, must give the same limit. None where there are further ways to that point."""
        mode = self.mode
        assert mode is not None
        real = [i for i, x in enumerate(self.operands) if isinstance(x, Tensor) and _is_real(x)]
        leaves = {at for at, i in enumerate(real) if self.wanted[i]}
        own = mode.behind(place)
        shared = leaves & own
        bad = next((each for each in mode.bad if place in mode.behind(each)), -1)
        if bad < 0 or bad == place or not shared or not mode.reaches(bad, shared, {place}):
            return []
        behind = mode.behind(bad)
        near = [
            q
            for q in sorted(behind - own - {bad} - set(range(len(real))))
            if place not in mode.behind(q) and mode.behind(q) & shared
        ]
        first = [q for q in near if not any(p in mode.behind(q) for p in near if p != q)]
        return None if mode.reaches(bad, shared, {place, *first}) else first

    def behind_masks(self, arithmetic: _Arithmetic, limits: list[Limit]) -> list[Limit]:
        """The limits, with missing gradients found with the program's masks held as they are.

        What ``torch.where`` or a comparison takes out at the operands, though not next to them, is
        a constant there: its gradient is 0, while its neighbours' gradients diverge.
        """
        count = len(limits) - sum(self.wanted)
        gone = any(not bool(limit.exists.all()) for limit in limits[count:])
        if not gone:
            return limits
        self.at(arithmetic, self.still, 0.0)
        if not self.seen:
            return limits
        with self.holding(list(self.seen)):
            held = [replace(limit, unknown=~limit.exists) for limit in limits]
            for movable in self._ways(arithmetic):
                held = self._approached(arithmetic, movable, held, trusted=True)
        better = [~old.exists & new.exists for old, new in zip(limits, held, strict=True)]
        return _all_merged(limits, held, better)

    def by_differences(self, arithmetic: _Arithmetic, limits: list[Limit]) -> list[Limit]:
        """The limits, with unknown gradients found from differences of known values.

        A branch that a mask removes then adds nothing, though its own derivative is NaN all around.
        """
        count = len(limits) - sum(self.wanted)
        if any(bool(limit.unknown.any()) for limit in limits[:count]):
            return limits
        found = list(limits)
        places = [i for i, w in enumerate(self.wanted) if w]
        here = None
        for place, limit in zip(places, limits[count:], strict=True):
            at = limit.unknown.flatten().nonzero().flatten().tolist()
            if not at or len(at) > MOST_DIFFERENCES:
                continue
            value, unknown = limit.value.clone().flatten(), limit.unknown.clone().flatten()
            here = self._total(arithmetic, self.still, 0.0) if here is None else here
            for i in at if mpmath.isfinite(here) else ():
                slope = self._slope(arithmetic, place, i, here)
                if slope is not None:
                    value[i], unknown[i] = slope, False
            value, unknown = value.reshape(limit.value.shape), unknown.reshape(limit.unknown.shape)
            bound = torch.where(unknown, limit.bound, value.abs())
            found[count + places.index(place)] = replace(
                limit, value=value, unknown=unknown, bound=bound
            )
        return found

    def _slope(self, arithmetic: _Arithmetic, place: int, element: int, here: Any) -> float | None:
        """The derivative by one element of an operand, from differences; None: unknown."""
        moving = self.still[:]
        direction = torch.zeros(self.operands[place].shape, dtype=torch.float64)
        direction.view(-1)[element] = 1.0
        moving[place] = direction
        slopes = []
        for h in arithmetic.distances[-2:]:
            up, down = (self._total(arithmetic, moving, side) for side in (h, -h))
            if not (mpmath.isfinite(up) and mpmath.isfinite(down)) or place in self.written:
                return None
            slopes += [float((up - here) / mpf(h)), float((here - down) / mpf(h))]
        size = max(abs(s) for s in slopes)
        return slopes[0] if max(slopes) - min(slopes) <= SAME * size else None

    def _total(self, arithmetic: _Arithmetic, moving: list[Tensor | None], distance: float) -> Any:
        """The results, summed, exactly."""
        with arithmetic.active(), torch.no_grad():
            operands = self.moved(arithmetic, moving, distance)
            before = [x.numbers if isinstance(x, Exact) else None for x in operands]
            found = self.fn(*operands)
            pairs = enumerate(zip(operands, before, strict=True))
            self.written = {
                i for i, (x, was) in pairs if was is not None and (x.numbers != was).any()
            }
            results = [found] if isinstance(found, Tensor) else [t for t in found if t is not None]
            sums: list[Any] = [y.sum() for y in results]
            return sum((each.numbers.item() for each in sums), mpf(0))

    def _approached(
        self, arithmetic: _Arithmetic, movable: list[bool], limits: list[Limit], trusted: bool
    ) -> list[Limit]:
        """The limits, with unknown ones found by moving the given operands."""
        exact = bool(arithmetic.digits)
        follow = _path_exact if exact else _path
        told = limits if trusted or not exact else None
        paths = self._paths(arithmetic, movable, arithmetic.distances, follow, told)
        count = len(limits) - sum(self.wanted)
        masked = any(same is None for same in unmoved(self.here, self.seen))
        # where the value jumps, gradients are those of the side that it is on
        beside = [p for p in paths if all(map(_tends_to, p[:count], limits))]
        if masked and not beside:
            return limits
        paths = beside or paths
        found = [_agreed(list(along)) for along in zip(*paths, strict=True)]
        if movable is self.movable[0]:
            limits = [
                replace(limit, nowhere=limit.unknown & new.nowhere)
                for limit, new in zip(limits, found, strict=True)
            ]
        if trusted:  # what torch masks where it divides by 0 is finite at the operands alone
            better = [
                # a value that the program's own masks make is no other
                now.unknown
                | (
                    (now.exists & new.exists & ~_same(now.value, new.value))
                    & (not masked or i >= count)
                )
                for i, (now, new) in enumerate(zip(limits, found, strict=True))
            ]
        else:
            stays, along = self._stays(arithmetic, limits), zip(*paths, strict=True)
            better = [
                now.unknown | new.exists | ~(stay | _continuous(now.value, way))
                for now, new, way, stay in zip(limits, found, along, stays, strict=True)
            ]
        return _all_merged(limits, found, better)

    def _paths(
        self,
        arithmetic: _Arithmetic,
        movable: list[bool],
        distances: Sequence[float],
        follow: Callable[[Tensor], _Path],
        told: list[Limit] | None = None,
    ) -> list[list[_Path]]:
        """The course of each tensor along several directions.

        told: the known limits. Where the nearest place of a direction tells nothing new, no others
        are computed; in float64, which cancels there, the farthest and a middle place decide as
        well.
        """
        probed = (-1,) if arithmetic.digits else (-1, len(distances) // 2, 0)
        paths = []
        for moving in _directions(self.operands, movable):
            there = cache(lambda h, moving=moving: self.at(arithmetic, moving, h).tensors)
            nearest, compared = there(distances[-1]), self.seen
            if told is not None and all(
                all(map(_tells_nothing, told, there(distances[i]))) for i in probed
            ):
                seen = [nearest] * len(distances)
            else:
                seen = [there(h) for h in distances]
            self.seen = compared
            paths.append([follow(torch.stack(list(along))) for along in zip(*seen, strict=True)])
        return paths

    def _stays(self, arithmetic: _Arithmetic, limits: list[Limit]) -> list[Tensor]:
        """Where a value is that of close neighbours, a thousandth of the operands' own size away:
        for tiny operands other neighbours are far."""
        stays = [limit.value.isfinite() for limit in limits]
        held = self.operands
        try:
            for factor in (1 + SAME, 1 - SAME):
                self.operands = [x.detach().double() * factor if _is_real(x) else x for x in held]
                near = self.at(arithmetic, self.still, 0.0).tensors
                stays = [
                    s & ((t - limit.value).abs() <= WITHIN * limit.value.abs())
                    for s, t, limit in zip(stays, near, limits, strict=True)
                ]
        finally:
            self.operands = held
        return stays


def _nudge(place: int, distance: float, way: int) -> Moved:
    """A move of one result: up (0), down (1), or in a random direction."""

    return place, lambda shape: np.asarray(_away(way, shape) * mpf(distance), dtype=object)


@lru_cache(maxsize=8)
def _away(way: int, shape: tuple[int, ...]) -> np.ndarray:
    """A direction to move a result in, as exact numbers."""
    generator = torch.Generator().manual_seed(way)
    size = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
    sign = torch.where(torch.rand(shape, generator=generator) < 0.5, -1.0, 1.0)
    return plain(size if way == 0 else -size if way == 1 else size * sign)


def _tells_nothing(known: Limit, last: Tensor) -> bool:
    """Whether the nearest place of a direction tells nothing new: it has no value where a limit is
    sought, and elsewhere the value that is known at the operands."""
    size = known.value.abs()
    scale = float(size[size.isfinite()].max()) if bool(size.isfinite().any()) else 0.0
    # what is 0 at the operands is so but for the rounding of exact numbers
    alike = (last - known.value).abs() <= 1e-9 * size + 1e-30 * scale + 1e-60
    return bool(torch.where(known.unknown, last.isnan(), alike).all())


def _same(a: Tensor, b: Tensor) -> Tensor:
    scale = b[b.isfinite()].abs().max() if bool(b.isfinite().any()) else torch.tensor(0.0)
    return (a - b).abs() <= WITHIN * b.abs() + SAME * WITHIN * scale


def _tends_to(path: _Path, known: Limit) -> bool:
    """Whether the values along a direction tend to the known ones at the operands."""
    # of what was not seen to settle, what it is close by
    value = torch.where(path.value.isnan(), path.near, path.value)
    elsewhere = (value - known.value).abs() > WITHIN * torch.maximum(known.value.abs(), path.scale)
    return not bool((elsewhere & known.exists & ~known.unknown).any())


def _continuous(here: Tensor, paths: Sequence[_Path]) -> Tensor:
    """Where the value at the operands themselves is that of their neighbours."""
    near = [(p.near - here).abs() <= WITHIN * torch.maximum(here.abs(), p.scale) for p in paths]
    return torch.stack([n | p.outside for n, p in zip(near, paths, strict=True)]).all(0)


def _here(t: Tensor) -> Limit:
    value = t.double()
    no = torch.zeros_like(value, dtype=torch.bool)
    return Limit(value, ~value.isfinite(), value.abs(), no)


def _unknown(t: Tensor) -> Limit:
    no = torch.zeros_like(t, dtype=torch.bool)
    return Limit(torch.full_like(t, math.nan), ~no, torch.full_like(t, math.inf), no)


def _merged(now: Limit, new: Limit, where: Tensor) -> Limit:
    return Limit(
        torch.where(where, new.value, now.value),
        torch.where(where, new.unknown, now.unknown),
        torch.where(where, new.bound, now.bound),
        now.nowhere,
        now.along if new.along is None else torch.where(where, new.along, math.nan),
    )


def _all_merged(
    limits: Sequence[Limit], more: Sequence[Limit], where: Sequence[Tensor]
) -> list[Limit]:
    return [_merged(*each) for each in zip(limits, more, where, strict=True)]


def _directions(operands: Sequence[Any], movable: Sequence[bool]) -> Iterator[list[Tensor | None]]:
    """Ways to leave the operands: all up, all down, inward (to 0), outward, and at random."""
    generator = torch.Generator().manual_seed(0)

    def each(make: Callable[[Any], Tensor]) -> list[Any]:
        return [make(x) if m else None for x, m in zip(operands, movable, strict=True)]

    def size(x: Tensor) -> Tensor:
        return 0.5 + torch.rand(x.shape, generator=generator, dtype=torch.float64)

    sizes, other = each(size), each(size)
    coins = each(lambda x: torch.rand(x.shape, generator=generator) < 0.5)
    signs = [None if coin is None else torch.where(coin, -1.0, 1.0) for coin in coins]
    inward = each(lambda x: torch.where(x.detach().cpu() > 0, -1.0, 1.0))
    for side in (1.0, -1.0):
        yield [None if s is None else side * s for s in sizes]
        for ways, of in ((other, inward), (sizes, signs)):
            pairs = zip(ways, of, strict=True)
            yield [None if s is None else side * s * i for s, i in pairs]


@dataclass(frozen=True)
class _Path:
    """The course of a tensor's elements along one direction."""

    value: Tensor  # the limit, ±inf where they diverge, NaN where neither was seen
    outside: Tensor  # bool: not finite along the whole of it, as outside of the domain
    scale: Tensor  # limits along two directions that differ by less than SAME of it are one
    near: Tensor  # the value close by


def _path_exact(seen: Tensor) -> _Path:
    """The limit of exact values at log-spaced distances."""
    far, last = seen[0], seen[-1]
    size, change = seen.abs(), (seen[1:] - seen[:-1]).abs()
    shrinks = (change[1:] <= 0.5 * change[:-1]) | (change[1:] <= 1e-12 * size[2:])
    settled = shrinks.all(0) & (change[-1] <= 1e-6 * size[-1])
    vanishes = (size[1:] <= 0.5 * size[:-1]).all(0) & (size[-1] <= 1e-3 * size[0])
    vanishes |= (size[-2:] == 0).all(0)
    # a power of the distance grows by the same factor each time, its logarithm by the same amount
    factor, even = size[1:] / size[:-1], change[1:] / change[:-1]
    signs = seen.sign() == last.sign()
    same_sign = signs.all(0)
    power = (factor >= 1.3).all(0) & (factor.amax(0) <= 3 * factor.amin(0)) & same_sign
    # what is added to it may be larger far off; what cancels grows faster
    near = factor[1:]
    even_factor = (near >= 10).all(0) & (near <= 1000).all(0) & (near.amax(0) <= 1.5 * near.amin(0))
    steep = even_factor & signs[1:].all(0)
    logarithm = (
        ((even >= 0.7) & (even <= 1.5)).all(0) & (size[-1] > size[-2]) & (size[-2] > size[-3])
    )
    beyond = last.isinf() & seen[0].isfinite() & same_sign
    value = torch.full_like(last, math.nan)
    value = torch.where(power | steep | logarithm | beyond, last.sign() * math.inf, value)
    value = torch.where(settled, last, value)
    value = torch.where(vanishes, torch.zeros_like(last), value)
    outside = ~seen[-2:].isfinite().all(0) & ~beyond
    return _Path(value, outside, 1e-3 * far.abs().nan_to_num(0, 0, 0), last)


def _path(seen: Tensor) -> _Path:
    """The limit of float64 values at distances that shrink by a factor of 4.

    Nearby, a value is a difference of nearly equal numbers; far off it differs from the limit. So
    it is extrapolated to the distance 0 from several stretches, and taken where it changes least.
    """
    scale = seen[:3].nan_to_num(0, 0, 0).abs().amax(0)
    best = torch.full_like(seen[0], math.nan)
    error = torch.full_like(seen[0], math.inf)
    # of each power's error
    for factors in ((1, 4, 16, 64), (2, 4, 8)):
        table = seen
        for factor in factors:
            if factor > 1:
                table = table[1:] + (table[1:] - table[:-1]) / (factor - 1)
            change = (table[1:] - table[:-1]).abs_()
            doubt = torch.maximum(change[1:], change[:-1]).nan_to_num_(math.inf, math.inf)
            if not len(doubt):
                break
            least, first = doubt.min(0, keepdim=True)  # the first of several alike
            better = least[0] < error
            error = torch.where(better, least[0], error)
            best = torch.where(better, table[2:].gather(0, first)[0], best)
    size, steps = seen.abs(), (seen[1:] - seen[:-1]).abs()
    settled = error <= SAME * torch.maximum(best.abs(), 0.1 * scale)
    same_sign = (seen[2:].sign() == seen[-1].sign()).all(0)
    rises = (size[1:] >= 1.3 * size[:-1])[1:].all(0) & same_sign
    even = (steps[1:] >= 0.7 * steps[:-1]) & (steps[1:] <= 1.5 * steps[:-1])
    logs = even[1:].all(0) & (size[-1] > size[2]) & (steps[-1] > 0)
    value = torch.where(settled & ~rises & ~logs, best, torch.full_like(best, math.nan))
    value = torch.where(rises | logs, seen[-1].sign() * math.inf, value)
    near = seen[len(seen) // 2 :].isfinite()
    outside = 2 * near.sum(0) < len(near)  # finite far off alone is no approach
    return _Path(value, outside, 0.1 * scale, seen[len(seen) // 2])


def _agreed(paths: list[_Path]) -> Limit:
    """The one limit on which all directions agree, leaving out those outside the domain."""
    values = torch.stack([p.value for p in paths])
    outside = torch.stack([p.outside for p in paths])
    used = ~outside
    any_used = used.any(0)
    missing = (values.isnan() & used).any(0)
    low = values.masked_fill(outside | values.isnan(), math.inf).amin(0)
    high = values.masked_fill(outside | values.isnan(), -math.inf).amax(0)
    size = torch.maximum(low.abs(), high.abs())
    scale = torch.stack([p.scale for p in paths]).amax(0)
    one = (high == low) | ((high - low) <= SAME * torch.maximum(size, scale))
    middle = torch.where(high == low, low, (low + high) / 2)
    middle = torch.where(size <= 1e-6 * scale, torch.zeros_like(middle), middle)
    known = any_used & ~missing
    differ = any_used & ~one & (low <= high)
    value = torch.where(known & one, middle, torch.full_like(middle, math.nan))
    bound = torch.where(any_used & (low <= high), size, torch.full_like(size, math.inf))
    bound = torch.where(missing, torch.full_like(size, math.inf), bound)
    return Limit(value, ~known & ~differ, bound, ~any_used, values)


# --- a fix against the limit ---------------------------------------------------------------------

NOT_COMPUTED = "what is right there could not be computed"
Kind = Literal["agrees", "value", "gradient", "infinite", "sign", "unbounded", "unknown"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether a fix has the limits of the expression it replaces, at offending elements."""

    kind: Kind
    why: str = ""  # one clause: "the gradient is 0, its limit 0.146"
    unknown: int = 0  # elements whose limit nobody knows

    @property
    def holds(self) -> bool:
        """Nothing is known to be wrong."""
        return self.kind in ("agrees", "unknown")


def agrees(
    fix: Function,
    fn: Function,
    operands: Sequence[Any],
    differentiated: Sequence[bool] | None = None,
    known: Truth | None = None,
    old: Evaluation | None = None,
) -> Agreement:
    """Compare ``fix`` with the truth of ``fn`` where ``fn`` itself gives no finite value or
    gradient.

    operands: in the program's dtypes. Where a limit exists, the fix must have it, within 1 %. Where
    the limit is infinite, the fix must stay finite and keep the sign. Where there is no limit, the
    fix must stay finite, and no larger than along any direction. known: the truth, from an earlier
    call of :func:`truth`. old: ``fn`` at the operands.
    """
    wanted = default_differentiated(operands) if differentiated is None else list(differentiated)
    try:
        new = evaluate(fix, operands, wanted)
    except NotReplayable:  # the new lines read what the old ones did not
        return Agreement("unknown", NOT_COMPUTED)
    except Exception as error:
        return Agreement("infinite", f"it raises {type(error).__name__}: {error}")
    old = evaluate(fn, operands, wanted) if old is None else old
    true = truth(fn, operands, wanted) if known is None else known
    found = compared(new, old, true)
    if found.kind == "gradient" and _is_rounding(fix, operands, wanted, new, old, true):
        return Agreement("agrees")
    return found


def _is_rounding(
    fix: Function,
    operands: Sequence[Any],
    wanted: Sequence[bool],
    new: Evaluation,
    old: Evaluation,
    true: Truth,
) -> bool:
    """Whether gradients miss their limits only by the rounding of summands that cancel out, as in a
    softmax, whose sum is 1. In float64 they must miss them by less."""
    wide = [x.detach().double() if _is_real(x) else x for x in operands]
    generator = torch.Generator().manual_seed(0)

    def signs(y: Tensor) -> Tensor:
        coins = torch.rand(y.shape, generator=generator) < 0.5
        return torch.where(coins, -1.0, 1.0).to(y.device)

    try:
        with Wide():
            exact = evaluate(fix, wide, wanted)
            each = evaluate(fix, wide, wanted, summed=[*map(signs, exact.values)])
    except Exception:  # it is told by what was found without
        return False
    sizes = [g.abs().max() for g in each.gradients if g is not None and g.numel()]
    size = FEW / ROUNDING * max(map(float, sizes), default=0.0)
    return math.isfinite(size) and all(
        compared(found, old, true, size).kind == "agrees" for found in (new, exact)
    )


def compared(new: Evaluation, old: Evaluation, true: Truth, size: float = 0.0) -> Agreement:
    """The agreement of two evaluations, as of :func:`agrees`. size: at least that of gradients'
    summands."""
    if len(new.values) != len(old.values) or any(
        a.shape != b.shape for a, b in zip(new.tensors, old.tensors, strict=False)
    ):
        return Agreement("value", "its result has another shape")
    unknown, largest = 0, max(true.largest(new), size)
    values = zip(new.values, old.values, true.values, strict=True)
    gradients = zip(new.gradients, old.gradients, true.gradients, strict=True)
    kinds: tuple[tuple[Literal["value", "gradient"], Any, float], ...]
    kinds = ("value", values, 0.0), ("gradient", gradients, largest)
    for what, triples, most in kinds:
        for got, before, limit in triples:
            if got is None or before is None or limit is None:
                continue
            verdict = _compared(what, got, ~before.isfinite(), limit, most)
            if not verdict.holds:
                return verdict
            unknown += verdict.unknown
    if unknown:
        return Agreement("unknown", NOT_COMPUTED, unknown)
    return Agreement("agrees")


def longer(new: Evaluation, old: Evaluation, true: Truth) -> Agreement:
    """Whether values without a limit have together a larger norm than along any direction.

    (1, 1) is no unit vector, although each of its elements is an element of some unit vector.
    """
    for a, before, limit in zip(new.values, old.values, true.values, strict=True):
        without = limit.value.isnan() & ~limit.unknown & ~before.isfinite().cpu()
        if limit.along is None or int(without.sum()) < 2:
            continue
        rows = limit.along[:, without]
        known = rows.isfinite()  # a direction that leaves the domain tells of the others alone
        got = a.detach().double().cpu()[without].expand_as(rows)
        sizes, most = (torch.where(known, t, 0.0).norm(dim=1) for t in (got, rows))
        told_by = known.any(1)
        if bool(told_by.any()) and bool((sizes > (1 + WITHIN) * most)[told_by].all()):
            at = int(most.argmax())
            pair = _shown(sizes[at]), _shown(most[at])
            told = f"the values have the norm {pair[0]}, along no direction over {pair[1]}"
            return Agreement("unbounded", told)
    return Agreement("agrees")


def tolerance(got: Tensor, limit: Tensor, largest: float = 0.0) -> Tensor:
    """Tolerated distance of each element from its limit, in float64.

    largest: magnitude of the largest gradient. A gradient that cancels out, such as a bias's before
    a normalisation, is rounding of that size instead of 0.
    """
    known = limit[limit.isfinite()]
    scale = float(known.abs().max()) if known.numel() else 0.0
    # what is smaller, its dtype does not hold
    info = torch.finfo(got.dtype) if got.is_floating_point() else None
    share = WITHIN / 10 * scale if limit.numel() > 1 else 0.0  # of elements beside larger ones
    near = WITHIN * limit.abs() + share + (info.tiny if info else 0.0)
    rounding = min(ROUNDING * (info.eps if info else 0.0), WITHIN / 10) * largest
    lost = (got == 0).cpu() & (limit != 0)  # a signal that is gone is no rounding
    return torch.where(lost, near, near.clamp_min(rounding))


def _compared(
    what: Literal["value", "gradient"],
    got: Tensor,
    bad: Tensor,
    limit: Limit,
    largest: float,
) -> Agreement:
    """Compare the elements that were bad with their limits."""
    near = tolerance(got, limit.value, largest)
    got = got.double().cpu()
    bad = bad.cpu()
    if bool((~got.isfinite() & bad).any()):
        worst = got[~got.isfinite() & bad][0]
        return Agreement("infinite", f"the {what} is {_shown(worst)}")
    scale = float(limit.value[limit.exists].abs().max()) if bool(limit.exists.any()) else 0.0
    gap = (got - limit.value).abs()
    no_sign = got * limit.value.sign().nan_to_num(0) <= 0
    large = got.abs() > BEYOND * limit.bound + WITHIN / 10 * scale + limit.spread
    without = limit.value.isnan() & ~limit.unknown
    ways: tuple[tuple[Kind, Tensor, str, Tensor], ...] = (
        (what, (gap > near) & limit.exists, "its limit", limit.value),
        ("sign", no_sign & limit.value.isinf(), "it tends to", limit.value),
        ("unbounded", large & without, "along no direction over", limit.bound),
    )
    for kind, off, told, other in ways:
        if bool((off & bad).any()):  # the farthest from its limit, else the first
            sizes = gap if kind == what else torch.ones_like(got)
            at = int(torch.where(off & bad, sizes, 0.0).argmax())
            pair = _shown(got.flatten()[at]), _shown(other.flatten()[at])
            return Agreement(kind, f"the {what} is {pair[0]}, {told} {pair[1]}")
    count = int((limit.open & bad).sum())
    return Agreement("unknown" if count else "agrees", unknown=count)


def _shown(x: Tensor) -> str:
    return f"{float(x):.3g}"
