"""The underflow explorer in JupyterLab: what the user sees, then what the kernel holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

sys.path.insert(0, str(Path(__file__).parent))
from widget_cells import UNDERFLOW, WATCHED

pytestmark = pytest.mark.browser


def opened(notebook: Callable[..., Any]) -> Any:
    nb = notebook(WATCHED, UNDERFLOW)
    assert nb.run_all()
    expect(nb.out(1).get_by_role("slider", name="Loss scale (log2)")).to_be_visible()
    return nb


def test_each_control_changes_the_readout_and_the_kernel(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    out = nb.out(1)
    readout = out.get_by_role("status", name="Shares")
    flushed = readout.get_by_role("row").nth(1).get_by_role("cell").first
    expect(flushed).to_contain_text("100 %")
    assert nb.py("[int(n) for n in u.shares.loc['float16', ['zero', 'numel']]]")[0] > 0

    out.get_by_role("slider", name="Loss scale (log2)").fill("40")
    expect(flushed).to_contain_text("0 %")
    nb.until("u.log2_scale", 40)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        out.get_by_role("checkbox", name=name, exact=True).check()
    expect(readout.get_by_role("row")).to_have_count(5)
    nb.until("list(u.shares.index)", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
    out.get_by_role("checkbox", name="float16", exact=True).uncheck()
    expect(readout.get_by_role("row")).to_have_count(4)
    out.get_by_label("Tensor").select_option("3")
    nb.until("[u.selected, int(u.row['numel']) >= int(u.shares['numel'].iloc[0])]", [3, True])
    expect(readout).to_contain_text("By replay: the step was run again")
    nb.until("[u.replayed['of'], set(u.shares['by']) == {'replay'}]", [[3, 40], True])
    shown = readout.get_by_role("row").nth(1).get_by_role("cell").first.inner_text()
    assert int(shown.split()[-1].replace(",", "")) == nb.py("int(u.shares['zero'].iloc[0])")


def test_best_scale_is_taken_over(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    nb.out(1).get_by_role("button", name="for this tensor").click()
    nb.until("u.log2_scale == u.tensors[0]['best']['float16'] and u.log2_scale > 0", True)
    nb.out(1).get_by_role("button", name="gradients").click()
    nb.until("u.log2_scale == u.gradients['best']['float16']", True)


def test_the_keyboard_alone_moves_the_loss_scale(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    slider = nb.out(1).get_by_role("slider", name="Loss scale (log2)")
    slider.focus()
    nb.page.keyboard.press("ArrowRight")
    nb.page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "2 to the 2")
    nb.until("u.log2_scale", 2)
    box = nb.out(1).get_by_role("checkbox", name="bfloat16")
    box.focus()
    nb.page.keyboard.press("Space")
    for key in ("d", "d", "a"):
        nb.page.keyboard.press(key)
    nb.until("u.chosen", ["float16", "bfloat16"])
    assert nb.js("return w.content.widgets.length") == 2


def test_python_moves_the_page_too(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    nb.py(code="u.log2_scale = 16")
    expect(nb.out(1).get_by_role("slider", name="Loss scale (log2)")).to_have_value("16")


def test_it_follows_the_dark_theme(
    notebook: Callable[..., Any], theme: Callable[[str], None]
) -> None:
    nb = opened(notebook)
    theme("Dark")
    colour = (
        nb.out(1)
        .locator(".nl-underflow")
        .evaluate("node => getComputedStyle(node).backgroundColor")
    )
    assert sum(map(float, colour[colour.index("(") + 1 : -1].split(",")[:3])) / 3 < 60


def test_a_static_picture_is_left_behind(notebook: Callable[..., Any]) -> None:
    nb = opened(notebook)
    static = nb.out(1).locator("[class^='nanlab-static']")
    expect(static).to_be_hidden()
    assert static.locator("img").count() == 1
    assert static.locator("table tr").count() > 5
