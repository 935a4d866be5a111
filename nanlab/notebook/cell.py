"""A watched cell in IPython: magic line, progress, end, traceback, report."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.display import display

from nanlab.capture import without_ours
from nanlab.trace import Trace
from nanlab.trace.op import as_imported
from nanlab.trace.recording import STATUSES, Recording
from nanlab.views.charts import PALETTE, closed, narrowed, pixels

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell


# Progress of a long watched cell, in one line and a small picture above what the cell prints.

PATIENCE = 2.0  # seconds before the line appears
PACE = 0.5  # seconds between updates
ROWS = 40  # steps of the picture
HIDDEN = (
    '<span class="nanlab-no-progress"></span>'
    "<style>.jp-OutputArea-child:has(.nanlab-no-progress) { display: none }</style>"
)


def is_interactive() -> bool:
    """Whether a front end shows the notebook, rather than a batch run."""
    return "JPY_SESSION_NAME" in os.environ


class Progress:
    """The progress line of a long cell: steps, operations, worst status.

    Its display is created, empty, before the cell's first output, so that it never splits a
    progress bar of the cell.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = time.monotonic() + PATIENCE
        self._shown = False

    def begin(self) -> None:
        """Make the display, empty."""
        self._handle = display(bundle(""), raw=True, display_id=True)

    def __call__(self, recording: Recording) -> None:
        """Update the line, if it is time."""
        now = time.monotonic()
        if now < self._next or self._handle is None:
            return
        self._next = now + PACE
        self._shown = True
        self._handle.update(bundle(line(recording), picture(recording)), raw=True)

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            self._handle.update(bundle(""), raw=True)
        self._handle, self._shown = None, False


def bundle(text: str, drawn: str = "") -> dict[str, str]:
    """The line and its picture as an output; invisible without text."""
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
    seen = {STATUSES[code] for code in recording.status.values()}
    worst = next((s for s in ("turned", "born", "carried", "healed") if s in seen), "ok")
    steps = len(recording.starts) - 1
    done = "1 step" if steps == 1 else f"{steps:,} steps"
    return f"nanwatch: {done}, {recording.end:,} results seen, worst status so far: {worst}"


# The traceback of a watched cell as it is shown: library frames folded, the user's own first
# line.

COLOUR = r"(?:\x1b\[[0-9;]*m)*"  # between any two letters, where IPython paints what it shows
FRAME = re.compile(r"File (?P<path>.+?):(?P<line>\d+), in (?P<function>[^(\n]+)")
FRAME_IN_7 = re.compile(  # of IPython 7
    r"(?P<path>\S+) in (?P<function>\w+)\([^\n]*\n(?:[^\n]*\n)*?-+> (?P<line>\d+)"
)
STANDARD = Path(sysconfig.get_paths()["stdlib"])
CALL = "get_ipython().run_line_magic('_nanwatch_cell', "
CELL_MAGIC = "%%nanwatch"
OURS = re.compile(
    COLOUR.join(map(re.escape, CALL)) + rf"{COLOUR}(?P<options>'[^']*'|\"[^\"]*\"){COLOUR}\)"
)


def shown_traceback(parts: Iterable[str]) -> list[str]:
    """The parts of a traceback as IPython gives them, runs of library frames folded to one line."""
    shown: list[str] = []
    for library, group in groupby(parts, library_of):
        run = list(group)
        shown += [folded(library, run)] if library else [own_line(part) for part in run]
    return shown


def library_of(part: str) -> str:
    """The installed package of a frame; "" for the user's own and for no frame."""
    frame = frame_of(part)
    if frame is None:
        return ""
    path = Path(frame["path"]).expanduser()
    if below := as_imported(str(path)):
        return below.partition("/")[0].removesuffix(".py")
    return "Python's library" if path.is_relative_to(STANDARD) else ""


def frame_of(part: str) -> re.Match[str] | None:
    """Path, line and function of a part that shows a frame."""
    return FRAME.match(plain(part)) or FRAME_IN_7.match(plain(part))


def folded(library: str, run: list[str]) -> str:
    """One line for a run of frames of one library, with the last of them."""
    last = frame_of(run[-1])
    assert last is not None
    parts = Path(last["path"]).parts
    start = parts.index(library) + 1 if library in parts else -1
    path = "/".join(parts[start:])
    frames = "1 frame" if len(run) == 1 else f"{len(run)} frames"
    return (
        f"   ... {frames} of {library} folded (%tb shows all), "
        f"the last: {path}:{last['line']}, {last['function'].strip()}"
    )


def own_line(part: str) -> str:
    """A part with ``%%nanwatch`` where the user typed it, rather than the call it becomes."""
    return OURS.sub(lambda match: f"{CELL_MAGIC} {plain(match['options'])[1:-1]}".rstrip(), part)


