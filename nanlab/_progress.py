"""Progress of a long watched cell, in one line and a small picture above what the cell prints."""

from __future__ import annotations

import os
import time
from typing import Any

from IPython.display import display

from nanlab.trace.recording import STATUSES, Recording
from nanlab.views._charts import pixels
from nanlab.views._minimap import PALETTE, closed, narrowed

PATIENCE = 2.0  # seconds before the line appears
PACE = 0.5  # seconds between updates
ROWS = 40  # steps of the picture
HIDDEN = (
    '<span class="nanlab-no-progress"></span>'
    "<style>.jp-OutputArea-child:has(.nanlab-no-progress) { display: none }</style>"
)


def is_interactive() -> bool:
    """Whether somebody looks on: a notebook that a Jupyter front end has open, rather than one that
    is executed in a batch."""
    return "JPY_SESSION_NAME" in os.environ


class Progress:
    """Steps done, operations seen, the worst status so far; empty until it is time, and when the
    cell has ended.

    Its display is made before the cell's first output: one that came later would cut a progress bar
    of the cell's own in two.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = time.monotonic() + PATIENCE
        self._shown = False

    def begin(self) -> None:
        """Make the display, empty."""
        self._handle = display(bundle(""), raw=True, display_id=True)

    def __call__(self, recording: Recording) -> None:
        """Show how far the recording is; cheap where it is not yet time."""
        now = time.monotonic()
        if now < self._next or self._handle is None:
            return
        self._next = now + PACE
        self._shown = True
        self._handle.update(bundle(line(recording), picture(recording)), raw=True)

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            self._handle.update(bundle(""), raw=True)
        self._handle, self._shown = None, False


def bundle(text: str, drawn: str = "") -> dict[str, str]:
    """One line as an output, a picture below it; without text nothing is to be seen of it."""
    if not text:
        return {"text/html": HIDDEN, "text/plain": ""}
    return {
        "text/html": f'<span style="opacity:0.7;font-size:12px">{text}</span>{drawn}',
        "text/plain": text,
    }


def picture(recording: Recording) -> str:
    """The last steps as the report's minimap draws them; "" before two have ended."""
    found, steps = closed(recording)
    if len(steps) < 2 or not found.shape[1]:
        return ""
    shown = narrowed(found[-ROWS:])
    told = f"steps {steps[-len(shown)]} to {steps[-1]}, a row each"
    return pixels(shown, PALETTE, told, max(16, 2 * len(shown)))


def line(recording: Recording) -> str:
    """The line as it reads now."""
    worst = next(
        (
            s
            for s in ("turned", "born", "carried", "healed")
            if STATUSES.index(s) in recording.status.values()
        ),
        "ok",
    )
    steps = len(recording.starts) - 1
    done = "1 step" if steps == 1 else f"{steps:,} steps"
    return f"nanwatch: {done}, {recording.end:,} results seen, worst status so far: {worst}"
