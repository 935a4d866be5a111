"""From where a bad value was seen back to where it was born, and what that origin is called."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from nanlab.analysis.training import comes_from_gradients
from nanlab.operators import having
from nanlab.program.patched import function_at
from nanlab.program.rerun import operate
from nanlab.trace.op import (
    BACKWARD,
    BORN,
    CARRIED,
    FORWARD,
    HEALED,
    INTENDED,
    OPTIMIZER,
    TURNED,
    Op,
    walk,
)
from nanlab.trace.recording import ACCUMULATES, MOST_SINKS, Recording, Sink, Source

# Where a bad value begins: in an operation, or in what came from outside: data, a parameter, a
# mask, a literal.

Kind = Literal["operation", "data", "parameter", "buffer", "uninitialised", "intended", "rank"]
# Operators that move values without computing with them.
MOVES = having("moves", in_place=True)
LARGEST = having("extreme") & having("reduces")
_SOFTMAXES = having("softmax", "attention") - {"logcumsumexp"}
# Operators that take a mask of -inf: what is added to scores, compared, or summed in the log
# domain.
_TAKES_MASK = having("takes_mask", in_place=True)
# Operators by which a program takes a bad value out.
CHOICES = having("bounds", "cuts", "masks", "picks", "extreme", "assigns") | {"nan_to_num"}
# Operators that stand for a layer: what they compute with is an input, not a bound or a mask.
_LAYERS = having("layer")


def leaf_kind(recording: Recording, position: int, came_from: dict[int, int]) -> Kind | None:
    """The kind of origin that a bad row or source is; None where it is not the origin.

    came_from: each bad row on the way to the symptom, with the next row on that way.
    """
    if position < 0:
        source = recording.sources.get(position)
        if source is None or any(parent in came_from for parent in source.parents):
            return None
        return _source_kind(recording, source, came_from)
    row = recording.at(position)
    if not row:
        return None
    status = row.status
    if row.uninitialised:
        return "uninitialised"
    if status == INTENDED:
        return "parameter" if _into_parameter(recording, position, came_from) else "intended"
    if row.literal and status == BORN and row.name in MOVES and row.stats.nan:  # full(..., nan)
        return "data"
    if status == BORN and row.arrived:
        return "rank"
    if status in (BORN, TURNED):
        return "operation"
    if any(p in came_from for p in recording.parents(position) if p != position):
        return None
    return "operation"


def _source_kind(recording: Recording, source: Source, came_from: dict[int, int]) -> Kind:
    if source.kind == "parameter":
        return "parameter"
    if source.kind == "arrival":
        return "rank"
    rows = map(recording.at, _onward(came_from, source.number))
    first = next((row for row in rows if row and row.name not in MOVES), None)
    use, turned = ("", False) if first is None else (first.name, first.status == TURNED)
    stats = recording.stats(source.number)
    running = source.name.split(".")[-1].startswith("running")
    turns = first is not None and first.stats is not None and first.stats.posinf  # x - mask
    if is_mask(recording, source.number) and use in _TAKES_MASK and not running and not turns:
        return "intended"
    if use == "mul" and turned and stats is not None and not stats.nan:
        return "intended"  # a bound, a distance: what it met there made the NaN
    if source.kind == "buffer":
        return "buffer"
    if source.kind == "literal" and _into_parameter(recording, source.number, came_from):
        return "parameter"
    if source.kind == "literal" and stats is not None and not stats.nan and use not in _LAYERS:
        return "intended"
    return "data"


def _into_parameter(recording: Recording, position: int, came_from: dict[int, int]) -> bool:
    """Whether an infinity that the program wrote, and no mask, went into a parameter or buffer."""
    masked = is_mask(recording, position)
    return not masked and not recording.owned.keys().isdisjoint(_onward(came_from, position))


def _onward(came_from: dict[int, int], position: int) -> Iterator[int]:
    """The rows (and sources) after one on its way to the symptom, which is the last."""
    while came_from.get(position, position) != position:
        position = came_from[position]
        yield position


def is_mask(recording: Recording, position: int) -> bool:
    """Whether all bad elements of a tensor are -inf."""
    stats = recording.stats(position)
    return stats is not None and stats.neginf > 0 and not stats.nan and not stats.posinf


def hides_nothing(
    recording: Recording, position: int, guilty: list[tuple[int, Kind]], came_from: dict[int, int]
) -> bool:
    """Whether a leaf is an outside mask of -inf that a softmax over nothing else made NaN."""
    source = recording.sources.get(position)
    if source is None or source.kind not in ("data", "buffer") or not is_mask(recording, position):
        return False
    rows = (recording.stats(at) for at in _onward(came_from, position))
    if any(stats is not None and stats.posinf for stats in rows):  # it was subtracted
        return False
    return any(recording.at(p).name in _SOFTMAXES for p, _ in guilty)


def derivative_unseen(recording: Recording, number: int) -> int:
    """The row of the derivative that made a gradient which its reader took from outside. Under vmap
    some derivatives run where no watch sees them.

    -1 where something else may have made it: a custom Function, a hook, the start of the pass.
    """
    source = recording.sources.get(number)
    reader = recording.at(source.first if source is not None else -1)
    info = recording.nodes.get(reader.node) if reader.backward else None
    if info is None or info.op < 0 or info.custom or info.line != reader.place:
        return -1
    for position in range(reader.position - 1, -1, -1):
        row = recording.at(position)
        if not row.backward or row.backward_pass != reader.backward_pass:
            return -1
        if row.node != reader.node:
            return position if recording.nodes.get(row.node) is not None else -1
    return -1


# What is no fault in a step that the program skips: overflows that a smaller loss scale avoids,
# and bad data.


def is_excused(recording: Recording, origin: Origin) -> bool:
    """Whether a bad step is no fault: it was skipped (or may be) for gradients that a smaller loss
    scale makes finite, or for bad data that the program left out."""
    if origin.sink.kind not in ("loss", "gradient"):
        return False
    if origin.sink.kind == "loss" and _is_trial(recording, origin.sink):
        return True
    if recording.undecided and depends_on_scale(recording, origin):
        return True
    training = recording.training
    if not training.optimizer_steps and not training.unscales and not training.updates_by_hand:
        return False
    repeated = _was_repeated(recording, origin.sink)
    if origin.kind == "data" or is_made_of_data(recording, origin.position, constants=True):
        return repeated or skipped_by_hand(recording, origin.sink.step_position)
    # a later backward may add to a gradient that was judged
    position = min(origin.sink.step_position, max(origin.position, 0))
    skipped = scaler_skipped(recording, position) or skipped_by_hand(recording, position)
    return (repeated or skipped) and depends_on_scale(recording, origin)


def _is_trial(recording: Recording, sink: Sink) -> bool:
    """Whether the program differentiated a bad loss apart from parameters, as a trial, and went on
    without it: nothing of it reached them."""
    runs = (run for run in recording.passes if run.position == sink.step_position)
    if any(run.accumulates for run in runs):
        return False
    step = recording.step_of(sink.step_position)
    harmed = (s for s in recording.sinks if recording.step_of(s.step_position) == step)
    if any(s.kind != "loss" for s in harmed):
        return False
    if recording.undecided:
        return not _goes_on(recording, sink)
    updates = (s.position for s in recording.training.optimizer_steps)
    return any(recording.step_of(at) == step for at in updates)


def _goes_on(recording: Recording, sink: Sink) -> bool:
    """Whether badness outlasts a step: a bad loss comes from an earlier step's bad values, or a
    later loss from this step's. So it is with weights that the program makes anew in each step."""
    own = recording.step_of(sink.step_position)
    for later in (s for s in recording.sinks if s.kind == "loss"):
        step = recording.step_of(later.step_position)
        if later is sink or step > own:
            bad = walk(
                [later.position],
                lambda at: (p for p in recording.parents(at) if p >= 0 and p in recording.bad),
                MOST_VISITED,
            )
            left = (recording.step_of(at) for at in bad if at < recording.starts[step])
            if any(later is sink or at == own for at in left):
                return True
    return False


