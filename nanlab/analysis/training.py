"""What became of the weights: the update that drove them away, its parts, its rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanlab.operators import having, with_forms
from nanlab.program.rerun import operate
from nanlab.trace.frames import parameter_columns
from nanlab.trace.history import SCALED, Loss, OptimizerStep, Place, Series
from nanlab.trace.op import BACKWARD, OPTIMIZER, walk
from nanlab.trace.recording import PHASES, Recording

# a parameter whose rms grew by this factor, and to more than this, has run away
GREW, LARGE = 10.0, 5.0
# the same before an overflow in half precision, which takes no such growth
GREW_LOW, LARGE_LOW = 100.0, 100.0
THROWN = 1.0  # rms of an update that throws a parameter, if it is more than the parameter was
DEEP = 8  # gradients of rising magnitude that make an explosion gradual
CHAIN_RISE = 6.0  # bits by which gradients rise along a chain that explodes, and beyond 1
# last ratios of updates that are looked at, and how far apart steady ones may lie
STEADY, UNSTEADY = 5, 1.5
MOST_VISITS = 2000  # operations that are walked back over from one
RISE = 20.0  # log2 of the magnitude from which on they count


@dataclass(frozen=True, slots=True)
class Runaway:
    """The update that drove a parameter away."""

    name: str
    before: float | None  # rms at the start; None: not known
    after: float  # rms at the end
    steps: int  # training steps between
    op: str
    place: int
    site: int
    position: int
    rate: float | None
    decay: float  # weight decay
    optimizer: str
    deep: bool  # whether the gradients grew through depth or time


def rows_of_step(recording: Recording, step: int) -> range:
    """The positions of a training step's rows."""
    return range(recording.starts[step], [*recording.starts, recording.end][step + 1])


def optimizer_step_behind(recording: Recording, away: Runaway) -> OptimizerStep | None:
    """The optimizer step that drove a parameter away; None for an update by hand."""
    steps = reversed(recording.training.optimizer_steps)
    return next((s for s in steps if s.position == away.position), None)


def optimizer_step_at(recording: Recording, position: int) -> OptimizerStep | None:
    """The optimizer step inside which a row lies."""
    return next(
        (s for s in recording.training.optimizer_steps if s.position <= position < s.end), None
    )


def optimizer_step_of(
    recording: Recording, owner: int, position: int
) -> tuple[OptimizerStep, float | None] | None:
    """(the last optimizer step before a position that updated a parameter, the learning rate of the
    parameter's group).

    None where no optimizer updated it. Which one it was is told by the rows of parameters that each
    step leaves at its end.
    """
    blocks = parameter_columns(recording)
    # A gradient that came before the step, as of LBFGS, may be gone by now; the value that the step
    # left is not.
    taken = blocks["used_known"] | blocks["value_known"]
    rows = np.flatnonzero((blocks["owner"] == owner) & (blocks["position"] < position) & taken)
    # an empty one ends there, too
    ends = {step.end - 1: step for step in reversed(recording.training.optimizer_steps)}
    for row in rows[::-1].tolist():
        step, rate = ends.get(int(blocks["position"][row])), float(blocks["lr"][row])
        if step is not None:
            return step, None if np.isnan(rate) else rate
    return None


def comes_from_gradients(recording: Recording, position: int) -> bool:
    """Whether a value comes from gradients by a way outside of the graph, and not by way of weights
    that those updated."""
    first = recording.starts[recording.step_of(position)]
    by_hand = recording.at(position).phase == OPTIMIZER
    steps = [s for s in recording.training.optimizer_steps if by_hand and s.end > first]

    def is_of_update(at: int) -> bool:
        row = recording.at(at)
        weights = [p for p in row.inputs if p in recording.sources] if row.inplace else []
        written = any(recording.sources[p].kind == "parameter" for p in weights)
        return written or any(s.position <= at < s.end for s in steps)

    def outside(at: int) -> list[int]:
        row = recording.at(at)
        own = row.phase != OPTIMIZER or (by_hand and at >= first and not is_of_update(at))
        return row.inputs if at == position or (row and row.node < 0 and own) else []

    reached = walk([position], outside, MOST_VISITS)
    return any(recording.at(at).backward for at in reached if at != position)


