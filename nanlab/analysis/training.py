"""What became of the weights: whether updates drove them away, and which update it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanlab.history import OptimizerStep, Place, Series
from nanlab.trace.op import walk
from nanlab.trace.recording import BACKWARD, OPTIMIZER, Recording
from nanlab.trace.training_frames import parameter_columns

GREW, LARGE = 10.0, 5.0  # a parameter whose rms grew by this factor, and to more than this, has run away
GREW_LOW, LARGE_LOW = 100.0, 100.0  # the same before an overflow in half precision, which takes no such growth
DEEP = 8  # gradients of rising magnitude that make an explosion gradual
CHAIN_RISE = 6.0  # bits by which gradients rise along a chain that explodes
STEADY, UNSTEADY = 5, 1.5  # last ratios of updates that are looked at, and how far apart steady ones may lie
MOST_VISITS = 2000  # operations that are walked back over from one
RISE = 20.0  # log2 of the magnitude from which on they count


@dataclass(frozen=True, slots=True)
class Runaway:
    """The update that drove a parameter away."""

    name: str
    before: float  # rms at the start
    after: float  # rms at the end
    steps: int  # training steps between
    op: str
    place: int
    site: int
    position: int
    rate: float | None
    decay: float  # weight decay
    decoupled: bool  # whether the decay multiplies the weights (AdamW) rather than joins the gradient
    optimizer: str
    deep: bool  # whether the gradients grew through depth or time


def optimizer_step_that_began(recording: Recording, position: int) -> OptimizerStep | None:
    """The optimizer step that began at a position."""
    return next((s for s in reversed(recording.training.optimizer_steps) if s.position == position), None)


def optimizer_step_at(recording: Recording, position: int) -> OptimizerStep | None:
    """The optimizer step inside which a row lies."""
    return next((s for s in recording.training.optimizer_steps if s.position <= position < s.end), None)


def optimizer_step_of(recording: Recording, owner: int, position: int) -> tuple[OptimizerStep, float | None] | None:
    """(the last optimizer step before a position that updated a parameter, the learning rate of the parameter's group).

    None where no optimizer updated it. Which one it was is told by the rows of parameters that each step leaves at its end.
    """
    blocks = parameter_columns(recording)
    # A gradient that came before the step, as of LBFGS, may be gone by now; the value that the step left is not.
    taken = blocks["used_known"] | blocks["value_known"]
    rows = np.flatnonzero((blocks["owner"] == owner) & (blocks["position"] < position) & taken)
    ends = {step.end - 1: step for step in reversed(recording.training.optimizer_steps)}  # an empty one ends there, too
    for row in rows[::-1].tolist():
        step, rate = ends.get(int(blocks["position"][row])), float(blocks["lr"][row])
        if step is not None:
            return step, None if np.isnan(rate) else rate
    return None


def comes_from_gradients(recording: Recording, position: int) -> bool:
    """Whether what an operation read was computed from gradients, outside of the graph and of the optimizers."""

    def outside(at: int) -> list[int]:
        row = recording.op(at)
        passed = at == position or (row is not None and row.node < 0 and row.phase != OPTIMIZER)
        return recording.parents(at) if passed else []

    rows = (recording.op(at) for at in walk([position], outside, MOST_VISITS) if at != position)
    return any(row is not None and row.backward for row in rows)


def _grown(recording: Recording, position: int, grew: float, large: float) -> tuple[int, float, float] | None:
    """(parameter, rms at first, rms at last) of the parameter that grew most before a position."""
    blocks = parameter_columns(recording)
    keep = (blocks["position"] < position) & blocks["value_known"]
    keep &= (blocks["value_nan"] + blocks["value_inf"]) == 0
    best: tuple[float, int, float, float] | None = None
    for owner in np.unique(blocks["owner"][keep]).tolist():
        rows = np.flatnonzero(keep & (blocks["owner"] == owner))
        first, last = rows[0], rows[-1]
        change = np.nan_to_num(blocks["update_rms"][first])
        start = abs(float(blocks["value_rms"][first]) - change)
        end = float(blocks["value_rms"][last])
        if end > large and end > grew * start and (best is None or end > best[0]):
            best = end, owner, start, end
    return None if best is None else best[1:]


def runaway(recording: Recording, position: int) -> Runaway | None:
    """Whether the weights had been driven away by updates before a position; None if they had not."""
    row = recording.op(position)
    low = row is not None and row.dtype in (torch.float16, torch.bfloat16)
    grown = _grown(recording, position, *((GREW_LOW, LARGE_LOW) if low else (GREW, LARGE)))
    if grown is None:
        return _by_hand(recording, position)
    owner, before, after = grown
    found = optimizer_step_of(recording, owner, position)
    if found is None:
        return None
    step, rate = found
    by_hand = _by_hand(recording, position, owner)
    if by_hand is not None and optimizer_step_at(recording, by_hand.position) is None:
        return by_hand
    settings = dict(step.settings)
    decay = float(settings.get("weight_decay") or 0.0)
    decoupled = step.optimizer in ("AdamW", "NAdamW", "RAdamW")
    op = step.writer
    if decoupled and rate is not None and rate * decay > 2.0:
        op = "_foreach_mul_" if op.startswith("_foreach") else "mul_" if not op.startswith("_fused") else op
    steps = recording.step_of(step.position) + 1
    name = recording.parameter_names[owner]
    deep = rises_in_a_chain(recording, step.position)
    return Runaway(
        name,
        before,
        after,
        steps,
        op,
        step.line,
        step.site,
        step.position,
        rate,
        decay,
        decoupled,
        step.optimizer,
        deep,
    )


def stable_rate(recording: Recording, away: Runaway) -> tuple[float, float] | None:
    """(largest learning rate at which these updates would not have grown, factor by which they grew in each step).

    For SGD, from the growth r of successive updates as on a quadratic loss: with momentum m the curvature h obeys
    lr h = (r + 1)(r + m) / r, and steps are stable up to lr h = 2 (1 + m) (Polyak, "Some methods of speeding up the
    convergence of iteration methods", 1964). None for other optimizers, and where the growth is not steady.
    """
    step = optimizer_step_that_began(recording, away.position)
    if away.optimizer != "SGD" or away.rate is None or step is None:
        return None
    blocks = parameter_columns(recording)
    keep = blocks["update_known"] & (blocks["position"] <= away.position + 1) & np.isfinite(blocks["update_rms"])
    keep &= blocks["owner"] == recording.parameter_names.index(away.name)
    updates = blocks["update_rms"][keep][-STEADY - 1 :]
    if len(updates) < 3 or not (updates > 0).all():
        return None
    ratios = updates[1:] / updates[:-1]
    growth, momentum = float(np.median(ratios)), float(dict(step.settings).get("momentum") or 0.0)
    if growth <= 1.0 or ratios.max() > UNSTEADY * ratios.min():
        return None
    return 2.0 * (1.0 + momentum) * away.rate * growth / ((growth + 1.0) * (growth + momentum)), growth


def _by_hand(recording: Recording, position: int, owner: int = -1) -> Runaway | None:
    """The same for updates that the program made itself, from the series of magnitudes; owner: of this parameter alone."""
    series = recording.training.series
    steps = [i for i, end in enumerate(series.steps) if end <= position]
    if len(steps) < 2 or not series.owners:
        return None
    best: tuple[float, float, int] | None = None
    for column in series.owners:
        if column < 0 or series.places[column].phase != OPTIMIZER or owner not in (-1, series.owners[column]):
            continue
        values = series.table[steps, column]
        values = values[np.isfinite(values)]
        if len(values) < 2 or values[-1] < np.log2(LARGE_LOW) or values[-1] - values[0] < np.log2(GREW_LOW):
            continue
        if best is None or values[-1] > best[1]:
            best = float(values[0]), float(values[-1]), column
    if best is None:
        return None
    owner = series.owners[best[2]]
    place = series.places[_most_enlarging(series, owner, steps)]
    name = recording.parameter_names[owner]
    deep = rises_in_a_chain(recording, int(series.steps[steps[-1]]) - 1)
    return Runaway(
        name,
        2.0 ** best[0],
        2.0 ** best[1],
        len(steps),
        place.op,
        place.line,
        place.site,
        place.position,
        None,
        0.0,
        False,
        "",
        deep,
    )


def _most_enlarging(series: Series, owner: int, steps: list[int]) -> int:
    """The column of the operation to which a parameter owes most of its growth, of those that write it in each step."""
    columns = [c for c, o in series.owners.items() if o == owner and c >= 0 and series.places[c].phase == OPTIMIZER]
    columns.sort(key=lambda c: series.places[c].position)
    values = series.table[np.ix_(steps, columns)].reshape(-1)
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    before = np.concatenate([[-1], last[:-1]])  # the write before, of those that are known
    known = np.isfinite(values) & (before >= 0)
    grown = np.where(known, np.where(known, values, 0.0) - np.where(known, values[before], 0.0), 0.0)
    return columns[int(np.argmax(grown.reshape(-1, len(columns)).sum(0)))]


def backward_magnitudes(recording: Recording, position: int) -> npt.NDArray[np.float64]:
    """log2 of the largest magnitude of each gradient of a training step, in the order in which the backward pass made them.

    The step is the one of ``position``, or the last one before it of which there is a record.
    """
    series = recording.training.series
    if not len(series):
        return np.zeros(0)
    at = min(int(np.searchsorted(series.steps, position, side="right")), len(series) - 1)
    columns = [i for i, p in enumerate(series.places) if p.phase == BACKWARD]
    return series.table[at, columns].astype(np.float64)


def rises_gradually(recording: Recording, position: int) -> bool:
    """Whether gradients rise from the loss on, through many operations, rather than in one."""
    values = backward_magnitudes(recording, position)
    known = values[~np.isnan(values) & ~np.isneginf(values)]
    if len(known) < DEEP:
        return False
    finite = known[np.isfinite(known)]
    high = finite[finite > RISE]
    return bool(finite[:5].min(initial=np.inf) < RISE / 2 and len(high) >= DEEP and high.std() > RISE / 4)


def rises_in_a_chain(recording: Recording, position: int) -> bool:
    """Whether gradients rise along a repeated operation: the layers of a deep net, the time steps of a recurrent one."""
    series = recording.training.series
    columns = [i for i, p in enumerate(series.places) if p.phase == BACKWARD]
    chains: dict[tuple[int, str], list[float]] = {}
    for column, value in zip(columns, backward_magnitudes(recording, position).tolist(), strict=True):
        place = series.places[column]
        if np.isfinite(value):
            chains.setdefault((place.line, place.op), []).append(value)
    return any(len(values) >= DEEP and max(values) - min(values) >= CHAIN_RISE for values in chains.values())


def place_text(recording: Recording, line: int) -> tuple[str, int, str]:
    """(shown file, line, source text) of a place."""
    import linecache

    file, number, real = recording.places[line]
    return file, number, linecache.getline(real, number).strip() if number else ""


def where(recording: Recording, place: Place) -> dict[str, Any]:
    """The fields of a Finding that say where something is."""
    from nanlab.trace.recording import PHASES

    file, line, source = place_text(recording, place.line)
    return {
        "op": _operator(recording, place),
        "phase": PHASES[place.phase],
        "module": recording.modules.items[place.module],
        "node": place.node if place.node >= 0 else None,
        "file": file,
        "line": line,
        "source": source,
        "position": place.position,
    }


def _operator(recording: Recording, place: Place) -> str:
    """The operator to name: for a backward operation the forward operator of its node."""
    info = recording.nodes.get(place.node) if place.phase == BACKWARD else None
    return str(recording.ops.items[info.op]) if info is not None and info.op >= 0 and not info.custom else place.op
