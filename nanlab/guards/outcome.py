"""The ending of a guarded run: files, a message on stderr, an exception."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanlab.capture import FaultFound, announce, in_notebook
from nanlab.capture.watching import stopped
from nanlab.errors import NanlabError
from nanlab.paths import path_of, writing
from nanlab.trace import Trace


def outcome(save: str | Path | None) -> Callable[[Trace], None]:
    """A guard's ending: write files, announce the fault, stop the run."""

    def ended(trace: Trace) -> None:
        report = report_of(trace, save)
        culprit = trace.culprit
        stop = stopped(culprit) if culprit is not None else unexplained(trace)
        if not in_notebook():
            kept = "" if save is not None else "; a report is kept with save=DIR"
            kept = f"; report: {report}" if report is not None else kept
            sys.excepthook = _InOneLine(sys.excepthook, kept)
        raise stop

    return ended


def unexplained(trace: Trace) -> FaultFound:
    """The end of a run without a culprit: a line that says why, and one that names the step."""
    place = f" in step {trace.guarded.step:,}" if trace.guarded is not None else ""
    told = "nanlab stopped the program"
    return FaultFound(f"{told}: {headline(trace)}", f"{told}{place}")


def report_of(trace: Trace, save: str | Path | None) -> Path | None:
    """Announce a fault and write its files; the page, or None where there is none."""
    page, failure = None, ""
    if save is not None:
        failure = written(trace, save)
        page = None if failure else Path(save) / f"{file_stem()}.html"
    announce(trace, shown=in_notebook())
    if failure:
        print(f"nanlab: {failure}", file=sys.stderr)
    return page


class _InOneLine:
    """An excepthook that ends a guarded program with one line: its traceback leads through nanlab
    and torch alone."""

    def __init__(self, shown: Any, kept: str) -> None:
        self.shown: Any = shown.shown if isinstance(shown, _InOneLine) else shown
        self.kept = kept  # where its report is

    def __call__(self, kind: Any, error: Any, frames: Any) -> None:
        if not isinstance(error, FaultFound):
            self.shown(kind, error, frames)
            return
        print(f"{error.place or error}{self.kept}", file=sys.stderr)


def folder_of(save: object) -> Path | None:
    """The folder for the files of a fault. Raises TypeMismatchError."""
    return None if save is None else path_of(save, 'save="faults"')


def written(trace: Trace, folder: str | Path) -> str:
    """Write the files of a fault; why that failed, for the fault is told in any case."""
    try:
        write_files(trace, folder)
    except NanlabError as error:
        return str(error)
    except Exception as error:
        return f"nanlab itself failed, and wrote no report ({type(error).__name__}: {error})"
    return ""


def headline(trace: Trace) -> str:
    """The culprit with place and step in one line; for a failed replay, the reason."""
    culprit = trace.culprit
    return str(culprit) if culprit is not None else str(trace.guarded or "no culprit")


def file_stem() -> str:
    """The stem of file names: "nanlab", or "nanlab.rank0" in a process with a rank."""
    rank = os.environ.get("RANK")
    return "nanlab" if rank is None else f"nanlab.rank{rank}"


def write_files(trace: Trace, folder: str | Path) -> Path:
    """Write nanlab.txt, .html and .nanlab (nanlab.rank0.txt, ... with a rank). Raises
    NanlabError."""
    there, stem = Path(folder), file_stem()
    report = trace.report()
    with writing("the report", there):
        there.mkdir(parents=True, exist_ok=True)
        (there / f"{stem}.txt").write_text(f"{report!r}\n", encoding="utf-8")
    report.to_html(there / f"{stem}.html")
    with warnings.catch_warnings(action="ignore"):  # its notes tell what it cannot do
        trace.save(there / f"{stem}.nanlab")
    return there
