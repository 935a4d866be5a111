"""All steps of a run as a picture: a row a step, a column an operation, one pixel each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nanlab.views._charts import pixels
from nanlab.views._html import escape, plural

if TYPE_CHECKING:
    from nanlab.trace import Trace

UNSEEN, FINE, FLUSHED, BAD = range(4)
PALETTE = [(128, 128, 128, 0), (128, 128, 128, 60), (222, 145, 30, 255), (217, 60, 52, 255)]
WIDEST = 900  # columns; neighbours share one beyond that, which shows the worst of them


def cells(trace: Trace) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """(steps, operations) of UNSEEN, FINE, FLUSHED (all zero, and not always) or BAD; the training
    step of each row.

    The last step is in it though it did not end.
    """
    recording = getattr(trace, "recording", None)
    if recording is None:
        return np.zeros((0, 0), np.uint8), np.zeros(0, np.int64)
    series = recording.training.series
    table = series.table
    steps = np.array([recording.step_of(end - 1) for end in series.steps], np.int64)
    zero = np.isneginf(table)
    always = zero.all(axis=0) if len(table) else np.zeros(table.shape[1], bool)
    found = np.full(table.shape, FINE, np.uint8)
    found[np.isnan(table)] = UNSEEN
    found[zero & ~always] = FLUSHED
    found[np.isposinf(table)] = BAD
    last, row = _last_step(trace, table.shape[1])
    if last is not None and (not len(steps) or last > steps[-1]):
        found, steps = np.vstack([found, row]), np.append(steps, last)
    return found, steps


def _last_step(trace: Trace, columns: int) -> tuple[int | None, npt.NDArray[np.uint8]]:
    """The step that the run ended in, on the columns of the others: the same line, operator, module
    and turn."""
    row = np.zeros(columns, np.uint8)
    ops = trace.ops
    if not len(ops):
        return None, row
    places = trace.recording.training.series.places
    names, files = trace.recording.modules.items, trace.recording.places
    turns: dict[tuple[object, ...], list[int]] = {}
    for column, place in enumerate(places):
        key = (place.op, place.phase, names[place.module], *files[place.line][:2])
        turns.setdefault(key, []).append(column)
    last = int(ops["step"].max())
    rows = ops[(ops["step"] == last).to_numpy(dtype=bool)]
    bad = rows[["nan", "posinf", "neginf"]].fillna(0).sum(axis=1).to_numpy() > 0
    phases = {"forward": 0, "backward": 1, "optimizer": 2, "recompute": 3, "other": 4}
    seen = zip(
        rows["op"], rows["phase"], rows["module"], rows["file"], rows["line"], bad, strict=True
    )
    for op, phase, module, file, line, is_bad in seen:
        waiting = turns.get((op, phases.get(str(phase), 4), module, file, int(line)))
        if waiting:
            row[waiting.pop(0)] = BAD if is_bad else FINE
    return last, row


def minimap(trace: Trace) -> str:
    """The picture with its legend; "" with fewer than two steps."""
    found, steps = cells(trace)
    if len(steps) < 2 or not found.shape[1]:
        return ""
    narrow = narrowed(found)
    bad = int((found == BAD).sum())
    told = f"{plural(len(steps), 'step')} by {plural(found.shape[1], 'result')}: {bad:,} not finite"
    height = min(150, max(30, 4 * len(steps)))
    return (
        f'<div class="nl-minimap"><div class="nl-dim">Steps {steps[0]} to {steps[-1]} (downward),'
        " operations in their order (across): grey finite, amber all zero, red not"
        f" finite.</div>{pixels(narrow, PALETTE, escape(told), height)}</div>"
    )


def narrowed(found: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """At most WIDEST columns, each the worst of those that it stands for."""
    width = found.shape[1]
    if width <= WIDEST:
        return found
    starts = np.linspace(0, width, WIDEST, endpoint=False).astype(int)
    narrow: npt.NDArray[np.uint8] = np.maximum.reduceat(found, starts, axis=1)
    return narrow
