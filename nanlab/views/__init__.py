"""Something to look at: tables, figures, widgets and the report of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nanlab.analysis.loss_scale import LossScale
    from nanlab.explanations import Explanation
    from nanlab.rules import Finding


def register_formatters(ip: InteractiveShell) -> None:
    """Teach the notebook to show a Trace, a Finding, an Explanation and a LossScale; doing so twice
    changes nothing.

    The tables of a trace, its report and its widgets show themselves. Nothing is imported until
    something is shown.
    """
    formatter = ip.display_formatter
    if formatter is None:
        return
    html = formatter.formatters["text/html"]
    html.for_type_by_name("nanlab.trace", "Trace", _trace_html)
    html.for_type_by_name("nanlab.findings.rule", "Finding", _finding_html)
    html.for_type_by_name("nanlab.analysis.loss_scale", "LossScale", _loss_scale_html)
    plain = formatter.formatters["text/plain"]
    plain.for_type_by_name("nanlab.analysis.loss_scale", "LossScale", _loss_scale_text)
    plain.for_type_by_name("nanlab.findings.rule", "Finding", _finding_text)
    plain.for_type_by_name("nanlab.explanations.explanation", "Explanation", _explanation_text)


def _trace_html(trace: Any) -> str:
    """The verdict in one line, and what to type next."""
    from nanlab.views.html import escape
    from nanlab.views.report import verdict

    doors = " · ".join(
        f"<code>.{door}</code>"
        for door in ("report()", "stepper()", "underflow()", "ops", "backward")
    )
    return (
        f"{verdict(trace)}<div"
        f' style="opacity:0.8;font-size:12px">{escape("Look closer: ")}{doors}</div>'
    )


def _finding_html(finding: Finding) -> str:
    from nanlab.views.report import finding_html

    return finding_html(finding)


def _finding_text(finding: Finding, printer: Any, cycle: bool) -> None:
    from nanlab.views.text import as_text

    printer.text(as_text(finding))


def _loss_scale_html(result: LossScale) -> str:
    from nanlab.views.loss_scale import as_html

    return as_html(result)


def _loss_scale_text(result: LossScale, printer: Any, cycle: bool) -> None:
    from nanlab.views.loss_scale import as_text

    printer.text(as_text(result))


def _explanation_text(explanation: Explanation, printer: Any, cycle: bool) -> None:
    printer.text(str(explanation))
