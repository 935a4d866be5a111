"""Each half-precision operation once more in float32, from the same operands: what the narrow
format lost."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.capture.plans import Plan
from nanlab.trace.recording import Chunk, Recording, Shadow

Tensor = torch.Tensor
HALF = (torch.float16, torch.bfloat16)


def _upcast(value: Any, copies: dict[int, Tensor]) -> Any:
    """The value with half-precision tensors and dtypes in float32, and with those ``copies`` that
    are there already; one for each tensor."""
    if isinstance(value, Tensor):
        if id(value) not in copies and value.dtype in HALF:
            copies[id(value)] = value.detach().float()
        return copies.get(id(value), value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_upcast(v, copies) for v in value)
    return torch.float32 if value in HALF else value


def _tensors(value: Any) -> list[Tensor]:
    found = (
        [value] if isinstance(value, Tensor) else value if isinstance(value, (list, tuple)) else []
    )
    return [v for v in found if isinstance(v, Tensor)]


def _copies_of_written(func: Any, plan: Plan, args: Any, kwargs: Any) -> dict[int, Tensor]:
    """A copy, by identity, of each wider tensor that the operation writes: the twin is computed
    first and must not write it too."""
    copies: dict[int, Tensor] = {}
    if plan.plain:
        return copies
    names = [argument.name for argument in func._schema.arguments]
    for where in (*plan.writes, *plan.hidden):
        at = names.index(where) if isinstance(where, str) else where
        for tensor in _tensors(args[at] if at < len(args) else kwargs.get(names[at])):
            if tensor.dtype not in HALF:
                copies[id(tensor)] = tensor.detach().clone()
    return copies


class ShadowRecorder:
    """Recomputes operations and keeps, for each half-precision result, the statistics of its
    float32 twin.

    The twin of one operation starts from the operands as they are in half precision, so it shows
    the loss of that operation alone; a cast's twin is what was cast. Random operations, views and
    what torch cannot run in float32 have no twin.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def before(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> list[Tensor] | None:
        """The twins of an operation's results, computed before it runs; None where it has none."""
        if (
            plan.view
            or plan.uninitialised
            or plan.copies
            or torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
            # it may write what its schema does not tell, or talk to other processes
            or func.namespace != "aten"
        ):
            return None
        if not self._narrow(args) and not any(
            v in HALF for v in kwargs.values() if isinstance(v, torch.dtype)
        ):
            return None
        try:
            copies = _copies_of_written(func, plan, args, kwargs)
            wide_args, wide_kwargs = (
                _upcast(tuple(args), copies),
                {k: _upcast(v, copies) for k, v in kwargs.items()},
            )
            result = func(*wide_args, **wide_kwargs)
        except Exception:
            return None
        return (
            [t for w in plan.writes if isinstance(w, int) for t in _tensors(wide_args[w])]
            if plan.writes
            else _tensors(result)
        )

    def _narrow(self, args: Any) -> bool:
        return any(t.dtype in HALF for a in args for t in _tensors(a))

    def after(self, chunk: Chunk, call: int, targets: list[Tensor], twins: list[Tensor]) -> None:
        """Compare the results with their twins."""
        if len(targets) != len(twins):
            return
        for i, (target, twin) in enumerate(zip(targets, twins, strict=True)):
            if target.dtype in HALF and twin.dtype == torch.float32 and twin.shape == target.shape:
                wide = target.detach().float()
                flushed = int(((wide == 0) & (twin != 0)).sum())
                overflowed = int((~torch.isfinite(wide) & torch.isfinite(twin)).sum())
                sound = torch.isfinite(wide) & torch.isfinite(twin) & (twin != 0)
                error = torch.where(sound, (wide - twin).abs() / twin.abs(), torch.zeros_like(twin))
                worst = float(error.max()) if error.numel() else 0.0
                stat = (chunk.number << 32) | chunk.stats.add(twin)
                self.recording.shadows[call + i] = Shadow(stat, flushed, overflowed, worst)
