"""Where one training step ends and the next begins, found without any call from the user."""

from __future__ import annotations

import dis
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType
from weakref import ref

import torch

from nanlab.capture.places import Path, call_path, is_user, shares_step


@dataclass(frozen=True)
class Loop:
    """A loop in a function that was called in a certain way."""

    outer: tuple[tuple[int, int, str], ...]  # the calls around it
    code: int
    first: int  # its instructions, as byte offsets
    last: int

    def holds(self, path: Path) -> bool:
        """Whether the program stands in it."""
        level = len(self.outer)
        if len(path) <= level or tuple(path[:level]) != self.outer:
            return False
        code, at, _ = path[level]
        return code == self.code and self.first <= at <= self.last

    def surrounds(self, other: Loop) -> bool:
        """Whether the other loop runs inside of this one."""
        return self != other and self.holds([*other.outer, (other.code, other.first, "")])


class Loops:
    """The loops of the functions that were asked about."""

    def __init__(self) -> None:
        # the code is kept, so that its id() stays its own
        self._known: dict[int, tuple[CodeType, list[tuple[int, int]]]] = {}

    def around(self, before: Path, frame: FrameType | None) -> Loop | None:
        """The innermost loop that holds both moments; None where it cannot be told."""
        now, codes = call_path(frame), []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        codes.reverse()
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
        """Whether the program has come into a loop of the function that stood before it."""
        now, codes = call_path(frame), []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        for (code, at, _), (code_now, at_now, _), own in zip(
            before, now, codes[::-1], strict=False
        ):
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


MOST_TURNS = 32  # an inner loop of more turns is an epoch, whose turns are steps


@dataclass
class Segment:
    """What ran from one boundary to the next."""

    start: int  # position at which it begins
    loop: Loop | None = None  # the loop that came round there
    left: bool = False  # whether it began with leaving that loop instead
    optimizers: set[int] = field(default_factory=set)  # that stepped in it
    trained: bool = False  # whether a backward pass ran in it, or an optimizer stepped


class Nesting:
    """Tells the turns of an inner loop from steps of their own.

    A loop whose turns are steps is left, and another optimizer steps before the loop around it
    comes round: then the outer turn is the step (a critic's turns belong to the generator's). If
    the outer loop does not come round, these were two phases of training.
    """

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque([Segment(0)], maxlen=2 * MOST_TURNS)
        self.inner: set[Loop] = set()  # loops whose turns are part of a step

    @property
    def last(self) -> Segment:
        return self.segments[-1]

    def keep(self, starts: list[int]) -> None:
        """Some boundaries may have been taken back: forget them."""
        known = set(starts[-2 * MOST_TURNS :])
        while len(self.segments) > 1 and self.segments[-1].start not in known:
            gone = self.segments.pop()
            self.last.optimizers |= gone.optimizers
            self.last.trained |= gone.trained

    def turned(self, loop: Loop | None, position: int) -> list[int]:
        """A loop came round and a step begins; boundaries since its last turn that were none."""
        wrong = self._within(loop) if loop is not None else []
        self.segments.append(Segment(position, loop))
        return wrong

    def _within(self, loop: Loop) -> list[int]:
        after = self.last
        if (
            not after.left
            or not after.optimizers
            or after.loop is None
            or not loop.surrounds(after.loop)
        ):
            return []
        turns: list[Segment] = []
        for segment in reversed(list(self.segments)[:-1]):
            if segment.loop != after.loop or segment.left:
                first = segment
                break
            turns.append(segment)
        else:
            return []
        before = first.optimizers.union(*(turn.optimizers for turn in turns))
        if len(turns) > MOST_TURNS or after.optimizers & before:
            return []
        self.inner.add(after.loop)
        return [turn.start for turn in turns] + [after.start]


_NAME = re.compile(
    r"_*(?:(?:run|do|one|single|perform)_)?"
    r"(?:train(?:ing)?_?(?:one_|single_|on_)?(?:step|batch|iter(?:ation)?)|step)"
)


class _Mark:
    """Put into a frame's ``f_trace`` to know the call again: only debuggers look there."""

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
        """The calls that are running already are no steps of what is watched."""
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


