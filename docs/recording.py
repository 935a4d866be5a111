"""Make docs/images/first-culprit.gif: the three cells of the README, typed and run in JupyterLab.

Run it with ``python docs/recording.py``; it starts a JupyterLab of its own and Chromium, as the
browser tests do.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "images" / "first-culprit.gif"
WIDTH, HEIGHT, SHOWN = 1000, 720, 800  # of the page, and the width of the picture in pixels
COLOURS = 128
LOAD, WATCHED, WALK = re.findall(
    r"^```ipython\n(.*?)\n```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.M
)
MAGIC, LOOP = WATCHED.split("\n", 1)
WALKED = 6  # nodes


def test_recording(notebook: Callable[..., Any], page: Page) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    nb = notebook(LOAD, LOOP, WALK)
    nb.run(0)
    frames: list[tuple[Image.Image, int]] = []  # each with its milliseconds

    def shoot(milliseconds: int) -> None:
        picture = Image.open(io.BytesIO(nb.root.screenshot())).convert("RGB")
        size = (SHOWN, round(picture.height * SHOWN / picture.width))
        frames.append((picture.resize(size, Image.Resampling.LANCZOS), milliseconds))

    editor = nb.root.locator(".jp-Cell[data-windowed-list-index='1'] .cm-content")
    editor.click()
    page.keyboard.press("Control+Home")
    shoot(1200)
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowUp")
    for part in re.findall(r".{1,6}", MAGIC):
        page.keyboard.type(part)
        shoot(140)
    page.keyboard.press("Escape")
    shoot(700)
    nb.run(1)
    expect(nb.out(1)).to_contain_text("sqrt")
    nb.js("await w.content.scrollToItem(1, 'start')")
    page.wait_for_timeout(500)
    shoot(4500)
    nb.run(2)
    stepper = nb.out(2).locator(".nl-stepper")
    stepper.wait_for(state="visible")
    nb.js("await w.content.scrollToItem(2, 'start')")
    page.wait_for_timeout(500)
    shoot(2000)
    for _ in range(WALKED):
        stepper.get_by_role("button", name="Next", exact=True).click()
        page.wait_for_timeout(150)
        shoot(700)
    shoot(2000)
    save(frames)


def save(frames: list[tuple[Image.Image, int]]) -> None:
    """Write the frames with one palette, so that only what changes takes room."""
    width, height = frames[0][0].size
    together = Image.new("RGB", (width, height * len(frames)))
    for i, (picture, _) in enumerate(frames):
        together.paste(picture, (0, i * height))
    palette = together.quantize(COLOURS)
    pictures = [
        picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture, _ in frames
    ]
    times = [milliseconds for _, milliseconds in frames]
    pictures[0].save(
        TARGET, save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True
    )


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
