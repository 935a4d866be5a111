"""Series of a function around a removable singularity, found through the function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.polynomial.chebyshev import cheb2poly
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nanlab.errors import NanlabError, TypeMismatchError

POINTS = 64  # on the circle, or nodes on the line
TERMS = 26  # of them kept: at half the radius what follows is below float64's rounding
WORST = 1e-11  # share of a series that may stand where a series has nothing
ROUNDED = 1e-6  # the same of a function with numbers of float32 in it, as shares that add up to 1
RADII = tuple(2.0**-k for k in range(44))
MAPPED = 12  # radii that are tried under vmap, all of them
APART = 16  # radii at which a kink on the line is told from rounding
KINKED = 1e-3  # share of what a function varies that the last terms of |x| have; they have more
NOISE = 1e-13  # share of a constant that is rounding
NODES = 32  # on the line: more of them resolve no further digit


class NotRemovableError(NanlabError, ValueError):
    """A function has a pole, branch point or jump instead of a removable singularity."""


@dataclass(frozen=True, slots=True)
class Series:
    """A power series around a point: coefficients[k] belongs to (x - at)**k."""

    coefficients: Tensor  # float64 [terms, ...]; carries gradients of what the function closes over
    radius: float  # of the circle it was taken from; right to float64's rounding in half of it

    def __call__(self, distance: Tensor) -> Tensor:
        """The sum of the series at a distance from the point, by Horner's rule."""
        total = self.coefficients[-1]
        for c in reversed(self.coefficients[:-1].unbind(0)):
            total = total * distance + c
        return total


def series(
    fn: Callable[[Tensor], Tensor],
    at: Tensor | float = 0.0,
    dims: int = 0,
    apart: bool = False,
    worst: float = WORST,
) -> Series:
    """The series of ``fn`` around ``at``.

    fn: of real tensors, element by element; of complex ones too where its operators know them.
    dims: number of dimensions that the function's argument shall have; results are [terms, *shape].
    apart: it is called with one number after the other, as it may do more with other tensors than
    take them element by element.
    worst: share of it that may stand where a series has nothing.
    By Cauchy's integral over a circle in complex128; where that does not do, from values on both
    sides of the point. Raises NotRemovableError where there is no such series.
    """
    center = torch.as_tensor(at, dtype=torch.float64)
    center = center.detach().reshape((1,) * max(dims - center.dim(), 0) + tuple(center.shape))
    called = _one_by_one(fn) if apart else fn
    found = _on_circle(called, center, worst) or _on_line(called, center, worst)
    if isinstance(found, Series):
        return found
    place = (
        f"at {float(center.reshape(-1)[0]):g}" if center.numel() == 1 else "at one of the points"
    )
    raise NotRemovableError(
        f"the function has {found} {place}, so no value continues it; write what it is to be there"
    )