def _was_repeated(recording: Recording, sink: Sink) -> bool:
    """Whether the program cleared bad gradients unused, and another backward before the update gave
    good ones: at a smaller loss scale, or of the next batch."""
    step, at = recording.step_of(sink.step_position), sink.step_position
    harmed = [s for s in recording.sinks if recording.step_of(s.step_position) == step]
    losses = (
        loss for loss in recording.training.losses if recording.step_of(loss.position) == step
    )
    anew = max((loss.position for loss in losses if not loss.adds), default=-1)
    harmless = all(s.kind in ("loss", "gradient") and s.step_position < anew for s in harmed)
    return harmless and at < anew


def skipped_by_hand(recording: Recording, position: int) -> bool:
    """Whether nothing was updated in this training step because the program looks at its gradients
    itself.

    It does if it stepped again later, or passed over bad gradients earlier and went on.
    """
    training = recording.training
    updates = [*(s.position for s in training.optimizer_steps), *training.updates_by_hand]
    stepped = {recording.step_of(at) for at in updates}
    step = recording.step_of(position)
    if not stepped or step in stepped:
        return False
    bad = {recording.step_of(s.step_position) for s in recording.sinks if s.kind == "gradient"}
    return min({step} | (bad - stepped)) < max(stepped)


MOST_VISITED = 4000  # rows behind a result that are asked where they come from


