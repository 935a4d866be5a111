"""Columns of the tables: which ones a table shows, and how cells are drawn."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from nanlab.analysis.precision import format_bins
from nanlab.trace import Trace
from nanlab.views.html import TINTS, badge, ended, escape, number, plural

# The user's source lines as they were typed.

# What IPython makes of a line that is not Python (its input transformer, since IPython 7).
_TRANSFORMED = re.compile(
    r"(?P<before>.*?)get_ipython\(\)\.(?P<method>run_line_magic|system|getoutput)"
    r"\((?P<arguments>.*)\)\s*$"
)
OUR_MAGIC, TYPED_AS = "_nanwatch_cell", "%%nanwatch"


def excerpt(trace: Trace, file: str, line: int, context: int = 2) -> list[tuple[int, str]]:
    """(number, text) of a line and its neighbours, magics as typed; empty if unknown."""
    found = dict(trace.source(file, int(line), context))
    if not any(text.strip() for text in found.values()):
        return []
    return [
        (n, as_typed(found.get(n, ""))) for n in range(max(1, int(line) - context), max(found) + 1)
    ]


def as_typed(text: str) -> str:
    """A cell's line with the magic as typed, which IPython replaces by a call."""
    match = _TRANSFORMED.match(text)
    if match is None:
        return text
    try:
        arguments = ast.literal_eval(f"({match['arguments']},)")
    except (SyntaxError, ValueError):
        return text
    words = [str(each) for each in arguments]
    if match["method"] == "run_line_magic":
        name = TYPED_AS if words[0] == OUR_MAGIC else f"%{words[0]}"
        words = [name, *words[1:]]
    else:
        double = match["method"] == "getoutput" and not match["before"].rstrip().endswith("=")
        words = [f"{'!!' if double else '!'}{words[0]}", *words[1:]]
    return match["before"] + " ".join(word for word in words if word)


# An exponent histogram as a line of text: one block per two exponents, on one axis for every
# row of a table.

BLOCKS = " ▁▂▃▄▅▆▇█"
LOWEST, HIGHEST, WIDTH = -41, 20, 2  # what lies outside goes into the first and last block
# of the zones: flushed to zero, subnormal, normal, overflow
ZONES = (TINTS["error"], TINTS["warning"], "transparent", TINTS["turned"])


