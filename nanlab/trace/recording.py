"""What a watch wrote down: rows of numbers, edges, autograd nodes, some tensors."""

from __future__ import annotations

import linecache
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from nanlab.operators import having
from nanlab.stats import StatsTable, TensorStats
from nanlab.trace.chunk import (
    CALL,
    FLAGS,
    MODULE,
    NODE,
    OP,
    OUTPUT,
    PHASE,
    STAT,
    WIDTH,
    Chunk,
    Names,
    Span,
)
from nanlab.trace.escapes import Escapes
from nanlab.trace.history import History
from nanlab.trace.op import BACKWARD, Gone, Op
from nanlab.trace.program import Program
from nanlab.trace.ranks import Ranks

if TYPE_CHECKING:
    import pandas as pd


# The autograd nodes of a watch: what made them, and each run of the engine through them.

ACCUMULATES = "AccumulateGrad"  # the node that adds to a parameter's gradient
NO_OWNER = -1
NORMALISES = having("normalises")


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


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor that a function of the program had under a name when a fault showed."""

    position: int  # of the trace when it did
    file: str  # as it is shown
    function: int  # its first line; 0: the file or cell itself
    line: int  # at which it stood
    name: str
    storage: int  # number of its memory in the recorded program
    offset: int  # elements
    size: tuple[int, ...]
    stride: tuple[int, ...]  # elements


def leaf_number(owner: int) -> int:
    """The number of a parameter's AccumulateGrad node, which has no sequence; negative."""
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
        """Forget each row for which ``wanted(number, position)`` is false."""
        self.rows = {number: row for number, row in self.rows.items() if wanted(number, row[0])}


_NodeRow = tuple[int, str, int, int, tuple[int, ...], tuple[int, ...]]


