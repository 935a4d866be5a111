"""The row behind each tensor read: the last one that wrote the memory it shows."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import torch

from nanlab.capture.ledger import Entry, Ledger, shape_of, shows_all, storage_of, view_key
from nanlab.capture.places import in_loader
from nanlab.stats.memory import local_part
from nanlab.trace.recording import Recording

Tensor = torch.Tensor


class Reader:
    """Finds the row (or source, negative) that describes a tensor's contents. Statistics of
    contents written unseen are added to the latest chunk."""

    def __init__(self, recording: Recording, ledger: Ledger) -> None:
        self.recording, self.ledger = recording, ledger
        self.chunk = recording.chunks[-1]
        self.grad = False  # whether the running call reads a gradient
        # whether the row found for an operand tells of more than its elements, or of others
        self.vague = False
        self.lifting = False  # whether the running call brings in a literal: torch.tensor([...])
        # the row from which a NaN, an "inf" or a "-inf" was last read as a Python number
        self._read_out: dict[str, int] = {}

    def take(self, value: Any, sources: list[int]) -> float:
        """Add the sources of an argument that is no plain tensor; returns a bad number in it, else
        0."""
        strange = 0.0
        if isinstance(value, Tensor):
            sources.append(self.source(value))
        elif value.__class__ is list or value.__class__ is tuple:
            for item in value:
                if isinstance(item, Tensor):
                    sources.append(self.source(item))
                elif item.__class__ is float and item - item != 0.0:
                    strange = item
        elif value.__class__ is float and value - value != 0.0:
            strange = value
        return strange

    def note_number(self, tensor: Tensor, value: Any) -> None:
        """Remember the row a bad Python number was read from: it may come back as a factor."""
        if value.__class__ is float and value - value != 0.0:
            source = self.source(tensor)
            if self.recording.may_be_bad(source):
                self._read_out.pop(str(value), None)
                self._read_out[str(value)] = source

    def number_read(self, value: float, computes: bool) -> int | None:
        """The row from which a non-finite Python number among the operands was probably read.

        Python keeps no trace of it, so this is the last row read with such a value. A NaN may come
        from any bad number, as Python makes NaN of infinities; an infinity comes from one of its
        sign, and only an operation that computes can read it.
        """
        if not self._read_out or (value == value and not computes):
            return None
        if value != value:
            return next(reversed(self._read_out.values()))
        return self._read_out.get(str(value))

    def source(self, tensor: Tensor) -> int:
        """The row (or source, negative) that describes what a tensor holds now."""
        if self.chunk.late is not None:
            self.chunk.late()
        try:
            storage = tensor.untyped_storage()
        except Exception:
            found = storage_of(tensor)
            if found is None:
                return self.new_source(tensor, "data")
            storage = found
        entry = self.ledger.entries.get(storage._cdata)
        if entry is None:
            return self._first_sight(tensor, storage)
        return self.held_by(entry, tensor)

    def held_by(self, entry: Entry, tensor: Tensor) -> int:
        """The row that describes what a tensor on a known storage holds now."""
        if entry.grad:
            self.grad = True
        if entry.uninit:
            return self._read_uninitialised(entry, tensor)
        if entry.nbytes == tensor.numel() * tensor.itemsize and (
            not entry.odd or shows_all(tensor, entry.nbytes)
        ):
            if not entry.parts:
                return entry.last
            if not entry.bad:
                self.vague = True
                return entry.parts[-1]
            return self._snapshot(entry, tensor, whole=True)
        if entry.views is not None and (row := entry.views.get(view_key(tensor))) is not None:
            return row
        if entry.bad and not entry.parts and self._is_made_by(entry.last, tensor):
            return entry.last
        if entry.bad:
            return self._snapshot(entry, tensor, whole=False)
        self.vague = True
        return entry.parts[-1] if entry.parts else entry.last

    def new_source(
        self, tensor: Tensor, kind: Any, name: str = "", parents: tuple[int, ...] = ()
    ) -> int:
        recording, stats = self.recording, self.chunk.stats
        stat = (self.chunk.number << 32) | stats.add(tensor)
        if recording.puts_off:
            stats.flush()
        shape, dtype = shape_of(tensor), tensor.dtype
        number = recording.new_source(kind, shape, dtype, stat, name=name, parents=parents)
        if stats.bad > 0:
            recording.bad.add(number)
        elif stats.bad:
            self.await_device(recording.end)
        return number

    def _first_sight(self, tensor: Tensor, storage: torch.UntypedStorage, owner: int = -1) -> int:
        local = local_part(tensor)
        if local is not tensor and owner < 0:
            return self.source(local)
        tensor = local
        kind, name = "data", ""
        if owner >= 0:
            kind = self.recording.parameter_kinds[owner]
            name = self.recording.parameter_names[owner]
        elif type(tensor) is torch.nn.Parameter:
            kind = "parameter"
        elif self.lifting:
            kind = "literal"
        number = self.new_source(tensor, kind, name)
        if kind == "literal" and number in self.recording.bad:
            sources, stats = self.recording.sources, self.recording.stats(number)
            if in_loader(sys._getframe(1)):
                sources[number] = replace(sources[number], kind="data")
            elif stats.nan and (origin := self.number_read(math.nan, True)) is not None:
                sources[number] = replace(sources[number], parents=(origin,))
        entry = self.ledger.enter(storage)
        entry.last, entry.owner = number, owner
        entry.bad = self.chunk.stats.bad
        if not shows_all(tensor, entry.nbytes):
            entry.odd = True
            entry.bad = entry.bad or -1  # the rest of the storage was not looked at
        return number

    def _is_made_by(self, position: int, tensor: Tensor) -> bool:
        """Whether a tensor is the result at a position although its memory is larger: a loss
        computed in place of all its terms."""
        if tensor.layout is not torch.strided or tensor.storage_offset():
            return False
        row = self.recording.op(position)
        same = row is not None and row.shape == shape_of(tensor) and row.dtype == tensor.dtype
        return same and tensor.is_contiguous()

    def _snapshot(self, entry: Entry, tensor: Tensor, whole: bool) -> int:
        """The source for a tensor's present contents, if its storage was written in parts and may
        be bad."""
        parents = (entry.last, *entry.parts)
        # else they are chosen when it is known which are bad
        if not self.recording.pending and not self.recording.puts_off:
            parents = tuple(p for p in parents if p in self.recording.bad) or parents[-1:]
        number = self.new_source(tensor, "snapshot", parents=parents)
        if whole:
            entry.last, entry.parts = number, ()
            entry.bad = self.chunk.stats.bad
        else:
            entry.show(view_key(tensor), number)
        return number

    def _read_uninitialised(self, entry: Entry, tensor: Tensor) -> int:
        """Memory that was allocated and never written whole: what it holds counts from now on."""
        recording = self.recording
        unknown = recording.pending or recording.puts_off
        bad = () if unknown else tuple(p for p in entry.parts if p in recording.bad)
        number = self.new_source(tensor, "snapshot", parents=bad or (entry.last, *entry.parts))
        if number in recording.bad and not bad and not recording.puts_off:
            # written by a hook, in another thread
            if entry.parts and self.ledger.latest_collective > max(entry.parts):
                recording.sources[number] = replace(
                    recording.sources[number], kind="arrival", parents=()
                )
            else:
                recording.bad.add(entry.last)
        return number

    def own(self, tensor: Tensor, owner: int) -> None:
        """Say that a tensor is the parameter or buffer with this number."""
        storage = storage_of(tensor)
        if storage is None:
            return
        entry = self.ledger.entries.get(storage._cdata)
        if entry is None:
            self._first_sight(tensor, storage, owner)
            entry = self.ledger.entries[storage._cdata]
        else:
            entry.owner = owner
            self.recording.owned[entry.last] = owner
        self.recording.program.names[entry.serial] = self.recording.parameter_names[owner]

    def mark_gradient(self, tensor: Tensor) -> None:
        """Say that a tensor is a parameter's gradient."""
        if (entry := self.ledger.of(tensor)) is not None:
            entry.grad = True

    def know(self, number: int, tensor: Tensor) -> int:
        """The row, with statistics made now from ``tensor`` if they were put off."""
        recording = self.recording
        if not recording.puts_off or number < 0:
            return number
        table, row = recording.table_of(recording.stat_of(number))
        if table is not None:
            if table.is_put_off(row):
                table.fill(row, local_part(tensor))
            if table.nonfinite(row):
                recording.bad.add(number)
        return number

    def await_device(self, call: int) -> None:
        """Note that the statistics of this and later calls are still on a device."""
        recording = self.recording
        if not recording.pending:
            recording.pending, recording.pending_from = True, call
