"""Tensors of numbers with any exponent and as many digits as asked for.

Neither overflows nor cancels: ``exp(1000)`` is a number, ``1 - sigmoid(400)`` is not 0. An ordinary
function of torch runs on them, and autograd through it, because they answer torch's operators:
those that compute by mpmath, those that only move elements by moving a tensor of indices.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import Any, TypeVar

import mpmath
import numpy as np
import torch
from mpmath import mp, mpf
from mpmath.libmp import from_float, from_man_exp, to_float
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from nanlab.errors import NanlabError
from nanlab.operators import having
from nanlab.trace.mode import DispatchMode
from nanlab.trace.op import walk

F = TypeVar("F", bound=Callable[..., Any])
MOST_ELEMENTS = 1 << 14  # of one result: a number costs about 10 microseconds
OPERATOR, FUNCTION = 80, 10  # work of a call of an operator, and of an elementary function
DIGITS = 14  # of a number, for which a function takes as long as one addition
DENOMINATOR, DECIMALS = 1000, 10**12  # of a fraction that a program means, of a decimal
FEW = 256  # elements of a float64 tensor that are asked what they stand for
SATURATED = 60  # argument from which on a sigmoid is 1 but for its exponential
MOST_BITS_APART = 4000  # of two elements of a matrix that is multiplied as integers


class _Work(threading.local):
    done = 0


_work = _Work()


def work() -> int:
    """Work that this thread has done so far, in units of one exact addition. It serves as a clock
    that runs alike on every machine, however busy, so that results do not depend on speed."""
    return _work.done


def count_work(calls: int, elements: int) -> None:
    """Count calls in ordinary numbers as work: as many exact additions as take the same time."""
    _work.done += 6 * calls + elements // 500


MOST_DIGITS = 700


class NotExact(NanlabError):
    """An operator that exact numbers do not know, or a tensor too large for them."""


class WrittenPart(NotExact):
    """A view alone was moved, and then the memory that it shows was written."""


@contextmanager
def digits(count: int) -> Iterator[None]:
    """Compute with that many decimal digits."""
    before = mp.dps
    mp.dps = count
    try:
        yield
    finally:
        mp.dps = before


class Exact(Tensor):
    """A tensor that looks like float64 to torch; its numbers are mpmath's."""

    pool: np.ndarray  # flat, of mpf; views share it
    places: np.ndarray  # in the pool, of each element

    @staticmethod
    def __new__(cls, numbers: np.ndarray, pool: np.ndarray | None = None) -> Exact:
        """Wrap an array of mpf, or an array of places in a pool."""
        if numbers.size > MOST_ELEMENTS:
            raise NotExact(f"{numbers.size:,} numbers are too many to compute exactly")
        _work.done += OPERATOR
        made: Exact = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=torch.float64, device=torch.device("cpu")
        )
        if pool is None:
            made.pool = numbers.reshape(-1)
            made.places = np.arange(numbers.size).reshape(numbers.shape)
        else:
            made.pool, made.places = pool, numbers
        return made

    @property
    def numbers(self) -> np.ndarray:
        """The numbers, in the tensor's shape."""
        taken: np.ndarray = self.pool[self.places.reshape(-1)]
        return taken.reshape(self.places.shape)

    def write(self, numbers: np.ndarray) -> None:
        """Overwrite the elements, in every view of them."""
        written = np.broadcast_to(numbers, self.places.shape)
        self.pool[self.places.reshape(-1)] = written.reshape(-1)  # else one alone is nested

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """The numbers, rounded to float64."""
        return f"Exact({_rounded(self.numbers).tolist()})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function. A Python number to an exact power is computed in exact numbers, and an
        in-place change of shape gives a new tensor."""
        name = getattr(func, "__name__", "")
        if torch.Tag.inplace_view in getattr(func, "tags", ()):
            view = getattr(torch.Tensor, name.partition(".")[0].removesuffix("_"))
            return view(*args, **(kwargs or {}))
        if name.strip("_") in ("matmul", "rmatmul", "linear") and len(args) > 1:
            if args[0].dim() == 1 or (name != "linear" and args[1].dim() == 1):
                return _vector_product(func, name, *args, **(kwargs or {}))
        if name in ("__rpow__", "pow", "pow.Scalar") and len(args) == 2:
            x, y = args if name != "__rpow__" else args[::-1]
            if isinstance(x, int | float):
                args, func = (Exact(_numbers(x)), y), torch.pow
        with torch._C.DisableTorchFunctionSubclass():  # results are of the kind that they are
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        name, draws = _facts(func)
        if draws:
            raise NotExact(f"{func._schema.name} draws random numbers")
        if name in _RUNS:
            return _RUNS[name](func, *args, **kwargs)
        if name.endswith("_") and name[:-1] in _RUNS:
            target = args[0]
            if not isinstance(target, Exact):
                raise NotExact(f"{name} writes exact numbers into a tensor of another kind")
            target.write(_RUNS[name[:-1]](func, *args, **kwargs).numbers)
            return target
        if func.is_view:
            return _viewed(func, args, kwargs)
        if name.endswith("_") and name[:-1] in _REARRANGES and isinstance(args[0], Exact):
            packet = getattr(torch.ops.aten, name[:-1])
            args[0].write(packet(*args, **kwargs).numbers)
            return args[0]
        if name in _REARRANGES:
            return _moved(func, args, kwargs)
        table = torch._decomp.decomposition_table  # a dict in torch 2.6 to 2.13
        with _Directly():
            made = (
                table[func](*args, **kwargs) if func in table else func.decompose(*args, **kwargs)
            )
        if made is NotImplemented:
            raise NotExact(f"{name} is not known for exact numbers")
        return made


def _vector_product(func: Any, name: str, a: Any, b: Any, *more: Any, **kw: Any) -> Any:
    """A product with a vector, without the matrix whose shape torch would change in place."""
    if name == "linear":
        return func(a.unsqueeze(0), b, *more, **kw).squeeze(0)
    if name == "__rmatmul__":
        a, b = b, a
    if a.dim() == 1 == b.dim():
        return (a * b).sum()
    if a.dim() == 1:
        return torch.matmul(a.unsqueeze(-2), b).squeeze(-2)
    return torch.matmul(a, b.unsqueeze(-1)).squeeze(-1)


@cache
def _facts(func: Any) -> tuple[str, bool]:
    """The name of an operator, and whether it draws random numbers."""
    name = func._schema.name.removeprefix("aten::").removeprefix("prims::")
    return name, torch.Tag.nondeterministic_seeded in func.tags


def _exact_in(values: Iterable[Any]) -> list[Exact]:
    """The exact tensors among arguments, those in lists included."""
    found: list[Exact] = []
    for x in values:
        if isinstance(x, Exact):
            found.append(x)
        elif isinstance(x, list | tuple):
            found += _exact_in(x)
    return found


class _Directly(DispatchMode):
    """Hand operators on exact numbers to Exact directly. Before torch asks a subclass for the first
    time, it imports its distributed tensors, which takes a second."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        if _exact_in(args) or (kwargs and _exact_in(kwargs.values())):
            return Exact.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


Moved = tuple[int, Callable[[tuple[int, ...]], np.ndarray]]


class Comparisons:
    """The masks that an expression's comparisons give, in order.

    masks: masks from another place that are to be given again; None for a comparison that is free.
    """

    def __init__(self, masks: Sequence[Tensor | None] | None = None) -> None:
        self.masks = masks
        self.seen: list[Tensor] = []

    def result(self, made: Tensor) -> Tensor:
        """The mask of the next comparison: the held one, else its own. Raises NotExact where the
        held one has another shape."""
        self.seen.append(made)
        if self.masks is None or len(self.seen) > len(self.masks):  # behind the expression
            return made
        held = self.masks[len(self.seen) - 1]
        if held is not None and held.shape != made.shape:
            raise NotExact("the expression compares something else here")
        return made if held is None else held


