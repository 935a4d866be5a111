"""The guard: checks gradients before each update, and replays a bad step under a watch."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nanlab.capture import watch
from nanlab.capture.ranks import Agreement
from nanlab.capture.sinks import is_refusal
from nanlab.capture.state import LOOK_EVERY, are_finite, held, total
from nanlab.capture.steps import MOST_TURNS as MOST_PARTS
from nanlab.capture.training import OptimizerCopy, closure_of, size_of, with_closure
from nanlab.errors import NotReplayable
from nanlab.findings.fault import listed
from nanlab.guards.window import (
    MOST_TURNS,
    Now,
    Optimizer,
    Replay,
    ReplayEnd,
    Scale,
    Tensor,
    Turn,
    Window,
    evidence_of,
    is_telling,
    number_steps,
    parameters_of,
    silenced,
    suspects,
    tells,
    turns_of,
)
from nanlab.stats.memory import local_part
from nanlab.trace import Trace
from nanlab.trace.history import Guarded

MOST_STEPS = 32  # of one turn up to which optimizers are copied, so that the turn can be run again
# a step that a GradScaler skipped is judged by itself, or all of those in a row together
Skipped = Literal["", "step", "collapse"]
COPY_LIMIT = 1 << 30  # bytes of an optimizer up to which that is done unasked
SKIPS = 12  # steps in a row that a GradScaler skips while its scale does not fall
SKIPS_BELOW_ONE = 3  # the same where the scale has fallen below 1


def harmless(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Guard; an internal error turns the guard off and leaves the program alone."""

    @functools.wraps(method)
    def run(self: Guard, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            self._failed(error)
            return None

    return run


class Guard:
    """Checks loss and gradients before each optimizer step; stops the run at bad ones, and replays
    the step.

    model: names the modules in the replay. snapshot: steps between copies of parameters and
    optimizer state. ended: called with the trace of the replay; raises FaultFound, or ends the run
    another way.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizers: Sequence[Optimizer] = (),
        snapshot: int | None = None,
        *,
        ended: Callable[[Trace], None],
        looks: bool = True,
    ) -> None:
        self.model, self.snapshot, self.looks = model, snapshot, looks
        self.optimizers: dict[int, Optimizer] = {id(o): o for o in optimizers}
        self.ended = ended
        self.trace: Trace | None = None
        self.step = 0  # number of the running step
        self.off = True
        self._open: list[Window] = []  # loops that are running, the innermost last
        self._known: dict[Any, Window] = {}
        self._counts: Counter[int] = Counter()  # optimizer steps since the last head
        self._per_turn = 0  # steps of the last turn
        self._alone = 0  # turns counted as steps while no optimizer was known
        self._taken = 0  # optimizer steps in all
        self._clock = 0
        self._first_backward: int | None = None
        self._losses: list[Tensor] = []
        self._scaled = False
        self._closures = 0
        self._closure_copy: OptimizerCopy | None = None
        self._in_closure: Optimizer | None = None  # that runs a closure
        self._once: set[int] = set()  # optimizers that ran their closure only once in a step
        self._skipped = 0  # steps in a row that a GradScaler has skipped
        self._stuck = 0  # those since its scale last fell
        self._skipped_at = math.inf  # the scale of the last of them
        self.skipped = 0  # those in all
        self._replay: Replay | None = None
        self._hooks: list[Any] = []
        self._agreement = Agreement("guard")
        self._unheard = False  # whether a fault was found on which no stop could be agreed
        self._leftover = False  # whether gradients of a step before are there when backward begins
        self._steps_seen = 0  # whose first backward has begun
        self._undo: list[Callable[[], None]] = []
        self._thread = threading.main_thread().ident

    # -- life

    @held()
    def start(self) -> None:
        """Install hooks and wrappers."""
        if not self.off:
            return
        self.off = False
        self._agreement = Agreement("guard")
        self._undo.append(self._unhook)
        self._hook()
        for owner, name, wrapper in (
            (torch.autograd, "backward", self._backward),
            (torch.amp.GradScaler, "scale", self._scale),
            (torch.amp.GradScaler, "step", self._scaler_step),
        ):
            original = getattr(owner, name)
            ours = wrapper(original)
            setattr(owner, name, ours)
            self._undo.append(functools.partial(_put_back, owner, name, original, ours))

    def _hook(self) -> None:
        """Register the optimizer hooks, after all others registered so far."""
        self._unhook()
        self._hooks += [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()

    @property
    def done(self) -> int:
        """Steps completed so far."""
        return self.step + (min(self._counts.values()) if self._counts else 0)

    def parameters(self) -> list[Tensor]:
        return [p for optimizer in self.optimizers.values() for p in parameters_of(optimizer)]

    def stop(self) -> None:
        """Remove all hooks and wrappers; idempotent."""
        self.off = True
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        self._agreement.leave()
        self._open.clear()
        self._known.clear()
        self._losses.clear()
        self._closure_copy, self._in_closure = None, None

    def _is_ours(self) -> bool:
        return not self.off and threading.get_ident() == self._thread

    # -- what the program does

    def last_window(self, key: Any) -> Window | None:
        """The window of a loop that has begun; None during a replay."""
        return self._known.get(key) if self._replay is None else None

    @harmless
    def begin(self, key: Any, make: Callable[[], Window]) -> Window | None:
        """Begin a turn of a loop and return its window; None during a replay."""
        if self.off or self._replay is not None:
            return None
        window = self._known.get(key)
        if window is None:
            window = self._known[key] = make()
        self._clock += 1
        if self._counts:
            self._count(window)
        if self._losses and not self.optimizers and self.looks:
            self._look_at_losses()
            window.mark = -2  # each turn is a step
            self.step += 1
            self._alone += 1
        if window.mark != self._taken and not (
            self.snapshot and window.turns and window.steps < self.snapshot
        ):
            self._new_window(window)
        if not self._open or self._open[-1] is not window:
            self._enter(window)
        window.mark = self._taken
        window.at_head = self.step
        return window

    def _count(self, window: Window) -> None:
        """Count the steps since the last turn began. Where another optimizer steps after an inner
        loop, one turn of the outer loop is the step, as in a watch."""
        self._per_turn, own = min(self._counts.values()), set(self._counts)
        last = self._open[-1] if self._open else window
        self._counts.clear()
        if last is window:
            window.rounds |= own
            self.step += 0 if window.is_part else self._per_turn
            return
        if window in self._open:
            if last.rounds and own - last.rounds and self.step - window.at_head <= MOST_PARTS:
                last.is_part = True
            if last.is_part:
                self._per_turn, self.step = 1, window.at_head
        self.step += self._per_turn

    def _enter(self, window: Window) -> None:
        """Make a loop the innermost: it begins, or goes on after an inner one."""
        if window in self._open:
            del self._open[self._open.index(window) :]
        self._open.append(window)

    def turn(self, window: Window, turn: Turn) -> None:
        window.add(turn, MOST_TURNS * (self.snapshot or 1))

    def _new_window(self, window: Window) -> None:
        window.begin(self._clock, self.step)
        if self._leftover:
            window.gradients = [
                (p, p.grad.detach().clone()) for p in self.parameters() if p.grad is not None
            ]
        if self.snapshot:
            for optimizer in self.optimizers.values():
                window.copies[id(optimizer)] = OptimizerCopy(optimizer)

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._first_backward is None:
                self._first_backward = self._clock
                if self._is_ours() and self._replay is None:
                    self._notice_leftover()
            if (
                not self._scaled
                and isinstance(tensors, Tensor)
                and not tensors.dim()
                and self._is_ours()
            ):
                self._losses.append(tensors.detach())
            return original(tensors, *args, **kwargs)

        return functools.wraps(original)(backward)

    def _notice_leftover(self) -> None:
        """Notice whether gradients are left over from one step to the next."""
        self._steps_seen += 1
        if not self._leftover and (self._steps_seen < 5 or self._steps_seen % LOOK_EVERY == 0):
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            self._leftover = any(bool(local_part(g).any()) for g in gradients if not g.is_sparse)

    def _scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            self._scaled = scaler.is_enabled()
            if self._scaled and isinstance(outputs, Tensor) and not outputs.dim():
                if self._is_ours():
                    self._losses.append(outputs.detach())
            return original(scaler, outputs)

        return functools.wraps(original)(scale)

    def _scaler_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._taken
            result = original(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled() and self._is_ours():
                self._scaler_stepped(scaler, optimizer, self._taken == before)
            return result

        return functools.wraps(original)(step)

    @harmless
    def _scaler_stepped(self, scaler: Any, optimizer: Optimizer, skipped: bool) -> None:
        """Note that a GradScaler stepped an optimizer, or skipped the step."""
        if self._replay is not None:
            self._replay.skip += 1
            if self._replay.skips and self._replay.skip == self._replay.skips:
                self._end_replay(self._replay)
            return
        for window in self._open:
            window.scaler_steps += 1
        if not skipped:
            self._skipped, self._skipped_at = 0, math.inf
            self._losses.clear()
            return
        self._skipped += 1
        self.skipped += 1
        self._counts[id(optimizer)] += 1
        for window in self._open:
            if window.turns:
                window.turns[-1].scale = Scale.of(scaler)
        scale = float(scaler.get_scale())
        self._stuck = 1 if scale < self._skipped_at else self._stuck + 1
        self._skipped_at = scale
        low = self._skipped >= SKIPS_BELOW_ONE and scale < 1.0
        if self._stops(not are_finite(self._losses)):
            self._fault(optimizer, skipped="step")
        elif low or self._stuck >= SKIPS:
            self._fault(optimizer, skipped="collapse")
        elif self._skipped == 1 and self.looks and not self._agreement.connected:
            self._try_skipped(optimizer, scaler)
        self._losses.clear()

    def _try_skipped(self, optimizer: Optimizer, scaler: Any) -> None:
        """Stop the run if the replay of a skipped step has a gradient that is bad at any scale.

        Otherwise the run goes on, so a step is left alone that cannot be run twice unnoticed.
        """
        window, frame = self._chosen(sys._getframe(1))
        if window is None or suspects(window, frame) or tells(window, frame):
            return
        replay = self._replay_of(optimizer, window, skipped="step")
        if window.obstacle(replay.steps):
            return
        states = dict(scaler._per_optimizer_states)
        gradients = [(p, p.grad) for p in self.parameters()]
        try:
            trace = self._traced(window, frame, replay)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            scaler._per_optimizer_states.update(states)
        if trace.guarded is not None and trace.guarded.identical and trace.culprit is not None:
            for parameter, _ in gradients:
                parameter.grad = None
            self._end(trace, window, replay)

    def _failed(self, error: Exception) -> None:
        """Report an internal error once, and turn the guard off."""
        self.off = True
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        told = (
            f"internal error in nanlab ({type(error).__name__}: {error} at {place}): the guard is"
            " off, your program is unaffected"
        )
        warnings.warn(told, RuntimeWarning, stacklevel=3)

    @harmless
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not self._is_ours():
            return None
        if self._alone:  # those turns accumulated gradients for it
            self.step, self._alone = self.step - self._alone, 0
        self.optimizers.setdefault(id(optimizer), optimizer)
        closure = closure_of(args, kwargs)
        if closure is not None:
            self._closures = 0
            if self._replay is None:
                self._touch(optimizer)
                self._in_closure = optimizer
            return with_closure(args, kwargs, self._wrapped(optimizer, closure))
        if self._replay is not None:
            self._replay_stepping(self._replay)
        else:
            if self.looks:
                self.look(optimizer)
            self._touch(optimizer)
        return None

    def _wrapped(self, optimizer: Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
        def closed(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            if self._is_ours():
                self._closed(optimizer)
            return loss

        return closed

    @harmless
    def _closed(self, optimizer: Optimizer) -> None:
        """Check the gradients that a closure has left."""
        self._closures += 1
        replay = self._replay
        if replay is not None:
            if replay.step == replay.steps and self._closures == replay.closures:
                self._end_replay(replay)
            return
        if self.looks:
            self.look(optimizer)
        # it may move the parameters now
        if self._closures == 1 and id(optimizer) not in self._once:
            self._closure_copy = OptimizerCopy(optimizer)

    @property
    def is_replaying(self) -> bool:
        return self._replay is not None

    def replay_steps(self) -> None:
        """End a replay where the run stopped, as a trainer's optimizer is about to step."""
        replay = self._replay
        if replay is not None and replay.step == replay.steps:
            self._end_replay(replay)

    def _replay_stepping(self, replay: Replay) -> None:
        if replay.skips or replay.closures or replay.step < replay.steps:
            return
        if replay.after:
            replay.weights = [OptimizerCopy(o) for o in self.optimizers.values()]
            return
        self._end_replay(replay)

    def _end_replay(self, replay: Replay) -> NoReturn:
        self._compare(replay)
        raise ReplayEnd("nanlab: the replay ends here")

    @harmless
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_ours():
            return
        if self._replay is not None:
            self._replay.step += 1
            if self._replay.after and self._replay.step > self._replay.steps:
                self._end_replay(self._replay)
            return
        self._taken += 1
        self._counts[id(optimizer)] += 1
        if self._in_closure is optimizer:
            (self._once.add if self._closures == 1 else self._once.discard)(id(optimizer))
        self._first_backward = None
        self._closure_copy = None
        self._in_closure = None
        self._scaled = False
        self._losses.clear()
        if self.snapshot or _has_bad_rate(optimizer):
            self._look_at_weights(optimizer)

    def _touch(self, optimizer: Optimizer) -> None:
        """Copy an optimizer about to write, where this or a later step of the same turn may
        fail."""
        number, looks = id(optimizer), self.snapshot or _has_bad_rate(optimizer)
        for window in self._open:
            window.followed.update(window.stepped)
            window.stepped.append(number)
            window.steps += 1
            if looks:
                if number not in window.copies:
                    window.copies[number] = OptimizerCopy(optimizer)
                continue
            if window.steps > MOST_STEPS:
                window.hopeless = True
                window.copies.clear()
            wanted = (window.first or number in window.followed) and not window.hopeless
            if wanted and number not in window.copies and size_of(optimizer) <= COPY_LIMIT:
                window.copies[number] = OptimizerCopy(optimizer)

    # -- looking

    def look(self, optimizer: Optimizer, parameters: Sequence[Tensor] | None = None) -> None:
        """Stop the run if the loss, or a gradient about to be used, is not finite."""
        if getattr(optimizer, "found_inf", None) is not None:
            return  # of a fused optimizer, which leaves the step out by itself
        if parameters is None:
            parameters = parameters_of(optimizer)
        gradients = [g for p in parameters if (g := p.grad) is not None]
        norm = total(gradients, self._losses)
        window = self._open[-1] if self._open else None
        if window is not None and window.turns:
            window.reached.random.look(window.turns[-1].random)
        bad = norm - norm != 0.0 and not (are_finite(gradients) and are_finite(self._losses))
        if self._stops(bad):
            self._fault(optimizer)
        self._losses.clear()

    def _look_at_losses(self) -> None:
        """Stop the run if a loss of the last turn is not finite, in a loop without optimizers."""
        if not are_finite(self._losses):
            self._fault(None)
        self._losses.clear()
        self._first_backward = None

    def _look_at_weights(self, optimizer: Optimizer) -> None:
        weights = [p.detach() for p in parameters_of(optimizer)]
        norm = total(weights, [])
        if self._stops(norm - norm != 0.0 and not are_finite(weights)):
            self._fault(optimizer, after=True)

    def _stops(self, bad: bool) -> bool:
        """Whether the run stops here; with other processes, only if all stop."""
        if not self._agreement.attach():
            return bad
        verdict = self._agreement.vote("optimizer", bad)
        if bad and verdict == "go" and not self._unheard:
            self._unheard = True
            print(
                f"nanlab: rank {self._agreement.rank}: loss or gradients of step {self.done} are"
                " not finite; the run goes on, as the other ranks would wait for this one: not"
                " all are under guard, or they are elsewhere in the program",
                file=sys.stderr,
            )
        return bad if verdict == "alone" else verdict == "stop"

    # -- the replay

    def _fault(
        self, optimizer: Optimizer | None, after: bool = False, skipped: Skipped = ""
    ) -> None:
        window, frame = self._chosen(sys._getframe(1))
        replay = self._replay_of(optimizer, window, after, skipped)
        gradients = [(p, p.grad) for p in self.parameters()]
        left: list[tuple[Tensor, Tensor | None]] = [(p, None) for p, _ in gradients]
        try:
            trace = self._traced(window, frame, replay)
        except Exception:  # of nanlab: the program takes its step all the same
            left = gradients
            raise
        finally:
            for parameter, gradient in left:
                parameter.grad = gradient
        if after:
            for copy in replay.weights or (window.copies.values() if window is not None else ()):
                copy.put()
        self._end(trace, window, replay)

    def _end(self, trace: Trace, window: Window | None, replay: Replay) -> None:
        """End the run with the trace of the replay, its buffers as the step found them."""
        if window is not None:
            window.put_tensors_back(spoilt_only=replay.steps > 0)
        named = self.model.named_buffers() if self.model is not None else ()
        if left := [f"`{name}`" for name, b in named if local_part(b).isnan().any()]:
            trace.recording.notes.append(
                f"NaN is left in the model's {listed(left, 3)}: guard kept no values from before to"
                " put back"
            )
        self.trace = trace
        _set_last(trace)
        self.ended(trace)

    def _replay_of(
        self,
        optimizer: Optimizer | None,
        window: Window | None,
        after: bool = False,
        skipped: Skipped = "",
    ) -> Replay:
        """What the replay of a step is compared with, and where it ends."""
        number = self.step + self._steps_of_turn(optimizer, after or bool(skipped))
        if skipped == "collapse" and window is not None:
            number = window.number
        began = after or self._closures_run(optimizer)  # the step that failed is among them
        return Replay(
            number=number,
            steps=len(window.stepped) - began if window is not None else 0,
            closures=self._closures if self._closures_run(optimizer) else 0,
            skips=window.scaler_steps if skipped and window is not None else 0,
            from_first=skipped == "collapse",
            after=after,
            whole=optimizer is None,
            gradients=evidence_of(optimizer, after) if optimizer is not None else [],
            losses=[float(loss) for loss in self._losses],
        )

    def refused(self, error: BaseException, frames: Sequence[FrameType]) -> None:
        """Replay the turn that an exception of the program ended, in case a bad value caused it,
        and keep the trace if it has a culprit.

        frames: the frames of the traceback, innermost last.
        """
        if self.off or self._replay is not None or not is_refusal(error):
            return
        for frame in reversed(frames):
            for window in reversed(self._open):
                if window.turns and window.holds(frame):
                    try:
                        self._explain(error, window, frame)
                    except Exception as ours:
                        self._failed(ours)
                    return

    def _explain(self, error: BaseException, window: Window, frame: FrameType) -> None:
        parameters = {id(p): p for p in [*self.parameters(), *window.reached.parameters]}.values()
        gradients = [(p, p.grad) for p in parameters]
        replay = Replay(
            number=self.done,
            steps=len(window.stepped) - (self._in_closure is not None),
            losses=[float(loss) for loss in self._losses],
            whole=True,
            error=error,
        )
        try:
            trace = self._traced(window, frame, replay)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
        if trace.culprit is not None:
            self.trace = trace
            _set_last(trace)

    def _traced(self, window: Window | None, frame: FrameType | None, replay: Replay) -> Trace:
        """The trace of the replay, with its number and any reason why it differs."""
        trace, reason = self._run_again(window, frame, replay)
        trace.guarded = Guarded(replay.number, not reason, reason)
        if reason:
            trace.recording.notes.append(str(trace.guarded))
        number_steps(trace.recording, replay)
        if replay.error is None and trace.recording.ended != "failed":
            trace.recording.ended = "fault"
        return trace

    def _steps_of_turn(self, optimizer: Optimizer | None, counted: bool) -> int:
        """Steps of this turn before the failed one; counted: whether that one is among them."""
        if optimizer is None:
            return 0
        own = self._counts[id(optimizer)] - counted
        return own if len(self.optimizers) == 1 else min(own, max(self._per_turn - 1, 0))

    def _closures_run(self, optimizer: Optimizer | None) -> bool:
        return optimizer is not None and self._in_closure is optimizer

    def _chosen(self, frame: FrameType | None) -> tuple[Window | None, FrameType | None]:
        """The innermost loop with all backward passes of the step, and its frame."""
        while frame is not None:
            for window in reversed(self._open):
                if window.turns and window.holds(frame):
                    if self._first_backward is None or window.clock <= self._first_backward:
                        return window, frame
            frame = frame.f_back
        return None, None

    def _run_again(
        self, window: Window | None, frame: FrameType | None, replay: Replay
    ) -> tuple[Trace, str]:
        """The trace of the replay, and why it differs from the failed step; "" if it does not."""
        watching = watch(self.model, on_fault="record")
        watching.note_used_gradients()
        watching.is_shared = self._agreement.connected
        watching.is_last = False
        if self._closure_copy is not None:
            self._closure_copy.put()
        if window is None:
            return watching.trace, "it was not inside a training loop that guard could find"
        reason = window.obstacle(replay.steps)
        if self._agreement.connected and self._agreement.vote("step", bool(reason)) == "stop":
            reason = reason or "another rank cannot replay it"
        if reason:
            return watching.trace, reason
        now, looks = Now(window, self.optimizers.values()), self.looks
        replaying = contextlib.ExitStack()
        self._replay = replay
        self._losses.clear()
        try:
            window.put_back(self.parameters())
            with replaying:
                for context in (silenced(), watching, torch.enable_grad()):
                    replaying.enter_context(context)
                self._hook()  # after the watch, which looks at gradients before a step too
                try:
                    window.repeat(window, frame, turns_of(window))
                finally:
                    number_steps(watching.recording, replay)  # other ranks are told of the step
            if replay.error is not None:
                replay.compared = f"it did not raise {type(replay.error).__name__}"
            elif replay.compared is None:
                if replay.skips or replay.closures or replay.whole or not self.looks:
                    self._compare(replay)
                else:
                    replay.compared = "the optimizer step that failed was not reached"
            reason = replay.compared or ""
            if not reason and suspects(window, frame) and not is_telling(replay):
                reason = "none of its values shows that it is the same step"
            if watching.trace.recording.ended == "failed":
                reason = "nanlab itself failed in the replay (see the note)"
            if reason:
                reason += suspects(window, frame)
        except NotReplayable as error:
            reason = str(error)
        except (Exception, SystemExit) as error:
            alike = type(error) is type(replay.error) and str(error) == str(replay.error)
            if not alike:
                reason = (
                    f"the replay raised {type(error).__name__}: {error}{suspects(window, frame)}"
                )
        finally:
            try:
                self._return(now, looks, replaying)
            finally:  # once more, for an interrupt may have ended it
                self._return(now, looks, replaying)
        return watching.trace, reason

    def _return(self, now: Now, looks: bool, replaying: contextlib.ExitStack) -> None:
        """Restore everything as the run left it."""
        replaying.close()  # where an interrupt came before it closed
        self._replay, self.looks = None, looks
        now.put()
        if self._closure_copy is not None:
            self._closure_copy.put()

    def _compare(self, replay: Replay) -> None:
        named = self.model.named_parameters() if self.model is not None else ()
        replay.compare([float(loss) for loss in self._losses], {id(p): n for n, p in named})


def _has_bad_rate(optimizer: Optimizer) -> bool:
    """Whether a learning rate is NaN or infinite; one on a device, which would be waited for, is
    not looked at."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return any(isinstance(rate, float) and not math.isfinite(rate) for rate in rates)


def _put_back(owner: Any, name: str, was: Any, ours: Any) -> None:
    if getattr(owner, name) is ours:
        setattr(owner, name, was)


def _set_last(trace: Trace) -> None:
    import nanlab

    nanlab.last = trace
