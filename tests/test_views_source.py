"""Source excerpts show what the user typed, not what IPython made of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.notebook.cell import cell_as_line
from nanlab.views.annotated import annotated
from nanlab.views.columns import as_typed, excerpt
from nanlab.views.report import report
from nanlab.views.stepper import stepper, told


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "nanlab")
    yield made
    made.run_line_magic("unload_ext", "nanlab")
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    "line",
    [
        "%time x = 1",
        "x = %who",
        "!ls -l",
        "files = !ls",
        "%%nanwatch model --steps 3",
        "%%nanwatch",
        "    %pwd",
    ],
)
def test_what_ipython_made_of_a_line_is_turned_back(line: str) -> None:
    manager = TransformerManager()
    manager.cleanup_transforms.append(cell_as_line)
    transformed = manager.transform_cell(
        ("if True:\n" if line.startswith(" ") else "") + line
    ).splitlines()[-1]
    assert "get_ipython()" in transformed
    assert as_typed(transformed) == line


@pytest.mark.parametrize(
    "line", ["y = x.log()", "get_ipython().run_line_magic(name, text)", "", "    return 1"]
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert as_typed(line) == line


CELL = """%%nanwatch model -o trace --on-fault record

y = model(torch.ones(1, 2))
(0 * y).sqrt().sum().backward()"""


def test_the_card_shows_the_magic_as_typed_and_the_blank_line(shell: InteractiveShell) -> None:
    with capture_output():
        shell.run_cell("import torch\nmodel = torch.nn.Linear(2, 1)", store_history=True)
        shell.run_cell(CELL, store_history=True)
    trace = shell.user_ns["trace"]
    assert excerpt(trace, trace.culprit.file, 3) == list(enumerate(CELL.splitlines(), start=1))
    page = report(trace)._repr_html_()
    assert "_nanwatch_cell" not in page + stepper(trace).static_html()
    assert [text for _, text in stepper(trace).detail["source"]] == CELL.splitlines()[1:]


def test_a_file_that_is_gone_has_no_excerpt() -> None:
    with nanlab.watch(on_fault="record") as trace:
        pass
    assert excerpt(trace, "no/such/file.py", 3) == []


def test_the_static_picture_tells_the_story_in_the_words_of_the_live_one() -> None:
    import torch

    logits = torch.tensor([[float("inf"), 1.0]], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.log_softmax(logits, -1).sum().backward()
    made = stepper(trace)
    assert made.row is not None
    words = told(trace, made.row)
    assert words.startswith("Carried from forward")
    assert made.detail["story"] == words
    assert words in made.static_html()


def test_infinities_that_were_meant_are_not_counted_as_bad() -> None:
    hidden = torch.tensor([[False, True, True], [True, True, True]])
    with nanlab.watch(on_fault="record") as trace:
        x = torch.ones(2, 3)
        for _ in range(2):
            masked = x.masked_fill(hidden, float("-inf"))  # meant
            x = x + masked.softmax(1)
            y = x.masked_fill(hidden, float("-inf")).softmax(1)  # both
        y.sum()
    (file,) = annotated(trace, trace.culprit)
    lines = {line.text.split("# ")[-1]: line for line in file.lines if line.position >= 0}
    assert (lines["meant"].status, lines["meant"].bad) == ("", 0)
    assert lines["both"].bad == 3