def _grown(
    recording: Recording, position: int, grew: float, large: float
) -> tuple[int, float, float] | None:
    """(parameter, first rms, last rms) of the parameter that grew most before a position. The first
    rms is a lower bound, from the parameter's first value and update."""
    blocks = parameter_columns(recording)
    keep = (blocks["position"] < position) & blocks["value_known"]
    keep &= (blocks["value_nan"] + blocks["value_inf"]) == 0
    found: list[tuple[int, float, float]] = []
    for owner in np.unique(blocks["owner"][keep]).tolist():
        first, last = np.flatnonzero(keep & (blocks["owner"] == owner))[[0, -1]]
        change = np.nan_to_num(blocks["update_rms"][first])
        start = abs(float(blocks["value_rms"][first]) - change)
        end = float(blocks["value_rms"][last])
        if end > large and end > grew * start:
            found.append((owner, start, end))
    return max(found, key=lambda each: each[2], default=None)


def runaway(recording: Recording, position: int) -> Runaway | None:
    """Whether updates had driven the weights away before a position; None if not."""
    low = recording.at(position).dtype in (torch.float16, torch.bfloat16)
    grown = _grown(recording, position, *((GREW_LOW, LARGE_LOW) if low else (GREW, LARGE)))
    if grown is None:
        return _by_hand(recording, position)
    owner, _, after = grown
    found = optimizer_step_of(recording, owner, position)
    if found is None:
        return None
    step, rate = found
    by_hand = _by_hand(recording, position, owner)
    if by_hand is not None and optimizer_step_at(recording, by_hand.position) is None:
        return by_hand
    settings = dict(step.settings)
    decay = float(settings.get("weight_decay") or 0.0)
    # the decay multiplies the weights, rather than joins the gradient
    decoupled = step.optimizer in ("AdamW", "NAdamW", "RAdamW")
    op = step.writer
    multiplies = decoupled and rate is not None and rate * decay > 2.0
    if multiplies and not op.startswith("_fused"):
        op = "_foreach_mul_" if op.startswith("_foreach") else "mul_"
    steps = recording.step_of(step.position) + 1
    name = recording.parameter_names[owner]
    deep = rises_in_a_chain(recording, first_thrown(recording, step.position))
    how = (step.line, step.site, step.position, rate, decay, step.optimizer, deep)
    return Runaway(name, _at_first(recording, name), after, steps, op, *how)


def first_thrown(recording: Recording, position: int) -> int:
    """Where the first update ended that changed a parameter by more than it was: gradients of later
    steps are large because the weights are. The position given where none did."""
    blocks = parameter_columns(recording)
    known = blocks["update_known"] & blocks["value_known"] & (blocks["position"] < position)
    size = np.maximum(THROWN, 0.5 * np.nan_to_num(blocks["value_rms"]))
    thrown = known & (np.nan_to_num(blocks["update_rms"]) > size)
    return int(blocks["position"][thrown].min(initial=position))


def _at_first(recording: Recording, name: str) -> float | None:
    """The rms of a parameter as the watch first saw it."""
    seen = (s for s in recording.sources.values() if (s.kind, s.name) == ("parameter", name))
    stats = next((recording.stats(each.number) for each in seen), None)
    return stats.rms if stats is not None and stats.known else None


def stable_rate(recording: Recording, away: Runaway) -> tuple[float, float] | None:
    """(largest learning rate at which these updates would not have grown, factor by which they grew
    in each step).

    For SGD, from the growth r of successive updates as on a quadratic loss: with momentum m the
    curvature h obeys lr h = (r + 1)(r + m) / r, and steps are stable up to lr h = 2 (1 + m)
    (Polyak, "Some methods of speeding up the convergence of iteration methods", 1964). None for
    other optimizers, and where the growth is not steady.
    """
    step = optimizer_step_behind(recording, away)
    if away.optimizer != "SGD" or away.rate is None or step is None:
        return None
    blocks = parameter_columns(recording)
    keep = blocks["update_known"] & np.isfinite(blocks["update_rms"])
    keep &= blocks["position"] <= away.position + 1
    keep &= blocks["owner"] == recording.parameter_names.index(away.name)
    updates = blocks["update_rms"][keep][-STEADY - 1 :]
    if len(updates) < 3 or not (updates > 0).all():
        return None
    ratios = updates[1:] / updates[:-1]
    growth, momentum = float(np.median(ratios)), float(dict(step.settings).get("momentum") or 0.0)
    if growth <= 1.0 or ratios.max() > UNSTEADY * ratios.min():
        return None
    stable = 2.0 * (1.0 + momentum) * away.rate * growth / ((growth + 1.0) * (growth + momentum))
    return stable, growth