class StepFunctions:
    """The part of the clock that knows functions named like a training step, such as
    ``train_step``.

    A name alone proves nothing: an environment and a schedule have a ``step`` too. The calls of a
    function are taken for the steps once one held a backward pass of what it computed, or called a
    module in a program that has no backward pass; what loops inside of them is part of them, and a
    call is a step though the optimizer steps in every fourth only: the program counts its calls. It
    is refused if a backward pass runs, or an optimizer steps, outside of it.
    """

    _complete: Path | None
    _called: Path | None
    _outside: Path | None
    backward_seen: bool
    _settle: Callable[[], None]

    def __init__(self) -> None:
        self.starts: list[int] = [0]  # position at which each step begins
        self.calls = StepCalls()
        self.openers: set[int] = set()  # lines with which a call of a step function began
        self.idle = True  # no module was called yet and no gradient asked for
        # boundaries that a loop made inside of a step function
        self._inside: dict[int, StepFunction] = {}

    def _stepped_inside(self, frame: FrameType | None) -> None:
        """An optimizer stepped."""
        function = self.calls.seen(frame)
        if function is None:
            self._refuse(lambda other: not other.sure)
        elif function.backward:
            function.sure = True
            self._choose(function)

    def _module_inside(self, frame: FrameType | None) -> None:
        """A module was called."""
        if (function := self.calls.seen(frame)) is not None:
            function.module = True

    def _backward_inside(self, frame: FrameType | None, oldest: int) -> bool:
        """Gradients were asked for: whether of what the running step function computed."""
        function = self.calls.seen(frame)
        if function is None or oldest < function.sequence:
            return False
        function.backward = True
        return True

    def _call_began(self, function: StepFunction, position: int, sequence: int) -> bool:
        """A step function was called; whether its turn of the loop has begun no step yet."""
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
        function.last = position
        function.sequence = sequence
        function.backward = False
        function.module = False
        return own

    def _begin(self, position: int) -> bool:
        """A step begins, and no doubt of it."""
        self._settle()
        self._complete = self._called = self._outside = None
        if position <= self.starts[-1]:
            return False
        self.starts.append(position)
        return True

    def _choose(self, function: StepFunction) -> None:
        """The calls of this function are the steps."""
        if function.chosen:
            return
        function.chosen = True
        kept = {start for start in self.starts if self._inside.get(start) is not function}
        self.starts[:] = sorted(kept.union(function.began))
        self._inside.clear()
        self._settle()

    def _refuse(self, which: Callable[[StepFunction], bool]) -> None:
        """Training goes on outside of these functions."""
        for function in self.calls.functions:
            if function.calls and not function.refused and which(function):
                function.refused = True
                if function.chosen:
                    wrong = set(function.began)
                    self.starts[:] = [
                        start for start in self.starts if not start or start not in wrong
                    ]
                    self._settle()

    @property
    def first_call(self) -> int:
        """Position at which a step function was first called; 0 where there is none."""
        return min(
            (function.first for function in self.calls.functions if function.chosen), default=0
        )

    def finished(self) -> None:
        """The watch ends: an untrained program has a step for each call of its step function."""
        for function in self.calls.functions:
            if self.idle and function.calls > 1 and not function.refused:
                self._choose(function)


