"""Where one training step ends and the next begins, found without any call from the user."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType
from typing import Literal
from weakref import ref

import torch

from nanlab.capture.places import Path, call_path, is_user, shares_step


@dataclass(frozen=True)
class Loop:
    """A loop in one call of a function, known by the calls around it."""

    outer: tuple[tuple[int, int, str], ...]  # the calls around it
    code: int
    first: int  # its instructions, as byte offsets
    last: int

    def holds(self, path: Path) -> bool:
        """Whether the program stands in the loop."""
        level = len(self.outer)
        if len(path) <= level or tuple(path[:level]) != self.outer:
            return False
        code, at, _ = path[level]
        return code == self.code and self.first <= at <= self.last

    def surrounds(self, other: Loop) -> bool:
        """Whether the other loop runs inside of this one."""
        return self != other and self.holds([*other.outer, (other.code, other.first, "")])


class Loops:
    """The loops in the code of functions, found once for each."""

    def __init__(self) -> None:
        # the code is kept, so that its id() stays its own
        self._known: dict[int, tuple[CodeType, list[tuple[int, int]]]] = {}

    def around(self, before: Path, frame: FrameType | None) -> Loop | None:
        """The innermost loop that holds both moments; None where it cannot be told."""
        now, codes = call_path(frame), _codes(frame)
        shared = 0
        for (code, at, _), (code_now, at_now, _) in zip(before, now, strict=False):
            if code != code_now:
                break
            shared += 1
            if at != at_now:
                break
        for level in reversed(range(shared)):
            low, high = sorted((before[level][1], now[level][1]))
            found = [span for span in self._of(codes[level]) if span[0] <= low and high <= span[1]]
            if found:
                first, last = min(found, key=lambda span: span[1] - span[0])
                return Loop(tuple(now[:level]), id(codes[level]), first, last)
        return None

    def entered(self, before: Path, frame: FrameType | None) -> bool:
        """Whether the program has entered a loop, in a function in which it stood before the
        loop."""
        now, codes = call_path(frame), _codes(frame)
        for (code, at, _), (code_now, at_now, _), own in zip(before, now, codes, strict=False):
            if (code, at) != (code_now, at_now):
                return code == code_now and any(
                    first <= at_now <= last and at < first for first, last in self._of(own)
                )
        return False

    def _of(self, code: CodeType) -> list[tuple[int, int]]:
        if id(code) not in self._known:
            spans: dict[int, int] = {}
            for step in dis.get_instructions(code):
                # that one waits for a coroutine
                if "JUMP_BACKWARD" in step.opname and "NO_INTERRUPT" not in step.opname:
                    spans[step.argval] = max(step.offset, spans.get(step.argval, 0))
            self._known[id(code)] = code, list(spans.items())
        return self._known[id(code)][1]


def _codes(frame: FrameType | None) -> list[CodeType]:
    """What runs, the outermost first."""
    found = []
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return found[::-1]


MOST_TURNS = 32  # an inner loop of more iterations is an epoch, whose iterations are steps

_NAME = re.compile(
    r"_*(?:(?:run|do|one|single|perform)_)?"
    r"(?:train(?:ing)?_?(?:one_|single_|on_)?(?:step|batch|iter(?:ation)?)|step)"
)


class _Mark:
    """Marks a frame in its ``f_trace``, where only debuggers look, to recognise the call again."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        return None


_OUTSIDE = _Mark()  # of a call that was running when the watch began


@dataclass
class StepFunction:
    """What is known of a function that is named like a training step."""

    # positions at which those of its calls began that are a step of their own
    began: list[int] = field(default_factory=list)
    first: int = -1  # position at which its first call began
    last: int = -1  # and its last
    sequence: int = 0  # autograd sequence number at that moment
    calls: int = 0
    backward: bool = False  # whether a graph made in the last call went backward in it
    module: bool = False  # whether a module was called in it
    sure: bool = False  # a call held the backward pass and the optimizer's step
    chosen: bool = False
    # training goes on outside of it: the step of an environment, or of a schedule
    refused: bool = False


