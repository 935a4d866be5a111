"""The ending of a guarded run: files, a message on stderr, an exception."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nanlab.capture import FaultFound, announce
from nanlab.capture.watching import stopped
from nanlab.trace import Trace


def outcome(save: str | Path | None) -> Callable[[Trace], None]:
    """A guard's ending: write files, announce the fault, stop the run."""

    def ended(trace: Trace) -> None:
        if save is not None:
            write_files(trace, save)
        announce(trace)
        culprit = trace.culprit
        raise (
            stopped(culprit)
            if culprit is not None
            else FaultFound(f"nanlab stopped the program: {headline(trace)}")
        )

    return ended


def headline(trace: Trace) -> str:
    """The culprit with place and step in one line; for a failed replay, the reason."""
    culprit = trace.culprit
    return str(culprit) if culprit is not None else str(trace.guarded or "no culprit")


def file_stem() -> str:
    """The stem of file names: "nanlab", or "nanlab.rank0" in a process with a rank."""
    rank = os.environ.get("RANK")
    return "nanlab" if rank is None else f"nanlab.rank{rank}"


def write_files(trace: Trace, folder: str | Path) -> Path:
    """Write nanlab.txt, .html and .nanlab (nanlab.rank0.txt, ... with a rank)."""
    there, stem = Path(folder), file_stem()
    there.mkdir(parents=True, exist_ok=True)
    report = trace.report()
    (there / f"{stem}.txt").write_text(f"{report!r}\n", encoding="utf-8")
    report.to_html(there / f"{stem}.html")
    trace.save(there / f"{stem}.nanlab")
    return there