def is_made_of_data(recording: Recording, position: int, constants: bool = False) -> bool:
    """Whether a result comes from outside tensors alone, without parameter or buffer.

    constants: numbers in the source may have a part, and leaves made in the step to differentiate
    by.
    """
    outside, step = constants, recording.step_of(position)
    if position < 0:
        return False
    for at in walk([position], recording.parents, MOST_VISITED):
        source = recording.sources.get(at) if at < 0 else None
        row = recording.at(at)
        kept = at in recording.owned and not (constants and recording.step_of(at) == step)
        if source is not None:
            if source.kind not in ("data", "literal"):
                return False
            # an array that was turned into a tensor
            outside |= source.kind == "data" or len(source.shape) > 0
        elif row.node >= 0 or row.phase != FORWARD or kept:
            return False
        else:
            outside |= not recording.parents(at)  # drawn at random
    return outside


def scaler_skipped(recording: Recording, position: int) -> bool:
    """Whether a scaler's check found the gradients of this training step non-finite."""
    step = recording.step_of(position)
    found = (c.position for c in recording.training.unscales if c.found_inf)
    return any(at >= position and recording.step_of(at) == step for at in found)


def depends_on_scale(recording: Recording, origin: Origin) -> bool:
    """Whether a row overflows at this loss scale only; it is run again on smaller gradients."""
    if origin.kind != "operation":
        return False
    row = recording.at(origin.position)
    if not row:
        return False
    if origin.position == origin.sink.position and any(
        loss.scaled and origin.sink.kind == "loss" and loss.source not in recording.bad
        for loss in recording.training.losses
    ):
        return True
    if not row.backward:
        return False
    kept = recording.kept.get(row.call)
    if kept is None:
        stats = recording.stats(origin.position)
        return stats is not None and not stats.nan and "float16" in str(row.dtype)
    operands = recording.operands(origin.position)
    gradients = {slot for source, slot in operands if recording.at(source).backward}
    tried = (4, 8, 16, 24, 40, most_halvings(recording))
    return any(finite_after(kept, gradients, k) for k in tried)


def most_halvings(recording: Recording) -> int:
    """How many halvings leave nothing of the largest loss scale, and so of the overflow that it
    makes."""
    # the factor of a loss is known when its step has ended, which may be too late
    roots = [loss for loss in recording.training.losses if loss.scaled]
    pairs = [(recording.value(loss.root), recording.value(loss.source)) for loss in roots]
    scales = [abs(scaled / loss) for scaled, loss in pairs if scaled and loss]
    return max([48, *(math.frexp(s)[1] for s in scales if math.isfinite(s))])


