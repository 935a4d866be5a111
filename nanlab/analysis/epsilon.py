"""Which epsilon? A sweep over powers of two, each judged in the dtype at hand against float64."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from nanlab.errors import TypeMismatchError, UsageError
from nanlab.formats import FloatFormat, format_of
from nanlab.operators import having, with_forms
from nanlab.program.rebuild import same_bits
from nanlab.trace.mode import DispatchMode, aside


def checked_operands(x: Any) -> list[Tensor]:
    """The tensors that an epsilon is asked for; raises as :func:`nanlab.advise_eps` says."""
    operands = list(x) if isinstance(x, tuple | list) else [x]
    for t in operands:
        if not isinstance(t, Tensor):
            raise TypeMismatchError(f"expected x to be a tensor or several, got {type(t).__name__}")
        if not t.is_floating_point():
            raise TypeMismatchError(f"expected x in floating point, got {t.dtype}; pass x.float()")
        bad = int((~torch.isfinite(t)).sum())
        if bad:
            raise UsageError(
                f"{bad} of {t.numel()} elements of x are NaN or inf already; no epsilon cures these"
            )
    if not sum(t.numel() for t in operands):
        raise UsageError("x holds no elements; pass the data that the function meets in training")
    return operands


def caller(
    fn: Callable[..., Any], operands: list[Tensor]
) -> Callable[[list[Tensor], float], Tensor]:
    """A function of (operands, eps) that calls ``fn`` in the way its signature allows."""
    if not callable(fn):
        raise TypeMismatchError(f"expected a function fn(x, eps), got {type(fn).__name__}")
    spread, by_name = _call_style(fn, operands)

    def call(tensors: list[Tensor], eps: float) -> Tensor:
        args = tensors if spread else [tuple(tensors)]
        result = fn(*args, eps=eps) if by_name else fn(*args, eps)
        if not isinstance(result, Tensor) or result.is_complex():
            kind = result.dtype if isinstance(result, Tensor) else type(result).__name__
            raise TypeMismatchError(f"expected fn(x, eps) to return a real tensor, got {kind}")
        return result

    return call


def _call_style(fn: Callable[..., Any], operands: list[Tensor]) -> tuple[bool, bool]:
    """Whether ``fn`` takes operands one by one (or as a tuple), and whether eps by name."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # functions of C have none: taken as fn(x, eps)
        return True, False
    for spread, by_name in itertools.product((True, False), (True, False)):
        args = operands if spread else [tuple(operands)]
        if (spread or len(operands) > 1) and _binds(signature, args, by_name):
            return spread, by_name
    count = "x" if len(operands) == 1 else f"{len(operands)} tensors"
    raise UsageError(
        f"expected a function of {count} and eps, got fn{signature}; write e.g. lambda x, eps: ..."
    )


def _binds(signature: inspect.Signature, args: Sequence[Any], by_name: bool) -> bool:
    try:
        _ = signature.bind(*args, eps=0.0) if by_name else signature.bind(*args, 0.0)
    except TypeError:
        return False
    return True


_ADDS = with_forms("add", in_place=True)
_FLOORS = having("floors", in_place=True)


@dataclass(frozen=True)
class Partners:
    """Median magnitudes of the non-zero elements that eps meets; None: no such operation."""

    addend: float | None  # of what eps is added to
    typical: float | None  # of that and of what eps is the floor of


