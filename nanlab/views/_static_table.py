"""The first rows of a table as HTML that needs neither a style sheet nor a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from nanlab.views._columns import columns_for, is_blank, trouble_first, without_batches
from nanlab.views._html import plural, table

if TYPE_CHECKING:
    from nanlab.trace import Trace

ROWS = 50  # more makes notebooks slow and large


def static_table(
    frame: pd.DataFrame,
    kind: str,
    trace: Trace | None = None,
    in_order: bool = False,
    most: int = ROWS,
    last: bool = False,
) -> str:
    """HTML of at most ``most`` rows with inline styles, the trouble on top unless ``in_order``.

    last: the last rows, in order, instead of the first.
    """
    frame, left_out = without_batches(frame)
    rows = frame.tail(most) if last else (frame if in_order else trouble_first(frame)).head(most)
    columns = [column for column in columns_for(frame, kind) if not is_blank(rows, column)]
    cells = [
        [column.html(row, trace) for column in columns] for row in rows.itertuples(index=False)
    ]
    return table(
        [c.title for c in columns],
        cells,
        [c.align for c in columns],
        "; ".join(filter(None, (_caption(frame, rows, in_order, last), left_out))),
    )


def _caption(frame: pd.DataFrame, rows: pd.DataFrame, in_order: bool, last: bool) -> str:
    if len(rows) == len(frame):
        return plural(len(frame), "row")
    if last:
        return f"{plural(len(frame), 'row')}; the last {len(rows)} are shown"
    first = (
        "the first"
        if in_order or not frame.index.is_monotonic_increasing
        else "trouble first, the top"
    )
    return f"{plural(len(frame), 'row')}; {first} {len(rows)} are shown"