def unmoved(here: Sequence[Tensor], there: Sequence[Tensor]) -> list[Tensor | None]:
    """The masks of one place, with None for each that differs at another place."""
    pairs = zip(here, there, strict=False)
    return [a if a.shape == b.shape and bool((a == b).all()) else None for a, b in pairs]


ORDERING = having("compares") & having("sign")  # of NaN they know nothing; eq and isnan do


class Undecided:
    """Masks of comparisons with NaN. torch takes such a comparison to fail; here an element that
    the mask chooses has no value."""

    def __init__(self) -> None:
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: a mask, and where

    def note(self, mask: Tensor, nowhere: Tensor | None) -> None:
        """Note where a mask is undecided."""
        if nowhere is not None and bool(nowhere.any()):
            self._masks[id(mask)] = mask, nowhere

    def chosen(self, made: Tensor, args: Sequence[Any]) -> Tensor | None:
        """Where an undecided mask of the result's shape chooses an element; None: nowhere."""
        if not self._masks:
            return None
        found = [self._masks[id(x)][1] for x in args if id(x) in self._masks]
        found = [each for each in found if each.shape == made.shape]
        return torch.stack(found).any(0) if found else None

    @staticmethod
    def compared(made: Tensor, read: Sequence[Tensor]) -> Tensor:
        """Where operands of a comparison are NaN."""
        return torch.stack([x.isnan().expand(made.shape) for x in read]).any(0)


