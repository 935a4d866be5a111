"""Recorded operations as functions of one operand, with the Python numbers that were noted of
them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanlab.analysis.fixes._neighbours import MOVES
from nanlab.stats import TensorStats
from nanlab.trace.recording import DTYPE, Recording

Step = Callable[..., Tensor]

# Of one tensor and nothing else, so that they can be run again.
_UNARY = frozenset(
    """log log2 log10 log1p lgamma sqrt rsqrt reciprocal exp expm1 sinh cosh abs neg square tanh
    sigmoid relu acos asin
    acosh atanh atan sin cos erf erfinv""".split()
)
# What puts values beside others, and what takes some of them: those that were spoilt, where the
# result was spoilt as well.
JOINS = frozenset("cat stack".split())
PICKS = frozenset("index index_select gather split split_with_sizes unbind masked_select".split())
_SHIFTS = frozenset("add sub rsub".split())
_CLAMPS = frozenset("clamp clamp_min clamp_max".split())


def function_of(
    recording: Recording, name: str, call: int, row: tuple[int, ...], slots: list[int], alone: bool
) -> tuple[Step, bool] | None:
    """The function, and whether it is exactly what ran."""
    if name in MOVES | JOINS or (name == "copy" and alone):
        return same, True
    if name in PICKS:
        stats = recording.stats(call)
        return (same, True) if stats is not None and bad_elements(stats) else None
    if name == "_to_copy":
        dtype = recording.dtypes.items[row[DTYPE]]
        return (lambda t: t.to(dtype)), True
    if name in _UNARY and alone:
        function: Step = getattr(torch, name)
        return function, True
    if name in _CLAMPS and alone:
        return _clamped(recording, name, call)
    if name in _SHIFTS and alone:
        return _shifted(recording, name, call)
    if name == "pow" and slots == [0]:
        return _power(recording, call) if alone else _power_of_tensor(recording, call)
    if name in ("mul", "div"):
        return _scaled(recording, name, call, slots, alone)
    return None


def same(t: Tensor) -> Tensor:
    """What moves a value, or multiplies it by what is not known."""
    return t


def _clamped(recording: Recording, name: str, call: int) -> tuple[Step, bool] | None:
    bounds, stats = recording.scalars.get(call, ()), recording.stats(call)
    if not bounds or stats is None or stats.min is None:
        return None
    if len(bounds) == 2:
        return (lambda t: t.clamp(*bounds)), True
    if name == "clamp_min" or (name == "clamp" and bounds[0] <= stats.min):
        return (lambda t: t.clamp_min(bounds[0])), True
    return (lambda t: t.clamp_max(bounds[0])), True


def _shifted(recording: Recording, name: str, call: int) -> tuple[Step, bool] | None:
    """A sum with a Python number; 1 - x where it was not recorded."""
    numbers = recording.scalars.get(call, ())
    if len(numbers) != 1:
        return ((lambda t: 1.0 - t), False) if name == "rsub" else None
    number = numbers[0]
    if name == "rsub":
        return (lambda t: number - t), True
    return (lambda t: t + number if name == "add" else t - number), True


def bad_elements(stats: TensorStats) -> int:
    """How many elements are no finite numbers."""
    return stats.nan + stats.posinf + stats.neginf


def _power(recording: Recording, call: int) -> tuple[Step, bool]:
    """A power by a Python number."""
    numbers = recording.scalars.get(call, ())
    return ((lambda t: t ** numbers[0]), True) if len(numbers) == 1 else (same, False)


def _power_of_tensor(recording: Recording, call: int) -> tuple[Step, bool] | None:
    """A power by a tensor, of which only the range was recorded: its lowest exponent, which is the
    one to fear at 0."""
    read = recording.operands(call)
    stats = recording.stats(read[1][0]) if len(read) == 2 else None
    lowest = stats.min if stats is not None else None
    return None if lowest is None else ((lambda t: t**lowest), False)


def _scaled(
    recording: Recording, name: str, call: int, slots: list[int], alone: bool
) -> tuple[Step, bool] | None:
    """A product or quotient; what it is multiplied with counts as 1 where it is not known."""
    numbers = recording.scalars.get(call, ())
    if alone and len(numbers) == 1:
        return (lambda t: t * numbers[0] if name == "mul" else t / numbers[0]), True
    if len(slots) > 1:
        return (torch.square, True) if name == "mul" else None
    if name == "div" and slots == [1]:
        return torch.reciprocal, False
    return same, False
