"""Headroom: how many bits lie between a run's results and the limits of a low-precision format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from nanlab.formats import HALF_PRECISION, format_of
from nanlab.trace.recording import BACKWARD, FORWARD

if TYPE_CHECKING:
    from nanlab.history import Place
    from nanlab.trace import Trace


@dataclass(frozen=True)
class Headroom:
    """The results of all remembered steps that come closest to the ceiling and to the floor of a
    format."""

    dtype: str  # of the format
    ran: bool  # whether the run computed in it; False: what it would be there
    # bits between the largest magnitude of any result and the largest number; negative: beyond it
    ceiling: float
    # bits between the smallest magnitude that is the largest of a result, and the smallest normal
    # number
    floor: float
    highest: Place
    lowest: Place


def headroom(trace: Trace) -> Headroom | None:
    """Of the narrowest format that the run computed in, else of float16; None where no step was
    followed.

    Results are those of forward and backward operations; of each the largest magnitude in a step
    counts, so a result that is partly flushed is no concern of the floor, and one that is wholly
    zero is left out.
    """
    recording = trace.recording
    series = recording.training.series
    if not len(series) or not series.places:
        return None
    names = {str(dtype).removeprefix("torch."): dtype for dtype in HALF_PRECISION}
    used = [
        name
        for name in ("float16", "bfloat16")
        if any(place.dtype == name for place in series.places)
    ]
    name = used[0] if used else "float16"
    chosen = np.array(
        [
            p.phase in (FORWARD, BACKWARD)
            and (p.dtype == name if used else p.dtype in ("float32", "float64"))
            for p in series.places
        ],
        dtype=bool,
    )
    table = np.where(np.isfinite(series.table) & chosen, series.table, np.nan)
    if not np.isfinite(table).any():
        return None
    limits = format_of(names.get(name, torch.float16))
    high = int(np.nanargmax(table) % table.shape[1])
    low = int(np.nanargmin(table) % table.shape[1])
    ceiling = math.log2(limits.max) - float(np.nanmax(table))
    floor = float(np.nanmin(table)) - math.log2(limits.smallest_normal)
    return Headroom(name, bool(used), ceiling, floor, series.places[high], series.places[low])
