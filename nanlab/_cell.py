"""IPython's side of a watched cell: its first line rewritten, its end, its errors, its report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from nanlab._progress import Progress
from nanlab._traceback import shown_traceback
from nanlab.capture import without_ours
from nanlab.trace import Trace

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

CELL_MAGIC = "%%nanwatch"
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
    """Calls ``done(result)`` once when the running cell ends, in whatever way; cells run inside it
    do not count."""

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
            return self.options.model is None and bool(len(trace.backward) or trace.own_findings)
        except Exception:
            return True  # a table that fails is told of by the report


def loses_outputs(shell: InteractiveShell) -> bool:
    """Whether what runs the notebook throws its outputs away where a cell fails, as ``jupyter
    nbconvert --execute`` does without ``--allow-errors``: nobody can be asked for input there."""
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
