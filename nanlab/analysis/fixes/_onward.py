"""What follows an operation, run on its new value: a fix that only moves the NaN to the next line cures nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._neighbours import MOVES
from nanlab.trace.recording import BACKWARD, DTYPE, LINE, NODE, OP, PHASE, Recording

MOST_STEPS = 3  # operations after the failed one; views are not counted
MOST_PATHS = 16
Step = Callable[[Tensor], Tensor]

# Of one tensor and nothing else, so that they can be run again.
_UNARY = frozenset(
    """log log2 log10 log1p lgamma sqrt rsqrt reciprocal exp expm1 sinh cosh abs neg square tanh sigmoid relu acos asin
    acosh atanh atan sin cos erf erfinv""".split()
)
_SHIFTS = frozenset("add sub rsub".split())
_CLAMPS = frozenset("clamp clamp_min clamp_max".split())
_HIDES = frozenset("where masked_fill nan_to_num nansum nanmean".split())
_NAMES = {"div": "division", "reciprocal": "division", "sqrt": "root", "rsqrt": "root", "pow": "power"}


@dataclass(frozen=True)
class Onward:
    """One recorded operation as a function of one of its operands."""

    name: str
    line: int
    run: Step
    known: bool  # False: a number or tensor in it was not recorded; only what becomes of a 0 is told
    carries: bool  # whether it passes on a gradient
    hidden: bool  # its result goes through a mask, which may hide what is bad of it

    @property
    def title(self) -> str:
        """In words: ``the logarithm at line 3``."""
        named = "logarithm" if self.name in ("log", "log2", "log10") else _NAMES.get(self.name, self.name)
        return f"the {named} at line {self.line}"


Path = tuple[Onward, ...]


def paths_after(recording: Recording, position: int) -> tuple[Path, ...]:
    """The ways on from a result, as far as they can be run again; the longer ones hold the shorter."""
    waiting: list[tuple[int, Path]] = [(position, ())]
    found: list[Path] = []
    for at, path in islice(waiting, MOST_PATHS):
        for call, slots in _readers(recording, at).items():
            step = _step(recording, at, call, slots)
            if step is None:
                continue
            longer = path if step.name in MOVES else (*path, step)
            if len(longer) < MOST_STEPS and step.name != "pow":
                waiting.append((call, longer))
            if longer:
                found.append(longer)
    return tuple(dict.fromkeys(found))


def _readers(recording: Recording, position: int) -> dict[int, list[int]]:
    """The forward calls that read a result, and in which places."""
    edges = recording.chunk_of(position).edge_table()
    found: dict[int, list[int]] = {}
    for call, _, slot in edges[edges[:, 1] == position].tolist():
        row = recording.row(call)
        if row is not None and row[PHASE] != BACKWARD:
            found.setdefault(call, []).append(slot)
    return found


def _step(recording: Recording, at: int, call: int, slots: list[int]) -> Onward | None:
    """A call as a function of the result that it reads; None where it cannot be run again."""
    row = recording.row(call)
    assert row is not None
    name = recording.ops.items[row[OP]].rstrip("_")
    alone = len(recording.operands(call)) == len(slots) == 1
    made = _function(recording, name, at, call, row, slots, alone)
    if made is None:
        return None
    run, known = made
    names = (recording.ops.items[recording.row(c)[OP]] for c in _readers(recording, call))  # type: ignore[index]
    hidden = any(reader.rstrip("_") in _HIDES for reader in names)
    return Onward(name, recording.places[row[LINE]][1], run, known, row[NODE] >= 0, hidden)


def _function(
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


def _power(recording: Recording, at: int, call: int) -> tuple[Step, bool] | None:
    """A power by a number, told by its other elements; None where some base was negative: it is a whole number then."""
    before, after = recording.stats(at), recording.stats(call)
    if before is None or after is None or (before.min is not None and before.min < 0):
        return None
    base = before.max
    if not base or not after.max or not after.min or base == 1 or after.min <= 0:
        return _same, False
    for top, bottom in ((after.max, after.min), (after.min, after.max)):
        p = math.log(top) / math.log(base)
        if before.min and abs(math.log(bottom) - p * math.log(before.min)) < 1e-2 * max(1.0, abs(math.log(bottom))):
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
    if before is None or after is None or not before.max or after.max is None or not before.min or after.min is None:
        return 0.0
    for low, high in ((after.min, after.max), (after.max, after.min)):
        first, second = high / before.max, low / before.min
        if abs(first - second) <= 1e-3 * abs(first):
            return float(first)
    return 0.0


@dataclass(frozen=True)
class Doubt:
    """Why what follows stays bad."""

    why: str
    sure: bool  # it was run on the very value; False: a number in it was not recorded


def followed(
    paths: Sequence[Path],
    changed: Step,
    plain: Step,
    operands: Sequence[Any],
    wanted: Sequence[int],
    incoming: Tensor | None = None,
    backward: bool = False,
) -> Doubt | None:
    """What becomes of a changed operation's value on the ways onward; None where nothing bad was seen.

    wanted: places of the operands that carry a gradient. incoming: the gradient that came into the operation.
    backward: the value reached no loss, so that no gradient but 0 comes back to it.
    Judged are only the elements that were bad before the change.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        with torch.no_grad():
            before, now = plain(*operands), changed(*operands)
        if now.shape != before.shape:
            return None
        spoilt = ~torch.isfinite(before)
        zero = torch.zeros_like(spoilt)
        if backward:
            fits = incoming is not None and incoming.shape == zero.shape
            zero = spoilt | (incoming == 0) if fits else spoilt
        for path in paths:
            found = None if backward else _lost(path, now, spoilt)
            if found is None and wanted and all(step.carries for step in path) and _steep(path, now, zero):
                found = _lost_backward(path, changed, plain, operands, wanted, zero)
            if found is not None:
                return found
    return None


