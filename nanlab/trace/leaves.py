"""Which parameter each AccumulateGrad node serves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nanlab.trace.nodes import NodeRun
from nanlab.trace.recording import SHAPE, Recording

LEAF = "AccumulateGrad"


def leaf_parameters(recording: Recording) -> list[str]:
    """The name of the parameter whose gradient each node run adds to; "" for other nodes, and where it is not known.

    Two ways lead to the name: the row that became the parameter's gradient was written while the leaf ran; and the node
    that gave the gradient was made by an operation that reads the parameter.
    """
    runs = recording.node_runs
    written = _written_gradients(recording)
    names = [""] * len(runs)
    before = [0, *(run.position for run in runs[:-1])]
    for i, (run, start) in enumerate(zip(runs, before, strict=True)):
        if run.name == LEAF and run.node < 0:
            names[i] = next((written[row] for row in (*run.taken, *range(start, run.position)) if row in written), "")
    for i, name in _read_by_givers(recording).items():
        names[i] = names[i] or name
    return names


def _written_gradients(recording: Recording) -> dict[int, str]:
    """Row of a parameter's gradient, and the parameter's name."""
    names = recording.parameter_names
    return {step.gradient: names[step.owner] for step in recording.training.parameters if step.gradient is not None}


def _read_by_givers(recording: Recording) -> dict[int, str]:
    """Name of the parameter of each leaf run that follows from the operation whose node gave its gradient."""
    found: dict[int, str] = {}
    written = {step.value: step.owner for step in recording.training.parameters if step.value is not None}
    for members in _by_giver(recording.node_runs):
        giver, leaves = recording.node_runs[members[0]], members[1:]
        read = _parameters_read(recording, giver.node, written)
        taken = [recording.node_runs[i].taken[0] for i in leaves]
        sizes = [_size(recording, row) for row in taken]
        if len(read) == len(leaves):
            order = sorted(range(len(leaves)), key=lambda k: giver.given.index(taken[k]))
            found |= {leaves[k]: name for k, (name, _) in zip(order, read, strict=True)}
            continue
        for leaf, size in zip(leaves, sizes, strict=True):
            fitting = [name for name, other in read if other == size]
            if len(fitting) == 1 and sizes.count(size) == 1:
                found[leaf] = fitting[0]
    return found


def _by_giver(runs: Sequence[NodeRun]) -> list[list[int]]:
    """Numbers of a run and of the leaves that took a gradient which it gave, in one pass."""
    groups: dict[int, list[int]] = {}
    givers: dict[tuple[int, int], int] = {}
    for i, run in enumerate(runs):
        if run.name == LEAF and run.node < 0:
            giver = givers.get((run.backward_pass, run.taken[0])) if run.taken else None
            if giver is not None:
                groups.setdefault(giver, [giver]).append(i)
        else:
            givers |= {(run.backward_pass, row): i for row in run.given}
    return list(groups.values())


def _parameters_read(recording: Recording, node: int, written: dict[int, int]) -> list[tuple[str, int]]:
    """Name and number of elements of the parameters that a node's forward operation read, in the order of its arguments.

    written: owner of the rows that an optimizer wrote.
    """
    info = recording.nodes.get(node)
    if info is None:
        return []
    found = []
    for number, _ in recording.operands(info.position):
        source = recording.sources.get(number)
        if source is not None and source.kind == "parameter" and source.name:
            found.append((source.name, prod(source.shape)))
        elif number in written:
            found.append((recording.parameter_names[written[number]], _size(recording, number)))
    return found


def _size(recording: Recording, number: int) -> int:
    """Elements of a row or source; a row may show the same elements in another shape."""
    row, source = recording.row(number) if number >= 0 else None, recording.sources.get(number)
    return prod(recording.shapes.items[row[SHAPE]] if row is not None else source.shape if source is not None else (0,))
