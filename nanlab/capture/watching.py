"""A fault that ended a program which nobody looks at: a few lines on stderr, and a failed test."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Literal

import torch
from torch import nn

from nanlab.capture.backward import BackwardRecorder, FunctionRecorder
from nanlab.capture.dispatch import OpRecorder
from nanlab.capture.exception_frames import failure_of, mark
from nanlab.capture.execution import BatchRecorder, EagerCode, is_watched, run_in_thread
from nanlab.capture.folding import fold
from nanlab.capture.naming import note_names
from nanlab.capture.places import Models, ModuleRecorder, SourceLines, joined
from nanlab.capture.program import ProgramRecorder
from nanlab.capture.ranks import Agreement, Kind
from nanlab.capture.sinks import ForwardSinks, note_rejected_value, stalled, updates_apart
from nanlab.capture.steps import StepClock
from nanlab.capture.training import TrainingRecorder
from nanlab.errors import TypeMismatchError, UsageError
from nanlab.trace import Trace
from nanlab.trace.op import BORN, TURNED, location
from nanlab.trace.program import MOST_BEFORE
from nanlab.trace.ranks import ARRIVED, as_sent
from nanlab.trace.recording import Recording


def announce(trace: Trace, shown: bool) -> None:
    """Print culprit, place and first fix to stderr, unless a notebook shows them."""
    fail_test(trace, sys._getframe(1))
    if not shown:
        culprit = trace.culprit
        told = culprit.brief if culprit is not None else str(trace.guarded or "")
        print(f"nanlab: {told}", file=sys.stderr)
    trace.is_read = False


def in_notebook() -> bool:
    """Whether IPython runs the program, and shows what it displays."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def fail_test(trace: Trace, frame: FrameType | None) -> None:
    """Let the test of pytest that is running fail, unless it looks at the trace."""
    if "pytest" not in sys.modules:
        return
    while frame is not None:
        for name in ("pyfuncitem", "self"):
            item = frame.f_locals.get(name)
            manager = getattr(getattr(item, "config", None), "pluginmanager", None)
            if item is not None and manager is not None and hasattr(item, "nodeid"):
                plugin = manager.get_plugin(_StoppedWatches.NAME)
                if plugin is None:
                    plugin = _StoppedWatches()
                    manager.register(plugin, _StoppedWatches.NAME)
                plugin.stopped.append((item.nodeid, trace))
                return
        frame = frame.f_back


class _StoppedWatches:
    """A plugin of pytest, registered when the first watch stops in a test."""

    NAME = "nanlab-stopped-watches"

    def __init__(self) -> None:
        import pytest

        self.stopped: list[tuple[str, Trace]] = []
        # marks the function
        pytest.hookimpl(hookwrapper=True)(type(self).pytest_runtest_makereport)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Turn a passed test, in which a watch stopped that nobody looked at, into a failed one."""
        outcome = yield
        report = outcome.get_result()
        if report.when != "call":
            return
        unread = [
            trace for node, trace in self.stopped if node == item.nodeid and not trace.is_read
        ]
        self.stopped.clear()
        if unread and report.passed:
            culprit = unread[0].culprit
            report.outcome = "failed"
            report.longrepr = (
                "nanlab stopped the program:"
                f" {culprit.brief if culprit is not None else unread[0].guarded}\nA test that"
                ' expects this looks at the trace, or watches with on_fault="record".'
            )


# rows after which a step begins a table of its own, so that short steps share one
CHUNK_ROWS = 4096


class Stop(BaseException):
    """Ends the watched program from inside; no ``Exception``, so no handler catches it."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class FaultFound(Stop):
    """The first harmful fault of a watch with ``on_fault="stop"``."""

    def __init__(self, told: str, place: str = "") -> None:
        super().__init__(told)
        self.place = place  # one line that leaves the reason to the report
        self.has_report = False  # whether the report stands below the line

    def _render_traceback_(self) -> list[str]:
        if not self.place:
            return [str(self)]
        if self.has_report:
            return [self.place]
        return [str(self), "nanlab.last.report() shows why, and the fixes that were tried"]


