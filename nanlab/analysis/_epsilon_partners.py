"""What an epsilon meets inside a function: the tensors it is added to, or is the floor of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nanlab.formats import FloatFormat
from nanlab.operators import having, with_forms

_ADDS = with_forms("add", in_place=True)
_FLOORS = having("floors", in_place=True)


@dataclass(frozen=True)
class Partners:
    """Median magnitudes of the non-zero elements that eps meets; None: no such operation was seen."""

    addend: float | None  # of what eps is added to
    typical: float | None  # of that and of what eps is the floor of


class _Meetings(TorchDispatchMode):
    """Collects the tensors that a certain number is added to, or is the floor of. Tried with torch 2.13."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number
        self.addends: list[Tensor] = []
        self.floored: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without it the first call would import the compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _ADDS | _FLOORS and any(self._is_number(a) for a in args):
            met = [a.clone().flatten().abs() for a in args if isinstance(a, Tensor) and not self._is_number(a)]
            (self.addends if name in _ADDS else self.floored).extend(met)
        return func(*args, **(kwargs or {}))

    def _is_number(self, a: Any) -> bool:
        if isinstance(a, Tensor):
            return a.numel() == 1 and math.isclose(a.item(), self.number, rel_tol=1e-6)
        return isinstance(a, float) and a == self.number


def partners(call: Callable[[list[Tensor], float], Tensor], exact: list[Tensor]) -> Partners:
    """What eps meets in the function, found by calling it with a number it will hardly hold otherwise."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _Meetings(math.pi * 2.0**-20) as meetings:
        torch.default_generator.manual_seed(0)
        call([t.clone() for t in exact], meetings.number)
    return Partners(_median(meetings.addends), _median(meetings.addends + meetings.floored))


def _median(sizes: list[Tensor]) -> float | None:
    """Median of the non-zero finite elements of all; None without any."""
    found = torch.cat([t.double() for t in sizes]) if sizes else torch.zeros(0)
    found = found[torch.isfinite(found) & (found > 0)]
    return float(found.median()) if found.numel() else None


def half_ulp(magnitude: float, limits: FloatFormat) -> float:
    """Half the spacing of the dtype's numbers at ``magnitude``: less, added to it, changes nothing."""
    exponent = max(math.frexp(magnitude)[1] - 1, limits.smallest_exponent)
    return math.ldexp(limits.ulp, exponent - 1)
