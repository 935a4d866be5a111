"""The autograd graph of a run: where gradient flows, where it was cut, what nodes keep."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat, zip_longest
from typing import Any, Literal, get_args

import torch

from nanlab.operators import having
from nanlab.program.rerun import written_by
from nanlab.stats import TensorStats, summarize
from nanlab.trace import Trace
from nanlab.trace.op import FORWARD, OPTIMIZER, Op
from nanlab.trace.program import Call, Held, Ref, refs_in
from nanlab.trace.recording import BackwardPass, NodeInfo, Recording

# The autograd graph of a run: where gradient flows, where the graph was cut, and which part of
# it was used again.

MOST_ROWS = 100_000  # rows that are walked over


def last_root(recording: Recording) -> int | None:
    """The row (or source) that the last ``backward()`` began with."""
    for run in reversed(recording.passes):
        if run.roots:
            return run.roots[0]
    return None


class GraphFlow:
    """Questions about the flow of gradient through a recording."""

    def __init__(self, recording: Recording, parameters: frozenset[int] = frozenset()) -> None:
        self.recording = recording
        self.parameters = parameters  # rows (or sources) that are known to be parameters
        self._custom = sorted(info.position for info in recording.nodes.values() if info.custom)
        self._live = recording.passes[-1].nodes if recording.passes else frozenset()

    def is_parameter(self, position: int) -> bool:
        """Whether a row or source is what a parameter (or buffer) held.

        That is read from outside, made while the model was built, or updated by an optimizer.
        """
        row, source = self.recording.at(position), self.recording.sources.get(position)
        if position in self.parameters or not row:
            known = source is not None and source.kind == "parameter"
            return position in self.parameters or known
        if row.phase == OPTIMIZER:
            return row.inplace
        # A tensor that was computed and then asked for a gradient is "owned" too, and no parameter.
        return position in self.recording.owned and (row.inplace or not row.inputs)

    def carries(self, position: int) -> bool:
        """Whether a row is part of a graph, or a parameter."""
        if self.is_parameter(position):
            return True
        row = self.recording.at(position)
        if row.phase != FORWARD:
            return False
        return row.node >= 0 or (row.without_grad and self._in_custom(position))

    def _in_custom(self, position: int) -> bool:
        """Whether a row without gradient is inside the forward of a torch.autograd.Function."""
        at = bisect_right(self._custom, position) - 1
        rows = range(self._custom[at], position) if at >= 0 else ()
        return at >= 0 and all(self.recording.at(p).without_grad for p in rows)

    def walk(self, root: int, follow: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
        """(row or source, operations to the root) of the root, and of each ancestor where
        ``follow(parent, child)``. The walk goes no further than a parameter."""
        distance = {root: 0}
        waiting = [root]
        for position in waiting:
            yield position, distance[position]
            if self.is_parameter(position):
                continue
            for parent in self.parents(position):
                if (
                    parent not in distance
                    and len(distance) < MOST_ROWS
                    and follow(parent, position)
                ):
                    distance[parent] = distance[position] + 1
                    waiting.append(parent)

    def parents(self, position: int) -> list[int]:
        """What a row or source came from."""
        return [p for p in self.recording.parents(position) if p != position]

    def lost_between(self, parent: int, child: int) -> bool:
        """Whether a row carries gradient, and an operation that reads it does not hand it on."""
        if not self.carries(parent):
            return False
        row, made = self.recording.at(child), self.recording.at(parent)
        if row.phase != FORWARD or not self.carries(child):
            return True
        if self.is_parameter(parent) or made.node < 0 or row.node not in self._live:
            return False
        return made.node not in self._live

    def reaches_parameter(self, root: int) -> bool:
        """Whether gradient flows from ``root`` to some parameter."""
        flows = self.walk(root, lambda p, c: self.carries(c) and not self.lost_between(p, c))
        return any(self._is_wanted(position) for position, _ in flows)

    def comes_from_parameter(self, position: int) -> bool:
        """Whether a row was computed from a parameter, whatever became of that graph."""
        flows = self.walk(position, lambda parent, child: self.carries(parent))
        return any(self._is_wanted(each) for each, _ in flows)

    def _is_wanted(self, position: int) -> bool:
        return position in self.parameters if self.parameters else self.is_parameter(position)


def dead_ends(flow: GraphFlow, before: int) -> list[int]:
    """Rows since the last update that carry or lost gradient, and that nothing has read."""
    recording = flow.recording
    chunk = recording.chunk_of(before)
    used = set(chunk.edge_table()[:, 1].tolist())
    ends = []
    for position in range(_since(flow, before), before):
        row = recording.at(position)
        if position in used or row.phase != FORWARD or flow.is_parameter(position):
            continue
        if row.view and all(flow.is_parameter(p) for p in row.inputs):
            continue
        if _detached_by_program(flow, row) or flow.carries(position):
            ends.append(position)
    return ends


def _detached_by_program(flow: GraphFlow, row: Op) -> bool:
    """Whether a row is a ``detach`` that the program wrote.

    Autograd detaches what it saves, right after the operation that made it.
    """
    if row.name != "detach":
        return False
    written = any(word in row.source for word in ("detach", "numpy", ".data"))
    carries = any(flow.carries(p) for p in row.inputs)
    return carries and (written or row.position - 1 not in row.inputs)


def read_before(flow: GraphFlow, position: int, ends: list[int]) -> tuple[int, int] | None:
    """(row, place) of the last value that was read as a number before and led nowhere else."""
    recording = flow.recording
    start = _since(flow, position)
    for read in reversed(recording.escapes.read_outs):
        if start <= read.position <= position and read.source in ends:
            return read.source, read.line
    return None


def _since(flow: GraphFlow, position: int) -> int:
    """Position after the last update of a parameter before this one."""
    recording = flow.recording
    chunk = recording.chunk_of(position)
    first = max(chunk.start, position - MOST_ROWS)
    for at in range(position - 1, first - 1, -1):
        row = recording.at(at)
        if row.phase == OPTIMIZER and row.inplace:
            return at + 1
    return first


def held_by(flow: GraphFlow, number: int, ends: list[int]) -> list[int]:
    """The dead ends that a literal may copy: as many elements, all in the literal's range."""
    recording = flow.recording
    stats = recording.stats(number)
    if stats is None or stats.min is None:
        return []
    by_size: dict[int, list[int]] = {}
    for end in ends:
        each = recording.stats(end)
        if (
            each is not None
            and each.min is not None
            and stats.min <= each.min
            and each.max <= stats.max
        ):
            by_size.setdefault(each.numel, []).append(end)
    for size, rows in by_size.items():
        if size * len(rows) >= stats.numel and stats.numel % size == 0:
            return rows[-(stats.numel // size) :]
    return []


# What cut the graph; of several cuts the one named first here explains most.
Kind = Literal[
    "no-grad",
    "sample",
    "literal",
    "number",
    "detach",
    "data",
    "numpy",
    "index",
    "cast",
    "comparison",
    "frozen",
    "unknown",
]
_CHOICES = having("ranks")
_COMPARISONS = having("compares")
_ORDER: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where gradient was lost on the way to a result."""

    kind: Kind
    position: int  # row that lost it
    op: str
    module: str
    file: str
    line: int
    source: str
    # row (or parameter, negative) that still carried it; 0 tells nothing if ``known`` is False
    carrier: int
    known: bool
    steps: int  # operations between it and the result
    carriers: tuple[int, ...] = ()  # for a literal: the rows whose values it holds


def cuts_before(flow: GraphFlow, root: int) -> list[Cut]:
    """Cuts on the way to the row ``root``, the most telling first, then the nearest."""
    found: list[Cut] = []
    given = numbers_given(flow, root)
    for position, steps in flow.walk(
        root, lambda parent, child: not flow.lost_between(parent, child)
    ):
        if _is_literal(flow, position):
            found.append(_literal(flow, position, steps))
        elif position >= 0 and not flow.is_parameter(position):
            if position in given:
                carrier, place = given[position]
                row, where = flow.recording.at(position), flow.recording.line_at(place)
                cut = Cut("number", position, "item", row.module, *where, carrier, True, steps)
                found.append(cut)
            lost = next((p for p in flow.parents(position) if flow.lost_between(p, position)), None)
            if lost is not None:
                found.append(_cut(flow, position, lost, steps))
    return sorted(found, key=lambda cut: (not cut.known, _ORDER.index(cut.kind), cut.steps))


# What a program makes of a number before it computes with it.
_MADE: tuple[Callable[[float], float], ...] = (
    lambda v: v,
    lambda v: -v,
    lambda v: 1 / v,
    lambda v: v * v,
    lambda v: v**0.5,
    math.exp,
    lambda v: math.exp(-v),
)
ROUND = 8  # digits that a number has at most which a program may have written, too


def numbers_given(flow: GraphFlow, root: int) -> dict[int, tuple[int, int]]:
    """(row, place of the reading) of what was read as a number before ``root``, by the row of the
    operation that was given just that number."""
    recording = flow.recording
    start = _since(flow, root)
    read: dict[float, tuple[int, int]] = {}
    for each in recording.escapes.read_outs:
        value = recording.value(each.source) if start <= each.position <= root else None
        if value is not None and flow.carries(each.source):
            for made in _MADE:
                with suppress(ArithmeticError):
                    if not isinstance(number := made(value), complex) and not _is_round(number):
                        read.setdefault(number, (each.source, each.line))
    given: dict[int, tuple[int, int]] = {}
    for call in recording.program.calls(start, root + 1) if read else ():
        numbers = (v for v in (*call.args, *call.kwargs.values()) if isinstance(v, float))
        held = next((read[v] for v in numbers if v in read), None)
        if held is not None and held[0] < call.position:
            given[call.position] = held
    return given


def _is_round(number: float) -> bool:
    return not math.isfinite(number) or float(f"{number:.{ROUND}g}") == number


def cuts_off_parameters(flow: GraphFlow, cut: Cut) -> bool:
    """Whether a cut lost gradient of parameters (of the optimizer, if known)."""
    return cut.known and any(flow.comes_from_parameter(p) for p in cut.carriers or (cut.carrier,))


def _cut(flow: GraphFlow, reader: int, carrier: int, steps: int) -> Cut:
    recording = flow.recording
    at = _detached(flow, carrier, reader)
    row = recording.at(at)
    kind, place = _kind(flow, row, carrier), recording.line_at(row.place)
    return Cut(kind, at, row.name, row.module, *place, carrier, True, steps)


def _detached(flow: GraphFlow, carrier: int, reader: int) -> int:
    """The row that took ``carrier`` out of the graph before ``reader`` read it; ``reader`` if it
    did so itself.

    A detached tensor is an alias, so that the edge of its reader does not name the row of
    ``detach``.
    """
    if flow.recording.at(reader).without_grad:
        return reader
    for position in range(reader - 1, max(carrier, flow.recording.chunk_of(reader).start - 1), -1):
        row = flow.recording.at(position)
        if row.name == "detach" and carrier in row.inputs:
            return position
    return reader


def _kind(flow: GraphFlow, row: Op, carrier: int) -> Kind:
    op = row.name.rstrip("_")
    if op == "detach":
        return _kind_of_detach(row.source)
    if row.without_grad:
        # a distribution expands what it was given; a layer reads a parameter under a no_grad of
        # the program's own, whatever its line draws later
        given = row.name == "expand" or not flow.is_parameter(carrier)
        return "sample" if given and ".sample(" in row.source else "no-grad"
    if op in _COMPARISONS:
        return "comparison"
    dtype = row.dtype
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if op in _CHOICES and whole:
        return "index"
    if whole:
        return "cast"
    return "frozen" if flow.is_parameter(carrier) else "unknown"


def _kind_of_detach(source: str) -> Kind:
    if ".numpy(" in source or "np." in source:
        return "numpy"
    if ".detach(" in source:
        return "detach"
    if "torch.tensor(" in source or "torch.as_tensor(" in source:
        return "literal"
    return "data" if ".data" in source else "detach"


def _is_literal(flow: GraphFlow, position: int) -> bool:
    source = flow.recording.sources.get(position) if position < 0 else None
    return source is not None and source.kind == "literal" and "float" in source.dtype


def _literal(flow: GraphFlow, number: int, steps: int) -> Cut:
    """A tensor made from Python numbers or an array that may have carried gradient."""
    recording = flow.recording
    position = recording.sources[number].first
    ends = dead_ends(flow, position)
    held = held_by(flow, number, ends)
    read = read_before(flow, position, held or ends)
    arrays = [end for end in held or ends if recording.at(end).name == "detach"]
    row = recording.at(position)
    kind: Kind = "literal"
    place, op, carrier = row.place, "lift_fresh", held[-1] if held else 0
    if read is not None:
        kind, op, (carrier, place), held = "number", "item", read, []
    elif arrays:
        kind, op, carrier, held = "numpy", "numpy", arrays[-1], []
        place = recording.at(carrier).place
    known, where = kind != "literal" or bool(held), recording.line_at(place)
    return Cut(kind, position, op, row.module, *where, carrier, known, steps, tuple(held))


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


def stopped_at(
    recording: Recording, run: BackwardPass, within: frozenset[int] | None = None
) -> int | None:
    """The node that raised: of those that did not run, whose predecessors all ran, the one with the
    highest number.

    The engine takes ready nodes in that order (torch/csrc/autograd/engine.cpp,
    CompareNodeTaskTime).
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
    """The node that stopped the last pass, and what overwrote its saved tensor."""
    if not recording.passes:
        return None
    run = recording.passes[-1]
    node = stopped_at(recording, run)
    made = recording.nodes.get(node) if node is not None else None
    if node is None or made is None:
        return None
    saver = recording.program.call_at(made.position)
    saved: dict[int, bool] = {}  # storage that it may have saved -> whether it is an operand's
    made_by = [] if saver is None else [*refs_in(saver.out)]
    for refs, is_operand in ((saver.read if saver else [], True), (made_by, False)):
        fit = [ref for ref in refs if shape is None or sorted(ref.size) == sorted(shape)]
        saved |= {ref.storage: is_operand for ref in fit}
    for call in recording.program.calls(made.position + 1, run.position):
        for number, storage in enumerate(written_by(call)):
            if storage in saved:
                return Overwritten(node, made, call.position + number, saved[storage])
    return Overwritten(node, made, None, None)


def op_of(recording: Recording, info: NodeInfo | None) -> str:
    """Name of the operation that created a node."""
    if info is None:
        return "an operation before the watch began"
    if info.custom:
        return "a custom autograd.Function"
    return recording.at(info.position).name or str(recording.ops.items[info.op])


# What an autograd node keeps of its forward operation: the operands and results, and under
# which names.

SavedKind = Literal["operand", "result", "saved"]
Known = Literal["yes", "no", "unknown"]
# Factors of a product: torch keeps each of them only where the other one needs a gradient. All else
# is kept whenever the node exists.
_PAIRS = (
    "self other, self mat2, mat1 mat2, batch1 batch2, self vec, mat vec, vec1 vec2, tensor1 tensor2"
)
PAIRS = tuple(frozenset(pair.split()) for pair in _PAIRS.split(","))


@dataclass(frozen=True, slots=True)
class ForwardTensor:
    """A tensor of the forward operation behind a node."""

    # as the operator's schema calls it: "self", "weight", "result1"; "" where the schema does not
    # tell
    name: str
    # "saved": kept by a custom Function, which the recording does not tie to an operation
    kind: SavedKind
    origin: str  # what made it: "parameter encoder.weight", "data", or the operation
    # its row in ``trace.ops``, negative for what no operation made: ``trace.histogram`` takes both
    number: int | None
    shape: tuple[int, ...]
    dtype: str
    stats: TensorStats | None  # None where its row was folded away
    kept: Known  # whether the node keeps it for backward

    @property
    def attribute(self) -> str:
        """The attribute of the node that holds it: ``_saved_self``; "" where it is not kept."""
        if self.kind == "saved":
            return self.name
        return f"_saved_{self.name}" if self.name and self.kept == "yes" else ""


def forward_tensors(trace: Trace, node: int, name: str) -> list[ForwardTensor]:
    """Operands, then results, of the forward operation that made a node; empty where it was not
    recorded.

    node: its sequence number. name: of the node, as in ``trace.backward``. The names under which it
    keeps them are those of its class in torch; where the node made something non-finite, they were
    also seen at run time.
    """
    recording: Recording | None = getattr(trace, "recording", None)
    info = recording.nodes.get(node) if recording is not None else None
    if recording is None or info is None:
        return []
    seen = _seen(recording, node, name)
    if info.custom or name.endswith("Backward"):
        return list(_of_a_function(seen))
    call = recording.program.call_at(info.position)
    found = [*_operands(recording, info, call), *_results(recording, info, call)]
    fields = set(seen) if seen else saved_fields(name)
    tracked = {name for name, ref in _tensor_arguments(call) if getattr(ref, "tracked", True)}
    pair = next((p for p in PAIRS if fields is not None and p <= fields), frozenset[str]())
    left_out = {factor for factor in pair if not pair - {factor} & tracked}
    return [_judged(tensor, fields, left_out) for tensor in found]


def saved_fields(name: str) -> set[str] | None:
    """What nodes of a class may keep: ``{"self", "result"}``; None for a class that torch does not
    list.

    ``torch._C._functions`` is private; it held the classes of all built-in nodes in torch 2.6 to
    2.13.
    """
    cls = getattr(torch._C._functions, name, None)
    if cls is None:
        return None
    prefix = "_raw_saved_"
    return {field.removeprefix(prefix) for field in dir(cls) if field.startswith(prefix)}


def _judged(tensor: ForwardTensor, fields: set[str] | None, left_out: set[str]) -> ForwardTensor:
    """The tensor with whether it is kept."""
    if fields is None or not tensor.name:
        return tensor
    names = {tensor.name, "self_or_result"} if tensor.name in ("self", "result") else {tensor.name}
    kept = bool(fields & names) and not (tensor.kind == "operand" and tensor.name in left_out)
    return replace(tensor, kept="yes" if kept else "no")


def _seen(recording: Recording, node: int, name: str) -> dict[str, Any]:
    """What the node had saved, by name; known only for a failed, kept operation."""
    for kept in recording.kept.values():
        row = recording.at(kept.position)
        if kept.node_name == name and row.node == node and row.backward:
            return {k: v for k, v in kept.saved.items() if isinstance(v, torch.Tensor | tuple)}
    return {}


def _of_a_function(seen: dict[str, Any]) -> Iterator[ForwardTensor]:
    """The tensors of a custom Function's ``saved_tensors``."""
    for number, value in enumerate(seen.get("saved_tensors", ())):
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            name = f"saved_tensors[{number}]"
            yield ForwardTensor(
                name, "saved", "", None, tuple(value.shape), dtype, summarize(value), "yes"
            )


def _operands(recording: Recording, info: NodeInfo, call: Call | None) -> Iterator[ForwardTensor]:
    sources = [source for source, _ in recording.operands(info.position)]
    names = [name for name, _ in _tensor_arguments(call)]
    # what a call only overwrites is its first argument, and no operand
    for source, name in zip_longest(sources, names[max(len(names) - len(sources), 0) :]):
        if source is None:
            break
        if source < 0:
            known = recording.sources.get(source)
            if known is not None:
                origin = f"{known.kind} {known.name}".strip()
                parts = (known.shape, known.dtype, recording.stats(source))
                yield ForwardTensor(name or "", "operand", origin, source, *parts, "unknown")
        elif (row := recording.op(source)) is not None:
            yield _of_row(recording, source, row, name or "", "operand")


def _results(recording: Recording, info: NodeInfo, call: Call | None) -> Iterator[ForwardTensor]:
    """The results, under their names in torch's derivative formulas."""
    returns = call.func._schema.returns if call is not None and call.func is not None else ()
    names = [
        r.name or ("result" if len(returns) == 1 else f"result{i}") for i, r in enumerate(returns)
    ]
    position = info.position
    for name in chain(names, repeat("")):
        row = recording.at(position)
        if row.call != info.position:
            break
        yield _of_row(recording, position, row, name, "result")
        position += 1


def _tensor_arguments(call: Call | None) -> list[tuple[str, Any]]:
    """(the schema's name, reference) of each tensor that a call was given; of lists no name."""
    if call is None or call.func is None:
        return []
    names = (argument.name for argument in call.func._schema.arguments)
    found: list[tuple[str, Any]] = []
    for name, value in (*zip(names, call.args, strict=False), *call.kwargs.items()):
        if isinstance(value, (list, tuple)) and value.__class__ is not Ref:
            found += [("", each) for each in value if each.__class__ in (Ref, Held)]
        elif value.__class__ in (Ref, Held):
            found.append((name, value))
    return found


def _of_row(
    recording: Recording, position: int, row: Op, name: str, kind: SavedKind
) -> ForwardTensor:
    dtype = str(row.dtype).removeprefix("torch.")
    return ForwardTensor(name, kind, row.name, position, row.shape, dtype, row.stats, "unknown")
