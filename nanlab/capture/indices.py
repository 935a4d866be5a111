"""Indices checked before the kernel runs: on a device a bad one is an assertion that ends the
context."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nanlab.errors import NanlabError
from nanlab.operators import having
from nanlab.trace.failure import BadIndices
from nanlab.trace.recording import Recording

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

Tensor = torch.Tensor
SHOWN = 20  # bad indices that are listed
COPIES = 64  # latest checks whose indices are kept on the host
# elements of the largest indices that are copied whole; of larger ones the least and the greatest
COPY_LIMIT = 1 << 17

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_ALONG_A_DIMENSION = having("indexes_dim", in_place=True)
_EMBEDDINGS = having("embeds")
_LIKELIHOODS = having("likelihood")
_SUBSCRIPTS = having("subscript", in_place=True)
INDEXING = _ALONG_A_DIMENSION | _EMBEDDINGS | _LIKELIHOODS | _SUBSCRIPTS | {"take"}
# The same elements, or some of them: the range of the operand holds for the result.
_NARROWS = having("copies", "reshapes", "parts", "picks_any") | {"copy_", "contiguous"}
_LONGEST_CHAIN = 32


class IndexOutOfRangeError(NanlabError, IndexError):
    """Raised in place of a device-side assertion, before the kernel runs: the error that the CPU
    would have raised."""

    def __init__(self, text: str, bad: BadIndices) -> None:
        super().__init__(text)
        self.bad = bad


@dataclass(frozen=True, slots=True)
class Allowed:
    """What one tensor of indices may hold: ``low <= index < high``, or ``ignored``."""

    argument: str
    indices: Tensor
    low: int
    high: int
    ignored: int | None = None

    def broken_by(self, low: float, high: float) -> bool:
        """Whether indices of which these are the least and the greatest may be outside."""
        return high >= self.high or (low < self.low and low != self.ignored)


def allowed(op: str, args: Any) -> Iterator[Allowed]:
    """The indices that a call of an indexing operation takes, and their range."""
    if op in _EMBEDDINGS:
        yield Allowed("indices", args[1], 0, args[0].shape[0])
    elif op in _ALONG_A_DIMENSION:
        target = args[0]
        yield Allowed("index", args[2], 0, target.shape[args[1]] if target.dim() else 1)
    elif op in _LIKELIHOODS:
        ignored = next((a for a in args[4:5] if isinstance(a, int)), -100)
        yield Allowed("target", args[1], 0, args[0].shape[1 if args[0].dim() > 1 else 0], ignored)
    elif op == "take":
        yield Allowed("index", args[1], -args[0].numel(), args[0].numel())
    elif op in _SUBSCRIPTS:
        yield from _subscripts(args[0], args[1])


def _subscripts(target: Tensor, subscripts: Any) -> Iterator[Allowed]:
    """A negative subscript counts from the end; a mask takes as many dimensions as it has."""
    dimension = 0
    for i, index in enumerate(subscripts):
        if index is None:
            dimension += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dimension += index.dim()
        else:
            size = target.shape[dimension]
            yield Allowed(f"indices[{i}]", index, -size, size)
            dimension += 1


def bad_indices(op: str, args: Any) -> BadIndices | None:
    """The indices of a call that are out of range, looked at one by one; None if there are none.
    Waits for a device."""
    for each in allowed(op, args):
        found = examine(op, each.indices, each)
        if found is not None:
            return found
    return None


def examine(op: str, indices: Tensor, limits: Allowed) -> BadIndices | None:
    """Which of ``indices`` are outside of ``limits``."""
    if indices.dtype not in _INTEGERS or not indices.numel():
        return None
    wrong = (indices < limits.low) | (indices >= limits.high)
    if limits.ignored is not None:
        wrong &= indices != limits.ignored
    places = wrong.nonzero()
    if not len(places):
        return None
    first = places[:SHOWN].tolist()
    values = indices[wrong][:SHOWN].tolist()
    return BadIndices(
        op,
        limits.argument,
        limits.low,
        limits.high,
        limits.ignored,
        len(places),
        tuple(values),
        tuple(map(tuple, first)),
        tuple(indices.shape),
    )


def message(bad: BadIndices, module: str) -> str:
    """One sentence: which index, where, and what would have been allowed."""
    where = f" at position {list(bad.places[0])}" if bad.places and bad.places[0] else ""
    inside = f", in {module}" if module else ""
    more = f" and {bad.count - 1} more" if bad.count > 1 else ""
    return (
        f"index {bad.values[0]} is out of range for {bad.op}{inside}: expected {bad.low} to"
        f" {bad.high - 1}, seen{where} of {bad.argument} with shape {list(bad.shape)}{more}; raised"
        " before the kernel ran, so that the device goes on working. nanlab.explain() says more"
    )


@dataclass(frozen=True, slots=True)
class Copied:
    """Indices on their way to the host, enqueued before the kernel that uses them."""

    op: str
    limits: Allowed  # its ``indices`` are the copy, or the least and the greatest
    shape: tuple[int, ...]  # of all the indices
    module: int
    line: int


class IndexGuard:
    """Keeps bad indices from a device, without waiting for it.

    Where the indices came from the CPU their range is known there, and a bad one is an ordinary
    IndexError. Otherwise they are copied to pinned memory on the stream of the kernel; that copy
    outlives the context when the kernel's assertion ends it.
    """

    def __init__(
        self,
        recorder: OpRecorder,
        elsewhere: Callable[[Tensor], bool] = lambda tensor: bool(tensor.is_cuda),
    ) -> None:
        self._recorder = recorder
        self._elsewhere = elsewhere  # whether the indices are on a device that asserts
        self._copies: deque[Copied] = deque(maxlen=COPIES)

    def before(self, op: str, args: Any, frame: FrameType | None) -> None:
        """Look at the indices of a call that is about to run; raises IndexOutOfRangeError."""
        # backward uses the indices of forward
        if self._recorder.in_backward or not self._elsewhere(args[0]):
            return
        try:
            bad = self._check(op, args, frame)
        except Exception as error:
            self._recorder.failed(error)
            return
        if bad is not None:
            raise IndexOutOfRangeError(
                message(bad, self._recorder.recording.modules.items[self._recorder.module]), bad
            )

    def _check(self, op: str, args: Any, frame: FrameType | None) -> BadIndices | None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None
        for each in allowed(op, args):
            if each.indices.dtype not in _INTEGERS or not each.indices.numel():
                continue
            known = known_range(self._recorder.recording, self._recorder.source(each.indices))
            hidden = (
                known is not None and known[0] == each.ignored and known[1] < each.high
            )  # between ignore_index and 0
            if known is None or hidden:
                self._copy(op, each, frame)
            elif each.broken_by(*known) and (bad := examine(op, each.indices, each)) is not None:
                return bad
        return None

    def _copy(self, op: str, each: Allowed, frame: FrameType | None) -> None:
        """Enqueue a copy to the host."""
        whole = each.indices.numel() <= COPY_LIMIT
        values = each.indices if whole else torch.stack(torch.aminmax(each.indices))
        host = torch.empty(
            values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda
        )
        host.copy_(values, non_blocking=True)
        limits = Allowed(each.argument, host, each.low, each.high, each.ignored)
        shape = tuple(each.indices.shape)
        self._copies.append(
            Copied(op, limits, shape, self._recorder.module, self._recorder.lines.here(frame)[0])
        )

    def row_of(self, tensor: Tensor) -> int:
        """The row (or source, negative) that describes what a tensor holds now."""
        return self._recorder.source(tensor)

    def place(self, number: int) -> tuple[str, int, str]:
        """(file as shown, line, real file) by its number."""
        return self._recorder.lines.places[number]

    def suspect(self) -> tuple[BadIndices, str, int] | None:
        """(indices, module, number of the line) of the first bad copy; for when a device has
        failed."""
        for copied in self._copies:
            bad = examine(copied.op, copied.limits.indices, copied.limits)
            if bad is not None and bad.shape != copied.shape:
                bad = replace(bad, shape=copied.shape, places=((),) * len(bad.places))
            if bad is not None:
                return bad, self._recorder.recording.modules.items[copied.module], copied.line
        return None


def known_range(recording: Recording, position: int) -> tuple[float, float] | None:
    """(least, greatest) that a tensor can hold, from what the host knows already; None if only its
    device knows."""
    for _ in range(_LONGEST_CHAIN):
        stat = recording.stat_of(position)
        if stat >= 0 and not _on_device(recording, stat):
            stats = recording.stats(position)
            return None if stats is None or stats.min is None else (stats.min, stats.max)
        row = recording.op(position)
        parents = recording.parents(position)
        if row is None or not parents or row.name not in _NARROWS:
            return None
        position = parents[-1] if row.name == "copy_" else parents[0]
    return None


def _on_device(recording: Recording, stat: int) -> bool:
    chunk = recording.chunks[stat >> 32]
    return chunk.stats.is_pending(chunk.stat_row(stat))
