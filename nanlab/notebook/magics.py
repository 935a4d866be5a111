"""%nanwatch, %%nanwatch, and the setup by ``%load_ext nanlab``."""

from __future__ import annotations

import ast
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError as LineError  # itself: it prints no subclass in one line
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display
from torch import nn

from nanlab.capture import FaultFound, StepsDone, watch
from nanlab.capture.places import Models
from nanlab.errors import NanlabError
from nanlab.explanations import explain
from nanlab.guards.programs import CellGuard, CellHeads, asks_for_guard
from nanlab.notebook.cell import (
    CELL_MAGIC,
    LINE_FOR_CELL,
    Progress,
    Run,
    Showing,
    UntilCellEnds,
    cell_as_line,
    failing_formatters,
    is_interactive,
    loses_outputs,
)
from nanlab.notebook.completion import matcher
from nanlab.notebook.models import find_model
from nanlab.notebook.options import KEYWORDS, chosen, described, keyword_options, positive, variable
from nanlab.notebook.timed import TimedCells
from nanlab.stats import load_early
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.views import register_formatters
from nanlab.views.html import escape

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell


PATIENCE = 2.0  # seconds that a cell waits for kernels which are loaded
COMMENT = re.compile(r"(^|\s)#.*")
BELOW_THE_FIRST_LINE = CELL_MAGIC[1:]  # the line magic that IPython takes it for there


