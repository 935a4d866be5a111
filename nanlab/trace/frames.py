"""A recording as DataFrames: operations, nodes, parameters, training steps."""

from __future__ import annotations

import linecache
import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from nanlab.formats import HALF_PRECISION
from nanlab.stats.layout import BINNED
from nanlab.trace.chunk import (
    DEVICE,
    DTYPE,
    LINE,
    MODULE,
    NODE,
    OP,
    OUTPUT,
    PHASE,
    SHAPE,
    SITE,
    STAT,
    WIDTH,
    Columns,
)
from nanlab.trace.columns import typed
from nanlab.trace.history import History, Loss, OptimizerStep, ParameterStep, Unscale
from nanlab.trace.op import BACKWARD, BORN, CARRIED, TURNED
from nanlab.trace.recording import PHASES, STATUSES, BackwardPass, NodeRun, Recording, owner_of_leaf

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
E = TypeVar("E", Loss, Unscale, OptimizerStep)
COUNTS = ("numel", "nan", "posinf", "neginf", "zero", "subnormal")
VALUES = ("min", "max", "absmin", "mean", "rms")
HALF = ("fp16_zero", "fp16_subnormal", "fp16_inf")


def counts_array(values: Array, known: Array) -> Any:
    """Int64 with <NA> where unknown."""
    return pd.arrays.IntegerArray(np.asarray(values, dtype=np.int64), ~known)


def values_array(values: Array) -> Any:
    """Float64 with <NA> where there is no value (NaN in the table means just that)."""
    values = np.asarray(values, dtype=np.float64)
    return pd.arrays.FloatingArray(values, np.isnan(values))


def numbers_array(values: list[float | None]) -> Any:
    """Float64 with <NA> for None; NaN stays."""
    missing = np.array([v is None for v in values], bool)
    return pd.arrays.FloatingArray(np.array([v or 0.0 for v in values], np.float64), missing)


def stat_columns(recording: Recording, stats: Array) -> dict[str, Array]:
    """The numbers of these statistics (-1: gone), by column of ``StatsTable.columns``."""
    size, chunks = len(stats), stats >> 32
    if (
        size
        and chunks[0] >= 0
        and (chunks == chunks[0]).all()
        and recording.chunks[chunks[0]].stat_rows is None
    ):
        columns = recording.chunks[chunks[0]].stats.columns(stats & 0xFFFFFFFF)
        return {name: columns[name] for name in (*COUNTS, *HALF, *VALUES, "known")}
    found: dict[str, Array] = {name: np.zeros(size, np.int64) for name in (*COUNTS, *HALF)}
    found |= {name: np.full(size, np.nan) for name in VALUES}
    found["known"] = np.zeros(size, bool)
    for number in np.unique(chunks[stats >= 0]).tolist():
        chunk = recording.chunks[number]
        mask = (stats >= 0) & (chunks == number)
        rows = stats[mask] & 0xFFFFFFFF
        if chunk.stat_rows is not None:
            rows = np.searchsorted(chunk.stat_rows, rows)
        for name, column in chunk.stats.columns(rows).items():
            if name in found:
                found[name][mask] = column
    return found


def binned_columns(recording: Recording, stats: Array) -> dict[str, Array]:
    """The counts of ``stats.BINNED`` for these statistics (-1: gone)."""
    found = {name: np.zeros(len(stats), np.int64) for name in BINNED}
    for number in np.unique(stats[stats >= 0] >> 32).tolist() if BINNED else ():
        chunk, mask = recording.chunks[number], (stats >= 0) & (stats >> 32 == number)
        rows = np.array([chunk.stat_row(stat) for stat in stats[mask].tolist()], np.int64)
        for name, column in chunk.stats.binned(rows).items():
            found[name][mask] = column
    return found


def lookup(items: list[Any], codes: Array) -> Array:
    """The items by code, as an object array."""
    table = np.empty(max(len(items), 1), dtype=object)
    table[: len(items)] = items
    return table[codes]