class _Meetings(DispatchMode):
    """Collects tensors that a number is added to or bounds. Tried with torch 2.13."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number
        self.addends: list[Tensor] = []
        self.floored: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        others = [a for a in args if not self._is_number(a)] if name in _ADDS | _FLOORS else args
        if len(others) < len(args):
            met = [a.clone().flatten().abs() for a in others if isinstance(a, Tensor)]
            (self.addends if name in _ADDS else self.floored).extend(met)
        return func(*args, **(kwargs or {}))

    def _is_number(self, a: Any) -> bool:
        if isinstance(a, Tensor):
            return a.numel() == 1 and math.isclose(a.item(), self.number, rel_tol=1e-6)
        return isinstance(a, float) and a == self.number


def partners(call: Callable[[list[Tensor], float], Tensor], exact: list[Tensor]) -> Partners:
    """What eps meets in the function, found by a call with a number unlikely otherwise."""
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        _Meetings(math.pi * 2.0**-20) as meetings,
    ):
        torch.default_generator.manual_seed(0)
        call([t.clone() for t in exact], meetings.number)
    return Partners(_median(meetings.addends), _median(meetings.addends + meetings.floored))


def _median(sizes: list[Tensor]) -> float | None:
    """Median of the non-zero finite elements of all; None without any."""
    found = torch.cat([t.double() for t in sizes]) if sizes else torch.zeros(0)
    found = found[torch.isfinite(found) & (found > 0)]
    return float(found.median()) if found.numel() else None


def half_ulp(magnitude: float, limits: FloatFormat) -> float:
    """Half the spacing of the dtype's numbers at ``magnitude``: less changes nothing."""
    exponent = max(math.frexp(magnitude)[1] - 1, limits.smallest_exponent)
    return math.ldexp(limits.ulp, exponent - 1)


# the largest gradient stays this factor below the dtype's maximum: room for sums and loss scales
HEADROOM = 16.0
ULPS = 4.0  # distortion that the rounding of a few operations costs anyhow
LEAST_TOLERANCE = 2.0**-13  # 1.2e-4: a relative change below the noise of any mini-batch
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CURE = "compute this operation in a wider dtype, or use nanlab.safe without an epsilon"
_DECADE = 4  # powers of two beyond the smallest number, a little over a factor of ten
COLUMNS = {
    "eps": "Float64",  # a power of two
    "in_dtype": "Float64",  # what the dtype makes of it
    "representable": "bool",  # whether that is not 0
    # has no effect: value and gradient have the bits that they have with eps = 0
    "vanishes": "bool",
    # at most half an ulp of the typical element it is added to; <NA>: no addition was seen
    "absorbed": "boolean",
    "finite_value": "bool",
    "finite_gradient": "bool",  # true of no gradient too
    # largest change of a healthy element against float64 without eps, see _distortion
    "value_distortion": "Float64",
    "gradient_distortion": "Float64",
    "gradient_max": "Float64",  # largest finite magnitude; <NA>: the result is not differentiable
    "usable": "bool",  # representable, all finite, largest gradient with headroom
}


@dataclass(frozen=True)
class EpsilonAdvice:
    """What each epsilon costs and gives, and the one to take."""

    recommended: float | None  # None: no epsilon makes the function finite in this dtype
    reason: str
    table: pd.DataFrame  # a row per epsilon, smallest first, columns as in COLUMNS
    dtype: torch.dtype
    tolerance: float  # distortion that was held to be harmless

    def told(self) -> str:
        """The epsilon to take, and why."""
        value = "none" if self.recommended is None else f"{self.recommended:.2g}"
        return f"{value} in {format_of(self.dtype).name}: {self.reason}"

    def __repr__(self) -> str:
        return f"EpsilonAdvice({self.told()})"

    def plot(self, ax: Any = None) -> Any:
        """Draw distortion and largest gradient over eps on the axes ``ax``; returns the axes."""
        from nanlab.views.plots import plot_epsilon

        return plot_epsilon(self, ax)


@dataclass(frozen=True)
class _Outcome:
    """Value and gradient of the user's function at one epsilon, flat, in float64."""

    value: Tensor
    # of value.sum() in all operands, one after the other; None: not differentiable
    gradient: Tensor | None

    def same_as(self, other: _Outcome) -> bool:
        """Whether every number is the same, NaN too."""
        pairs = [(self.value, other.value), (self.gradient, other.gradient)]
        return all(same_bits(a, b) for a, b in pairs if a is not None and b is not None)


def check_tolerance(tolerance: object) -> None:
    """Raises TypeMismatchError where it is no number."""
    if not isinstance(tolerance, Real):
        raise TypeMismatchError(f"expected a number for tolerance, got {tolerance!r}; try: 0.01")


