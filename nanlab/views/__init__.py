"""Tables, figures, widgets and the report of a trace."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

# what is shown, as which MIME type, by which function of which module here
SHOWN = (
    ("nanlab.trace.Trace", "text/html", "report.trace_html"),
    ("nanlab.findings.rule.Finding", "text/html", "report.finding_html"),
    ("nanlab.findings.rule.Finding", "text/plain", "text.as_text"),
    ("nanlab.findings.rule.Fix", "text/html", "results.fix_html"),
    ("nanlab.rules.cure.Cure", "text/html", "results.cure_html"),
    ("nanlab.program.replay.Replay", "text/html", "results.replay_html"),
    ("nanlab.analysis.difference.Difference", "text/html", "results.difference_html"),
    ("nanlab.analysis.compare.Comparison", "text/html", "results.comparison_html"),
    ("nanlab.analysis.epsilon.EpsilonAdvice", "text/html", "results.epsilon_html"),
    ("nanlab.topics.clipping.Clipping", "text/html", "results.clipping_html"),
    ("nanlab.analysis.loss_scale.LossScale", "text/html", "results.scale_html"),
    ("nanlab.analysis.loss_scale.LossScale", "text/plain", "results.scale_text"),
    ("nanlab.explanations.explanation.Explanation", "text/plain", "explanation.as_text"),
)


def register_formatters(ip: InteractiveShell) -> None:
    """Register IPython formatters for nanlab's objects; idempotent.

    The tables of a trace, its report and its widgets show themselves. A view is imported when
    something is shown.
    """
    if ip.display_formatter is None:
        return
    for shown, mime, function in SHOWN:
        formatter = ip.display_formatter.formatters[mime]
        formatter.for_type_by_name(*shown.rsplit(".", 1), _by(*function.split(".")))


def _by(module: str, name: str) -> Callable[..., Any]:
    """A formatter for IPython: HTML, or text by its printer."""

    def show(shown: Any, printer: Any = None, cycle: bool = False) -> Any:
        text = getattr(import_module(f"nanlab.views.{module}"), name)(shown)
        return text if printer is None else printer.text(text)

    return show
