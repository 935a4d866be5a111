"""How a loss is scaled: what to write, given the parameters and the device."""

from __future__ import annotations

from nanlab.rules._rule import Fix
from nanlab.trace.recording import OPTIMIZER, Recording

_STEPS = "scaler.scale(loss).backward(), scaler.step(opt), scaler.update()"


def scaled_loss(recording: Recording) -> Fix:
    """A GradScaler for the device that computes; of parameters in half precision it takes no gradients."""
    seen = [str(d).split(":")[0] for d in recording.devices.items]
    device = next((d for d in seen if d != "cpu"), "cpu")
    scaler = f'scaler = torch.amp.GradScaler("{device}")  # {_STEPS}'
    if not held_in_half(recording):
        return Fix("scale the loss", scaler)
    return Fix(
        "scale the loss, with parameters in float32: GradScaler takes no gradients in float16",
        f'model.float()  # and the forward pass under torch.autocast("{device}", dtype=torch.float16)\n{scaler}',
    )


def held_in_half(recording: Recording) -> bool:
    """Whether a parameter is held in half precision: as it was first read, or as an update left it."""
    if any(s.kind == "parameter" and "float16" in s.dtype for s in recording.sources.values()):
        return True
    return any(row.phase == OPTIMIZER and row.inplace and "float16" in str(row.dtype) for row in recording.all_ops())
