"""Updates that changed nothing, tried again in float32."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.trace.recording import Recording


def moves_in_float32(recording: Recording, owner: int, op: str) -> tuple[int, int] | None:
    """(elements that move in float32, all of them), of an update by ``op`` that moves none in half precision.

    The operation is run again on the operands of one such update. None where none was kept.
    """
    kept = recording.standing.get(owner)
    if kept is None or kept.op.overloadpacket.__name__ != op:
        return None
    try:
        with torch.no_grad():
            if _moved(kept.op, kept.args, kept.kwargs, torch.Tensor.clone)[0]:
                return None
            return _moved(kept.op, kept.args, kept.kwargs, _wide)
    except RuntimeError:
        return None


def _moved(op: Any, args: Any, kwargs: Any, change: Any) -> tuple[int, int]:
    """(elements that an operation in place changes, all of them), once ``change`` was applied to its tensors."""
    made = [_each(a, change) for a in args]
    target = made[0][0] if isinstance(made[0], list) else made[0]
    before = target.clone()
    op(*made, **{k: _each(v, change) for k, v in kwargs.items()})
    return int((target != before).sum()), target.numel()


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_each(v, change) for v in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
