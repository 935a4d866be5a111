"""From where a bad value was seen back to where it was born."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from nanlab.analysis.leaves import CHOICES, MOVES, Kind, derivative_unseen, hides_nothing, leaf_kind
from nanlab.analysis.skipped_overflows import handled_by_scaler, passed_over
from nanlab.trace.op import walk
from nanlab.trace.recording import (
    CARRIED,
    HEALED,
    MOST_SINKS,
    TURNED,
    Recording,
    Sink,
)


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
        computing = [
            p for p in rows if (row := recording.op(p)) is not None and row.name not in MOVES
        ]
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
    guilty = [leaf for leaf in guilty if not hides_nothing(recording, leaf[0], guilty)]
    if not guilty:
        return None
    position, kind = min(guilty, key=lambda leaf: (_time(recording, leaf[0]), leaf[0]))
    path = _path(came_from, [position], sink)
    if kind == "data" and (unseen := derivative_unseen(recording, position)) >= 0:
        position, kind, path = unseen, "operation", [unseen, *path]
    if kind == "data":
        path = _path(came_from, _way_to_first_use(recording, position, came_from), sink)
    return Origin(kind, position, sink, tuple(path))


def _path(came_from: dict[int, int], begun: list[int], sink: Sink) -> list[int]:
    """A way that has begun, continued to the sink."""
    path = list(begun)
    while path[-1] != sink.position:
        path.append(came_from[path[-1]])
    return path


def _way_to_first_use(recording: Recording, position: int, among: dict[int, int]) -> list[int]:
    """From what came as it is to the earliest row that computes with it; the way to the symptom may
    be shorter elsewhere."""
    moved: dict[int, list[int]] = {position: [position]}
    for here in sorted(p for p in among if p >= 0 and p != position):
        row = recording.op(here)
        taken = next((moved[p] for p in recording.parents(here) if p in moved), None)
        if row is None or taken is None:
            continue
        moved[here] = [*taken, here]
        if here >= recording.began and row.name not in MOVES:
            return moved[here]
    return moved[position]


def _swallowed(recording: Recording, position: int) -> bool:
    """Whether a backward row met an infinity of the forward pass that a saturating function kept
    from the loss.

    One that the program took out itself, by ``where`` or a clamp, was known to be there: its own
    derivative is told.
    """
    row = recording.op(position)
    if row is None or not row.backward or recording.status.get(position) != TURNED:
        return False
    step = recording.step_of(position)
    healers = (
        recording.op(p) for p, status in recording.status.items() if status == HEALED and p >= 0
    )
    named = {
        r.name.rstrip("_")
        for r in healers
        if r is not None and not r.backward and recording.step_of(r.call) == step
    }
    return bool(named) and not named & CHOICES


def _hands_on(recording: Recording, position: int, kind: Kind) -> bool:
    """Whether a backward row only hands on the infinity of a forward value that the loss never
    saw."""
    row = recording.op(position)
    return (
        kind == "operation"
        and row is not None
        and row.backward
        and recording.status.get(position) == CARRIED
    )


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
            ):
                continue
            came_from[parent] = position
            waiting.append(parent)
    return came_from


def _crosses_back(recording: Recording, position: int, parent: int) -> bool:
    """Whether the way goes from a backward row to a forward value of the graph, in a pass whose
    loss was finite.

    What came from outside the graph (an input that is infinite) is no such value: it is bad in
    itself.
    """
    row = recording.op(position)
    if row is None or not row.backward:
        return False
    parent_row = recording.op(parent)
    if parent_row is None or parent_row.backward:
        return False
    roots = (
        recording.passes[row.backward_pass].roots
        if 0 <= row.backward_pass < len(recording.passes)
        else ()
    )
    # the cheap question first: the others walk the graph
    if any(r in recording.bad for r in roots):
        return False
    return _born_in_graph(recording, parent) and not _from_outside(recording, parent)


def _from_outside(recording: Recording, position: int) -> bool:
    """Whether a bad forward value goes back to data, a parameter, or an operation that no gradient
    passes."""
    seen = {position: position}
    waiting = [position]
    for here in waiting:
        kind = leaf_kind(recording, here, seen)
        row = recording.op(here)
        if kind is not None and kind != "intended" and (row is None or row.node < 0):
            stats = recording.stats(here)
            return stats is None or bool(stats.nan or stats.posinf)
        for parent in recording.parents(here):
            if parent in recording.bad and parent not in seen:
                seen[parent] = here
                waiting.append(parent)
    return False


def _born_in_graph(recording: Recording, position: int) -> bool:
    """Whether a bad forward value was born in the graph; else it came with the data, before the
    first autograd node."""
    bad = walk([position], lambda at: (p for p in recording.parents(at) if p in recording.bad))
    rows = (recording.op(at) for at in bad)
    return any(row is not None and row.node >= 0 and row.status != CARRIED for row in rows)


def leads_to_harm(recording: Recording, position: int) -> bool:
    """Whether what is bad in a row came into a symptom of its own step."""
    step = recording.step_of(position)
    sinks = [s for s in recording.sinks[:MOST_SINKS] if recording.step_of(s.step_position) == step]
    return any(position in _ancestors(recording, sink) for sink in sinks)


def harmful_origins(recording: Recording) -> Iterator[Origin]:
    """The origins of all symptoms that did harm, in the order in which the symptoms showed, each
    origin once."""
    seen: set[int] = set()
    # rows that lead to an origin that was told, each with the time of that origin
    told: dict[int, int] = {}
    for sink in recording.sinks[:MOST_SINKS]:
        if sink.position not in recording.bad or _follows(recording, sink, told):
            continue
        origin = origin_of(recording, sink)
        if origin is None or handled_by_scaler(recording, origin) or passed_over(recording, origin):
            continue
        time = _time(recording, origin.position)
        for position in _ancestors(recording, sink, among=told):
            told.setdefault(position, time)
        if _call(recording, origin.position) not in seen:
            seen.add(_call(recording, origin.position))
            yield origin


def _follows(recording: Recording, sink: Sink, told: dict[int, int]) -> bool:
    """Whether a symptom goes back to what was told already, and to nothing earlier that is new.

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


def _call(recording: Recording, position: int) -> int:
    row = recording.op(position)
    return position if row is None else row.call