class LoopIterations(StepFunctions):
    """The part of the clock that knows loops within loops, and what comes after one."""

    def __init__(self) -> None:
        super().__init__()
        # (index into starts, autograd sequence number, in a no_grad loop)
        self._tentative: list[tuple[int, int, bool]] = []
        self._loops, self._nesting = Loops(), Nesting()
        # where the program stood when it had left the loop whose turns are steps
        self._outside: Path | None = None
        # lines that were found to stand later in the loop than the last event
        self.checked: set[int] = set()
        self.optimizer_seen = False

    def _leaves(self, now: Path) -> bool:
        """Whether the program has left the loop whose turns are steps."""
        if not self.optimizer_seen:
            return False
        self._nesting.keep(self.starts)
        last = self._nesting.last
        return (
            last.loop is not None
            and not last.left
            and last.start == self.starts[-1]
            and not last.loop.holds(now)
        )

    def _after_loop(self, now: Path, position: int) -> bool:
        """Another step begins with what comes after the loop, unless nothing is trained there."""
        self._outside = now
        self._nesting.segments.append(Segment(position, self._nesting.last.loop, left=True))
        self._settle()
        self.checked.clear()
        self.starts.append(position)
        return True

    def _drop_idle_end(self) -> None:
        """What came after a loop was no step: an evaluation."""
        last = self._nesting.last
        if last.left and not last.trained and last.start == self.starts[-1]:
            self.starts.pop()
            self._nesting.keep(self.starts)

    def _drop_unbegun(self) -> None:
        """The last turn, if it reached no module or backward, was no step: the loader ran dry."""
        last = self._nesting.last
        if (
            self.backward_seen
            and not last.trained
            and self._called is None
            and 0 < last.start == self.starts[-1]
        ):
            self.starts.pop()
            self._tentative = [kept for kept in self._tentative if kept[0] < len(self.starts)]

    def _join(self, loop: Loop | None, position: int) -> None:
        """A loop came round: what an inner loop took for steps is part of its turn."""
        self._nesting.keep(self.starts)
        self._drop_idle_end()
        for wrong in self._nesting.turned(loop, position):
            self.starts.remove(wrong)


