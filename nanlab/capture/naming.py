"""What the running functions call their tensors, read once where a fault shows."""

from __future__ import annotations

from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import torch

from nanlab.capture.ledger import is_plain
from nanlab.trace.recording import NamedTensor

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

MOST_FRAMES = 60  # above the one that is running
MOST_NAMES = 200  # of one function, or of a notebook
MOST_STEPS = 2  # in which names are read: those of the first faults


def note_names(ops: OpRecorder, frame: FrameType | None, position: int) -> None:
    """Add the tensors that the program's running functions have under a name, the innermost
    function first, once a step."""
    step_of = ops.recording.step_of
    known = {step_of(named.position) for named in ops.recording.named}
    if step_of(position) in known or len(known) >= MOST_STEPS:
        return
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        if ops.lines.user_code(frame):
            ops.recording.named += _of_frame(ops, frame, position)
        frame = frame.f_back


def _of_frame(ops: OpRecorder, frame: FrameType, position: int) -> list[NamedTensor]:
    code, found = frame.f_code, list[NamedTensor]()
    held = frame.f_locals
    named = [*held.items()][:MOST_NAMES]
    if code.co_flags & CO_OPTIMIZED and type(held) is dict:
        held.clear()  # a copy that the frame would keep, up to Python 3.12, with all its tensors
    for name, value in named:
        if type(value) is not torch.Tensor or value.requires_grad or not is_plain(value):
            continue
        entry = ops.ledger.entries.get(value.untyped_storage()._cdata)
        if entry is not None and value.dim():
            file, first = ops.lines.shown(code), _first_line(code)
            offset, size = int(value.storage_offset()), tuple(value.shape)
            at = position, file, first, frame.f_lineno, name, entry.serial
            found.append(NamedTensor(*at, offset, size, value.stride()))
    return found


def _first_line(code: CodeType) -> int:
    """The first line of a function; 0 of a file or cell."""
    return 0 if code.co_name == "<module>" else code.co_firstlineno
