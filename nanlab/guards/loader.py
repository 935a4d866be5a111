"""``nanlab.guard``: the loop of a long run, with a replay of its bad step under a watch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import nn

from nanlab.capture import Stop
from nanlab.capture.places import Models, is_user, joined
from nanlab.capture.state import Reached, held
from nanlab.errors import NotReplayable, TypeMismatchError, UsageError
from nanlab.guards import loops
from nanlab.guards.engine import Guard
from nanlab.guards.loops import TURNS, Loop, cells_of, loop_at, repeat, value_of
from nanlab.guards.outcome import folder_of, outcome
from nanlab.guards.window import Turn, Window

# functions that hand on the items of what they are given
_HANDING_ON = frozenset(("tqdm", "track", "progress_bar", "alive_it", "iter"))
_ABSENT = object()


class guard:
    """Iterate over this instead of the loader: ``for batch in nanlab.guard(loader, model,
    optimizer): ...``

    Nothing is recorded while the run is healthy; loss and gradients are checked before each
    optimizer step. At a bad one the weights are left alone, and the body of the loop is replayed
    under a full watch, from the same batch, buffers and random states. The run then ends as a
    watched one does: `nanlab.last` is the trace of the replay, `nanlab.last.guarded` names the
    step. It ends by FaultFound, which no `except Exception` catches; a script prints culprit, place
    and first fix to stderr, has no traceback, and exits with status 1.
    A step that a GradScaler skips is no fault where a smaller scale avoids it; one with a bad loss,
    or with gradients that the replay finds bad at any scale, is.

    optimizer: one or several; other optimizers that step are checked too.
    snapshot: steps between copies of parameters and optimizer state, for faults inside the
    optimizer.
    save: a folder for nanlab.txt, nanlab.html and nanlab.nanlab.
    Raises UsageError or TypeMismatchError.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        model: Models | None = None,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
        *,
        snapshot: int | None = None,
        save: str | Path | None = None,
    ) -> None:
        check(snapshot)
        model = joined(model, "nanlab.guard(loader, model, optimizer)")
        if not isinstance(loader, Iterable):
            raise TypeMismatchError(
                f"expected something to iterate over, got {type(loader).__name__}; try:"
                " nanlab.guard(loader, model, optimizer)"
            )
        several = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
        # Accelerate puts it into a wrapper
        several = [getattr(each, "optimizer", each) for each in several]
        for each in several:
            if not hasattr(each, "param_groups"):
                raise TypeMismatchError(f"expected an optimizer, got {type(each).__name__}")
        self.loader = loader
        self._guard = Guard(model, several, snapshot, ended=outcome(folder_of(save)))
        self._model = model
        self._has_late = False  # whether the loop binds what does not come from here
        # whether a function is the user's own, by the id of its code
        self._users: dict[int, tuple[CodeType, bool]] = {}

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __enter__(self) -> NoReturn:
        raise TypeMismatchError(
            "nanlab.guard is no block, but goes around the loader of a loop; try:"
            " for batch in nanlab.guard(loader, model, optimizer): ..."
        )

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator[Any]:
        running = self._guard
        items = iter(self.loader)
        count = 0
        trained = [o for o in running.optimizers.values() if isinstance(o, torch.optim.Optimizer)]
        if not running.done:
            running.step = max([0, *(_steps.get(o, 0) for o in trained)])
        try:
            start(running)
            for item in items:
                self._began(item, count, self._user_frame(sys._getframe(1)))
                yield item
                count += 1
        finally:
            try:
                _steps.update(dict.fromkeys(trained, running.done))
                end(running)
            finally:  # once more, for an interrupt may have ended it
                end(running)

    def _began(self, item: Any, count: int, frame: FrameType | None) -> None:
        if frame is None or self._guard.off:
            return
        if self._has_late:
            self._note_late(frame)
        # not the code itself: its hash goes through all of its constants
        key = (id(frame.f_code), frame.f_lasti)
        window = self._guard.begin(key, lambda: self._window(frame))
        if window is not None:
            # a copy, for the body may take entries out of it
            kept = item.copy() if type(item) in (dict, list) else item
            random = window.reached.random.take()
            self._guard.turn(window, Turn(_head(window, frame), random, (count, kept)))

    def _note_late(self, frame: FrameType) -> None:
        """Note the values that zip() and the like gave the last turn beside guard's item."""
        window = self._guard.last_window((id(frame.f_code), frame.f_lasti))
        names = getattr(window.repeat, "late", ()) if window is not None else ()
        if names and window is not None and window.turns:
            values = frame.f_locals
            window.turns[-1].late = {n: values[n] for n in names if n in values}

    def _user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The nearest frame of the user's code; a progress bar may be in between."""
        while frame is not None:
            code = frame.f_code
            known = self._users.get(id(code))
            if known is None:
                users = is_user(frame) and code.co_name != "<genexpr>"
                known = self._users[id(code)] = (code, users)
            if known[1]:
                break
            frame = frame.f_back
        return frame

    def _window(self, frame: FrameType) -> Window:
        loop, code = None, frame.f_code
        try:
            loop = loop_at(code.co_filename, frame.f_lineno, code.co_name, frame.f_globals)
        except NotReplayable as error:
            self._why = str(error)
        reached = reached_from(loop, frame, self._model, self._guard)
        if loop is None:
            return Window(
                None, _refuse(self._why), lambda other: other.f_code is frame.f_code, reached
            )
        window = loop_window(loop, frame, reached, _given)
        self._has_late = self._has_late or bool(window.repeat.late)  # type: ignore[attr-defined]
        return window


