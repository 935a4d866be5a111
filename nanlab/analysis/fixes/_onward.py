"""What follows an operation, run on its new value: a fix that only moves the NaN to the next line
cures nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._following import made_of, name_of
from nanlab.analysis.fixes._neighbours import MOVES
from nanlab.analysis.fixes._replay import JOINS, PICKS, Step, bad_elements, function_of, same
from nanlab.trace.recording import BACKWARD, LINE, NODE, OP, PHASE, Recording

MOST_STEPS = 6  # operations after the failed one; views are not counted
MOST_PATHS = 32

_PASSED_ON = MOVES | JOINS | PICKS | {"copy"}
_HIDES = frozenset("where masked_fill nan_to_num nansum nanmean".split())
_NAMES = {
    "div": "division",
    "reciprocal": "division",
    "sqrt": "root",
    "rsqrt": "root",
    "pow": "power",
}


@dataclass(frozen=True)
class Onward:
    """One recorded operation as a function of one of its operands."""

    name: str
    line: int
    run: Step
    # False: a number or tensor in it was not recorded; only what becomes of a 0 is told
    known: bool
    carries: bool  # whether it passes on a gradient
    bad: int  # elements of its result that were not finite
    passed: int | None  # and of them those that came through the mask that follows; None: none does
    shared: bool  # it divides something else that carries a gradient

    @property
    def title(self) -> str:
        """In words: ``the logarithm at line 3``."""
        named = (
            "logarithm"
            if self.name in ("log", "log2", "log10")
            else _NAMES.get(self.name, self.name)
        )
        return f"the {named} at line {self.line}"


Path = tuple[Onward, ...]


def paths_after(recording: Recording, position: int) -> tuple[Path, ...]:
    """The ways on from a result, as far as they can be run again; the longer ones hold the
    shorter."""
    waiting: list[tuple[int, Path]] = [(position, ())]
    found: list[Path] = []
    for at, path in islice(waiting, MOST_PATHS):
        for call, slots in _readers(recording, at).items():
            step = _step(recording, call, slots)
            if step is None:
                continue
            longer = path if step.name in _PASSED_ON else (*path, step)
            if len(longer) < MOST_STEPS:
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


def _step(recording: Recording, call: int, slots: list[int]) -> Onward | None:
    """A call as a function of the result that it reads; None where it cannot be run again."""
    row = recording.row(call)
    assert row is not None
    name = recording.ops.items[row[OP]].rstrip("_")
    alone = len(recording.operands(call)) == len(slots) == 1
    made = function_of(recording, name, call, row, slots, alone)
    if made is None:
        return None
    run, known = made
    return Onward(
        name,
        recording.places[row[LINE]][1],
        run,
        known,
        carries=row[NODE] >= 0,
        bad=_bad(recording, call),
        passed=max(
            (_bad(recording, c) for c in made_of(recording, call) if _hides(recording, c)),
            default=None,
        ),
        shared=name == "div"
        and slots == [1]
        and not alone
        and _carries(recording, recording.parents(call)[0]),
    )


def _bad(recording: Recording, position: int) -> int:
    stats = recording.stats(position)
    return 0 if stats is None else bad_elements(stats)


def _hides(recording: Recording, position: int) -> bool:
    row = recording.row(position)
    return row is not None and name_of(recording, row) in _HIDES


def _carries(recording: Recording, position: int) -> bool:
    """Whether a row or source carries a gradient, as far as is known."""
    row = recording.row(position) if position >= 0 else None
    return row[NODE] >= 0 if row is not None else position < 0


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
    """What becomes of a changed operation's value on the ways onward; None where nothing bad was
    seen.

    wanted: places of the operands that carry a gradient. incoming: the gradient that came into the
    operation.
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
            found = _divides_others(path, now, spoilt) if backward else _lost(path, now, spoilt)
            if (
                found is None
                and wanted
                and all(step.carries for step in path)
                and _steep(path, now, zero)
            ):
                found = _lost_backward(path, changed, plain, operands, wanted, zero)
            if found is not None:
                return found
    return None


def _steep(path: Path, value: Tensor, zero: Tensor) -> bool:
    """Whether the way has an infinite derivative somewhere: without one it does no harm to a finite
    gradient."""
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
    """The first step that makes a finite value infinite or NaN: of an element that was spoilt, or
    on its own account."""
    known = True
    for step in path:
        after, known = step.run(value), known and step.known
        if step.name == "pow" and not step.known:
            if bool((spoilt & (value < 0)).any()):
                return Doubt(
                    f"{step.title} may be taken of a negative number that comes of it", False
                )
            if step.run is same:
                return None
        lost = spoilt & torch.isfinite(value) & ~torch.isfinite(after)
        if not known:
            lost = lost & (value == 0)
        hidden = step.passed is not None and step.passed < step.bad  # then the gradient tells
        if bool(lost.any()) and not hidden:
            return _named(step, value[lost])
        others = ~spoilt & torch.isfinite(value) & ~torch.isfinite(after)
        reached = step.passed is None or step.passed > int(spoilt.sum())
        if reached and bool((others if known else others & (value == 0)).any()):
            return Doubt(f"{step.title} is not finite for other elements, too", False)
        value = after
    return None


def _divides_others(path: Path, value: Tensor, spoilt: Tensor) -> Doubt | None:
    """A 0 that is divided by, though nothing arrives there: 0 / 0 is the gradient of what is
    divided."""
    for step in path:
        if step.shared and bool((spoilt & (value == 0)).any()):
            return Doubt(f"{step.title} divides by the 0 that comes of it", True)
        value = step.run(value)
    return None


def _named(step: Onward, value: Tensor) -> Doubt:
    if bool((value == 0).all()):
        text = (
            "divides by the 0"
            if step.name in ("div", "reciprocal", "rsqrt")
            else "is taken of the 0"
        )
        return Doubt(f"{step.title} {text} that comes of it", True)
    return Doubt(f"{step.title} is not finite for what comes of it", True)


def _lost_backward(
    path: Path,
    changed: Step,
    plain: Step,
    operands: Sequence[Any],
    wanted: Sequence[int],
    zero: Tensor,
) -> Doubt | None:
    """The last step of the way, if the gradient of spoilt elements is finite without it, and not
    with it.

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
            return Doubt(
                f"{path[-1].title} has an infinite derivative at what comes of it",
                all(s.known for s in path),
            )
    return None


def _gradients(value: Tensor, leaves: list[Any], zero: Tensor) -> tuple[Tensor, ...]:
    """Of the sum of the finite elements of a value, without those that are told."""
    wanted = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
    if not value.requires_grad:
        return tuple(torch.zeros_like(t) for t in wanted)
    start = torch.isfinite(value.detach()) & ~zero
    return torch.autograd.grad(
        (value * start.to(value.dtype)).sum(), wanted, allow_unused=True, materialize_grads=True
    )