class AllExact(_Directly):
    """Tensors made from numbers alone (``zeros``, ``eye``, a literal) are exact too.

    deadline: in units of :func:`work`; an operator that starts later raises NotExact. moved: the
    result of the forward part to move, and the step, a function of its shape. masks: see
    :class:`Comparisons`. counted: whether to note which results each result is made of. tape:
    records every operator that runs.
    """

    def __init__(
        self,
        deadline: float = math.inf,
        moved: Moved | None = None,
        masks: Sequence[Tensor | None] | None = None,
        counted: bool = True,
    ) -> None:
        super().__init__()
        self.node = torch._C._current_autograd_node()  # of a backward pass that asks for it
        self.counted = counted
        self.tape: Tape | None = None
        self.deadline, self.moved = deadline, moved
        self.undecided: Undecided | None = None  # None: a comparison with NaN fails
        self.inputs: list[set[int]] = []  # of each result of the forward part, those it is made of
        self.bad: list[int] = []  # those that are not finite, of inputs that are
        self._places: dict[int, tuple[Tensor, set[int]]] = {}  # by identity: what it is, or shows
        self.comparisons = Comparisons(masks)
        self._parted: tuple[np.ndarray, ...] = ()  # memory of a view that was moved, before and now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        forward = torch._C._current_autograd_node() is self.node
        made = self.run(func, args, kwargs or {}, forward)
        if self.tape is not None:
            self.tape.add(func, args, kwargs or {}, made, forward)
        return made

    def run(self, func: Any, args: Any, kwargs: Any, forward: bool) -> Any:
        """Run one operator, of the forward part or of the backward part."""
        if work() > self.deadline:
            raise NotExact("exact numbers would take too much work")
        at_results = self.counted and forward
        made = super().__torch_dispatch__(func, (), args, kwargs)
        if self.undecided is not None and isinstance(made, Tensor):
            made = self._chosen(self.undecided, made, args)
        if isinstance(made, Exact):
            return self._counted(made, func.is_view, args, kwargs) if at_results else made
        if isinstance(made, Tensor) and made.is_floating_point():
            plain = not any(isinstance(x, Tensor) for x in tree_flatten((args, kwargs))[0])
            if plain or func is torch.ops.aten.lift_fresh.default:
                if torch.Tag.nondeterministic_seeded in func.tags:
                    raise NotExact(f"{func._schema.name} draws random numbers")
                made = lift(made)
                return self._counted(made, func.is_view, args, kwargs) if at_results else made
        if isinstance(made, Tensor) and made.dtype == torch.bool:
            if forward and (read := _exact_in(args)):
                result = self.comparisons.result(made)
                free = result is made and func.overloadpacket.__name__ in ORDERING
                if free and self.undecided is not None:
                    given = [torch.from_numpy(_rounded(x.numbers)) for x in read]
                    self.undecided.note(made, Undecided.compared(made, given))
                return result
        return made

    def _chosen(self, undecided: Undecided, made: Tensor, args: Sequence[Any]) -> Tensor:
        """The result, with NaN where an undecided mask chose an element."""
        nowhere = undecided.chosen(made, args)
        if nowhere is None:
            return made
        if made.dtype == torch.bool:
            undecided.note(made, nowhere)
        elif isinstance(made, Exact):
            numbers = made.numbers.copy()
            numbers[nowhere.numpy()] = mpmath.nan
            if made is not args[0]:
                return Exact(numbers)
            made.write(numbers)
        return made

    def _counted(self, made: Exact, is_view: bool, args: Any, kwargs: Any) -> Exact:
        """Count a result of the forward part, and move it if it is the chosen one. Of views only
        those of operands count: others, and what is written in place, belong to the results that
        they show."""
        read = _exact_in((*args, *(kwargs or {}).values()))
        behind = set[int]().union(*(self._places.get(id(x), (x, set()))[1] for x in read))
        own = any(made is x for x in read)  # written in place
        if own and any(made.pool is pool for pool in self._parted):
            raise WrittenPart("memory is written after a part of it was moved")
        if own or (is_view and (not behind or any(self.inputs[at] for at in behind))):
            self._places[id(made)] = made, behind
            return made
        place = len(self.inputs)
        self.inputs.append(behind)
        if self.moved is not None and self.moved[0] == place:
            step, pool = self.moved[1](tuple(made.shape)), made.pool
            # of one number numpy makes no array
            made = Exact(np.asarray(made.numbers + step, dtype=object))
            if is_view:  # the rest of what it showed stays behind
                self._parted = pool, made.pool
        elif self.moved is None and not bool(np.isfinite(_rounded(made.numbers)).all()):
            if not any(self.behind(at) & set(self.bad) for at in behind):
                self.bad.append(place)
        self._places[id(made)] = made, {place}
        return made

    def reaches(self, bad: int, sources: set[int], past: set[int]) -> bool:
        """Whether a result is made of one of the sources by a way around the results ``past``."""
        ways = walk([bad], lambda place: self.inputs[place] - past if place not in past else ())
        return any(place in sources and place not in past for place in ways)

    def behind(self, place: int) -> set[int]:
        """The results that the result at a place is made of, itself included."""
        return set(walk([place], self.inputs.__getitem__))


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a tensor among those of an evaluation."""

    number: int


class Tape:
    """The operators that an evaluation in exact numbers ran, forward and backward. They run again
    on other numbers without autograd and torch's dispatch, which take most of the time.

    fits: whether other numbers would run the same operators, as far as can be told. They may not
    where an operator gave Python a value, made a tensor whose size depends on one, drew random
    numbers, or read a tensor of unknown origin.
    """

    def __init__(self, operands: Sequence[Any]) -> None:
        self.fits = True
        self._steps: list[tuple[Any, Any, Any, Any, bool]] = []
        self._slots: dict[int, _Slot] = {}  # by the identity of a tensor
        self._held: list[Tensor] = []  # whose identities are no others' meanwhile
        self._over: dict[int, list[int]] = {}  # step -> slots that are not read after it
        self._operands = [self._written(x) if isinstance(x, Exact) else None for x in operands]

    def add(self, func: Any, args: Any, kwargs: Any, made: Any, forward: bool) -> None:
        """Write an operator down that has been run."""
        given = self._read(args), self._read(kwargs)
        constant = func._schema.is_mutable and not isinstance(given[0][0], _Slot)
        if constant or not _DEPENDENT.isdisjoint(func.tags):
            self.fits = False
        self._steps.append((func, *given, self._written(made), forward))

    def end(self, results: Any) -> None:
        """Write down what the results are; nothing is added any more."""
        self._results = self._read(results)
        last: dict[int, int] = {}
        for index, (_, args, kwargs, made, _) in enumerate(self._steps):
            last |= dict.fromkeys(_slots_in((args, tuple(kwargs.values()), made)), index)
        for number in last.keys() - set(_slots_in(self._results)):
            self._over.setdefault(last[number], []).append(number)
        self._slots, self._held = {}, []

    def run(self, mode: AllExact, operands: Sequence[Any]) -> Any:
        """The results for other operands, by the operators on the tape."""
        values: dict[int, Any] = {}

        def fill(value: Any) -> Any:
            kind = value.__class__
            if kind is _Slot:
                return values[value.number]
            return kind(map(fill, value)) if kind is tuple or kind is list else value

        def put(place: Any, made: Any) -> None:
            if place.__class__ is _Slot:
                values[place.number] = made
            elif place.__class__ is tuple or place.__class__ is list:
                for each, one in zip(place, made, strict=True):
                    put(each, one)

        put(self._operands, operands)
        below = torch._C._AutoDispatchBelowAutograd
        with torch.no_grad(), _disable_current_modes(), below():
            for index, (func, args, kwargs, made, forward) in enumerate(self._steps):
                named = {name: fill(value) for name, value in kwargs.items()}
                put(made, mode.run(func, fill(args), named, forward))
                for number in self._over.get(index, ()):
                    del values[number]
        return fill(self._results)

    def _read(self, value: Any) -> Any:
        """The arguments with slots for known tensors; other tensors are constants."""
        if isinstance(value, Tensor):
            if isinstance(value, Exact) and id(value) not in self._slots:
                self.fits = False
            return self._slots.get(id(value), value)
        if isinstance(value, dict):
            return {name: self._read(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            kind = list if isinstance(value, list) else tuple
            return kind(map(self._read, value))
        return value

    def _written(self, made: Any) -> Any:
        """The result with a slot for each tensor."""
        if isinstance(made, list | tuple):
            return tuple(map(self._written, made))
        if not isinstance(made, Tensor):
            self.fits = self.fits and made is None
            return None
        self._held.append(made)
        return self._slots.setdefault(id(made), _Slot(len(self._held)))


_DEPENDENT = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,  # the state of the generator is put back outside of torch
}


def _slots_in(value: Any) -> Iterator[int]:
    if value.__class__ is _Slot:
        yield value.number
    elif value.__class__ is tuple or value.__class__ is list:
        for each in value:
            yield from _slots_in(each)


def lift(x: Tensor) -> Exact:
    """The same numbers, exactly."""
    return Exact(_numbers(x.detach()))


def rounded(x: Tensor) -> Tensor:
    """The numbers in float64, infinite beyond its range; an ordinary tensor as it is."""
    return torch.from_numpy(_rounded(x.numbers)) if isinstance(x, Exact) else x.detach()


def _rounded(numbers: np.ndarray) -> np.ndarray:
    values = numbers.reshape(-1).tolist()
    flat = [to_float(v._mpf_, rnd="n") if v.__class__ is mpf else float(v) for v in values]
    return np.array(flat, dtype=np.float64).reshape(numbers.shape)


def _numbers(x: Any) -> np.ndarray:
    """An array of mpf from a tensor or a Python number."""
    if isinstance(x, Exact):
        return x.numbers
    if isinstance(x, Tensor):
        if x.numel() > MOST_ELEMENTS:
            raise NotExact(f"{x.numel():,} numbers are too many to compute exactly")
        if x.is_complex():
            raise NotExact("complex numbers are not computed exactly")
        if not x.dim():
            return _numbers(float(x))
        if x.dtype is not torch.float64 or x.numel() > FEW:
            return plain(x)  # its digits are all that a narrower dtype has
        return _array([*map(_constant, x.detach().cpu().flatten().tolist())], tuple(x.shape))
    return _array([_constant(float(x))], ())


def plain(x: Tensor) -> np.ndarray:
    """The numbers that are written in a tensor, whatever they are meant to be."""
    values = x.detach().cpu().double().flatten().tolist()
    return _array([mp.make_mpf(from_float(v)) for v in values], tuple(x.shape))


def _constant(x: float) -> Any:
    """The constant that a float64 rounds: 0.3, 1 / 3, pi / 2 or the root of 2; else the number
    itself."""
    above, below, unit, root = _meant(x)
    if not below:
        return mpf(x)
    size = mpf(above) / below * _UNITS[unit]()
    return size if not root else mpmath.sqrt(size) if x > 0 else -mpmath.sqrt(size)


_UNITS: dict[str, Callable[[], Any]] = {
    "1": lambda: mpf(1),
    "pi": lambda: +mp.pi,
    "1 / pi": lambda: 1 / mp.pi,
    "log 2": lambda: mpmath.log(2),
    "1 / log 2": lambda: 1 / mpmath.log(2),
    "log 10": lambda: mpmath.log(10),
    "1 / log 10": lambda: 1 / mpmath.log(10),
    "log 2 pi": lambda: mpmath.log(2 * mp.pi),
}


@lru_cache(maxsize=4096)
def _meant(x: float) -> tuple[int, int, str, bool]:
    """The constant that a float64 rounds: numerator, denominator, unit (as pi), and whether the
    root of them. (0, 0, ...) where it is no such constant, but the number itself."""
    itself = 0, 0, "1", False
    if not math.isfinite(x) or _is_narrow(x):
        return itself
    decimal = Fraction(repr(x))
    if decimal.limit_denominator(DECIMALS) == decimal:
        return decimal.numerator, decimal.denominator, "1", False
    with digits(40):
        for root in (False, True):
            for unit, value in _UNITS.items():
                size = mpf(x) ** (2 if root else 1) / value()
                found = Fraction(float(size)).limit_denominator(DENOMINATOR)
                meant = abs(mpf(found.numerator) / found.denominator * value())
                meant = mpmath.sqrt(meant) if root else meant
                if abs(meant - abs(x)) <= 2 * math.ulp(x) and not _is_narrow(float(meant)):
                    return found.numerator, found.denominator, unit, root
    return itself


def _is_narrow(x: float) -> bool:
    """Whether 24 bits suffice for a number's digits, as in float32."""
    return (math.frexp(x)[0] * 2**24).is_integer()


