"""A widget for long tables: only the rows in view are made and sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import traitlets

from nanlab.trace.selection import Place
from nanlab.views._columns import columns_for, trouble_first, without_batches
from nanlab.views._graph import severity
from nanlab.views._html import plural
from nanlab.views._static_table import static_table
from nanlab.views._widget import View, script, style

if TYPE_CHECKING:
    from nanlab.views.tables import TraceTable

BLOCK = 80  # rows sent at a time
SOUGHT = ("op", "name", "parameter", "module", "where", "status")  # what one filters by, as a rule


class TableBrowser(View):
    """Scrolls through a table of any length; ``browser.frame`` is what is shown: filtered and
    sorted."""

    _esm = script("browse")
    _css = style("browse")

    # title and alignment of each column
    heads: traitlets.List[Any] = traitlets.List().tag(sync=True)
    texts: traitlets.List[Any] = traitlets.List().tag(
        sync=True
    )  # columns that the filter looks at, the likeliest first
    # whether rows have a status, and trouble can go first
    troubled = traitlets.Bool(True).tag(sync=True)
    total = traitlets.Int(0).tag(sync=True)  # rows after the filter
    caption = traitlets.Unicode().tag(sync=True)
    want = traitlets.Int(0).tag(sync=True)  # the first row the page needs
    # first: its first row, rows: their cells as HTML, status of each
    block = traitlets.Dict().tag(sync=True)
    needle = traitlets.Unicode().tag(sync=True)  # the filter: text found in any text column
    # row of ``frame`` that is selected in all views; -1: none of them
    selected = traitlets.Int(-1).tag(sync=True)
    # number of the column, -1: trouble first; ascending
    sort_by = traitlets.List([-1, True]).tag(sync=True)

    def __init__(self, table: TraceTable) -> None:
        self._table = table
        self._columns = columns_for(table, table.kind)
        self._usual, self._left_out = without_batches(table)
        self.frame = trouble_first(self._usual)
        self._following = False  # whether the selection comes from elsewhere
        # counts the filters and sorts, so that the page forgets the rows of the last one
        self._order = 0
        heads = [[column.title, column.align] for column in self._columns]
        texts = [c.title for c in self._columns if c.align == "left" and c.title != "exponents"]
        super().__init__(
            heads=heads,
            texts=sorted(
                texts, key=lambda title: SOUGHT.index(title) if title in SOUGHT else len(SOUGHT)
            ),
            troubled="status" in table.columns,
            total=len(self.frame),
            caption=self._caption(),
            block=self._block(0),
        )
        self.observe(lambda change: self._refill(), "want")
        self.observe(lambda change: self._arrange(), ["needle", "sort_by"])
        self.observe(lambda change: self._select(), "selected")
        if table.trace is not None and table.kind in ("ops", "backward"):
            table.trace.selection.follow(self._follow)
            if table.trace.selection.place is not None:
                self._follow(table.trace.selection.place)

    def _select(self) -> None:
        trace = self._table.trace
        if self._following or trace is None or not 0 <= self.selected < len(self.frame):
            return
        trace.at = self.frame.iloc[self.selected]

    def _follow(self, place: Place) -> None:
        self._following = True
        try:
            self.selected = self._row_of(place)
        finally:
            self._following = False

    def _row_of(self, place: Place) -> int:
        frame = self.frame
        if "position" in frame.columns:
            same = frame["position"] == place
        elif "node" in frame.columns and place.node is not None and "step" in frame.columns:
            same = (frame["node"] == place.node) & (frame["step"] == place.step)
        else:
            return -1
        found = np.flatnonzero(same.fillna(False).to_numpy(dtype=bool))
        return int(found[0]) if len(found) else -1

    def _arrange(self) -> None:
        number, ascending = self.sort_by
        # a filter looks through all rows, those of batches too
        rows = self._table[_holds(self._table, self.needle)] if self.needle.strip() else self._usual
        if number < 0:
            self.frame = trouble_first(rows)
        else:
            name = self._columns[number].sort_by
            key = (
                (lambda c: c.map(lambda s: severity(str(s))).astype(int))
                if name == "status"
                else None
            )
            self.frame = rows.sort_values(name, ascending=bool(ascending), kind="stable", key=key)
        self._order += 1
        place = self._table.trace.selection.place if self._table.trace is not None else None
        if place is not None:
            self._follow(place)
        with self.hold_sync():
            self.total, self.caption, self.want = len(self.frame), self._caption(), 0
            self._refill()

    def _refill(self) -> None:
        self.block = self._block(self.want)

    def _block(self, first: int) -> dict[str, Any]:
        rows = self.frame.iloc[first : first + BLOCK]
        cells = [
            [c.html(row, self._table.trace) for c in self._columns]
            for row in rows.itertuples(index=False)
        ]
        return {"first": first, "rows": cells, "order": self._order}

    def _caption(self) -> str:
        shown, all_ = len(self.frame), len(self._table)
        if shown == all_:
            return plural(all_, "row")
        usual = shown == len(self._usual) and not self.needle.strip()
        told = f"{shown:,} of {plural(all_, 'row')}"
        return f"{told}; {self._left_out}, filter by “data”" if usual else told

    def static_text(self) -> str:
        """The frame as pandas prints it."""
        return pd.DataFrame.__repr__(self._table)

    def static_html(self) -> str:
        """The first 50 rows."""
        return static_table(self._table, self._table.kind, self._table.trace)


def _holds(frame: pd.DataFrame, needle: str) -> Any:
    """Rows with the text in any of their text columns, whatever the case."""
    found = np.zeros(len(frame), dtype=bool)
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            texts = frame[name].astype("string").fillna("")
            found |= texts.str.contains(needle.strip(), case=False, regex=False).to_numpy(
                dtype=bool
            )
    return found


def browse(table: TraceTable) -> TableBrowser:
    """Scroll, filter and sort a table of a trace."""
    return TableBrowser(table)
