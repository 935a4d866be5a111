"""What an autograd node keeps of its forward operation: the operands and results, and under which
names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from nanlab.stats import TensorStats, summarize
from nanlab.trace.nodes import NodeInfo
from nanlab.trace.recording import Op, Recording

if TYPE_CHECKING:
    from nanlab.trace import Trace

Kind = Literal["operand", "result", "saved"]
Known = Literal["yes", "perhaps", "no", "unknown"]
# Factors of a product: torch keeps each of them only where the other one needs a gradient. All else
# is kept whenever the node exists.
PAIRS = tuple(
    frozenset(pair.split())
    for pair in (
        "self other",
        "self mat2",
        "mat1 mat2",
        "batch1 batch2",
        "self vec",
        "mat vec",
        "vec1 vec2",
        "tensor1 tensor2",
    )
)


@dataclass(frozen=True, slots=True)
class ForwardTensor:
    """A tensor of the forward operation behind a node."""

    # as the operator's schema calls it: "self", "weight", "result1"; "" where the schema does not
    # tell
    name: str
    # "saved": kept by a custom Function, which the recording does not tie to an operation
    kind: Kind
    origin: str  # what made it: "parameter encoder.weight", "data", or the operation
    # its row in ``trace.ops``, negative for what no operation made: ``trace.histogram`` takes both
    number: int | None
    shape: tuple[int, ...]
    dtype: str
    stats: TensorStats | None  # None where its row was folded away
    # whether the node keeps it for backward; "perhaps": only if another operand needs a gradient
    kept: Known

    @property
    def attribute(self) -> str:
        """The attribute of the node that holds it: ``_saved_self``; "" where it is not kept."""
        if self.kind == "saved":
            return self.name
        return f"_saved_{self.name}" if self.name and self.kept in ("yes", "perhaps") else ""


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
    found = [*_operands(recording, info), *_results(recording, info)]
    fields = set(seen) if seen else saved_fields(name)
    operands = {tensor.name for tensor in found if tensor.kind == "operand"}
    pair = next((p for p in PAIRS if fields is not None and p <= fields), frozenset[str]())
    unsure = (
        pair if not seen and not _gives_all(recording, node, len(operands)) else frozenset[str]()
    )
    # its partner is a number, which needs no gradient
    left_out = pair if pair - operands else frozenset[str]()
    return [_judged(tensor, fields, unsure, left_out) for tensor in found]


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


def _judged(
    tensor: ForwardTensor, fields: set[str] | None, unsure: frozenset[str], left_out: frozenset[str]
) -> ForwardTensor:
    """The tensor with whether it is kept."""
    if fields is None or not tensor.name:
        return tensor
    names = {tensor.name, "self_or_result"} if tensor.name in ("self", "result") else {tensor.name}
    kept: Known = "yes" if fields & names else "no"
    if kept == "yes" and tensor.kind == "operand" and tensor.name in unsure | left_out:
        kept = "no" if tensor.name in left_out else "perhaps"
    return replace(tensor, kept=kept)


def _gives_all(recording: Recording, node: int, operands: int) -> bool:
    """Whether the node gave a gradient to each operand: then nothing that it may keep was left
    out."""
    run = next((run for run in recording.node_runs if run.node == node), None)
    return run is not None and len(run.given) >= operands


def _seen(recording: Recording, node: int, name: str) -> dict[str, Any]:
    """What the node had saved, by name; only known where one of its operations failed and its
    operands were kept."""
    for kept in recording.kept.values():
        row = recording.op(kept.position)
        if kept.node_name == name and row is not None and row.node == node and row.backward:
            return {
                field: value
                for field, value in kept.saved.items()
                if isinstance(value, torch.Tensor | tuple)
            }
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


def _operands(recording: Recording, info: NodeInfo) -> Iterator[ForwardTensor]:
    sources = [source for source, _ in recording.operands(info.position)]
    names = operand_names(recording, info, sources)
    for source, name in zip(sources, names, strict=True):
        if source < 0:
            known = recording.sources.get(source)
            if known is not None:
                origin = f"{known.kind} {known.name}".strip()
                parts = (known.shape, known.dtype, recording.stats(source))
                yield ForwardTensor(name, "operand", origin, source, *parts, "unknown")
        elif (row := recording.op(source)) is not None:
            yield _of_row(recording, source, row, name, "operand")


def _results(recording: Recording, info: NodeInfo) -> Iterator[ForwardTensor]:
    names = result_names(recording.ops.items[info.op])
    position, number = info.position, 0
    while (row := recording.op(position)) is not None and row.call == info.position:
        yield _of_row(recording, position, row, names(number), "result")
        position, number = position + 1, number + 1


def _of_row(recording: Recording, position: int, row: Op, name: str, kind: Kind) -> ForwardTensor:
    dtype = str(row.dtype).removeprefix("torch.")
    shape = tuple(row.shape)
    origin = row.name
    return ForwardTensor(
        name, kind, origin, position, shape, dtype, recording.stats(position), "unknown"
    )


def operand_names(recording: Recording, info: NodeInfo, sources: list[int]) -> list[str]:
    """The schema's name of each recorded operand of a call; "" where the overload cannot be told.

    A number in place of a tensor, and an optional tensor left out, leave no operand; what follows
    them is then told by the last part of a parameter's name (``norm.weight``), or not at all.
    """
    known = [_own_name(recording, source) for source in sources]
    best: list[str] = [""] * len(sources)
    for required, every in _tensor_arguments(recording.ops.items[info.op]):
        if len(every) == len(sources):
            return every
        if len(required) <= len(sources) <= len(every) or (
            len(sources) == 1 and every and not any(best)
        ):
            rest = set(every[len(required) :])
            best = [
                every[i] if i < max(1, len(required)) else (known[i] if known[i] in rest else "")
                for i in range(len(sources))
            ]
    return best


def _own_name(recording: Recording, source: int) -> str:
    found = recording.sources.get(source)
    return found.name.rpartition(".")[2] if found is not None else ""


def _schemas(op: str) -> Iterator[Any]:
    """The overloads of an ATen operator, those with ``out=`` left out."""
    packet = getattr(torch.ops.aten, op, None)
    for overload in packet.overloads() if packet is not None else ():
        schema = getattr(packet, overload)._schema
        if not any(argument.is_out for argument in schema.arguments):
            yield schema


def _tensor_arguments(op: str) -> Iterator[tuple[list[str], list[str]]]:
    """For each overload the tensors that must be given, and all of them, required ones first."""
    blind = op == "copy_"  # what it overwrites is no operand
    for schema in _schemas(op):
        tensors = [a for a in schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]")][
            blind:
        ]
        required = [a.name for a in tensors if str(a.type) == "Tensor"]
        every = [a.name for a in tensors]
        if every[: len(required)] == required:
            yield required, every


def result_names(op: str) -> Callable[[int], str]:
    """A function from the number of a result to its name as torch's derivative formulas write
    it."""
    for schema in _schemas(op):
        named = [result.name for result in schema.returns]
        if len(named) == 1:
            return lambda number: "" if number else named[0] or "result"
        return lambda number: (named[number] or f"result{number}") if number < len(named) else ""
    return lambda number: ""


__all__ = ["ForwardTensor", "forward_tensors", "operand_names", "result_names", "saved_fields"]
