"""The report and the tables in JupyterLab, and the report as a file opened with the network off."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

sys.path.insert(0, str(Path(__file__).parent))
from widget_cells import WATCHED

pytestmark = pytest.mark.browser
TABLES = "from nanlab.views.tables import as_table\nas_table(trace.ops, 'ops', trace)"


SETUP = """%load_ext nanlab
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(128, 6)
"""
FAULTY = (
    "%%nanwatch model -o trace\n"
    + "# what a long cell begins with\n" * 40
    + """for i in range(3):
    optimizer.zero_grad()
    h = model(x)
    anchor = h.detach() if i == 2 else h.detach() + 1
    square = ((h - anchor) ** 2).sum(-1)
    distance = square.sqrt()
    distance.mean().backward()
    optimizer.step()
"""
)
LINE = 47  # of the root
TRYING = 90_000  # milliseconds at most for the fixes, on a machine that has much else to do


def run_with_keys(nb: Any, index: int) -> Any:
    """Press Shift+Enter in a cell, as its user does; the report's card."""
    editor = nb.root.locator(f".jp-Cell[data-windowed-list-index='{index}'] .cm-content")
    editor.click()
    nb.page.keyboard.press("Shift+Enter")
    card = nb.out(index).locator(".nl-report .nl-card").last
    expect(card).to_be_visible()
    return card


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("colours", ["Light", "Dark"])
def test_headline_place_and_best_fix_are_on_the_screen_after_shift_enter(
    notebook: Callable[..., Any], theme: Callable[[str], None], colours: str
) -> None:
    theme(colours)
    nb = notebook(SETUP, FAULTY)
    assert nb.run(0)
    card = run_with_keys(nb, 1)
    for part in (
        card.locator(".nl-headline"),
        card.locator(".nl-place"),
        card.locator(".nl-fix .nl-code"),
    ):
        expect(part).to_be_in_viewport(ratio=1, timeout=TRYING)
    expect(card.get_by_role("button", name="Copy fix")).to_be_in_viewport(ratio=1)
    expect(card.locator(".nl-place")).to_have_text(
        nb.py("f'{trace.culprit.file}:{trace.culprit.line}'")
    )
    assert nb.py("trace.culprit.line") == LINE
    box = card.bounding_box()
    assert box is not None and box["height"] <= 320
    expect(nb.out(1).locator(".nl-live .nl-more")).not_to_have_attribute("open", "")


def test_copy_fix_puts_the_line_to_write_on_the_clipboard(notebook: Callable[..., Any]) -> None:
    nb = notebook(WATCHED, "trace.report()")
    assert nb.run_all()
    nb.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    button = nb.out(1).locator(".nl-card").get_by_role("button", name="Copy fix")
    button.click()
    expect(nb.out(1).locator(".nl-card").get_by_role("button", name="Copied")).to_be_visible()
    written = nb.page.evaluate("window.copied")
    assert "torch.linalg.vector_norm(" in written
    assert written in nb.out(1).locator(".nl-card .nl-written").last.inner_text()


def test_try_it_runs_the_step_again_with_the_fix(notebook: Callable[..., Any]) -> None:
    nb = notebook(SETUP, FAULTY)
    assert nb.run(0)
    card = run_with_keys(nb, 1)
    card.get_by_role("button", name="Try it").click(timeout=TRYING)
    expect(card.locator(".nl-tried")).to_contain_text("gradients not finite", timeout=TRYING)
    expect(card.locator(".nl-tried")).to_contain_text("none of 4")
    nb.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    card.get_by_role("button", name="Copy the edited cell").click()
    nb.page.wait_for_function("() => window.copied")
    edited = nb.page.evaluate("window.copied")
    assert (
        edited.startswith("%%nanwatch model -o trace")
        and "distance = torch.linalg.vector_norm(" in edited
    )


def test_try_it_says_when_the_kernel_no_longer_has_the_run(notebook: Callable[..., Any]) -> None:
    nb = notebook(WATCHED, "trace.report()")
    assert nb.run_all()
    card = nb.out(1).locator(".nl-live .nl-card")
    expect(card.get_by_role("button", name="Try it")).to_be_enabled(timeout=TRYING)
    nb.js("await w.context.sessionContext.session.kernel.restart()")
    card.get_by_role("button", name="Try it").click()
    expect(card.locator(".nl-tried")).to_contain_text("run the cell again", timeout=8_000)
    expect(card.get_by_role("button", name="Try it")).to_be_enabled()


