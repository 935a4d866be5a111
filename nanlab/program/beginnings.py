"""The calls of a step before the first edited one, made once for all edits that are tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property

from nanlab.program.edit_text import EditLike
from nanlab.program.rebuild import Beginning, Patch
from nanlab.program.values import Values
from nanlab.trace.recording import Recording

KEPT = 1 << 28  # bytes that are kept between two questions


class Beginnings:
    """The first calls of a step, by how many they are."""

    def __init__(self, recording: Recording, values: Values) -> None:
        self.recording, self.values, self.segments = recording, values, values.segments
        self._made: dict[int, Beginning] = {}  # by the first call after
        self._askers = 0  # that are in ``sharing``

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """A context in which the edits judged share one run of the calls before them."""
        self._askers += 1
        try:
            yield
        finally:
            self._askers -= 1
            if not self._askers and sum(b.nbytes for b in self._made.values()) > KEPT:
                self.forget()

    def forget(self) -> None:
        """Drop what was made; the next beginning is made anew."""
        self._made, self.values.beginning = {}, None

    def prepare(self, edits: Sequence[EditLike]) -> None:
        """Make the calls before the first line of edits, unless some beginning is made already."""
        firsts = [self._first_calls.get((e.file, n)) for e in edits for n in (e.first, e.last)]
        known = [first for first in firsts if first is not None]
        if self._askers and not self._made and known:
            with suppress(Exception):  # why it cannot be built is told elsewhere
                self._make(min(known))

    def before(self, patches: Sequence[Patch]) -> Beginning | None:
        """The beginning of the step up to the first patch; None where nobody shares it, or it
        cannot be made."""
        at, index = min(((p.segment, min((*p.skipped, p.at))) for p in patches), default=(1, 0))
        if self._askers:
            with suppress(Exception):  # why it cannot be built is told elsewhere
                return self._make(index if not at else len(self.segments[0].calls))
        return None

    def _make(self, index: int) -> Beginning | None:
        """The beginning of the step up to a call of the first segment, each made once."""
        earlier = max((i for i in self._made if i <= index), default=None)
        start = None if earlier is None else self._made[earlier]
        found = Beginning.up_to(self.segments, index, start)
        if found is None:
            return None
        if earlier is None:
            self._made = {}  # their tensors are others
        self._made[found.index] = self.values.beginning = found
        return found

    @cached_property
    def _first_calls(self) -> dict[tuple[str, int], int]:
        """By line, the first call of the stretch in one module in which it first runs."""
        found: dict[tuple[str, int], int] = {}
        module, begin = None, 0
        for index, call in enumerate(self.segments[0].calls):
            op = self.recording.op(call.position)
            if op is not None:
                module, begin = op.module, begin if op.module == module else index
                found.setdefault((op.file, op.line), begin)
        return found
