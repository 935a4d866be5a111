"""The tables of a trace as a notebook shows them; underneath they stay DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from nanlab.views._html import plural
from nanlab.views._static_table import ROWS, static_table

if TYPE_CHECKING:
    from nanlab.trace import Trace


class TraceTable(pd.DataFrame):
    """A DataFrame that a notebook shows with the trouble on top, source lines and exponent
    histograms.

    Whatever is taken from it (rows, columns, a copy) is one too; what has lost its telling columns
    shows as pandas shows it.
    """

    _metadata = ["kind", "trace"]  # noqa: RUF012  # pandas' own protocol
    kind: str = ""
    trace: Trace | None = None

    @property
    def _constructor(self) -> type[TraceTable]:
        return TraceTable

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process leaves the trace behind, and with it the small histograms."""
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
        if len(self) <= ROWS or not _is_telling(self):
            raise NotImplementedError("IPython then asks for HTML and text")
        from nanlab.views.browse import browse

        browse(self)._ipython_display_()


def as_table(frame: pd.DataFrame, kind: str, trace: Trace | None = None) -> TraceTable:
    """The frame as one that shows itself.

    kind: "ops", "backward", "parameters" or "steps". trace: where the histograms come from; none
    are shown without it.
    """
    made = TraceTable(frame)
    made.kind, made.trace = kind, trace
    return made


def nothing_lost(frame: TraceTable) -> str:
    """The sentence that stands for a table of lost gradients where none was lost; "" otherwise."""
    if frame.kind != "signal_loss" or not len(frame) or (frame["flushed"] > 0).any():
        return ""
    steps, parameters = frame["step"].nunique(), frame["parameter"].nunique()
    return (
        f"No gradient lost a value in {plural(steps, 'kept step')}"
        f" ({plural(parameters, 'parameter')})."
    )


def _is_telling(frame: TraceTable) -> bool:
    if frame.kind == "signal_loss":
        return {"parameter", "step", "flushed"} <= set(map(str, frame.columns))
    if frame.kind not in ("ops", "backward"):
        return bool(frame.kind) and frame.columns.nlevels == 1
    return {"status", "op", "file", "line"} <= set(map(str, frame.columns))
