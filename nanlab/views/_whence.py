"""Where a number of a table came from: the elements that made it, back to where a bad one was
born."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from nanlab.errors import NanlabError
from nanlab.views._html import escape, number, plural

if TYPE_CHECKING:
    from nanlab.program.why import Element
    from nanlab.trace import Trace

ELEMENTS = 12  # that are shown of the way back
BAD, LARGEST = "bad", "largest"  # which element of a row a number stands for


def clickable(text: str, position: Any, which: str) -> str:
    """A number that leads to where it came from; plain text where no page listens."""
    return f'<span class="nl-number" data-why="{position}" data-which="{which}">{text}</span>'


def whence(trace: Trace, position: int, which: str) -> str:
    """The way back from the first bad element of a row, or from its largest."""
    try:
        found = trace.why(position, _index(trace.tensor(position), which))
    except NanlabError as reason:
        return f'<div class="nl-dim">Not known: {escape(reason)}</div>'
    shown = found[:ELEMENTS]
    left = len(found) - len(shown)
    more = f'<li class="nl-gap">⋯ {left:,} more</li>' if left else ""
    items = "".join(_station(each) for each in shown)
    asked = "first bad element" if which == BAD else "largest element"
    last = found[-1] if found else None
    told = (
        "" if last is None or math.isfinite(last.value) else f", back {plural(len(found), 'step')}"
    )
    return (
        f'<div class="nl-title" role="heading" aria-level="3">Where the {asked} came from{told}'
        f'</div><ol class="nl-path">{items}{more}</ol>'
    )


def _index(tensor: torch.Tensor, which: str) -> int:
    flat = tensor.detach().reshape(-1)
    if not len(flat):
        return 0
    finite = torch.isfinite(flat)
    if which == BAD and not bool(finite.all()):
        return int((~finite).nonzero()[0])
    size = flat.abs().to(torch.float64)
    return int(torch.where(finite, size, torch.full_like(size, -1.0)).argmax())


def _station(element: Element) -> str:
    place = f' <span class="nl-dim">{escape(element.place)}</span>' if element.place else ""
    made = ", ".join(_named(each) for each in element.made_of)
    of = f'<div class="nl-dim">of {made}</div>' if made else ""
    return f'<li data-position="{element.position}">{_named(element)}{place}{of}</li>'


def _named(element: Element) -> str:
    at = f"[{', '.join(map(str, element.index))}]" if element.index else ""
    value = "NaN" if math.isnan(element.value) else number(element.value)
    return f"<code>{escape(element.name)}{at}</code> = {value}"
