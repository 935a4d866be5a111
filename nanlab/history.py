"""What happened in the training loop: losses, scales, optimizer steps, updates."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Loss:
    """The root of a backward pass."""

    position: int  # of the trace when backward was called
    source: int  # row or source of the loss, before a loss scaler multiplied it
    scaled: bool  # whether a loss scaler did


@dataclass(frozen=True, slots=True)
class ScaleUpdate:
    """One ``GradScaler.update()``."""

    position: int  # row of the new scale
    before: float  # the old scale
    after: float
    skipped: bool  # the inf checks found something: the optimizer did not step


@dataclass(frozen=True, slots=True)
class Unscale:
    """The gradients of one optimizer divided by the loss scale, and checked."""

    position: int  # row of the first gradient
    count: int  # gradients
    found_inf: bool


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One ``Optimizer.step()`` that was not skipped."""

    position: int  # of the trace when it began
    end: int  # and when it had ended
    optimizer: str  # class name
    number: int  # which optimizer, from 0 in the order of their first step
    rates: tuple[float, ...]  # learning rate of each parameter group
    settings: tuple[tuple[str, float | bool], ...]  # of the first group: eps, weight_decay, momentum, ...
    line: int
    site: int


@dataclass(frozen=True, slots=True)
class ParameterStep:
    """A parameter in one training step; numbers of rows, sources or (update) statistics, None where there is none."""

    position: int
    owner: int
    value: int | None
    gradient: int | None  # as the backward pass left it
    used: int | None  # as the optimizer took it: unscaled, clipped
    update: int | None  # statistics number of new value - old value
    lr: float | None


@dataclass(frozen=True, slots=True)
class Absorbed:
    """An in-place operation on a parameter or buffer that changed no bit of it."""

    position: int
    owner: int


@dataclass(slots=True)
class History:
    """The events of the loop, in their order; positions tie them to the trace."""

    losses: list[Loss] = field(default_factory=list)
    scales: list[ScaleUpdate] = field(default_factory=list)
    unscales: list[Unscale] = field(default_factory=list)
    optimizer_steps: list[OptimizerStep] = field(default_factory=list)
    parameters: list[ParameterStep] = field(default_factory=list)
    absorbed: list[Absorbed] = field(default_factory=list)
