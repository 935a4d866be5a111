"""An exponent histogram as a line of text: one block per two exponents, on one axis for every row
of a table."""

from __future__ import annotations

import math

import pandas as pd
import torch

from nanlab.analysis.precision import format_bins
from nanlab.views._html import TINTS, plural

BLOCKS = " ▁▂▃▄▅▆▇█"
LOWEST, HIGHEST, WIDTH = -41, 20, 2  # what lies outside goes into the first and last block
ZONES = {
    "zero": TINTS["error"],
    "subnormal": TINTS["warning"],
    "normal": "transparent",
    "overflow": TINTS["turned"],
}


def blocks(exponents: pd.Series[int]) -> str:
    """The histogram's heights, logarithmic, as block characters; a block that holds any value is
    visible."""
    counts = [0] * ((HIGHEST - LOWEST + 1) // WIDTH)
    for exponent, count in zip(exponents.index.tolist(), exponents.tolist(), strict=True):
        place = (min(max(int(exponent), LOWEST), HIGHEST) - LOWEST) // WIDTH
        counts[place] += int(count)
    most = math.log1p(max(counts, default=0)) or 1.0
    return "".join(BLOCKS[math.ceil(8 * math.log1p(n) / most)] for n in counts)


def sparkline(exponents: pd.Series[int]) -> str:
    """The blocks over the zones of float16: flushed to zero, subnormal, normal, overflow."""
    text, parts, start = blocks(exponents), [], 0
    zones = [_zone(LOWEST + WIDTH * i) for i in range(len(text))]
    for i in range(1, len(text) + 1):
        if i == len(text) or zones[i] != zones[start]:
            run = text[start:i].replace(" ", "&nbsp;")
            parts.append(f'<span style="background:{ZONES[zones[start]]}">{run}</span>')
            start = i
    style = "font:8px/1 monospace;white-space:pre"
    return f'<span title="{_title(exponents)}" style="{style}">{"".join(parts)}</span>'


def _zone(exponent: int) -> str:
    bins = format_bins(torch.float16)
    if exponent < bins.zero_limit:
        return "zero"
    if exponent <= bins.normal_limit:
        return "subnormal"
    return "normal" if exponent <= bins.overflow_limit else "overflow"


def _title(exponents: pd.Series[int]) -> str:
    if not len(exponents):
        return "no non-zero finite value"
    low, high = int(exponents.index.min()), int(exponents.index.max())
    return (
        f"{plural(int(exponents.sum()), 'non-zero finite value')} from 2^{low} to 2^{high + 1};"
        " zones of float16"
    )