@magics_class
class NanMagics(Magics):
    """The magics of nanlab, with the armed options and the cell being watched."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.armed: Namespace | None = None
        self.running: Run | None = None
        self.typed = ""  # the cell that runs
        self.loading: Thread | None = None  # loads kernels, and with them sets filters of warnings
        shell.events.register("pre_run_cell", self.before_cell)

    @no_var_expand
    @magic_arguments("nanwatch")
    @argument(
        "model",
        nargs="*",
        help=(
            "one or more models, as a variable or an attribute such as trainer.model; without it,"
            " modules are found as they run. On a line of its own: `off` stops watching, `on`"
            " watches every following cell without a model"
        ),
    )
    @keyword_options
    @argument(
        "--guard",
        action="store_true",
        help=(
            "for long runs, at next to no cost: check only loss and gradients before each optimizer"
            " step, and run the step again under a full watch if one is bad"
        ),
    )
    @argument(
        "--snapshot",
        type=positive,
        metavar="N",
        help=(
            "with --guard: copy parameters and optimizer state every N steps, for faults inside the"
            " optimizer"
        ),
    )
    @argument(
        "-o",
        "--output",
        dest="name",
        type=variable,
        metavar="NAME",
        help="bind the trace to the variable NAME",
    )
    @argument(
        "--save",
        metavar="FILE",
        help=(
            "save the run as a capsule, which nanlab.load() opens anywhere; with the suffix .html,"
            " save the report"
        ),
    )
    @argument("-q", "--quiet", action="store_true", help="show nothing at the end of the cell")
    @line_cell_magic
    def nanwatch(self, line: str, cell: str | None = None) -> None:
        """Watch training for NaN and inf in every operation: forward, backward, mixed precision and
        optimizer.

        %%nanwatch model      watch this cell (on its first line)
        %nanwatch model       watch from here on, in every following cell too
        %nanwatch off         stop watching
        %nanwatch             show what is watched, and the last report again

        The cell runs as it would unwatched: its value, output and errors stay the same.
        """
        # only reached through run_cell_magic(): a typed cell, as this becomes, is rewritten
        if cell is not None:
            typed = f"{CELL_MAGIC} {line}\n{cell}"
            self.shell.run_cell(typed, store_history=False).raise_error()
            return
        words = COMMENT.sub("", line).split()
        if not words:
            self.status()
        elif words == ["off"]:
            self.disarm()
        else:
            self.arm(self.parse(line))

    @no_var_expand
    @line_magic
    def _nanwatch_cell(self, line: str) -> None:
        """Watch the cell with this line; IPython gets it in place of %%nanwatch."""
        self.start(self.parse(line))

    def parse(self, line: str) -> Namespace:
        """The options of a magic line, without comments.

        Raises IPython's UsageError, which prints one line."""
        try:
            options = parse_argstring(self.nanwatch, COMMENT.sub("", line))
        except (LineError, ValueError) as error:
            text = str(error).replace("unrecognized arguments:", "unknown:")
            raise LineError(
                f"{text}; try: %%nanwatch model --steps 10, or %nanwatch? for every option"
            ) from None
        assert isinstance(options, Namespace)
        for name in chosen(options) if options.guard else ():
            raise LineError(
                f"--{name.replace('_', '-')} has no effect with --guard, which records nothing"
                " until a fault; leave one of them out"
            )
        if options.snapshot and not options.guard:
            raise LineError("--snapshot needs --guard; try: %%nanwatch --guard --snapshot 50 model")
        if options.name and options.name in options.model:
            raise LineError(
                f"-o {options.name} would overwrite the model with the trace; try: -o trace"
            )
        return options

    def model(self, options: Namespace) -> Models | None:
        """The chosen model, several by name, or None."""
        try:
            found = {name: find_model(name, self.shell.user_ns) for name in options.model}
        except NanlabError as error:
            raise LineError(str(error)) from None
        return found if len(found) > 1 else next(iter(found.values()), None)

    def start(self, options: Namespace, armed: bool = False) -> None:
        """Watch the running cell until it ends, replacing a watch that already covers it."""
        model, doubled, before = self.model(options), self.running is not None, last()
        if self.running is not None:
            if not self.running.doubled:
                note("this cell was already watched; the last options apply")
            before = self.running.before
            self.abandon()
        try:
            watching = self.watching(model, options)
            progress = Progress()
            if is_interactive() and not options.quiet and not options.guard:
                progress.begin()
                watching.progress = progress
            trace = watching.__enter__()
        except NanlabError as error:
            raise LineError(str(error)) from None
        showing = Showing(self.shell, StepsDone, self.failed)
        showing.__enter__()
        end = UntilCellEnds(self.shell, self.finish)
        self.running = Run(watching, trace, options, showing, end, progress, armed, doubled, before)

    def watching(self, model: Models | None, options: Namespace) -> Any:
        """The watch or guard that the options ask for."""
        if options.guard:
            return CellGuard(model, options.snapshot, self.shell.user_ns)
        watching = watch(model, **{name: getattr(options, name) for name in KEYWORDS})
        watching.is_shown = True
        return watching

    def is_guarded(self, cell: ast.Module) -> bool:
        """Whether a cell that is about to run has, or inherits, ``--guard``."""
        if self.armed is not None and self.armed.guard:
            return True
        return asks_for_guard(cell, ("nanwatch", LINE_FOR_CELL[1:], BELOW_THE_FIRST_LINE))

    def abandon(self) -> None:
        """End the watch of the running cell without a report."""
        if self.running is not None:
            run, self.running = self.running, None
            run.watching.__exit__(None, None, None)
            run.showing.__exit__()
            run.progress.end()
            run.end.cancel()

    def conclude(self) -> bool:
        """End the running cell's watch now; whether there was a report."""
        if self.running is None:
            return False
        self.running.end.cancel()
        return self.finish(None)

    def failed(self, error: BaseException) -> None:
        """End the watch of a failing cell, so that explanation or report joins its traceback."""
        if self.running is None or self.running.end.depth:
            return
        if isinstance(error, FaultFound):
            error.has_report = not self.running.options.quiet
            return
        self.running.end.cancel()
        self.finish(None, error)

    def finish(self, result: ExecutionResult | None, error: BaseException | None = None) -> bool:
        """End the watch with its cell, and show what it found; whether anything was reported."""
        run, self.running = self.running, None
        if run is None:
            return False
        run.showing.__exit__()
        run.progress.end()
        if result is not None:
            error = result.error_in_exec
        run.watching.__exit__(
            type(error) if error else None, error, error.__traceback__ if error else None
        )
        if result is not None and isinstance(error, StepsDone):
            result.error_in_exec = None  # the cell did what it was asked to: Run All goes on
            tell(f"{error.told}; the rest of the cell was not run.")
        crashed = isinstance(error, Exception)
        if crashed and not run.options.quiet and not isinstance(error, LineError):
            self.shown(lambda: explain(error))
        run.trace = run.watching.trace
        telling = run.is_telling
        before = run.before
        if telling and before is not None:
            self.shown(lambda: run.trace.notes.extend(_left_bad(before, run.trace)))
        if run.options.guard and run.trace.guarded is None:
            telling = False
            if not run.options.quiet and not crashed and not run.armed:
                tell(str(run.watching))
        if telling and run.options.name:
            self.shell.user_ns[run.options.name] = run.trace
        if telling and not run.options.quiet:
            self.shown(lambda: report_of(run.trace, crashed))
        if telling and run.options.save:
            self.save(run.trace, run.options)
        if isinstance(error, FaultFound) and loses_outputs(self.shell):
            self.shown(lambda: leave_report(self.shell, run.trace, error))
        if not telling:
            set_last(run.before)
        elif run.armed:
            # now: in a following cell the fixes that are tried would be watched too
            _ = [list(finding.fixes) for finding in run.trace.findings]
        return telling and not run.options.quiet

    def save(self, trace: Trace, options: Namespace) -> None:
        """Save the run as ``--save`` asks; print a note if that fails."""
        path = Path(options.save).expanduser()
        try:
            if path.suffix.lower() == ".html":
                trace.report().to_html(path)
            else:
                trace.save(path)
        except (NanlabError, OSError) as error:
            reason = getattr(error.__cause__ or error, "strerror", None) or error
            retry = f"{options.name or 'nanlab.last'}.save(path)"
            note(f"the run was not saved as {options.save} ({reason}); try: {retry}")

    def shown(self, make: Callable[[], Any]) -> None:
        """Display the result of ``make()``, if any; print a note if that fails."""
        failures: list[BaseException] = []
        with failing_formatters(self.shell, failures):
            try:
                value = make()
                if value is not None:
                    display(value)
            except Exception as error:
                failures.append(error)
        for failure in failures[:1]:
            note(
                f"the report failed ({type(failure).__name__}: {failure}); the cell itself ran"
                " unchanged"
            )

    def arm(self, options: Namespace) -> None:
        """Watch the rest of this cell, and every following one."""
        if options.model == ["on"]:
            options.model = []
        self.model(options)
        if self.running is None or self.running.armed:
            self.conclude()
            self.start(options, armed=True)
        self.armed = options
        print(
            f"watching the rest of this cell and every following cell{described(options)};"
            " %nanwatch off stops it"
        )

    def below_the_first_line(self, line: str) -> None:
        """Watch the rest of a cell with ``%%nanwatch`` below its first line, with a note."""
        note(
            f"{CELL_MAGIC} belongs on the first line of a cell: only the lines below it are watched"
        )
        self.start(self.parse(line))

    def disarm(self) -> None:
        """Stop watching; in an armed cell the watch ends here."""
        was, self.armed = self.armed, None
        if was is None and self.running is not None:
            note(f"{CELL_MAGIC} ends with its cell; nothing to switch off")
            return
        self.conclude()
        named_off = isinstance(self.shell.user_ns.get("off"), nn.Module)
        hint = "; your model of that name: %nanwatch (off)" if named_off else ""
        print(("no longer watching" if was else "nothing was being watched") + hint)

    def status(self) -> None:
        """Print what is watched; show the last report, in an armed cell up to this line."""
        if self.armed is not None:
            print(f"watching every following cell{described(self.armed)}; %nanwatch off stops it")
            if self.conclude():
                return
        if self.running is not None:
            print("watching this cell; the report comes at its end")
        elif (trace := last()) is not None:
            self.shown(trace.report)
        elif self.armed is None:
            print(f"nothing watched yet; try: {CELL_MAGIC} -o trace")

    def before_cell(self, info: ExecutionInfo) -> None:
        """Start the armed watch of a cell that begins."""
        self.typed = info.raw_cell or ""
        if self.loading is not None:
            self.loading.join(PATIENCE)
            self.loading = None
        if self.armed is None or self.running is not None:
            return
        try:
            self.start(self.armed, armed=True)
        except LineError as error:
            self.armed = None
            note(f"{error} (no longer watching)")

    def forget(self) -> None:
        """Take back everything registered with the shell."""
        if self.armed is not None:
            note("no longer watching, nanlab is unloaded; watch again with: %nanwatch model")
        self.armed = None
        self.abandon()
        self.shell.events.unregister("pre_run_cell", self.before_cell)