class StepCalls:
    """Finds the running call of a function named like a training step; the outermost counts."""

    def __init__(self) -> None:
        self._mark = _Mark()
        self._named: dict[int, StepFunction | None] = {}
        # keeps the code objects alive, so that their id() stays theirs
        self._codes: list[CodeType] = []
        self.functions: list[StepFunction] = []

    def start(self, frame: FrameType | None) -> None:
        """Note calls running already, which are no steps of what is watched."""
        while frame is not None:
            if _NAME.fullmatch(frame.f_code.co_name) and (
                frame.f_trace is None or isinstance(frame.f_trace, _Mark)
            ):
                frame.f_trace = _OUTSIDE
            frame = frame.f_back

    def running(self, frame: FrameType | None) -> tuple[StepFunction | None, FrameType | None]:
        """The outermost step function that is running, and its frame."""
        found, where = None, None
        while frame is not None:
            code = frame.f_code
            function = self._named[id(code)] if id(code) in self._named else self._learn(frame)
            if function is not None and not function.refused and frame.f_trace is not _OUTSIDE:
                found, where = function, frame
            frame = frame.f_back
        return found, where

    def seen(self, frame: FrameType | None) -> StepFunction | None:
        """The step function that is running, where its call was noticed."""
        function, where = self.running(frame)
        return function if self.knows(where) else None

    def knows(self, frame: FrameType | None) -> bool:
        """Whether this call was noticed; while a debugger is at work none is."""
        return frame is not None and frame.f_trace is self._mark

    def is_new(self, frame: FrameType) -> bool:
        """Whether this call is noticed for the first time."""
        if frame.f_trace is self._mark or sys.gettrace() is not None:
            return False
        if frame.f_trace is not None and not isinstance(frame.f_trace, _Mark):
            return False  # a debugger is at work
        frame.f_trace = self._mark
        return True

    def _learn(self, frame: FrameType) -> StepFunction | None:
        code, function = frame.f_code, None
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        # the step of an optimizer
        wrapped = caller.replace("\\", "/").endswith("torch/optim/optimizer.py")
        # the loop may be inside: one call for all steps
        resumed = code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)
        if _NAME.fullmatch(code.co_name) and is_user(frame) and not wrapped and not resumed:
            function = StepFunction()
            self.functions.append(function)
        self._codes.append(code)
        self._named[id(code)] = function
        return function


@dataclass(slots=True, eq=False)
class Boundary:
    """Where a step begins, and what has run since."""

    position: int
    kind: Literal["turn", "left", ""] = ""  # whether a loop came round, or was left
    loop: Loop | None = None  # that came round, or was left
    sequence: int = 0  # autograd sequence number there
    no_grad: bool = False
    # the loop that made it, as long as it may only compute something for the update after it
    computing: Loop | None = None
    sampling: Loop | None = None  # the same of one with backward passes
    before: frozenset[int] = frozenset()  # optimizers that stepped in the step that it ends
    later: bool = False  # whether a function was called again from a later line
    crossed: bool = False  # whether a backward pass has reached over it
    optimizers: frozenset[int] = frozenset()  # that have stepped since
    trained: bool = False  # whether a backward pass has run since, or an optimizer stepped


