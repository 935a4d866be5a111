"""%%nanwatch in JupyterLab: what the user sees, then what the kernel holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

SETUP = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(4)]
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    optimizer.step()
"""
HEALTHY = LOOP.format(loss="((model(x) - y) ** 2).mean()")
FAULTY = LOOP.format(loss="(model(x) - model(x)).norm(dim=1).sqrt().mean()")
TRACEBACK = "[data-mime-type='application/vnd.jupyter.stderr']"


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("colours", ["Light", "Dark"])
def test_fault_stops_the_cell_with_a_report_in_place_of_a_traceback(
    notebook: Callable, theme: Callable[[str], None], tmp_path: Path, colours: str
) -> None:
    theme(colours)
    nb = notebook("%load_ext nanlab\n" + SETUP, "%%nanwatch model -o trace" + FAULTY, "after = 1")
    assert not nb.run_all(), "Run All stops at the fault"
    report = nb.out(1)
    expect(report).to_contain_text("sqrt")
    expect(report).not_to_contain_text("Traceback (most recent call last)")
    report.screenshot(path=tmp_path / f"fault-{colours}.png")
    number = nb.js("return w.content.widgets[1].model.executionCount")
    assert nb.py("[trace.culprit.file, trace.culprit.source]") == [
        f"In[{number}]",
        "loss = (model(x) - model(x)).norm(dim=1).sqrt().mean()",
    ]
    assert nb.py("'after' in globals()") is False
    assert nb.py("trace.culprit.cause") == "sqrt-at-zero"


def test_healthy_cell_keeps_its_value_and_adds_one_line(notebook: Callable) -> None:
    nb = notebook(
        "%load_ext nanlab\n" + SETUP,
        "%%nanwatch model" + HEALTHY + "print('printed'); 6 * 7",
        "after = _",
    )
    assert nb.run_all()
    output = nb.out(1)
    expect(output.locator(".jp-OutputArea-executeResult")).to_contain_text("42")
    expect(output).to_contain_text("printed")
    expect(output.locator("img, table, details")).to_have_count(0)
    expect(output.locator(TRACEBACK)).to_have_count(0)
    assert nb.py("after") == 42


def test_steps_end_the_cell_and_run_all_goes_on(notebook: Callable) -> None:
    nb = notebook(
        "%load_ext nanlab\n" + SETUP, "%%nanwatch model --steps 2 -o trace" + HEALTHY, "after = 1"
    )
    assert nb.run_all()
    expect(nb.out(1).locator(TRACEBACK)).to_have_count(0)
    assert nb.py("[len(trace.steps), after]") == [2, 1]


def test_exception_of_the_users_own_is_shown_as_ever(notebook: Callable) -> None:
    nb = notebook("%load_ext nanlab\n" + SETUP, "%%nanwatch model\nloader[0]\n1 / 0")
    assert not nb.run_all()
    expect(nb.out(1).locator(TRACEBACK).first).to_contain_text("ZeroDivisionError")
    expect(nb.out(1)).to_contain_text("line 3")


def test_interrupt_ends_the_cell_and_reports_what_was_recorded(notebook: Callable) -> None:
    wait = "import time\nfor _ in range(600):\n    time.sleep(0.1)"
    nb = notebook(
        "%load_ext nanlab\n" + SETUP,
        "%%nanwatch model -o trace" + HEALTHY + "print('waiting')\n" + wait,
    )
    nb.run(0)
    nb.js("w.content.activeCellIndex = 1; void jupyterapp.commands.execute('notebook:run-cell')")
    expect(nb.out(1)).to_contain_text("waiting")
    nb.js("await w.context.sessionContext.session.kernel.interrupt()")
    expect(nb.out(1)).to_contain_text("KeyboardInterrupt")
    assert nb.py("len(trace.steps)") == 4


def test_await_and_armed_cells_work(notebook: Callable) -> None:
    nb = notebook(
        "%load_ext nanlab\n" + SETUP,
        "%nanwatch model -o trace",
        "import asyncio\nawait asyncio.sleep(0)" + HEALTHY + "'value'",
        "%nanwatch off",
        "after = 1",
    )
    assert nb.run_all()
    expect(nb.out(1)).to_contain_text("every following cell")
    expect(nb.out(2).locator(".jp-OutputArea-executeResult")).to_contain_text("value")
    assert nb.py("len(trace.steps)") == 4


def test_misuse_is_one_line(notebook: Callable) -> None:
    nb = notebook("%load_ext nanlab\n" + SETUP, "%%nanwatch modle\nran = True")
    assert not nb.run_all()
    expect(nb.out(1)).to_contain_text("try: %%nanwatch model")
    assert len(nb.out(1).inner_text().strip().splitlines()) == 1
    assert nb.py("'ran' in globals()") is False


def test_tab_offers_models_and_options(notebook: Callable) -> None:
    nb = notebook("%load_ext nanlab\n" + SETUP, "%%nanwatch mod")
    nb.run(0)
    editor = nb.root.locator(".jp-Cell[data-windowed-list-index='1'] .cm-content")
    editor.click()
    nb.page.keyboard.press("End")
    nb.page.keyboard.press("Tab")
    expect(nb.page.locator(".jp-Completer-match")).to_have_text(["model"])
    nb.page.keyboard.press("Enter")
    expect(editor).to_have_text("%%nanwatch model")


def test_progress_leaves_a_bar_of_the_cells_own_in_one_piece(notebook: Callable) -> None:
    """A bar is rewritten in place by a carriage return as long as no other output comes in
    between."""
    bar = """%%nanwatch model
import sys, time
for i in range(30):
    train()
    time.sleep(0.1)
    print(f"\\r{i + 1:2d}/30 |{'#' * i}", end="", file=sys.stderr)"""
    train = "\ndef train():" + HEALTHY.replace("\n", "\n    ")
    # the kernel of the tests is bare
    open_in_a_tab = "import os\nos.environ['JPY_SESSION_NAME'] = 'bar.ipynb'\n"
    nb = notebook("%load_ext nanlab\n" + SETUP + open_in_a_tab + train, bar)
    nb.run(0)
    nb.js("w.content.activeCellIndex = 1; void jupyterapp.commands.execute('notebook:run-cell')")
    expect(nb.out(1)).to_contain_text("results seen")
    nb.py(code="del os.environ['JPY_SESSION_NAME']")  # when the cell has ended
    expect(nb.out(1)).not_to_contain_text("results seen")
    expect(nb.out(1).locator(TRACEBACK)).to_have_count(1)
    expect(nb.out(1).locator(TRACEBACK)).to_contain_text("30/30")
    assert nb.out(1).inner_text().count("/30") == 1
    assert nb.out(1).locator(".jp-OutputArea-child").first.bounding_box() is None, (
        "the empty line takes no room"
    )


def test_a_crash_shows_what_it_means_and_then_the_users_own_lines(
    notebook: Callable, tmp_path: Path
) -> None:
    nb = notebook(
        "%load_ext nanlab\n" + SETUP, "%%nanwatch model\nfor x, y in loader:\n    model(x.T)"
    )
    assert not nb.run_all()
    nb.out(1).screenshot(path=tmp_path / "crash.png")
    text = nb.out(1).inner_text()
    assert text.index("features, its input has") < text.index("RuntimeError")
    assert "No harmful" not in text and "_nanwatch_cell" not in text
    assert "frames of torch folded" in text
    assert len(text.splitlines()) < 40
