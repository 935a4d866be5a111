"""The report as a widget: its code is clicked, its fixes are copied, and it follows the selection of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nanlab.views import _details
from nanlab.views._issue import as_issue, reproduction_of
from nanlab.views._widget import View, script, style
from nanlab.views.report import first_of

if TYPE_CHECKING:
    from nanlab.trace.selection import Place
    from nanlab.views.report import Report


class ReportView(View):
    """The report in a notebook that runs."""

    _esm = script("report")
    _css = style("report")

    fresh = traitlets.Bool(True).tag(sync=True)  # whether no page has shown it yet
    html = traitlets.Unicode().tag(sync=True)
    issue = traitlets.Unicode().tag(sync=True)  # the finding as the text of an issue
    selected = traitlets.Int(-1).tag(sync=True)  # position of the selected row of ``trace.ops``
    place = traitlets.Unicode().tag(sync=True)  # its line, as the page knows it
    line = traitlets.Unicode().tag(sync=True)  # the operations of that line, as HTML

    def __init__(self, report: Report) -> None:
        self._report = report
        self._trace = report.trace
        super().__init__(html=report.body(), issue=self._issue(), **self._shown(self._trace.at))
        self.observe(lambda change: self._select(), "selected")
        self._trace.selection.follow(self._follow)

    def _issue(self) -> str:
        found = first_of(self._trace)
        return "" if found is None else as_issue(self._trace, found, reproduction_of(self._trace, found))

    def _shown(self, place: Place | None) -> dict[str, Any]:
        if place is None:
            return {}
        told = _details.line_of(self._trace, position=int(place))
        return {"selected": int(place), "place": f"{place.file}:{place.line}", "line": told}

    def _select(self) -> None:
        if self.selected != self._trace.at:
            self._trace.at = self.selected

    def _follow(self, place: Place) -> None:
        with self.hold_sync():
            for name, value in self._shown(place).items():
                setattr(self, name, value)

    def static_html(self) -> str:
        """The report as it stands in a page without widgets."""
        return self._report._repr_html_()

    def static_text(self) -> str:
        """The report as text."""
        return repr(self._report)


def show(report: Report) -> None:
    """Display a report: as a widget where a kernel can serve one, else as HTML and text."""
    shell = get_ipython()
    if getattr(shell, "kernel", None) is not None:
        ReportView(report)._ipython_display_()
        return
    display({"text/html": report._repr_html_(), "text/plain": repr(report)}, raw=True)
