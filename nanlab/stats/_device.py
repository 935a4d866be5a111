"""Rows computed on a device: their form there, and their way into the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from nanlab.stats import _layout as L

HEAD = L.RMS + 1  # words before the bins: the counts, then the values as float64 bits


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row that was computed by operations of torch or by a kernel, and may not have been computed
    yet."""

    # int64 [HEAD + 2 * span]: counts, values, bins of positive, then of negative exponents
    words: torch.Tensor
    numel: int  # elements that were read; the word of that name is not filled in
    lowest_exponent: int  # of the first bin
    times: int  # how often each element occurs
    implicit_zeros: int  # of a sparse tensor
    # bits of floats; or order keys of float32 and sums in float64
    values: Literal["float64", "float32", "keys"]


def fetch(rows: list[DeviceRow]) -> list[np.ndarray]:
    """The words of all ``rows`` on the host, in one transfer per device."""
    by_device: dict[torch.device, list[int]] = {}
    for place, row in enumerate(rows):
        by_device.setdefault(row.words.device, []).append(place)
    words: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    for device, places in by_device.items():
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # rows may have been enqueued on several streams
        joined = torch.cat([rows[place].words for place in places]).cpu().numpy()
        ends = np.cumsum([rows[place].words.numel() for place in places])
        for place, part in zip(places, np.split(joined, ends[:-1]), strict=True):
            words[place] = part
    return words


def head_of(row: DeviceRow, words: np.ndarray) -> np.ndarray:
    """The counts and values of a fetched row as they stand in the table."""
    head = words[:HEAD].copy()
    head[L.NUMEL] = row.numel
    if row.values == "float32":
        head[L.MIN :] = (
            head[L.MIN :].astype(np.int32).view(np.float32).astype(np.float64).view(np.int64)
        )
    elif row.values == "keys":
        resolve_keys(head)
    head[: L.MIN] *= row.times
    if row.implicit_zeros:
        head[[L.NUMEL, L.ZERO]] += row.implicit_zeros
        include_zeros(head, row.implicit_zeros)
    return head


def resolve_keys(head: np.ndarray) -> None:
    """Turn order keys into min, max and absmin, and sums into mean and rms; NaN where there is no
    such element."""
    values = head.view(np.float64)
    finite = int(head[L.NUMEL] - head[L.NAN] - head[L.POSINF] - head[L.NEGINF])
    if finite == 0:
        values[L.MIN :] = np.nan
        return
    keys = head[[L.MIN, L.MAX, L.ABSMIN]].astype(np.int32)
    values[[L.MIN, L.MAX, L.ABSMIN]] = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32) + 0.0
    if finite == head[L.ZERO]:
        values[L.ABSMIN] = np.nan
    values[L.MEAN] /= finite
    values[L.RMS] = (values[L.RMS] / finite) ** 0.5


def include_zeros(row: np.ndarray, zeros: int) -> None:
    """Let ``zeros`` elements more, already counted in ``row``, take part in min, max, mean and
    rms."""
    values = row.view(np.float64)
    finite = int(row[L.NUMEL] - row[L.NAN] - row[L.POSINF] - row[L.NEGINF])
    share = (finite - zeros) / finite
    if share == 0.0:
        values[[L.MIN, L.MAX, L.MEAN, L.RMS]] = 0.0
        return
    values[L.MIN] = min(values[L.MIN], 0.0)
    values[L.MAX] = max(values[L.MAX], 0.0)
    values[L.MEAN] *= share
    values[L.RMS] *= share**0.5


def bins_of(row: DeviceRow, words: np.ndarray) -> np.ndarray:
    """The bins of a fetched row as they stand in the arena."""
    counts = words[HEAD:]
    places = np.flatnonzero(counts)
    span = len(counts) // 2
    negative = places >= span
    exponents = places - span * negative + row.lowest_exponent
    return (
        counts[places] * row.times << L.CODE_BITS | (exponents + L.EXPONENT_OFFSET) << 1 | negative
    )