class StepRows:
    """The rows of one training step, and their numbers."""

    def __init__(self, recording: Recording, start: int, end: int) -> None:
        self.recording = recording
        self.start, self.end = max(start, recording.chunks[-1].start), end

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def history(self) -> History:
        """The events of the loop so far."""
        return self.recording.history

    @cached_property
    def parameter_steps(self) -> list[ParameterStep]:
        """What became of each parameter in the step, the last first."""
        return self.history.parameter_steps(self.start, self.end)

    def events(self, events: list[E]) -> list[E]:
        """The events of the step, latest first; ``events``: all, by position."""
        return list(takewhile(lambda event: event.position >= self.start, reversed(events)))

    @cached_property
    def columns(self) -> Columns:
        """The numbers of each row, a copy."""
        return self.recording.chunks[-1].columns(self.start, self.end)

    @cached_property
    def numbers(self) -> dict[str, Array]:
        """The statistics of each row, by column."""
        return stat_columns(self.recording, self.columns.stat)

    @cached_property
    def floating(self) -> Mask:
        """Whether each row is of a floating-point dtype."""
        return self._of_dtypes(lambda dtype: dtype.is_floating_point)

    def _of_dtypes(self, asked: Callable[[torch.dtype], bool]) -> Mask:
        dtypes = self.recording.dtypes.items
        found = [isinstance(dtype, torch.dtype) and asked(dtype) for dtype in dtypes]
        return np.array([*found, False])[self.columns.dtype]

    @cached_property
    def largest(self) -> npt.NDArray[np.float64]:
        """The largest magnitude of each row; NaN where it has no finite element."""
        with np.errstate(invalid="ignore"):
            found: npt.NDArray[np.float64] = np.fmax(
                np.abs(self.numbers["min"]), np.abs(self.numbers["max"])
            )
        return found

    @cached_property
    def half(self) -> Mask:
        """Whether each row is of a half-precision dtype."""
        half = np.array([*(d in HALF_PRECISION for d in self.recording.dtypes.items), False])
        found: Mask = half[self.columns.dtype]
        return found

    @cached_property
    def by_hand(self) -> Mask:
        """Whether each row ran outside of graphs and optimizer steps."""
        found: Mask = (self.columns.phase != BACKWARD) & (self.columns.node < 0)
        for step in reversed(self.recording.history.optimizer_steps):
            if step.end <= self.start:
                break
            found[max(0, step.position - self.start) : max(0, step.end - self.start)] = False
        return found

    def all_zero(self) -> Mask:
        """Whether each row has no element but zeros."""
        numbers = self.numbers
        asked = self._of_dtypes(lambda dtype: dtype.is_floating_point or dtype.is_complex)
        zero: Mask = asked & (numbers["numel"] > 0) & (numbers["zero"] == numbers["numel"])
        return zero


def _place_columns(recording: Recording, lines: Array) -> tuple[Array, Array, Array]:
    places = recording.places
    used = np.unique(lines)
    text = {
        int(u): linecache.getline(places[u][2], places[u][1]).strip() if u else "" for u in used
    }
    file, number, source = (np.empty(len(places), dtype=object) for _ in range(3))
    for u in used.tolist():
        file[u], number[u], source[u] = places[u][0], places[u][1], text[u]
    return file[lines], number[lines].astype(np.int64), source[lines]


def _phases(recording: Recording, phases: Array, where: Array) -> Array:
    """The phase of each row; ``data`` for rows that a DataLoader computed."""
    found = phases.copy()
    for first, end in recording.batches:
        low, high = np.searchsorted(where, (first, end))
        found[low:high] = len(PHASES)
    return found


