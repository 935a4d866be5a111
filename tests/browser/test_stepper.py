"""The backward stepper in JupyterLab: what the user sees, then what the kernel holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

sys.path.insert(0, str(Path(__file__).parent))
from widget_cells import STEPPER, WATCHED

pytestmark = pytest.mark.browser


def opened(notebook: Callable[..., Any]) -> Any:
    nb = notebook(WATCHED, STEPPER, "1 + 1")
    assert nb.run_all()
    expect(nb.out(1).get_by_role("tree", name="Backward graph")).to_be_visible()
    return nb


def test_the_node_it_opens_at_is_in_view(notebook: Callable[..., Any]) -> None:
    deep = """
x = torch.zeros(3, requires_grad=True)
with nanlab.watch(on_fault="record") as deep:
    y = x.sqrt()
    for _ in range(60):
        y = y.mul(1.01)
    y.sum().backward()
"""
    nb = notebook(WATCHED, deep, "deep.stepper()")
    assert nb.run_all()
    tree = nb.out(2).get_by_role("tree", name="Backward graph")
    chosen = tree.get_by_role("treeitem", selected=True)
    expect(chosen).to_contain_text("SqrtBackward0")
    inside, outside = chosen.bounding_box(), tree.bounding_box()
    assert outside["y"] <= inside["y"]
    assert inside["y"] + inside["height"] <= outside["y"] + outside["height"]


def test_each_control_moves_what_is_seen_and_what_the_kernel_holds(
    notebook: Callable[..., Any],
) -> None:
    nb = opened(notebook)
    out = nb.out(1)
    chosen = out.get_by_role("tree", name="Backward graph").get_by_role("treeitem", selected=True)
    expect(chosen).to_contain_text("SqrtBackward0")
    expect(out.get_by_role("region", name="Selected node")).to_contain_text(
        "Born here: a finite gradient came in"
    )
    expect(out.get_by_role("group", name="Source")).to_contain_text(".sqrt()")
    nb.until(
        "[s.row['name'], s.row['status'], s.node == int(s.row['node'])]",
        ["SqrtBackward0", "born", True],
    )

    out.get_by_role("button", name="Next").click()
    expect(chosen).to_contain_text("SumBackward1")
    expect(out.get_by_role("region", name="Selected node")).to_contain_text("Carried")
    nb.until("s.row['name']", "SumBackward1")
    out.get_by_role("button", name="Previous").click()
    nb.until("s.row['name']", "SqrtBackward0")
    slider = out.get_by_role("slider", name="Backward step")
    slider.fill("0")
    expect(chosen).to_contain_text("MeanBackward0")
    nb.until("s.position", 0)
    out.get_by_role("button", name="First bad").click()
    expect(chosen).to_contain_text("SqrtBackward0")
    out.get_by_role("searchbox", name="Find node").fill("relu")
    expect(chosen).to_contain_text("ReluBackward0")
    nb.until("s.row['op']", "relu")
    play = out.get_by_role("button", name="Play")
    before = nb.py("s.position")
    play.click()
    expect(play).to_have_attribute("aria-pressed", "true")
    nb.page.wait_for_timeout(450)
    play.click()
    expect(play).to_have_attribute("aria-pressed", "false")
    nb.until(f"s.position > {before}", True)


def test_python_moves_the_page_too(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    nb.py(code="s.position = 0")
    expect(nb.out(1).get_by_role("treeitem", selected=True)).to_contain_text("MeanBackward0")


def test_the_keyboard_alone_and_the_notebook_keeps_its_cells(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    tree = nb.out(1).get_by_role("tree", name="Backward graph")
    tree.focus()
    for key, name in [
        ("Home", "MeanBackward0"),
        ("ArrowDown", "SqrtBackward0"),
        ("n", "SumBackward1"),
    ]:
        nb.page.keyboard.press(key)
        expect(tree.get_by_role("treeitem", selected=True)).to_contain_text(name)
        nb.until("s.row['name']", name)
    for key in ("a", "d", "d", "x", "b"):
        nb.page.keyboard.press(key)
    nb.page.keyboard.press("/")
    nb.page.keyboard.type("mean")
    expect(tree.get_by_role("treeitem", selected=True)).to_contain_text("MeanBackward0")
    nb.out(1).get_by_role("button", name="Next").focus()
    nb.page.keyboard.press("Enter")
    nb.until("s.position", 1)
    assert nb.js("return w.content.widgets.length") == 3


def test_training_steps_and_backward_passes_can_be_chosen(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    passes = nb.py("s.passes")
    assert [each["step"] for each in passes] == [0, 0, 1, 1]
    nb.until("s.chosen", 3)
    pane = nb.out(1).get_by_role("region", name="Selected node")
    nb.out(1).get_by_label("Backward pass").select_option(index=0)
    expect(pane).to_contain_text("Finite in, finite out")
    nb.until("[s.chosen, int(s.row['step']), len(s.graph['node'])]", [2, 1, passes[2]["nodes"]])
    nb.out(1).get_by_label("Training step").select_option("0")
    expect(nb.out(1).get_by_label("Backward pass")).to_contain_text("1 of 2")
    nb.until("[s.chosen, int(s.row['step'])]", [0, 0])


def test_it_follows_the_dark_theme(
    notebook: Callable[..., Any], theme: Callable[[str], None]
) -> None:
    nb = opened(notebook)
    theme("Dark")
    widget = nb.out(1).locator(".nl-stepper")
    colours = widget.evaluate(
        "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
    )
    lightness = [
        sum(map(float, colour[colour.index("(") + 1 : -1].split(",")[:3])) / 3 for colour in colours
    ]
    assert lightness[0] < 60
    assert lightness[1] > 180


def test_the_static_picture_steps_aside_and_returns_without_a_kernel(
    notebook: Callable[..., Any],
) -> None:
    nb = opened(notebook)
    static = nb.out(1).locator("[class^='nanlab-static']")
    expect(static).to_have_count(1)
    expect(static).to_be_hidden()
    nb.js("await w.context.save()")
    again = nb.js("""const m = jupyterapp.serviceManager.contents, path = 'without_kernel.ipynb';
        await m.save(path, await m.get(w.context.path)); return path;""")
    nb.page.evaluate(
        """path => jupyterapp.commands.execute('docmanager:open', {path, factory: 'Notebook',
           kernelPreference: {shouldStart: false, canStart: false, autoStartDefault: false}}).then(() => 1)""",
        again,
    )
    nb.page.wait_for_function("p => jupyterapp.shell.currentWidget?.context?.path === p", arg=again)
    root = nb.page.locator(f"[id='{nb.page.evaluate('() => jupyterapp.shell.currentWidget.id')}']")
    expect(root.locator("[class^='nanlab-static']")).to_be_visible()
    expect(root.locator("[class^='nanlab-static'] img")).to_be_visible()
    expect(root.locator("[class^='nanlab-static'] table")).to_contain_text("SqrtBackward0")
    assert (
        nb.page.evaluate("() => jupyterapp.shell.currentWidget.context.sessionContext.session")
        is None
    )
    nb.page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")


def test_html_export_opened_from_disk_shows_the_static_picture(
    notebook: Callable[..., Any], browser: Browser, tmp_path: Path
) -> None:
    import nbformat
    from nbconvert import HTMLExporter

    nb = opened(notebook)
    nb.js("await w.context.save()")
    content = nbformat.read(nb.path, as_version=4)
    content.metadata.pop("widgets", None)
    file = tmp_path / "export.html"
    file.write_text(HTMLExporter().from_notebook_node(content)[0])
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(file.as_uri(), wait_until="domcontentloaded")
    expect(page.locator("[class^='nanlab-static']")).to_contain_text("SqrtBackward0")
    assert (
        page.locator("[class^='nanlab-static'] img").evaluate("image => image.naturalWidth") > 300
    )
    context.close()
