"""The line that tells how far a long watched cell has come."""

from __future__ import annotations

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.notebook import cell
from nanlab.notebook.cell import Progress, is_interactive, line


def watched(progress: Progress) -> nanlab.Trace:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    watching = nanlab.watch(layer, on_fault="record")
    watching.progress = progress
    with watching as trace:
        for _ in range(4):
            optimizer.zero_grad()
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    return trace


def test_the_line_appears_after_a_while_and_goes_when_the_cell_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    InteractiveShell.instance()
    monkeypatch.setattr(cell, "PATIENCE", 0.0)
    monkeypatch.setattr(cell, "PACE", 0.0)
    progress = Progress()
    with capture_output() as seen:
        progress.begin()
        watched(progress)
        progress.end()
    texts = [output.data["text/plain"] for output in seen.outputs]
    assert texts[0] == "", "its place is made before the cell's own output"
    assert texts[1].startswith("nanwatch: 1 step, ")
    assert texts[-1] == ""


def test_a_short_cell_shows_no_line() -> None:
    InteractiveShell.instance()
    progress = Progress()
    with capture_output() as seen:
        progress.begin()
        watched(progress)
        progress.end()
    assert [output.data["text/plain"] for output in seen.outputs] == [""]


def test_the_line_names_the_worst_status() -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.log(torch.zeros(2)) * 2
    assert line(trace.recording).endswith("worst status so far: born")


def test_a_notebook_that_is_executed_in_a_batch_is_not_interactive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert not is_interactive()
    monkeypatch.setenv("JPY_SESSION_NAME", "lesson.ipynb")
    assert is_interactive()