def ops_frame(recording: Recording) -> pd.DataFrame:
    """One row per recorded result."""
    tables = [c.table() for c in recording.chunks]
    meta = np.concatenate(tables) if tables else np.zeros((0, WIDTH), np.int64)
    where = np.concatenate([c.where() for c in recording.chunks])
    numbers = stat_columns(recording, meta[:, STAT])
    known = numbers["known"]
    status = np.zeros(len(where), np.int64)
    if recording.status:
        at = {p: i for i, p in enumerate(where.tolist())}
        for position, code in recording.status.items():
            if position in at:
                status[at[position]] = code
    dtypes = [str(d).removeprefix("torch.") for d in recording.dtypes.items]
    file, line, source = _place_columns(recording, meta[:, LINE])
    site_file, site_line, _ = _place_columns(recording, meta[:, SITE])
    columns: dict[str, Any] = {
        "step": np.searchsorted(recording.starts, where, side="right") - 1,
        "position": where,
        "phase": lookup([*PHASES, "data"], _phases(recording, meta[:, PHASE], where)),
        "op": lookup(recording.ops.items, meta[:, OP]),
        "module": lookup(recording.modules.items, meta[:, MODULE]),
        "output": meta[:, OUTPUT],
        "shape": lookup([tuple(s) for s in recording.shapes.items], meta[:, SHAPE]),
        "dtype": lookup(dtypes, meta[:, DTYPE]),
        "device": lookup(recording.devices.items, meta[:, DEVICE]),
    }
    columns |= {name: counts_array(numbers[name], known) for name in COUNTS}
    columns |= {name: values_array(numbers[name]) for name in VALUES}
    columns |= {name: counts_array(numbers[name], known) for name in HALF}
    binned = binned_columns(recording, meta[:, STAT])
    columns |= {name: counts_array(counts, known) for name, counts in binned.items()}
    columns |= {
        "node": counts_array(meta[:, NODE], meta[:, NODE] >= 0),
        "file": file,
        "line": line,
        "source": source,
        "site_file": site_file,
        "site_line": site_line,
        "status": lookup(list(STATUSES), status),
    }
    frame = pd.DataFrame(columns, index=pd.Index(where, name=None))
    text = "phase op module dtype device file source site_file status"
    return typed(frame, text)


def _merged(recording: Recording, groups: list[tuple[int, ...]]) -> dict[str, Array]:
    """Counts, rms and largest magnitude over the gradients of each node."""
    stats = np.array([recording.stat_of(p) for group in groups for p in group], np.int64)
    owner = np.repeat(np.arange(len(groups)), np.array([len(g) for g in groups], np.int64))
    numbers = stat_columns(recording, stats)
    numbers["inf"] = numbers["posinf"] + numbers["neginf"]

    def added(values: Array) -> Array:
        return np.bincount(owner, values, len(groups))

    total = {n: added(numbers[n]).astype(np.int64) for n in "numel nan inf zero fp16_zero".split()}
    finite = numbers["numel"] - numbers["nan"] - numbers["inf"]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        squares = np.where(finite > 0, np.nan_to_num(numbers["rms"]) ** 2 * finite, 0.0)
        total["rms"] = np.sqrt(added(squares) / added(finite))
    total["max"] = np.full(len(groups), np.nan)
    np.fmax.at(total["max"], owner, np.fmax(np.abs(numbers["min"]), np.abs(numbers["max"])))
    return total


def _reading_bad(recording: Recording) -> set[int]:
    """Nodes whose bad gradient comes from a bad forward tensor alone."""
    carrying: set[int] = set()
    beginning: set[int] = set()
    for position, code in recording.status.items():
        row = recording.row(position) if code in (BORN, TURNED, CARRIED) else None
        if row is not None and PHASES[row[PHASE]] == "backward":
            (carrying if code == CARRIED else beginning).add(row[NODE])
    return carrying - beginning


def _node_status(
    taken: dict[str, Array], given: dict[str, Array], reading_bad: list[bool]
) -> list[str]:
    into, out = ((side["nan"] > 0) | (side["inf"] > 0) for side in (taken, given))
    words = np.select(
        [
            ~into & ~out,
            into & ~out & (given["numel"] > 0),
            ~into & ~np.array(reading_bad, bool),
            into & (given["nan"] > 0) & (taken["nan"] == 0),
        ],
        ["ok", "healed", "born", "turned"],
        "carried",
    )
    return [str(word) for word in words]