class NodeRuns(Sequence[NodeRun]):
    """Executions of autograd nodes in order; plain tuples, as ``Nodes`` explains."""

    def __init__(self) -> None:
        self._rows: list[_NodeRow] = []
        self.late: list[Callable[[], list[_NodeRow]]] = []  # each makes some, in their order

    @property
    def rows(self) -> list[_NodeRow]:
        """The fields of each NodeRun."""
        if self.late:
            late, self.late = self.late, []
            for make in late:
                self._rows += make()
        return self._rows

    @rows.setter
    def rows(self, rows: list[_NodeRow]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> NodeRun: ...
    @overload
    def __getitem__(self, at: slice) -> list[NodeRun]: ...
    def __getitem__(self, at: int | slice) -> NodeRun | list[NodeRun]:
        if isinstance(at, slice):
            return [NodeRun(*row) for row in self.rows[at]]
        return NodeRun(*self.rows[at])

    def __iter__(self) -> Iterator[NodeRun]:
        return (NodeRun(*row) for row in self.rows)


PHASES = ("forward", "backward", "optimizer", "recompute", "other")
STATUSES = ("ok", "born", "carried", "turned", "healed", "intended")

MOST_SINKS = 400  # symptoms that are looked into, in the order in which they showed

SinkKind = Literal["loss", "gradient", "parameter", "buffer", "state", "output"]


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor read that no recorded operation wrote: data, a parameter, a buffer."""

    number: int  # negative; stands for it in the edges
    kind: Literal["data", "literal", "parameter", "buffer", "snapshot", "unseen-write", "arrival"]
    name: str  # of the parameter or buffer
    stat: int
    first: int  # position of the operation that first read it
    shape: tuple[int, ...]
    dtype: str
    parents: tuple[int, ...] = ()  # for a snapshot: the operations that wrote its parts


@dataclass(frozen=True, slots=True)
class Sink:
    """A non-finite value in a place where it does harm."""

    kind: SinkKind
    position: int  # the operation (or source, negative) whose result it is
    step_position: int  # position of the trace when it was noticed
    name: str = ""  # of the parameter, buffer or state


@dataclass(frozen=True, slots=True)
class Kept:
    """The operands of an operation that failed."""

    position: int
    op: Any  # torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...]
    saved: dict[str, Any]  # of a backward operation: what its autograd node had saved
    node_name: str = ""


@dataclass(frozen=True, slots=True)
class GuiltyCall:
    """A call whose operands are evidence: a replay of its step makes them again."""

    position: int
    node_name: str = ""  # of a backward operation
    # what its autograd node had saved: a Ref in the place of each tensor
    saved: dict[str, Any] = field(default_factory=dict)
    # what the node had saved behind a hook, such as a checkpoint's
    hidden: tuple[str, ...] = ()
    # Refs to the operands of a node whose calls were not seen
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Shadow:
    """The float32 twin of a half-precision result."""

    table: StatsTable
    row: int  # of the table: statistics of the twin
    flushed: int  # elements that are zero here and not in the twin
    overflowed: int  # non-finite here and not in the twin
    relative_error: float  # largest, over the elements that are finite in both

    @property
    def stats(self) -> TensorStats:
        """Statistics of the twin."""
        return self.table.stats(self.row)

    @property
    def exponents(self) -> pd.Series[int]:
        """Exponent histogram of the twin."""
        return self.table.histogram(self.row)


_start = attrgetter("start")


@dataclass(eq=False)
class Operands(Mapping[int, Kept]):
    """The operands of the guilty calls of a recording, by position."""

    _recording: Recording

    def __getitem__(self, position: int) -> Kept:
        recording = self._recording
        if position in recording.guilty and position not in recording.evidence:
            recording.make_operands(recording, recording.step_of(position))
        found = recording.evidence.get(position)
        if found is None:
            raise KeyError(position)
        return found

    def __iter__(self) -> Iterator[int]:
        return (p for p in sorted(self._recording.guilty) if p in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(slots=True)
class Recording:
    """All that one watch recorded. Capture appends to it, everything else reads it."""

    chunks: list[Chunk] = field(default_factory=lambda: [Chunk(0, 0)])
    # position at which each training step begins
    starts: list[int] = field(default_factory=lambda: [0])
    first_step: int = 0  # number of the first step in the run that this is a replay of
    clock: list[float] = field(default_factory=list)  # seconds, one per start
    ops: Names = field(default_factory=Names)
    modules: Names = field(default_factory=lambda: Names(""))
    shapes: Names = field(default_factory=Names)
    dtypes: Names = field(default_factory=Names)
    devices: Names = field(default_factory=lambda: Names("cpu"))
    places: list[tuple[str, int, str]] = field(default_factory=lambda: [("", 0, "")])
    # the expression at each place, if known
    spans: list[Span | None] = field(default_factory=lambda: [None])
    status: dict[int, int] = field(default_factory=dict)  # of the rows that are not "ok"
    # where the first graph that went backward begins; before it the program was being built
    began: int = 1 << 62
    # rows that made what became a parameter or buffer -> its number
    owned: dict[int, int] = field(default_factory=dict)
    # gradients that overflow at the present loss scale may yet be skipped: nobody took them
    undecided: bool = False
    # some rows are still on their device: what is bad among them is not known yet
    pending: bool = False
    pending_from: int = 0  # position of the first call that may be among them
    detail: Literal["full", "fault"] = "full"  # which operations are summarised
    # whether statistics are put off now, until a replay makes them
    puts_off: bool = False
    bad: set[int] = field(default_factory=set)  # rows and sources with a NaN or an infinity
    # (number of a line, operator) of infinities that did no harm in steps that were forgotten
    usual: set[tuple[int, str]] = field(default_factory=set)
    sources: dict[int, Source] = field(default_factory=dict)
    _numbers: int = 0  # sources so far
    sinks: list[Sink] = field(default_factory=list)
    named: list[NamedTensor] = field(default_factory=list)  # in the steps of the first of these
    guilty: dict[int, GuiltyCall] = field(default_factory=dict)
    # by guilty call, as far as they were asked for; None where they could not be made again
    evidence: dict[int, Kept | None] = field(default_factory=dict)
    # of guilty calls: file, line, function
    inside_torch: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    # of guilty calls of a library: file, first and last line of the user's functions that it was
    # given
    given: dict[int, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)
    # of guilty calls on a line that names what torch.jit compiled: its name, operator, file, line
    scripted: dict[int, tuple[tuple[str, str, str, int], ...]] = field(default_factory=dict)
    shadowed: bool = False  # whether the diagnosis looks at the float32 twins
    # position of the end -> the float32 twins of the kept steps up to there
    twins_made: tuple[int, dict[int, Shadow]] | None = None
    # by call: what it adds, clamps to, scales by
    scalars: dict[int, tuple[float, ...]] = field(default_factory=dict)
    node_runs: NodeRuns = field(default_factory=NodeRuns)
    passes: list[BackwardPass] = field(default_factory=list)
    nodes: Nodes = field(default_factory=Nodes)
    parameter_names: list[str] = field(default_factory=list)  # by owner number
    parameter_kinds: list[Literal["parameter", "buffer"]] = field(default_factory=list)
    history: History = field(default_factory=History)
    # of a recording and a step: puts the operands of its guilty calls into ``evidence``
    make_operands: Callable[[Recording, int], None] = lambda recording, step: None
    make_twins: Callable[[Recording], dict[int, Shadow]] = lambda recording: {}
    # of the StepRows of a step that ends: notes gradients used in the wrong order
    check: Callable[[Any], None] = lambda rows: None
    # of the StepRows of a closed step, what was Written in it, and whether the rows have
    # statistics: adds to the history what grows, and what was lost
    look_through: Callable[[Any, Any, bool], None] = lambda rows, written, measured: None
    # brings the history up to date: looks through steps that wait for it
    catch_up: Callable[[], None] | None = None
    folded: list[dict[str, Any]] = field(default_factory=list)  # a summary of each folded step
    # folded steps that keep every row: of the first faults
    whole: set[int] = field(default_factory=set)
    # columns of the folded parameter rows
    folded_parameters: list[dict[str, Any]] = field(default_factory=list)
    escapes: Escapes = field(default_factory=Escapes)
    # of files, where they are not those of this machine
    texts: dict[str, str] = field(default_factory=dict)
    # whether its source may be run, as fixes are tried: that of a file may not
    trusted: bool = True
    # findings and cure as they were when it was saved (`nanlab.rules.answers`)
    answers: dict[str, Any] | None = None
    program: Program = field(default_factory=Program)  # the kept steps, to be run again
    ranks: Ranks | None = None  # of a distributed run that has ended: what the others told
    # what nanlab itself has to say: its own failures, what it left out
    notes: list[str] = field(default_factory=list)
    # by row of a batch: index in dataset by place
    bad_samples: dict[int, dict[int, Any]] = field(default_factory=dict)
    # a step's parameters are new tensors, which the next step computes with
    updates_apart: bool = False
    # rows that torch.compile's code made: first, end
    compiled: list[tuple[int, int]] = field(default_factory=list)
    # rows that a DataLoader made while it handed out a batch: first, end
    batches: list[tuple[int, int]] = field(default_factory=list)
    ended: str = ""  # how the watch ended: "", "fault", "steps", "error"; "failed": nanlab itself

    @property
    def kept(self) -> Operands:
        """The operands of the guilty calls, made again when they are asked for."""
        return Operands(self)

    @property
    def twins(self) -> dict[int, Shadow]:
        """The float32 twins of half-precision results in the kept steps, by row."""
        if self.twins_made is None or self.twins_made[0] != self.end:
            self.twins_made = self.end, self.make_twins(self)
        return self.twins_made[1]

    @property
    def shadows(self) -> dict[int, Shadow]:
        """The twins that the diagnosis looks at."""
        return self.twins if self.shadowed else {}

    @property
    def holds_low_precision(self) -> bool:
        """Whether any result has a floating-point dtype of at most two bytes."""
        dtypes = (d for d in self.dtypes.items if isinstance(d, torch.dtype))
        return any(d.is_floating_point and d.itemsize <= 2 for d in dtypes)

    @property
    def normalises(self) -> bool:
        """Whether any operation can read running statistics."""
        return not NORMALISES.isdisjoint(self.ops.items)

    @property
    def training(self) -> History:
        """The events of the training loop."""
        if self.catch_up is not None:
            self.catch_up()
        return self.history

    def may_be_bad(self, position: int) -> bool:
        """Whether a row or source has a NaN or an infinity, or may turn out to have."""
        return self.pending or position in self.bad or (self.puts_off and self.is_put_off(position))

    def is_put_off(self, position: int) -> bool:
        """Whether the tensor of a row was not read yet."""
        table, row = self.table_of(self.stat_of(position))
        return table is not None and table.is_put_off(row)

    def table_of(self, stat: int) -> tuple[StatsTable | None, int]:
        """The table and row of statistics by their number; None, -1 where they are gone."""
        if stat < 0:
            return None, -1
        chunk = self.chunks[stat >> 32]
        return chunk.stats, chunk.stat_row(stat)

    def flags(self, position: int) -> int:
        """The bits of a row: VIEW, INPLACE, ...; 0 where it is gone."""
        row = self.row(position)
        return 0 if row is None else row[FLAGS]

    def outputs_of(self, call: int) -> int:
        """How many results the call at this position has."""
        return self.chunk_of(call).outputs_of(call)

    def new_owner(self, name: str, kind: Literal["parameter", "buffer"]) -> int:
        """The number of a parameter or buffer not seen before."""
        self.parameter_names.append(name)
        self.parameter_kinds.append(kind)
        return len(self.parameter_names) - 1

    def new_source(
        self,
        kind: Any,
        shape: Sequence[int],
        dtype: torch.dtype,
        stat: int = -1,
        first: int | None = None,
        name: str = "",
        parents: tuple[int, ...] = (),
    ) -> int:
        """The number of a tensor that no recorded operation wrote; ``first`` read: now."""
        number = self._numbers = self._numbers - 1
        self.sources[number] = Source(
            *(number, kind, name, stat, self.end if first is None else first),
            *(tuple(shape), str(dtype).removeprefix("torch."), parents),
        )
        return number

    @property
    def end(self) -> int:
        """Position of the next row."""
        return self.chunks[-1].end

    def step_of(self, position: int) -> int:
        """Training step, from 0, of a position."""
        return bisect_right(self.starts, position) - 1

    def chunk_of(self, position: int) -> Chunk:
        """The chunk that holds (or held) a position."""
        chunks = self.chunks
        if position >= chunks[-1].start:
            return chunks[-1]
        return chunks[max(bisect_right(chunks, position, key=_start) - 1, 0)]

    def row(self, position: int) -> tuple[int, ...] | None:
        """The numbers of one row; None if it was folded away."""
        chunk = self.chunk_of(position)
        at = chunk.index(position)
        if at < 0 or (at + 1) * WIDTH > len(chunk.meta):
            return None
        return tuple(chunk.meta[at * WIDTH : (at + 1) * WIDTH])

    def at(self, position: int) -> Op:
        """The result at a position; for a source (negative) or a folded row an object that is false
        and has no facts."""
        row = self.row(position) if position >= 0 else None
        return Gone(self, position) if row is None else Op(self, position, row)

    def op(self, position: int) -> Op | None:
        """The result at a position; None for a source or a folded row."""
        return self.at(position) or None

    def made_by(self, position: int) -> NodeInfo:
        """The forward operation of a backward row's node; for any other row the row itself."""
        row = self.at(position)
        info = self.nodes.get(row.node) if row.backward else None
        if info is not None:
            return info
        return NodeInfo(position, row._row[OP], row.place, row.site, row._row[MODULE])

    def line_at(self, place: int) -> tuple[str, int, str]:
        """(shown file, line, source text) of a place."""
        file, line, real = self.places[place]
        return file, line, linecache.getline(real, line).strip() if line else ""

    def all_ops(self) -> Iterator[Op]:
        """Every result at hand, in order."""
        return (Op(self, position, row) for position, row in self.rows())

    def readers(self, position: int) -> list[int]:
        """Positions of the calls at hand that read a row or source, in their order."""
        found: list[int] = []
        for chunk in self.chunks:
            edges = chunk.edge_table()
            found.extend(dict.fromkeys(edges[edges[:, 1] == position, 0].tolist()))
        return found

    def stat_of(self, position: int) -> int:
        """Statistics number of a row or (negative) source; -1 if it is gone."""
        if position < 0:
            source = self.sources.get(position)
            return -1 if source is None else source.stat
        at = (chunk := self.chunk_of(position)).index(position) * WIDTH
        return chunk.meta[at + STAT] if 0 <= at < len(chunk.meta) else -1

    def stats(self, position: int) -> Any:
        """TensorStats of a row or source; None if it is gone."""
        table, row = self.table_of(self.stat_of(position))
        return None if table is None else table.stats(row)

    def exponents(self, position: int) -> pd.Series[int] | None:
        """Exponent histogram of a row or source; None if it is gone."""
        table, row = self.table_of(self.stat_of(position))
        return None if table is None else table.histogram(row)

    def would_be_compiled(self, position: int) -> bool:
        """Whether a row's code, or its forward row's, runs compiled without a watch."""
        row = self.row(position)
        node = self.nodes.get(row[NODE]) if row is not None and row[PHASE] == BACKWARD else None
        place = position if node is None else node.position
        at = bisect_right(self.compiled, (place, 1 << 62)) - 1
        return at >= 0 and self.compiled[at][0] <= place < self.compiled[at][1]

    def value(self, position: int) -> float | None:
        """The number that a scalar tensor held, NaN and infinities included; None if it is gone."""
        stats = self.stats(position)
        if stats is None:
            return None
        if stats.nan:
            return float("nan")
        if stats.posinf or stats.neginf:
            return float("inf") if stats.posinf else float("-inf")
        return stats.mean  # type: ignore[no-any-return]

    def operands(self, position: int) -> list[tuple[int, int]]:
        """(source, slot) of each operand of a row's call, in-place targets first."""
        row = self.row(position)
        if row is None:
            return []
        chunk, call = self.chunk_of(position), row[CALL]
        edges, low = chunk.edges, chunk.edges_from(call)
        found = []
        while low < len(edges) and edges[low] == call:
            found.append((edges[low + 1], edges[low + 2]))
            low += 3
        return found

    def unviewed(self, position: int) -> int:
        """The row or source that a row is a view of, or the row itself."""
        for _ in range(8):
            op = self.op(position)
            if op is None or not op.view:
                break
            position = next((p for p, _ in self.operands(position)), -1)
        return position

    def own_operands(self, position: int) -> list[tuple[int, int]]:
        """(source, slot) of what this very output was made from.

        Of an operation on lists (``_foreach_``), which has an output for each element, that is the
        element at the same place in each list, and the single tensors that follow the lists. Of any
        other it is all that the call read.
        """
        row = self.row(position)
        if row is None or not self.ops.items[row[OP]].startswith("_foreach_"):
            return self.operands(position)
        chunk, call = self.chunk_of(position), row[CALL]
        outputs = chunk.outputs_of(call)
        low, high = chunk.edges_from(call), chunk.edges_from(call + outputs)
        whole = (high - low) // 3 // outputs * outputs
        slots = [*range(row[OUTPUT], whole, outputs), *range(whole, (high - low) // 3)]
        return [(chunk.edges[low + 3 * slot + 1], slot) for slot in slots]

    def parents(self, position: int) -> list[int]:
        """What a row or source came from."""
        if position < 0:
            source = self.sources.get(position)
            return list(source.parents) if source else []
        return [source for source, _ in self.own_operands(position)]

    def rows(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(position, numbers) of every row at hand."""
        for chunk in self.chunks:
            meta = chunk.meta
            for at, position in enumerate(chunk.where().tolist()):
                yield position, tuple(meta[at * WIDTH : (at + 1) * WIDTH])
