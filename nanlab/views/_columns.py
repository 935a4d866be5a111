"""Which columns a table of a trace shows, and how a row fills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.views._graph import severity
from nanlab.views._html import badge, escape, number
from nanlab.views._sparkline import sparkline

if TYPE_CHECKING:
    from nanlab.trace import Trace

Row = Any  # a namedtuple of DataFrame.itertuples


@dataclass(frozen=True, slots=True)
class Column:
    """One column as shown."""

    title: str
    html: Callable[[Row, Trace | None], str]
    sort_by: str  # the column of the frame behind it
    align: str = "right"


def _number(name: str, title: str = "") -> Column:
    return Column(title or name.replace("_", " "), lambda row, trace: number(getattr(row, name)), name)


def _text(name: str, title: str = "") -> Column:
    return Column(title or name, lambda row, trace: escape(known(getattr(row, name))), name, "left")


def known(value: Any) -> Any:
    """The value, or "" for no value."""
    return "" if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)) else value


def _status(row: Row, trace: Trace | None) -> str:
    return badge(str(row.status)) if severity(str(row.status)) < severity("ok") else escape(row.status)


def _where(row: Row, trace: Trace | None) -> str:
    if not known(row.file):
        return ""
    place = f"{escape(str(row.file).rsplit('/', 1)[-1])}:{number(row.line).replace(',', '')}"
    source = escape(known(getattr(row, "source", "")))
    short = source if len(source) <= 46 else source[:45] + "…"
    return f'<span title="{escape(row.file)}: {source}">{place} <code style="font-size:11px;background:none">{short}</code></span>'


def _inf(row: Row, trace: Trace | None) -> str:
    return number(row.posinf + row.neginf)


def _histogram(name: str) -> Column:
    def html(row: Row, trace: Trace | None) -> str:
        position = getattr(row, name, None)
        return "" if trace is None or pd.isna(position) else sparkline(trace.histogram(int(position)))

    return Column("exponents", html, name, "left")


WHERE = Column("where", _where, "file", "left")
STATUS = Column("status", _status, "status", "left")
KINDS: dict[str, Sequence[Column]] = {
    "ops": [
        *(STATUS, _number("step"), _number("position"), _text("phase"), _text("op"), _text("module"), WHERE),
        *(_text("shape"), _text("dtype"), _histogram("position"), _number("nan", "NaN")),
        *(Column("inf", _inf, "posinf"), _number("zero"), _number("min"), _number("max"), _number("rms")),
        *(_number("fp16_zero", "fp16 → 0"), _number("fp16_subnormal", "fp16 subnormal"), _number("fp16_inf", "fp16 → inf")),
    ],
    "backward": [
        *(STATUS, _number("step"), _number("order"), _number("node"), _text("name"), _text("module"), WHERE),
        *(_number("grad_in_nan", "in NaN"), _number("grad_in_inf", "in inf"), _number("grad_in_rms", "in rms")),
        *(_number("grad_out_nan", "out NaN"), _number("grad_out_inf", "out inf"), _number("grad_out_zero", "out zero")),
        *(_number("grad_out_rms", "out rms"), _number("grad_out_max", "out max"), _number("gain")),
        *(_number("fp16_zero", "fp16 → 0"), _histogram("position_out")),
    ],
    "parameters": [],
    "steps": [],
}


def columns_for(frame: pd.DataFrame, kind: str) -> list[Column]:
    """The columns of a kind that the frame can fill; of a kind without a list of its own, all of the frame's."""
    listed = KINDS.get(kind, ())
    if listed:
        return [column for column in listed if column.sort_by in frame.columns]
    return [_text(n) if frame[n].dtype.kind in "OU" or _is_text(frame[n]) else _number(n) for n in map(str, frame.columns)]


def _is_text(column: pd.Series[Any]) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype) or column.dtype.kind == "b"


def trouble_first(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows by status, worst first, then by how many values are not finite or would be lost in float16.

    A frame that its owner sorted otherwise keeps its order.
    """
    if not frame.index.is_monotonic_increasing or "status" not in frame.columns:
        return frame
    counts = [n for n in ("nan", "posinf", "neginf", "grad_out_nan", "grad_out_inf") if n in frame.columns]
    half = [n for n in ("fp16_zero", "fp16_inf") if n in frame.columns]
    keys = pd.DataFrame(
        {
            "status": [severity(str(s)) for s in frame["status"]],
            "bad": -_total(frame, counts) if not _carried(frame) else 0,
            "half": -_total(frame, half),
        },
        index=range(len(frame)),
    )
    return frame.iloc[keys.sort_values(["status", "bad", "half"], kind="stable").index.to_numpy()]


def _carried(frame: pd.DataFrame) -> bool:
    """Whether statuses already say all: among bad rows the earliest is the most telling, not the fullest."""
    return bool((frame["status"].astype(str) != "ok").any())


def _total(frame: pd.DataFrame, names: list[str]) -> Any:
    return frame[names].fillna(0).sum(axis=1).to_numpy(dtype="float64") if names else 0
