"""The report as a widget: its code is clicked, its fixes are copied, and it follows the selection
of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nanlab.views import _details
from nanlab.views._finding import first_of, is_tried
from nanlab.views._html import escape
from nanlab.views._issue import as_issue, reproduction_of
from nanlab.views._minimap import WHOLE, minimap, position_at
from nanlab.views._remedy import INTERRUPTED
from nanlab.views._trying import attempt_of, edited, tried
from nanlab.views._whence import whence
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
    # what to try, as the page names it, and how often the page has asked
    asked = traitlets.List(["", 0]).tag(sync=True)
    # of the last one: key, html, cell (its text with the edits)
    tried = traitlets.Dict().tag(sync=True)
    line = traitlets.Unicode().tag(sync=True)  # the operations of that line, as HTML
    # position and which element (see _whence) of a number that was clicked, and how often
    clicked = traitlets.List([-1, "", 0]).tag(sync=True)
    whence = traitlets.Unicode().tag(sync=True)  # where it came from, as HTML
    # part of the minimap that is shown: left, right, top, bottom, as shares of the whole
    window = traitlets.List(list(WHOLE)).tag(sync=True)
    minimap = traitlets.Unicode().tag(sync=True)  # that part, as HTML
    # point of the minimap that was clicked: across, down, and how often
    pointed = traitlets.List([0.0, 0.0, 0]).tag(sync=True)

    def __init__(self, report: Report) -> None:
        self._report = report
        self._trace = report.trace
        self._waits = not is_tried(self._trace)  # for the fixes to be tried
        html = report.early() if self._waits else report.body()
        super().__init__(html=html, **self._shown(self._trace.at))
        if not self._waits:
            self.issue = self._issue()
        self.observe(lambda change: self._select(), "selected")
        self.observe(lambda change: self._try(), "asked")
        self.observe(lambda change: self._trace_back(), "clicked")
        self.observe(lambda change: self._enlarge(), "window")
        self.observe(lambda change: self._point(), "pointed")
        self._trace.selection.follow(self._follow)

    def _ipython_display_(self) -> None:
        handle = self.show()
        if not self._waits:
            return
        # the card is on the screen by now; its fixes take a moment
        try:
            html, issue = self._report.body(), self._issue()
        except KeyboardInterrupt:
            self.html = self._report.early(INTERRUPTED)
            return
        self._waits = False
        with self.hold_sync():
            self.html, self.issue = html, issue
        handle.update(self._summary(), raw=True)

    def _try(self) -> None:
        """Run the step again with what the page asked for."""
        key = str(self.asked[0])
        try:
            attempt = attempt_of(self._trace, key)
            if attempt is None:
                return
            told = {"html": tried(self._trace, attempt), "cell": edited(self._trace, attempt)}
        except Exception as failure:  # ours: the page is told, the kernel goes on
            text = f"trying it failed ({type(failure).__name__}: {failure})"
            told = {"html": f'<div class="nl-note">{escape(text)}</div>', "cell": ""}
        self.tried = {"key": key, "count": self.asked[1], **told}

    def _trace_back(self) -> None:
        """Tell where the number that was clicked came from."""
        position, which, _ = self.clicked
        try:
            self.whence = whence(self._trace, int(str(position)), str(which))
        except Exception as failure:  # ours: the page is told, the kernel goes on
            text = f"tracing it back failed ({type(failure).__name__}: {failure})"
            self.whence = f'<div class="nl-note">{escape(text)}</div>'

    def _enlarge(self) -> None:
        """Draw the part of the minimap that the page asks for."""
        self.minimap = minimap(self._trace, [float(str(share)) for share in self.window])

    def _point(self) -> None:
        """Select the result under a point of the minimap."""
        across, down, _ = (float(str(each)) for each in self.pointed)
        position = position_at(self._trace, across, down)
        if position is not None:
            self._trace.at = position

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
        return f"<style>{style('report')}</style>{self.html}"

    def static_text(self) -> str:
        """The report as text; before the fixes were tried, what happened and where."""
        return str(self._trace.culprit or "") if self._waits else repr(self._report)


def show(report: Report) -> None:
    """Display a report: as a widget where a kernel can serve one, else as HTML and text."""
    shell = get_ipython()
    if getattr(shell, "kernel", None) is not None:
        ReportView(report)._ipython_display_()
        return
    display({"text/html": report._repr_html_(), "text/plain": repr(report)}, raw=True)
