"""What becomes of a fault that guard has found: files, a few lines on stderr, the end of the
run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nanlab.capture import FaultFound, announce
from nanlab.capture.watching import stopped
from nanlab.guards.engine import Guard
from nanlab.trace import Trace


def outcome(save: str | Path | None, announces: bool = True) -> Callable[[Trace, Guard], None]:
    """What a guard does with the trace of a replay: writes the files, tells what was found, stops
    the run."""

    def ended(trace: Trace, guard: Guard) -> None:
        if save is not None:
            write_files(trace, save)
        if announces:
            announce(trace)
        culprit = trace.culprit
        raise (
            stopped(culprit)
            if culprit is not None
            else FaultFound(f"nanlab stopped the program: {headline(trace)}")
        )

    return ended


def headline(trace: Trace) -> str:
    """The culprit, its place and its step in one line; of a replay that failed, why."""
    culprit = trace.culprit
    return str(culprit) if culprit is not None else str(trace.guarded or "no culprit")


def file_stem() -> str:
    """What the names of files begin with: "nanlab", in a process with a rank "nanlab.rank0"."""
    rank = os.environ.get("RANK")
    return "nanlab" if rank is None else f"nanlab.rank{rank}"


def write_files(trace: Trace, folder: str | Path) -> Path:
    """Write nanlab.txt, nanlab.html and nanlab.nanlab; in a process with a rank, nanlab.rank0.txt
    and so on."""
    there, stem = Path(folder), file_stem()
    there.mkdir(parents=True, exist_ok=True)
    report = trace.report()
    (there / f"{stem}.txt").write_text(f"{report!r}\n", encoding="utf-8")
    report.to_html(there / f"{stem}.html")
    trace.save(there / f"{stem}.nanlab")
    return there
