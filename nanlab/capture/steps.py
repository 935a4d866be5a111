"""Where one training step ends and the next begins, found without any call from the user."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

import torch

from nanlab.capture.loop_iterations import LoopIterations
from nanlab.capture.loops import Loop
from nanlab.capture.source import Path, call_path, shares_step


class StepClock(LoopIterations):
    """Boundaries between training steps.

    A step is complete when an optimizer has stepped (or a loss scaler has decided not to); the next one begins with the first operation
    for which the surrounding loop has come round. So two optimizers in one iteration share a step, and so do the
    micro-batches of an accumulated gradient. A loop that comes round without an optimizer step (a skipped batch, a program
    that never steps), or a function called again from a later line, makes a *tentative* boundary. It is taken back when a
    later backward reaches over it (time steps of a recurrent loop, a helper that updates one network after the other) or
    adds to gradients that came before it (accumulation), and when an optimizer takes gradients that all came before it
    (replicas that go backward in turn, and are stepped together) or has not had its turn before.

    Where a loop whose turns were steps is left and another optimizer steps, the next step began there; but if the loop around both comes
    round, its turn was the step (``Nesting``). The turns of a loop that only computed something for the update after it are no steps.
    Of a program that has a function for its training step, the calls of it are the steps, those of micro-batches too (``StepFunctions``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._complete: Path | None = None  # where the program stood when the current step was completed
        self._called: Path | None = None  # where the outermost module was last called
        self._without_grad = False  # whether that was under no_grad
        self._took_back = False  # whether a boundary was ever taken back
        self.updates_apart: Callable[[], bool] = lambda: (
            False
        )  # whether turns without an update compute with the last one's
        self._updated = -1  # position at which a parameter was last written by hand
        self._fresh = -1  # lowest sequence number of the last backward whose gradients were added to no others
        self._stepped: set[int] = set()  # optimizers that have stepped in this step
        # Where a function called again from a later line made the last boundary, and the optimizers that had stepped before it.
        self._again: tuple[int, set[int]] = (0, set())
        self._alternated = False  # whether such a boundary was ever taken back
        self._calling: Loop | None = None  # the loop that last came round to a call of the step function
        # The last turn of a loop that made a boundary: its index, its sequence number, the optimizers that had stepped before it.
        self._turn: tuple[int, int, set[int]] = (0, 0, set())
        self._crossed_boundary = False  # whether a backward pass has reached over it since
        self._computing: dict[int, Loop | None] = {}  # boundaries made by a loop that trained nothing: that loop
        self._sampling: dict[
            int, Loop | None
        ] = {}  # those made by a loop with backward passes before any optimizer had stepped: that loop
        self._grad_requested = False  # whether the last that happened was that gradients were asked for, in a program that had trained nothing yet
        self.backward_seen = False

    @property
    def step(self) -> int:
        return len(self.starts) - 1

    @property
    def certain(self) -> int:
        """The last boundary that is not tentative."""
        return self.starts[self._tentative[0][0] - 1 if self._tentative else -1]

    def stepping(self, arrived: int, optimizer: int) -> None:
        """An optimizer is about to step; ``arrived``: position at which the last of its gradients came, -1 if unknown."""
        while arrived >= 0 and self._tentative and self.starts[self._tentative[-1][0]] > arrived:
            del self.starts[self._tentative.pop()[0]]
        index, before = self._again
        if index == len(self.starts) - 1 and before and optimizer not in before:  # each network has its turn
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
        """A loop over optimizers, whose losses were computed before it: each has its turn in one step."""
        index, _, before = self._turn
        if self._crossed_boundary and index == len(self.starts) - 1 and before and optimizer not in before:
            del self.starts[index]
            self._stepped |= before
        self._turn, self._crossed_boundary = (0, 0, set()), False

    def updated(self, position: int) -> None:
        """A parameter was written by hand: where no optimizer steps, all since the loop first came round after the last such write is one step."""
        if self.optimizer_seen:
            return
        since = [at for at, (index, *_) in enumerate(self._tentative) if self.starts[index] > self._updated]
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

    def called(self, frame: FrameType | None) -> None:
        """An outermost module was called."""
        self.idle = False
        self._module_inside(frame)
        self._called, self._without_grad = call_path(frame), not torch.is_grad_enabled()
        self.checked.clear()

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
        """Gradients were asked for; whether they are of what a call of a step function computed, and came in it."""
        self.idle = False
        if not self.backward_seen and not self.optimizer_seen:  # all that this program may ever ask for
            self._complete, self._grad_requested = call_path(frame), True
            self._drop_inner(self._complete)
            self.checked.clear()
        return self._backward_inside(frame, oldest)

    def makes_new_parameters(self) -> bool:
        """Whether each turn computes with what the last one made of its gradients, and nothing is updated in place."""
        return self._grad_requested and self._updated < 0 and self.updates_apart()

    def doubtful(self) -> int:
        """How many of the last boundaries are likely to be taken back: some within a step were before, in a program that has an optimizer."""
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
        """Where the step after the last update by hand began: gradients that were not cleared do not make it one with the step before."""
        if self._updated < 0 or self.optimizer_seen:
            return -1
        return next((index for index, *_ in self._tentative if self.starts[index] > self._updated), -1)

    def _drop_inner(self, now: Path) -> None:
        """Training goes on here: the turns of a loop that was left before it only computed something for it."""
        while self._tentative:
            loop = self._computing.get(self.starts[self._tentative[-1][0]])
            if loop is None or loop.holds(now):
                break
            self._took_back = True
            del self.starts[self._tentative.pop()[0]]
        if not self._tentative:
            self._computing.clear()

    def _drop_sampling(self, now: Path) -> None:
        """The first optimizer steps: the turns of a loop that was left before it, and that wrote to no parameter, only made samples for it."""
        while self._tentative:
            start = self.starts[self._tentative[-1][0]]
            loop = self._sampling.get(start)
            if loop is None or loop.holds(now) or start <= self._updated:
                break
            del self.starts[self._tentative.pop()[0]]
        self._sampling.clear()

    def _take_back(self, wrong: object, kept: int = -1) -> None:
        while self._tentative and self._tentative[-1][0] != kept and wrong(*self._tentative[-1][1:]):  # type: ignore[operator]
            self._took_back = True
            index = self._tentative.pop()[0]
            del self.starts[index]

    def operation(self, frame: FrameType | None, position: int, sequence: int, no_grad: bool, line: int = 0) -> bool:
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
        """A call begins a step; from a later line of the same turn it may be that of another network, which shares the step."""
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
        self._again, self._turn, self._crossed_boundary, self._stepped = (0, set()), (0, 0, set()), False, set()

    def finished(self, failed: bool = False) -> None:
        """The watch ends; ``failed``: with an exception, before which the last step need not have come far."""
        self._drop_idle_end()
        if not failed:
            self._drop_unbegun()
        super().finished()

    def _loop_iterated(self, frame: FrameType | None, position: int, sequence: int, no_grad: bool) -> bool:
        """Whether the surrounding loop came round."""
        if self._complete is None and self._called is None:
            return False
        now = call_path(frame)
        if self._complete is not None:
            if self._outside is None and self._leaves(now):
                return self._after_loop(now, position)
            if not shares_step(self._complete, now, again=self._outside is None and not self._grad_requested):
                return False
            loop = self._loops.around(self._outside or self._complete, frame) if self.optimizer_seen else None
            if loop in self._nesting.inner:
                return False
            self._join(loop, position)
            if self.optimizer_seen:
                self._tentative.clear()
            again = self.optimizer_seen and not shares_step(self._complete, now)
            self._turn, self._crossed_boundary = (len(self.starts), sequence, set() if again else self._stepped), False
            self._again, self._stepped = (len(self.starts), self._stepped) if again else (0, set()), set()
            if again or not self.optimizer_seen:
                self._tentative.append((len(self.starts), sequence, no_grad))
            if self._grad_requested:
                self._computing[position] = self._loops.around(self._complete, frame)
            elif not self.optimizer_seen:
                self._sampling[position] = self._loops.around(self._complete, frame)
        elif self._called is not None:
            no_grad = no_grad or self._without_grad  # a rollout: the loop around it need not be under no_grad
            if not shares_step(self._called, now) or (no_grad and self.backward_seen):
                return False
            self._tentative.append((len(self.starts), sequence, no_grad))
            self._computing[position] = self._loops.around(self._called, frame)
        self._complete = self._called = self._outside = None
        self.checked.clear()
        self.starts.append(position)
        return True