def check(snapshot: Any) -> None:
    """Check the snapshot option. Raises UsageError."""
    if snapshot is not None and (
        isinstance(snapshot, bool) or not isinstance(snapshot, int) or snapshot < 1
    ):
        raise UsageError(
            f"snapshot must be a number of steps, 1 or more, got {snapshot!r}; try: snapshot=50"
        )


def start(running: Guard) -> None:
    """Turn a guard on, and any other off."""
    for other in _running:
        other.stop()
    _running[:] = [running]
    running.start()


def end(running: Guard) -> None:
    running.stop()
    if running in _running:
        _running.remove(running)


_running: list[Guard] = []
# steps of a run in which each epoch has a guard of its own, by its optimizers
_steps: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()


class Loops:
    """Connects the calls at the heads of loops to a guard, in a ``with`` block."""

    def __init__(self, running: Guard, model: nn.Module | None) -> None:
        self.guard, self.model = running, model

    @held()
    def __enter__(self) -> Guard:
        start(self.guard)
        loops.began.append(self._began)
        return self.guard

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is not None and not isinstance(error, Stop):
                self.guard.refused(error, [frame for frame, _ in walk_tb(traceback)])
        finally:
            try:
                self._end()
            finally:  # once more, for an interrupt may have ended it
                self._end()

    def _end(self) -> None:
        if self._began in loops.began:
            loops.began.remove(self._began)
        end(self.guard)

    def _began(self, loop: Loop, frame: FrameType) -> None:
        if self.guard.off:
            return
        window = self.guard.begin(
            (id(frame.f_code), loop.line, loop.column), lambda: self._window(loop, frame)
        )
        if window is not None:
            self.guard.turn(window, Turn(_head(window, frame), window.reached.random.take()))

    def _window(self, loop: Loop, frame: FrameType) -> Window:
        return loop_window(loop, frame, reached_from(loop, frame, self.model, self.guard), _bound)


def reached_from(
    loop: Loop | None, frame: FrameType, model: nn.Module | None, running: Guard
) -> Reached:
    """The modules, optimizers and values that the body of a loop can reach."""
    values = (
        frame.f_locals if loop is None or frame.f_locals is not frame.f_globals else frame.f_globals
    )
    names = loop.read if loop is not None else frozenset(values)
    roots = [values.get(n, frame.f_globals.get(n)) for n in sorted(names)]
    reached = Reached([*roots, model], running.parameters)
    for optimizer in reached.optimizers:
        running.optimizers.setdefault(id(optimizer), optimizer)
    return reached


def loop_window(loop: Loop, frame: FrameType, reached: Reached, given: Any) -> Window:
    """The window of a loop whose source is known."""
    code = frame.f_code
    carried = loop.carried | (loop.stored & reached.global_names)
    again = _Again(loop, carried, given)
    if given is _given and isinstance(loop.node, ast.For):
        again.late = _late_names(loop, list(_known(loop.node.iter, loop.node.target, frame)))
    return Window(
        loop, again, lambda other: other.f_code is code and other.f_lineno in loop.lines, reached
    )


def _head(window: Window, frame: FrameType) -> dict[str, Any]:
    """The variables of a frame that a turn depends on."""
    names = getattr(window.repeat, "names", ())
    if not names:
        return {}
    values = frame.f_locals
    return {n: values[n] for n in names if n in values}


