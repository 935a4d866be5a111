"""Three tasks that people have, walked through as they would: each takes at most four actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

SETUP = """%load_ext nanlab
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(32, 6)
"""
TWO_FAULTS = """%%nanwatch model -o trace
for i in range(3):
    optimizer.zero_grad()
    h = model(x)
    away = h - (h.detach() if i == 2 else h.detach() + 0.1)
    distance = (away**2).sum(-1).sqrt()
    angle = torch.acos(1 - (away * 2).sum(-1) ** 2)
    (distance.mean() + angle.mean()).backward()
    optimizer.step()
"""
HEALTHY = """%%nanwatch model -o trace
for i in range(3):
    optimizer.zero_grad()
    (1e-6 * model(x)).square().mean().backward()
    optimizer.step()
"""
MOST = 4  # actions
SLOW = 60_000  # milliseconds for fixes on a busy machine


class Person:
    """Acts on a notebook, and counts."""

    def __init__(self, nb: Any) -> None:
        self.nb = nb
        self.actions = 0
        nb.page.evaluate(
            "navigator.clipboard.writeText = async (text) => { window.copied = text; }"
        )

    def run(self, index: int) -> None:
        """Shift+Enter in a cell."""
        self.actions += 1
        self.nb.root.locator(f".jp-Cell[data-windowed-list-index='{index}'] .cm-content").click()
        self.nb.page.keyboard.press("Shift+Enter")

    def press(self, control: Locator) -> None:
        """Press a button."""
        self.actions += 1
        control.click()

    def paste_over(self, index: int) -> None:
        """What was copied in the place of a cell's text: one action to choose all of it, one to
        paste."""
        self.actions += 2
        self.nb.root.locator(f".jp-Cell[data-windowed-list-index='{index}'] .cm-content").click()
        self.nb.page.keyboard.press("Control+A")
        text = self.nb.page.evaluate("window.copied")
        self.nb.js("w.content.widgets[a[0]].model.sharedModel.setSource(a[1])", [index, text])


def test_the_line_is_found_in_one_action(notebook: Callable[..., Any]) -> None:
    nb = notebook(SETUP, TWO_FAULTS)
    assert nb.run(0)
    person = Person(nb)
    person.run(1)
    card = nb.out(1).locator(".nl-live .nl-card").first
    expect(card.locator(".nl-place")).to_be_in_viewport(ratio=1)
    expect(card.locator(".nl-hit")).to_contain_text("angle = torch.acos(")
    assert person.actions == 1
    expect(card.get_by_role("button", name="Copy fix")).to_be_in_viewport(ratio=1, timeout=SLOW)


def test_the_cure_of_two_faults_is_tried_and_applied_in_four_actions(
    notebook: Callable[..., Any],
) -> None:
    nb = notebook(SETUP, TWO_FAULTS)
    assert nb.run(0)
    assert not nb.run(1)
    card = nb.out(1).locator(".nl-live .nl-card").first
    attempt = card.get_by_role("button", name="Try it")
    expect(attempt).to_be_visible(timeout=SLOW)
    expect(card).to_contain_text("Several faults in this step, cured together")
    person = Person(nb)
    person.press(attempt)
    row = card.locator(".nl-tried tr").filter(has_text="gradients not finite")
    expect(row.get_by_role("cell")).to_have_text(
        ["gradients not finite", "4 of 4", "none of 4"], timeout=SLOW
    )
    person.press(card.get_by_role("button", name="Copy the edited cell"))
    nb.page.wait_for_function("() => window.copied")
    person.paste_over(1)
    assert person.actions <= MOST
    assert nb.run(1), "the cell runs to its end"
    assert nb.py("trace.culprit is None and len(trace.steps)") == 3


def test_whether_float16_is_safe_is_told_in_two_actions(notebook: Callable[..., Any]) -> None:
    nb = notebook(SETUP, HEALTHY, "u = trace.underflow(); u")
    assert nb.run(0)
    person = Person(nb)
    person.run(1)
    expect(nb.out(1)).to_contain_text("No harmful NaN or infinity.")
    expect(nb.out(1)).to_contain_text("float16")
    person.run(2)
    readout = nb.out(2).locator(".nl-underflow")
    expect(readout).to_contain_text("flushed to zero")
    expect(readout.get_by_role("checkbox", name="float16", exact=True)).to_be_checked()
    assert person.actions <= MOST