def stopped(culprit: Any) -> FaultFound:
    """The end of a run at a culprit: a line that says where and why."""
    place = location(culprit.file, culprit.line)
    where = f" at {place}, {culprit.when}" if place else f" in {culprit.when}"
    told = f"nanlab stopped the program{where}"
    return FaultFound(f"{told}: {culprit.title}", told)


class StepsDone(Stop):
    """A watch with ``steps=N`` has seen its N training steps."""

    def __init__(self, steps: int) -> None:
        self.told = f"{steps} training step{'s' if steps > 1 else ''} watched, as asked"
        super().__init__(f"nanlab: {self.told}; the rest of the block was not run")


_current: list[watch] = []  # the watch that is running, if any


def _shown(given: Any) -> str:
    """A value for a message: its text, or its type where that is long."""
    text = repr(given)
    return text if len(text) <= 40 and "\n" not in text else f"a value of {type(given).__name__}"


class watch:
    """Record every operation of a ``with`` block: ``with nanlab.watch(model) as trace: ...``

    model: names the modules by their attribute path; a dict names several models. Without it they
    are named as they run.
    steps: stop after this many training steps.
    keep: keep the full operation table of this many last steps, and of those in which the first
    faults began; another step keeps one summary row.
    on_fault: "stop" ends the block at the first harmful fault (the program goes on after the
    block), "record" goes on.
    budget: bytes of copies that make the kept steps replayable; a tenth of the free memory by
    default, 0 for none.
    detail: "full" summarises every result; "fault" records the operations, looks at loss, gradients
    and parameters, and summarises the kept steps by a replay when one of these turned bad. Losses
    of signal that leave some of a gradient alive are not seen then.
    shadow: torch.float32 (or "float32"): the diagnosis compares each half-precision operation of
    the kept steps with its float32 twin, too.

    The results of the program are the same, bit for bit, with and without a watch.
    Raises UsageError (a wrong value; a watch inside another, in a thread, in a DataLoader worker)
    or TypeMismatchError.
    """

    def __init__(
        self,
        model: Models | None = None,
        *more: Any,
        steps: int | None = None,
        keep: int = 2,
        on_fault: Literal["stop", "record"] = "stop",
        detail: Literal["full", "fault"] = "full",
        shadow: torch.dtype | Literal["float32"] | None = None,
        budget: int | None = None,
        **others: Any,
    ) -> None:
        _refuse(others)
        if more and all(isinstance(each, torch.nn.Module) for each in (model, *more)):
            joined([model, *more], "nanlab.watch(model)")
        if more:
            kinds = (torch.optim.Optimizer, torch.amp.GradScaler)
            seen = ", which is seen without being given" if isinstance(more[0], kinds) else ""
            raise TypeMismatchError(
                "nanlab.watch takes a model by position and options by name, got"
                f" {_shown(more[0])} as well{seen}; try: nanlab.watch(model, steps=10)"
            )
        model = joined(model, "nanlab.watch(model)")
        _check(steps, keep, on_fault, detail, shadow, budget)
        self.model, self.steps, self.keep, self.on_fault = model, steps, keep, on_fault
        self.recording = Recording()
        self.trace = Trace(self.recording)
        self._lines = SourceLines()
        self.recording.places, self.recording.spans = self._lines.places, self._lines.spans
        self._clock = StepClock()
        self._clock.updates_apart = partial(updates_apart, self.recording)
        self._eager = EagerCode(self.recording)
        self.recording.starts = self._clock.starts
        self._ops = OpRecorder(self.recording, self._lines, self._clock)
        if budget != 0:
            self._ops.program = ProgramRecorder(
                self._ops.ledger, self._ops.views, self.recording.program, budget
            )
            self._ops.evidence.program = self._ops.program
            self._ops.program.losing = self._save_evidence
        else:
            self.recording.program.reason = "the watch was given no memory for it (budget=0)"
        self.recording.shadowed = shadow is not None
        self.recording.detail = detail
        self._training = TrainingRecorder(self._ops, self._clock, self.recording.history)
        self._backward = BackwardRecorder(self._ops, self._clock)
        self._functions = FunctionRecorder(self._ops)
        self._batches = BatchRecorder(self._ops)
        self._ungraded = ForwardSinks(self.recording, model, self._ops.source, self._ops.know)
        self._modules = ModuleRecorder(
            model,
            self.recording.modules,
            self._module_called,
            self._training.module_seen,
            self._ungraded.returned,
        )
        # called when a training step has ended
        self.progress: Callable[[Recording], None] = lambda recording: None
        # ends the program at a fault, where it stands
        self.stopping: Callable[[FaultFound], None] = _raise
        # whether a fault that stops the program is told on stderr where no notebook shows it
        self.announces = True
        self.is_shown = False  # whether a notebook shows what the watch found
        self.is_last = True  # whether it becomes nanlab.last
        # whether all processes watch here, also where they share no collective
        self.is_shared = False
        self._judged = 0  # sinks that were judged
        self._named = 0  # sinks at which the program's names were read
        self._looked = 0  # sinks that were looked into, where statistics are put off
        self._broken = False  # whether nanlab itself failed
        self._sound_sinks = 0  # sinks noted before that
        self._agreement = Agreement("")
        self._unheard: Any = None  # a culprit for which no stop could be agreed on yet
        self._wire()

    def note_used_gradients(self) -> None:
        """Take bad gradients of an optimizer for a fault, those written after backward too."""
        self._training.notes_used = True

    def _wire(self) -> None:
        ops, training = self._ops, self._training
        ops.failed, ops.where.step_began = self._failed, self._step_began
        ops.special, ops.wrote, ops.adopt = training.special, training.wrote, training.owner_of
        self.recording.catch_up = training.step_checks.catch_up
        training.step_checks.failed = self._failed
        ops.fault_shown = self._note_names
        training.judge, training.stepping = (
            partial(self._judge, "step"),
            partial(self._judge, "optimizer"),
        )
        self._backward.loss_seen = training.loss_seen
        self._backward.gradient_seen = ops.learned.gradient_seen = training.gradient_seen
        self._modules.failed, self._modules.moved = self._failed, self._module_moved
        self._modules.watched = partial(is_watched, ops)

    def __enter__(self) -> Trace:
        # first: a forked worker inherits the watch of the loop
        if torch.utils.data.get_worker_info() is not None:
            raise UsageError(
                "watch() was called in a DataLoader worker process; watch the training loop instead"
            )
        if threading.current_thread() is not threading.main_thread():
            name = threading.current_thread().name
            raise UsageError(
                f"watch() works in the main thread only, this is thread {name!r}; start the watch"
                " where the loop is started"
            )
        if _current:
            raise UsageError(
                "a watch is already running (they do not nest); leave its `with` block first, or in"
                " a notebook take %%nanwatch off the cell or type: %nanwatch off"
            )
        _current.append(self)
        caller = sys._getframe(1)
        self._agreement = Agreement(
            f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        )
        self.recording.clock.append(time.perf_counter())
        try:
            self._eager.start()
            if self._ops.program is not None:
                self._ops.program.begin(0)
            self._training.start(self.model)
            self._modules.start()
            self._backward.start()
            self._functions.start()
            self._batches.start()
            self._clock.calls.start(caller)
            self._ops.__enter__()
        except Exception as error:  # the program runs all the same, unwatched
            self._undo()
            self._failed(error)
        except BaseException:
            self._undo()
            raise
        return self.trace

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> bool:
        import nanlab

        if self not in _current:
            return False
        self._ops.learned.interrupted()
        self._ops.__exit__(kind, error, tb)
        self._undo()
        try:
            self._ops.learned.end()
            self._finish(error)
        except Exception as ours:
            self._failed(ours)
        finally:
            if self._ops.program is not None:
                self._ops.program.ended()
            self.recording.puts_off = self.recording.pending = False
            self.recording.catch_up = None  # a recorder's would keep the model alive
        if self.is_last and (self.recording.end or nanlab.last is None):
            nanlab.last = self.trace
        if isinstance(error, FaultFound) and self.announces:
            announce(self.trace, self.is_shown)
        elif isinstance(error, StepsDone) and self.announces and not self.is_shown:
            print(error, file=sys.stderr)
        return isinstance(error, Stop)

    def _undo(self) -> None:
        if self in _current:
            _current.remove(self)
        for recorder in (
            *(self._backward, self._functions, self._modules),
            *(self._training, self._batches, self._eager),
        ):
            try:
                recorder.stop()
            except Exception as error:
                self._failed(error)

    def _finish(self, error: BaseException | None) -> None:
        recording = self.recording
        recording.clock.append(time.perf_counter())
        self._ops.collectives.settle()
        if isinstance(error, Exception):
            mark(error, recording)
            recording.escapes.failure = failure_of(error, self._ops.guard, self.model)
        recording.updates_apart = self._clock.makes_new_parameters()
        self._clock.finished(failed=error is not None)
        if not self._broken:
            self._close_last_step(error)
        # what is seen from then on lacks its cause, and what was seen before is not folded away
        if self._broken:
            del recording.sinks[self._sound_sinks :]
            recording.sinks[:] = [s for s in recording.sinks if s.position in recording.bad]
            self._ops.ledger.clear()
            self._agreement.leave()
            return
        fold(
            recording,
            self._ops.ledger,
            self._ops.evidence,
            len(recording.starts) - 1 - self.keep,
            final=True,
        )
        if error is not None and not recording.ended:
            recording.ended = "error"
        self._ops.ledger.clear()
        self._close_ranks(error)

    def _close_last_step(self, error: BaseException | None) -> None:
        recording = self.recording
        self._look_closer(asked=isinstance(error, Exception))
        self._training.step_ended()
        self._ungraded.step_ended()
        self._look_closer()
        if error is not None and not isinstance(error, Stop):
            note_rejected_value(recording, error, recording.escapes.failure)
        self._training.step_checks.catch_up()
        if not recording.passes:
            idle = self._clock.idle
            recording.began = min(
                recording.began, self._clock.first_call if idle else self._ops.where.first_call
            )
            recording.sinks.extend(self._ungraded.sinks(idle))
        elif not recording.sinks:
            recording.sinks.extend(self._training.kept or stalled(recording))

    def _close_ranks(self, error: BaseException | None) -> None:
        """Receive the other processes' findings, and vote no more."""
        recording = self.recording
        shared = self._ops.collectives.seen or self.is_shared
        # a program without training steps has had no vote
        connected = self._agreement.connected or (shared and self._agreement.attach())
        if recording.ranks is None and shared and connected:
            self._share(wait=error is None or isinstance(error, Stop))
        self._tell_unheard()
        self._agreement.leave()

    def _share(self, wait: bool) -> None:
        """Send this process's findings to the others, and receive theirs."""
        recording, agreement = self.recording, self._agreement
        agreement.diagnosing(True)
        try:
            findings = self.trace.own_findings if recording.sinks else []
        finally:
            agreement.diagnosing(False)
        own = next(
            (f for f in findings if f.harmful and f.severity == "error" and f.cause != ARRIVED),
            None,
        )
        arrived = next((f for f in findings if f.cause == ARRIVED), None)
        sent = None if own is None else as_sent(own, agreement.rank)
        rank, world = agreement.rank, agreement.world
        struck = None if arrived is None else self.trace._struck(arrived, rank, world)
        agreement.all_stop = agreement.all_stop or self.is_shared
        recording.ranks = agreement.tell(sent, struck, wait)

    def _tell_unheard(self) -> None:
        """Say why a watch that should have stopped did not."""
        if self._unheard is not None and self.recording.ended != "fault":
            self.recording.notes.append(
                f"rank {self._agreement.rank} found a fault and did not stop, for the others would"
                " have waited for it: not all ranks are watched here, or they were elsewhere in"
                " the program; watch every rank at the same line"
            )

    # -- what the recorders report

    def _module_called(self, module: nn.Module) -> None:
        self._ops.learned.interrupted()
        caller = self._lines.outside(sys._getframe(2))
        if (
            not self._ops.where.in_optimizer and not self._ops.where.in_backward
        ):  # a closure, a checkpoint
            self._ops.where.notice_loop(caller)
        if self._clock.called(caller, module, self.recording.end, self._ops.where.sequence):
            self._ops.where.step_began(self.recording.end)
        self._ops.where.first_call = min(self._ops.where.first_call, self.recording.end)

    def _module_moved(self, path: int, depth: int) -> None:
        self._ops.where.module, self._ops.where.depth = path, depth

    def _step_began(self, position: int) -> None:
        recording = self.recording
        self._ops.learned.end()
        self._look_closer()
        self._training.step_ended()
        self._ungraded.step_ended()
        while len(recording.clock) < len(recording.starts):
            recording.clock.append(time.perf_counter())
        del recording.clock[len(recording.starts) :]
        recording.clock[-1] = time.perf_counter()
        try:
            self._judge("step")
        except FaultFound:
            if recording.starts[-1] == position:
                self._clock.drop_last()  # nothing of this step has run
            raise
        self.progress(recording)
        self._ops.evidence.new_step()
        last = len(recording.starts) - 1 - self.keep
        if self._ops.program is not None:
            self._ops.program.begin(position)
            kept = self._ops.program.kept.forget(
                self.keep,
                recording.starts[max(last, 0)],
                self._clock.begins(self.keep + 1),
                self._held(),
            )
            last = min(last, recording.step_of(kept))
        if position - recording.chunks[-1].start >= CHUNK_ROWS:
            self._training.step_checks.catch_up()
            self._ops.new_chunk(position)
            fold(
                recording,
                self._ops.ledger,
                self._ops.evidence,
                last,
            )
            # some were forgotten, all were judged
            self._judged = min(self._judged, len(recording.sinks))
            self._looked = min(self._looked, len(recording.sinks))
        self._ops.learned.begin()
        if self.steps is not None and len(recording.starts) - self._clock.doubtful() > self.steps:
            recording.ended = "steps"
            self._clock.drop_last()
            self._ops.off = True
            raise StepsDone(self.steps)

    def _save_evidence(self) -> None:
        """Make the operands of harmful guilty calls while their step can be run again."""
        recording = self.recording
        if recording.sinks and not recording.guilty.keys() <= recording.evidence.keys():
            with self._ops.quiet():
                run_in_thread(lambda: len(recording.kept))

    def _look_closer(self, asked: bool = False) -> None:
        """Learn which of the latest rows are bad: fetch statistics that are still on a device, and
        summarise kept steps by replay if something turned bad with statistics put off."""
        recording = self.recording
        if recording.pending:
            with self._ops.quiet():
                run_in_thread(lambda: self.trace.fetch(self._ops.evidence.judge))
        elif not recording.puts_off:
            return
        new = recording.sinks[self._looked :]
        if recording.puts_off and (
            asked or any(s.position in recording.bad for s in new) or self._training.lost_signal()
        ):
            with self._ops.quiet():
                run_in_thread(lambda: self.trace.summarise(self._ops.evidence.judge))
        recording.sinks[self._looked :] = [s for s in new if s.position in recording.bad]
        if recording.puts_off:
            self._looked = len(recording.sinks)

    def _held(self) -> list[tuple[int, int]]:
        """Begin and end of each step that a diagnosis needs: the steps in which the first bad
        values behind a symptom were born or used, the few after the first, in which it may show,
        and, of steps not folded yet, each with a guilty call or a birth."""
        recording, last = self.recording, len(self.recording.starts) - 1
        born = (p for p, status in recording.status.items() if status in (BORN, TURNED))
        steps = {recording.step_of(p) for p in (*recording.guilty, *born) if p >= 0}
        held = recording.whole | {s for s in steps if s >= len(recording.folded)}
        held |= {first + n for first in sorted(steps)[:1] for n in range(MOST_BEFORE + 1)}
        starts = recording.starts
        return [(starts[s], starts[s + 1]) for s in sorted(held) if s < last]

    def _judge(self, kind: Kind, taken: Sequence[int | None] = ()) -> None:
        """Stop the program if a fault has done harm, here or in another process.

        taken: the rows of the gradients that an optimizer is about to use. Others, where the loss
        is scaled, may yet be skipped.
        """
        recording, shared = self.recording, self._agreement.attach()
        self._note_names()
        if self.on_fault != "stop":
            return
        self._look_closer()
        used = not recording.bad.isdisjoint(taken)
        if len(recording.sinks) != self._judged or used:
            self._judged = len(recording.sinks)
            self._unheard = self._culprit(undecided=not used) or self._unheard
        verdict = self._agreement.vote(kind, self._unheard is not None) if shared else "alone"
        if verdict == "go" or (verdict == "alone" and self._unheard is None):
            return
        self._ops.off = True
        self._clock.stopped()
        recording.ended = "fault"
        if verdict == "stop":
            run_in_thread(lambda: self._share(wait=True))
        culprit = run_in_thread(lambda: self.trace.culprit)
        other = FaultFound("nanlab stopped the program: another rank found a fault")
        self.stopping(other if culprit is None else stopped(culprit))

    def _note_names(self) -> None:
        """Read what the program calls its tensors where a fault first shows."""
        recording = self.recording
        if len(recording.sinks) > self._named:
            new, self._named = recording.sinks[self._named :], len(recording.sinks)
            bad = [sink for sink in new if sink.position in recording.bad]
            if bad:
                with self._ops.harmless:
                    note_names(self._ops, sys._getframe(1), bad[0].step_position)

    def _culprit(self, undecided: bool) -> Any:
        self.recording.updates_apart = self._clock.makes_new_parameters()
        self.recording.undecided = undecided
        self._agreement.diagnosing(True)
        try:
            with self._ops.quiet():
                return run_in_thread(lambda: self.trace.culprit)
        finally:
            self._agreement.diagnosing(False)
            self.recording.undecided = False

    def _failed(self, error: Exception) -> None:
        """nanlab itself failed: say so once, disarm, and let the program go on."""
        if self._broken:
            return
        self._broken = self._ops.off = True
        self._sound_sinks = len(self.recording.sinks)
        self.recording.ended = "failed"
        where = traceback.extract_tb(error.__traceback__)
        place = f" at {where[-1].filename.rsplit('/', 1)[-1]}:{where[-1].lineno}" if where else ""
        note = (
            f"nanlab itself failed ({type(error).__name__}: {error}{place}); the program went on,"
            " the rest of it was not watched"
        )
        self.recording.notes.append(note)
        warnings.warn(note, RuntimeWarning, stacklevel=2)