def leave_report(shell: Any, trace: Trace, error: FaultFound) -> None:
    """Write the report beside the notebook, and name the file in the message of the failed cell."""
    path = trace.report().to_html("nanlab.html")
    error.args = (f"{error}; report: {path}",)
    shell._last_traceback = [str(error)]  # which the kernel sends


def _left_bad(before: Trace, trace: Trace) -> list[str]:
    """A note where a parameter began the fault that the watch before left bad."""
    found, culprit = trace.culprit, before.culprit
    if found is None or culprit is None:
        return []
    last = before.parameters[before.parameters["step"] == before.parameters["step"].max()]
    held = (last["value_nan"] + last["value_inf"]).gt(0).to_numpy(dtype=bool, na_value=False)
    bad = set(last["parameter"][held])
    if not any(row["op"] == "parameter" and row["module"] in bad for row in found.path):
        return []
    place = location(culprit.file, culprit.line)
    return [
        f"an earlier watched cell left it so: {culprit.title}{f' ({place})' if place else ''}; make"
        " the model anew, or load a checkpoint, once that is mended"
    ]


def report_of(trace: Trace, crashed: bool) -> Any:
    """The report of a run that just ended; its text if nothing was found, none if it crashed."""
    report = trace.report()
    found = trace.culprit is not None or trace.own_findings
    if found or crashed:
        return report if found else None
    tell(repr(report))
    return None


