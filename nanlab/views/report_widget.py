"""The report as a widget: its code is clicked, its fixes are copied, and it follows the selection
of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nanlab.views import _details
from nanlab.views._finding import first_of
from nanlab.views._html import escape
from nanlab.views._issue import as_issue, reproduction_of
from nanlab.views._trying import edited, tried
from nanlab.views._widget import View, script, style

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
    # finding and fix to try, and how often the page has asked
    asked = traitlets.List([-1, -1, 0]).tag(sync=True)
    # of the last one: finding, fix, html, cell (its text with the edits)
    tried = traitlets.Dict().tag(sync=True)
    line = traitlets.Unicode().tag(sync=True)  # the operations of that line, as HTML

    def __init__(self, report: Report) -> None:
        self._report = report
        self._trace = report.trace
        super().__init__(html=report.body(), issue=self._issue(), **self._shown(self._trace.at))
        self.observe(lambda change: self._select(), "selected")
        self.observe(lambda change: self._try(), "asked")
        self._trace.selection.follow(self._follow)

    def _try(self) -> None:
        """Run the step again with the fix that the page asked for."""
        which, fix, _ = self.asked
        if not 0 <= which < len(self._trace.findings) or not 0 <= fix < len(
            self._trace.findings[which].fixes
        ):
            return
        finding = self._trace.findings[which]
        try:
            told = {
                "html": tried(self._trace, finding, fix),
                "cell": edited(self._trace, finding, fix),
            }
        except Exception as failure:  # ours: the page is told, the kernel goes on
            text = f"trying it failed ({type(failure).__name__}: {failure})"
            told = {"html": f'<div class="nl-note">{escape(text)}</div>', "cell": ""}
        self.tried = {"finding": which, "fix": fix, **told}

    def _issue(self) -> str:
        found = first_of(self._trace)
        return (
            ""
            if found is None
            else as_issue(self._trace, found, reproduction_of(self._trace, found))
        )

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
