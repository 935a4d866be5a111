"""Recorded operations as functions of one operand: the numbers in them are told by what became of the elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nanlab.analysis.fixes._neighbours import MOVES
from nanlab.stats import TensorStats
from nanlab.trace.recording import DTYPE, Recording

Step = Callable[..., Tensor]

# Of one tensor and nothing else, so that they can be run again.
_UNARY = frozenset(
    """log log2 log10 log1p lgamma sqrt rsqrt reciprocal exp expm1 sinh cosh abs neg square tanh sigmoid relu acos asin
    acosh atanh atan sin cos erf erfinv""".split()
)
_SHIFTS = frozenset("add sub rsub".split())
_CLAMPS = frozenset("clamp clamp_min clamp_max".split())


def function_of(
    recording: Recording, name: str, at: int, call: int, row: tuple[int, ...], slots: list[int], alone: bool
) -> tuple[Step, bool] | None:
    """The function, and whether it is exactly what ran."""
    if name in MOVES:
        return _same, True
    if name == "_to_copy":
        dtype = recording.dtypes.items[row[DTYPE]]
        return (lambda t: t.to(dtype)), True
    if name in _UNARY and alone:
        function: Step = getattr(torch, name)
        return function, True
    if name in _CLAMPS and alone:
        return _clamped(recording, name, call)
    if name in _SHIFTS and alone:
        return _shifted(recording, name, at, call)
    if name == "pow" and alone and slots == [0]:
        return _power(recording, at, call)
    if name in ("mul", "div"):
        return _scaled(recording, name, at, call, slots, alone)
    return None


def _same(t: Tensor) -> Tensor:
    return t


def _clamped(recording: Recording, name: str, call: int) -> tuple[Step, bool] | None:
    bounds, stats = recording.bounds.get(call, ()), recording.stats(call)
    if not bounds or stats is None or stats.min is None:
        return None
    if len(bounds) == 2:
        return (lambda t: t.clamp(*bounds)), True
    if name == "clamp_min" or (name == "clamp" and bounds[0] <= stats.min):
        return (lambda t: t.clamp_min(bounds[0])), True
    return (lambda t: t.clamp_max(bounds[0])), True


def _shifted(recording: Recording, name: str, at: int, call: int) -> tuple[Step, bool] | None:
    """A sum with a Python number, told by what became of the other elements; 1 - x where there are none."""
    before, after = recording.stats(at), recording.stats(call)
    sign = -1.0 if name == "rsub" else 1.0
    if before is None or after is None or before.max is None or after.max is None:
        return ((lambda t: 1.0 - t), False) if name == "rsub" else None
    shift = after.max - (sign * before.max if sign > 0 else -before.min)
    return (lambda t: sign * t + shift), True


def bad_elements(stats: TensorStats) -> int:
    """How many elements are no finite numbers."""
    return stats.nan + stats.posinf + stats.neginf


def _power(recording: Recording, at: int, call: int) -> tuple[Step, bool] | None:
    """A power by a number, told by its other elements; None where some base was negative: it is a whole number then."""
    before, after = recording.stats(at), recording.stats(call)
    if (
        before is None
        or after is None
        or (before.min is not None and before.min < 0 and after.nan <= bad_elements(before))
    ):
        return None
    base = before.max
    if not base or not after.max or not after.min or base == 1 or after.min <= 0 or not before.min or before.min < 0:
        return _same, False
    for top, bottom in ((after.max, after.min), (after.min, after.max)):
        p = math.log(top) / math.log(base)
        if abs(math.log(bottom) - p * math.log(before.min)) < 1e-2 * max(1.0, abs(math.log(bottom))):
            return partial(_raised, p=p), True
    return _same, False


def _raised(t: Tensor, p: float) -> Tensor:
    return t**p


def _scaled(
    recording: Recording, name: str, at: int, call: int, slots: list[int], alone: bool
) -> tuple[Step, bool] | None:
    """A product or quotient; what it is multiplied with counts as 1 where it is not known."""
    if alone:
        factor = _ratio(recording, at, call)
        return ((lambda t: t * factor), True) if factor else (_same, False)
    if len(slots) > 1:
        return (torch.square, True) if name == "mul" else None
    if name == "div" and slots == [1]:
        return torch.reciprocal, False
    return _same, False


def _ratio(recording: Recording, at: int, call: int) -> float:
    """The Python number that a result was multiplied by, told by its finite elements; 0 where they do not tell."""
    before, after = recording.stats(at), recording.stats(call)
    if before is None or after is None or before.max is None or after.max is None:
        return 0.0
    for low, high in ((after.min, after.max), (after.max, after.min)):
        found = [b / a for a, b in ((before.max, high), (before.min, low)) if a]
        if found and (len(found) == 2 or high * low == 0) and abs(found[0] - found[-1]) <= 1e-3 * abs(found[0]):
            return float(found[0])
    return 0.0
