"""What is told of one backward node: its story, its source, the tensors of its forward
operation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.analysis.saved import ForwardTensor, forward_tensors
from nanlab.views._columns import known
from nanlab.views._histograms import browser_histogram, trace_row
from nanlab.views._html import number
from nanlab.views._source import as_typed, excerpt
from nanlab.views._sparkline import blocks
from nanlab.views._story import story

if TYPE_CHECKING:
    from nanlab.trace import Trace

STATISTICS = ("zero", "nan", "inf", "min", "max", "rms")
KEPT = {"yes": "", "perhaps": " if needed", "no": "not kept", "unknown": "not known"}


def node_detail(trace: Trace, row: pd.Series[Any]) -> dict[str, Any]:
    """All that the browser shows of a row of ``trace.backward`` beside its counts, as JSON can
    carry it."""
    into, out = (trace_row(trace, row.get(f"position_{side}")) for side in ("in", "out"))
    return {
        "story": told(trace, row),
        "source": [list(each) for each in source_of(trace, row)],
        "tensors": [tensor_texts(trace, tensor) for tensor in _kept_first(tensors_of(trace, row))],
        "grad_in": browser_histogram(trace, into),
        "grad_out": browser_histogram(trace, out),
    }


def told(trace: Trace, row: pd.Series[Any]) -> str:
    """The local story of a row of ``trace.backward``; the same words in every view."""
    out = trace_row(trace, row.get("position_out"))
    numel = int(known(out["numel"]) or 0) if out is not None else 0
    return story(row, numel, _bad_from_forward(trace, row))


def _bad_from_forward(trace: Trace, row: pd.Series[Any]) -> int:
    """Non-finite values in the results of the forward operation that made the node."""
    ops = trace.ops
    same = (ops["node"] == row["node"]) & (ops["phase"] == "forward") & (ops["step"] == row["step"])
    made = ops[same.fillna(False).to_numpy(dtype=bool)].head(3)
    return int(made[["nan", "posinf", "neginf"]].fillna(0).to_numpy(dtype="int64").sum())


def source_of(trace: Trace, row: pd.Series[Any]) -> list[tuple[int, str]]:
    """The forward line with two on either side; the line alone where no more is known."""
    if pd.isna(row["line"]) or not row["file"]:
        return []
    line = int(row["line"])
    return excerpt(trace, row["file"], line) or [(line, as_typed(str(row["source"] or "")))]


def tensors_of(trace: Trace, row: pd.Series[Any]) -> list[ForwardTensor]:
    """Operands and results of the forward operation, with what the node keeps of them."""
    return (
        [] if pd.isna(row["node"]) else forward_tensors(trace, int(row["node"]), str(row["name"]))
    )


def _kept_first(tensors: list[ForwardTensor]) -> list[ForwardTensor]:
    return sorted(tensors, key=lambda tensor: tensor.kept not in ("yes", "perhaps"))


def tensor_texts(trace: Trace, tensor: ForwardTensor) -> dict[str, Any]:
    """Of one tensor: kept (as which attribute), name, texts of its numbers, and its exponents as a
    line of blocks."""
    stats, kept = tensor.stats, tensor.kept in ("yes", "perhaps")
    values = (
        asdict(stats) | {"inf": stats.posinf + stats.neginf}
        if stats is not None
        else dict.fromkeys(STATISTICS)
    )
    exponents = (
        trace.histogram(tensor.number) if tensor.number is not None and stats is not None else None
    )
    return {
        "kept": kept,
        "as": (tensor.attribute or "kept") + KEPT[tensor.kept] if kept else KEPT[tensor.kept],
        "name": described(tensor),
        "shape": "×".join(map(str, tensor.shape)) or "scalar",
        "numbers": [number(values[name]) for name in STATISTICS],
        "blocks": blocks(exponents) if exponents is not None else "",
        "dtype": tensor.dtype,
    }


def described(tensor: ForwardTensor) -> str:
    """``self, exp #12``; ``mat2, parameter 0.weight``; ``result``: its name, and what made it."""
    if tensor.kind != "operand":
        return tensor.name or tensor.kind
    place = f" #{tensor.number}" if tensor.number is not None and tensor.number >= 0 else ""
    return ", ".join(part for part in (tensor.name, f"{tensor.origin}{place}") if part)
