"""One backward pass as plain columns, small enough to send to the browser whole."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pandas as pd

COUNTS = [
    "grad_in_nan",
    "grad_in_inf",
    "grad_in_zero",
    "grad_out_nan",
    "grad_out_inf",
    "grad_out_zero",
    "fp16_zero",
]
VALUES = ["grad_in_rms", "grad_in_max", "grad_out_rms", "grad_out_max", "gain"]
STATUSES = ["born", "turned", "carried", "intended", "healed", "ok"]  # from worst to best
BAD = STATUSES[:3]


def passes(backward: pd.DataFrame) -> list[dict[str, Any]]:
    """One entry per backward pass: step, backward_pass, nodes, and its worst status."""
    found = []
    for key, rows in backward.groupby(["step", _pass_of(backward)], sort=True):
        step, number = (int(part) for part in cast(tuple[int, int], key))
        worst = min(rows["status"], key=severity, default="ok")
        found.append({"step": step, "backward_pass": number, "nodes": len(rows), "worst": worst})
    return found


def severity(status: str) -> int:
    """0 for the worst status; an unknown one counts as the best."""
    return STATUSES.index(status) if status in STATUSES else len(STATUSES) - 1


def rows_of(backward: pd.DataFrame, step: int, number: int) -> pd.DataFrame:
    """The rows of one backward pass, in the engine's order."""
    return backward[(backward["step"] == step) & (_pass_of(backward) == number)]


def _pass_of(backward: pd.DataFrame) -> pd.Series[int]:
    if "backward_pass" in backward:
        return backward["backward_pass"].fillna(0).astype("int64")
    return pd.Series(0, index=backward.index, name="backward_pass")


def graph_columns(rows: pd.DataFrame, numel: pd.Series[int]) -> dict[str, Any]:
    """The rows as lists: texts as numbers into lists of distinct texts, statistics with four
    digits.

    numel: elements of each row's outgoing gradient, 0 where it is not known; for the share that
    float16 flushes.
    """
    columns: dict[str, Any] = {
        "node": _integers(rows["node"], -1),
        "status": [severity(s) for s in rows["status"]],
    }
    texts = rows if "parameter" in rows else rows.assign(parameter="")
    for name in ("name", "op", "module", "parameter"):
        columns[name], columns[f"{name}s"] = _numbered(texts[name].fillna("").astype(str))
    places = rows["file"].fillna("").astype(str) + ":" + rows["line"].astype("string").fillna("")
    columns["place"], columns["places"] = _numbered(places)
    columns |= {name: _integers(rows[name]) for name in COUNTS}
    columns |= {name: _rounded(rows[name]) for name in VALUES}
    return columns | {"numel": _integers(numel)}


def _numbered(texts: pd.Series[str]) -> tuple[list[int], list[str]]:
    codes, distinct = pd.factorize(texts)
    return codes.tolist(), [str(text) for text in distinct]


def _integers(column: pd.Series[Any], unknown: int = 0) -> list[int]:
    values: list[int] = column.astype("Int64").fillna(unknown).astype("int64").tolist()
    return values


def _rounded(column: pd.Series[Any]) -> list[float | None]:
    """Four significant digits; None for "no value" and for what JSON cannot carry."""
    values = column.astype("Float64").to_numpy(dtype="float64", na_value=math.nan)
    return [float(f"{x:.4g}") if math.isfinite(x) else None for x in values.tolist()]


def edge_bytes(edges: pd.DataFrame, rows: pd.DataFrame, step: int, number: int) -> bytes:
    """The edges of a pass as int32 pairs (row that passes its gradient on, row that takes it),
    earlier row first."""
    mine = edges[(edges["step"] == step) & (_pass_of(edges) == number)]
    place = pd.Series(np.arange(len(rows)), index=rows["node"].to_numpy(dtype="int64", na_value=-1))
    place = place[~place.index.duplicated()].drop(-1, errors="ignore")
    ends = {
        name: place.reindex(mine[name].to_numpy("int64")).to_numpy()
        for name in ("source", "target")
    }
    pairs = pd.concat([pd.DataFrame(ends).dropna(), _leaf_edges(rows)]).astype("int32")
    pairs = pairs[pairs["source"] < pairs["target"]]
    return pairs.to_numpy(dtype="<i4").tobytes()


def _leaf_edges(rows: pd.DataFrame) -> pd.DataFrame:
    """Edges to nodes without a sequence number: AccumulateGrad.

    The engine runs such a node at once after the last of those that pass it a gradient.
    """
    leaf = rows["node"].isna().to_numpy(dtype=bool)
    latest = (
        np.maximum.accumulate(np.where(leaf, -1, np.arange(len(rows))))
        if len(rows)
        else np.zeros(0, dtype=int)
    )
    return pd.DataFrame({"source": latest[leaf], "target": np.flatnonzero(leaf)}).query(
        "source >= 0"
    )