@aside()
def advise_eps(
    fn: Callable[..., Tensor],
    x: Tensor | Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    tolerance: float | None = None,
) -> EpsilonAdvice:
    """The epsilon to use in ``fn(x, eps)`` for data like ``x`` in ``dtype``.

    fn: returns a tensor of any shape; its gradient is that of the sum. Of several tensors it takes
        each as an argument, ``fn(a, b, eps)``, or all as one. Called once per power of two, on
        copies, with the same random seed.
    x: floating-point tensor, or several, all finite; holding elements that need the epsilon (zeros)
        and ones that do not.
    dtype: float16, bfloat16, float32 or float64, by default that of ``x``.
    tolerance: distortion held to be harmless; by default 4 ulp of the dtype, and at least 2**-13.

    The healthy elements are those of value and gradient that are finite in float64 with eps = 0;
    distortion is the largest change that eps and dtype together make to one of them, relative to
    its magnitude or to the median magnitude, whichever is larger. The choice is the *largest* eps
    that

    1. the dtype does not round to 0,
    2. makes every value and gradient finite, with the largest gradient a factor 16 below the
       dtype's maximum,
    3. distorts by no more than ``tolerance``, or twice what the dtype's rounding costs with eps =
       0,
    4. is below that share of the median magnitude of what it is added to, or is the floor of, where
       that is seen.

    Largest, because up to there it costs nothing and tames the gradient most. Where none passes 3
    and 4, the one that distorts least is taken, and the reason says so. Where none passes 2, each
    changes some healthy element by more than its size, or no element is healthy, ``recommended`` is
    None.

    Raises TypeMismatchError (a TypeError) where ``fn`` cannot be called or returns no tensor, for
    integer and complex tensors and other dtypes; UsageError (a ValueError) where ``fn`` does not
    take an eps, ``x`` is empty or already holds NaN or inf.
    """
    operands = checked_operands(x)
    dtype = operands[0].dtype if dtype is None else dtype
    if tolerance is not None:
        check_tolerance(tolerance)
    if dtype not in _DTYPES:
        raise TypeMismatchError(
            "expected dtype torch.float16, torch.bfloat16, torch.float32 or torch.float64, got"
            f" {dtype!r}"
        )
    call = caller(fn, operands)
    exact = [t.detach().to(dtype).double() for t in operands]
    if not all(torch.isfinite(t).all() for t in exact):
        raise UsageError(
            f"x holds values beyond the range of {dtype}; scale it, or ask for a wider dtype"
        )
    limits = format_of(dtype)
    tolerance = max(ULPS * limits.ulp, LEAST_TOLERANCE) if tolerance is None else tolerance
    reference = _evaluate(call, exact, torch.float64, 0.0)
    met = partners(call, exact)
    plain = _evaluate(call, exact, dtype, 0.0)
    rows = [
        _judge(eps, call, exact, limits, reference, plain, met.addend)
        for eps in _sweep(limits, met.typical)
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    rounding = max(
        _distortion(plain.value, reference.value) or 0.0,
        _distortion(plain.gradient, reference.gradient) or 0.0,
    )
    recommended, reason = _choose(table, max(tolerance, 2 * rounding), met.typical, limits)
    return EpsilonAdvice(recommended, reason, table, dtype, tolerance)


def _evaluate(
    call: Callable[[list[Tensor], float], Tensor],
    exact: list[Tensor],
    dtype: torch.dtype,
    eps: float,
) -> _Outcome:
    """Value and gradient computed in ``dtype``, returned in float64."""
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in exact]
        result = call([t.clone() for t in leaves], eps)  # fn may write into its argument
        value = result.detach().double().flatten()
        if not result.requires_grad:
            return _Outcome(value, None)
        found = torch.autograd.grad(result.sum(), leaves, allow_unused=True, materialize_grads=True)
    return _Outcome(value, torch.cat([g.double().flatten() for g in found]))


def _sweep(limits: FloatFormat, typical: float | None) -> Iterator[float]:
    """Powers of two from below the dtype's smallest number to 1, or above the addend."""
    lowest = round(math.log2(limits.smallest_subnormal)) - _DECADE
    above = math.ceil(math.log2(typical)) + _DECADE if typical else 0
    highest = min(max(0, above), limits.largest_exponent)
    return (math.ldexp(1.0, k) for k in range(max(lowest, -1074), highest + 1))


