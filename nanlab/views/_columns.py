"""Which columns a table of a trace shows, and how a row fills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from nanlab.views._graph import severity
from nanlab.views._html import badge, escape, number, plural
from nanlab.views._source import as_typed
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
    told = title or name.replace("_", " ").replace(" nan", " NaN")
    return Column(told, lambda row, trace: _finite_or_marked(number(getattr(row, name))), name)


def _finite_or_marked(text: str) -> str:
    return badge(text, "error") if text in {"nan", "inf", "-inf"} else text


def _text(name: str, title: str = "") -> Column:
    return Column(
        title or name, lambda row, trace: escape(str(known(getattr(row, name)))), name, "left"
    )


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
    """The text, cut where it is longer than ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _inf(row: Row, trace: Trace | None) -> str:
    return number(row.posinf + row.neginf)


def _histogram(name: str) -> Column:
    def html(row: Row, trace: Trace | None) -> str:
        position = getattr(row, name, None)
        return (
            "" if trace is None or pd.isna(position) else sparkline(trace.histogram(int(position)))
        )

    return Column("exponents", html, name, "left")


WHERE = Column("where", _where, "file", "left")
STATUS = Column("status", _status, "status", "left")
KINDS: dict[str, Sequence[Column]] = {
    "ops": [
        *(
            STATUS,
            _number("step"),
            _number("position"),
            _text("phase"),
            _text("op"),
            _text("module"),
            WHERE,
        ),
        *(_number("nan", "NaN"), Column("inf", _inf, "posinf"), _histogram("position")),
        *(_number("zero"), _number("min"), _number("max"), _number("rms")),
        *(_number("fp16_zero", "fp16 → 0"), _number("fp16_subnormal", "fp16 subnormal")),
        *(_number("fp16_inf", "fp16 → inf"), _text("shape"), _text("dtype")),
    ],
    "backward": [
        *(
            STATUS,
            _number("step"),
            _number("order"),
            _text("name"),
            _text("parameter"),
            _text("module"),
            WHERE,
        ),
        *(
            _number("grad_in_nan", "in NaN"),
            _number("grad_in_inf", "in inf"),
            _number("grad_out_nan", "out NaN"),
        ),
        *(
            _number("grad_out_inf", "out inf"),
            _histogram("position_out"),
            _number("grad_in_rms", "in rms"),
        ),
        *(_number("grad_out_rms", "out rms"), _number("gain"), _number("grad_out_max", "out max")),
        *(_number("grad_out_zero", "out zero"), _number("fp16_zero", "fp16 → 0"), _number("node")),
    ],
    "signal_loss": [
        *(
            _text("parameter"),
            _number("step"),
            _share("flushed"),
            _share("zero"),
            _text("op"),
            WHERE,
            _text("dtype"),
        ),
        *(_text("measured", "known by"), _text("kept_by", "would be kept by")),
    ],
    "parameters": [],
    "steps": [],
}


def columns_for(frame: pd.DataFrame, kind: str) -> list[Column]:
    """The columns of a kind that the frame can fill; of a kind without a list of its own, all of
    the frame's."""
    listed = KINDS.get(kind, ())
    if listed:
        return [column for column in listed if column.sort_by in frame.columns]
    return [
        _text(n) if frame[n].dtype.kind in "OU" or _is_text(frame[n]) else _number(n)
        for n in map(str, frame.columns)
    ]


def is_blank(rows: pd.DataFrame, column: Column) -> bool:
    """Whether a column of texts has none in these rows."""
    texts = rows[column.sort_by] if column.align == "left" and len(rows) else pd.Series([0])
    return bool(((texts == "") | texts.isna()).all())


def _is_text(column: pd.Series[Any]) -> bool:
    return (
        isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype) or column.dtype.kind == "b"
    )


def without_batches(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows without the sound ones with which a DataLoader made its batches, and what was left
    out, in words; all rows where there are no others."""
    if not {"phase", "status"} <= set(map(str, frame.columns)):
        return frame, ""
    hidden = ((frame["phase"] == "data") & (frame["status"] == "ok")).to_numpy(dtype=bool)
    if not hidden.any() or hidden.all():
        return frame, ""
    return frame[~hidden], f"{plural(int(hidden.sum()), 'row')} of the phase data not shown"


def trouble_first(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows by status, worst first; the bad ones in order, the healthy ones by what float16
    would lose.

    A frame that its owner sorted otherwise keeps its order.
    """
    if not frame.index.is_monotonic_increasing or "status" not in frame.columns:
        return frame
    status = [severity(str(s)) for s in frame["status"]]
    healthy = [s >= severity("healed") for s in status]
    keys = pd.DataFrame({"status": status, "lost": -_lost(frame) * healthy})
    return frame.iloc[keys.sort_values(["status", "lost"], kind="stable").index.to_numpy()]


def _lost(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Values of each row that float16 would flush to zero or overflow."""
    names = [n for n in ("fp16_zero", "fp16_inf") if n in frame.columns]
    lost: npt.NDArray[np.float64] = frame[names].fillna(0).sum(axis=1).to_numpy(dtype="float64")
    return lost
