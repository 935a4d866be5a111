"""Fault: one origin of a symptom as rules read it, and the finding made from it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from nanlab.analysis.provenance import Origin, in_hook, operator_name, operator_of_node, phase_of
from nanlab.analysis.training import optimizer_step_at
from nanlab.findings.rule import Finding, Match, Rule
from nanlab.operators import having
from nanlab.program.rerun import operate
from nanlab.trace import Trace
from nanlab.trace.op import FORWARD, OPTIMIZER, Op, location, walk
from nanlab.trace.recording import PHASES, Kept, NodeInfo, Recording

# Operators that pass a value on: reshaped, rounded, scaled or shifted.
THROUGH = having("hands_on", in_place=True)
ON_LISTS = "_foreach_"  # how the name of an operator on lists of tensors begins


def _of_member(kept: Kept, place: int) -> tuple[Any, ...]:
    """The arguments of one member of a call on lists; None for an overwritten one."""
    args = [a[place] if isinstance(a, (list, tuple)) and place < len(a) else a for a in kept.args]
    overwritten = kept.op.overloadpacket.__name__.endswith("_")
    first = args[0]
    if overwritten and isinstance(first, Tensor) and not bool(torch.isfinite(first).all()):
        args[0] = None
    return tuple(args)


Tensor = torch.Tensor
LOW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def nonfinite(tensor: Tensor) -> Tensor:
    """Mask of NaN and infinities, for every dtype."""
    return ~torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor)


def floating(value: Any) -> bool:
    """Whether a value is a tensor of real or complex floating point."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


