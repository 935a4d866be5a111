"""Try it: a fix on the recorded step, before and after side by side."""

from __future__ import annotations

import re

import torch
from IPython.core.interactiveshell import InteractiveShell

import nanlab
from nanlab.trace import Trace
from nanlab.views._trying import edited, tried
from nanlab.views.report_widget import ReportView


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


def faulty() -> Trace:
    layer = torch.nn.Linear(3, 2)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.ones(4, 3))
        square = ((h - h.detach()) ** 2).sum(-1)
        square.sqrt().sum().backward()
    return trace


def test_loss_and_gradients_stand_side_by_side() -> None:
    trace = faulty()
    assert trace.culprit is not None
    at = next(i for i, fix in enumerate(trace.culprit.fixes) if "nanlab.safe.sqrt" in fix.code)
    told = text_of(tried(trace, trace.culprit, at))
    assert re.search(r"gradients not finite\s+2 of 2\s+none of 2", told)
    assert "+        nanlab.safe.sqrt(square).sum().backward()" in told


def test_a_fix_that_fails_is_seen_to_fail() -> None:
    trace = faulty()
    assert trace.culprit is not None
    at = next(
        i for i, fix in enumerate(trace.culprit.fixes) if fix.verdict == "fails" and fix.edits
    )
    assert re.search(
        r"gradients not finite\s+2 of 2\s+2 of 2", text_of(tried(trace, trace.culprit, at))
    )


def test_a_fix_that_cannot_be_written_into_the_program_says_why_it_was_not_tried() -> None:
    trace = faulty()
    found = trace.culprit
    assert found is not None
    found.fixes.append(nanlab.rules.Fix("another rate", "lr=0.1"))
    assert (
        text_of(tried(trace, found, len(found.fixes) - 1)).strip().startswith("Not tried: the fix")
    )


def test_the_page_asks_and_is_told() -> None:
    trace = faulty()
    view = ReportView(trace.report())
    view.asked = [0, 0, 1]
    assert (view.tried["finding"], view.tried["fix"]) == (0, 0)
    assert "with the fix" in view.tried["html"]
    view.asked = [7, 0, 2]
    assert view.tried["fix"] == 0, "what is not there is not tried"


def test_the_edited_cell_is_the_cell_with_the_new_line() -> None:
    shell = InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "nanlab")
        lines = [
            "%%nanwatch -q",
            "import torch",
            "x = torch.zeros(3, requires_grad=True)",
            "x.sqrt().sum().backward()",
        ]
        shell.run_cell("\n".join(lines), store_history=True)
        trace = nanlab.last
        assert trace is not None and trace.culprit is not None
        fix = next(i for i, each in enumerate(trace.culprit.fixes) if each.edits)
        text = edited(trace, trace.culprit, fix)
        assert text.splitlines()[:3] == lines[:3]
        assert text.splitlines()[3] == trace.culprit.fixes[fix].edits[0].text
    finally:
        InteractiveShell.clear_instance()
