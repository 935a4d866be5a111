"""The tables of a trace in a notebook: DataFrames with a scrolling widget."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import traitlets

from nanlab.trace import Place, Trace
from nanlab.views.columns import columns_for, is_blank, severity, trouble_first, without_batches
from nanlab.views.html import plural, table
from nanlab.views.widget import View, script, style

# The first rows of a table as HTML that needs neither a style sheet nor a kernel.

ROWS = 50  # more makes notebooks slow and large


def static_table(
    frame: pd.DataFrame, kind: str, trace: Trace | None, in_order: bool = False, caption: str = ""
) -> str:
    """HTML of the first rows with inline styles, worst first unless ``in_order``; its caption says
    how many there are, unless one is given.
    """
    frame, left_out = without_batches(frame)
    rows = (frame if in_order else trouble_first(frame)).head(ROWS)
    columns = [column for column in columns_for(frame, kind) if not is_blank(rows, column)]
    cells = [
        [column.html(row, trace) for column in columns] for row in rows.itertuples(index=False)
    ]
    told = caption or "; ".join(filter(None, (_caption(frame, rows, in_order), left_out)))
    return table([c.title for c in columns], cells, [c.align for c in columns], told)


def _caption(frame: pd.DataFrame, rows: pd.DataFrame, in_order: bool) -> str:
    if len(rows) == len(frame):
        return plural(len(frame), "row")
    as_is = in_order or not frame.index.is_monotonic_increasing
    first = "the first" if as_is else "trouble first, the top"
    return f"{plural(len(frame), 'row')}; {first} {len(rows)} are shown"


# A widget for long tables: only the rows in view are made and sent.

BLOCK = 80  # rows sent at a time
SOUGHT = ("op", "name", "parameter", "module", "where", "status")  # what one filters by, as a rule


class TableBrowser(View):
    """Scrolls through any table; ``browser.frame`` is what is shown, filtered and sorted."""

    _esm = script("browse")
    _css = style("browse")

    # title and alignment of each column
    heads: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # columns that the filter looks at, the likeliest first
    texts: traitlets.List[Any] = traitlets.List().tag(sync=True)
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
        if table.trace is not None and table.kind in ("steps", "parameters"):
            self.selected = _row_of_culprit(self.frame, table.trace)
        elif table.trace is not None and table.kind in ("ops", "backward"):
            table.trace.selection.follow(self._follow)
            if table.trace.selection.place is not None:
                self._follow(table.trace.selection.place)

    def _select(self) -> None:
        trace = self._table.trace
        if self._following or trace is None or not 0 <= self.selected < len(self.frame):
            return
        if self._table.kind in ("steps", "parameters"):  # whose rows are no operations
            return
        trace.at = self.frame.iloc[self.selected]

    def _follow(self, place: Place) -> None:
        with self._led():
            self.selected = self._row_of(place)

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
            key = _by_severity if name == "status" else None
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


def _row_of_culprit(frame: pd.DataFrame, trace: Trace) -> int:
    """The first row of the culprit's step; -1 without one."""
    culprit = trace.culprit
    if culprit is None or "step" not in frame.columns:
        return -1
    found = np.flatnonzero(frame["step"].eq(culprit.step).to_numpy(dtype=bool))
    return int(found[0]) if len(found) else -1


def _by_severity(statuses: pd.Series[Any]) -> pd.Series[int]:
    return statuses.map(lambda status: severity(str(status))).astype(int)


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


# The tables of a trace as a notebook shows them; underneath they stay DataFrames.


class TraceTable(pd.DataFrame):
    """A DataFrame that a notebook shows worst rows first, with source lines and exponent
    histograms.

    Selections and copies of it are tables too; without the columns that this needs, they show as
    in pandas.
    """

    _metadata = ["kind", "trace"]  # noqa: RUF012  # pandas' own protocol
    kind: str = ""
    trace: Trace | None = None

    @property
    def _constructor(self) -> type[TraceTable]:
        return TraceTable

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process, without the trace and its histograms."""
        state: dict[str, Any] = {**cast(dict[str, Any], super().__getstate__()), "trace": None}
        return state

    def _repr_html_(self) -> str | None:
        if not _is_telling(self):
            return cast(str | None, super()._repr_html_())  # type: ignore[misc]
        if nothing := nothing_lost(self):
            return f"<div>{nothing}</div>"
        return static_table(self, self.kind, self.trace)

    def __repr__(self) -> str:
        if self.kind != "signal_loss" or not _is_telling(self):
            return super().__repr__()
        return nothing_lost(self) or self.to_string(na_rep="–", max_rows=ROWS, index=False)

    def _ipython_display_(self) -> None:
        if len(self) <= ROWS or not _is_telling(self) or nothing_lost(self):
            raise NotImplementedError("IPython then asks for HTML and text")

        browse(self)._ipython_display_()


def as_table(frame: pd.DataFrame, kind: str, trace: Trace | None = None) -> TraceTable:
    """The frame as a TraceTable.

    kind: "ops", "backward", "parameters" or "steps". trace: the source of the histograms.
    """
    made = TraceTable(frame)
    made.kind, made.trace = kind, trace
    return made


def nothing_lost(frame: TraceTable) -> str:
    """A sentence in place of a table of lost gradients without losses; else ""."""
    if frame.kind != "signal_loss" or not len(frame) or (frame["flushed"] > 0).any():
        return ""
    steps, parameters = frame["step"].nunique(), frame["parameter"].nunique()
    return (
        f"No gradient lost a value in {plural(steps, 'kept step')}"
        f" ({plural(parameters, 'parameter')})."
    )


def _is_telling(frame: TraceTable) -> bool:
    """Whether a frame has what its kind of table shows: not after ``.T`` or ``.isna()``, nor with
    two columns of one name."""
    names = set(frame.columns)
    if len(names) < len(frame.columns) or not all(isinstance(name, str) for name in names):
        return False
    if frame.kind == "signal_loss":
        return {"parameter", "step", "flushed"} <= names
    if frame.kind not in ("ops", "backward"):
        return bool(frame.kind)
    needed = {"status", "op", "file", "line"} <= names
    return needed and all(isinstance(status, str) for status in frame["status"].head(1))
