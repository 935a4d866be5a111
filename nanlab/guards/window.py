"""Windows: the turns of a loop since the last optimizer step, kept so that they can run again."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from nanlab.capture import Stop
from nanlab.capture.state import Reached, are_finite, same, same_bits
from nanlab.capture.training import OptimizerCopy
from nanlab.stats.memory import local_part
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer


# of a loop without an optimizer step that are kept; a replay of more begins too late
MOST_TURNS = 64


class ReplayEnd(Stop):
    """Ends a replay at the point where the run stopped."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale and growth counter of a GradScaler at some moment."""

    scaler: Any
    scale: Tensor
    growth: Tensor

    @classmethod
    def of(cls, scaler: Any) -> Scale:
        return cls(scaler, scaler._scale.clone(), scaler._growth_tracker.clone())

    def put(self) -> None:
        self.scaler._scale.copy_(self.scale)
        self.scaler._growth_tracker.copy_(self.growth)


@dataclass(slots=True)
class Turn:
    """The state at the start of one turn of a loop."""

    values: dict[str, Any]  # the variables that it carries over, or the arguments of the call
    random: tuple[Any, ...]
    item: Any = None  # what the loop was given
    # variables that it was given beside; None until it is over
    late: dict[str, Any] | None = None
    call: Callable[[], Any] | None = None  # of a trainer: runs the turn again
    scale: Scale | None = None  # of a turn that a GradScaler skipped


@dataclass(slots=True)
class Window:
    """The turns of one loop since the last optimizer step."""

    source: Any  # the loop, or whose calls they are
    repeat: Callable[[Window, FrameType | None, Iterator[Turn]], None]
    holds: Callable[[FrameType], bool]  # whether a frame stands in the loop
    reached: Reached
    turns: list[Turn] = field(default_factory=list)
    python: Any = None  # the Python state at its head
    clock: int = 0  # when it began
    number: int = 0  # of the step that ran then
    at_head: int = 0  # number of the step at its last head
    rounds: set[int] = field(default_factory=set)  # optimizers that stepped between its heads
    is_part: bool = False  # whether its turns are part of a step of the loop around it
    mark: int = -1  # optimizer steps at its last head
    steps: int = 0  # optimizer steps since it began
    scaler_steps: int = 0  # those that a GradScaler took or skipped
    first: bool = True  # whether it is the first
    # optimizers after which another step came in one window
    followed: set[int] = field(default_factory=set)
    # optimizers that have stepped since it began, in order
    stepped: list[int] = field(default_factory=list)
    copies: dict[int, OptimizerCopy] = field(default_factory=dict)
    # gradients that its first backward added to, where the program does not clear them
    gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    hopeless: bool = False  # too many steps in one turn for copies
    cut: bool = False  # its first turns are no longer kept

    def begin(self, clock: int, number: int) -> None:
        """Begin anew after an optimizer step, in a turn of this step's number."""
        self.first = self.mark == -1 or (self.first and not self.steps)
        self.turns.clear()
        self.stepped.clear()
        self.copies.clear()
        self.cut, self.steps, self.scaler_steps = False, 0, 0
        self.clock, self.number = clock, number
        self.python = self.reached.take()

    def add(self, turn: Turn, most: int) -> None:
        """Keep the state at the start of a turn."""
        if len(self.turns) >= most:
            del self.turns[0]
            self.cut = True
        self.turns.append(turn)

    def obstacle(self, steps: int) -> str:
        """Why it cannot be run again up to so many optimizer steps; "" if it can."""
        if self.cut:
            return f"the loop took more than {MOST_TURNS} turns since the last optimizer step"
        if any(number not in self.copies for number in self.stepped[:steps]):
            return (
                "an optimizer had already stepped in this turn, and its parameters were not copied;"
                " put guard around the inner loop, or pass snapshot=1"
            )
        return ""

    def put_tensors_back(self, spoilt_only: bool) -> None:
        """Restore buffers, and what else the program writes to, as they were found.

        spoilt_only: only what is not finite now, as an optimizer has stepped since.
        """
        reached = self.reached
        buffers = {id(module._buffers) for module in reached.python.modules}
        for holder, content in zip(reached.python.holders, self.python[0], strict=True):
            for name, was in (content or {}).items() if id(holder) in buffers else ():
                now = holder.get(name)
                if was is not now and not (spoilt_only and now is not None and are_finite([now])):
                    holder[name] = was
        reached.tensors.put(spoilt_only)

    def put_back(self, parameters: list[Tensor]) -> None:
        """Restore everything as it was found, with no gradients but its own."""
        for copy in self.copies.values():
            copy.put()
        self.reached.tensors.put()
        self.reached.python.put(self.python)
        for parameter in (*parameters, *self.reached.parameters):
            parameter.grad = None
        for parameter, gradient in self.gradients:
            parameter.grad = gradient.clone()
        first = next((turn.scale for turn in self.turns if turn.scale is not None), None)
        if first is not None:
            first.put()
        for scaler in scalers_of(self):
            scaler._per_optimizer_states.clear()