def _one_by_one(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda several: torch.stack([fn(each) for each in several.unbind(0)])


def _on_circle(fn: Callable[[Tensor], Tensor], center: Tensor, worst: float) -> Series | None:
    """The series by Cauchy's integral; None where that shows none."""
    circle = _circle(center)
    of_reals: bool | None = None
    for radius in RADII:
        try:
            with torch.autocast(center.device.type, enabled=False), _Double():
                values = fn(center + radius * circle)
                if of_reals is None:  # what is complex for real numbers has complex coefficients
                    of_reals = not fn(center + radius * circle.real[:1]).is_complex()
        except Exception:  # an operator that knows no complex numbers
            return None
        if not values.is_complex() or values.shape[:1] != (POINTS,):
            return None
        if not bool(values.isfinite().all()):
            continue
        bins = _integrals(values)
        size = bins.detach().abs()
        largest = size.amax(0).clamp_min(torch.finfo(torch.float64).tiny)
        rest = (size[POINTS // 2 :].amax(0) / largest).amax()
        crooked = (bins.detach().imag[: POINTS // 2].abs().amax(0) / largest).amax()
        if float(rest) <= worst and (not of_reals or float(crooked) <= worst):
            return Series(_scaled(bins[:TERMS].real if of_reals else bins[:TERMS], radius), radius)
    return None


def _circle(center: Tensor) -> Tensor:
    """Points around the center, as many dimensions behind the first as it has."""
    number = torch.arange(POINTS, dtype=torch.float64, device=center.device)
    # on the real line itself a function such as acos(x) / sqrt(1 - x**2) has two signs at 1
    angle = 2 * math.pi * (number + 0.5) / POINTS
    return _along(torch.polar(torch.ones_like(angle), angle), center.dim())


def _integrals(values: Tensor) -> Tensor:
    """Cauchy's integrals of values on that circle, one for each power."""
    number = torch.arange(POINTS, dtype=torch.float64, device=values.device)
    turned = torch.polar(torch.ones_like(number), -math.pi * number / POINTS)
    bins: Tensor = torch.fft.fft(values, dim=0) / POINTS
    return bins * _along(turned, values.dim() - 1)


def _along(numbers: Tensor, dims: int) -> Tensor:
    spread: Tensor = numbers.reshape(-1, *(1,) * dims)
    return spread


def _scaled(bins: Tensor, radius: float) -> Tensor:
    powers: Tensor = radius ** -torch.arange(len(bins), dtype=torch.float64, device=bins.device)
    return bins * _along(powers, bins.dim() - 1)


def _on_line(fn: Callable[[Tensor], Tensor], center: Tensor, worst: float) -> Series | str:
    """The series from Chebyshev nodes around the point, or what the function has instead of one."""
    nodes = _nodes(center)
    largest_values: list[float] = []
    for radius in RADII[:APART]:
        with torch.autocast(center.device.type, enabled=False), _Double():
            values = fn(center + radius * nodes)
        finite = values.isfinite().reshape(NODES, -1).all(1)
        if not bool(finite.all()):
            if bool(finite[: NODES // 2].all()) != bool(finite[NODES // 2 :].all()):
                largest_values.append(math.nan)
            continue
        part = _chebyshev(values)
        rest, largest, smooth = _rest(part)
        if float((rest / largest).amax()) <= worst and bool(smooth.all()):
            return Series(_scaled(_powers(part[: NODES * 2 // 3]), radius), radius)
        largest_values.append(float(values.detach().abs().max()))
    return _other(largest_values)


def _nodes(center: Tensor) -> Tensor:
    """Chebyshev's nodes from -1 to 1, as many dimensions behind the first as the center has."""
    j = torch.arange(NODES, dtype=torch.float64, device=center.device)
    return _along(torch.cos(math.pi * (j + 0.5) / NODES), center.dim())


def _chebyshev(values: Tensor) -> Tensor:
    """Coefficients of Chebyshev's polynomials from values at those nodes."""
    j = torch.arange(NODES, dtype=torch.float64, device=values.device)
    rows = torch.cos(j[:, None] * math.pi * (j[None, :] + 0.5) / NODES) * 2 / NODES
    rows[0] /= 2
    made: Tensor = torch.tensordot(rows, values, dims=([1], [0]))
    return made


def _rest(part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the last of those coefficients have, what the largest has, and whether that is smooth
    and no kink."""
    size = part.detach().abs()
    largest = size.amax(0).clamp_min(torch.finfo(torch.float64).tiny)
    rest, varies = size[NODES * 2 // 3 :].amax(0), size[1:].amax(0)
    return rest, largest, (rest <= KINKED * varies) | (rest <= NOISE * largest)


def _other(largest: list[float]) -> str:
    """What a function has that has no series, from its largest values at distances that halve."""
    if not largest or math.isnan(largest[-1]):
        return "values on one side only"
    if len(largest) < 9 or largest[-9] == 0:
        return "no series"
    growth = math.log2(largest[-1] / largest[-9]) / 8
    if growth > 0.9 and abs(growth - round(growth)) < 0.05:
        return f"a pole of order {round(growth)}"
    return "a branch point" if growth > 0.02 else "a jump or a kink"


def _powers(part: Tensor) -> Tensor:
    """Coefficients of powers from those of Chebyshev's polynomials."""
    columns = [cheb2poly([0.0] * k + [1.0]) for k in range(len(part))]
    rows = torch.tensor([[*c, *[0.0] * (len(part) - len(c))] for c in columns], dtype=torch.float64)
    powers: Tensor = torch.tensordot(rows.T.to(part.device), part, dims=([1], [0]))
    return powers


class _Double(TorchFunctionMode):
    """Operands in float64, closed-over ones too: else they are singular elsewhere."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one function."""
        return func(*map(_wide, args), **{name: _wide(x) for name, x in (kwargs or {}).items()})


def _wide(x: Any) -> Any:
    if x.__class__ is list or x.__class__ is tuple:
        return x.__class__(map(_wide, x))
    low = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
    return x.double() if low else x


def _tensor(result: Any) -> Tensor:
    """What a function gave. Raises TypeMismatchError where that is no tensor."""
    if not isinstance(result, Tensor):
        raise TypeMismatchError(f"expected fn to return a tensor, got {type(result).__name__}")
    return result


def removable(
    fn: Callable[[Tensor], Tensor], x: Tensor | float, at: Tensor | float = 0.0
) -> Tensor:
    """``fn(x)``, by its series around ``at`` near it: value and derivatives of any order are right
    there.

    fn: a function of one tensor, each element of its result of that element alone (of a single
    number any function), that is analytic but for a removable singularity at ``at``, as ``lambda
    x: torch.sin(x) / x`` at 0. It is called with float64 numbers, and, to find the series, with
    complex ones; where it knows no complex numbers, with real ones on both sides of the point. What
    it closes over gets its gradient too.
    x: the tensor, or a Python number, which fn takes as a tensor without dimensions.
    at: a number, or a tensor that broadcasts with x.
    Raises NotRemovableError where fn has a pole, a branch point or a jump at ``at``,
    TypeMismatchError for a fn or x that is none.
    Guarantees: away from ``at`` the value is fn's in float64, rounded to x's dtype once (to that of
    what fn makes of it, where x is a number); near it, the series', right to float64's rounding.
    A NaN that came in stays NaN.
    """
    if not callable(fn):
        raise TypeMismatchError(f"expected a function of one tensor, got {type(fn).__name__}")
    if isinstance(x, int | float):
        with torch.no_grad():
            dtype = _tensor(fn(torch.tensor(float(x)))).dtype
        taken = torch.promote_types(dtype, torch.float32)
        return removable(fn, torch.tensor(x, dtype=taken), at).to(dtype)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeMismatchError(f"expected x to be a tensor of floating-point numbers, got {got}")
    wide = x.double()
    with torch.no_grad(), _Double():
        dims = _tensor(fn(wide)).dim()  # of what it closes over too
    radius: float | Tensor
    try:
        place = torch.as_tensor(at, dtype=torch.float64, device=x.device)
    except (TypeError, ValueError, RuntimeError):
        raise TypeMismatchError(f"expected at to be a number or a tensor, got {at!r}") from None
    point = place.detach()
    if is_mapped():
        ahead = (1,) * max(x.dim() - place.dim(), dims - place.dim(), 0)
        called = _one_by_one(fn) if x.dim() == 0 == place.dim() else fn
        worst = WORST if x.dtype == torch.float64 else ROUNDED
        power_series, radius = _of_each(called, place.reshape((*ahead, *place.shape)), worst)
    else:
        apart = x.dim() == 0 == place.dim()
        dims = 0 if apart else max(x.dim(), dims)
        if x.dim() and not _is_elementwise(fn, wide):
            apart, at = True, place.expand(x.shape)
            point = at.detach()
        try:
            power_series = series(fn, at, dims, apart)
        except NotRemovableError:
            if x.dim() and x.numel() == 1 == point.numel():  # it may sum: of a single number
                return removable(lambda t: fn(t.reshape(x.shape)), x.reshape(()), point.reshape(()))
            if x.dtype == torch.float64:
                raise
            power_series = series(fn, at, dims, apart, ROUNDED)
        radius = power_series.radius
    distance = wide - point
    reach = radius / 2
    near = distance.detach().abs() < reach
    away = _inside(fn, point, 1.5 * reach)
    with torch.autocast(x.device.type, enabled=False), _Double():
        outside = fn(torch.where(near, away, wide))
    inside = power_series(torch.where(near, distance, 0.0))
    made = torch.where(near, inside, outside)
    return made.to(x.dtype.to_complex() if made.is_complex() else x.dtype)


def _is_elementwise(fn: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a function makes of several tensors in one what it makes of each.

    Raises NotRemovableError where it makes a number of several elements of one.
    """
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False), _Double():
        one, other = 1.01 * x + 0.01, 1.02 * x + 0.02
        each = torch.stack([fn(one), fn(other)])
        if x.numel() > 1:
            _check_apart(fn, one, other, each)
        ahead = (1,) * (each.dim() - 1 - x.dim())  # of what it closes over
        try:
            together = fn(torch.stack([one, other]).reshape(2, *ahead, *x.shape))
        except Exception:
            return False
    return together.shape == each.shape and torch.allclose(together, each, equal_nan=True)


def _check_apart(fn: Callable[[Tensor], Tensor], one: Tensor, other: Tensor, each: Tensor) -> None:
    """Raise NotRemovableError where an element of the result comes from several of its tensor's.

    each: its results for two tensors.
    """
    index = torch.arange(one.numel(), device=one.device).reshape(one.shape)
    for chosen in (index % 2 == 0, index < one.numel() // 2):
        expected = torch.where(chosen, each[0], each[1])
        got = fn(torch.where(chosen, one, other))
        if got.shape != expected.shape or not torch.allclose(got, expected, equal_nan=True):
            raise NotRemovableError(
                "the function makes a number of several elements of x, where no series of one"
                " element continues it"
            )


def is_mapped() -> bool:
    """Whether torch.vmap is running: no sample may decide what is computed."""
    functorch = torch._C._functorch  # of torch 2.6 to 2.13
    stack = functorch.get_interpreter_stack() or ()
    return any(each.key() == functorch.TransformType.Vmap for each in stack)


def _of_each(fn: Callable[[Tensor], Tensor], center: Tensor, worst: float) -> tuple[Series, Tensor]:
    """Each sample's series from the largest radius that does, and that radius; NaN: none. What has
    no better one has one with the rounding of float32 in it, if worst is that."""
    center = center.detach()
    try:
        return _largest(functools.partial(_circled, fn, center), worst)
    except Exception:  # an operator that knows no complex numbers
        return _largest(functools.partial(_lined, fn, center), worst)


def _largest(
    taken: Callable[[float], tuple[Tensor, Tensor]], worst: float
) -> tuple[Series, Tensor]:
    """The coefficients from the largest radius that does, for each sample. taken: the coefficients
    from a radius, and the share of them that stands where a series has nothing."""
    coefficients = radius = None
    found = [(tried, *taken(tried)) for tried in reversed(RADII[:MAPPED])]
    for most in dict.fromkeys((worst, WORST)):
        for tried, made, share in found:
            if coefficients is None or radius is None:
                coefficients = torch.full_like(made, math.nan)
                radius = torch.full_like(made[0].detach(), tried)
            coefficients = torch.where(share <= most, made, coefficients)
            radius = torch.where(share <= most, tried, radius)
    assert coefficients is not None
    assert radius is not None
    return Series(coefficients, RADII[0]), radius


def _circled(
    fn: Callable[[Tensor], Tensor], center: Tensor, radius: float
) -> tuple[Tensor, Tensor]:
    with torch.autocast(center.device.type, enabled=False), _Double():
        values = fn(center + radius * _circle(center))
    if not values.is_complex():
        raise NotRemovableError("the function gives no complex numbers")
    bins = _integrals(values)
    size = bins.detach().abs()
    largest = size.amax(0).clamp_min(torch.finfo(torch.float64).tiny)
    off = torch.maximum(size[POINTS // 2 :].amax(0), bins.detach().imag.abs().amax(0))
    share = torch.where(values.isfinite().all(0), off / largest, math.inf)
    return _scaled(bins[:TERMS].real, radius), share


def _lined(fn: Callable[[Tensor], Tensor], center: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    with torch.autocast(center.device.type, enabled=False), _Double():
        values = fn(center + radius * _nodes(center))
    part = _chebyshev(values)
    rest, largest, smooth = _rest(part)
    share = torch.where(values.isfinite().all(0) & smooth, rest / largest, math.inf)
    return _scaled(_powers(part[: NODES * 2 // 3]), radius), share


def _inside(fn: Callable[[Tensor], Tensor], point: Tensor, distance: float | Tensor) -> Tensor:
    """A place on that side of the point on which the function has values."""
    above, below = point + distance, point - distance
    with torch.no_grad(), torch.autocast(point.device.type, enabled=False), _Double():
        found = fn(above)
    if is_mapped():
        return torch.where(found.isfinite(), above, below)
    if bool(found.isfinite().all()):
        return above
    if found.shape != above.shape:
        return below
    return torch.where(found.isfinite(), above, below)