def backward_frame(recording: Recording) -> pd.DataFrame:
    """One row for each autograd node that ran, in the order in which they ran.

    ``parameter`` is the one to whose gradient an AccumulateGrad node adds, "" for other nodes; its
    module is the one that holds the parameter.
    """
    every, names = list(recording.node_runs), [*recording.parameter_names, ""]
    steps = _pass_steps(recording, every)
    whole = np.isin(steps, sorted(recording.whole))
    # else single nodes are left
    kept = np.flatnonzero(whole | (steps >= len(recording.folded))).tolist()
    steps, runs = steps[kept], [every[i] for i in kept]
    parameters = [names[owner_of_leaf(run)] for run in runs]
    taken = _merged(recording, [r.taken for r in runs])
    given = _merged(recording, [r.given for r in runs])
    infos = [recording.nodes.get(r.node) for r in runs]
    lines = np.array([i.line if i else 0 for i in infos], dtype=np.int64)
    file, line, source = _place_columns(recording, lines) if len(runs) else (lines, lines, lines)
    everything = np.ones(len(runs), bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = given["rms"] / taken["rms"]
    gain[~np.isfinite(gain)] = np.nan
    columns: dict[str, Any] = {
        "step": steps,
        "order": pd.Series(steps).groupby(steps).cumcount().to_numpy() if runs else steps,
        "node": counts_array(
            np.array([r.node for r in runs], np.int64), np.array([r.node >= 0 for r in runs], bool)
        ),
        "name": [r.name for r in runs],
        "op": [recording.ops.items[i.op] if i and i.op >= 0 else "" for i in infos],
        "module": [
            recording.modules.items[info.module] if info else name.rpartition(".")[0]
            for info, name in zip(infos, parameters, strict=True)
        ],
        "file": file,
        "line": line,
        "source": source,
    }
    for prefix, side in (("grad_in", taken), ("grad_out", given)):
        for name in ("nan", "inf", "zero"):
            columns[f"{prefix}_{name}"] = counts_array(side[name], everything)
        for name in ("rms", "max"):
            columns[f"{prefix}_{name}"] = values_array(side[name])
    columns["fp16_zero"] = counts_array(given["fp16_zero"], everything)
    columns["gain"] = values_array(gain)
    bad = _reading_bad(recording)
    columns["status"] = _node_status(taken, given, [r.node in bad for r in runs])
    columns["backward_pass"] = [r.backward_pass for r in runs]
    columns["parameter"] = np.array(parameters, dtype=object)
    columns["position_in"] = _first_row([r.taken for r in runs])
    columns["position_out"] = _first_row([r.given for r in runs])
    text = "name op module file source status parameter"
    return typed(pd.DataFrame(columns), text, "backward_pass")


def _pass_steps(recording: Recording, runs: list[NodeRun]) -> Array:
    """Training step of each node run, by the start of its pass."""
    positions = [recording.passes[run.backward_pass].position for run in runs]
    if positions:
        return np.searchsorted(recording.starts, positions, side="right") - 1
    return np.zeros(0, np.int64)


def _first_row(groups: list[tuple[int, ...]]) -> Any:
    first = np.array([g[0] if g else -1 for g in groups], dtype=np.int64)
    return counts_array(first, first >= 0)


def shadow_frame(recording: Recording) -> pd.DataFrame:
    """One row for each half-precision result with a float32 twin: how many values it flushed,
    overflowed, and its largest relative error.

    ``exponents`` is the exponent histogram of the twin, ``twin_zero``, ``twin_nan``,
    ``twin_posinf`` and ``twin_neginf`` count its other values; together they are its ``numel``.
    ``position`` is the row of the result in ``ops``.
    """
    rows = []
    for position, shadow in recording.twins.items():
        row = recording.row(position)
        if row is None:
            continue
        file, line, _ = recording.places[row[LINE]]
        stats = shadow.stats
        numel = stats.numel
        op, module = recording.ops.items[row[OP]], recording.modules.items[row[MODULE]]
        place = (recording.step_of(position), PHASES[row[PHASE]], op, module)
        share = shadow.flushed / numel if numel else 0.0
        lost = (numel, shadow.flushed, share, shadow.overflowed, shadow.relative_error)
        others = (stats.zero, stats.nan, stats.posinf, stats.neginf)
        rows.append((position, *place, file, line, *lost, shadow.exponents, *others))
    names = (
        "position step phase op module file line numel flushed flushed_share overflowed"
        " relative_error exponents"
    )
    twins = "twin_zero twin_nan twin_posinf twin_neginf"
    return typed(
        pd.DataFrame(rows, columns=[*names.split(), *twins.split()]),
        "phase op module file",
        f"position step line numel flushed overflowed {twins}",
        "flushed_share relative_error",
    )


def edges_frame(recording: Recording) -> pd.DataFrame:
    """Edges of the autograd graphs: ``source`` passes its gradient to ``target``."""
    rows = [
        (recording.step_of(p.position), p.number, a, b)
        for p in recording.passes
        for a, b in p.edges
    ]
    names = "step backward_pass source target"
    return typed(pd.DataFrame(rows, columns=names.split()), whole=names)


# Parameters and training steps as DataFrames.

_PARAMETER_STATS = ("numel", "nan", "inf", "zero", "rms", "absmax")


def parameter_numbers(recording: Recording, limit: int) -> None:
    """Number the parameter rows before ``limit``, so that their statistics can be folded."""
    rows = [r for r in recording.training.parameters if r.position < limit]
    if rows:
        recording.training.parameters = [
            r for r in recording.training.parameters if r.position >= limit
        ]
        recording.folded_parameters.append(_parameter_columns(recording, rows))


def _parameter_columns(recording: Recording, rows: list[ParameterStep]) -> dict[str, Array]:
    columns: dict[str, Array] = {
        "position": np.array([r.position for r in rows], np.int64),
        "owner": np.array([r.owner for r in rows], np.int64),
        "lr": np.array([np.nan if r.lr is None else r.lr for r in rows], np.float64),
    }
    for name in ("value", "gradient", "used", "update"):
        chosen = [getattr(r, name) for r in rows]
        stats = [
            -1 if c is None else c if name == "update" else recording.stat_of(c) for c in chosen
        ]
        numbers = stat_columns(recording, np.array(stats, np.int64))
        columns[f"{name}_known"] = numbers["known"]
        numbers["inf"] = numbers["posinf"] + numbers["neginf"]
        numbers["absmax"] = np.fmax(np.abs(numbers["min"]), np.abs(numbers["max"]))
        columns |= {f"{name}_{stat}": numbers[stat] for stat in _PARAMETER_STATS}
        columns[f"{name}_stat"] = np.array(stats, np.int64)
    return columns


def parameter_columns(recording: Recording) -> dict[str, Array]:
    """The numbers of every parameter in every step, as equally long arrays."""
    blocks = [*recording.folded_parameters]
    if recording.training.parameters or not blocks:
        blocks.append(_parameter_columns(recording, recording.training.parameters))
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def parameters_frame(recording: Recording) -> pd.DataFrame:
    """One row per parameter and step: its value, gradient, update (new - old value)."""
    merged = parameter_columns(recording)
    frame: dict[str, Any] = {
        "step": np.searchsorted(recording.starts, merged["position"], side="right") - 1,
        "parameter": lookup(recording.parameter_names, merged["owner"])
        if recording.parameter_names
        else merged["owner"],
        "numel": counts_array(
            np.maximum(merged["value_numel"], merged["gradient_numel"]),
            merged["value_known"] | merged["gradient_known"],
        ),
    }
    for name in ("value", "gradient", "update"):
        for stat in ("nan", "inf", "zero"):
            frame[f"{name}_{stat}"] = counts_array(
                merged[f"{name}_{stat}"], merged[f"{name}_known"]
            )
        for stat in ("rms", "absmax"):
            frame[f"{name}_{stat}"] = values_array(merged[f"{name}_{stat}"])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = merged["update_rms"] / merged["value_rms"]
    ratio[~np.isfinite(ratio)] = np.nan
    frame["update_ratio"] = values_array(ratio)
    frame["lr"] = values_array(merged["lr"])
    return typed(pd.DataFrame(frame), "parameter")


def _position(event: Any) -> int:
    return int(event.position)


def step_numbers(recording: Recording, step: int) -> dict[str, Any]:
    """The summary of one training step."""
    low = recording.starts[step]
    high = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end + 1
    history = recording.training

    def within(items: list[Any]) -> list[Any]:
        """The events of the step."""
        return items[
            bisect_left(items, low, key=_position) : bisect_left(items, high, key=_position)
        ]

    losses = within(history.losses)
    scales = within(history.scales)
    steps = within(history.optimizer_steps)
    rows = within(history.parameters)
    scale = scales[-1].before if scales else None
    skipped = sum(s.skipped for s in scales)
    norm = _norm(recording, rows, scale if scale and history.scales else 1.0)
    clock = recording.clock
    seconds = clock[step + 1] - clock[step] if step + 1 < len(clock) else None
    bad = [p for p in recording.bad if low <= p < high]
    rates = {s.rates[0] for s in steps if s.rates}
    words = [code for p, code in recording.status.items() if low <= p < high]
    return {
        "step": step,
        "loss": _loss(recording, losses, steps)
        if losses
        else _root_of_gradients(recording, within(recording.passes)),
        "gradient_norm": norm,
        "loss_scale": scale,
        "skipped": skipped,
        "seconds": seconds,
        "optimizer_steps": len(steps),
        "lr": rates.pop() if len(rates) == 1 else None,
        "ops": min(high, recording.end) - low,
        "nonfinite": len(bad),
        "born": words.count(1) + words.count(3),
    }


def _loss(recording: Recording, losses: list[Loss], steps: list[OptimizerStep]) -> float | None:
    """The last loss, plus earlier ones on the same line that it was accumulated with.

    Of the losses that a closure gave to one optimizer step, the first: ``Optimizer.step`` returns
    that one, from before the update.
    """
    inside = [
        loss for loss in losses if any(s.position <= loss.position < s.end for s in steps[-1:])
    ]
    if inside:
        return _unscaled(recording, inside[0])
    total, first = _unscaled(recording, losses[-1]), losses[-1]
    for loss in reversed(losses[:-1]):
        if not first.adds or loss.line != first.line:
            break
        value, first = _unscaled(recording, loss), loss
        total = total + value if total is not None and value is not None else None
    return total


def _unscaled(recording: Recording, loss: Loss) -> float | None:
    """The value of a loss, without the program's own loss scale."""
    value = recording.value(loss.source)
    by_hand = (
        not loss.scaled
        and loss.line in recording.training.scaled_lines
        and math.frexp(loss.factor)[0] == 0.5
    )
    return value / loss.factor if value is not None and by_hand else value


def _root_of_gradients(recording: Recording, passes: list[BackwardPass]) -> float | None:
    """The last scalar differentiated by ``torch.autograd.grad``."""
    for run in reversed(passes):
        stats = recording.stats(run.roots[0]) if len(run.roots) == 1 else None
        if stats is not None and stats.numel == 1:
            return recording.value(run.roots[0])
    return None


def _norm(recording: Recording, rows: list[ParameterStep], scale: float) -> float | None:
    """Norm of all gradients together, the loss scale divided out; None without gradients."""
    stats = np.array(
        [recording.stat_of(r.gradient) for r in rows if r.gradient is not None], np.int64
    )
    if not len(stats):
        return None
    numbers = stat_columns(recording, stats)
    if numbers["nan"].any():
        return float("nan")
    if numbers["posinf"].any() or numbers["neginf"].any():
        return float("inf")
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.sum(np.nan_to_num(numbers["rms"]) ** 2 * numbers["numel"]))) / scale


def steps_frame(recording: Recording) -> pd.DataFrame:
    """One row per training step. A NaN or infinite loss stays; <NA> means none."""
    rows = [*recording.folded]
    rows += [step_numbers(recording, s) for s in range(len(rows), len(recording.starts))]
    frame = pd.DataFrame(rows)
    for name in ("loss", "gradient_norm", "loss_scale", "seconds", "lr"):
        frame[name] = numbers_array([row[name] for row in rows])
    return frame
