"""Which node stopped a backward pass: freed by an earlier pass, or holding a tensor that was overwritten since."""

from __future__ import annotations

from dataclasses import dataclass

from nanlab.trace.nodes import BackwardPass, NodeInfo
from nanlab.trace.recording import (
    FORWARD,
    Recording,
)


@dataclass(frozen=True, slots=True)
class Reused:
    """A node that two passes went through."""

    first: BackwardPass
    second: BackwardPass
    node: int
    made: NodeInfo | None  # the forward operation that created it
    shared: int  # nodes that both passes have


@dataclass(frozen=True, slots=True)
class Overwritten:
    """An in-place operation that changed what a node had saved."""

    node: int
    made: NodeInfo | None  # the operation that saved it
    written: int | None  # row of the in-place operation that changed it
    operand: bool | None  # what was saved is an operand; else the result; None: not known


def stopped_at(recording: Recording, run: BackwardPass, within: frozenset[int] | None = None) -> int | None:
    """The node that raised: of those that did not run, whose predecessors all ran, the one with the highest number.

    The engine takes ready nodes in that order (torch/csrc/autograd/engine.cpp, CompareNodeTaskTime).
    within: only these.
    """
    ran = {each.node for each in recording.node_runs if each.backward_pass == run.number}
    blocked = {there for here, there in run.edges if here not in ran}
    left = [n for n in run.nodes if n >= 0 and n not in ran and (within is None or n in within)]
    ready = [n for n in left if n not in blocked]
    return max(ready or left, default=None)


def reused_graph(recording: Recording) -> Reused | None:
    """The last two passes that share nodes, and the node that stopped the second."""
    if not recording.passes:
        return None
    second = recording.passes[-1]
    for first in reversed(recording.passes[:-1]):
        shared = frozenset(n for n in first.nodes & second.nodes if n >= 0)
        if not shared:
            continue
        node = stopped_at(recording, second, shared)
        if node is None:
            node = max(shared)
        return Reused(first, second, node, recording.nodes.get(node), len(shared))
    return None


def overwritten(recording: Recording, shape: tuple[int, ...] | None) -> Overwritten | None:
    """The node that stopped the last pass, and what overwrote the tensor of this shape that it had saved."""
    if not recording.passes:
        return None
    run = recording.passes[-1]
    node = stopped_at(recording, run)
    made = recording.nodes.get(node) if node is not None else None
    if node is None or made is None:
        return None
    saved = _aliases(recording, made.position, run.position)
    writes = _writes(recording, made.position, run.position, saved)
    hits = [(p, root) for p, root in writes if shape is None or _fits(recording, p, root, shape)]
    if hits:
        written, root = hits[0]
        return Overwritten(node, made, written, root != made.position)
    erased = _erasures(recording, made.position, run.position, shape) if shape is not None else None
    return Overwritten(node, made, erased, None)


def _erasures(recording: Recording, start: int, end: int, shape: tuple[int, ...]) -> int | None:
    """The first row that erased a tensor of this shape; ``zero_`` and ``copy_`` read nothing, so no edge names it."""
    for at in range(start + 1, end):
        row = recording.op(at)
        written = row is not None and bool(row.inplace) and row.phase == FORWARD
        if row is not None and written and tuple(row.shape) == shape:
            return at
    return None


def _aliases(recording: Recording, position: int, end: int) -> dict[int, int]:
    """What an operation read and made, and every view of that, each with the operand or the result it shows."""
    family = {position: position} | {p: p for p in recording.parents(position)}
    for operand in list(family):  # the base of a view
        row = recording.op(operand)
        while operand != position and row is not None and row.view and recording.parents(operand):
            parent = recording.parents(operand)[0]
            family.setdefault(parent, family[operand])
            operand, row = parent, recording.op(parent)
    for at in range(max(0, min((p for p in family if p >= 0), default=position)), end):
        row = recording.op(at)
        if row is not None and row.view and at not in family:
            root = next((family[p] for p in recording.parents(at) if p in family), None)
            if root is not None:
                family[at] = root
    return family


def _writes(recording: Recording, start: int, end: int, family: dict[int, int]) -> list[tuple[int, int]]:
    """(row, what it changed) of the in-place operations between two positions."""
    found = []
    for at in range(start + 1, end):
        row = recording.op(at)
        if row is None or not row.inplace:
            continue
        root = next((family[p] for p in recording.parents(at) if p in family), None)
        if root is None:
            root = _written_through_view(recording, at, family)
        if root is not None:
            found.append((at, root))
    return found


def _written_through_view(recording: Recording, position: int, family: dict[int, int]) -> int | None:
    """``y[0] = 0`` makes a view and fills it; what is overwritten is no operand, so that no edge names the view."""
    row = recording.op(position)
    for before in (position - 1, position - 2):
        view = recording.op(before)
        if row is not None and view is not None and before in family and view.view and view.place == row.place:
            return family[before]
    return None


def _fits(recording: Recording, position: int, root: int, shape: tuple[int, ...]) -> bool:
    """Whether what was written, or what it is a part of, has the shape that torch names."""
    shapes = []
    for each in (position, root):
        row = recording.op(each)
        shapes.append(tuple(row.shape) if row is not None else recording.sources[each].shape)
    return any(sorted(s) == sorted(shape) for s in shapes)


def op_of(recording: Recording, info: NodeInfo | None) -> str:
    """Name of the operation that created a node."""
    if info is None:
        return "an operation before the watch began"
    if info.custom:
        return "a custom autograd.Function"
    row = recording.op(info.position)
    return str(recording.ops.items[info.op]) if row is None else row.name
