"""Which operands of a call carry a gradient, and the gradient that came in."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nanlab.trace.nodes import ACCUMULATES
from nanlab.trace.recording import CALL, NODE, PASS, Kept, Recording


def carrying(
    recording: Recording, row: tuple[int, ...], operands: tuple[Any, ...]
) -> tuple[int, ...]:
    """Which operands of a forward call carry a gradient: all that may, where the recording does not
    tell them apart."""
    if row[NODE] < 0:
        return ()
    floating = [
        i
        for i, t in enumerate(operands)
        if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())
    ]
    tensors = [i for i, t in enumerate(operands) if isinstance(t, Tensor)]
    slots = {slot: source for source, slot in recording.operands(row[CALL])}
    rows = {
        i: recording.row(slots[at]) if slots.get(at, -1) >= 0 else None
        for at, i in enumerate(tensors)
    }
    known = [i for i in floating if (made := rows[i]) is None or made[NODE] >= 0]
    given = max((len(run.given) for run in recording.node_runs if run.node == row[NODE]), default=0)
    # a result may have been made to require a gradient
    return tuple(known if given == len(known) else floating)


def incoming(recording: Recording, kept: Kept, row: tuple[int, ...]) -> Tensor | None:
    """The gradient that came into the node, if the failing call read it."""
    taken = {source for run in recording.node_runs if run.node == row[NODE] for source in run.taken}
    tensors = [a for a in kept.args if isinstance(a, Tensor)]
    for source, slot in recording.operands(row[CALL]):
        if source in taken and slot < len(tensors):
            return tensors[slot]
    return None


def only_way(recording: Recording, row: tuple[int, ...]) -> bool:
    """Whether every gradient of the backward pass comes through the node of a row: without it the
    loss has none."""
    running = next((p for p in recording.passes if p.number == row[PASS]), None)
    if running is None or not running.edges:
        return False
    following: dict[int, list[int]] = {}
    for node, there in running.edges:
        following.setdefault(node, []).append(there)
    waiting = list(running.nodes - {there for _, there in running.edges} - {row[NODE]})
    seen = set(waiting)
    for node in waiting:
        fresh = [n for n in following.get(node, ()) if n not in seen and n != row[NODE]]
        seen.update(fresh)
        waiting += fresh
    leaves = [
        r for r in recording.node_runs if r.name == ACCUMULATES and r.backward_pass == row[PASS]
    ]
    for run in leaves:
        sources = [s for s in run.taken if s >= 0]
        made = [
            recording.row(s)
            for s in (*sources, *(p for s in sources for p in recording.parents(s)))
            if s >= 0
        ]
        if any(r is None or r[NODE] in seen for r in made):  # a parent: of the sum of two gradients
            return False
    return bool(leaves)
