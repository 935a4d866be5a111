"""StatsTable: a row of numbers per tensor."""

from __future__ import annotations

import numpy as np
import torch

from nanlab.stats import _layout as L
from nanlab.stats._device import include_zeros
from nanlab.stats._kernels import Kernel
from nanlab.stats._memory import PLAIN, is_dense, is_wrapper, local_part, readable, unobserved
from nanlab.stats._rows import Rows
from nanlab.stats._team import load_team, parts_of

# elements from which on reading a tensor costs more than putting it off
WORTH_PUTTING_OFF = 512
NOTHING = np.full(len(L.VALUES), np.nan).view(np.int64)  # the values of a row without elements
_PUT_OFF = np.zeros(L.WIDTH, np.int64)
_PUT_OFF[L.MIN : L.RMS + 1] = NOTHING
_PUT_OFF[L.BINS] = L.PUT_OFF


class StatsTable(Rows):
    """Rows of numbers, one per tensor that was added; see ``TensorStats`` for what a row holds.

    A CPU tensor is read at once. On another device its row is computed there, and fetched with all
    others by ``flush()``; reading such a row flushes by itself. Tensors are never changed and never
    kept. For one thread at a time.
    """

    def add(self, t: torch.Tensor) -> int:
        """Summarise ``t`` into a new row, and return its number. Never raises because of what ``t``
        is."""
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

    def put_off(self, numel: int) -> int:
        """A new row for a tensor that is not read now; ``fill`` gives it its numbers."""
        if self.n == len(self._rows):
            self._make_room(0)
        row = self.n
        self._rows[row] = _PUT_OFF
        self._rows[row, L.NUMEL] = numel
        self.n = self._state[L.NEXT_ROW] = row + 1
        self.bad = -1
        return row

    def fill(self, row: int, t: torch.Tensor) -> None:
        """Summarise ``t`` into a row that was put off."""
        last = self.add(t)
        self.flush()
        self._rows[row] = self._rows[last]
        self._rows[last] = 0
        self.n = self._state[L.NEXT_ROW] = last
        self.bad = self.nonfinite(row)

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
        """A new row for the elements of ``row`` with zeros on top, ``numel`` in all; -1, and no
        row, where ``row`` has no numbers yet."""
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
                if known is not None and is_dense(t.shape, t.stride()) and t.data_ptr():
                    return self._run(known, t.data_ptr(), t.numel(), 1)
            with unobserved():
                found = readable(t)
                if found is not None:
                    return self._add_elements(*found)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, KeyError):
            pass  # a tensor that has no memory to read, and says so in its own way
        return self._add_unknown(t)

    def _add_elements(self, t: torch.Tensor, times: int, implicit_zeros: int) -> int:
        """A row for dense real elements, of which each occurs ``times`` times, and zeros on top."""
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
        # here, for triton is looked for only where a device needs it
        from nanlab.stats._queue import enqueue

        pending = enqueue(t, times, implicit_zeros)
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
