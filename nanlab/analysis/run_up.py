"""The run-up to a fault: the operand of the faulty operation, step after step, and the update that
threw it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.trace.recording import (
    DTYPE,
    FLAGS,
    FORWARD,
    LINE,
    MODULE,
    OP,
    OUTPUT,
    PHASE,
    VIEW,
    Recording,
)

if TYPE_CHECKING:
    from nanlab.trace import Trace

GROWN = 2.0  # bits above the typical step from which on a run-up is worth telling
THROWN = 2.0  # update over value, root mean squares, from which on it threw the parameter
_EXPONENTIALS = having("exponential", "softmax")
_SQUARES = having("norm") | {"square"}
_IDENTITY = (LINE, OP, MODULE, OUTPUT, PHASE, DTYPE)


@dataclass(frozen=True)
class RunUp:
    """Largest magnitude of one operand by training step, and the magnitude that its operation can
    take."""

    position: int  # of the operand, in the faulty step
    at: int  # position of the operation that fails
    op: str
    dtype: str
    steps: list[int]
    values: list[float]
    limit: float
    parameter: str = ""  # that one update threw
    update_step: int = -1
    update_ratio: float = 0.0  # root mean square of that update over that of the value before it


def run_up(trace: Trace, position: int) -> RunUp | None:
    """How the operand of a faulty operation came to its size; None where it did not grow, or
    nothing is known.

    position: a row of ``trace.ops``; of a backward row its forward operation counts.
    """
    recording = trace.recording
    at = _forward(trace, position)
    row = recording.row(at)
    if row is None:
        return None
    op, dtype = recording.ops.items[row[OP]], recording.dtypes.items[row[DTYPE]]
    limit = limit_of(op, dtype)
    found = [
        made
        for operand in _operands(recording, at)
        if (made := _history(recording, operand, at, op, str(dtype).removeprefix("torch."), limit))
        is not None
    ]
    best = max(found, key=lambda made: made.values[-1], default=None)
    return None if best is None else _thrown(trace, best)


def limit_of(op: str, dtype: Any) -> float:
    """The largest magnitude that an operator takes without overflowing its dtype."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return math.inf
    largest = format_of(dtype).max
    if op in _EXPONENTIALS:
        return math.log(largest)
    return math.sqrt(largest) if op in _SQUARES else largest


def _forward(trace: Trace, position: int) -> int:
    ops: Any = trace.ops
    if (
        position not in ops.index
        or ops.at[position, "phase"] != "backward"
        or pd.isna(ops.at[position, "node"])
    ):
        return position
    same = (ops["node"] == ops.at[position, "node"]) & (ops["step"] == ops.at[position, "step"])
    rows = ops[(same.fillna(False) & (ops["phase"] == "forward")).to_numpy(dtype=bool)]
    return int(rows["position"].iloc[0]) if len(rows) else position


def _operands(recording: Recording, position: int) -> list[int]:
    """Rows that the operation read, views looked through."""
    found = []
    for source, _ in recording.operands(position):
        for _ in range(8):
            row = recording.row(source) if source >= 0 else None
            if row is None or not row[FLAGS] & VIEW:
                break
            source = next((p for p, _ in recording.operands(source)), -1)
        if source >= 0:
            found.append(source)
    return list(dict.fromkeys(found))


def _history(
    recording: Recording, position: int, at: int, op: str, dtype: str, limit: float
) -> RunUp | None:
    series = recording.training.series
    column = _column(recording, position)
    stats = recording.stats(position)
    if column is None or stats is None or stats.max is None:
        return None
    step = recording.step_of(position)
    table = series.table[:, column].astype(float)
    steps = [recording.step_of(end - 1) for end in series.steps]
    known = [
        (n, 2.0**value)
        for n, value in zip(steps, table.tolist(), strict=True)
        if n < step and np.isfinite(value) and value < 1024
    ]
    known.append((step, max(abs(stats.min), abs(stats.max))))
    values = [value for _, value in known]
    if len(known) < 3 or values[-1] <= 2**GROWN * float(np.median(values[:-1])):
        return None
    return RunUp(position, at, op, dtype, [n for n, _ in known], values, limit)


def _column(recording: Recording, position: int) -> int | None:
    """The column of the series that follows a row's result: the same line, operator, module and
    turn."""
    row, step = recording.row(position), recording.step_of(position)
    if row is None or row[PHASE] != FORWARD:
        return None
    turn = 0
    for p in range(recording.starts[step], position):
        other = recording.row(p)
        turn += other is not None and all(other[field] == row[field] for field in _IDENTITY)
    op, dtype = (
        recording.ops.items[row[OP]],
        str(recording.dtypes.items[row[DTYPE]]).removeprefix("torch."),
    )
    key = (op, row[PHASE], row[MODULE], row[LINE], dtype)
    places = recording.training.series.places
    same = [i for i, p in enumerate(places) if (p.op, p.phase, p.module, p.line, p.dtype) == key]
    return same[turn] if turn < len(same) else None


def _thrown(trace: Trace, made: RunUp) -> RunUp:
    """With the parameter that an update moved by more than its own size, in the last steps before
    the fault."""
    frame = trace.parameters
    if not len(frame) or "update_rms" not in frame:
        return made
    near = frame["step"].between(made.steps[-1] - 3, made.steps[-1] - 1).fillna(False)
    rows = frame[near.to_numpy(dtype=bool)].sort_values("step", kind="stable")
    before = rows.groupby("parameter")["value_rms"].shift(1).astype("Float64")
    ratio = (rows["update_rms"].astype("Float64") / before).fillna(0.0).to_numpy(dtype="float64")
    ratio[~np.isfinite(ratio)] = 0.0
    if not len(ratio) or ratio.max() <= THROWN:
        return made
    row = rows.iloc[int(ratio.argmax())]
    return replace(
        made,
        parameter=str(row["parameter"]),
        update_step=int(row["step"]),
        update_ratio=float(ratio.max()),
    )