class _Again:
    """Runs the turns of a window again."""

    def __init__(self, loop: Loop, carried: frozenset[str], given: Any) -> None:
        self.loop, self.carried, self.given = loop, carried, given
        self.names = tuple(carried if given is _given else carried.union(loop.targets))
        self.late: list[str] = []

    def __call__(self, window: Window, frame: FrameType | None, turns: Iterator[Turn]) -> None:
        assert frame is not None
        loop, first, values = self.loop, window.turns[0].values, frame.f_locals
        at_head = {n: v for n, v in values.items() if n not in self.carried or n in first}
        at_head.update({n: v for n, v in first.items() if n in self.carried})
        target, items = self.given(loop, turns, frame)
        if values is not frame.f_globals:
            before = {n: c.cell_contents for n, c in _filled_cells(frame)}
            try:
                repeat(loop, frame, at_head, items, target)
            finally:
                try:
                    _fill(frame, before)
                finally:  # once more, for an interrupt may have ended it
                    _fill(frame, before)
            return
        now = {n: values.get(n, _ABSENT) for n in loop.stored} | {TURNS: _ABSENT}
        try:
            _bind(values, {n: at_head.get(n, _ABSENT) for n in self.carried})
            repeat(loop, frame, at_head, items, target)
        finally:
            try:
                _bind(values, now)
            finally:  # once more, for an interrupt may have ended it
                _bind(values, now)


def _fill(frame: FrameType, contents: dict[str, Any]) -> None:
    for name, cell in _filled_cells(frame):
        if name in contents:
            cell.cell_contents = contents[name]


def _filled_cells(frame: FrameType) -> list[tuple[str, Any]]:
    own, free = list(frame.f_code.co_cellvars), list(frame.f_code.co_freevars)
    cells = cells_of(frame, own) | cells_of(frame, free, free=True)
    found = []
    for name, cell in cells.items():
        try:
            _ = cell.cell_contents
        except ValueError:
            continue
        found.append((name, cell))
    return found


def _bind(names: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is _ABSENT:
            names.pop(name, None)
        else:
            names[name] = value


def _bound(loop: Loop, turns: Iterator[Turn], frame: FrameType) -> tuple[ast.expr, Iterator[Any]]:
    """The replay's target and items, from the loop variables kept for each turn."""
    names = loop.targets
    if not names:
        return ast.List([], ast.Store()), (() for _ in turns)  # binds nothing
    target = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
    return target, (tuple(turn.values.get(n) for n in names) for turn in turns)


def _given(loop: Loop, turns: Iterator[Turn], frame: FrameType) -> tuple[ast.expr, Iterator[Any]]:
    """The replay's target and items, from the loader's. Raises NotReplayable if lost."""
    assert isinstance(loop.node, ast.For)
    known = list(_known(loop.node.iter, loop.node.target, frame))
    rest = _late_names(loop, known)
    if changed := [n for n in rest if n in loop.rebound]:
        raise NotReplayable(
            f"the loop variable `{changed[0]}` does not come from guard, and the body binds it"
            " again; use another name in the body"
        )
    window_last = {n: frame.f_locals[n] for n in rest if n in frame.f_locals}

    def items() -> Iterator[Any]:
        for turn in turns:
            late = turn.late if turn.late is not None else window_last
            yield (*(value(turn) for _, value in known), *(late.get(n) for n in rest))

    elements = [*(part for part, _ in known), *(ast.Name(n, ast.Store()) for n in rest)]
    return ast.Tuple(elements, ast.Store()), items()


def _late_names(loop: Loop, known: list[tuple[ast.expr, Any]]) -> list[str]:
    """Loop variables bound to something other than guard's items."""
    given = {n.id for part, _ in known for n in ast.walk(part) if isinstance(n, ast.Name)}
    return [n for n in loop.targets if n not in given]


def _known(
    expression: ast.expr, target: ast.expr, frame: FrameType
) -> Iterator[tuple[ast.expr, Callable[[Turn], Any]]]:
    """Parts of a loop's target bound to guard's items or numbers, and how to get them."""
    call = expression if isinstance(expression, ast.Call) else None
    called = call.func if call is not None else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if any(isinstance(part, ast.Starred) for part in parts):
        parts = []
    if name == "guard" or (call is None and isinstance(value_of(expression, frame), guard)):
        yield target, lambda turn: turn.item[1]
    elif call is None or not call.args:
        return
    elif name == "enumerate" and len(parts) == 2:
        start = _start_of(call)
        if start is not None:
            yield parts[0], lambda turn: turn.item[0] + start
        yield from _known(call.args[0], parts[1], frame)
    elif name == "zip" and len(parts) == len(call.args):
        for argument, part in zip(call.args, parts, strict=True):
            yield from _known(argument, part, frame)
    elif name in _HANDING_ON:
        yield from _known(call.args[0], target, frame)


def _start_of(call: ast.Call) -> int | None:
    """The number from which enumerate() counts; None where the source does not tell."""
    given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "start")]
    if not given:
        return 0
    value = given[0].value if isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, int) else None


def _refuse(reason: str) -> Any:
    def refuse(window: Window, frame: FrameType | None, turns: Iterator[Turn]) -> None:
        raise NotReplayable(reason)

    return refuse
