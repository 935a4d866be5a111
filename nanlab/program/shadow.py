"""Each half-precision operation of the kept steps once more in float32, from the same operands:
what the narrow format lost."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.memory import Memory, operate
from nanlab.program.replay import plan_of, results_of
from nanlab.program.rerun import rerun
from nanlab.program.window import Window, window
from nanlab.stats import StatsTable
from nanlab.trace.program import Call, refs_in
from nanlab.trace.recording import Recording, Shadow

Tensor = torch.Tensor
HALF = (torch.float16, torch.bfloat16)


def make_twins(recording: Recording) -> dict[int, Shadow]:
    """The float32 twin of each half-precision result of the steps that are at hand, by row.

    The twin of one operation starts from the operands as they are in half precision, so it shows
    the loss of that operation alone; a cast's twin is what was cast. Random operations, views and
    what torch cannot run in float32 have no twin. A step that cannot be run again has none from
    there on, and a note.
    """
    found: dict[int, Shadow] = {}
    if not any(dtype in HALF for dtype in recording.dtypes.items):
        return found
    for step in range(len(recording.starts)):
        if step < len(recording.folded) and step not in recording.whole:
            continue
        try:
            run = _Run(window(recording, step), found)
            if run.where.segments and run.has_halves():
                rerun(run.where.segments, run.after, run.before, run.memory)
        except NotReplayable as error:
            _tell(recording, step, str(error))
        except Exception as error:  # an operator that fails in many ways
            _tell(recording, step, f"running it again failed ({type(error).__name__}: {error})")
    return found


def _tell(recording: Recording, step: int, reason: str) -> None:
    if recording.shadowed and not any(note.endswith(reason) for note in recording.notes):
        recording.notes.append(f"not all float32 twins of step {step} are known: {reason}")


class _Run:
    """One run of a step, with the twins of what it makes."""

    def __init__(self, where: Window, found: dict[int, Shadow]) -> None:
        self.where, self.found, self.memory = where, found, Memory()
        self.table = StatsTable()
        self._twins: list[Tensor] | None = None

    def has_halves(self) -> bool:
        """Whether some call of the step reads or makes half precision."""
        return any(
            ref.dtype in HALF
            for segment in self.where.segments
            for call in segment.calls
            for ref in refs_in((call.args, call.out))
        )

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the twins of a call's results, then run it."""
        inside = self.where.start <= call.position < self.where.end
        self._twins = _twins(call.func, args, kwargs) if inside else None
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> None:
        """Compare the results of a call with their twins."""
        twins, self._twins = self._twins, None
        if not twins:
            return
        targets = results_of(call, out, self.memory)
        if len(targets) != len(twins):
            return
        for i, (target, twin) in enumerate(zip(targets, twins, strict=True)):
            if target.dtype in HALF and twin.dtype == torch.float32 and twin.shape == target.shape:
                self.found[call.position + i] = self._compared(target.float(), twin)

    def _compared(self, wide: Tensor, twin: Tensor) -> Shadow:
        flushed = int(((wide == 0) & (twin != 0)).sum())
        overflowed = int((~torch.isfinite(wide) & torch.isfinite(twin)).sum())
        sound = torch.isfinite(wide) & torch.isfinite(twin) & (twin != 0)
        error = torch.where(sound, (wide - twin).abs() / twin.abs(), torch.zeros_like(twin))
        worst = float(error.max()) if error.numel() else 0.0
        return Shadow(self.table, self.table.add(twin), flushed, overflowed, worst)


def _twins(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor] | None:
    """The twins of an operation's results; None where it has none."""
    plan = plan_of(func)
    if (
        plan.view
        or plan.uninitialised
        or plan.copies
        or torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        # it may write what its schema does not tell, or talk to other processes
        or func.namespace != "aten"
    ):
        return None
    if not any(t.dtype in HALF for a in args for t in _tensors(a)) and not any(
        v in HALF for v in kwargs.values() if isinstance(v, torch.dtype)
    ):
        return None
    try:
        copies = _copies_of_written(func, plan, args, kwargs)
        wide_args = _upcast(tuple(args), copies)
        wide_kwargs = {k: _upcast(v, copies) for k, v in kwargs.items()}
        result = operate(func, wide_args, wide_kwargs)
    except Exception:
        return None
    return (
        [t for w in plan.writes if isinstance(w, int) for t in _tensors(wide_args[w])]
        if plan.writes
        else _tensors(result)
    )


def _upcast(value: Any, copies: dict[int, Tensor]) -> Any:
    """The value with half-precision tensors and dtypes in float32, and with those ``copies`` that
    are there already; one for each tensor."""
    if isinstance(value, Tensor):
        if id(value) not in copies and value.dtype in HALF:
            copies[id(value)] = value.float()
        return copies.get(id(value), value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_upcast(v, copies) for v in value)
    return torch.float32 if value in HALF else value


def _tensors(value: Any) -> list[Tensor]:
    found = (
        [value] if isinstance(value, Tensor) else value if isinstance(value, (list, tuple)) else []
    )
    return [v for v in found if isinstance(v, Tensor)]


def _copies_of_written(func: Any, plan: Any, args: Any, kwargs: Any) -> dict[int, Tensor]:
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
                copies[id(tensor)] = tensor.clone()
    return copies