class StepClock:
    """Boundaries between training steps.

    A step is complete when an optimizer has stepped (or a loss scaler has decided not to); the next
    one begins with the first operation for which the surrounding loop has come round. So two
    optimizers in one iteration share a step, and so do the micro-batches of an accumulated
    gradient. A loop that comes round without an optimizer step (a skipped batch, a program that
    never steps), or a function called again from a later line, makes a *tentative* boundary. It is
    taken back when a later backward reaches over it (time steps of a recurrent loop, a helper that
    updates one network after the other) or adds to gradients that came before it (accumulation),
    and when an optimizer takes gradients that all came before it (replicas that go backward in
    turn, and are stepped together) or has not had its turn before.

    Where a loop whose iterations were steps is left and another optimizer steps, the next step
    began there; but if the loop around both comes round, its iteration was the step (a critic's
    iterations belong to the generator's). If it does not, these were two phases of training. The
    iterations of a loop that only computed something for the update after it are no steps.

    Of a program that has a function for its training step, such as ``train_step``, the calls of it
    are the steps. A name alone proves nothing: an environment and a schedule have a ``step`` too.
    The calls are taken for the steps once one held a backward pass of what it computed, or called a
    module in a program that has no backward pass; what loops inside of them is part of them, and a
    call is a step though the optimizer steps in every fourth only. The function is refused if a
    backward pass runs, or an optimizer steps, outside of it.

    Events are taken as they come, and not kept: without an optimizer, or where a function turns out
    to be no step, boundaries are taken back to the beginning of the watch, so that no log of
    bounded length would tell the steps.
    """

    def __init__(self) -> None:
        self.starts: list[int] = [0]  # position at which each step begins
        self._recent = [Boundary(0)]  # of the last of them
        self._tentative: list[Boundary] = []  # the last of these
        self.calls = StepCalls()
        self.openers: set[int] = set()  # lines with which a call of a step function began
        # boundaries that a loop made inside of a step function
        self._inside: dict[int, StepFunction] = {}
        self._loops = Loops()
        self._inner: set[Loop] = set()  # loops whose iterations are part of a step
        # lines that were found to stand later in the loop than the last event
        self.checked: set[int] = set()
        self.idle = True  # no module was called yet and no gradient asked for
        self.optimizer_seen = self.backward_seen = False
        # where the program stood when the current step was completed
        self._complete: Path | None = None
        # where it stood when it had left the loop whose iterations are steps
        self._outside: Path | None = None
        self._called: Path | None = None  # where the outermost module was last called
        self._without_grad = False  # whether that was under no_grad
        self._module: Callable[[], object] = lambda: None  # that was
        self._took_back = False  # whether a boundary was ever taken back
        # whether iterations without an update compute with the last one's
        self.updates_apart: Callable[[], bool] = lambda: False
        self._updated = -1  # position at which a parameter was last written by hand
        # lowest sequence number of the last backward whose gradients were added to no others
        self._fresh = -1
        self._stepped: frozenset[int] = frozenset()  # optimizers that have stepped in this step
        # what a loop that came round, or a function called again, made since the last of them
        self._newest: Boundary | None = None
        # whether a boundary of a function called from a later line was ever taken back
        self._alternated = False
        # the loop that last came round to a call of the step function
        self._calling: Loop | None = None
        # whether the last that happened was that gradients were asked for, in a program that had
        # trained nothing yet
        self._grad_requested = False

    # -- boundaries

    @property
    def _last(self) -> Boundary:
        return self._recent[-1]

    def _begin(self, new: Boundary, tentative: bool = False) -> None:
        self.starts.append(new.position)
        self._recent.append(new)
        if tentative:
            self._tentative.append(new)
        if len(self._recent) > len(self._tentative) + 4 * MOST_TURNS:
            del self._recent[: 2 * MOST_TURNS]
        self.checked.clear()

    def drop_last(self) -> None:
        """Join the last step to the one before."""
        gone = self._recent.pop()
        self.starts.pop()
        if self._tentative and self._tentative[-1] is gone:
            self._tentative.pop()
        self._last.optimizers |= gone.optimizers
        self._last.trained |= gone.trained

    def _replace(self, starts: Iterable[int]) -> None:
        self.starts[:] = sorted(starts)
        last = self._last
        self._recent = [Boundary(self.starts[-1], optimizers=last.optimizers, trained=last.trained)]
        self._settle()

    def _settle(self) -> None:
        """Confirm all tentative boundaries."""
        self._tentative.clear()
        self._newest, self._stepped = None, frozenset()

    @property
    def certain(self) -> int:
        """The last boundary that is not tentative."""
        return self.starts[-1 - len(self._tentative)]

    def begins(self, last: int) -> int:
        """Where so many of the last steps begin; tentative boundaries do not count."""
        return self.starts[max(len(self.starts) - len(self._tentative) - last, 0)]

    def doubtful(self) -> int:
        """How many of the last boundaries are likely to be taken back."""
        if self._outside is not None and not self._last.trained:
            return 1
        newest = self._newest
        if self._alternated and newest is not None and newest is self._last:
            if newest.later and newest.before:
                return 1
        if self._grad_requested and self._updated < 0 and not self.updates_apart():
            return len(self._tentative)
        inner = self._took_back and self.optimizer_seen
        return sum(b.sequence > self._fresh for b in self._tentative) if inner else 0

    # -- the end

    def stopped(self) -> None:
        """Take back doubtful boundaries, as the program is stopped: they were inner iterations."""
        self._drop_idle_end()
        for _ in range(self.doubtful()):
            self.drop_last()

    def finished(self, failed: bool = False) -> None:
        """The watch ends; ``failed``: by an exception, before which a step may be short."""
        self._drop_idle_end()
        last = self._last
        if not failed and self.backward_seen and last.kind in ("turn", "left"):
            if not last.trained and self._called is None and last.position > 0:
                self.drop_last()  # it reached no module: the loader ran dry
        for function in self.calls.functions:  # of an untrained program
            if self.idle and function.calls > 1 and not function.refused:
                self._choose(function)

    def _drop_idle_end(self) -> None:
        """Take back a step after a loop in which nothing trained, such as an evaluation."""
        if self._last.kind == "left" and not self._last.trained:
            self.drop_last()

    # -- optimizers and backward passes

    def stepping(self, arrived: int, optimizer: int) -> None:
        """An optimizer is about to step; ``arrived``: position of its last gradient, or -1."""
        while arrived >= 0 and self._tentative and self._last.position > arrived:
            self.drop_last()
        newest, self._newest = self._newest, None
        if newest is not None:
            turn = newest.before and optimizer not in newest.before  # each network has its turn
            if turn and newest is self._last and (newest.later or newest.crossed):
                self.drop_last()
                self._alternated |= newest.later
            if newest not in self._recent:
                self._stepped |= newest.before
        self._stepped |= {optimizer}
        self._last.optimizers |= {optimizer}
        self._last.trained = True

    def updated(self, position: int) -> None:
        """A parameter was written by hand: without optimizers, a step lies between such writes."""
        if self.optimizer_seen:
            return
        since = [b for b in self._tentative if b.position > self._updated]
        for _ in since if self._updated < 0 else since[1:]:
            self.drop_last()
        self._updated = position

    def completed(self, frame: FrameType | None) -> None:
        """An optimizer stepped, or a scaler updated its scale."""
        self.optimizer_seen, self.idle = True, False
        stepped = self._stepped
        function = self.calls.seen(frame)
        if function is None:
            self._refuse(lambda other: not other.sure)
        elif function.backward:
            function.sure = True
            self._choose(function)
        self._stepped = stepped  # the step goes on, whatever became of the boundaries before
        self._complete = call_path(frame)
        self._drop_sampling(self._complete)
        self._drop_inner(self._complete)
        self._called, self._outside, self._grad_requested = None, None, False
        self.checked.clear()

    def backward(self, frame: FrameType | None, oldest: int, accumulates: bool) -> None:
        """A backward pass ended; ``oldest`` is the lowest sequence number among its nodes."""
        self._drop_inner(call_path(frame))
        if not self.differentiated(frame, oldest):
            self._refuse(lambda other: not other.chosen)
        self._grad_requested = False
        if not self.backward_seen:
            self.backward_seen = True
            self._take_back(lambda b: b.no_grad or b.sequence > oldest)
        self._take_back(lambda b: b.sequence > oldest)
        if self._newest is not None:
            self._newest.crossed |= self._newest.sequence > oldest
        if accumulates:
            kept = self._first_since_update()
            self._take_back(lambda b: b is not kept and b.sequence > self._fresh)
        else:
            self._fresh = oldest
        self._last.trained = True
        if not self.optimizer_seen:
            self._complete = call_path(frame)
            self.checked.clear()

    def differentiated(self, frame: FrameType | None, oldest: int) -> bool:
        """Note that gradients were asked for; returns whether they are of what a step function
        computed in its call."""
        self.idle = False
        # all that this program may ever ask for
        if not self.backward_seen and not self.optimizer_seen:
            self._complete, self._grad_requested = call_path(frame), True
            self._drop_inner(self._complete)
            self.checked.clear()
        function = self.calls.seen(frame)
        if function is None or oldest < function.sequence:
            return False
        function.backward = True
        return True

    def makes_new_parameters(self) -> bool:
        """Whether each iteration computes with new parameters, made from gradients in the last
        one."""
        return self._grad_requested and self._updated < 0 and self.updates_apart()

    def _first_since_update(self) -> Boundary | None:
        """The boundary after the last update by hand, though gradients accumulate."""
        if self._updated < 0 or self.optimizer_seen:
            return None
        return next((b for b in self._tentative if b.position > self._updated), None)

    def _take_back(self, wrong: Callable[[Boundary], bool]) -> None:
        while self._tentative and wrong(self._last):
            self._took_back = True
            self.drop_last()

    def _drop_inner(self, now: Path) -> None:
        """Take back steps in a loop left before training went on: it only computed for the
        training."""
        self._take_back(lambda b: b.computing is not None and not b.computing.holds(now))

    def _drop_sampling(self, now: Path) -> None:
        """Take back steps of a loop left before the first optimizer steps, if it wrote no
        parameter: it made samples."""
        while self._tentative:
            loop = self._last.sampling
            if loop is None or loop.holds(now) or self._last.position <= self._updated:
                break
            self.drop_last()
        for boundary in self._tentative:
            boundary.sampling = None

    # -- modules and operations

    def called(self, frame: FrameType | None, module: object, position: int, sequence: int) -> bool:
        """An outermost module was called; True if a step begins: its loop's first iteration is
        over."""
        self.idle = False
        if (function := self.calls.seen(frame)) is not None:
            function.module = True
        no_grad = not torch.is_grad_enabled()
        begins = (
            self._called is not None
            and no_grad
            and self._without_grad
            and not self.backward_seen
            and self._complete is None
            and self._module() is module
            and self._loops.entered(self._called, frame)
        )
        if begins:
            self._begin(Boundary(position, sequence=sequence, no_grad=True), tentative=True)
        self._called, self._without_grad, self._module = call_path(frame), no_grad, ref(module)
        self.checked.clear()
        return begins

    def operation(
        self, frame: FrameType | None, position: int, sequence: int, no_grad: bool, line: int = 0
    ) -> bool:
        """Notice an operation outside of every module; True if a new step begins with it."""
        function, where = self.calls.running(frame)
        began = -1  # where the call of a step function began, if it does now
        if function is not None and where is not None and self.calls.is_new(where):
            self.checked.clear()
            self.openers.add(line)
            own = self._call_began(function, position, sequence)
            if function.chosen:
                return own and self._call_is_step(where.f_back, position)
            began = position
        if function is not None and function.chosen and self.calls.knows(where):
            return False
        iterated = self._loop_iterated(frame, position, sequence, no_grad)
        if iterated and function is not None:
            if position != began:
                self._inside[position] = function
            elif position not in function.began[-1:]:
                function.began.append(position)
        return iterated

    def _loop_iterated(
        self, frame: FrameType | None, position: int, sequence: int, no_grad: bool
    ) -> bool:
        """Whether the surrounding loop came round."""
        if self._complete is None and self._called is None:
            return False
        now = call_path(frame)
        new = Boundary(position, sequence=sequence, no_grad=no_grad)
        if self._complete is None:
            assert self._called is not None
            # a rollout: the loop around it need not be under no_grad
            new.no_grad = no_grad or self._without_grad
            if not shares_step(self._called, now) or (new.no_grad and self.backward_seen):
                return False
            new.computing = self._loops.around(self._called, frame)
            self._begin(new, tentative=True)
            self._called = None
            return True
        if self._outside is None and self._leaves(now):
            self._settle()
            self._begin(Boundary(position, "left", self._last.loop))
            self._outside = now
            return True
        apart = self._outside is None and not self._grad_requested
        if not shares_step(self._complete, now, again=apart):
            return False
        new.kind = "turn"
        if self.optimizer_seen:
            new.loop = self._loops.around(self._outside or self._complete, frame)
            if new.loop in self._inner:
                return False
            new.later = not shares_step(self._complete, now)
        self._drop_idle_end()
        self._join_inner(new.loop)
        new.before, self._stepped, self._newest = self._stepped, frozenset(), new
        if self._grad_requested:
            new.computing = self._loops.around(self._complete, frame)
        elif not self.optimizer_seen:
            new.sampling = self._loops.around(self._complete, frame)
        if self.optimizer_seen:
            self._tentative.clear()
        self._begin(new, tentative=new.later or not self.optimizer_seen)
        self._complete = self._called = self._outside = None
        return True

    def _leaves(self, now: Path) -> bool:
        """Whether the program has left the loop whose iterations are steps."""
        last = self._last
        return (
            self.optimizer_seen
            and last.kind == "turn"
            and last.loop is not None
            and not last.loop.holds(now)
        )

    def _join_inner(self, loop: Loop | None) -> None:
        """Join the steps of an inner loop to the outer loop's iteration, as the outer loop came
        round."""
        after = self._last
        if loop is None or after.kind != "left" or not after.optimizers:
            return
        if after.loop is None or not loop.surrounds(after.loop):
            return
        turns = 0
        before: frozenset[int] = frozenset()
        for boundary in reversed(self._recent[:-1]):
            before |= boundary.optimizers
            if boundary.loop != after.loop or boundary.kind == "left":
                break
            turns += 1
        else:
            return
        if turns <= MOST_TURNS and not after.optimizers & before:
            self._inner.add(after.loop)
            for _ in range(turns + 1):
                self.drop_last()

    # -- functions that are named like a training step

    def _call_began(self, function: StepFunction, position: int, sequence: int) -> bool:
        """Note a call of a step function; returns whether its iteration has begun no step yet."""
        function.calls += 1
        if function.calls == 1:
            function.first = position
            own = self._complete is not None and len(self.starts) > 1
        else:
            own = self.starts[-1] <= function.last or self.starts[-1] in self._inside
            if function.backward or (function.module and not self.backward_seen):
                self._choose(function)
        if own and not function.sure:
            function.began.append(position)
        function.last, function.sequence = position, sequence
        function.backward = function.module = False
        return own

    def _call_is_step(self, caller: FrameType | None, position: int) -> bool:
        """Begin a step with a call; one from a later line of the iteration may share the step of
        another network."""
        later, stepped = False, self._stepped
        if self._complete is not None and self.optimizer_seen:
            now = call_path(caller)
            before = self._complete[: len(now)]
            if shares_step(before, now):
                self._calling = self._loops.around(before, caller)
            else:
                later = self._calling is None or self._calling.holds(now)
        self._settle()
        self._complete = self._called = self._outside = None
        if position <= self.starts[-1]:
            return False
        new = Boundary(position, before=stepped, later=later)
        self._begin(new)
        self._newest = new if later else None
        return True

    def _choose(self, function: StepFunction) -> None:
        if function.chosen:
            return
        function.chosen = True
        kept = {start for start in self.starts if self._inside.get(start) is not function}
        self._inside.clear()
        self._replace(kept.union(function.began))

    def _refuse(self, which: Callable[[StepFunction], bool]) -> None:
        """Stop taking calls of these functions for steps: training also runs outside of them."""
        for function in self.calls.functions:
            if function.calls and not function.refused and which(function):
                function.refused = True
                if function.chosen:
                    wrong = set(function.began)
                    self._replace(start for start in self.starts if not start or start not in wrong)

    @property
    def first_call(self) -> int:
        """Position at which a step function was first called; 0 where there is none."""
        return min(
            (function.first for function in self.calls.functions if function.chosen), default=0
        )
