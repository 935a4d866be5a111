"""An update whose learning rate is no finite number, run again with the last rate that was one."""

from __future__ import annotations

import math
from typing import Any

import torch

from nanlab.analysis.training import optimizer_step_at
from nanlab.trace.recording import Recording


def last_finite_rate(recording: Recording, position: int) -> float | None:
    """The last finite learning rate above 0 of the optimizer that runs at a position, before that step; None if it had none."""
    running = optimizer_step_at(recording, position)
    if running is None:
        return None
    earlier = [s for s in recording.training.optimizer_steps if s.number == running.number and s.end <= position]
    rates = [r for s in earlier for r in s.rates if r is not None and math.isfinite(r) and r > 0]
    return rates[-1] if rates else None


def finite_at_rate(recording: Recording, position: int, rate: float) -> bool:
    """Whether the operation of an optimizer that failed at a position gives finite weights with another learning rate.

    The operation is run again on its operands: ``p.add_(g, alpha=-rate)``, or the decay ``p.mul_(1 - rate * decay)``.
    Of weights that it had overwritten already the largest magnitude is known, which stands for all of them.
    """
    row, running = recording.op(position), optimizer_step_at(recording, position)
    kept = recording.kept.get(row.call) if row is not None else None
    if kept is None or running is None:
        return False
    decay = float(dict(running.settings).get("weight_decay") or 0.0)
    multiplies = kept.op.overloadpacket.__name__ in ("mul_", "_foreach_mul_")
    number = 1.0 - rate * decay if multiplies else -rate
    args, kwargs = [_replaced(a, number) for a in kept.args], {k: _replaced(v, number) for k, v in kept.kwargs.items()}
    target = args[0] if isinstance(args[0], list) else [args[0]]
    if row is None or not all(isinstance(t, torch.Tensor) for t in target):
        return False
    try:
        with torch.no_grad():
            for slot, weights in enumerate(target):
                weights.masked_fill_(~torch.isfinite(weights), _largest(recording, row.call, slot))
            kept.op(*args, **kwargs)
    except (RuntimeError, TypeError):
        return False
    return all(bool(torch.isfinite(t).all()) for t in target)


def _largest(recording: Recording, call: int, slot: int) -> float:
    """The largest magnitude of an operand; NaN where it is not known, or not finite."""
    stats = next((recording.stats(source) for source, at in recording.operands(call) if at == slot), None)
    if stats is None or not stats.is_finite or stats.min is None or stats.max is None:
        return math.nan
    return float(max(abs(stats.min), abs(stats.max)))


def _replaced(value: Any, number: float) -> Any:
    """An argument, copied, with a number in place of one that is not finite."""
    if isinstance(value, (list, tuple)):
        return [_replaced(v, number) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return number
    return value.clone() if isinstance(value, torch.Tensor) else value
