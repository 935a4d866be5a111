"""Make the pictures in docs/images: each view in JupyterLab, light and dark.

Run it with ``python docs/screenshots.py``; it starts a JupyterLab of its own and Chromium, as the
browser tests do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TRAINING = """import torch, nanlab
from torch import nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0) for _ in range(4))
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

torch.manual_seed(0)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [torch.randn(16, 12, 32) for _ in range(8)]
batches[-1][3] = batches[-1][2]          # the last batch holds a pair of equal samples

with nanlab.watch(model, on_fault="record", keep=2) as trace:
    for x in batches:
        optimizer.zero_grad()
        z = model(x).mean(1)
        square = (z[0::2] - z[1::2]).pow(2).sum(-1)
        distance = torch.sqrt(square)
        loss = (1e-3 * (distance - 1).pow(2)).mean()
        loss.backward()
        optimizer.step()
"""
HALF = """torch.manual_seed(0)
head = nn.Linear(64, 32, bias=False)
nn.init.normal_(head.weight, std=1e-6)
head, features = head.half(), (2e-3 * torch.randn(96, 64)).half()
with nanlab.watch(head, on_fault="record", shadow="float32") as half:
    scores = head(features)                          # most of it is flushed to zero
    size = scores.pow(2).mean(-1, keepdim=True)
    (scores * torch.rsqrt(size + 1e-9)).mean().backward()
"""
VIEWS = {
    "report": "trace.report()",
    "stepper": "trace.stepper()",
    "underflow": (
        f"{HALF}u = half.underflow(); u.chosen = ['float16', 'bfloat16', 'float8_e5m2']; u"
    ),
}
SELECTORS = {"report": ".nl-report", "stepper": ".nl-stepper", "underflow": ".nl-underflow"}


@pytest.mark.parametrize("colours", ["Light", "Dark"])
def test_pictures(
    notebook: Callable[..., Any], theme: Callable[[str], None], page: Page, colours: str
) -> None:
    IMAGES.mkdir(exist_ok=True)
    theme(colours)
    page.set_viewport_size({"width": 1280, "height": 1700})
    nb = notebook(TRAINING, *VIEWS.values())
    assert nb.run_all(), nb.out(0).inner_text()
    for number, name in enumerate(VIEWS, start=1):
        nb.js("w.content.activeCellIndex = a; await w.content.scrollToItem(a, 'start')", number)
        shown = nb.out(number).locator(SELECTORS[name]).locator("visible=true").first
        shown.wait_for(state="visible")
        nb.page.wait_for_timeout(300)
        shown.screenshot(path=IMAGES / f"{name}-{colours.lower()}.png")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]
    sys.exit(
        pytest.main(
            [
                __file__,
                "-q",
                "-p",
                "conftest",
                "-p",
                "no:cacheprovider",
                "-c",
                str(ROOT / "pyproject.toml"),
            ]
        )
    )
