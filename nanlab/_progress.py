"""One line that tells how far a long watched cell has come."""

from __future__ import annotations

import os
import time
from typing import Any

from IPython.display import display

from nanlab.trace.recording import STATUSES, Recording

PATIENCE = 2.0  # seconds before the line appears
PACE = 0.5  # seconds between updates


def is_interactive() -> bool:
    """Whether somebody looks on: a notebook that a Jupyter front end has open, rather than one that is executed in a batch."""
    return "JPY_SESSION_NAME" in os.environ


class Progress:
    """Steps done, operations seen, the worst status so far; gone when the cell ends."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = time.monotonic() + PATIENCE

    def __call__(self, recording: Recording) -> None:
        """Show how far the recording is; cheap where it is not yet time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PACE
        shown = {"text/plain": line(recording)}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def end(self) -> None:
        """Take the line away."""
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
            self._handle = None


def line(recording: Recording) -> str:
    """The line as it reads now."""
    worst = next(
        (s for s in ("turned", "born", "carried", "healed") if STATUSES.index(s) in recording.status.values()), "ok"
    )
    steps = len(recording.starts) - 1
    done = "1 step" if steps == 1 else f"{steps:,} steps"
    return f"nanwatch: {done}, {recording.end:,} results seen, worst status so far: {worst}"