def _by_hand(recording: Recording, position: int, owner: int = -1) -> Runaway | None:
    """The parameter that updates by hand enlarged most, from the series; None if none grew large.
    owner: consider this parameter alone."""
    series = recording.training.series
    steps = [i for i, end in enumerate(series.steps) if end <= position]
    if len(steps) < 2 or not series.owners:
        return None
    best: tuple[float, float, int] | None = None
    for column in series.owners:
        chosen = owner in (-1, series.owners[column])
        if column < 0 or series.places[column].phase != OPTIMIZER or not chosen:
            continue
        if recording.parameter_kinds[series.owners[column]] == "buffer":
            continue
        values = series.table[steps, column]
        values = values[np.isfinite(values)]
        if len(values) < 2 or values[-1] < np.log2(LARGE_LOW):
            continue
        grew = values[-1] - values[0] >= np.log2(GREW_LOW)
        if grew and (best is None or values[-1] > best[1]):
            best = float(values[0]), float(values[-1]), column
    if best is None:
        return None
    owner = series.owners[best[2]]
    place = series.places[_most_enlarging(series, owner, steps)]
    name = recording.parameter_names[owner]
    deep = rises_in_a_chain(recording, int(series.steps[steps[-1]]) - 1)
    how = (place.op, place.line, place.site, place.position, None, 0.0, "", deep)
    return Runaway(name, 2.0 ** best[0], 2.0 ** best[1], len(steps), *how)


def _most_enlarging(series: Series, owner: int, steps: list[int]) -> int:
    """The operation that enlarged a parameter most, among those that write it each step."""
    columns = [
        c
        for c, o in series.owners.items()
        if o == owner and c >= 0 and series.places[c].phase == OPTIMIZER
    ]
    columns.sort(key=lambda c: series.places[c].position)
    values = series.table[np.ix_(steps, columns)].reshape(-1)
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    before = np.concatenate([[-1], last[:-1]])  # the write before, of those that are known
    known = np.isfinite(values) & (before >= 0)
    grown = np.where(
        known, np.where(known, values, 0.0) - np.where(known, values[before], 0.0), 0.0
    )
    return columns[int(np.argmax(grown.reshape(-1, len(columns)).sum(0)))]


