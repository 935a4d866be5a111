"""The steps that a loss scaler skipped: by which gradient, whether a smaller scale would have been
finite, and whether one will be found."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import pandas as pd

from nanlab.analysis.provenance import origin_of
from nanlab.analysis.skipped_overflows import finite_after, is_gradient
from nanlab.analysis.training import where
from nanlab.capture.magnitudes import place_of
from nanlab.formats import format_of
from nanlab.history import Place
from nanlab.trace.recording import BORN, Recording

# skipped steps in a row at one scale (or below 1) that show that no scale will be found
FIXED_SKIPS = 3
MOST_SKIPS = 24  # skipped steps in a row that no calibration needs: 2**24 down to 1
MOST_HALVINGS = 48  # of the scale that are tried in a replay
KnownBy = Literal["replay", "histogram", "later step", "no scale", ""]


@dataclass(frozen=True, slots=True)
class Skip:
    """A step that the scaler skipped, and the first gradient that made it."""

    step: int
    position: int
    scale: float  # 0 if nothing was seen to use it
    after: float
    parameter: str
    place: Place | None  # the operation whose gradient overflowed
    # the highest scale 2**k at which that operation is finite; None: none, or not known
    finite_at: float | None
    known_by: KnownBy


def skips(recording: Recording) -> list[Skip]:
    """Every skipped step, in order."""
    found: dict[int, Skip] = {}
    sinks = [s for s in recording.sinks if s.kind == "gradient"]
    for check in recording.training.unscales:
        step = recording.step_of(check.position)
        if not check.found_inf or step in found:
            continue
        update = next((u for u in recording.training.scales if u.position > check.position), None)
        if update is not None and recording.step_of(update.position) != step:
            update = None
        sink = next((s for s in sinks if recording.step_of(s.step_position) == step), None)
        origin = (
            origin_of(recording, sink)
            if sink is not None and sink.position in recording.bad
            else None
        )
        place = (
            place_of(recording, origin.position)
            if origin is not None and origin.position >= 0
            else None
        )
        scale = update.before if update else scale_of(recording, step)
        finite, known_by = _finite_at(recording, step, scale)
        after = update.after if update else scale
        found[step] = Skip(
            step, check.position, scale, after, sink.name if sink else "", place, finite, known_by
        )
    return _settled(recording, list(found.values()))


def _settled(recording: Recording, entries: list[Skip]) -> list[Skip]:
    """The skips, none of them said to be finite at a scale at which one of those right after it was
    skipped again.

    What a replay of the operation that overflowed cannot see is whether a later one would have
    overflowed next.
    """
    ran = {
        recording.step_of(u.position): u.before for u in recording.training.scales if not u.skipped
    }
    settled: list[Skip] = []
    for skip in reversed(entries):
        after = settled[-1] if settled and settled[-1].step == skip.step + 1 else None
        next_scale = after.scale if after is not None else ran.get(skip.step + 1)
        if next_scale == skip.after and skip.known_by != "no scale":  # else it is another scaler's
            limit = after.finite_at if after is not None else next_scale
            known_by: KnownBy = after.known_by if after is not None else "later step"
            if limit is not None and limit < (skip.finite_at or math.inf):
                skip = replace(skip, finite_at=limit, known_by=known_by)
        settled.append(skip)
    return settled[::-1]


def skips_frame(recording: Recording) -> pd.DataFrame:
    """A row per skipped step: ``step``, ``scale_before``, ``scale_after``, ``parameter`` (the first
    whose gradient was not finite), ``op``, ``file``, ``line``, ``source`` of the forward operation
    whose gradient overflowed, ``finite_at`` and ``known_by``.

    finite_at: the highest scale 2**k at which the operations that overflowed are finite: by running
    them again on smaller gradients ("replay") or from the values that a cast could not hold
    ("histogram"); where the steps right after it were skipped at that scale too, the one at which
    they came to rest ("later step"). "no scale": they fail at any.
    """
    rows = []
    for skip in skips(recording):
        at: dict[str, Any] = where(recording, skip.place) if skip.place is not None else {}
        file, line, source = (at["file"], at["line"], at["source"]) if at else ("", 0, "")
        scales = {"step": skip.step, "scale_before": skip.scale, "scale_after": skip.after}
        place = {
            "parameter": skip.parameter,
            "op": at.get("op", ""),
            "file": file,
            "line": line,
            "source": source,
        }
        rows.append({**scales, **place, "finite_at": skip.finite_at, "known_by": skip.known_by})
    names = "step scale_before scale_after parameter op file line source finite_at known_by"
    frame = pd.DataFrame(rows, columns=names.split())
    frame["finite_at"] = frame["finite_at"].astype("Float64")
    return frame


def scale_of(recording: Recording, step: int) -> float:
    """The loss scale of a step: what the scaler multiplied its loss by; 1 without a scaler."""
    for loss in reversed(recording.training.losses):
        if (
            recording.step_of(loss.position) == step
            and loss.factor > 1.0
            and math.isfinite(loss.factor)
        ):
            return float(2.0 ** round(math.log2(loss.factor)))
    return 1.0


def _finite_at(recording: Recording, step: int, scale: float) -> tuple[float | None, KnownBy]:
    """(highest power of two at which the operations of a step that overflowed are finite, how that
    is known)."""
    low = recording.starts[step]
    high = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end
    births = [p for p, code in recording.status.items() if low <= p < high and code == BORN]
    births = [p for p in births if (row := recording.op(p)) is not None and row.backward]
    answers = [_halvings(recording, p) for p in births]
    if not answers or not all(known_by for _, known_by in answers) or scale <= 0:
        return None, ""
    if any(halvings is None for halvings, _ in answers):
        return None, "no scale"
    power = math.floor(math.log2(scale)) - max(h for h, _ in answers if h is not None)
    return 2.0**power, "replay" if any(k == "replay" for _, k in answers) else "histogram"


def _halvings(recording: Recording, position: int) -> tuple[int | None, KnownBy]:
    """How often the gradients must be halved for an operation to be finite; None: no number of
    times helps."""
    row = recording.op(position)
    assert row is not None
    kept = recording.kept.get(row.call)
    operands = recording.operands(position)
    if kept is not None:
        slots = {slot for source, slot in operands if is_gradient(recording, source)}
        if not slots:
            return None, "replay"
        return (
            next((k for k in range(1, MOST_HALVINGS + 1) if finite_after(kept, slots, k)), None),
            "replay",
        )
    stats = recording.stats(operands[0][0]) if operands else None
    if row.name != "_to_copy" or stats is None or stats.min is None or not stats.is_finite:
        return None, ""
    limits = format_of(row.dtype)
    largest = max(abs(stats.min), abs(stats.max))
    return max(1, math.ceil(math.log2(largest / (limits.max * (1 + limits.ulp / 4))))), "histogram"


# -- whether a scale will be found
# ------------------------------------------------------------


def collapse(entries: list[Skip]) -> str:
    """Why the scaler will not find a scale; empty if the skips are a calibration."""
    run = [entries[0]]
    longest = run
    for entry in entries[1:]:
        run = [*run, entry] if entry.step == run[-1].step + 1 else [entry]
        longest = max(longest, run, key=len)
    fixed = [e for e in longest if e.after >= e.scale]
    if len(fixed) >= FIXED_SKIPS:
        return "the scale does not come down"
    back = [later for earlier, later in pairwise(longest) if later.scale > earlier.after]
    if len(back) >= FIXED_SKIPS - 1:
        return (
            f"the scale is set back to {back[0].scale:g} before each step, as by a new GradScaler"
            " inside the loop"
        )
    # one skip below 1 may be the last
    low = 0.0 < longest[-1].after < 1.0 and len(longest) >= FIXED_SKIPS
    if len(longest) >= MOST_SKIPS or low:
        return f"the scale fell to {longest[-1].after:g} and the gradients still overflow"
    return ""


def below_one(entries: list[Skip]) -> str:
    """What a scale that came down below 1 says of the gradients; empty if it did not."""
    last = entries[-1]
    if not 0.0 < last.after < 1.0:
        return ""
    if last.finite_at is not None:
        return (
            f"they fit at 2^{round(math.log2(last.finite_at))} ({last.known_by}), a scale that"
            " makes gradients smaller"
        )
    return "no scale at which they fit is known"


__all__ = ["Skip", "below_one", "collapse", "scale_of", "skips", "skips_frame"]