def blocks(exponents: pd.Series[int]) -> str:
    """The histogram as block characters of logarithmic height; any count is visible."""
    counts = [0] * ((HIGHEST - LOWEST + 1) // WIDTH)
    for exponent, count in zip(exponents.index.tolist(), exponents.tolist(), strict=True):
        place = (min(max(int(exponent), LOWEST), HIGHEST) - LOWEST) // WIDTH
        counts[place] += int(count)
    most = math.log1p(max(counts, default=0)) or 1.0
    return "".join(BLOCKS[math.ceil(8 * math.log1p(n) / most)] for n in counts)


def sparkline(exponents: pd.Series[int]) -> str:
    """The blocks over the zones of float16: flushed to zero, subnormal, normal, overflow."""
    text, zone, parts = blocks(exponents), format_bins(torch.float16).zone, []
    for at, run in groupby(range(len(text)), lambda i: zone(LOWEST + WIDTH * i)):
        shown = "".join(text[i] for i in run).replace(" ", "&nbsp;")
        parts.append(f'<span style="background:{ZONES[at]}">{shown}</span>')
    style = "font:8px/1 monospace;white-space:pre"
    return f'<span title="{_title(exponents)}" style="{style}">{"".join(parts)}</span>'


def _title(exponents: pd.Series[int]) -> str:
    if not len(exponents):
        return "no non-zero finite value"
    low, high = int(exponents.index.min()), int(exponents.index.max())
    return (
        f"{plural(int(exponents.sum()), 'non-zero finite value')} from 2^{low} to 2^{high + 1};"
        " zones of float16"
    )


# One backward pass as plain columns, small enough to send to the browser whole.

COUNTS = (
    "grad_in_nan grad_in_inf grad_in_zero grad_out_nan grad_out_inf grad_out_zero fp16_zero".split()
)
VALUES = ["grad_in_rms", "grad_in_max", "grad_out_rms", "grad_out_max", "gain"]
STATUSES = ["born", "turned", "carried", "intended", "healed", "ok"]  # from worst to best
BAD = STATUSES[:3]


def floats(column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """A column as floats, NaN for missing values."""
    values = pd.Series(column).astype("Float64").to_numpy(dtype="float64", na_value=math.nan)
    return np.asarray(values, dtype=np.float64)


def bad_counts(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """NaN and infinities of each row of ``trace.ops``."""
    counts = rows[["nan", "posinf", "neginf"]].fillna(0).sum(axis=1)
    return counts.to_numpy(dtype="int64")


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
    """Edges of a pass as int32 pairs (row that passes, row that takes), earlier first."""
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
    latest = np.maximum.accumulate(np.where(leaf, -1, np.arange(len(rows))))[leaf]
    return pd.DataFrame({"source": latest, "target": np.flatnonzero(leaf)})[latest >= 0]


# Which columns a table of a trace shows, and how a row fills them.

Row = Any  # a namedtuple of DataFrame.itertuples


@dataclass(frozen=True, slots=True)
class Column:
    """One column as shown."""

    title: str
    html: Callable[[Row, Trace | None], str]
    sort_by: str  # the column of the frame behind it
    align: str = "right"


def _number(name: str, title: str = "") -> Column:
    def html(row: Row, trace: Trace | None) -> str:
        text = number(getattr(row, name))
        return badge(text, "error") if text in {"NaN", "inf", "-inf"} else text

    return Column(re.sub(r"\bnan\b", "NaN", (title or name).replace("_", " ")), html, name)


def _numbers(names: str, of: str = "") -> list[Column]:
    """Columns of numbers; of: prefix of their names in the frame, left out of titles."""
    return [_number(of + name, name) for name in names.split()]


def _text(name: str, title: str = "") -> Column:
    def html(row: Row, trace: Trace | None) -> str:
        return escape(str(known(getattr(row, name))))

    return Column(title or name, html, name, "left")


def _module(row: Row, trace: Trace | None) -> str:
    return ended(str(known(row.module)), 40)


def _texts(names: str) -> list[Column]:
    return [_text(name) for name in names.split()]


def _share(name: str) -> Column:
    def html(row: Row, trace: Trace | None) -> str:
        value = getattr(row, name)
        return number(None) if pd.isna(value) else f"{100 * value:.3g} %"

    return Column(name, html, name)


def known(value: Any) -> Any:
    """The value, or "" for no value."""
    return "" if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)) else value


def _status(row: Row, trace: Trace | None) -> str:
    return (
        badge(str(row.status)) if severity(str(row.status)) < severity("ok") else escape(row.status)
    )


def _where(row: Row, trace: Trace | None) -> str:
    if not known(row.file):
        return ""
    place = f"{escape(str(row.file).rsplit('/', 1)[-1])}:{number(row.line).replace(',', '')}"
    source = as_typed(str(known(getattr(row, "source", ""))))
    text = f'<span style="font:11px monospace">{escape(shortened(source))}</span>'
    return f'<span title="{escape(row.file)}: {escape(source)}">{place} {text}</span>'


def shortened(text: str, most: int = 34) -> str:
    """The text, cut to ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _inf(row: Row, trace: Trace | None) -> str:
    return number(row.posinf + getattr(row, "neginf", 0))


def exponents(trace: Trace, number: float) -> pd.Series[int]:
    """The exponents of a row, or of what the program had before it (negative)."""
    number = int(number)
    found = trace.recording.exponents(number) if number < 0 else None
    return trace.histogram(number, replays=False) if found is None else found


def _histogram(name: str) -> Column:
    def html(row: Row, trace: Trace | None) -> str:
        position = getattr(row, name, None)
        return "" if trace is None or pd.isna(position) else sparkline(exponents(trace, position))

    return Column("exponents", html, name, "left")


MODULE = Column("module", _module, "module", "left")
WHERE = Column("where", _where, "file", "left")
STATUS = Column("status", _status, "status", "left")
FP16_ZERO = _number("fp16_zero", "fp16 → 0")
KINDS: dict[str, Sequence[Column]] = {
    "ops": [
        *(STATUS, *_numbers("step position"), *_texts("phase op"), MODULE, WHERE, _number("nan")),
        *(Column("inf", _inf, "posinf"), _histogram("position"), *_numbers("zero min max rms")),
        *(FP16_ZERO, _number("fp16_subnormal"), _number("fp16_inf", "fp16 → inf")),
        *_texts("shape dtype"),
    ],
    "backward": [
        *(STATUS, *_numbers("step order"), *_texts("name parameter"), MODULE, WHERE),
        *_numbers("in_nan in_inf out_nan out_inf", of="grad_"),
        *(_histogram("position_out"), *_numbers("in_rms out_rms", of="grad_"), _number("gain")),
        *(*_numbers("out_max out_zero", of="grad_"), FP16_ZERO, _number("node")),
    ],
    "signal_loss": [
        *(_text("parameter"), _number("step"), _share("flushed"), _share("zero"), _text("op")),
        *(WHERE, _text("dtype"), _text("measured", "known by")),
        _text("kept_by", "would be kept by"),
    ],
    "parameters": [],
    "steps": [],
}


def columns_for(frame: pd.DataFrame, kind: str) -> list[Column]:
    """The columns of a kind of table that the frame has; of an unknown kind, all."""
    listed = KINDS.get(kind, ())
    if listed:
        return [column for column in listed if column.sort_by in frame.columns]
    return [
        _text(n) if frame[n].dtype.kind in "OU" or _is_text(frame[n]) else _number(n)
        for n in map(str, frame.columns)
    ]


def is_blank(rows: pd.DataFrame, column: Column) -> bool:
    """Whether a text column is empty in these rows."""
    texts = rows[column.sort_by] if column.align == "left" and len(rows) else pd.Series([0])
    return bool(((texts == "") | texts.isna()).all())


def _is_text(column: pd.Series[Any]) -> bool:
    return (
        isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype) or column.dtype.kind == "b"
    )


def without_batches(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Rows without the finite ones of a DataLoader, and a caption for those left out."""
    if not {"phase", "status"} <= set(map(str, frame.columns)):
        return frame, ""
    hidden = ((frame["phase"] == "data") & (frame["status"] == "ok")).to_numpy(dtype=bool)
    if not hidden.any() or hidden.all():
        return frame, ""
    return frame[~hidden], f"{plural(int(hidden.sum()), 'row')} of the phase data not shown"


def trouble_first(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows by status, worst first: bad ones in order, healthy ones by their loss in float16.

    A frame that the user sorted keeps its order.
    """
    if not frame.index.is_monotonic_increasing or "status" not in frame.columns:
        return frame
    status = [severity(str(s)) for s in frame["status"]]
    healthy = [s >= severity("healed") for s in status]
    keys = pd.DataFrame({"status": status, "lost": -_lost(frame) * healthy})
    return frame.iloc[keys.sort_values(["status", "lost"], kind="stable").index.to_numpy()]


def _lost(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Values per row that float16 would flush to zero or overflow."""
    names = [n for n in ("fp16_zero", "fp16_inf") if n in frame.columns]
    lost: npt.NDArray[np.float64] = frame[names].fillna(0).sum(axis=1).to_numpy(dtype="float64")
    return lost
