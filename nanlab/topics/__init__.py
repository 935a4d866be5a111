"""Faults of a run in which each operation may be right: Trace -> Findings."""

from __future__ import annotations

from nanlab.capture.training import Written
from nanlab.topics.absorbed_updates import note_absorbed_updates
from nanlab.topics.clipping import note_clipping, note_edits
from nanlab.topics.dead_gradients import note_dead
from nanlab.topics.flushes import note_flushes
from nanlab.topics.hidden_overflows import note_hidden_overflows
from nanlab.topics.scaler import note_early_clipping, note_factors, still_scaled
from nanlab.topics.trends import follow
from nanlab.trace.frames import StepRows


def check(rows: StepRows) -> None:
    """Note the gradients that the ending step changed, or used in the wrong order."""
    note_factors(rows)
    note_early_clipping(rows)
    still_scaled(rows)
    note_edits(rows)
    rows.recording.sinks.extend(note_clipping(rows))


def look_through(rows: StepRows, written: Written, measured: bool) -> None:
    """Add the magnitudes and losses of a closed step to the history.

    measured: whether its rows have statistics; otherwise only large results are followed.
    """
    follow(rows, written.all)
    if measured:
        note_flushes(rows, written.gradients, written.by_hand)
        note_hidden_overflows(rows)
        note_dead(rows, written.gradients)
        note_absorbed_updates(rows, written.by_hand)
