"""What an operation reads: the row, or the source, behind each operand, a Python number read from a tensor included."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from nanlab.capture.ledger import Entry, Ledger, shape_of, shows_all, storage_of, view_key
from nanlab.capture.plans import Plan
from nanlab.operators import having
from nanlab.trace.recording import LITERAL, Chunk, Recording, Source

Tensor = torch.Tensor
# Operators in which a Python infinity computes; in others it is a bound, a mask, what memory is filled with.
_COMPUTES = having("arithmetic", "updates", in_place=True)


class Reading:
    """The part of the recorder that looks operands up in the ledger."""

    recording: Recording
    ledger: Ledger
    chunk: Chunk
    _flags: int  # of the running call
    _grad: bool  # whether the running call reads a gradient
    _vague: bool  # whether the row found for an operand tells of more than its elements, or of others
    _lifting: bool  # whether it brings in a literal: torch.tensor([...])
    _read_out: dict[str, int]  # the row from which a NaN, an "inf" or a "-inf" was last read as a Python number

    def read(self, plan: Plan, args: Any, kwargs: Any) -> list[int]:
        """The sources of a call's tensor operands, in the order of its arguments."""
        self._flags, self._grad, self._vague = 0, False, False
        sources: list[int] = []
        if plan.uninitialised:
            return sources
        self._lifting = plan.lifts
        strange = 0.0
        if plan.blind:
            args = args[1:]
        for value in args if not kwargs else (*args, *(v for k, v in kwargs.items() if k not in plan.writes)):
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
        if strange:  # not zero: NaN or infinite
            origin = self._number_read(strange, plan.name in _COMPUTES)
            if origin is None:
                self._flags |= LITERAL
            else:
                sources.append(origin)
        if plan.copies and (args[0].is_conj() or args[0].is_neg()):  # the copy holds other numbers than the memory
            self._vague = True
        return sources

    def note_number(self, tensor: Tensor, value: Any) -> None:
        """Remember which row a non-finite Python number was read from: it may come back as a factor, a rate, a baseline."""
        if value.__class__ is float and value - value != 0.0:
            source = self.source(tensor)
            if self.recording.may_be_bad(source):
                self._read_out.pop(str(value), None)
                self._read_out[str(value)] = source

    def _number_read(self, value: float, computes: bool) -> int | None:
        """The row that a non-finite Python number among the operands was read from, as far as can be told.

        Python keeps no trace of it, so this is the last that was read: a NaN from any, for Python makes NaN of
        infinities too; an infinity from one of its kind, and only to compute with.
        """
        if not self._read_out or (value == value and not computes):
            return None
        return next(reversed(self._read_out.values())) if value != value else self._read_out.get(str(value))

    def source(self, tensor: Tensor) -> int:
        """The row (or source, negative) that describes what a tensor holds now."""
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
        if entry.grad:
            self._grad = True
        if entry.uninit:
            return self._read_uninitialised(entry, tensor)
        if entry.nbytes == tensor.numel() * tensor.itemsize and (not entry.odd or shows_all(tensor, entry.nbytes)):
            if not entry.parts:
                return entry.last
            if not entry.bad:
                self._vague = True
                return entry.parts[-1]
            return self._snapshot(entry, tensor, whole=True)
        if entry.views is not None and (row := entry.views.get(view_key(tensor))) is not None:
            return row
        if entry.bad:
            return self._snapshot(entry, tensor, whole=False)
        self._vague = True
        return entry.parts[-1] if entry.parts else entry.last

    def new_source(self, tensor: Tensor, kind: Any, name: str = "", parents: tuple[int, ...] = ()) -> int:
        recording, stats = self.recording, self.chunk.stats
        number = recording.new_number()
        stat = (self.chunk.number << 32) | stats.add(tensor)
        if stats.bad > 0:
            recording.bad.add(number)
        elif stats.bad:
            recording.pending = True
        recording.sources[number] = Source(
            number,
            kind,
            name,
            stat,
            recording.end,
            tuple(shape_of(tensor)),
            str(tensor.dtype).removeprefix("torch."),
            parents,
        )
        return number

    def _first_sight(self, tensor: Tensor, storage: torch.UntypedStorage, owner: int = -1) -> int:
        kind, name = "data", ""
        if owner >= 0:
            kind, name = self.recording.parameter_kinds[owner], self.recording.parameter_names[owner]
        elif type(tensor) is torch.nn.Parameter:
            kind = "parameter"
        elif self._lifting:
            kind = "literal"
        number = self.new_source(tensor, kind, name)
        if kind == "literal" and number in self.recording.bad and self.recording.stats(number).nan:
            origin = self._number_read(math.nan, True)
            if origin is not None:
                self.recording.sources[number] = replace(self.recording.sources[number], parents=(origin,))
        entry = self.ledger.enter(storage)
        entry.last, entry.owner = number, owner
        entry.bad = self.chunk.stats.bad
        if not shows_all(tensor, entry.nbytes):
            entry.odd = True
            entry.bad = entry.bad or -1  # the rest of the storage was not looked at
        return number

    def _snapshot(self, entry: Entry, tensor: Tensor, whole: bool) -> int:
        """What a tensor holds now, when its storage was written piece by piece and something bad may be in it."""
        parents = (entry.last, *entry.parts)
        if not self.recording.pending:  # else they are chosen when it is known which are bad
            parents = tuple(p for p in parents if p in self.recording.bad) or parents[-1:]
        number = self.new_source(tensor, "snapshot", parents=parents)
        if whole:
            entry.last, entry.parts = number, ()
            entry.bad = self.chunk.stats.bad
        elif entry.views is None:
            entry.views = {view_key(tensor): number}
        else:
            entry.views[view_key(tensor)] = number
        return number

    def _read_uninitialised(self, entry: Entry, tensor: Tensor) -> int:
        """Memory that was allocated and never written as a whole: what is in it counts from now on."""
        bad = () if self.recording.pending else tuple(p for p in entry.parts if p in self.recording.bad)
        number = self.new_source(tensor, "snapshot", parents=bad or (entry.last, *entry.parts))
        if number in self.recording.bad and not bad:
            self.recording.bad.add(entry.last)
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
            self.recording.owned.add(entry.last)
        self.recording.program.names[entry.serial] = self.recording.parameter_names[owner]

    def mark_gradient(self, tensor: Tensor) -> None:
        """Say that a tensor is a parameter's gradient."""
        storage = storage_of(tensor)
        entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
        if entry is not None:
            entry.grad = True