def _array(flat: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    return np.fromiter(flat, dtype=object, count=len(flat)).reshape(tuple(shape))


# --- real functions, with the infinities and NaNs of IEEE 754 -----------------------------------

NAN, INF = mpf("nan"), mpf("inf")


def _real(fn: Callable[..., Any], poles: dict[Any, Any] | None = None) -> Callable[..., Any]:
    """The function with NaN outside its domain and the given values at its poles."""

    def value(*x: Any) -> Any:
        if any(v != v for v in x):
            return NAN
        if poles and len(x) == 1 and not isinstance(x[0], Sum) and x[0] in poles:
            return poles[x[0]]
        _work.done += max(FUNCTION, mp.dps // DIGITS)
        try:
            found = fn(*x)
        except (ZeroDivisionError, ValueError, OverflowError):
            return NAN
        return NAN if isinstance(found, mpmath.mpc) else found

    return value


def _divide(a: Any, b: Any) -> Any:
    if b == 0:
        return NAN if a == 0 or a != a else (INF if a > 0 else -INF)
    return NAN if mpmath.isinf(a) and mpmath.isinf(b) else a / b


_multiply = operator.mul  # to mpmath too 0 times infinity is NaN


class Sum(mpf):  # type: ignore[misc]
    """A number and a second one too small to show in the digits of the first: 1 - sigmoid(2000).

    Sums and products keep both parts, so that a difference is not 0 where the large parts cancel.
    """

    large: Any
    small: Any

    @staticmethod
    def of(large: Any, small: Any) -> Any:
        """A Sum of the two parts; a plain number where one part suffices."""
        if not large or not small or not mpmath.isfinite(large):
            return large + small if large else small
        if not _are_apart(large, small):
            return mpf(large) + small
        made = Sum(large + small)
        made.large, made.small = large, small
        return made

    def __neg__(self) -> Any:
        return Sum.of(-self.large, -self.small)

    def __abs__(self) -> Any:
        return self if self.large > 0 else -self

    def __add__(self, other: Any) -> Any:
        a, b = _parts(other)
        return Sum.of(self.large + a, self.small + b)

    def __sub__(self, other: Any) -> Any:
        a, b = _parts(other)
        return Sum.of(self.large - a, self.small - b)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        a, b = _parts(other)
        return Sum.of(self.large * a, self.large * b + self.small * a)

    def __truediv__(self, other: Any) -> Any:
        a, b = _parts(other)
        whole = self.large / a
        return Sum.of(whole, (self.small - whole * b) / a)

    def __rtruediv__(self, other: Any) -> Any:
        whole = mpf(other) / self.large
        return Sum.of(whole, -whole * self.small / self.large)

    def __pow__(self, n: Any) -> Any:
        return Sum.of(self.large**n, n * self.large ** (n - 1) * self.small)

    __radd__, __rmul__ = __add__, __mul__
    __hash__ = mpf.__hash__


def _parts(x: Any) -> tuple[Any, Any]:
    """The large and the small part of a number."""
    return (x.large, x.small) if isinstance(x, Sum) else (mpf(x), mpf(0))


def _plus(a: Any, b: Any) -> Any:
    """A sum, kept in two parts where the digits of one number do not show the other."""
    if type(a) is mpf is type(b) and a and b and _are_apart(a, b):
        return Sum.of(a, b) if abs(a) > abs(b) else Sum.of(b, a)
    return a + b


def _are_apart(a: Any, b: Any) -> bool:
    """Whether half of the digits of one do not reach the other."""
    (_, one, e, bits), (_, other, f, more) = a._mpf_, b._mpf_
    return bool(one and other and abs(e + bits - f - more) > mp.prec // 2)


def _power(a: Any, b: Any) -> Any:
    if b == 0:
        return mpf(1)
    if a != a or b != b or (a == 1 and mpmath.isinf(b)):  # 1**inf is 1 in IEEE 754, and no limit
        return NAN
    if a == 0:
        return mpf(0) if b > 0 else INF
    if a < 0 and b != mpmath.floor(b):
        return NAN
    if mpmath.isinf(a) or mpmath.isinf(b):
        return mpf(math.pow(float(a), float(b)))
    return a ** (int(b) if b == mpmath.floor(b) and abs(b) < 1e6 else b)


def _sigmoid(x: Any) -> Any:
    if SATURATED < x < INF:
        return Sum.of(mpf(1), -mpmath.exp(-x))
    return mpf(0) if x == -INF else 1 / (1 + mpmath.exp(-x))


def _tanh(x: Any) -> Any:
    if SATURATED / 2 < abs(x) < INF:
        return mpmath.sign(x) * Sum.of(mpf(1), -2 * mpmath.exp(-2 * abs(x)))
    return mpmath.tanh(x)


def _erf(x: Any) -> Any:
    if SATURATED / 6 < abs(x) < INF:
        return mpmath.sign(x) * Sum.of(mpf(1), -mpmath.erfc(abs(x)))
    return mpmath.erf(x)


def _of_exponentials(sign: int) -> Callable[[Any], Any]:
    """cosh, or sinh with -1."""

    def value(x: Any) -> Any:
        if not SATURATED / 2 < abs(x) < INF:
            return mpmath.cosh(x) if sign > 0 else mpmath.sinh(x)
        large, small = mpmath.exp(abs(x)) / 2, sign * mpmath.exp(-abs(x)) / 2
        return Sum.of(large, small) * (1 if sign > 0 else mpmath.sign(x))

    return value


def _expm1(x: Any) -> Any:
    return Sum.of(mpf(-1), mpmath.exp(x)) if -INF < x < -SATURATED else mpmath.expm1(x)


def _xlogy(x: Any, y: Any) -> Any:
    if y != y:
        return NAN
    return mpf(0) if x == 0 else _multiply(x, _log(y))


def _logaddexp(a: Any, b: Any) -> Any:
    top = max(a, b)
    return top if mpmath.isinf(top) else _plus(top, mpmath.log1p(mpmath.exp(min(a, b) - top)))


def _near(fn: Callable[..., Any], slope: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps both parts of a Sum. slope: its derivative, from argument and value."""

    def value(x: Any) -> Any:
        if not isinstance(x, Sum):
            return fn(x)
        y = fn(x.large)
        if isinstance(y, mpmath.mpc) or not mpmath.isfinite(y):
            return y
        return Sum.of(y, slope(x.large, y) * x.small)

    return value


_log = _real(_near(mpmath.log, lambda x, y: 1 / x), {mpf(0): -INF, INF: INF})
_sqrt = _real(_near(mpmath.sqrt, lambda x, y: 1 / (2 * y)), {INF: INF})

_UNARY: dict[str, Callable[..., Any]] = {  # those that mpmath has by the same name
    name: _real(getattr(mpmath, name))
    for name in having("analytic", "unary", "flat")
    if hasattr(mpmath, name)
}
_UNARY["neg"] = operator.neg
_UNARY["abs"] = abs
_UNARY["exp"] = _real(_near(mpmath.exp, lambda x, y: y))
_UNARY["exp2"] = _real(lambda x: mpf(2) ** x)
_UNARY["log"] = _log
_UNARY["log1p"] = _real(
    lambda x: _log(x + 1) if isinstance(x, Sum) else mpmath.log1p(x), {mpf(-1): -INF, INF: INF}
)
_UNARY["log2"] = _real(lambda x: mpmath.log(x, 2), {mpf(0): -INF, INF: INF})
_UNARY["log10"] = _real(mpmath.log10, {mpf(0): -INF, INF: INF})
_UNARY["sqrt"] = _sqrt
_UNARY["rsqrt"] = lambda x: _divide(mpf(1), _sqrt(x))
_UNARY["reciprocal"] = lambda x: _divide(mpf(1), x)
_UNARY["square"] = lambda x: x * x
_UNARY["atanh"] = _real(
    lambda x: _log((1 + x) / (1 - x)) / 2 if isinstance(x, Sum) else mpmath.atanh(x),
    {mpf(1): INF, mpf(-1): -INF},
)
_UNARY["sigmoid"] = _real(_sigmoid)
_UNARY["tanh"], _UNARY["erf"], _UNARY["expm1"] = _real(_tanh), _real(_erf), _real(_expm1)
_UNARY["cosh"], _UNARY["sinh"] = _real(_of_exponentials(1)), _real(_of_exponentials(-1))
_UNARY["erfinv"] = _real(mpmath.erfinv, {mpf(1): INF, mpf(-1): -INF})
_UNARY["ndtr"] = _real(lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2)
_UNARY["log_ndtr"] = _real(lambda x: mpmath.log(_UNARY["ndtr"](x)), {-INF: -INF})
_UNARY["erfcx"] = _real(lambda x: mpmath.exp(x * x) * mpmath.erfc(x))
_UNARY["logit"] = _real(lambda x: mpmath.log(x / (1 - x)), {mpf(0): -INF, mpf(1): INF})
_UNARY["entr"] = _real(lambda x: -x * mpmath.log(x) if x > 0 else -INF, {mpf(0): mpf(0)})
_UNARY["lgamma"] = _real(lambda x: mpmath.log(abs(mpmath.gamma(x))))
for _order, _bessel in enumerate(("i0", "special_i1")):
    _plain = partial(mpmath.besseli, _order)
    _UNARY[_bessel] = _real(_plain)
    _UNARY[f"special_i{_order}e"] = _real(lambda x, of=_plain: of(x) * mpmath.exp(-abs(x)))
_UNARY["sgn"] = _real(mpmath.sign)
_UNARY["round"] = _real(lambda x: x if mpmath.isinf(x) else mpf(round(x)))
_UNARY["trunc"] = _real(lambda x: mpmath.floor(x) if x > 0 else mpmath.ceil(x))
_UNARY["relu"] = lambda x: x if x != x or x > 0 else mpf(0)
_UNARY["sinc"] = _real(lambda x: mpmath.sin(mp.pi * x) / (mp.pi * x), {mpf(0): mpf(1)})

_BINARY: dict[str, Callable[..., Any]] = {}
_BINARY["mul"] = _multiply
_BINARY["maximum"] = lambda a, b: NAN if a != a or b != b else max(a, b)
_BINARY["minimum"] = lambda a, b: NAN if a != a or b != b else min(a, b)
_BINARY["atan2"] = _real(mpmath.atan2)
_BINARY["hypot"] = _real(mpmath.hypot)
_BINARY["fmod"] = _real(lambda a, b: a - b * _UNARY["trunc"](a / b))
_BINARY["remainder"] = lambda a, b: a - b * mpmath.floor(_divide(a, b))
_BINARY["copysign"] = lambda a, b: abs(a) if b >= 0 else -abs(a)
_BINARY["xlogy"] = _real(_xlogy)
_BINARY["xlog1py"] = _real(lambda a, b: mpf(0) if a == 0 else a * _UNARY["log1p"](b))
_BINARY["logaddexp"] = _real(_logaddexp)
_BINARY["tanh_backward"] = lambda g, y: _multiply(g, 1 - y * y)
_BINARY["sigmoid_backward"] = lambda g, y: _multiply(g, y * (1 - y))

_RUNS: dict[str, Callable[..., Any]] = {}  # by operator: what computes it on exact numbers
_REARRANGES = having("rearranges")


def _runs(*names: str) -> Callable[[F], F]:
    """Register a function as the implementation of these operators."""

    def note(function: F) -> F:
        _RUNS.update(dict.fromkeys(names, function))
        return function

    return note


def _mapped(fn: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    alike = all(a.shape == arrays[0].shape for a in arrays)
    spread = arrays if alike else np.broadcast_arrays(*arrays)
    _work.done += spread[0].size
    return _array([*map(fn, *(a.reshape(-1).tolist() for a in spread))], spread[0].shape)


# --- operators ----------------------------------------------------------------------------------


def _over(fn: Callable[..., Any], *operands: Any) -> Exact:
    """The function of each element."""
    return Exact(_mapped(fn, *map(_numbers, operands)))


def _elementwise(fn: Callable[..., Any], operands: int) -> Callable[..., Any]:
    return lambda func, *args, **kwargs: _over(fn, *args[:operands])


@_runs("pow", "special_pow")
def _raised(func: Any, x: Any, exponent: Any) -> Exact:
    if isinstance(exponent, int | float) and exponent in (1, 2):
        numbers = _numbers(x)
        return Exact(np.asarray(numbers * numbers, dtype=object) if exponent == 2 else numbers)
    return _over(_power, x, exponent)


def _test(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(func: Any, *operands: Any) -> Tensor:
        return torch.from_numpy(_mapped(fn, *map(_numbers, operands)).astype(bool))

    return run


_runs("isnan")(_test(lambda v: v != v))
_runs("isinf")(_test(mpmath.isinf))
_runs("isfinite")(_test(mpmath.isfinite))


@_runs("add")
def _add(func: Any, a: Any, b: Any, *, alpha: Any = 1) -> Exact:
    plus = _plus if alpha == 1 else lambda x, y: _plus(x, y * alpha)
    return _over(plus, a, b)


_runs("sub")(lambda func, a, b, *, alpha=1: _add(func, a, b, alpha=-alpha))
_runs("rsub")(lambda func, a, b, alpha=1: _add(func, b, a, alpha=-alpha))


@_runs("div")
def _div(func: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Exact:
    quotient = _over(_divide, a, b)
    return quotient if rounding_mode is None else _over(_UNARY[rounding_mode], quotient)


@_runs("clamp", "clamp_min")
def _clamp(func: Any, x: Any, low: Any = None, high: Any = None, **named: Any) -> Exact:
    low = named.get("min", low)
    high = named.get("max", high)
    made = _numbers(x)
    if low is not None:
        made = _mapped(lambda a, b: a if a != a or a > b else b, made, _numbers(low))
    if high is not None:
        made = _mapped(lambda a, b: a if a != a or a < b else b, made, _numbers(high))
    return Exact(made)


_runs("clamp_max")(lambda func, x, high: _clamp(func, x, None, high))


@_runs("threshold_backward")
def _threshold_backward(func: Any, g: Any, x: Any, threshold: Any) -> Exact:
    return _over(lambda a, b: mpf(0) if b <= threshold else a, g, x)


@_runs("polygamma")
def _lgamma_derivative(func: Any, n: int, x: Any) -> Exact:
    return _over(_real(lambda v: mpmath.psi(n, v)), x)


def _axes(x: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(x.dim()))
    return tuple(d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim))


def _reduced(
    numbers: np.ndarray, axes: tuple[int, ...], keep: bool, fn: Callable[..., Any]
) -> np.ndarray:
    """The function over the elements along the axes, each list of them in order."""
    _work.done += numbers.size
    if numbers.ndim == 0:
        return _array([fn([numbers.item()])], ())
    kept = [i for i in range(numbers.ndim) if i not in axes]
    many, few = (math.prod(numbers.shape[i] for i in each) for each in (kept, axes))
    rows = numbers.transpose([*kept, *axes]).reshape(many, few)
    shape = [1 if i in axes else n for i, n in enumerate(numbers.shape)]
    out = _array([fn(list(row)) for row in rows], [n for i, n in enumerate(shape) if i in kept])
    return out.reshape(shape) if keep else out


def _total(row: list[Any]) -> Any:
    """The sum of a list, kept in two parts where the digits of one number do not show the other."""
    parts = [part for v in row for part in (_parts(v) if isinstance(v, Sum) else (v,)) if part]
    sizes = [e + bits for _, _, e, bits in (v._mpf_ for v in parts)]
    shown = max(sizes, default=0) - mp.prec // 2
    if all(size > shown for size in sizes) or not all(map(mpmath.isfinite, parts)):
        return mp.fsum(parts)
    large = mp.fsum(v for v, size in zip(parts, sizes, strict=True) if size > shown)
    return Sum.of(large, mp.fsum(v for v, n in zip(parts, sizes, strict=True) if n <= shown))


def _extreme(choose: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda row: NAN if any(v != v for v in row) else choose(row)


def _product(row: list[Any]) -> Any:
    made = mpf(1)
    for v in row:
        made = _multiply(made, v)
    return made


def _mean_of(row: list[Any]) -> Any:
    return _divide(_total(row), mpf(len(row)))


def _reduction(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(func: Any, x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Exact:
        return Exact(_reduced(_numbers(x), _axes(x, dim), keepdim, fn))

    return run


_runs("sum")(_reduction(_total))
_runs("mean")(_reduction(_mean_of))
_runs("prod")(_reduction(_product))


def _with_place(values: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction to an extreme; along a dimension, to its value and its place."""

    def run(func: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        found = values(func, x, dim, keepdim)
        return found if dim is None else (found, place(func, x, dim, keepdim))

    return run


def _place_of_extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def run(func: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
        first = _reduced(_numbers(x), _axes(x, dim), keepdim, lambda row: row.index(choose(row)))
        return torch.from_numpy(first.astype(np.int64))

    return run


for _name, _choose in (("max", max), ("min", min)):
    _values, _place = _reduction(_extreme(_choose)), _place_of_extreme(_choose)
    _runs(f"a{_name}")(_values)
    _runs(_name)(_with_place(_values, _place))
    _runs(f"arg{_name}")(_place)


@_runs("linalg_vector_norm", "norm")
def _norm(
    func: Any, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, **kw: Any
) -> Exact:
    order = 2 if order is None else order

    def size(row: list[Any]) -> Any:
        if any(v != v for v in row):
            return NAN
        if order in (math.inf, -math.inf):
            return (max if order > 0 else min)(abs(v) for v in row)
        if order == 0:
            return mpf(sum(v != 0 for v in row))
        return _power(_total([_power(abs(v), mpf(order)) for v in row]), 1 / mpf(order))

    return Exact(_reduced(_numbers(x), _axes(x, dim), keepdim, size))


def _apart(a: Any, b: Any) -> np.ndarray:
    """The differences of all pairs of rows."""
    x, y = _numbers(a), _numbers(b)
    return np.asarray(x[..., :, None, :] - y[..., None, :, :], dtype=object)


@_runs("_cdist_forward")
def _distances(func: Any, a: Any, b: Any, p: float, *mode: Any) -> Exact:
    return _norm(func, Exact(_apart(a, b)), p, [-1])


@_runs("_cdist_backward")
def _derivative_of_distances(func: Any, g: Any, a: Any, b: Any, p: float, d: Any) -> Exact:
    if not 1 <= p < math.inf:
        raise NotExact(f"the derivative of cdist with p={p} has no exact numbers")

    def slope(each: Any, gap: Any, whole: Any) -> Any:  # torch gives 0 at a distance of 0
        ratio = abs(gap) / whole if whole else mpf(0)
        return _multiply(each, mpmath.sign(gap) * _power(ratio, mpf(p) - 1) if gap else mpf(0))

    gaps = _apart(a, b)
    wide = (np.broadcast_to(_numbers(t)[..., None], gaps.shape) for t in (g, d))
    slopes = _mapped(slope, next(wide), gaps, next(wide))
    return Exact(np.asarray(slopes.sum(axis=-2), dtype=object))


def _spread(root: bool) -> Callable[..., Any]:
    def run(func: Any, x: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Exact:
        if isinstance(dim, bool):  # the overload with `unbiased` alone
            dim, args = None, (dim, *args)
        unbiased = kwargs.get("unbiased", args[0] if args and isinstance(args[0], bool) else None)
        correction = kwargs.get("correction")
        keep = bool(kwargs.get("keepdim", args[1] if len(args) > 1 else False))
        if correction is None and func._schema.name.startswith("prims::"):
            correction = args[0] if args else 0
        less = (1 if unbiased in (None, True) else 0) if correction is None else correction

        def variance(row: list[Any]) -> Any:
            mean = _mean_of(row)
            found = _divide(_total([(v - mean) ** 2 for v in row]), mpf(max(len(row) - less, 0)))
            return _sqrt(found) if root else found

        return Exact(_reduced(_numbers(x), _axes(x, dim), keep, variance))

    return run


_runs("var")(_spread(False))
_runs("std")(_spread(True))


def _cumulative(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(func: Any, x: Any, dim: int, **kwargs: Any) -> Exact:
        numbers = _numbers(x)
        if numbers.ndim == 0:
            return Exact(numbers)
        moved = np.moveaxis(numbers, dim, 0).copy()
        for i in range(1, len(moved)):
            moved[i : i + 1] = _mapped(fn, moved[i - 1 : i], moved[i : i + 1])
        return Exact(np.moveaxis(moved, 0, dim).copy())

    return run


_runs("cumsum")(_cumulative(operator.add))
_runs("cumprod")(_cumulative(_multiply))
_runs("logcumsumexp")(_cumulative(_BINARY["logaddexp"]))


@_runs("mm", "bmm", "mv", "dot")
def _matrix_product(func: Any, a: Any, b: Any) -> Exact:
    left, right = _numbers(a), _numbers(b)
    wide = right.shape[-1] if right.ndim > 1 else 1
    terms = left.shape[-1] * max(left.size // max(left.shape[-1], 1), 1) * wide
    if terms > 8 * MOST_ELEMENTS:
        raise NotExact("the matrices are too large to multiply exactly")
    _work.done += terms // 4
    shape = left.shape[:-1] + (right.shape[-1:] if right.ndim > 1 else ())
    many, few = _wholes(left), _wholes(right)
    # no product is rounded before they are summed, which is the faster way too
    if many is not None and few is not None:
        sums = np.asarray(many[0] @ few[0], dtype=object).reshape(-1).tolist()
        with np.errstate(invalid="ignore"):
            sizes = np.asarray(many[2] @ few[2]).reshape(-1).tolist()
        low, precision = many[1] + few[1], mp.prec
        flat = [
            mp.make_mpf(from_man_exp(v, low, precision, "n")) if math.isfinite(size) else mpf(size)
            for v, size in zip(sums, sizes, strict=True)
        ]
        return Exact(_array(flat, shape))
    columns = np.swapaxes(right, -1, -2) if right.ndim > 1 else right[None]
    batches = zip(left, columns, strict=True) if left.ndim > 2 else [(np.atleast_2d(left), columns)]
    flat = [mp.fdot(row, column) for some, others in batches for row in some for column in others]
    return Exact(_array(flat, shape))


def _wholes(numbers: np.ndarray) -> tuple[np.ndarray, int, np.ndarray] | None:
    """The numbers as Python integers times one shared power of two, and their signs. NumPy
    multiplies integers several times faster. Where a number is not finite, it stands among the
    signs. None where the numbers lie too far apart."""
    values = numbers.reshape(-1).tolist()
    flat = [v._mpf_ for v in values]
    powers = [power for _, digits, power, _ in flat if digits]
    low = min(powers, default=0)
    if max(powers, default=0) - low > MOST_BITS_APART:
        return None
    made = [(-d if minus else d) << (power - low) if d else 0 for minus, d, power, _ in flat]
    signs = [
        (-1.0 if minus else 1.0) if digits else float(v) if power else 0.0
        for v, (minus, digits, power, _) in zip(values, flat, strict=True)
    ]
    return _array(made, numbers.shape), low, np.array(signs).reshape(numbers.shape)


@_runs("addmm", "baddbmm", "addmv")
def _add_product(func: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Exact:
    return _over(lambda x, y: x * beta + y * alpha, c, _matrix_product(func, a, b))


@dataclass
class _Windows:
    """The windows of a convolution: the operand padded with zeros, and the places in it that each
    result reads, in groups of (results, operands)."""

    padded: Exact
    places: np.ndarray
    sizes: list[int]  # of the results
    inner: tuple[slice, ...]  # the operand in the padded one
    kernels: Exact  # (groups, results of each, operands)

    @classmethod
    def of(
        cls, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, more: Any, groups: int
    ) -> _Windows:
        """The windows of a convolution. more: arguments of transposed convolutions, not
        supported."""
        count = weight.dim() - 2
        if more[0] or x.dim() != weight.dim():
            raise NotExact("transposed convolutions are not known for exact numbers")
        around = [p for n in reversed(_each(padding, count)) for p in (n, n)]
        padded = _moved(torch.ops.aten.constant_pad_nd.default, (Exact(_numbers(x)), around), {})
        places = _places(padded.shape)
        steps = zip(weight.shape[2:], _each(stride, count), _each(dilation, count), strict=True)
        for axis, (size, step, apart) in enumerate(steps, 2):
            places = places.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]
        sizes, terms = list(places.shape[2 : count + 2]), math.prod(weight.shape[1:])
        several = places.movedim(1, count + 1).reshape(-1, groups, terms).movedim(1, 0)
        ends = zip(_each(padding, count), x.shape[2:], strict=True)
        inner = (slice(None), slice(None), *(slice(p, p + n) for p, n in ends))
        kernels = Exact(_numbers(weight).reshape(groups, -1, terms))
        return cls(padded, several.numpy(), sizes, inner, kernels)

    @property
    def read(self) -> Exact:
        """The operands of each result."""
        return Exact(self.padded.numbers.reshape(-1)[self.places])


def _each(several: Sequence[int], count: int) -> list[int]:
    return [*several] if len(several) == count else [*several] * count


@_runs("convolution")
def _convolution(
    func: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *more: Any
) -> Exact:
    at = _Windows.of(x, weight, stride, padding, dilation, more, more[-1])
    made = _matrix_product(func, at.read, at.kernels.transpose(1, 2)).numbers.swapaxes(0, 1)
    found = Exact(np.moveaxis(made.reshape(len(x), *at.sizes, len(weight)), -1, 1).copy())
    shape = (-1, *[1] * len(at.sizes))
    return found if bias is None else _add(func, found, Exact(_numbers(bias).reshape(shape)))


@_runs("convolution_backward")
def _derivative_of_convolution(
    func: Any,
    g: Any,
    x: Any,
    weight: Any,
    sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    *more: Any,
) -> tuple[Any, ...]:
    *rest, groups, wanted = more
    at = _Windows.of(x, weight, stride, padding, dilation, rest, groups)
    rows = np.moveaxis(_numbers(g), 1, -1).reshape(at.places.shape[1], groups, -1)
    found: list[Any] = [None, None, g.sum([0, *range(2, g.dim())]) if wanted[2] else None]
    if wanted[0]:
        zeros = _array([mpf(0)] * at.padded.numel(), at.padded.shape)
        parts = _matrix_product(func, Exact(rows.swapaxes(0, 1).copy()), at.kernels)
        whole = _put(zeros, torch.from_numpy(at.places), parts, True)
        found[0] = Exact(whole.numbers[at.inner].copy())
    if wanted[1]:
        made = _matrix_product(func, Exact(np.moveaxis(rows, 0, -1).copy()), at.read)
        found[1] = Exact(made.numbers.reshape(weight.shape))
    return tuple(found)


def _pools(
    x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, *more: Any
) -> tuple[Tensor, int]:
    """The places that each mean reads, as two more dimensions, and the divisor of the sum."""
    if any(padding) or ceil:
        raise NotExact("pooling with padding is not known for exact numbers")
    sizes = _each(kernel, 2)
    places = _places(x.shape)
    for i, (size, step) in enumerate(zip(sizes, _each(stride or kernel, 2), strict=True)):
        places = places.unfold(x.dim() - 2 + i, size, step)
    divisor = more[1] if len(more) > 1 else None
    return places, divisor or math.prod(sizes)


@_runs("avg_pool2d")
def _mean_pooled(func: Any, x: Any, *how: Any) -> Tensor:
    places, count = _pools(x, *how)
    return Exact(_numbers(x).reshape(-1)[places.numpy()]).sum((-1, -2)) / count


@_runs("avg_pool2d_backward")
def _derivative_of_mean_pooled(func: Any, g: Any, x: Any, *how: Any) -> Exact:
    places, count = _pools(x, *how)
    zeros = _array([mpf(0)] * x.numel(), x.shape)
    return _put(zeros, places, (g / count)[..., None, None], True)


@_runs("_adaptive_avg_pool2d_backward")
def _derivative_of_adaptive_pool(func: Any, g: Any, x: Any) -> Exact:
    sizes = [(n // m, n % m) for n, m in zip(x.shape[-2:], g.shape[-2:], strict=True)]
    if any(rest for _, rest in sizes):
        raise NotExact("pools of several sizes are not known for exact numbers")
    return _derivative_of_mean_pooled(func, g, x, [size for size, _ in sizes])


@_runs("addcdiv")
def _add_quotient(func: Any, c: Any, a: Any, b: Any, *, value: Any = 1) -> Exact:
    return _over(lambda x, y, z: x + value * _divide(y, z), c, a, b)


@_runs("addcmul")
def _add_elements(func: Any, c: Any, a: Any, b: Any, *, value: Any = 1) -> Exact:
    return _over(lambda x, y, z: x + value * _multiply(y, z), c, a, b)


def _softmax_row(row: list[Any]) -> list[Any]:
    top = max(row)
    if top > -INF:
        parts = [mpmath.exp(v - top) if v > -INF else mpf(0) for v in row]
    else:
        parts = [NAN] * len(row)
    whole = _total(parts)
    return [_divide(v, whole) for v in parts]  # of the largest what is left to 1, too


def _along(
    numbers: np.ndarray, dim: int, fn: Callable[..., Any], *others: np.ndarray
) -> np.ndarray:
    """Apply a function of rows, which returns rows, along one dimension."""
    if numbers.ndim == 0:
        return _array(fn([numbers.item()], *([o.item()] for o in others)), ())
    arrays = [np.moveaxis(a, dim, -1) for a in (numbers, *others)]
    rows = zip(*(a.reshape(-1, numbers.shape[dim]) for a in arrays), strict=True)
    flat = [v for row in rows for v in fn(*(list(r) for r in row))]
    return np.moveaxis(_array(flat, arrays[0].shape), -1, dim).copy()


@_runs("_softmax")
def _softmax(func: Any, x: Any, dim: int, half: bool = False) -> Exact:
    return Exact(_along(_numbers(x), dim, _softmax_row))


@_runs("_log_softmax")
def _log_softmax(func: Any, x: Any, dim: int, half: bool = False) -> Exact:
    def run(row: list[Any]) -> list[Any]:
        top = max(row)
        if mpmath.isinf(top):
            return [NAN] * len(row)
        whole = top + mpmath.log(_total([mpmath.exp(v - top) if v > -INF else mpf(0) for v in row]))
        return [v - whole for v in row]

    return Exact(_along(_numbers(x), dim, run))


@_runs("_softmax_backward_data")
def _softmax_backward(func: Any, g: Any, y: Any, dim: int, dtype: Any) -> Exact:
    def run(row: list[Any], out: list[Any]) -> list[Any]:
        whole = _total([_multiply(a, b) for a, b in zip(row, out, strict=True)])
        return [_multiply(b, a - whole) for a, b in zip(row, out, strict=True)]

    return Exact(_along(_numbers(g), dim, run, _numbers(y)))


@_runs("_log_softmax_backward_data")
def _log_softmax_backward(func: Any, g: Any, y: Any, dim: int, dtype: Any) -> Exact:
    def run(row: list[Any], out: list[Any]) -> list[Any]:
        whole = _total(row)
        return [a - _multiply(mpmath.exp(b), whole) for a, b in zip(row, out, strict=True)]

    return Exact(_along(_numbers(g), dim, run, _numbers(y)))


def _filled(value: float | None) -> Callable[..., Any]:
    def run(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        if dtype is not None and not dtype.is_floating_point:
            return torch.full(tuple(x.shape), 0 if value is None else value, dtype=dtype)
        number = _numbers(args[0] if value is None else value).reshape(-1)[0]
        return Exact(_array([number] * x.numel(), tuple(x.shape)))

    return run


_runs("zeros_like", "empty_like", "zero")(_filled(0.0))
_runs("ones_like")(_filled(1.0))
_runs("full_like", "fill")(_filled(None))


def _new_filled(value: float | None) -> Callable[..., Any]:
    def run(func: Any, x: Any, size: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        number = _numbers(args[0] if value is None else value).reshape(-1)[0]
        return Exact(_array([number] * math.prod(size), tuple(size)))

    return run


_runs("new_zeros", "new_empty", "new_empty_strided")(_new_filled(0.0))
_runs("new_ones")(_new_filled(1.0))
_runs("new_full")(_new_filled(None))


@_runs("_to_copy")
def _converted(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype.is_complex:
        raise NotExact("complex numbers are not computed exactly")
    if dtype is not None and not dtype.is_floating_point:
        return rounded(x).to(dtype)
    return Exact(x.numbers)


_runs("convert_element_type")(lambda func, x, dtype: _converted(func, x, dtype=dtype))


@_runs("to")
def _to(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    kinds = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    return _converted(func, x, dtype=kinds[0]) if kinds else x


@_runs("sort")
def _sorted(func: Any, x: Any, dim: int = -1, descending: bool = False, **kwargs: Any) -> Any:
    numbers = _numbers(x)
    order = _along(
        numbers, dim, lambda row: sorted(range(len(row)), key=row.__getitem__, reverse=descending)
    )
    places = torch.from_numpy(order.astype(np.int64))
    return x.gather(dim, places), places


@_runs("topk")
def _largest(
    func: Any, x: Any, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> Any:
    values, places = _sorted(func, x, dim, largest)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


@_runs("copy")
def _copy(func: Any, x: Any, source: Any, *args: Any) -> Exact:
    return Exact(np.broadcast_to(_numbers(source), tuple(x.shape)).copy())


def _put(numbers: np.ndarray, places: Tensor, values: Any, adds: bool) -> Exact:
    """Numbers with values written to (or added at) some of their places, one after the other."""
    made = numbers.copy().reshape(-1)
    spread = np.broadcast_to(_numbers(values), tuple(places.shape)).reshape(-1)
    for place, value in zip(places.reshape(-1).tolist(), spread, strict=True):
        made[place] = made[place] + value if adds else value
    return Exact(made.reshape(numbers.shape))


def _places(shape: Sequence[int]) -> Tensor:
    return torch.arange(math.prod(shape)).reshape(tuple(shape))


@_runs("index_put", "_unsafe_index_put")
def _index_put(
    func: Any, x: Any, at: Any, values: Any, accumulate: bool = False, *more: Any
) -> Exact:
    chosen = tuple(slice(None) if i is None else i for i in at)
    return _put(_numbers(x), _places(x.shape)[chosen], values, accumulate)


def _scattered(adds: bool) -> Callable[..., Any]:
    def run(func: Any, x: Any, dim: int, index: Tensor, source: Any) -> Exact:
        places = (
            _places(x.shape).gather(dim, index) if x.dim() else torch.zeros(1, dtype=torch.long)
        )
        if isinstance(source, Tensor):
            source = source[tuple(slice(n) for n in index.shape)]
        return _put(_numbers(x), places, source, adds)

    return run


_runs("scatter_add")(_scattered(True))
_runs("scatter")(_scattered(False))


@_runs("unfold_backward")
def _derivative_of_unfold(
    func: Any, g: Any, size: Sequence[int], dim: int, length: int, step: int
) -> Exact:
    zeros = _array([mpf(0)] * math.prod(size), size)
    return _put(zeros, _places(size).unfold(dim, length, step), g, True)


@_runs("linalg_cross")
def _cross(func: Any, a: Any, b: Any, *, dim: int = -1) -> Exact:
    (x, y, z), (u, v, w) = (
        [np.take(n, i, axis=dim) for i in range(3)] for n in map(_numbers, (a, b))
    )
    return Exact(np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=dim))


@_runs("softplus")
def _softplus(func: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Exact:
    return _over(lambda v: _logaddexp(v * beta, mpf(0)) / beta, x)


@_runs("softplus_backward")
def _derivative_of_softplus(func: Any, g: Any, x: Any, beta: Any, threshold: Any) -> Exact:
    return _over(lambda a, v: _multiply(a, _sigmoid(v * beta)), g, x)


@_runs("log_sigmoid_forward")
def _log_sigmoid(func: Any, x: Any) -> tuple[Exact, Exact]:
    made = _over(lambda v: -_logaddexp(-v, mpf(0)), x)
    return made, made


_runs("log_sigmoid_backward")(_elementwise(lambda g, x: _multiply(g, _sigmoid(-x)), 2))
_runs("_local_scalar_dense")(lambda func, x: float(x.numbers.item()))


@_runs("nan_to_num")
def _nan_to_num(func: Any, x: Any, nan: Any = None, high: Any = None, low: Any = None) -> Exact:
    large = torch.finfo(torch.float64).max

    def run(v: Any) -> Any:
        if v != v:
            return mpf(nan or 0)
        if not mpmath.isinf(v):
            return v
        given, usual = (high, large) if v > 0 else (low, -large)
        return mpf(usual if given is None else given)

    return _over(run, x)


for _name, _function in _UNARY.items():
    _RUNS[_name] = _RUNS[f"special_{_name}"] = _elementwise(_function, 1)
for _name, _function in _BINARY.items():
    _RUNS[_name] = _RUNS[f"special_{_name}"] = _elementwise(_function, 2)
for _name in having("compares"):
    if hasattr(operator, _name):
        _RUNS[_name] = _test(getattr(operator, _name))


@_runs("round")
def _rounds(func: Any, x: Any, *, decimals: int = 0) -> Exact:
    part = mpf(10) ** decimals
    return _over(lambda v: _UNARY["round"](v * part) / part if decimals else _UNARY["round"](v), x)


@_runs("logit", "special_logit")
def _logit(func: Any, x: Any, eps: float | None = None) -> Exact:
    of = _UNARY["logit"]
    if eps is None:
        return _over(of, x)
    return _over(lambda v: of(v if v != v else min(max(v, mpf(eps)), 1 - mpf(eps))), x)


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that only moves elements on the numbers of the elements; number 0 is what it
    fills with."""
    held: list[np.ndarray] = [_array([mpf(0)], (1,))]
    at = 1

    def numbered(x: Any) -> Any:
        nonlocal at
        if isinstance(x, list | tuple):
            return x.__class__(map(numbered, x)) if x.__class__ in (list, tuple) else x
        if isinstance(x, Tensor) and x.is_floating_point():
            held.append(_numbers(x).reshape(-1))
            at += x.numel()
            return torch.arange(at - x.numel(), at).reshape(x.shape)
        return x

    name = func._schema.name
    if name in ("aten::where", "aten::masked_fill", "aten::constant_pad_nd"):
        wide = partial(torch.tensor, dtype=torch.float64)  # of numbers put among the elements
        args = (*args[:1], *(wide(a) if type(a) in (int, float) else a for a in args[1:]))
    moved_args = tuple(map(numbered, args))
    moved_kwargs = {key: numbered(value) for key, value in kwargs.items()}
    if name == "aten::constant_pad_nd" and len(args) > 2:
        held[0] = _array([mpf(float(args[2]))], (1,))
        moved_args = (*moved_args[:2], 0)
    if name == "aten::masked_fill":
        source, mask, value = moved_args
        found: Any = torch.where(mask, value, source)
    elif name == "aten::where":
        found = torch.where(*moved_args)
    else:
        found = func(*moved_args, **moved_kwargs)
    pool = np.concatenate(held)

    def back(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return list(map(back, x)) if isinstance(x, list) else tuple(map(back, x))
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point():
            raise NotExact(f"{name} does more than move elements")
        places = x.numpy()
        return Exact(pool[places.reshape(-1)].reshape(places.shape))

    return back(found)


def _viewed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view: the same pool, other places."""
    x = args[0]
    if not isinstance(x, Exact):
        raise NotExact(f"{func._schema.name} views a tensor of another kind")
    places = torch.from_numpy(x.places)
    if "as_strided" in func._schema.name and x.pool.size != x.places.size:
        raise NotExact("a strided view of a view is not known for exact numbers")
    try:
        found = func(places, *args[1:], **kwargs)
    except RuntimeError:  # the recorded tensor lay otherwise in memory
        found = func(places.contiguous(), *args[1:], **kwargs)

    if isinstance(found, Tensor):
        return Exact(found.numpy(), x.pool)
    several = [Exact(y.numpy(), x.pool) for y in found]
    return several if isinstance(found, list) else tuple(several)
