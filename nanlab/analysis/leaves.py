"""Where a bad value begins: in an operation, or in what came from outside: data, a parameter, a
mask, a literal."""

from __future__ import annotations

from typing import Literal

from nanlab.operators import having
from nanlab.trace.recording import (
    BORN,
    INTENDED,
    TURNED,
    Recording,
    Source,
)

Kind = Literal["operation", "data", "parameter", "buffer", "uninitialised", "intended", "rank"]
# Operators that move values without computing with them.
MOVES = having("moves", in_place=True)
_SOFTMAXES = having("softmax", "attention") - {"logcumsumexp"}
# Operators that take a mask of -inf: what is added to scores, compared, or summed in the log
# domain.
_TAKES_MASK = having("takes_mask", in_place=True)
# Operators by which a program takes a bad value out.
CHOICES = (
    having("bounds", "masks", "picks", "extreme", "assigns")
    | {"nan_to_num"}
    | {"relu", "threshold"}
)
# Operators that stand for a layer: what they compute with is an input, not a bound or a mask.
_LAYERS = having("layer")


def leaf_kind(recording: Recording, position: int, came_from: dict[int, int]) -> Kind | None:
    """What a bad row or source is if the badness begins there, else None.

    came_from: each bad row on the way to the symptom, with the next row on that way.
    """
    if position < 0:
        source = recording.sources.get(position)
        if source is None or any(parent in came_from for parent in source.parents):
            return None
        return _source_kind(recording, source, came_from)
    row = recording.op(position)
    if row is None:
        return None
    status = recording.status.get(position)
    if row.uninitialised:
        return "uninitialised"
    if status == INTENDED:
        return "parameter" if _into_parameter(recording, position, came_from) else "intended"
    if row.literal and status == BORN and _wrote_nan(recording, position):
        return "data"
    if status == BORN and row.arrived:
        return "rank"
    if status in (BORN, TURNED):
        return "operation"
    return (
        None
        if any(p in came_from for p in recording.parents(position) if p != position)
        else "operation"
    )


def _source_kind(recording: Recording, source: Source, came_from: dict[int, int]) -> Kind:
    if source.kind == "parameter":
        return "parameter"
    if source.kind == "arrival":
        return "rank"
    use, turned = _first_computation(recording, source.number, came_from)
    stats = recording.stats(source.number)
    running = source.name.split(".")[-1].startswith("running")
    if is_mask(recording, source.number) and use in _TAKES_MASK and not running:
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
    """Whether an infinity that the program wrote, and that is no mask, went into what a module
    owns."""
    if is_mask(recording, position):
        return False
    while came_from.get(position, position) != position:
        position = came_from[position]
        if position in recording.owned:
            return True
    return False


def is_mask(recording: Recording, position: int) -> bool:
    """Whether all that is bad in a tensor is -inf."""
    stats = recording.stats(position)
    return stats is not None and stats.neginf > 0 and not stats.nan and not stats.posinf


def _first_computation(
    recording: Recording, position: int, came_from: dict[int, int]
) -> tuple[str, bool]:
    """The first operator on the way to the symptom that computes with a value; whether it made NaN
    of an infinity."""
    while position in came_from and came_from[position] != position:
        position = came_from[position]
        row = recording.op(position)
        name = row.name if row is not None else ""
        if name and name not in MOVES:
            return name, recording.status.get(position) == TURNED
    return "", False


def _wrote_nan(recording: Recording, position: int) -> bool:
    """Whether the program wrote NaN itself: ``torch.full(..., nan)``."""
    row = recording.op(position)
    stats = recording.stats(position)
    return row is not None and row.name in MOVES and bool(stats.nan)


def hides_nothing(recording: Recording, position: int, guilty: list[tuple[int, Kind]]) -> bool:
    """Whether a leaf is a mask of -inf from outside the watch, and a softmax that found nothing
    else made NaN of it."""
    source = recording.sources.get(position)
    if source is None or source.kind not in ("data", "buffer") or not is_mask(recording, position):
        return False
    rows = [recording.op(p) for p, _ in guilty if p >= 0]
    return any(row is not None and row.name in _SOFTMAXES for row in rows)


def derivative_unseen(recording: Recording, number: int) -> int:
    """The row of the derivative that made what the next one read from outside: under vmap some run
    where no watch sees them.

    -1 where something else may have brought it: a Function of the program, a hook, the start of the
    pass.
    """
    source = recording.sources.get(number)
    reader = recording.op(source.first) if source is not None else None
    info = recording.nodes.get(reader.node) if reader is not None and reader.backward else None
    if (
        source is None
        or reader is None
        or info is None
        or info.op < 0
        or info.custom
        or info.line != reader.place
    ):
        return -1
    for position in range(source.first - 1, -1, -1):
        row = recording.op(position)
        if row is None or not row.backward or row.backward_pass != reader.backward_pass:
            return -1
        if row.node != reader.node:
            return position if recording.nodes.get(row.node) is not None else -1
    return -1
