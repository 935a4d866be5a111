"""What an update was made of: a gradient and its size, its sign, the weights themselves, a gradient that the program enlarged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanlab.analysis.training import Runaway, optimizer_step_that_began
from nanlab.capture.flushes import CASTS, outputs
from nanlab.history import SCALED, Loss, OptimizerStep, Place
from nanlab.operators import having, with_forms
from nanlab.trace.recording import BACKWARD, Recording
from nanlab.trace.training_frames import parameter_columns

ENLARGED = 2.0  # times: gradients that the program itself made larger before an update
SIGNS = having("sign", in_place=True, lists=True)
MOST_HOPS = 12  # multiplications between a gradient and what is added
MOST_VISITS = 2000  # operations that are walked back over
ADDS = having("updates", in_place=True) - with_forms("addcdiv", in_place=True) | {"_foreach_add", "_foreach_sub"}
LINEAR = with_forms("mul", "div", lists=True) | {"neg"}
RISES = 3  # inner updates in a row after each of which the weights are larger ...
ROSE = 20.0  # ... and bits by which they are in the end


@dataclass(frozen=True, slots=True)
class InnerUpdates:
    """Updates inside of a training step whose results grow from one to the next."""

    position: int  # of the last
    count: int
    first: float  # largest magnitude of the first result
    last: float


def depends_on_gradient(recording: Recording, line: int, op: str, position: int) -> bool:
    """Whether what the last update by ``op`` in a line before a position added depends on the size of a gradient.

    A sign is that of a gradient of any size, and a multiple of the weights has none in it. True where that cannot be told.
    """
    rows = [r.position for r in recording.all_ops() if r.position < position and r.place == line and r.name == op]
    if not rows or (row := recording.op(rows[-1])) is None:
        return True
    targets = outputs(recording, row.call)
    own = [source for source, slot in recording.operands(rows[-1]) if slot % targets == row.output]
    if not own:
        return True
    seen, waiting = set(own[:1]), [s for s in own[1:] if s != own[0]]
    for at in waiting:
        made = recording.op(at)
        if made is None and at not in seen and at >= 0:
            return True
        if made is None or at in seen or made.name in SIGNS or len(seen) > MOST_VISITS:
            continue
        if made.backward:
            return True
        seen.add(at)
        waiting.extend(recording.parents(at))
    return False


def enlarged_gradients(recording: Recording, step: OptimizerStep) -> tuple[Place, float] | None:
    """(operation, factor): what the program made the gradients larger with before an optimizer step; None if it did not.

    A factor that is a Python number is none of that: it belongs to the learning rate.
    """
    edit = next((e for e in recording.training.edits if e.position == step.end - 1), None)
    if edit is None or edit.at is None or edit.constant:
        return None
    blocks = parameter_columns(recording)
    rows = (blocks["position"] == edit.position) & blocks["used_known"] & blocks["gradient_known"]

    def norm(of: str) -> float:
        return float(np.sqrt(np.nansum(blocks[f"{of}_rms"][rows] ** 2 * blocks[f"{of}_numel"][rows])))

    before, after = norm("gradient") / edit.scale, norm("used")
    return (edit.at, after / before) if before > 0 and after >= ENLARGED * before else None


def undivided_factor(recording: Recording, away: Runaway) -> Loss | None:
    """The loss whose factor, put on by hand, was still on the gradients that drove a parameter away; None if it was not.

    Between the backward pass and the update they must have become smaller by it, or nearly so: they may be clipped as well.
    """
    step = optimizer_step_that_began(recording, away.position)
    number = recording.step_of(step.position) if step is not None else None
    losses = [r for r in recording.training.losses if number in (None, recording.step_of(r.position)) and not r.scaled]
    loss = next((r for r in losses if SCALED <= r.factor < math.inf), None)
    if loss is None:
        return None
    shares = _used_shares(recording, away, step) if step is not None else _added_shares(recording, away)
    return loss if any(share > loss.factor**-0.5 for share in shares) else None


def _used_shares(recording: Recording, away: Runaway, step: OptimizerStep) -> list[float]:
    """How large the gradients of a parameter were that an optimizer took, to those that backward made."""
    blocks = parameter_columns(recording)
    rows = (blocks["owner"] == recording.parameter_names.index(away.name)) & (blocks["position"] < step.end)
    rows &= blocks["used_known"] & blocks["gradient_known"] & (blocks["gradient_rms"] > 0)
    rows &= blocks["used_nan"] + blocks["used_inf"] == 0
    with np.errstate(over="ignore", invalid="ignore"):
        shares: list[float] = (blocks["used_rms"][rows] / blocks["gradient_rms"][rows]).tolist()
    return shares


def _added_shares(recording: Recording, away: Runaway) -> list[float]:
    """The same of an update by hand, from the largest magnitudes of what it added and of the gradient that was made from."""
    series, owner = recording.training.series, recording.parameter_names.index(away.name)
    own = [c for c, o in series.owners.items() if c >= 0 and o == owner]
    column = next((c for c in own if (series.places[c].op, series.places[c].line) == (away.op, away.place)), -1)
    added = series.parents[column][-1:] if column >= 0 else ()
    gradient = added[0] if added else -1
    for _ in range(MOST_HOPS):
        place = series.places[gradient] if gradient >= 0 else None
        if place is None or place.phase == BACKWARD or place.op not in LINEAR | CASTS:
            break
        gradient = next(iter(series.parents[gradient]), -1)
    if gradient < 0 or series.places[gradient].phase != BACKWARD:
        return []
    with np.errstate(invalid="ignore"):  # of infinities
        logs = series.table[:, added[0]] - series.table[:, gradient]
    return [float(2.0**x) for x in logs[np.isfinite(logs)]]


def closure_adds_up(recording: Recording, step: OptimizerStep) -> bool:
    """Whether an optimizer evaluated its closure more than once, each time adding to the gradients of the time before."""
    inside = [loss for loss in recording.training.losses if step.position <= loss.position < step.end]
    return len(inside) > 1 and all(loss.adds for loss in inside[1:])


def inner_updates(recording: Recording, position: int) -> InnerUpdates | None:
    """The updates by gradients, inside of the training step, that drove away what a result was computed from.

    An inner loop, as of meta-learning: ``w = w - rate * g``. None if there is none, or if its weights did not grow from update to update.
    """
    start = recording.starts[max(recording.step_of(position), 0)] if recording.starts else 0
    for update in _updates_before(recording, position, start):
        row = recording.op(update)
        assert row is not None
        alike = (row.place, row.name, row.shape)
        rows = [
            r.position
            for r in recording.all_ops()
            if start <= r.position <= update and (r.place, r.name, r.shape) == alike
        ]
        sizes = [_largest(recording, at) for at in rows]
        first = len(sizes) - 1
        while first > 0 and 0.0 < sizes[first - 1] < sizes[first]:
            first -= 1
        if len(sizes) - 1 - first >= RISES and np.log2(sizes[-1]) - np.log2(sizes[first]) >= ROSE:
            return InnerUpdates(update, len(sizes) - first, sizes[first], sizes[-1])
    return None


def _updates_before(recording: Recording, position: int, start: int) -> Iterator[int]:
    """Sums upstream of a result, the nearest first, in which a multiple of a gradient is added."""
    seen, waiting = {position}, [position]
    for at in waiting:
        row = recording.op(at)
        if row is None or len(seen) > MOST_VISITS:
            continue
        parents = recording.parents(at)
        if not row.backward and row.name in ADDS and any(_is_gradient(recording, p) for p in parents):
            yield at
            continue  # what came before belongs to earlier updates
        for parent in parents:
            if parent >= start and parent not in seen:
                seen.add(parent)
                waiting.append(parent)


def _is_gradient(recording: Recording, position: int) -> bool:
    """Whether a row is one of a backward pass, or a multiple of one."""
    row = recording.op(position)
    if row is None or row.backward:
        return row is not None
    linear = row.name in LINEAR
    made = [recording.op(p) for p in recording.parents(position) if p >= 0] if linear else []
    return any(r is not None and r.backward for r in made)


def _largest(recording: Recording, position: int) -> float:
    """The largest finite magnitude of a row; 0 if it has none."""
    stats = recording.stats(position)
    return max(abs(stats.min), abs(stats.max)) if stats is not None and stats.min is not None else 0.0