class StepClock(LoopIterations):
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

    Where a loop whose turns were steps is left and another optimizer steps, the next step began
    there; but if the loop around both comes round, its turn was the step (``Nesting``). The turns
    of a loop that only computed something for the update after it are no steps. Of a program that
    has a function for its training step, the calls of it are the steps, those of micro-batches too
    (``StepFunctions``).
    """

    def __init__(self) -> None:
        super().__init__()
        # where the program stood when the current step was completed
        self._complete: Path | None = None
        self._called: Path | None = None  # where the outermost module was last called
        self._without_grad = False  # whether that was under no_grad
        self._module: Callable[[], object] = lambda: None  # that was
        self._took_back = False  # whether a boundary was ever taken back
        # whether turns without an update compute with the last one's
        self.updates_apart: Callable[[], bool] = lambda: False
        self._updated = -1  # position at which a parameter was last written by hand
        # lowest sequence number of the last backward whose gradients were added to no others
        self._fresh = -1
        self._stepped: set[int] = set()  # optimizers that have stepped in this step
        # Where a function called again from a later line made the last boundary, and the optimizers
        # that had stepped before it.
        self._again: tuple[int, set[int]] = (0, set())
        self._alternated = False  # whether such a boundary was ever taken back
        # the loop that last came round to a call of the step function
        self._calling: Loop | None = None
        # The last turn of a loop that made a boundary: its index, its sequence number, the
        # optimizers that had stepped before it.
        self._turn: tuple[int, int, set[int]] = (0, 0, set())
        self._crossed_boundary = False  # whether a backward pass has reached over it since
        # boundaries made by a loop that trained nothing: that loop
        self._computing: dict[int, Loop | None] = {}
        # those made by a loop with backward passes before any optimizer had stepped: that loop
        self._sampling: dict[int, Loop | None] = {}
        # whether the last that happened was that gradients were asked for, in a program that had
        # trained nothing yet
        self._grad_requested = False
        self.backward_seen = False

    @property
    def step(self) -> int:
        return len(self.starts) - 1

    @property
    def certain(self) -> int:
        """The last boundary that is not tentative."""
        return self.starts[self._tentative[0][0] - 1 if self._tentative else -1]

    def begins(self, last: int) -> int:
        """Where so many of the last steps begin, though boundaries since are taken back."""
        sure = self._tentative[0][0] if self._tentative else len(self.starts)
        return self.starts[max(sure - last, 0)]

    def stepping(self, arrived: int, optimizer: int) -> None:
        """An optimizer is about to step; ``arrived``: position of its last gradient, or -1."""
        while arrived >= 0 and self._tentative and self.starts[self._tentative[-1][0]] > arrived:
            del self.starts[self._tentative.pop()[0]]
        index, before = self._again
        # each network has its turn
        if index == len(self.starts) - 1 and before and optimizer not in before:
            self._tentative = [kept for kept in self._tentative if kept[0] != index]
            del self.starts[index]
            self._alternated = True
        if index >= len(self.starts):
            self._stepped |= before
        self._again = 0, set()
        self._join_turn(optimizer)
        self._stepped.add(optimizer)
        self._nesting.keep(self.starts)
        self._nesting.last.optimizers.add(optimizer)
        self._nesting.last.trained = True

    def _join_turn(self, optimizer: int) -> None:
        """A loop over optimizers after their losses: each has its turn in one step."""
        index, _, before = self._turn
        if (
            self._crossed_boundary
            and index == len(self.starts) - 1
            and before
            and optimizer not in before
        ):
            del self.starts[index]
            self._stepped |= before
        self._turn, self._crossed_boundary = (0, 0, set()), False

    def updated(self, position: int) -> None:
        """A parameter was written by hand: without optimizers, a step lies between such writes."""
        if self.optimizer_seen:
            return
        since = [
            at
            for at, (index, *_) in enumerate(self._tentative)
            if self.starts[index] > self._updated
        ]
        for _ in since if self._updated < 0 else since[1:]:
            del self.starts[self._tentative.pop()[0]]
        self._updated = position

    def completed(self, frame: FrameType | None) -> None:
        """An optimizer stepped, or a scaler updated its scale."""
        self.optimizer_seen, self.idle = True, False
        stepped = self._stepped
        self._stepped_inside(frame)
        self._stepped = stepped  # the step goes on, whatever became of the boundaries before
        self._complete = call_path(frame)
        self._drop_sampling(self._complete)
        self._drop_inner(self._complete)
        self._called, self._outside, self._grad_requested = None, None, False
        self.checked.clear()

    def called(self, frame: FrameType | None, module: object, position: int, sequence: int) -> bool:
        """An outermost module was called; True if a step begins: its loop's first turn is over."""
        self.idle = False
        self._module_inside(frame)
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
            self._tentative.append((len(self.starts), sequence, True))
            self._computing[position] = None
            self.starts.append(position)
        self._called, self._without_grad, self._module = call_path(frame), no_grad, ref(module)
        self.checked.clear()
        return begins

    def backward(self, frame: FrameType | None, oldest: int, accumulates: bool) -> None:
        """A backward pass ended; ``oldest`` is the lowest sequence number among its nodes."""
        self._drop_inner(call_path(frame))
        if not self.differentiated(frame, oldest):
            self._refuse(lambda other: not other.chosen)
        self._grad_requested = False
        if not self.backward_seen:
            self.backward_seen = True
            self._take_back(lambda seq, no_grad: no_grad or seq > oldest)
        self._take_back(lambda seq, no_grad: seq > oldest)
        self._crossed_boundary = self._crossed_boundary or self._turn[1] > oldest
        if accumulates:
            self._take_back(lambda seq, no_grad: seq > self._fresh, self._first_since_update())
        else:
            self._fresh = oldest
        self._nesting.keep(self.starts)
        self._nesting.last.trained = True
        if not self.optimizer_seen:
            self._complete = call_path(frame)
            self.checked.clear()

    def differentiated(self, frame: FrameType | None, oldest: int) -> bool:
        """Gradients were asked for; whether of what a step function computed, in its call."""
        self.idle = False
        # all that this program may ever ask for
        if not self.backward_seen and not self.optimizer_seen:
            self._complete, self._grad_requested = call_path(frame), True
            self._drop_inner(self._complete)
            self.checked.clear()
        return self._backward_inside(frame, oldest)

    def makes_new_parameters(self) -> bool:
        """Whether each turn computes with new parameters that the last one made of gradients."""
        return self._grad_requested and self._updated < 0 and self.updates_apart()

    def doubtful(self) -> int:
        """How many of the last boundaries are likely to be taken back."""
        if self._outside is not None and not self._nesting.last.trained:
            return 1
        if self._alternated and self._again[1] and self._again[0] == len(self.starts) - 1:
            return 1
        if self._grad_requested and self._updated < 0 and not self.updates_apart():
            return len(self._tentative)
        inner = self._took_back and self.optimizer_seen
        return sum(seq > self._fresh for _, seq, _ in self._tentative) if inner else 0

    def stopped(self) -> None:
        """The program is stopped: what is doubtful was a turn of a loop within the step."""
        self._drop_idle_end()
        if count := self.doubtful():
            del self.starts[-count:], self._tentative[-count:]

    def _first_since_update(self) -> int:
        """Where the step after the last update by hand began, though gradients add up; or -1."""
        if self._updated < 0 or self.optimizer_seen:
            return -1
        return next(
            (index for index, *_ in self._tentative if self.starts[index] > self._updated), -1
        )

    def _drop_inner(self, now: Path) -> None:
        """Training goes on: turns of a loop that was left before only computed for it."""
        while self._tentative:
            loop = self._computing.get(self.starts[self._tentative[-1][0]])
            if loop is None or loop.holds(now):
                break
            self._took_back = True
            del self.starts[self._tentative.pop()[0]]
        if not self._tentative:
            self._computing.clear()

    def _drop_sampling(self, now: Path) -> None:
        """The first optimizer steps: a loop that was left and wrote no parameter made samples."""
        while self._tentative:
            start = self.starts[self._tentative[-1][0]]
            loop = self._sampling.get(start)
            if loop is None or loop.holds(now) or start <= self._updated:
                break
            del self.starts[self._tentative.pop()[0]]
        self._sampling.clear()

    def _take_back(self, wrong: Callable[..., bool], kept: int = -1) -> None:
        while (
            self._tentative and self._tentative[-1][0] != kept and wrong(*self._tentative[-1][1:])
        ):
            self._took_back = True
            index = self._tentative.pop()[0]
            del self.starts[index]

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

    def _call_is_step(self, caller: FrameType | None, position: int) -> bool:
        """A call begins a step; from a later line of the turn it may share another network's."""
        again, stepped = False, self._stepped
        if self._complete is not None and self.optimizer_seen:
            now = call_path(caller)
            before = self._complete[: len(now)]
            if shares_step(before, now):
                self._calling = self._loops.around(before, caller)
            else:
                again = self._calling is None or self._calling.holds(now)
        begins = self._begin(position)
        if begins and again:
            self._again = len(self.starts) - 1, stepped
        return begins

    def _settle(self) -> None:
        """The boundaries stand as they are."""
        self._tentative.clear()
        self._again, self._turn, self._crossed_boundary, self._stepped = (
            (0, set()),
            (0, 0, set()),
            False,
            set(),
        )

    def finished(self, failed: bool = False) -> None:
        """The watch ends; ``failed``: by an exception, before which a step may be short."""
        self._drop_idle_end()
        if not failed:
            self._drop_unbegun()
        super().finished()

    def _loop_iterated(
        self, frame: FrameType | None, position: int, sequence: int, no_grad: bool
    ) -> bool:
        """Whether the surrounding loop came round."""
        if self._complete is None and self._called is None:
            return False
        now = call_path(frame)
        if self._complete is not None:
            if self._outside is None and self._leaves(now):
                return self._after_loop(now, position)
            if not shares_step(
                self._complete, now, again=self._outside is None and not self._grad_requested
            ):
                return False
            if self.optimizer_seen:
                loop = self._loops.around(self._outside or self._complete, frame)
            else:
                loop = None
            if loop in self._nesting.inner:
                return False
            self._join(loop, position)
            if self.optimizer_seen:
                self._tentative.clear()
            again = self.optimizer_seen and not shares_step(self._complete, now)
            self._turn = (len(self.starts), sequence, set() if again else self._stepped)
            self._crossed_boundary = False
            self._again, self._stepped = (
                (len(self.starts), self._stepped) if again else (0, set()),
                set(),
            )
            if again or not self.optimizer_seen:
                self._tentative.append((len(self.starts), sequence, no_grad))
            if self._grad_requested:
                self._computing[position] = self._loops.around(self._complete, frame)
            elif not self.optimizer_seen:
                self._sampling[position] = self._loops.around(self._complete, frame)
        elif self._called is not None:
            # a rollout: the loop around it need not be under no_grad
            no_grad = no_grad or self._without_grad
            if not shares_step(self._called, now) or (no_grad and self.backward_seen):
                return False
            self._tentative.append((len(self.starts), sequence, no_grad))
            self._computing[position] = self._loops.around(self._called, frame)
        self._complete = self._called = self._outside = None
        self.checked.clear()
        self.starts.append(position)
        return True