@dataclass(slots=True)
class Replay:
    """The replay of a step: where it ends, and what it is compared with."""

    number: int  # of the step in the run
    steps: int  # optimizer steps before the one that failed
    losses: list[float]
    whole: bool  # whether it ends with the turn: no optimizer steps in it
    closures: int = 0  # calls of a closure in that step; 0 if it has none
    skips: int = 0  # GradScaler steps after which it ends, 0 if an optimizer's ends it
    from_first: bool = False  # whether the number is that of its first step, not of its last
    after: bool = False  # whether the fault is inside of the optimizer step
    # parameters and the gradients that stopped the run
    gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    error: BaseException | None = None  # by which the program ended, not by guard
    step: int = 0
    skip: int = 0
    compared: str | None = None  # what differs; None until it was looked at
    weights: list[OptimizerCopy] = field(default_factory=list)  # before the step that failed

    def compare(self, losses: list[float], names: dict[int, str]) -> None:
        """Compare losses and gradients with those that stopped the run.

        names: of parameters, by id.
        """
        self.compared = ""
        # a closure has run more than once, and was looked at each time
        losses = losses[-len(self.losses) or len(losses) :]
        if len(losses) == len(self.losses) and not all(map(same, losses, self.losses)):
            self.compared = "its loss differs"
        for parameter, gradient in self.gradients:
            if not same_bits(parameter.detach() if self.after else parameter.grad, gradient):
                name = names.get(id(parameter), f"a parameter of shape {tuple(parameter.shape)}")
                self.compared = f"the {'value' if self.after else 'gradient'} of {name} differs"
                return


def number_steps(recording: Recording, replay: Replay) -> None:
    """Number the steps of a replay as in the run."""
    last = 0 if replay.from_first else len(recording.starts) - 1
    recording.first_step = max(replay.number - last, 0)


def evidence_of(optimizer: Optimizer, after: bool) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with its gradient; after a step, with its value."""
    if after:
        return [(p, p.detach().clone()) for p in parameters_of(optimizer)]
    return [(p, p.grad) for p in parameters_of(optimizer) if p.grad is not None]


class Now:
    """The state in which the run stopped, restored after the replay."""

    def __init__(self, window: Window, optimizers: Any) -> None:
        self.reached = window.reached
        self.python = window.reached.python.take()
        self.random = window.reached.random.take()
        self.tensors = [t.detach().clone() for t in window.reached.tensors.kept]
        touched = set(window.copies)
        self.optimizers = [OptimizerCopy(o) for o in optimizers if id(o) in touched]
        self.scales = [Scale.of(scaler) for scaler in scalers_of(window)]

    def put(self) -> None:
        for copy in self.optimizers:
            copy.put()
        self.reached.tensors.put_back(self.tensors)
        self.reached.python.put(self.python)
        self.reached.random.put(self.random)
        for scale in self.scales:
            scale.put()
            scale.scaler._per_optimizer_states.clear()


def scalers_of(window: Window) -> list[Any]:
    """The GradScalers that skipped turns of a window, each once."""
    known = {id(t.scale.scaler): t.scale.scaler for t in window.turns if t.scale is not None}
    return [*known.values()]


def turns_of(window: Window) -> Iterator[Turn]:
    """The turns of a window, with the random states restored before each."""
    for turn in window.turns:
        window.reached.random.put(turn.random)
        yield turn


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def is_telling(replay: Replay) -> bool:
    """Whether some compared value is specific to the step: finite and not zero."""
    values = [torch.tensor(replay.losses), *(local_part(g) for _, g in replay.gradients)]
    dense = (v.to_dense() if v.is_sparse else v for v in values)
    return replay.error is not None or any(bool((v.isfinite() & (v != 0)).any()) for v in dense)


def suspects(window: Window, frame: FrameType | None) -> str:
    """A likely reason in the loop body why a replay differs, as a clause; "" for none."""
    takers = window.source.takers(frame) if hasattr(window.source, "takers") else []
    if takers:
        told = ", ".join(f"`{t if len(t) <= 40 else t[:37] + '...'}`" for t in takers[:3])
        return f"; the body calls {told}, whose effect cannot be undone"
    if any(type(m).__name__ == "OptimizedModule" for m in window.reached.modules):
        return "; the replay runs a compiled module eagerly, with other rounding"
    return ""


def tells(window: Window, frame: FrameType | None) -> bool:
    """Whether a replay of its turns would write to something outside a second time."""
    if frame is None or not hasattr(window.source, "tells"):
        return True
    return bool(window.source.tells(frame, whole=len(window.turns) > 1))


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress everything that the block prints or displays."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if shell is None:
            yield
            return
        from IPython.utils.capture import capture_output

        with capture_output():
            yield