def plain(text: str) -> str:
    """The text without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# IPython's side of a watched cell: its first line rewritten, its end, its errors, its report.

LINE_FOR_CELL = "%_nanwatch_cell"  # the line magic that watches until its own cell ends


def cell_as_line(lines: list[str]) -> list[str]:
    """Rewrite a leading ``%%nanwatch`` as a line magic, so that line numbers, ``await`` and the
    last value stay right.

    A cell magic below it (``%%time``) goes first. Runs on Tab and on incomplete input too: no side
    effects.
    """
    out = list(lines)
    filled = [i for i, line in enumerate(out) if line.strip()]
    ours = list(takewhile(lambda i: out[i].split()[0] == CELL_MAGIC, filled))
    for i in ours:
        out[i] = LINE_FOR_CELL + out[i].lstrip().removeprefix(CELL_MAGIC)
    below = filled[len(ours) :][:1]
    if ours and below and out[below[0]].startswith("%%"):
        first = out.pop(below[0])
        out.insert(ours[0], first)
    return out


class UntilCellEnds:
    """Calls ``done(result)`` once the running cell ends in any way; inner cells do not count."""

    def __init__(
        self, shell: InteractiveShell, done: Callable[[ExecutionResult | None], object]
    ) -> None:
        self.shell = shell
        self.done = done
        self.depth = 0
        shell.events.register("pre_run_cell", self.enter)
        shell.events.register("post_run_cell", self.leave)

    def enter(self, info: ExecutionInfo) -> None:
        """Note that a cell began inside the running one."""
        self.depth += 1

    def leave(self, result: ExecutionResult | None) -> None:
        """Note that a cell ended; ``result`` is None where an interrupt left none."""
        if self.depth:
            self.depth -= 1
            return
        self.cancel()
        self.done(result)

    def cancel(self) -> None:
        """Forget the cell: ``done`` will not be called."""
        self.shell.events.unregister("pre_run_cell", self.enter)
        self.shell.events.unregister("post_run_cell", self.leave)


class Showing:
    """What a watched cell shows of an exception: nothing of ``signal``, else no frame of nanlab and
    libraries folded.

    failed: called with the exception that ends the cell, before its traceback is shown.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        signal: type[BaseException],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.shell = shell
        self.signal = signal
        self.failed = failed

    def __enter__(self) -> None:
        self.replaced = vars(self.shell).get("showtraceback")  # that another tool had put in place
        self.original = self.shell.showtraceback
        vars(self.shell)["showtraceback"] = self.show

    def show(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        """As ``InteractiveShell.showtraceback``."""
        kind, value, traceback = exc_tuple or sys.exc_info()
        if kind is None or value is None:
            self.original(exc_tuple, *args, **kwargs)
        elif not issubclass(kind, self.signal):
            if kwargs.get("running_compiled_code"):
                self.failed(value)
            # shows the parts of a traceback
            write: Callable[..., object] = self.shell._showtraceback

            def folded(kind: object, error: object, parts: list[str]) -> None:
                write(kind, error, shown_traceback(parts))

            with replaced(self.shell, "_showtraceback", folded):
                self.original((kind, value, without_ours(traceback)), *args, **kwargs)

    def __exit__(self, *exc: object) -> None:
        if vars(self.shell).get("showtraceback") != self.show:
            return  # the cell has put another in its place
        del vars(self.shell)["showtraceback"]
        if self.replaced is not None:
            vars(self.shell)["showtraceback"] = self.replaced


@contextmanager
def replaced(shell: InteractiveShell, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Put a function in the place of a method of the shell."""
    before = vars(shell).get(name)
    vars(shell)[name] = function
    try:
        yield
    finally:
        del vars(shell)[name]
        if before is not None:
            vars(shell)[name] = before


@dataclass
class Run:
    """One watched cell, from its first line to its end."""

    watching: Any  # the context manager of watch(), entered
    trace: Trace
    options: Namespace
    showing: Showing
    end: UntilCellEnds
    progress: Progress
    armed: bool  # whether it was started for the cell, not by it
    doubled: bool  # whether it took the place of a watch of the same cell
    before: Trace | None  # nanlab.last when it began

    @property
    def is_telling(self) -> bool:
        """Whether there is something to report: of an armed watch only where the model was at work,
        or a fault ended the cell.

        A cell that looks at a trace calls operators too; its watch must not take the place of what
        is looked at.
        """
        trace = self.trace
        if not self.armed or trace.recording.ended == "fault":
            return True
        if not trace.recording.end:
            return False
        try:
            if (trace.ops["module"] != "").any() or len(trace.parameters):
                return True
            return not self.options.model and bool(len(trace.backward) or trace.own_findings)
        except Exception:
            return True  # a table that fails is told of by the report


def loses_outputs(shell: InteractiveShell) -> bool:
    """Whether a failing cell loses its outputs, as in ``nbconvert`` without ``--allow-errors``."""
    asked: Any = getattr(shell, "get_parent", dict)()
    content = asked.get("content", {}) if isinstance(asked, dict) else {}
    return (
        "code" in content
        and not content.get("allow_stdin")
        and bool(content.get("stop_on_error", True))
    )


@contextmanager
def failing_formatters(shell: InteractiveShell, failures: list[BaseException]) -> Iterator[None]:
    """Collect what IPython's formatters would print as a traceback when a ``_repr_*_`` raises."""

    def collect(
        exc_tuple: tuple[type[BaseException], BaseException, Any], *_: object, **__: object
    ) -> None:
        failures.append(exc_tuple[1])

    with replaced(shell, "showtraceback", collect):
        yield
