"""The numbers among the arguments of an unobserved optimizer step, and what its calls depend on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.capture.program import NUMBERS
from nanlab.trace.mode import DispatchMode
from nanlab.trace.program import Ref

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
# Optimizers whose calls follow from their settings and which state there is, numbers apart.
_REGULAR: frozenset[Any] = frozenset(
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW Adamax NAdam Adagrad Adadelta RMSprop Rprop".split()
)


class Numbers(DispatchMode):
    """The numbers among the arguments of calls in an unobserved step. They are found when they are
    read, by a step on tensors without memory; only scalars have values in it."""

    def __init__(
        self, ops: OpRecorder, known: list[tuple[Any, Any, bool, int]], kind: Any, start: int
    ) -> None:
        super().__init__()
        assert ops.program is not None
        self._recording, self._segment, self._plans = ops.recording, ops.program.segment, ops.plans
        self._known, self._start, self._kind = known, start, kind
        self._groups = ops.program.optimizers.running.groups
        self.first = 0  # index of the first call in what was noted
        self._given: list[tuple[Any, Any]] = []

    def fill(self, noted: list[Any]) -> None:
        """Insert the numbers into the noted calls."""
        try:
            with _disable_current_modes(), torch.no_grad():
                self._step()
            if len(self._given) != len(self._known):
                raise RuntimeError("it makes other calls than the step before")
        except Exception as error:
            if self._segment.lost is None:
                index = len(self._segment.calls) - (len(noted) - self.first) // 8
                self._segment.lost = index, f"its optimizer cannot step again ({error})"
            return
        first = self.first
        for (_, before, scalars, row), (args, kwargs) in zip(self._known, self._given, strict=True):
            free = [i for i, v in enumerate(before) if v.__class__ is float or v.__class__ is int]
            given = list(before)
            for i in free:
                given[i] = args[i]
            noted[first + 1], noted[first + 2] = tuple(given), kwargs
            numbers = tuple([args[i] for i in free if i])
            if scalars and numbers:
                self._recording.scalars[self._start + row] = numbers
            first += 8

    def _step(self) -> None:
        made: Any = self._kind([torch.zeros(1)])
        made.state.clear()
        groups = []
        for group in self._groups:
            parameters = []
            for ref, gradient, state in zip(
                group.parameters, group.gradients, group.state, strict=True
            ):
                if gradient is None:
                    continue
                parameter = self._like(ref)
                parameter.grad = torch.empty_like(parameter)
                if state:
                    made.state[parameter] = {name: self._like(v) for name, v in state.items()}
                parameters.append(parameter)
            groups.append({**group.settings, "params": parameters})
        made.param_groups = groups
        step = type(made).step
        with self:
            getattr(step, "__wrapped__", step)(made)

    def _like(self, value: Any) -> Any:
        """A stand-in for a tensor: a scalar's value before the step; of others shape and dtype."""
        if value.__class__ is not Ref:
            return value
        if value.size:
            return torch.empty(value.size, dtype=value.dtype, device="meta")
        number = torch.empty(0, dtype=value.dtype)
        return number.set_(self._segment.saved[value.storage], value[1], (), ()).clone()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plan = self._plans.get(id(func))
        if plan is None or not plan.skip:
            at = len(self._given)
            if at >= len(self._known) or self._known[at][0] is not func:
                raise RuntimeError("it makes other calls than the step before")
            self._given.append((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]] | None:
    """The settings that decide which calls an optimizer makes; None where code other than torch's
    may run in its step."""
    if (
        type(optimizer) not in _REGULAR
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or len(torch_optimizer._global_optimizer_pre_hooks) > 1
        or len(torch_optimizer._global_optimizer_post_hooks) > 1
        or getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    ):
        return None
    found = []
    for group in optimizer.param_groups:
        if group["lr"].__class__ is not float or not 0.0 < group["lr"] < math.inf:
            return None
        kept = {n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")}
        if any(v.__class__ not in NUMBERS and v.__class__ is not tuple for v in kept.values()):
            return None
        found.append(kept)
    return found


def tensors_of(optimizer: torch.optim.Optimizer) -> tuple[list[Tensor], list[Tensor | None]]:
    """Parameters that have a gradient and their state; the gradients."""
    kept: list[Tensor] = []
    gradients: list[Tensor | None] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            gradient = p.grad
            gradients.append(gradient)
            if gradient is not None:
                kept.append(p)
                kept += [v for v in optimizer.state.get(p, {}).values() if isinstance(v, Tensor)]
    return kept, gradients
