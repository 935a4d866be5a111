"""What an origin is called: its phase, and the operator to name."""

from __future__ import annotations

import linecache
import re

from nanlab.analysis.provenance import Origin
from nanlab.analysis.training import comes_from_gradients
from nanlab.trace.nodes import ACCUMULATES
from nanlab.trace.recording import (
    BACKWARD,
    OPTIMIZER,
    Op,
    Recording,
)


def phase_of(recording: Recording, origin: Origin) -> str:
    """Finding.phase of an origin."""
    if origin.kind == "data":
        return "data"
    if origin.kind in ("parameter", "buffer"):
        return "init"
    arrived = origin.kind == "rank" and origin.position < 0
    row = recording.op(origin.first_use(recording) if arrived else origin.position)
    if row is None:
        return "forward" if origin.kind == "intended" else "data"
    if origin.kind == "uninitialised":
        return (
            "init"
            if origin.position < recording.began or _taken_by_update(recording, origin)
            else "forward"
            if row.module or _in_forward(recording, row.place)
            else "data"
        )
    if origin.kind == "rank":
        return {BACKWARD: "backward", OPTIMIZER: "optimizer"}.get(row.phase, "forward")
    if origin.position < recording.began:  # while the program was built
        return "data" if recording.owned.isdisjoint(origin.path) else "init"
    if comes_back(recording, origin):
        return "backward"
    # a search without gradients has no update apart from what it computes
    trained = bool(recording.passes)
    if (
        trained
        and origin.sink.kind == "parameter"
        and not row.backward
        and _by_hand(recording, origin.position, row)
    ):
        # a layer that initialises itself
        return "optimizer" if not _in_forward(recording, row.place) else "forward"
    return {BACKWARD: "backward", OPTIMIZER: "optimizer"}.get(row.phase, "forward")


def _taken_by_update(recording: Recording, origin: Origin) -> bool:
    """Whether what came from outside went into a parameter, or the state of an optimizer, by way of
    an update."""
    rows = [recording.op(p) for p in origin.path if p >= 0]
    return origin.sink.kind in ("parameter", "state") and any(
        row is not None and row.phase == OPTIMIZER for row in rows
    )


def _by_hand(recording: Recording, position: int, row: Op) -> bool:
    """Whether an operation on the way to a parameter is part of an update that the program makes
    itself."""
    return bool(row.without_grad) or (row.node < 0 and comes_from_gradients(recording, position))


def _in_forward(recording: Recording, place: int) -> bool:
    """Whether a line stands in a method called ``forward``: the root module has no path that would
    tell."""
    _, number, file = recording.places[place]
    lines = linecache.getlines(file)[:number]
    indent = len(lines[-1]) - len(lines[-1].lstrip()) if lines else 0
    for text in reversed(lines):
        found = re.match(r"(\s*)(?:async )?def (\w+)", text)
        if found and len(found[1]) < indent:
            return found[2] in ("forward", "__call__")
    return False


def comes_back(recording: Recording, origin: Origin) -> bool:
    """Whether a forward value harmed nothing but the gradient of its own operation, which had kept
    it."""
    if origin.sink.kind != "gradient" or len(origin.path) < 2:
        return False
    born, after = recording.op(origin.position), recording.op(origin.path[1])
    return (
        born is not None
        and after is not None
        and not born.backward
        and after.backward
        and born.node == after.node >= 0
    )


def operator_of_node(node: str) -> str:
    """The operator of an autograd node: ``LinalgVectorNormBackward0`` is of ``linalg_vector_norm``;
    "" of a Function."""
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
    row = recording.op(position)
    if row is None or not row.backward:
        return False
    info = recording.nodes.get(row.node) if row.node >= 0 else None
    if info is not None:
        # torch.jit: has no derivative of its own
        scripted = info.op >= 0 and recording.ops.items[info.op] == "detach"
        return info.op >= 0 and not info.custom and (info.line != row.place or scripted)
    kept = recording.kept.get(row.call)
    called = (
        recording.passes[row.backward_pass].line
        if 0 <= row.backward_pass < len(recording.passes)
        else row.place
    )
    return kept is not None and kept.node_name.endswith(ACCUMULATES) and row.place != called


def operator_name(recording: Recording, position: int) -> str:
    """The operator to name: for a backward row the forward operator of its node, else its own."""
    row = recording.op(position)
    if row is None:
        return ""
    if row.backward and row.node >= 0 and not in_hook(recording, position):
        info = recording.nodes.get(row.node)
        if info is not None and info.op >= 0 and not info.custom:
            return str(recording.ops.items[info.op])
        kept = recording.kept.get(row.call)  # a node that no forward row names, as under torch.func
        if (
            (info is None or info.op < 0)
            and kept is not None
            and (name := operator_of_node(kept.node_name))
        ):
            return name
    return row.name