def _raise(stop: FaultFound) -> None:
    try:
        raise stop
    finally:
        del stop  # its traceback leads here: the program's frames would live as long as that ring


def running() -> Recording | None:
    """The recording of the watch that is running."""
    return _current[-1].recording if _current else None


# options of the magic that are said in another way in a script
_ELSEWHERE = {
    "guard": "for batch in nanlab.guard(loader, model, optimizer): ...",
    "snapshot": "for batch in nanlab.guard(loader, model, optimizer, snapshot=50): ...",
    "save": 'trace.save("run.nanlab") or trace.report().to_html("run.html") after the block',
    "output": "with nanlab.watch(model) as trace: ...",
    "quiet": 'on_fault="record", which prints nothing',
}


_REST = ("more", "others")


def _refuse(others: dict[str, Any]) -> None:
    """Name the right way for an option that there is not. Raises TypeMismatchError."""
    for name in others:
        known = [name for name in inspect.signature(watch).parameters if name not in _REST]
        near = ", ".join(difflib.get_close_matches(name, known, 1) or known)
        told = _ELSEWHERE.get(name, near)
        raise TypeMismatchError(f"nanlab.watch has no option {name}; try: {told}")


def _check(steps: Any, keep: Any, on_fault: Any, detail: Any, shadow: Any, budget: Any) -> None:
    for name, value in (("steps", steps), ("keep", keep)):
        if name == "steps" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeMismatchError(
                f"expected a whole number for {name}, got {value!r}; try: {name}=3"
            )
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}; try: {name}=3")
    if budget is not None and (
        isinstance(budget, bool) or not isinstance(budget, int) or budget < 0
    ):
        raise UsageError(f"budget must be a number of bytes, got {budget!r}; try: budget=2**30")
    if on_fault not in ("stop", "record"):
        raise UsageError(f'on_fault must be "stop" or "record", got {on_fault!r}')
    if detail not in ("full", "fault"):
        raise UsageError(f'detail must be "full" or "fault", got {detail!r}')
    if detail == "fault" and budget == 0:
        raise UsageError(
            'detail="fault" replays the step of a fault, which budget=0 leaves no memory for; leave'
            " budget out"
        )
    if shadow not in (None, torch.float32, "float32"):
        raise UsageError(f'shadow must be torch.float32 (or "float32"), got {shadow!r}')