def finite_after(kept: Any, slots: set[int], halvings: int) -> bool:
    """Whether a kept operation is finite with these operands 2**-halvings as large."""
    slot, args = -1, []
    for value in kept.args:
        if isinstance(value, torch.Tensor):
            slot += 1
            if slot in slots and value.is_floating_point():
                value = (value.double() * 2.0**-halvings).to(value.dtype)
        args.append(value)
    try:
        result = operate(kept.op, args, kept.kwargs)
    except Exception:
        return False
    results = result if isinstance(result, (tuple, list)) else (result,)
    floating = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()]
    return all(bool(torch.isfinite(r).all()) for r in floating)


# From where a bad value was seen back to where it was born.


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a symptom comes from."""

    kind: Kind
    # the row where it was born or turned; a (negative) source for what came from outside
    position: int
    sink: Sink
    path: tuple[int, ...]  # rows (and sources) from the origin to the symptom, both included

    def first_use(self, recording: Recording) -> int:
        """The first row on the path that computes with the value, rather than move it."""
        rows = [p for p in self.path if p >= 0]
        computing = [p for p in rows if recording.at(p).name not in ("", *MOVES)]
        training = [p for p in computing if p >= recording.began]
        return next(iter(training or computing or rows), self.sink.step_position)


def origin_of(recording: Recording, sink: Sink) -> Origin | None:
    """Walk the recorded data flow back from a sink to where its value was born; None if nothing bad
    leads there.

    Of several births that reach the sink the earliest counts. A gradient whose loss was finite has
    its origin in the backward pass: the forward value that came back as 0 * inf did no harm before.
    """
    came_from = _ancestors(recording, sink)
    leaves = _leaves(recording, came_from)
    if leaves and all(
        _hands_on(recording, *leaf) or _swallowed(recording, leaf[0]) for leaf in leaves
    ):
        came_from = _ancestors(recording, sink, across=True)
        leaves = _leaves(recording, came_from)
    guilty = [leaf for leaf in leaves if leaf[1] != "intended"] or leaves
    guilty = [leaf for leaf in guilty if not _hands_on(recording, *leaf)] or guilty
    hidden = {p for p, _ in guilty if p < 0 and hides_nothing(recording, p, guilty, came_from)}
    guilty = [leaf for leaf in guilty if leaf[0] not in hidden]
    if not guilty:
        return None
    # of what one operation read, NaN before infinities, which it may end
    held = {p for p, _ in guilty if p < 0 and (s := recording.stats(p)) is not None and not s.nan}
    position, kind = min(
        guilty, key=lambda leaf: (_time(recording, leaf[0]), leaf[0] in held, leaf[0])
    )
    status = recording.status.get(position)
    if status == TURNED:
        position = _exhausted(recording, position)
    elif status == BORN and not recording.at(position).backward:
        position = _harmful_first(recording, position, came_from)
    path = [position, *_onward(came_from, position)]
    if kind == "data" and (unseen := derivative_unseen(recording, position)) >= 0:
        position, kind, path = unseen, "operation", [unseen, *path]
    if kind == "data":
        begun = _way_to_first_use(recording, position, came_from)
        path = [*begun, *_onward(came_from, begun[-1])]
    return Origin(kind, position, sink, tuple(path))


def _exhausted(recording: Recording, position: int) -> int:
    """The maximum over fully masked values by which alone an intended infinity came to the row that
    made NaN of it; that row itself where there is none, or where a 0 was to remove the infinity."""
    turned = recording.at(position)
    if turned.base_name in having("pairs"):
        return position

    def onward(at: int) -> list[int]:
        return [p for p in recording.parents(at) if p in recording.bad]

    for found in walk([position], onward):
        row = recording.at(found)
        hidden = (recording.at(p) for p in onward(found))
        if row.name in LARGEST and not row.backward and any(r.status == INTENDED for r in hidden):
            others = walk([position], lambda at: onward(at) if at != found else ())  # noqa: B023
            if not any(recording.at(p).status == INTENDED for p in others if p >= 0):
                return found
    return position


def _harmful_first(recording: Recording, position: int, came_from: dict[int, int]) -> int:
    """The row that made NaN of an infinity, where the same line gives infinities in healthy steps
    too; else the row of the infinity."""
    born = recording.at(position)
    if born.stats.nan or is_mask(recording, position):
        return position
    rows = (recording.at(at) for at in _onward(came_from, position) if at >= 0)
    turned = next((row for row in rows if row.status == TURNED), None)
    if turned is None or turned.backward:
        return position
    harmed = min(recording.step_of(sink.step_position) for sink in recording.sinks)
    limit = min(harmed, born.step)
    before = (recording.at(at) for at, status in recording.status.items() if status == BORN)
    usual = {(row.place, row.name) for row in before if row.step < limit and not row.stats.nan}
    return turned.position if (born.place, born.name) in usual | recording.usual else position


def _way_to_first_use(recording: Recording, position: int, among: dict[int, int]) -> list[int]:
    """The rows from a value from outside to the first one that computes with it."""
    moved: dict[int, list[int]] = {position: [position]}
    for here in sorted(p for p in among if p >= 0 and p != position):
        row = recording.at(here)
        taken = next((moved[p] for p in recording.parents(here) if p in moved), None)
        if not row or taken is None:
            continue
        moved[here] = [*taken, here]
        if here >= recording.began and row.name not in MOVES:
            return moved[here]
    return moved[position]


def _swallowed(recording: Recording, position: int) -> bool:
    """Whether a backward row met a forward infinity that a saturating function kept from the loss.

    Not where the program took it out by ``where`` or a clamp: then the fault is their derivative.
    """
    row = recording.at(position)
    if not row.backward or row.status != TURNED:
        return False
    healers = (recording.at(p) for p, status in recording.status.items() if status == HEALED)
    named = {r.name.rstrip("_") for r in healers if r and not r.backward and r.step == row.step}
    return bool(named) and not named & CHOICES


def _hands_on(recording: Recording, position: int, kind: Kind) -> bool:
    """Whether a backward row hands on a forward infinity that never reached the loss."""
    row = recording.at(position)
    return kind == "operation" and row.backward and row.status == CARRIED


def _time(recording: Recording, position: int) -> int:
    return position if position >= 0 else recording.sources[position].first


def _leaves(recording: Recording, came_from: dict[int, int]) -> list[tuple[int, Kind]]:
    """The rows and sources among these at which a bad value begins, each with its kind."""
    return [
        (p, kind) for p in came_from if (kind := leaf_kind(recording, p, came_from)) is not None
    ]


def _ancestors(
    recording: Recording, sink: Sink, across: bool = False, among: Container[int] = ()
) -> dict[int, int]:
    """Every bad row or source that leads to the sink, each with the next row on its way there.

    across: also by way of forward values that came back into the pass of a finite loss.
    among: rows at which the walk ends.
    """
    bad = recording.bad
    came_from = {sink.position: sink.position}
    waiting = [sink.position]
    for position in waiting:
        if position in among:
            continue
        for parent in recording.parents(position):
            if (
                parent not in bad
                or parent in came_from
                or (not across and _crosses_back(recording, position, parent))
                or _left_behind(recording, position, parent)
            ):
                continue
            came_from[parent] = position
            waiting.append(parent)
    return came_from


def _left_behind(recording: Recording, position: int, parent: int) -> bool:
    """Whether ``where`` chose no bad element of an operand."""
    row = recording.at(position)
    kept = recording.kept.get(row.call) if row.name == "where" else None
    if kept is None:
        return False
    taken = {1: kept.args[0], 2: ~kept.args[0]}
    slots = {slot for source, slot in recording.operands(position) if source == parent}
    return not any((taken[slot] & ~kept.args[slot].isfinite()).any() for slot in slots & {1, 2})


def _crosses_back(recording: Recording, position: int, parent: int) -> bool:
    """Whether a path enters the forward graph from a backward row, in a pass of finite loss.

    A value from outside the graph, such as an infinite input, does not count: it is bad in itself.
    """
    row, made = recording.at(position), recording.at(parent)
    if not row.backward or not made or made.backward:
        return False
    known = 0 <= row.backward_pass < len(recording.passes)
    roots = recording.passes[row.backward_pass].roots if known else ()
    # the cheap question first: the others walk the graph
    if any(r in recording.bad for r in roots):
        return False
    return _born_in_graph(recording, parent) and not _from_outside(recording, parent)


def _from_outside(recording: Recording, position: int) -> bool:
    """Whether a bad forward value came with data, a parameter, or from outside the graph."""
    seen = {position: position}
    waiting = [position]
    for here in waiting:
        kind = leaf_kind(recording, here, seen)
        if kind is not None and kind != "intended" and recording.at(here).node < 0:
            stats = recording.stats(here)
            return stats is None or bool(stats.nan or stats.posinf)
        for parent in recording.parents(here):
            if parent in recording.bad and parent not in seen:
                seen[parent] = here
                waiting.append(parent)
    return False


def _born_in_graph(recording: Recording, position: int) -> bool:
    """Whether a bad forward value was born in the graph, not before its first node."""
    bad = walk([position], lambda at: (p for p in recording.parents(at) if p in recording.bad))
    return any((row := recording.at(p)).node >= 0 and row.status != CARRIED for p in bad)


def harmful_origins(recording: Recording) -> Iterator[Origin]:
    """The origins of all harmful symptoms, in the order of the symptoms, each once."""
    seen: set[int] = set()
    # rows that lead to an origin that was told, each with the time of that origin
    told: dict[int, int] = {}
    for sink in recording.sinks[:MOST_SINKS]:
        if sink.position not in recording.bad or (told and _follows(recording, sink, told)):
            continue
        origin = origin_of(recording, sink)
        if origin is None or is_excused(recording, origin):
            continue
        time = _time(recording, origin.position)
        for position in _ancestors(recording, sink, among=told):
            told.setdefault(position, time)
        row = recording.at(origin.position)
        call = row.call if row else origin.position
        if call not in seen:
            seen.add(call)
            yield origin


NUMBERS = 32  # the latest ones that are looked at


def bad_number(recording: Recording) -> tuple[int, int] | None:
    """(birth, result): the last result of the forward pass that is not finite and that no operation
    read, as what a program prints, or new parameters by ``torch.func``; None: there is none.
    """
    bad = {at for at, s in recording.status.items() if at >= 0 and s in (BORN, TURNED, CARRIED)}
    looked = 0
    for position in sorted(bad, reverse=True):
        row = recording.at(position)
        parents = recording.parents(position)
        if not row or row.phase != FORWARD or not parents:
            continue
        if looked == NUMBERS:
            return None
        looked += 1
        if any((chunk.edge_table()[:, 1] == position).any() for chunk in recording.chunks):
            continue
        way = walk([position], lambda at: [p for p in recording.parents(at) if p in bad])
        birth = min(way)
        if recording.at(birth).name not in MOVES:  # written as it is: float("inf")
            return birth, position
    return None


def _follows(recording: Recording, sink: Sink, told: dict[int, int]) -> bool:
    """Whether a symptom goes back to an origin reported already, and to no new one before it.

    In a run that goes on with poisoned parameters almost every symptom does; each row is walked
    once.
    """
    came_from = _ancestors(recording, sink, among=told)
    touched = [told[p] for p in came_from if p in told]
    fresh = {
        p: kind for p, kind in _leaves(recording, came_from) if p not in told and kind != "intended"
    }
    if not touched or any(_time(recording, p) < min(touched) for p in fresh):
        return False
    for position in came_from:
        told.setdefault(position, min(touched))
    return True


# What an origin is called: its phase, and the operator to name.


def phase_of(recording: Recording, origin: Origin) -> str:
    """Finding.phase of an origin."""
    if origin.kind == "data":
        return "data"
    if origin.kind in ("parameter", "buffer"):
        return "init"
    arrived = origin.kind == "rank" and origin.position < 0
    row = recording.at(origin.first_use(recording) if arrived else origin.position)
    if not row:
        return "forward" if origin.kind == "intended" else "data"
    if origin.kind == "uninitialised":
        if origin.position < recording.began or _taken_by_update(recording, origin):
            return "init"
        return "forward" if row.module or _in_forward(recording, row.place) else "data"
    if origin.kind == "rank":
        return {BACKWARD: "backward", OPTIMIZER: "optimizer"}.get(row.phase, "forward")
    if origin.position < recording.began:  # while the program was built
        return "data" if recording.owned.keys().isdisjoint(origin.path) else "init"
    if any(first <= origin.position < end for first, end in recording.batches):  # of a loader
        return "data"
    if comes_back(recording, origin):
        return "backward"
    # a search without gradients has no update apart from what it computes
    if (
        recording.passes
        and origin.sink.kind == "parameter"
        and not row.backward
        and _by_hand(recording, origin.position, row)
        and not _is_handed_on(recording, origin)
    ):
        # a layer that initialises itself
        return "optimizer" if not _in_forward(recording, row.place) else "forward"
    return {BACKWARD: "backward", OPTIMIZER: "optimizer"}.get(row.phase, "forward")


def _taken_by_update(recording: Recording, origin: Origin) -> bool:
    """Whether an update carried a value from outside into a parameter or into optimizer state."""
    rows = map(recording.at, origin.path)
    return origin.sink.kind in ("parameter", "state") and any(r.phase == OPTIMIZER for r in rows)


def _by_hand(recording: Recording, position: int, row: Op) -> bool:
    """Whether the way to a parameter leads through an update that the program makes itself."""
    return bool(row.without_grad) or (row.node < 0 and comes_from_gradients(recording, position))


def _is_handed_on(recording: Recording, origin: Origin) -> bool:
    """Whether gradients that the program made itself went into a later optimizer step."""
    written = origin.sink.position
    steps = (s for s in recording.training.optimizer_steps if s.position <= written < s.end)
    return any(origin.position < step.position for step in steps)


def _in_forward(recording: Recording, place: int) -> bool:
    """Whether a line stands in a ``forward``: the root module has no path to tell."""
    _, number, file = recording.places[place]
    return function_at(file, number).rpartition(".")[2] in ("forward", "__call__")


def comes_back(recording: Recording, origin: Origin) -> bool:
    """Whether a forward value harmed only the gradient of the operation that kept it."""
    if origin.sink.kind != "gradient" or len(origin.path) < 2:
        return False
    born, after = recording.at(origin.position), recording.at(origin.path[1])
    return not born.backward and after.backward and born.node == after.node >= 0


def operator_of_node(node: str) -> str:
    """The operator of a node: ``LinalgVectorNormBackward0`` is of ``linalg_vector_norm``."""
    found = re.match(r"(\w+?)Backward\d+$", node)
    if found is None or found[1] in ("Copy", "View"):
        return ""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", found[1]).lower()


def in_hook(recording: Recording, position: int) -> bool:
    """Whether a backward row was computed by a hook of the program, not by the derivative formula
    of a node.

    A formula bears the line of its node, and what adds to a parameter's gradient that of the call
    of backward; a hook bears its own. Nor is it a formula where the node is that of a whole
    scripted function, which begins with a detach.
    """
    row = recording.at(position)
    if not row.backward:
        return False
    info = recording.nodes.get(row.node)
    if info is not None:
        # torch.jit: has no derivative of its own
        scripted = info.op >= 0 and recording.ops.items[info.op] == "detach"
        return info.op >= 0 and not info.custom and (info.line != row.place or scripted)
    kept = recording.kept.get(row.call)
    known = 0 <= row.backward_pass < len(recording.passes)
    called = recording.passes[row.backward_pass].line if known else row.place
    return kept is not None and kept.node_name.endswith(ACCUMULATES) and row.place != called


def operator_name(recording: Recording, position: int) -> str:
    """The operator to name: for a backward row the forward operator of its node, else its own."""
    row = recording.at(position)
    if row.backward and row.node >= 0 and not in_hook(recording, position):
        info = recording.nodes.get(row.node)
        if info is not None and info.op >= 0 and not info.custom:
            return str(recording.ops.items[info.op])
        kept = recording.kept.get(row.call)  # a node that no forward row names, as under torch.func
        if (info is None or info.op < 0) and kept is not None:
            return operator_of_node(kept.node_name) or row.name
    return row.name