def tell(text: str) -> None:
    """Display text that a page wraps between words."""
    page = "<br>".join(map(escape, text.splitlines()))
    display({"text/plain": text, "text/html": f"<div>{page}</div>"}, raw=True)


def last() -> Trace | None:
    """The most recent trace, whether a magic or a ``with`` block made it."""
    import nanlab

    return nanlab.last


def set_last(trace: Trace | None) -> None:
    """Put back the most recent trace: the run that ended just now does not count."""
    import nanlab

    nanlab.last = trace


def note(text: str) -> None:
    """One line to the user, beside what the cell prints."""
    print(f"nanwatch: {text}", file=sys.stderr)


def load_ipython_extension(ip: InteractiveShell) -> None:
    """What ``%load_ext nanlab`` does: the magics, their completion, and how the notebook shows
    nanlab's objects.

    Loading again replaces what an earlier load registered.
    """
    unload_ipython_extension(ip)
    magics = NanMagics(ip)
    ip.register_magics(magics)
    below: Any = magics.below_the_first_line
    ip.register_magic_function(below, "line", BELOW_THE_FIRST_LINE)
    ip.input_transformers_cleanup.append(cell_as_line)
    ip.ast_transformers.append(CellHeads(magics.is_guarded, lambda: ip.user_ns))
    ip.ast_transformers.append(TimedCells(lambda: magics.typed, lambda: ip.execution_count))
    ip.Completer.custom_matchers.append(matcher())
    register_formatters(ip)
    magics.loading = load_early()  # so that the first watch need not wait for them
    bind_name(ip)


def bind_name(ip: InteractiveShell) -> None:
    """Bind ``nanlab`` where the notebook has no such name: fixes and ``nanlab.last`` need it."""
    if "nanlab" not in ip.user_ns:
        ip.push({"nanlab": sys.modules["nanlab"]})
        print(
            "nanlab is imported; %%nanwatch model on the first line of a cell watches it,"
            " %nanwatch? explains the options"
        )


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """Take back what :func:`load_ipython_extension` registered, but not formatters."""
    magics = ip.magics_manager.registry.pop("NanMagics", None)
    if magics is not None:
        magics.forget()
    for registered in (ip.input_transformers_cleanup, ip.Completer.custom_matchers):
        registered[:] = [
            f for f in registered if not getattr(f, "__module__", "").startswith("nanlab.")
        ]
    ours = CellHeads | TimedCells
    ip.ast_transformers[:] = [t for t in ip.ast_transformers if not isinstance(t, ours)]
    for kind in ("line", "cell"):
        for name in ("nanwatch", LINE_FOR_CELL[1:], BELOW_THE_FIRST_LINE):
            ip.magics_manager.magics[kind].pop(name, None)