def _judge(
    eps: float,
    call: Callable[[list[Tensor], float], Tensor],
    exact: list[Tensor],
    limits: FloatFormat,
    reference: _Outcome,
    plain: _Outcome,
    addend: float | None,
) -> dict[str, Any]:
    """One row of the table. reference: without eps in float64; plain: without eps in the dtype."""
    held = float(torch.tensor(eps, dtype=torch.float64).to(limits.dtype).double())
    seen = _evaluate(call, exact, limits.dtype, eps)
    finite_value, finite_gradient = bool(torch.isfinite(seen.value).all()), True
    gradient_max = None
    if seen.gradient is not None:
        finite = torch.isfinite(seen.gradient)
        gradient_max = float(torch.where(finite, seen.gradient.abs(), 0.0).max())
        finite_gradient = bool(finite.all())
    fits = gradient_max is None or gradient_max * HEADROOM <= limits.max
    return {
        "eps": eps,
        "in_dtype": held,
        "representable": held != 0,
        "vanishes": seen.same_as(plain),
        "absorbed": None if addend is None else held <= half_ulp(addend, limits),
        "finite_value": finite_value,
        "finite_gradient": finite_gradient,
        "value_distortion": _distortion(seen.value, reference.value),
        "gradient_distortion": _distortion(seen.gradient, reference.gradient),
        "gradient_max": gradient_max,
        "usable": held != 0 and finite_value and finite_gradient and fits,
    }


def _distortion(value: Tensor | None, reference: Tensor | None) -> float | None:
    """Largest change of an element, among those finite in both; None where there is no such
    element.

    Relative to the reference, or to its median magnitude where that is larger: a gradient that is
    almost 0 by cancellation has no digits to lose. Near a singularity, where eps acts, gradients
    are large.
    """
    if value is None or reference is None:
        return None
    both = torch.isfinite(value) & torch.isfinite(reference)
    value, reference = value[both], reference[both]
    if not value.numel():
        return None
    size = reference.abs()
    median = float(size[size > 0].median()) if (size > 0).any() else 1.0
    return float(((value - reference).abs() / size.clamp_min(median)).max())


def _choose(
    table: pd.DataFrame, limit: float, typical: float | None, limits: FloatFormat
) -> tuple[float | None, str]:
    """The recommended eps and why."""
    usable = table[table["usable"]]
    distortion = usable[["value_distortion", "gradient_distortion"]].max(axis=1)
    if len(usable) and distortion.isna().all():
        return None, (
            "x holds no element that is finite without an epsilon, so what one costs cannot be"
            " measured: give it such elements beside those that need one"
        )
    distortion = distortion.fillna(0.0)
    if usable.empty or distortion.min() > 1:
        return None, _why_none(table, limits)
    harmless = usable[(distortion <= limit) & (usable["eps"] <= limit * (typical or math.inf))]
    if harmless.empty:
        best = int(distortion.argmin())
    else:
        best = int(usable["eps"].searchsorted(harmless["eps"].max()))
    eps, gradient_max = float(usable["eps"].iloc[best]), usable["gradient_max"].iloc[best]
    cost = f"it changes healthy elements by at most {float(distortion.iloc[best]):.2g}"
    last = f"; the largest gradient is {float(gradient_max):.2g}" if pd.notna(gradient_max) else ""
    if not harmless.empty:
        return eps, f"the largest that is harmless; {cost} (limit {limit:.2g}){last}"
    return eps, (
        f"no epsilon that is finite in {limits.name} with headroom stays within {limit:.2g};"
        f" {eps:.2g} distorts least: {cost}{last}; {_CURE}"
    )


def _why_none(table: pd.DataFrame, limits: FloatFormat) -> str:
    """What fails at every epsilon."""
    held = table[table["representable"]]
    if held["usable"].any():
        return (
            f"each epsilon that is finite in {limits.name} changes a healthy element by more than"
            f" its size; {_CURE}"
        )
    for part in ("value", "gradient"):
        if not held[f"finite_{part}"].any():
            return (
                f"the {part} is not finite in {limits.name} at any epsilon: what fails is not at 0;"
                f" {_CURE}"
            )
    ceiling = limits.max / HEADROOM
    return (
        f"no epsilon in {limits.name} keeps all finite and the largest gradient below"
        f" {ceiling:.1e}; {_CURE}"
    )
