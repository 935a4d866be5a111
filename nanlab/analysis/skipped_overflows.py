"""What is no fault in a step that the program skips: overflows that a smaller loss scale avoids,
and bad data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nanlab.trace.recording import Recording

if TYPE_CHECKING:
    from nanlab.analysis.provenance import Origin


def handled_by_scaler(recording: Recording, origin: Origin) -> bool:
    """Whether the step was skipped (or may yet be), by a GradScaler or by hand, and a smaller loss
    scale would have made it finite."""
    if origin.sink.kind not in ("loss", "gradient"):
        return False
    if recording.undecided and depends_on_scale(recording, origin):
        return True
    position = min(
        origin.sink.step_position, max(origin.position, 0)
    )  # a later backward may add to a gradient that was judged
    return (
        scaler_skipped(recording, position) or skipped_by_hand(recording, position)
    ) and depends_on_scale(recording, origin)


def passed_over(recording: Recording, origin: Origin) -> bool:
    """Whether the data was bad, and the program left out the step that it came to."""
    return (
        origin.kind == "data"
        and origin.sink.kind in ("loss", "gradient")
        and skipped_by_hand(recording, origin.sink.step_position)
    )


def skipped_by_hand(recording: Recording, position: int) -> bool:
    """Whether no optimizer stepped in this training step because the program looks at its gradients
    itself.

    It does if it stepped again later, or passed over bad gradients earlier and went on.
    """
    stepped = {recording.step_of(s.position) for s in recording.training.optimizer_steps}
    step = recording.step_of(position)
    if not stepped or step in stepped:
        return False
    passed_over = {
        recording.step_of(s.step_position) for s in recording.sinks if s.kind == "gradient"
    } - stepped
    return step < max(stepped) or any(other < max(stepped) for other in passed_over)


def scaler_skipped(recording: Recording, position: int) -> bool:
    """Whether a scaler's check found the gradients of this training step non-finite."""
    step = recording.step_of(position)
    for check in recording.training.unscales:
        if (
            check.found_inf
            and check.position >= position
            and recording.step_of(check.position) == step
        ):
            return True
    return False


def depends_on_scale(recording: Recording, origin: Origin) -> bool:
    """Whether the origin is an overflow that a smaller loss scale avoids, judged by running it
    again on smaller gradients."""
    if origin.kind != "operation":
        return False
    row = recording.op(origin.position)
    if row is None:
        return False
    if origin.position == origin.sink.position and any(
        loss.scaled and origin.sink.kind == "loss" and loss.source not in recording.bad
        for loss in recording.training.losses
    ):
        return True
    if not row.backward:
        return False
    kept = recording.kept.get(row.call)
    if kept is None:
        stats = recording.stats(origin.position)
        return stats is not None and not stats.nan and "float16" in str(row.dtype)
    gradients = {
        slot
        for source, slot in recording.operands(origin.position)
        if is_gradient(recording, source)
    }
    return finite_when_scaled(kept, gradients)


def is_gradient(recording: Recording, source: int) -> bool:
    """Whether a row was made by a backward operation."""
    row = recording.op(source)
    return row is not None and row.backward


def finite_when_scaled(kept: Any, gradients: set[int]) -> bool:
    """Whether a kept operation gives finite results once the operands in these slots are 2^-k times
    as large, for some k up to 40."""
    return any(finite_after(kept, gradients, k) for k in (4, 8, 16, 24, 40))


def finite_after(kept: Any, slots: set[int], halvings: int) -> bool:
    """Whether a kept operation gives finite results once the operands in these slots are
    2**-halvings times as large."""
    slot, args = -1, []
    for value in kept.args:
        if isinstance(value, torch.Tensor):
            slot += 1
            if slot in slots and value.is_floating_point():
                value = (value.double() * 2.0**-halvings).to(value.dtype)
        args.append(value)
    try:
        result = kept.op(*args, **kept.kwargs)
    except Exception:
        return False
    results = result if isinstance(result, (tuple, list)) else (result,)
    floating = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()]
    return all(bool(torch.isfinite(r).all()) for r in floating)
