"""What a notebook shows of nanlab's own objects, in a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.rules import Finding
from nanlab.views import register_formatters


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell.instance()
    made.display_formatter.active_types = ["text/plain", "text/html"]
    register_formatters(made)
    register_formatters(made)
    yield made
    InteractiveShell.clear_instance()


def finding() -> Finding:
    places = {"phase": "forward", "op": "log", "node": 1, "module": "", "step": 0, "file": "a.py", "line": 3}
    return Finding("log-of-zero", "error", "log of 3 zeros", "-inf", **places, source="y = x.log()", symptom="loss-inf")


def test_a_trace_shows_its_verdict_and_its_doors(shell: InteractiveShell) -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.ones(3, requires_grad=True).exp().sum().backward()
    data, _ = shell.display_formatter.format(trace)
    assert "No harmful NaN" in data["text/html"]
    assert "stepper()" in data["text/html"]


def test_a_finding_shows_as_a_card_and_as_text(shell: InteractiveShell) -> None:
    data, _ = shell.display_formatter.format(finding())
    assert "log of 3 zeros" in data["text/html"]
    assert "a.py:3" in data["text/plain"]
    assert "y = x.log()" in data["text/plain"]


def test_a_widget_shows_a_static_view_first_and_itself_below(shell: InteractiveShell) -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.zeros(3, requires_grad=True).sqrt().sum().backward()
    with capture_output() as caught:
        result = shell.run_cell("from IPython.display import display")
        shell.push({"trace": trace})
        result = shell.run_cell("trace.stepper()", silent=False)
    assert result.success
    assert len(caught.outputs) == 2
    static, live = caught.outputs
    assert result.result.fallback in static.data["text/html"]
    assert "SqrtBackward0" in static.data["text/html"]
    assert live.data["application/vnd.jupyter.widget-view+json"]["model_id"] == result.result.model_id
    assert "text/html" in live.data
