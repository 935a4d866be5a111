"""StatsTable: a row of numbers for each tensor, in memory that grows by doubling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from nanlab.errors import UsageError
from nanlab.stats import layout as L
from nanlab.stats.device import DeviceRow, bins_of, fetch, head_of, include_zeros, row_of
from nanlab.stats.kernels import Kernel, Kernels, load_kernels, load_team, parts_of, worth_sharing
from nanlab.stats.layout import BINNED, TensorStats, decode, gather
from nanlab.stats.memory import PLAIN, is_dense, is_wrapper, local_part, readable, unobserved

FIRST_ROWS = 1024
FIRST_BINS = 1 << 14


# elements from which on reading a tensor costs more than putting it off
WORTH_PUTTING_OFF = 512
NOTHING = np.full(len(L.VALUES), np.nan).view(np.int64)  # the values of a row without elements
_PUT_OFF = np.zeros(L.WIDTH, np.int64)
_PUT_OFF[L.MIN : L.RMS + 1] = NOTHING
_PUT_OFF[L.BINS] = L.PUT_OFF


class StatsTable:
    """Rows of numbers, one per tensor that was added; see ``TensorStats`` for what a row holds.

    A CPU tensor is read at once. On another device its row is computed there, and fetched with all
    others by ``flush()``; reading such a row flushes by itself. Tensors are never changed and never
    kept. For one thread at a time.
    """

    def __init__(self) -> None:
        self.n = 0  # rows so far
        self.bad = -1  # NaN and inf in the row last added; -1 while it is on its device
        self._rows = np.zeros((FIRST_ROWS, L.WIDTH), np.int64)
        self._arena = np.zeros(FIRST_BINS, np.int64)
        self._pending: list[tuple[int, DeviceRow]] = []
        self._kernels: Kernels | None = load_kernels()
        self._kernel_of = self._kernels.by_dtype if self._kernels else {}
        self._state = np.zeros(L.STATE_WIDTH, np.int64)
        self._state_address = self._state.ctypes.data
        self._scratch = np.zeros(L.SCRATCH_WORDS + L.BLOCK, np.int64)
        self._state[L.TIMES] = 1
        self._alone = worth_sharing()
        self._point_at_memory()

    def __len__(self) -> int:
        return self.n

    def numel(self, row: int) -> int:
        """Number of elements of a row, a complex one counting twice; -1 while on its device."""
        return int(self._rows[row, L.NUMEL]) if self._rows[row, L.BINS] != L.PENDING else -1

    def flush(self) -> None:
        """Fetch the rows that are still on a device, in one transfer per device."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        with unobserved():
            fetched = fetch([row for _, row in pending])
        for (place, row), words in zip(pending, fetched, strict=True):
            self._fill(place, head_of(row, words), bins_of(row, words))
        if pending[-1][0] == self.n - 1:
            self.bad = self.nonfinite(self.n - 1)

    def is_pending(self, row: int) -> bool:
        """Whether reading the row would wait for its device."""
        return bool(self._rows[row, L.BINS] == L.PENDING)

    def is_put_off(self, row: int) -> bool:
        """Whether the tensor of the row was not read."""
        return bool(self._rows[row, L.BINS] == L.PUT_OFF)

    def all_zero(self, row: int) -> bool:
        """Whether the row is known to be of zeros only."""
        words = self._rows[row]
        return bool(words[L.BINS] >= 0 and 0 < words[L.NUMEL] == words[L.ZERO])

    def nonfinite(self, row: int) -> int:
        """Number of NaN, inf and -inf of the row's tensor; 0 where it could not be read."""
        words = self._ready(row)
        return int(sum(words[L.NAN : L.NEGINF + 1].tolist()))

    def stats(self, row: int) -> TensorStats:
        """All numbers of one row."""
        words = self._ready(row)
        numbers: dict[str, Any] = dict(zip(L.COUNTS, words[: L.MIN].tolist(), strict=True))
        values = words[L.MIN : L.RMS + 1].view(np.float64).tolist()
        numbers |= {
            name: None if value != value else value
            for name, value in zip(L.VALUES, values, strict=True)
        }
        return TensorStats(**numbers, known=bool(words[L.BINS] >= 0))

    def columns(self, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The numbers of ``rows`` (default: all) by name: counts as int64, values as float64,
        ``known`` as bool.

        A value is NaN where no element has it, and only there: values are over finite elements, so
        they are never NaN themselves.
        """
        self.flush()
        words = (self._rows[: self.n] if rows is None else self._rows[: self.n][rows]).T.copy()
        columns = dict(zip(L.COUNTS, words, strict=False))
        columns |= zip(L.VALUES, words[L.MIN :].view(np.float64), strict=False)
        return columns | {"known": words[L.BINS] >= 0}

    def binned(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The counts of ``BINNED``, int64, for each of these rows."""
        self.flush()
        kept = self._rows[: self.n][rows].copy()
        owner = np.repeat(np.arange(len(kept)), np.maximum(kept[:, L.BINS], 0))
        signs, exponents, counts = decode(gather(self._arena, kept))
        found = {}
        for name, chosen in BINNED.items():
            found[name] = np.zeros(len(kept), np.int64)
            np.add.at(found[name], owner, np.where(chosen(signs, exponents), counts, 0))
        return found

    def histogram(self, row: int, signed: bool = False) -> pd.Series:
        """Exact count of the non-zero finite elements per exponent floor(log2|x|); exponents
        without any are left out.

        signed: count per (sign, exponent), sign -1 or 1, instead. Empty for integers and for what
        could not be read.
        """
        if not signed:
            exponents, counts = self.histogram_arrays(row)
            return pd.Series(
                counts, index=pd.Index(exponents, name="exponent", dtype=np.int64), name="count"
            )
        signs, exponents, counts = decode(self._bins(row))
        order = np.lexsort((exponents, signs))
        index = pd.MultiIndex.from_arrays(
            [signs[order], exponents[order]], names=["sign", "exponent"]
        )
        return pd.Series(counts[order], index=index, name="count")

    def histogram_arrays(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Exponents ascending, and the count of each, as int64; ``histogram`` without pandas."""
        _, exponents, counts = decode(self._bins(row))
        distinct, place = np.unique(exponents, return_inverse=True)
        totals = np.zeros(len(distinct), np.int64)
        np.add.at(totals, place, counts)
        return distinct, totals

    def compact(self, rows: np.ndarray) -> None:
        """Keep only these rows (ascending), renumbered from 0; free the others' memory."""
        self.flush()
        kept = self._rows[: self.n][rows].copy()
        self._replace(kept, gather(self._arena, kept))

    def _new_row(self, bins: int) -> int:
        """The number of a new row of zeros whose count of bins is ``bins``."""
        if self.n == len(self._rows):
            self._make_room(0)
        row = self.n
        self._rows[row] = 0
        self._rows[row, L.BINS] = bins
        self.n = row + 1
        self._state[L.NEXT_ROW] = self.n
        return row

    def _fill(self, row: int, head: np.ndarray, bins: np.ndarray) -> None:
        """Write a fetched row."""
        self._make_room(len(bins))
        first = int(self._state[L.ARENA_NEXT])
        self._arena[first : first + len(bins)] = bins
        self._state[L.ARENA_NEXT] += len(bins)
        self._rows[row, : len(head)] = head
        self._rows[row, [L.FIRST_BIN, L.BINS]] = first, len(bins)

    def _ready(self, row: int) -> np.ndarray:
        """The words of a row, fetched if need be; raises UsageError if there is no such row."""
        if not 0 <= row < self.n:
            raise UsageError(f"expected a row from 0 to {self.n - 1}, got {row}")
        if self._rows[row, L.BINS] == L.PENDING:
            self.flush()
        words: np.ndarray = self._rows[row]
        return words

    def _bins(self, row: int) -> np.ndarray:
        """The coded bins of a row."""
        words = self._ready(row)
        return self._arena[words[L.FIRST_BIN] : words[L.FIRST_BIN] + max(words[L.BINS], 0)]

    def _make_room(self, bins: int, rows: int = 1) -> None:
        """Double rows or arena where so many more of them would not fit."""
        if self.n + rows > len(self._rows):
            more = np.zeros((max(len(self._rows), rows), L.WIDTH), np.int64)
            self._rows = np.concatenate([self._rows, more])
        used = int(self._state[L.ARENA_NEXT])
        if used + bins > len(self._arena):
            self._arena = np.concatenate(
                [self._arena, np.zeros(max(len(self._arena), bins), np.int64)]
            )
        self._point_at_memory()

    def _replace(self, rows: np.ndarray, bins: np.ndarray) -> None:
        """Let the table consist of these rows and bins."""
        self._rows = np.zeros((max(FIRST_ROWS, len(rows)), L.WIDTH), np.int64)
        self._rows[: len(rows)] = rows
        self._arena = np.zeros(max(FIRST_BINS, len(bins)), np.int64)
        self._arena[: len(bins)] = bins
        self.n = len(rows)
        self._state[L.NEXT_ROW], self._state[L.ARENA_NEXT] = len(rows), len(bins)
        self._point_at_memory()
        self.bad = self.nonfinite(self.n - 1) if self.n else -1

    def _point_at_memory(self) -> None:
        """Tell the kernels where rows, arena and scratch are."""
        self._state[[L.ROWS_ADDRESS, L.ROW_CAPACITY]] = self._rows.ctypes.data, len(self._rows)
        self._state[[L.ARENA_ADDRESS, L.ARENA_CAPACITY]] = self._arena.ctypes.data, len(self._arena)
        scratch = self._scratch.ctypes.data
        self._state[[L.SCRATCH_ADDRESS, L.BLOCK_ADDRESS]] = scratch, scratch + 8 * L.SCRATCH_WORDS
        self._state[L.FLOAT8_ADDRESS] = self._kernels.float8.ctypes.data if self._kernels else 0

    def add(self, t: torch.Tensor) -> int:
        """Summarise ``t`` into a new row; its number. Never raises because of ``t``."""
        if type(t) in PLAIN:
            try:
                if t.is_cpu and t.is_contiguous() and not t.is_neg():
                    kernel, kind = self._kernel_of[t.dtype]
                    address, numel = t.data_ptr(), t.numel()
                    if address and numel < self._alone:
                        bad = kernel(address, numel, kind, self._state_address)
                        if bad >= 0:
                            row = self.n
                            self.n = row + 1
                            self.bad = bad
                            return row
            except (
                RuntimeError,
                KeyError,
            ):  # sparse or wrapped; complex, quantised, or no kernels at all
                pass
        return self._add_any(t)

    def put_off(self, numels: Sequence[int]) -> int:
        """New rows for unread tensors, the first one's number; ``fill`` gives the numbers."""
        first, end = self.n, self.n + len(numels)
        if end > len(self._rows):
            self._make_room(0, len(numels))
        if len(numels) == 1:
            self._rows[first] = _PUT_OFF
            self._rows[first, L.NUMEL] = numels[0]
        else:
            self._rows[first:end] = _PUT_OFF
            self._rows[first:end, L.NUMEL] = numels
        self.n = self._state[L.NEXT_ROW] = end
        self.bad = -1
        return first

    def fill(self, row: int, t: torch.Tensor) -> None:
        """Summarise ``t`` into a row that was put off."""
        last = self.add(t)
        self.flush()
        self._rows[row] = self._rows[last]
        self._rows[last] = 0
        self.n = self._state[L.NEXT_ROW] = last

    def agrees(self, row: int, t: torch.Tensor) -> bool:
        """Whether a tensor has the counts and the range of a row; sums may be rounded otherwise."""
        last = self.add(t)
        self.flush()
        same = np.array_equal(self._rows[row, : L.MEAN], self._rows[last, : L.MEAN])
        self._rows[last] = 0
        self.n = self._state[L.NEXT_ROW] = last
        return same

    def add_change(self, new: torch.Tensor, old: torch.Tensor) -> int:
        """Summarise ``new - old`` into a new row, and return its number.

        Both are of one shape, dtype and device; the difference is rounded to their dtype, as torch
        rounds it.
        """
        both = new, old = local_part(new), local_part(old)
        if self._kernels and all(
            type(t) in PLAIN
            and t.dtype is torch.float32
            and t.is_cpu
            and t.is_contiguous()
            and t.data_ptr()
            for t in both
        ):
            self._state[L.OLD_ADDRESS] = old.data_ptr()
            return self._run(self._kernels.change, new.data_ptr(), new.numel(), 1)
        if is_wrapper(new) or is_wrapper(old):
            return self._add_unknown(new)
        with unobserved():
            change = new - old
        return self.add(change)

    def add_padded(self, row: int, numel: int) -> int:
        """A row of ``row``'s elements and zeros, ``numel`` in all; -1 without numbers yet."""
        words = self._rows[row]
        zeros = numel - int(words[L.NUMEL])
        if words[L.BINS] < 0 or zeros < 0 or numel == 0:
            return -1
        new = self._new_row(0)
        made = self._rows[new]
        made[:] = self._rows[row]
        made[[L.NUMEL, L.ZERO]] += zeros
        if zeros and numel > made[L.NAN] + made[L.POSINF] + made[L.NEGINF]:
            include_zeros(made, zeros)
        self.bad = self.nonfinite(new)
        return new

    def _add_any(self, t: torch.Tensor) -> int:
        """``add`` without the shortcut."""
        try:
            if type(t) in PLAIN and t.is_cpu and t.layout is torch.strided and not t.is_neg():
                known = self._kernel_of.get(t.dtype)
                if known is not None and is_dense(t.shape, t.stride()):
                    if not t.numel():
                        return self._add_zeros(0)
                    if t.data_ptr():
                        return self._run(known, t.data_ptr(), t.numel(), 1)
            with unobserved():
                found = readable(t)
                if found is not None:
                    return self._add_elements(*found)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, KeyError):
            pass  # a tensor that has no memory to read, and says so in its own way
        return self._add_unknown(t)

    def _add_elements(self, t: torch.Tensor, times: int, implicit_zeros: int) -> int:
        """A row for dense real elements, each counted ``times`` times, and for further zeros."""
        if t.numel() == 0:
            return self._add_zeros(implicit_zeros)
        known = self._kernel_of.get(t.dtype) if t.is_cpu else None
        if known is not None:
            row = self._run(known, t.data_ptr(), t.numel(), times)
            if implicit_zeros:
                words = self._rows[row]
                words[[L.NUMEL, L.ZERO]] += implicit_zeros
                include_zeros(words, implicit_zeros)
            return row
        pending = row_of(t, times, implicit_zeros)
        row = self._new_row(L.PENDING)
        self._pending.append((row, pending))
        self.bad = -1
        if t.is_cpu:
            self.flush()
        return row

    def _run(self, known: tuple[Kernel, int], address: int, numel: int, times: int) -> int:
        """Run a kernel on memory, with several threads where that is worth it."""
        kernel, kind = known
        shared = (
            numel >= self._alone and self._kernels is not None and kernel is self._kernels.change[0]
        )
        team = load_team() if shared else None
        if team is None or not team.lock.acquire(blocking=False):
            return self._write(known, address, numel, times)
        try:
            team.count(address, numel, kind, self._state, parts_of(numel))
            row = self._write(known, address, numel, times)
            team.taken = True
            return row
        finally:
            self._state[L.PARTS] = 0
            team.lock.release()

    def _write(self, known: tuple[Kernel, int], address: int, numel: int, times: int) -> int:
        """Write a row by a kernel, with more room if it asks for it."""
        kernel, kind = known
        self._state[L.TIMES] = times
        try:
            bad = kernel(address, numel, kind, self._state_address)
            if bad == L.FULL:
                self._make_room(L.MOST_BINS)
                bad = kernel(address, numel, kind, self._state_address)
        finally:
            self._state[L.TIMES] = 1
        self.bad = bad
        self.n += 1
        return self.n - 1

    def _add_unknown(self, t: torch.Tensor) -> int:
        """A row that says only how many elements there are."""
        row = self._new_row(L.UNKNOWN)
        try:
            self._rows[row, L.NUMEL] = int(t.numel())
        except Exception:  # an uninitialised parameter or a symbolic size has no number of elements
            self._rows[row, L.NUMEL] = 0
        self._rows[row, L.MIN : L.RMS + 1] = NOTHING
        self.bad = 0
        return row

    def _add_zeros(self, count: int) -> int:
        """A row for ``count`` zeros, or for an empty tensor."""
        row = self._new_row(0)
        self._rows[row, [L.NUMEL, L.ZERO]] = count
        self._rows[row, L.MIN : L.RMS + 1] = NOTHING
        if count:
            include_zeros(self._rows[row], count)
        self.bad = 0
        return row
