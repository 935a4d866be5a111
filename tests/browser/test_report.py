"""The report and the tables in JupyterLab, and the report as a file opened with the network off."""

from __future__ import annotations

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


@pytest.mark.parametrize("colours", ["Light", "Dark"])
def test_the_report_shows_culprit_line_and_folds(
    notebook: Callable[..., Any], theme: Callable[[str], None], colours: str
) -> None:
    theme(colours)
    nb = notebook(WATCHED, "trace.report()")
    assert nb.run_all()
    out = nb.out(1)
    expect(out).to_contain_text("Culprit:")
    expect(out).to_contain_text("distance = ((h - (h if i else 0)) ** 2).sum(-1).sqrt()")
    assert nb.py("[trace.culprit.file, trace.culprit.line]") == [nb.py("trace.ops.file.iloc[0]"), 11]
    fold = out.locator("details", has_text="Operations:")
    expect(fold.locator("table").first).to_be_hidden()
    fold.locator("summary").click()
    expect(fold.locator("table").first).to_be_visible()


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
    expect(page.locator("main")).to_contain_text("Culprit:")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


def test_a_long_table_scrolls_filters_and_sorts(notebook: Callable[..., Any]) -> None:
    nb = notebook(WATCHED, TABLES)
    assert nb.run_all()
    out = nb.out(1).locator(".nl-browse")
    expect(out.get_by_role("button", name="Trouble first")).to_have_attribute("aria-pressed", "true")
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
