"""The autograd nodes of a watch: what made them, and each run of the engine through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

ACCUMULATES = "AccumulateGrad"  # the node that adds to a parameter's gradient
NO_OWNER = -1


@dataclass(slots=True)
class NodeRun:
    """One execution of an autograd node."""

    node: int
    name: str
    backward_pass: int
    position: int  # of the trace when it ran
    taken: tuple[int, ...] = ()  # rows (or sources) of the gradients that came in
    given: tuple[int, ...] = ()  # and of those that went out


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """One call of the autograd engine."""

    number: int
    position: int
    line: int
    site: int
    roots: tuple[int, ...]
    accumulates: bool  # False: torch.autograd.grad
    edges: tuple[tuple[int, int], ...]  # (node, node that its gradient goes to)
    nodes: frozenset[int] = frozenset()

    def folded(self) -> BackwardPass:
        """Without the graph."""
        return replace(self, edges=(), nodes=frozenset())


@dataclass(slots=True)
class NodeInfo:
    """The forward operation that created an autograd node."""

    position: int
    op: int
    line: int
    site: int
    module: int
    custom: bool = False  # a torch.autograd.Function


def leaf_number(owner: int) -> int:
    """The number that stands for the AccumulateGrad node of a parameter, which has no sequence
    number; negative."""
    return -2 - owner


def owner_of_leaf(run: NodeRun) -> int:
    """The number of the parameter to whose gradient a run added; NO_OWNER for other nodes."""
    return -2 - run.node if run.name == ACCUMULATES else NO_OWNER


class Nodes:
    """What made each autograd node, by sequence number.

    Kept as plain tuples of numbers: there are many of them, and Python's garbage collector does not
    walk such tuples.
    """

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int, int, int, int, bool]] = {}  # the fields of NodeInfo

    def get(self, number: int) -> NodeInfo | None:
        row = self.rows.get(number)
        return None if row is None else NodeInfo(*row)

    def values(self) -> Iterator[NodeInfo]:
        return (NodeInfo(*row) for row in self.rows.values())

    def keep(self, wanted: Callable[[int, int], bool]) -> None:
        """Forget all of which ``wanted(number, position)`` is false."""
        self.rows = {number: row for number, row in self.rows.items() if wanted(number, row[0])}


class NodeRuns(Sequence[NodeRun]):
    """The executions of autograd nodes in their order; plain tuples, for the reason that ``Nodes``
    gives."""

    def __init__(self) -> None:
        # the fields of NodeRun
        self.rows: list[tuple[int, str, int, int, tuple[int, ...], tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> NodeRun: ...
    @overload
    def __getitem__(self, at: slice) -> list[NodeRun]: ...
    def __getitem__(self, at: int | slice) -> NodeRun | list[NodeRun]:
        return (
            [NodeRun(*row) for row in self.rows[at]]
            if isinstance(at, slice)
            else NodeRun(*self.rows[at])
        )

    def __iter__(self) -> Iterator[NodeRun]:
        return (NodeRun(*row) for row in self.rows)