def backward_magnitudes(recording: Recording, position: int) -> npt.NDArray[np.float64]:
    """log2 of the largest magnitude of each gradient of a training step, in the order in which the
    backward pass made them.

    The step is the one of ``position``, or the last recorded one before it.
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
    finite = values[np.isfinite(values)]
    high = finite[finite > RISE]
    return bool(
        finite[:5].min(initial=np.inf) < RISE / 2 and len(high) >= DEEP and high.std() > RISE / 4
    )


def rises_in_a_chain(recording: Recording, position: int, of_one_module: bool = False) -> bool:
    """Whether gradients rise along a repeated operation: a deep or a recurrent net.

    of_one_module: of a recurrent one, whose steps are of the same module."""
    series = recording.training.series
    columns = [i for i, p in enumerate(series.places) if p.phase == BACKWARD]
    chains: dict[tuple[int, str, int], list[float]] = {}
    for column, value in zip(
        columns, backward_magnitudes(recording, position).tolist(), strict=True
    ):
        place = series.places[column]
        if np.isfinite(value):
            module = place.module if of_one_module else -1
            chains.setdefault((place.line, place.op, module), []).append(value)
    return any(
        len(values) >= DEEP and max(values) >= CHAIN_RISE + max(0.0, min(values))
        for values in chains.values()
    )


def where(recording: Recording, place: Place) -> dict[str, Any]:
    """The fields of a Finding that say where something is."""
    return line_fields(recording, place.line) | {
        "op": _operator(recording, place),
        "phase": PHASES[place.phase],
        "module": recording.modules.items[place.module],
        "node": place.node if place.node >= 0 else None,
        "position": place.position,
    }


def steps_seen(recording: Recording, steps: int) -> str:
    """``6 steps``; of a watch that summarises only some, ``4 steps that were summarised``."""
    return f"{steps} steps" + (" that were summarised" if recording.detail == "fault" else "")


def line_fields(recording: Recording, line: int) -> dict[str, Any]:
    """The fields of a Finding that say which line: file, line, source."""
    return dict(zip(("file", "line", "source"), recording.line_at(line), strict=True))


def _operator(recording: Recording, place: Place) -> str:
    """The operator to name: for a backward operation the forward operator of its node."""
    info = recording.nodes.get(place.node) if place.phase == BACKWARD else None
    if info is not None and info.op >= 0 and not info.custom:
        return str(recording.ops.items[info.op])
    return place.op


def last_finite_rate(recording: Recording, position: int) -> float | None:
    """The last finite rate above 0 of the optimizer that runs at a position; or None."""
    running = optimizer_step_at(recording, position)
    if running is None:
        return None
    steps = (s for s in recording.training.optimizer_steps if s.end <= position)
    rates = [r for s in steps if s.number == running.number for r in s.rates]
    return next((r for r in reversed(rates) if r is not None and 0 < r < math.inf), None)


def finite_at_rate(recording: Recording, position: int, rate: float) -> bool:
    """Whether the operation of an optimizer that failed at a position gives finite weights with
    another learning rate.

    The operation is run again on its operands: ``p.add_(g, alpha=-rate)``, or the decay ``p.mul_(1
    - rate * decay)``. Of weights that it had overwritten already the largest magnitude is known,
    which stands for all of them.
    """
    row, running = recording.at(position), optimizer_step_at(recording, position)
    kept = recording.kept.get(row.call)
    if kept is None or running is None:
        return False
    decay = float(dict(running.settings).get("weight_decay") or 0.0)
    multiplies = kept.op.overloadpacket.__name__ in ("mul_", "_foreach_mul_")
    number = 1.0 - rate * decay if multiplies else -rate
    args = [_replaced(a, number) for a in kept.args]
    kwargs = {k: _replaced(v, number) for k, v in kept.kwargs.items()}
    target = args[0] if isinstance(args[0], list) else [args[0]]
    if not all(isinstance(t, torch.Tensor) for t in target):
        return False
    try:
        with torch.no_grad():
            for slot, weights in enumerate(target):
                weights.masked_fill_(
                    ~torch.isfinite(weights), _largest_operand(recording, row.call, slot)
                )
            operate(kept.op, args, kwargs)
    except (RuntimeError, TypeError):
        return False
    return all(bool(torch.isfinite(t).all()) for t in target)


def _largest_operand(recording: Recording, call: int, slot: int) -> float:
    """The largest magnitude of an operand; NaN where it is unknown or not finite."""
    stats = next(
        (recording.stats(source) for source, at in recording.operands(call) if at == slot), None
    )
    if stats is None or not stats.is_finite or stats.min is None or stats.max is None:
        return math.nan
    return float(stats.largest)


def _replaced(value: Any, number: float) -> Any:
    """An argument, copied, with a number in place of one that is not finite."""
    if isinstance(value, (list, tuple)):
        return [_replaced(v, number) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return number
    return value.clone() if isinstance(value, torch.Tensor) else value


ENLARGED = 2.0  # times: gradients that the program itself made larger before an update
SIGNS = having("sign", in_place=True, lists=True)
MOST_HOPS = 12  # multiplications between a gradient and what is added
ADDS = having("updates", in_place=True) - with_forms("addcdiv", in_place=True) | {
    "_foreach_add",
    "_foreach_sub",
}
CASTS = having("casts", in_place=True)
LINEAR = having("scales", lists=True) | {"neg"}
RISES = 3  # inner updates in a row that each make the weights larger ...
ROSE = 20.0  # ... and bits by which they are in the end


@dataclass(frozen=True, slots=True)
class InnerUpdates:
    """Updates inside of a training step whose results grow from one to the next."""

    position: int  # of the last
    count: int
    first: float  # largest magnitude of the first result
    last: float


def depends_on_gradient(recording: Recording, line: int, op: str, position: int) -> bool:
    """Whether the last update by ``op`` at a line before a position depends on the size of a
    gradient.

    A gradient's sign does not, nor does a multiple of the weights. True where it cannot be told.
    """
    rows = [
        r.position
        for r in recording.all_ops()
        if r.position < position and r.place == line and r.name == op
    ]
    if not rows:
        return True
    own = recording.parents(rows[-1])
    if not own:
        return True

    def onward(at: int) -> list[int]:
        made = recording.at(at)
        ends = not made or made.backward or made.name in SIGNS
        return [] if ends else [p for p in made.inputs if p != own[0]]

    came = walk([s for s in own[1:] if s != own[0]], onward, MOST_VISITS)
    made = (recording.at(at) for at in came if at >= 0)
    return any(not row or (row.backward and row.name not in SIGNS) for row in made)


def enlarged_gradients(recording: Recording, step: OptimizerStep) -> tuple[Place, float] | None:
    """(operation, factor) by which the program enlarged gradients before an optimizer step; None if
    it did not.

    A Python number as a factor does not count: it belongs to the learning rate.
    """
    edit = next((e for e in recording.training.edits if e.position == step.end - 1), None)
    if edit is None or edit.at is None or edit.constant:
        return None
    blocks = parameter_columns(recording)
    rows = (blocks["position"] == edit.position) & blocks["used_known"] & blocks["gradient_known"]

    def norm(of: str) -> float:
        squares = blocks[f"{of}_rms"][rows] ** 2 * blocks[f"{of}_numel"][rows]
        return float(np.sqrt(np.nansum(squares)))

    before, after = norm("gradient") / edit.scale, norm("used")
    return (edit.at, after / before) if before > 0 and after >= ENLARGED * before else None


def scale_of(recording: Recording, step: int) -> float:
    """The loss scale of a step: what the scaler multiplied its loss by; 1 without a scaler."""
    losses = (o for o in recording.training.losses if recording.step_of(o.position) == step)
    factors = [loss.factor for loss in losses if 1.0 < loss.factor < math.inf]
    return float(2.0 ** round(math.log2(factors[-1]))) if factors else 1.0


def undivided_factor(recording: Recording, away: Runaway) -> Loss | None:
    """The loss whose factor, put on by hand, was still in the gradients that drove a parameter
    away; None if there is none.

    Divided out, it would make gradients smaller by about the factor; more so if they are clipped.
    """
    step = optimizer_step_behind(recording, away)
    number = recording.step_of(step.position) if step is not None else None
    losses = [
        r
        for r in recording.training.losses
        if number in (None, recording.step_of(r.position)) and not r.scaled
    ]
    loss = next((r for r in losses if SCALED <= r.factor < math.inf), None)
    if loss is None:
        return None
    if step is not None:
        shares = _used_shares(recording, away, step)
    else:
        shares = _added_shares(recording, away)
    return loss if any(share > loss.factor**-0.5 for share in shares) else None


def _used_shares(recording: Recording, away: Runaway, step: OptimizerStep) -> list[float]:
    """rms of the gradients that an optimizer took, over the rms that backward gave."""
    blocks = parameter_columns(recording)
    rows = blocks["owner"] == recording.parameter_names.index(away.name)
    rows &= blocks["position"] < step.end
    rows &= blocks["used_known"] & blocks["gradient_known"] & (blocks["gradient_rms"] > 0)
    rows &= blocks["used_nan"] + blocks["used_inf"] == 0
    with np.errstate(over="ignore", invalid="ignore"):
        shares: list[float] = (blocks["used_rms"][rows] / blocks["gradient_rms"][rows]).tolist()
    return shares


def _added_shares(recording: Recording, away: Runaway) -> list[float]:
    """The same shares for an update by hand, from largest magnitudes."""
    series, owner = recording.training.series, recording.parameter_names.index(away.name)
    own = [c for c, o in series.owners.items() if c >= 0 and o == owner]
    column = next(
        (c for c in own if (series.places[c].op, series.places[c].line) == (away.op, away.place)),
        -1,
    )
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
    """Whether an optimizer evaluated its closure again, adding to its gradients."""
    inside = [
        loss for loss in recording.training.losses if step.position <= loss.position < step.end
    ]
    return len(inside) > 1 and all(loss.adds for loss in inside[1:])


def inner_updates(recording: Recording, position: int) -> InnerUpdates | None:
    """The updates by gradients, inside of the training step, that drove away what a result was
    computed from.

    An inner loop, as of meta-learning: ``w = w - rate * g``. None if there is none, or if its
    weights did not grow from update to update.
    """
    start = recording.starts[max(recording.step_of(position), 0)] if recording.starts else 0
    for update in _updates_before(recording, position, start):
        row = recording.at(update)
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

    def is_update(at: int) -> bool:
        row = recording.at(at)
        adds = not row.backward and row.name in ADDS
        return adds and any(_is_gradient(recording, p) for p in row.inputs)

    def onward(at: int) -> list[int]:  # what came before an update belongs to earlier ones
        row = recording.at(at)
        return [p for p in row.inputs if p >= start] if row and not is_update(at) else []

    yield from filter(is_update, walk([position], onward, MOST_VISITS))


def _is_gradient(recording: Recording, position: int) -> bool:
    """Whether a row is one of a backward pass, or a multiple of one."""
    row = recording.at(position)
    made = row.inputs if row.name in LINEAR else []
    return row.backward or any(recording.at(p).backward for p in made)


def _largest(recording: Recording, position: int) -> float:
    """The largest finite magnitude of a row; 0 if it has none."""
    stats = recording.stats(position)
    return 0.0 if stats is None else stats.largest
