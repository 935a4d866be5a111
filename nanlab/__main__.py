"""The command line: ``python -m nanlab run [--guard] [--save DIR] train.py ...`` and ``show``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from nanlab.capture import without_ours
from nanlab.errors import NanlabError
from nanlab.guards import programs
from nanlab.guards.outcome import file_stem, headline, written
from nanlab.trace import Trace

FAULT = 3  # exit status of a program in which a fault was found
USAGE = 2
NOTHING_SEEN = (
    "nanlab: no training step was seen, so nothing was checked; threads and processes started by"
    " the program are not watched"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except NanlabError as error:
        print(f"nanlab: {error}", file=sys.stderr)
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nanlab", description="Find the line where a NaN was born."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run a training script under a watch",
        description=(
            f"Run a script or a module as python would. Exit status {FAULT} and one line on stderr"
            " at a fault, its own otherwise."
        ),
        usage=(
            "%(prog)s [--guard | --detail fault] [--save DIR] (script.py | -m package.module)"
            " [ARGS ...]"
        ),
    )
    cheaper = run.add_mutually_exclusive_group()
    cheaper.add_argument(
        "--guard", action="store_true", help="for long runs: watch only the step that fails"
    )
    cheaper.add_argument(
        "--detail",
        choices=["full", "fault"],
        default="full",
        help="fault: summarise only the step of a fault, by a replay",
    )
    run.add_argument(
        "--save",
        metavar="DIR",
        help="at a fault write nanlab.txt, nanlab.html and nanlab.nanlab there",
    )
    run.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module, as python -m",
    )
    run.add_argument(
        "program", nargs=argparse.REMAINDER, help="the script, - for stdin, and its arguments"
    )
    run.set_defaults(command=run_program)
    show = commands.add_parser("show", help="show the report of a saved trace")
    show.add_argument("file", type=Path, help="a .nanlab file")
    show.add_argument("--html", type=Path, metavar="OUT", help="write the report as a page instead")
    show.add_argument(
        "--trusted", action="store_true", help="try fixes anew, which runs source text of the file"
    )
    show.set_defaults(command=show_file)
    return parser


def run_program(options: Any) -> int:
    """``run``: the exit status."""
    words = options.module or options.program
    if words and words[0] == "--":
        del words[0]
    if not words:
        raise NanlabError("expected a script or a module; try: python -m nanlab run train.py")
    program = programs.module(words[0]) if options.module else programs.script(words[0])
    # the program may go to another folder
    folder = None if options.save is None else os.path.abspath(options.save)
    try:
        ended = programs.run(program, words[1:], options.guard, options.detail)
    except KeyboardInterrupt as interrupt:
        _show(interrupt, program)
        sys.excepthook = _nothing
        raise
    error, fault = ended.error, ended.fault
    if isinstance(error, Exception):
        _show(error, program)
    if fault is not None:
        _outlive_others()
        sys.stdout.flush()
        _tell(fault, options.save, folder)
        return FAULT
    if isinstance(error, SystemExit):
        raise error
    if error is None and not ended.steps:
        print(NOTHING_SEEN, file=sys.stderr)
    return 0 if error is None else 1


def _outlive_others() -> None:
    """Let a process of torchrun come to its own end: it terminates all as soon as one has ended."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _show(error: BaseException, program: programs.Program) -> None:
    """Show an exception as Python would, or whoever the program has asked to."""
    error.__traceback__ = _from_program(error.__traceback__, program.file)
    sys.excepthook(type(error), error, error.__traceback__)


def _from_program(frames: TracebackType | None, file: str) -> TracebackType | None:
    """A traceback without what stands above the program; none where it did not come to run."""
    while frames is not None and frames.tb_frame.f_code.co_filename != file:
        frames = frames.tb_next
    return without_ours(frames)


def _nothing(*error: object) -> None:
    """An exception that was shown already."""


def _tell(trace: Trace, shown: str | None, folder: str | None) -> None:
    """The fault in one line, and its files in the folder. Whoever waits at a terminal reads the
    first half while fixes are tried; a log, which ranks may share, gets the line as a whole."""
    told, waits = f"nanlab: {headline(trace)}", sys.stderr.isatty()
    if waits:
        print(end=told, file=sys.stderr, flush=True)
    rest = ""
    try:
        failure = written(trace, folder) if folder is not None else ""
        rest = _remedy(trace)
        files = f"; report: {os.path.join(shown, file_stem())}.html" if shown is not None else ""
        files = f"; {failure}" if failure else files
        rest = rest + files if "\n" not in rest else files + rest
    finally:
        print(rest if waits else told + rest, file=sys.stderr, flush=True)


def _remedy(trace: Trace) -> str:
    """What to write instead: in the line of the fault, or below it where it takes several."""
    culprit, cure = trace.culprit, trace.cure
    if cure is not None and len(cure.fixes) > 1:
        return f"; fix: {cure.brief}"
    if culprit is not None and culprit.fixes:
        first = culprit.fixes[0]
        several = "\n" in first.code
        code = "\n    ".join(["", *first.lines]) if several else first.code
        return f"; {first.head}:{'' if several else ' '}{code}"
    return ""


def show_file(options: Any) -> int:
    """``show``: the exit status."""
    import nanlab

    trace = nanlab.load(options.file, options.trusted)
    if options.html is not None:
        print(trace.report().to_html(options.html))
    else:
        from nanlab.views.text import as_terminal, is_coloured

        print(as_terminal(trace, is_coloured(sys.stdout)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
