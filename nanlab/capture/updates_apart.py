"""Updates that write to no parameter: new tensors are made of the gradients, and the next turn
computes with them."""

from __future__ import annotations

from nanlab.trace.recording import Recording


def updates_apart(recording: Recording) -> bool:
    """Whether what was made of the last but one turn's gradients goes into the graph of the last,
    so that turns are steps."""
    if len(recording.passes) < 2:
        return False
    before, now = (run.position for run in recording.passes[-2:])
    start = recording.starts[recording.step_of(now)]
    return any(
        before <= source < start for at in range(start, now) for source in recording.parents(at)
    )
