"""Where signal is lost first, in words: what low precision made zero, and epsilons that do
nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.analysis.first_losses import first_losses
from nanlab.views._columns import shortened
from nanlab.views._html import escape, fold, number, plural, table
from nanlab.views._source import as_typed

if TYPE_CHECKING:
    from nanlab.trace import Trace

PLACES = 6  # that are listed
TELLING = 0.5  # share of a result's values from which a loss is told without being asked for


def told(loss: Any) -> str:
    """What became of the values at one place; ``loss``: a row of ``first_losses``."""
    if loss.told_by == "epsilon":
        what = "the epsilon" if pd.isna(loss.largest) else number(loss.largest).replace(".00e", "e")
        return f"{what} is 0 in {loss.dtype}: {loss.op} changes nothing"
    share = "all" if loss.share == 1 else f"{100 * loss.share:.3g} %"
    flushed = (
        f"{loss.op} flushes {share} of its non-zero values ({loss.lost:,}) to zero in {loss.dtype}"
    )
    return (
        flushed
        if pd.isna(loss.largest)
        else f"{flushed}; in float32 they reach {number(loss.largest)}"
    )


def loss_place(loss: Any) -> str:
    """``train.py:41, in encoder.0, forward``: the line loses its values in every step."""
    where = f"{str(loss.file).rsplit('/', 1)[-1]}:{loss.line}" if loss.file else ""
    module = f"in {loss.module}" if loss.module else ""
    return ", ".join(part for part in (where, module, loss.phase) if part)


def first_loss(trace: Trace) -> Any | None:
    """The first place where at least half of a result's values are lost, an epsilon included; None
    without any."""
    rows = first_losses(trace)
    return next(rows[rows["share"] >= TELLING].itertuples(index=False), None)


def line(trace: Trace) -> str:
    """The first great loss in one line; "" without any."""
    loss = first_loss(trace)
    if loss is None:
        return ""
    source = f"  ({as_typed(loss.source)})" if loss.source else ""
    return f"Signal is lost first at {loss_place(loss)}: {told(loss)}{source}"


def great_section(trace: Trace) -> str:
    """The first places where one of them loses half of its values; "" where none does."""
    rows = first_losses(trace)
    return _places(rows) if (rows["share"] >= TELLING).any() else ""


def small_section(trace: Trace) -> str:
    """The first places in a fold, where none of them loses half of its values."""
    rows = first_losses(trace)
    return "" if (rows["share"] >= TELLING).any() else _places(rows)


def _places(rows: pd.DataFrame) -> str:
    if not len(rows):
        return ""
    cells = [_cells(loss) for loss in rows.head(PLACES).itertuples(index=False)]
    more = (
        f"the first {PLACES} of {plural(len(rows), 'place')}, in the order of the run"
        if len(rows) > PLACES
        else ""
    )
    title = "Where signal is lost first"
    body = table(["where", "source", "what is lost"], cells, ["left", "left", "left"], more)
    if rows["share"].max() < TELLING:
        return fold(f"{title}: {plural(len(rows), 'place')}", body)
    return f'<div style="margin-top:8px"><div style="font-weight:600">{title}</div>{body}</div>'


def _cells(loss: Any) -> list[str]:
    source = (
        f'<span style="font:12px monospace">{escape(shortened(as_typed(loss.source), 60))}</span>'
    )
    words = f'<div style="white-space:normal;min-width:18em">{escape(told(loss))}</div>'
    return [escape(loss_place(loss)), source, words]