class Fault:
    """One origin of a symptom. Its tensors are copies of the operands; None if too large."""

    def __init__(self, trace: Trace, origin: Origin, finding: Finding) -> None:
        self.trace, self.recording = trace, trace.recording
        self.origin, self.finding = origin, finding
        self.kind = origin.kind
        self.position = origin.position

    @cached_property
    def row(self) -> Op:
        return self.recording.at(self.position)

    @cached_property
    def kept(self) -> Kept | None:
        """The guilty call with its tensors on the CPU; of a call on lists, the bad member."""
        kept = self.recording.kept.get(self.row.call)
        if kept is None:
            return None
        listed = kept.op is not None and kept.op.overloadpacket.__name__.startswith(ON_LISTS)
        own = _of_member(kept, self.position - self.row.call) if listed else kept.args
        args, kwargs, outputs, saved = tree_map_only(
            (Tensor, torch.device),
            lambda each: each.cpu() if isinstance(each, Tensor) else torch.device("cpu"),
            (own, kept.kwargs, kept.outputs, kept.saved),
        )
        return replace(kept, args=args, kwargs=kwargs, outputs=outputs, saved=saved)

    @property
    def saved(self) -> dict[str, Any]:
        return self.kept.saved if self.kept else {}

    @cached_property
    def backward(self) -> bool:
        """Whether a derivative failed; the work of a hook in the backward pass is none."""
        return self.row.backward and not in_hook(self.recording, self.position)

    @cached_property
    def in_update(self) -> bool:
        """Whether a parameter is being updated, by an optimizer or by hand."""
        written = self.origin.sink.kind == "parameter"
        unseen = self.row.node < 0 and optimizer_step_at(self.recording, self.position)
        by_hand = written and bool(self.row.without_grad or unseen)
        return self.row.phase == OPTIMIZER or by_hand

    @cached_property
    def name(self) -> str:
        """The operator that ran: ``div``, also where it ran in place or on lists of tensors."""
        return self.op_at(self.position)

    @cached_property
    def forward(self) -> str:
        """The operator of the forward pass; of a backward fault, the one differentiated."""
        if not self.backward:
            return self.name
        node = self.kept.node_name if self.kept else ""
        if name := operator_of_node(node):
            return name
        info = self.node
        if info is not None and info.op >= 0:
            return str(self.recording.ops.items[info.op]).rstrip("_")
        return self.name

    @property
    def node(self) -> NodeInfo | None:
        """The forward operation behind its autograd node."""
        return self.recording.nodes.get(self.row.node)

    @property
    def forward_position(self) -> int:
        """The row of the forward operation (its own in the forward pass); -1 if gone."""
        if not self.backward:
            return self.position
        at = self.node.position if self.node is not None else -1
        copied = self.op_at(at) == "clone" and self.parents(at) == self.parents(at + 1)
        # in place: its operand is saved first
        return at + 1 if copied and self.op_at(at + 1) == self.forward else at

    @cached_property
    def custom(self) -> bool:
        """Whether it is the backward of a ``torch.autograd.Function`` written in Python."""
        name = self.kept.node_name if self.kept else ""
        named = name.endswith("Backward") and not name.startswith(("Checkpoint", "torch::"))
        return self.backward and ((self.node is not None and self.node.custom) or named)

    @property
    def call_of_function(self) -> str:
        """Where the Function of this backward was applied; "" if on the fault's line."""
        info = self.node
        if info is None or not info.line or info.line == self.row.place:
            return ""
        file, line, source = self.recording.line_at(info.line)
        return f"It was applied at {location(file, line)}: `{source}`."

    @cached_property
    def dtype(self) -> str:
        return str(self.row.dtype).removeprefix("torch.") if self.row else ""

    @property
    def low(self) -> bool:
        """Whether the result is in half precision or narrower."""
        return self.dtype in LOW

    # -- operands

    @cached_property
    def operands(self) -> list[Tensor]:
        """The tensor arguments of the guilty call, in order."""
        given = [] if self.kept is None else tree_leaves((self.kept.args, self.kept.kwargs))
        return [_dense(v) for v in given if isinstance(v, Tensor)]

    @property
    def named_operands(self) -> dict[str, Tensor]:
        """The operands as columns of a table."""
        return {f"operand_{i}": o for i, o in enumerate(self.operands)}

    def argument(self, index: int, name: str = "") -> Any:
        """An argument of the guilty call, a tensor or not."""
        if self.kept is None:
            return None
        return _dense(
            self.kept.args[index] if index < len(self.kept.args) else self.kept.kwargs.get(name)
        )

    def subject(self, index: int = 0, name: str = "self") -> Any:
        """An argument of the forward operation: as called, or as its node had saved it."""
        return self.saved.get(name) if self.backward else self.argument(index, name)

    @cached_property
    def result(self) -> Tensor | None:
        """The output with the bad elements."""
        outputs = [] if self.kept is None else [_dense(o) for o in self.kept.outputs if floating(o)]
        if self.kept is not None:
            at = self.position - self.row.call
            if at < len(self.kept.outputs) and floating(self.kept.outputs[at]):
                return _dense(self.kept.outputs[at])  # type: ignore[no-any-return]
        return next(
            (o for o in outputs if bool(nonfinite(o).any())), outputs[0] if outputs else None
        )

    @cached_property
    def bad(self) -> Tensor | None:
        """Mask of the offending elements: non-finite, from finite operands if possible."""
        if self.result is None:
            return None
        mask = nonfinite(self.result)
        fresh, born = mask, mask  # not from a NaN; nor an infinity from another
        for operand in self.operands:
            wide = self.spread(operand) if floating(operand) else None
            if wide is not None and wide.shape == mask.shape:
                fresh = fresh & ~torch.isnan(wide)
                born = born & (torch.isfinite(wide) | torch.isnan(self.result))
        born = born & fresh
        return born if bool(born.any()) else fresh if bool(fresh.any()) else mask

    @property
    def count(self) -> int:
        """How many elements are bad."""
        if self.bad is not None:
            return int(self.bad.sum())
        return self.finding.path[0]["nonfinite"] if self.finding.path else 0

    @property
    def elements(self) -> str:
        """``3 elements of 512``: how many of its result are bad."""
        return f"{plural(self.count, 'element')} of {self.numel:,}"

    @property
    def numel(self) -> int:
        return self.result.numel() if self.result is not None else 0

    def spread(self, tensor: Tensor) -> Tensor | None:
        """A tensor broadcast to the shape of the result, None if it does not fit."""
        if self.result is None:
            return None
        try:
            return tensor.expand(self.result.shape)
        except RuntimeError:
            return None

    def at(self, value: Any) -> Tensor | None:
        """An operand's elements at the bad ones; all of them if the shapes do not match."""
        if isinstance(value, (int, float)):
            value = torch.tensor(float(value))
        if not isinstance(value, Tensor):
            return None
        wide = self.spread(value)
        if wide is None or self.bad is None:
            return value.flatten()
        return wide[self.bad]

    @cached_property
    def incoming(self) -> Tensor | None:
        """The incoming gradient among the operands of the guilty backward call."""
        if not self.backward or self.kept is None:
            return None
        tensors = [v for v in tree_leaves(self.kept.args) if isinstance(v, Tensor)]
        at = self.recording.at

        def of_node(position: int) -> list[int]:
            row = at(position)
            return row.inputs if row.backward and row.node == self.row.node else []

        for source, slot in self.recording.operands(self.row.call):
            rows = map(at, walk([source], of_node)) if slot < len(tensors) else ()
            if any(row.backward and row.node != self.row.node for row in rows):
                return tensors[slot]
        return None

    @cached_property
    def incoming_is_zero(self) -> bool:
        """Whether the incoming gradient was 0 at each offending element."""
        if self.incoming is None or self.spread(self.incoming) is None:
            return False
        values = self.at(self.incoming)
        return values is not None and len(values) > 0 and bool((values == 0).all())

    @cached_property
    def exact(self) -> Tensor | None:
        """The result computed again in float64; None if that is impossible."""
        if self.kept is None or self.result is None:
            return None
        try:
            with torch.no_grad():
                args, kwargs = tree_map(_wide, (self.kept.args, self.kept.kwargs))
                outputs = map(_dense, tree_leaves(operate(self.kept.op, args, kwargs)))
        except Exception:
            return None
        fitting = (o for o in outputs if isinstance(o, Tensor) and o.shape == self.result.shape)
        return next(fitting, None)

    # -- the operations around it

    def op_at(self, position: int) -> str:
        """The operator of a row: ``div``, also where it ran in place or on lists of tensors."""
        name = self.recording.at(position).name.removeprefix(ON_LISTS)
        return name.rstrip("_") or name

    def numel_at(self, position: int) -> int:
        """Number of elements of a row or source; 0 if it is gone."""
        stats = self.recording.stats(position)
        return stats.numel if stats is not None else 0

    def text_at(self, position: int) -> str:
        """The user's line of a row; "" if unknown."""
        row = self.recording.at(position)
        found = self.trace.source(row.file, row.line, 0) if row else []
        return " ".join(text for _, text in found).split("#")[0]

    def parents(self, position: int) -> list[int]:
        """The operands of a row, in the order of its arguments."""
        return self.recording.parents(position)

    def operand_row(self, slot: int) -> int:
        """The row of one operand of the forward operation; -1 if gone or from outside."""
        if self.forward_position < 0:
            return -1
        own = self.recording.own_operands(self.forward_position)
        if self.recording.at(self.forward_position).name.startswith(ON_LISTS):
            own = [(source, at) for at, (source, _) in enumerate(own)]
        return next((source for source, at in own if at == slot), -1)

    def upstream(self, position: int, depth: int = 8) -> Iterator[tuple[int, str]]:
        """(position, op) of a row and its ancestors, through operators that pass values on."""

        def onward(at: int) -> list[int]:
            return self.parents(at) if at < 0 or self.op_at(at) in THROUGH else []

        for at in walk([position], onward, depth=depth - 1):
            if at >= 0 and (op := self.op_at(at)):
                yield at, op

    def consumers(self, position: int) -> list[int]:
        """The forward rows that read a row or source."""
        source = self.recording.sources.get(position)
        chunk = self.recording.chunk_of(position if source is None else source.first)
        edges = chunk.edge_table()
        calls = edges[edges[:, 1] == position, 0].tolist()
        rows = [(c, self.recording.at(c)) for c in dict.fromkeys(calls)]
        return [c for c, row in rows if row and not row.backward]

    def downstream(self) -> Iterator[tuple[int, str]]:
        """(position, op) of the rows computed from the forward result, nearest first.

        A tensor written piece by piece is a source, with the op "".
        """
        level, seen = ([self.forward_position] if self.forward_position >= 0 else []), set()
        for _ in range(5):  # operations downstream
            following = []
            for at in level:
                tables = list(self._tables(at))
                yield from ((table, "") for table in tables if table not in seen)
                seen.update(tables)
                for reader in (r for holder in (at, *tables) for r in self.consumers(holder)):
                    if reader in seen:
                        continue
                    seen.add(reader)
                    yield reader, self.op_at(reader)
                    following.append(reader)
            level = following[:16]

    @cached_property
    def _snapshots(self) -> dict[int, list[int]]:
        """Sources by the rows that were written into them as parts."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, source in self.recording.sources.items():
            for part in source.parents:
                found[part].append(number)
        return found

    def _tables(self, position: int) -> Iterator[int]:
        """The tensors that a row became a part of."""
        for number in self._snapshots.get(position, ()):
            yield number
            if number in self.recording.bad:
                yield from self._tables(number)

    def wrote_over(self, position: int) -> int:
        """The row whose write removed all bad parts of a tensor; -1 if there is none."""
        source, bad = self.recording.sources.get(position), self.recording.bad
        if source is None or position in bad or not any(part in bad for part in source.parents):
            return -1
        for at in range(source.first - 1, max(source.parents), -1):
            if self.recording.at(at).inplace:
                return at
        return -1

    @property
    def negative_determinant(self) -> int:
        """The row of the negative determinant for which torch.logdet wrote this NaN; else -1."""
        if self.name != "scalar_tensor":
            return -1
        chosen = [c for c in self.consumers(self.position) if self.op_at(c) == "where"]
        rows = [p for c in chosen for p in self.parents(c) if self.op_at(p) == "_linalg_slogdet"]
        return next(iter(rows), -1)

    # -- the program

    def calls(self, *names: str) -> bool:
        """Whether the user's line, its comment left out, calls one of these functions."""
        line = re.sub(r"\s#.*$", "", self.finding.source)
        return any(re.search(rf"\b{name}\(", line) for name in names)

    @cached_property
    def batch(self) -> int:
        """Batch size: the step's most common leading dimension that its data has too; 0 if
        unknown.
        """
        recording, step = self.recording, self.finding.step
        starts = [*recording.starts, recording.end]
        places = range(*starts[step : step + 2])
        rows = [recording.at(at) for at in places]
        if not all(rows):  # the step was folded: the few rows left of it tell nothing
            return 0
        parents = {at: recording.parents(at) for at in places}
        forward = {at: row for at, row in zip(places, rows, strict=True) if row.phase == FORWARD}
        sizes = Counter(int(r.shape[0]) for r in forward.values() if r.shape and not r.view)
        del sizes[0], sizes[1]
        # the data as it is read: picked, cast or stacked before a parameter comes in
        data: dict[int, tuple[int, ...]] = {}
        read: list[tuple[int, ...]] = []
        alone: set[int] = set()
        for at, row in forward.items():
            sources = {p: recording.sources.get(p) for p in parents[at]}
            data |= {p: s.shape for p, s in sources.items() if s is not None and s.kind == "data"}
            known = [data[p] for p in sources if p in data]
            if sources.keys() <= data.keys() | alone:
                alone.add(at)
                data |= {at: tuple(row.shape)} if known else {}
            else:
                read += known
        held = read or [shape for at, shape in data.items() if at < 0]
        # and what is drawn at random
        held += [tuple(row.shape) for at, row in forward.items() if not parents[at]]
        # a loss may be of pairs of samples, or of parts of them, each with a weight of its own
        held = [s for s in held if len(s) > 1] or [s for s in held if len(s)]
        given = {int(shape[0]) for shape in held} & {*sizes}
        return max(given or sizes, key=sizes.__getitem__, default=0)

    @property
    def samples(self) -> list[int]:
        """Batch indices of offending elements, where the batch (or its heads) leads."""
        if self.bad is None or self.bad.dim() == 0 or self.batch < 2 or self._is_over_samples:
            return []
        if self.finding.phase == "data" and self.recording.batches:  # of one sample, perhaps
            return []
        size, splits = self.bad.shape[0], self.name in having("split_heads")
        if size == 0 or size % self.batch or (size != self.batch and not splits):
            return []
        rows = self.bad.flatten(1).any(1) if self.bad.dim() > 1 else self.bad
        return sorted({int(i) // (size // self.batch) for i in rows.nonzero().flatten()})

    @property
    def _is_over_samples(self) -> bool:
        """Whether the operation leaves out the leading dimension of its operand."""
        reduces = self.name in having("reduces", "deviation")
        first, left_out = self.argument(0), self.argument(1, "dim")
        if self.backward or not reduces or not isinstance(first, Tensor):
            return False
        given = left_out if isinstance(left_out, (list, tuple)) else [left_out]
        return any(type(dim) is int and dim % max(first.dim(), 1) == 0 for dim in given)


def _dense(value: Any) -> Any:
    """A sparse tensor made dense; anything else unchanged."""
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        return value.to_dense()
    return value


def _wide(value: Any) -> Any:
    """A tensor, or a dtype, widened to float64 or complex128."""
    if floating(value):
        return value.to(torch.complex128 if value.is_complex() else torch.float64)
    if isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex):
        return torch.complex128 if value.is_complex else torch.float64
    return value


# The finding of an origin.

_SYMPTOMS = {"gradient": "grad", "parameter": "param"}  # the others under their own names


def finding_of(trace: Trace, origin: Origin) -> Finding:
    """The finding of an origin before a rule names its cause."""
    recording = trace.recording
    arrived = origin.kind == "rank" and origin.position >= 0
    made_here = origin.kind in ("operation", "uninitialised") or arrived
    position = origin.position if made_here else origin.first_use(recording)
    stats = recording.stats(origin.sink.position)
    what = "nan" if stats is not None and stats.nan else "inf"
    place = place_of(trace, position)
    # A bad value among new parameters is a symptom in the step that made them, though no gradient
    # of torch's own shows it.
    apart = recording.updates_apart and origin.position >= 0
    shown = origin.position if apart else origin.sink.step_position
    return Finding(
        cause="unknown",
        severity="error",
        title=f"{place['op']} made a non-finite value",
        explanation="",
        phase=phase_of(recording, origin),
        step=recording.step_of(shown),
        symptom=f"{_SYMPTOMS.get(origin.sink.kind, origin.sink.kind)}-{what}",
        path=path_rows(recording, origin),
        harmful=True,
        **place,
    )


def place_of(trace: Trace, position: int) -> dict[str, Any]:
    """Fields of a Finding from a row: op, node, module, file, line, source, position."""
    recording = trace.recording
    row = recording.at(position)
    place = dict(zip(("file", "line", "source"), recording.line_at(row.place), strict=True))
    node = row.node if row.node >= 0 else None
    own = {"op": operator_name(recording, position), "node": node, "module": row.module}
    return own | place | {"position": position}


def matched(trace: Trace, finding: Finding, rule: Rule, match: Match | Finding) -> Finding:
    """The finding of a fault with the cause that a rule matched."""
    if isinstance(match, Finding):
        return match
    place = {} if match.position is None else place_of(trace, match.position)
    given = {"step": match.step, "phase": match.phase, "op": match.op, "symptom": match.symptom}
    place |= {name: value for name, value in given.items() if value is not None}
    return replace(
        finding,
        cause=rule.name,
        severity=match.severity or rule.severity,
        title=match.title,
        explanation=" ".join(text for text in (rule.explanation, match.explanation) if text),
        evidence=match.evidence,
        samples=match.samples,
        **place,
    )


def surveyed(trace: Trace, rule: Rule, match: Match | Finding) -> Finding:
    """The finding of a rule over the whole trace."""
    if isinstance(match, Finding):
        return match
    recording = trace.recording
    position = -1 if match.position is None else match.position
    bare = Finding(
        cause="",
        severity="note",
        title="",
        explanation="",
        phase=PHASES[recording.at(position).phase],
        step=recording.step_of(max(position, 0)),
        symptom="",
        harmful=match.harmful,
        **place_of(trace, position),
    )
    return matched(trace, bare, rule, match)


def path_rows(recording: Recording, origin: Origin) -> list[dict[str, Any]]:
    """The rows from origin to symptom: operation, place, number of bad elements."""
    rows: list[dict[str, Any]] = []
    for position in origin.path:
        stats = recording.stats(position)
        nonfinite, numel = (stats.nonfinite, stats.numel) if stats is not None else (0, 0)
        entry: dict[str, Any] = {"position": position, "nonfinite": nonfinite, "numel": numel}
        row, source = recording.at(position), recording.sources.get(position)
        op, module = (row.name, row.module) if source is None else (source.kind, source.name)
        entry |= {"op": op, "phase": PHASES[row.phase] if row else "data", "module": module}
        rows.append(entry | {"file": row.file, "line": row.line})
    return rows


# The evidence: a table of the offending elements and their operands.

SHOWN = 20  # offending elements in the table


def number(value: Any) -> str:
    """A number for a message."""
    value = value.item() if isinstance(value, torch.Tensor) else value
    if isinstance(value, complex):
        return f"{value:.4g}"
    return "NaN" if value != value else f"{value:.6g}"


def plural(count: int, one: str, many: str = "") -> str:
    """``1 zero``, ``3 zeros``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def bad_values(nans: int, infinities: int) -> str:
    """``1 NaN and 2 infinities``."""
    parts = [plural(nans, "NaN")] if nans else []
    parts += [plural(infinities, "infinity", "infinities")] if infinities else []
    return " and ".join(parts)


def every(numel: int) -> str:
    """``all 1,024 values``."""
    return "its one value" if numel == 1 else f"all {numel:,} values"


def owner_called(kind: str, name: str) -> str:
    """``the parameter fc.weight``, but ``parameter 0 (4x3)`` and ``the average of fc.weight``."""
    if not name:
        return f"a {kind}"
    return name if name.startswith((f"{kind} ", "the ")) else f"the {kind} {name}"


def verb(count: int, one: str, many: str) -> str:
    """The form of a verb that agrees with a count."""
    return one if count == 1 else many


def table(
    fault: Fault, columns: Mapping[str, Any], only: torch.Tensor | None = None
) -> pd.DataFrame:
    """A row for each of the most extreme offending elements: index, operands, value.

    Columns that do not broadcast to the result are left out. ``attrs["total"]`` is the number of
    offending elements. only: mask of the elements that show this cause; None: all bad ones.
    """
    mask = fault.bad if only is None or fault.bad is None else fault.bad & only
    if mask is None or fault.result is None:
        return pd.DataFrame()
    where = _extreme_first(fault, mask, columns)[:SHOWN]
    index = [tuple(i) if len(i) != 1 else i[0] for i in where.tolist()]
    found: dict[str, Any] = {"index": index}
    at = tuple(where.T)
    for name, operand in {**columns, "value": fault.result}.items():
        wide = fault.spread(operand) if isinstance(operand, torch.Tensor) else None
        if isinstance(operand, (int, float)):
            found[name.replace("_", " ")] = [operand] * len(index)
        elif wide is not None:
            values = wide[at].float() if wide.dtype.itemsize == 1 and floating(wide) else wide[at]
            cells = values.reshape(-1).tolist()
            found[name.replace("_", " ")] = [str(c) if isinstance(c, complex) else c for c in cells]
    frame = pd.DataFrame(found)
    frame.attrs["total"] = int(mask.sum())
    return frame


def _extreme_first(fault: Fault, mask: torch.Tensor, columns: Mapping[str, Any]) -> torch.Tensor:
    """Indices of the offending elements, those farthest from the healthy ones first."""
    where = mask.nonzero()
    operand = next((c for c in columns.values() if isinstance(c, torch.Tensor)), None)
    wide = None if operand is None else fault.spread(operand)
    if wide is None or not wide.is_floating_point() or len(where) < 2:
        return where
    bad, good = wide[tuple(where.T)].double(), wide[~mask].double()
    if len(good) and bool(bad.isfinite().all() and good.isfinite().all()):
        above = bool(bad.min() >= good.max())
        if above or bool(bad.max() <= good.min()):
            return where[bad.argsort(descending=above, stable=True)]
    sizes, healthy = bad.abs().nan_to_num(nan=-1.0), good.abs()
    smaller = len(healthy) > 0 and bool(sizes.median() < healthy.median())
    return where[sizes.argsort(descending=not smaller, stable=True)]


def algebra(fault: Fault, derivative: str, only: torch.Tensor | None = None) -> str:
    """A sentence with the local derivative and its product with the incoming gradient; "" where
    that is not known.

    only: mask of the elements that show this cause; None: all bad ones.
    """
    incoming, result = fault.at(fault.incoming), fault.at(fault.result)
    if incoming is None or not len(incoming) or result is None or len(incoming) != len(result):
        return ""
    first = 0 if only is None or fault.bad is None else int(only[fault.bad].int().argmax())
    product = f"incoming {number(incoming[first])} × {derivative} = {number(result[first])}"
    return f"Its derivative there is {derivative}; {product}."


def match(
    fault: Fault,
    title: str,
    explanation: str = "",
    columns: Mapping[str, Any] | None = None,
    only: torch.Tensor | None = None,
    **more: Any,
) -> Match:
    """A Match with the evidence table of these operands, and the samples."""
    shown = {**(columns or {}), **more}
    if fault.backward and fault.incoming is not None:
        shown = {name: v for name, v in shown.items() if v is not fault.incoming}
        shown["incoming_gradient"] = fault.incoming
    return Match(title, table(fault, shown, only), explanation, fault.samples)