def _steep(path: Path, value: Tensor, zero: Tensor) -> bool:
    """Whether the way has an infinite derivative somewhere: without one it does no harm to a finite gradient."""
    with torch.enable_grad():
        leaf = value.detach().clone().requires_grad_()
        (slope,) = _gradients(_end(path, leaf), [leaf], zero)
    return not bool(torch.isfinite(slope).all())


def _end(path: Path, value: Tensor) -> Tensor:
    for step in path:
        value = step.run(value)
    return value


def _leaves(operands: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
    return [
        t.detach().clone().requires_grad_(i in wanted and (t.is_floating_point() or t.is_complex()))
        if isinstance(t, Tensor)
        else t
        for i, t in enumerate(operands)
    ]


def _lost(path: Path, value: Tensor, spoilt: Tensor) -> Doubt | None:
    """The first step that makes a finite value infinite or NaN, among the elements that were spoilt."""
    known = True
    for step in path:
        after, known = step.run(value), known and step.known
        if step.name == "pow" and not step.known:
            lost = spoilt & (value < 0)
            return (
                Doubt(f"{step.title} may be taken of a negative number that comes of it", False) if lost.any() else None
            )
        lost = spoilt & torch.isfinite(value) & ~torch.isfinite(after)
        if not known:
            lost = lost & (value == 0)
        if bool(lost.any()):
            return None if step.hidden else _named(step, value[lost])
        value = after
    return None


def _named(step: Onward, value: Tensor) -> Doubt:
    if bool((value == 0).all()):
        text = "divides by the 0" if step.name in ("div", "reciprocal", "rsqrt") else "is taken of the 0"
        return Doubt(f"{step.title} {text} that comes of it", True)
    return Doubt(f"{step.title} is not finite for what comes of it", True)


def _lost_backward(
    path: Path, changed: Step, plain: Step, operands: Sequence[Any], wanted: Sequence[int], zero: Tensor
) -> Doubt | None:
    """The last step of the way, if the gradient of spoilt elements is finite without it, and not with it.

    zero: the elements to which no gradient comes back.
    """
    with torch.enable_grad():
        old, leaves = _leaves(operands, wanted), _leaves(operands, wanted)
        own = _gradients(plain(*old), old, torch.zeros_like(zero))
        found = _gradients(_end(path, changed(*leaves)), leaves, zero)
    for was, now in zip(own, found, strict=True):
        bad = ~torch.isfinite(now)
        spoilt = ~torch.isfinite(was) | (zero if zero.shape == was.shape else torch.zeros_like(bad))
        if bool((bad & spoilt).any()):
            return Doubt(f"{path[-1].title} has an infinite derivative at what comes of it", all(s.known for s in path))
    return None


def _gradients(value: Tensor, leaves: list[Any], zero: Tensor) -> tuple[Tensor, ...]:
    """Of the sum of the finite elements of a value, without those that are told."""
    wanted = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
    if not value.requires_grad:
        return tuple(torch.zeros_like(t) for t in wanted)
    start = torch.isfinite(value.detach()) & ~zero
    return torch.autograd.grad((value * start.to(value.dtype)).sum(), wanted, allow_unused=True, materialize_grads=True)
