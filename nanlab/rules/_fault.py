"""A Fault: one origin of a symptom with everything that a rule wants to read."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from nanlab.analysis.origin_names import in_hook, operator_of_node
from nanlab.analysis.provenance import Origin
from nanlab.operators import having
from nanlab.rules._host import on_host
from nanlab.rules._neighbourhood import Neighbourhood
from nanlab.rules._rule import Finding
from nanlab.trace import Trace
from nanlab.trace.locations import location
from nanlab.trace.recording import (
    FORWARD,
    Kept,
    Op,
)

Tensor = torch.Tensor
LOW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def nonfinite(tensor: Tensor) -> Tensor:
    """Mask of NaN and infinities, for every dtype."""
    return ~torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor)


def floating(value: Any) -> bool:
    """Whether a value is a tensor of real or complex floating point."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


class Fault(Neighbourhood):
    """One origin, read for rules. Tensors are copies of the operands that failed, None if too large
    to keep."""

    def __init__(self, trace: Trace, origin: Origin, finding: Finding) -> None:
        self.trace, self.origin, self.finding = trace, origin, finding
        self.kind = origin.kind
        self.position = origin.position

    @cached_property
    def row(self) -> Op | None:
        return self.recording.op(self.position)

    @cached_property
    def kept(self) -> Kept | None:
        """The guilty call: op, args, kwargs, outputs, and what its autograd node had saved; of a
        call on lists the bad member."""
        if self.row is None:
            return None
        return on_host(self.recording.kept.get(self.row.call), self.position - self.row.call)

    @property
    def saved(self) -> dict[str, Any]:
        return self.kept.saved if self.kept else {}

    @cached_property
    def backward(self) -> bool:
        """Whether it is a derivative that failed; what a hook computes in the backward pass is
        none."""
        return (
            self.row is not None
            and self.row.backward
            and not in_hook(self.recording, self.position)
        )

    @cached_property
    def name(self) -> str:
        """The operator that ran: ``div``, also where it ran in place or on lists of tensors."""
        return self.op_at(self.position)

    @cached_property
    def forward(self) -> str:
        """The operator of the forward pass: of a backward fault the one whose derivative it was."""
        if not self.backward or self.row is None:
            return self.name
        node = self.kept.node_name if self.kept else ""
        if name := operator_of_node(node):
            return name
        info = self.recording.nodes.get(self.row.node)
        return (
            str(self.recording.ops.items[info.op]).rstrip("_")
            if info is not None and info.op >= 0
            else self.name
        )

    @property
    def forward_position(self) -> int:
        """The row of the forward operation; the fault's own in the forward pass; -1 if it is
        gone."""
        if not self.backward or self.row is None:
            return self.position
        info = self.recording.nodes.get(self.row.node)
        at = info.position if info is not None else -1
        copied = self.op_at(at) == "clone" and self.parents(at) == self.parents(at + 1)
        # in place: its operand is saved first
        return at + 1 if copied and self.op_at(at + 1) == self.forward else at

    @cached_property
    def custom(self) -> bool:
        """Whether it is the backward of a ``torch.autograd.Function`` written in Python."""
        if not self.backward or self.row is None:
            return False
        info = self.recording.nodes.get(self.row.node)
        node = self.kept.node_name if self.kept else ""
        return bool(info is not None and info.custom) or (
            node.endswith("Backward") and not node.startswith(("Checkpoint", "torch::"))
        )

    @property
    def call_of_function(self) -> str:
        """Where the ``torch.autograd.Function`` was applied whose backward this is; empty where
        that is the fault's line."""
        info = self.recording.nodes.get(self.row.node) if self.row is not None else None
        if info is None or not info.line or self.row is None or info.line == self.row.place:
            return ""
        file, line, real = self.recording.places[info.line]
        return (
            f"It was applied at {location(file, line)}: `{linecache.getline(real, line).strip()}`."
        )

    @cached_property
    def dtype(self) -> str:
        return str(self.row.dtype).removeprefix("torch.") if self.row is not None else ""

    @property
    def low(self) -> bool:
        """Whether it happened in half precision or less."""
        return self.dtype in LOW

    # -- operands
    # ------------------------------------------------------------

    @cached_property
    def operands(self) -> list[Tensor]:
        """The tensors that the guilty call read, in the order of its arguments."""
        if self.kept is None:
            return []
        return [
            _dense(v)
            for v in _flat((*self.kept.args, *self.kept.kwargs.values()))
            if isinstance(v, Tensor)
        ]

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
        """An argument of the forward operation: as it was called, or as its autograd node had saved
        it."""
        return self.saved.get(name) if self.backward else self.argument(index, name)

    @cached_property
    def result(self) -> Tensor | None:
        """The output in which the bad elements are."""
        outputs = [] if self.kept is None else [_dense(o) for o in self.kept.outputs if floating(o)]
        if self.row is not None and self.kept is not None:
            at = self.position - self.row.call
            if at < len(self.kept.outputs) and floating(self.kept.outputs[at]):
                return _dense(self.kept.outputs[at])  # type: ignore[no-any-return]
        return next(
            (o for o in outputs if bool(nonfinite(o).any())), outputs[0] if outputs else None
        )

    @cached_property
    def bad(self) -> Tensor | None:
        """Mask of the offending elements of the result: non-finite, and where possible made from
        finite ones."""
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
        return (
            int(self.bad.sum())
            if self.bad is not None
            else self.finding.path[0]["nonfinite"]
            if self.finding.path
            else 0
        )

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
        """The elements of an operand from which the bad ones were made; all of them where shapes do
        not tell."""
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
        """The gradient that the guilty backward call read, if it read it."""
        if not self.backward or self.row is None or self.kept is None:
            return None
        tensors = [v for v in _flat(self.kept.args) if isinstance(v, Tensor)]
        for source, slot in self.recording.operands(self.row.call):
            if slot < len(tensors) and self.comes_from_gradient(source, self.row.node):
                return tensors[slot]
        return None

    @cached_property
    def incoming_is_zero(self) -> bool:
        """Whether the gradient that came in was 0 at each offending element."""
        if self.incoming is None or self.spread(self.incoming) is None:
            return False
        values = self.at(self.incoming)
        return values is not None and len(values) > 0 and bool((values == 0).all())

    @cached_property
    def exact(self) -> Tensor | None:
        """The result computed again in float64; None where the operation cannot be."""
        if self.kept is None or self.result is None:
            return None
        try:
            with torch.no_grad():
                found = self.kept.op(*_wide(self.kept.args), **_wide(self.kept.kwargs))
        except Exception:
            return None
        outputs = [_dense(o) for o in (found if isinstance(found, (list, tuple)) else [found])]
        fitting = [o for o in outputs if isinstance(o, Tensor) and o.shape == self.result.shape]
        return fitting[0] if fitting else None

    # -- the program
    # ------------------------------------------------------------

    @property
    def source(self) -> str:
        """The user's own line, without its comment."""
        return re.sub(r"\s#.*$", "", self.finding.source)

    def calls(self, *names: str) -> bool:
        """Whether the user's line calls a function or method of one of these names."""
        return any(re.search(rf"\b{name}\(", self.source) for name in names)

    @cached_property
    def batch(self) -> int:
        """Size of the batch: the commonest leading dimension in the forward pass of this step, 0 if
        that is not at hand."""
        first, last = [*self.recording.starts, self.recording.end][
            self.finding.step : self.finding.step + 2
        ]
        sizes: Counter[int] = Counter()
        rows = 0
        for chunk in self.recording.chunks:
            table, where = chunk.columns(), chunk.where()
            table = table[(where >= first) & (where < last)]
            rows += len(table)
            for shape in table.shape[(table.phase == FORWARD) & ~table.view].tolist():
                dimensions = self.recording.shapes.items[shape]
                sizes[int(dimensions[0]) if len(dimensions) else 0] += 1
        if rows < last - first:  # the step was folded: the few rows left of it tell nothing
            return 0
        del sizes[0], sizes[1]
        return sizes.most_common(1)[0][0] if sizes else 0

    @property
    def samples(self) -> list[int]:
        """Indices in the batch of the offending elements, where the leading dimension is the batch
        (or its heads)."""
        if self.bad is None or self.bad.dim() == 0 or self.batch < 2:
            return []
        size = self.bad.shape[0]
        if (
            size == 0
            or size % self.batch
            or (size != self.batch and self.name not in having("split_heads"))
        ):
            return []
        rows = self.bad.flatten(1).any(1) if self.bad.dim() > 1 else self.bad
        return sorted({int(i) // (size // self.batch) for i in rows.nonzero().flatten()})


def _dense(value: Any) -> Any:
    """A sparse tensor with its zeros, as most operations of torch want it; anything else as it
    is."""
    return (
        value.to_dense()
        if isinstance(value, Tensor) and value.layout is not torch.strided
        else value
    )


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (
            value.to(torch.complex128 if value.is_complex() else torch.float64)
            if floating(value)
            else value
        )
    if isinstance(value, (list, tuple)):
        return type(value)(_wide(v) for v in value)
    if isinstance(value, dict):
        return {k: _wide(v) for k, v in value.items()}
    if isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex):
        return torch.complex128 if value.is_complex else torch.float64
    return value