def test_a_line_of_the_annotated_source_drives_the_other_views_and_python(
    notebook: Callable[..., Any],
) -> None:
    nb = notebook(WATCHED, "trace.report()", "s = trace.stepper(); s", "u = trace.underflow(); u")
    assert nb.run_all()
    out = nb.out(1).locator(".nl-live")
    out.locator(".nl-more > summary").click()
    source = out.get_by_role("region", name="Annotated source")
    chosen = source.get_by_role("option", selected=True)
    line = nb.py("trace.culprit.line")
    expect(chosen).to_contain_text(f"{line} ")
    source.get_by_role("option").filter(has_text="h = model(x)").click()
    nb.until("trace.at.line", line - 1)
    nb.until("int(s.row['line'])", line - 1)
    expect(out.locator(".nl-chosen-line")).to_contain_text(f":{line - 1}")
    expect(nb.out(2).get_by_role("region", name="Selected node")).to_contain_text("h = model(x)")
    source.get_by_role("listbox").press("ArrowDown")
    nb.until("trace.at.line", line)
    nb.py(code="trace.at = trace.ops[trace.ops.op == 'sqrt'].iloc[0]")
    expect(chosen).to_contain_text("sqrt()")
    nb.until("u.row.op", "sqrt")


def test_a_drag_enlarges_a_part_of_the_minimap_and_a_click_there_selects(
    notebook: Callable[..., Any],
) -> None:
    nb = notebook(WATCHED, "trace.report()")
    assert nb.run_all()
    out = nb.out(1).locator(".nl-live")
    out.locator(".nl-more > summary").click()
    frame = out.get_by_role("group", name="Minimap")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box is not None
    mouse, y = nb.page.mouse, box["y"] + box["height"] * 0.9
    mouse.move(box["x"] + box["width"] * 0.25, y)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.75, y)
    mouse.up()
    expect(out.locator(".nl-minimap")).to_have_attribute("data-window", re.compile("^0.2.*,0,1$"))
    frame.click(position={"x": 5, "y": box["height"] - 3})
    nb.until("int(trace.ops.loc[trace.at, 'step'])", 1)
    frame.focus()
    nb.page.keyboard.press("0")
    expect(out.locator(".nl-minimap")).to_have_attribute("data-window", "0,1,0,1")


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_number_leads_to_where_it_came_from(notebook: Callable[..., Any], key: str) -> None:
    nb = notebook(WATCHED, "trace.report()")
    assert nb.run_all()
    out = nb.out(1).locator(".nl-live")
    out.locator(".nl-more > summary").click()
    line = nb.py("trace.culprit.line")
    out.get_by_role("option").filter(has_text="h = model(x)").click()
    nb.until("trace.at.line", line - 1)  # and what the click changes is drawn
    number = out.locator(".nl-chosen-line").get_by_role("button", name="NaN").first
    number.focus()
    nb.page.keyboard.press(key)
    way = out.locator(".nl-whence li")
    expect(way.first).to_contain_text("= NaN")
    expect(way.last).to_contain_text(f":{line}")
    way.last.click()
    nb.until("trace.at.line", line)


def test_the_report_file_opens_from_disk_without_a_network(
    notebook: Callable[..., Any], browser: Browser, tmp_path: Path
) -> None:
    nb = notebook(WATCHED)
    assert nb.run_all()
    path = nb.py(f"str(trace.report().to_html({str(tmp_path / 'report.html')!r}))")
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(Path(path).as_uri())
    expect(page.locator("main .nl-card")).to_contain_text("The derivative of sqrt")
    expect(page.get_by_role("button", name="Copy fix").first).to_be_visible()
    page.locator(".nl-more > summary").click()
    expect(page.get_by_role("region", name="Annotated source")).to_be_visible()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


def test_a_long_table_scrolls_filters_and_sorts(notebook: Callable[..., Any]) -> None:
    nb = notebook(WATCHED, TABLES)
    assert nb.run_all()
    out = nb.out(1).locator(".nl-browse")
    expect(out.get_by_role("button", name="Trouble first")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(out.locator("tbody td").first).to_contain_text("born")
    out.get_by_role("searchbox", name="Filter").fill("sqrt")
    expect(out.get_by_role("status")).to_contain_text(" of ")
    shown = out.get_by_role("status").inner_text().split()[0]
    texts = "trace.ops[['op', 'source', 'phase', 'status']].astype(str).agg(' '.join, axis=1)"
    assert int(shown) == nb.py(f"int({texts}.str.contains('sqrt').sum())")
    out.get_by_role("searchbox", name="Filter").fill("")
    out.get_by_role("button", name="position").click()
    out.get_by_role("button", name="position").click()
    position = out.locator("tbody tr:nth-child(2) td:nth-child(3)")
    expect(position).to_have_text(nb.py("f'{int(trace.ops.position.min()):,}'"))


def test_a_short_table_is_plain_html(notebook: Callable[..., Any]) -> None:
    nb = notebook(WATCHED, f"{TABLES}.query(\"status == 'born'\")")
    assert nb.run_all()
    html = nb.out(1).locator("[data-mime-type='text/html']")
    expect(html).to_contain_text("born")
    assert html.locator("tbody tr").count() == nb.py("int((trace.ops.status == 'born').sum())")
