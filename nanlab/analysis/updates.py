"""What an update was made of: a gradient and its size, its sign, the weights themselves, a gradient that the program enlarged."""

from __future__ import annotations

import numpy as np

from nanlab.capture.silent import outputs
from nanlab.history import OptimizerStep, Place
from nanlab.trace.recording import BACKWARD, CALL, LINE, OP, OUTPUT, PHASE, Recording
from nanlab.trace.training_frames import parameter_columns

ENLARGED = 2.0  # times: gradients that the program itself made larger before an update
SIGNS = frozenset("sign sign_ _foreach_sign _foreach_sign_ sgn sgn_ signbit gt lt ge le".split())
MOST_VISITS = 2000  # operations that are walked back over


def depends_on_gradient(recording: Recording, line: int, op: str, position: int) -> bool:
    """Whether what the last update by ``op`` in a line before a position added depends on the size of a gradient.

    A sign is that of a gradient of any size, and a multiple of the weights has none in it. True where that cannot be told.
    """
    rows = [
        at for at, row in recording.rows() if at < position and row[LINE] == line and recording.ops.items[row[OP]] == op
    ]
    if not rows or (row := recording.row(rows[-1])) is None:
        return True
    targets = outputs(recording, row[CALL])
    own = [source for source, slot in recording.operands(rows[-1]) if slot % targets == row[OUTPUT]]
    if not own:
        return True
    seen, waiting = set(own[:1]), [s for s in own[1:] if s != own[0]]
    for at in waiting:
        made = recording.row(at) if at >= 0 else None
        if made is None and at not in seen and at >= 0:
            return True
        if made is None or at in seen or recording.ops.items[made[OP]] in SIGNS or len(seen) > MOST_VISITS:
            continue
        if made[PHASE] == BACKWARD:
            return True
        seen.add(at)
        waiting.extend(recording.parents(at))
    return False


def enlarged_gradients(recording: Recording, step: OptimizerStep) -> tuple[Place, float] | None:
    """(operation, factor): what the program made the gradients larger with before an optimizer step; None if it did not.

    A factor that is a Python number is none of that: it belongs to the learning rate.
    """
    edit = next((e for e in recording.training.edits if e.position == step.end - 1), None)
    if edit is None or edit.at is None or edit.constant:
        return None
    blocks = parameter_columns(recording)
    rows = (blocks["position"] == edit.position) & blocks["used_known"] & blocks["gradient_known"]

    def norm(of: str) -> float:
        return float(np.sqrt(np.nansum(blocks[f"{of}_rms"][rows] ** 2 * blocks[f"{of}_numel"][rows])))

    before, after = norm("gradient") / edit.scale, norm("used")
    return (edit.at, after / before) if before > 0 and after >= ENLARGED * before else None
