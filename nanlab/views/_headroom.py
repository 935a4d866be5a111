"""How near a run came to the limits of low precision, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanlab.analysis.headroom import headroom

if TYPE_CHECKING:
    from nanlab.history import Place
    from nanlab.trace import Trace


def headroom_line(trace: Trace) -> str:
    """``Headroom in float16: 2.1 bits below its ceiling at blocks.0.attn, 14 bits above its floor
    at ...``; "" where nothing is known."""
    recording = getattr(trace, "recording", None)
    found = headroom(trace) if recording is not None else None
    if found is None:
        return ""
    if found.ceiling < 0 or found.floor < 0:
        beyond = []
        if found.ceiling < 0:
            beyond.append(
                f"{_bits(-found.ceiling)} above its ceiling at {_at(trace, found.highest)}"
            )
        if found.floor < 0:
            beyond.append(f"{_bits(-found.floor)} below its floor at {_at(trace, found.lowest)}")
        whose = "No headroom" if found.ran else "Not safe"
        return f"{whose} in {found.dtype}: {', '.join(beyond)}."
    high = f"{_bits(found.ceiling)} below its ceiling at {_at(trace, found.highest)}"
    low = f"{_bits(found.floor)} above its floor at {_at(trace, found.lowest)}"
    return f"Headroom in {found.dtype}: {high}, {low}."


def _bits(bits: float) -> str:
    return f"{bits:.1f} bits" if bits < 10 else f"{bits:.0f} bits"


def _at(trace: Trace, place: Place) -> str:
    """The module, or the line, and the operator."""
    recording = trace.recording
    module = recording.modules.items[place.module]
    file, line, _ = recording.places[place.line]
    gradient = "the gradient of " if place.phase == 1 else ""
    named = f"module {module}" if module.isdigit() else module
    where = named or (f"{file.rsplit('/', 1)[-1]}:{line}" if file else "")
    return f"{gradient}{where} ({place.op})" if where else f"{gradient}{place.op}"
