"""The numbers of a recording as DataFrames."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pandas as pd

from nanlab.stats._bins import BINNED
from nanlab.trace.columns import (
    COUNTS,
    HALF,
    VALUES,
    Array,
    binned_columns,
    counts_array,
    lookup,
    stat_columns,
    values_array,
)
from nanlab.trace.nodes import NodeRun, owner_of_leaf
from nanlab.trace.recording import (
    BORN,
    CARRIED,
    DEVICE,
    DTYPE,
    LINE,
    MODULE,
    NODE,
    OP,
    OUTPUT,
    PHASE,
    PHASES,
    SHAPE,
    SITE,
    STAT,
    STATUSES,
    TURNED,
    WIDTH,
    Recording,
)

OPS_COLUMNS = (
    *("step", "position", "phase", "op", "module", "output", "shape", "dtype", "device"),
    *(*COUNTS, *VALUES, *HALF, *BINNED),
    *("node", "file", "line", "source", "site_file", "site_line", "status"),
)


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
    """The phase of each row; that of rows with which a DataLoader made a batch is ``data``."""
    found = phases.copy()
    for first, end in recording.batches:
        low, high = np.searchsorted(where, (first, end))
        found[low:high] = len(PHASES)
    return found


def ops_frame(recording: Recording) -> pd.DataFrame:
    """One row for each output of each operation at hand; the columns of ``OPS_COLUMNS``."""
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
    return pd.DataFrame(columns, index=pd.Index(where, name=None))


def _merged(recording: Recording, groups: list[tuple[int, ...]]) -> dict[str, Array]:
    """Counts, rms and largest magnitude over the gradients of each node."""
    flat = np.array([p for group in groups for p in group], dtype=np.int64)
    owner = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    stats = (
        np.array([recording.stat_of(int(p)) for p in flat], dtype=np.int64) if len(flat) else flat
    )
    numbers = stat_columns(recording, stats)
    total: dict[str, Array] = {}
    for name in ("numel", "nan", "zero", "fp16_zero"):
        total[name] = (
            np.bincount(owner, numbers[name], len(groups)).astype(np.int64)
            if len(flat)
            else np.zeros(len(groups), np.int64)
        )
    infinite = numbers["posinf"] + numbers["neginf"]
    total["inf"] = (
        np.bincount(owner, infinite, len(groups)).astype(np.int64)
        if len(flat)
        else np.zeros(len(groups), np.int64)
    )
    finite = numbers["numel"] - numbers["nan"] - infinite
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        squares = np.where(finite > 0, np.nan_to_num(numbers["rms"]) ** 2 * finite, 0.0)
        count = np.bincount(owner, finite, len(groups)) if len(flat) else np.zeros(len(groups))
        total["rms"] = np.sqrt(
            (np.bincount(owner, squares, len(groups)) if len(flat) else count) / count
        )
    largest = np.full(len(groups), np.nan)
    if len(flat):
        np.fmax.at(largest, owner, np.fmax(np.abs(numbers["min"]), np.abs(numbers["max"])))
    total["max"] = largest
    return total


def _reading_bad(recording: Recording) -> set[int]:
    """Nodes whose bad gradient comes from a forward tensor that was bad: of their operations some
    carry, none begin."""
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
    into = (taken["nan"] > 0).astype(int) + 2 * (taken["inf"] > 0)
    out = (given["nan"] > 0).astype(int) + 2 * (given["inf"] > 0)
    words = []
    columns = (into.tolist(), out.tolist(), given["numel"].tolist(), reading_bad)
    for i, o, numel, from_forward in zip(*columns, strict=True):
        if not o:
            words.append("healed" if i and numel else ("carried" if i else "ok"))
        elif not i:
            words.append("carried" if from_forward else "born")
        else:
            words.append("turned" if o & 1 and not i & 1 else "carried")
    return words


def _leaf_parameters(recording: Recording) -> list[str]:
    """The name of the parameter to whose gradient each node run added; "" for other nodes."""
    names = [*recording.parameter_names, ""]
    return [names[owner_of_leaf(run)] for run in recording.node_runs]


def backward_frame(recording: Recording) -> pd.DataFrame:
    """One row for each autograd node that ran, in the order in which they ran.

    ``parameter`` is the one to whose gradient an AccumulateGrad node adds, "" for other nodes; its
    module is the one that holds the parameter.
    """
    every, served = list(recording.node_runs), _leaf_parameters(recording)
    steps = _pass_steps(recording, every)
    whole = np.isin(steps, sorted(recording.whole))
    # else single nodes are left
    kept = np.flatnonzero(whole | (steps >= len(recording.folded))).tolist()
    steps, runs, parameters = steps[kept], [every[i] for i in kept], [served[i] for i in kept]
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
    return pd.DataFrame(columns)


def _pass_steps(recording: Recording, runs: list[NodeRun]) -> Array:
    """Training step of each node run: that in which its backward pass began, for the last node may
    end with the step."""
    positions = [recording.passes[run.backward_pass].position for run in runs]
    return (
        np.searchsorted(recording.starts, positions, side="right") - 1
        if positions
        else np.zeros(0, np.int64)
    )


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
        place = (
            recording.step_of(position),
            PHASES[row[PHASE]],
            recording.ops.items[row[OP]],
            recording.modules.items[row[MODULE]],
        )
        lost = (
            numel,
            shadow.flushed,
            shadow.flushed / numel if numel else 0.0,
            shadow.overflowed,
            shadow.relative_error,
        )
        others = (stats.zero, stats.nan, stats.posinf, stats.neginf)
        rows.append((position, *place, file, line, *lost, shadow.exponents, *others))
    names = (
        "position step phase op module file line numel flushed flushed_share overflowed"
        " relative_error exponents"
    )
    twins = "twin_zero twin_nan twin_posinf twin_neginf"
    return pd.DataFrame(rows, columns=[*names.split(), *twins.split()])


def edges_frame(recording: Recording) -> pd.DataFrame:
    """Edges of the autograd graphs: ``source`` passes its gradient to ``target``."""
    rows = [
        (recording.step_of(p.position), p.number, a, b)
        for p in recording.passes
        for a, b in p.edges
    ]
    return pd.DataFrame(rows, columns=["step", "backward_pass", "source", "target"])


__all__ = ["OPS_COLUMNS", "backward_frame", "edges_frame", "ops_frame", "shadow_frame"]
