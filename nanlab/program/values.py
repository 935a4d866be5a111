"""Values of a step's calls, made again where somebody asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from nanlab.errors import NotReplayable
from nanlab.program.expression import Bound, Expression, Made
from nanlab.program.rebuild import Beginning
from nanlab.program.rerun import bytes_of, copy_of, operate, rerun, window
from nanlab.trace.chunk import Span
from nanlab.trace.program import Call, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
BySegment = list[tuple[int, list[Made]]]  # segments, and calls of each


@dataclass(frozen=True, slots=True)
class _Shown:
    """The tensors that one call read and made, by view."""

    read: dict[Any, Tensor]
    made: dict[Any, Tensor]
    result: Tensor | None  # the first


class Values:
    """What the calls of a step read and returned, each made again once for all that ask."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        # by file and span: the values there, and the calls of each segment
        self.lines: dict[tuple[str, Span], tuple[Results, BySegment]] = {}
        # by file, span, form, segment and calls: an expression and its runs; or why none are known
        self.bound: dict[Any, tuple[Expression, list[Bound]] | NotReplayable] = {}
        # by file, line, span, form and makers: the runs of a call into a library; or why none are
        self.library_runs: dict[Any, list[Any] | NotReplayable] = {}
        # by file: lines that made tensors, and the stretches of the code that did
        self.computing: dict[str, tuple[set[int], set[Span | None]]] = {}
        self.beginning: Beginning | None = None  # of the step, where it was made above autograd
        self._shown: dict[tuple[int, int], _Shown] = {}
        self._copies: dict[tuple[int, Any], Tensor] = {}  # (segment, view) -> the last one

    def of(self, wanted: Collection[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], _Shown]]:
        """What calls (segment, index) read and returned, in their order."""
        missing = {each for each in wanted if each not in self._shown}
        if missing:
            self._run(missing)
        return ((each, self._shown[each]) for each in sorted(wanted))

    def _run(self, wanted: Collection[tuple[int, int]]) -> None:
        last, at, begin, memory = max(wanted), 0, 0, None
        start = self.beginning.reaches(min(wanted)) if self.beginning is not None else None
        if self.beginning is not None and start:
            begin, memory = start, self.beginning.memory(self._between((0, start), last))
        index = begin - 1
        read: dict[Any, Tensor] = {}

        def run(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal at, index, read
            index += 1
            while index >= len(self.segments[at].calls):
                at, index = at + 1, 0
            if (at, index) in wanted:
                refs = call.args, tuple(call.kwargs.values())
                read = self._collected(at, refs, (args, tuple(kwargs.values())))
            return operate(call.func, args, kwargs)

        def visit(segment: int, place: int, call: Call, out: Any) -> bool:
            nonlocal at, index, read
            at, index = segment, place
            if (segment, place) in wanted:
                made = self._collected(at, call.out, out)
                result = next(
                    iter(made.values()),
                    next((t for t in tree_leaves(out) if isinstance(t, Tensor)), None),
                )
                self._shown[segment, place] = _Shown(read, made, result)
                read = {}
            return (segment, place) == last

        rerun(self.segments, visit, run, memory, begin=begin)

    def _between(self, first: tuple[int, int], last: tuple[int, int]) -> Iterator[Call]:
        for at, segment in enumerate(self.segments):
            for index, call in enumerate(segment.calls):
                if first <= (at, index) <= last:
                    yield call

    def _collected(self, segment: int, refs: Any, made: Any) -> dict[Any, Tensor]:
        """Copies of tensors by their views; calls that see the same values share one."""
        found: dict[Any, Tensor] = {}
        for view, tensor in _paired(refs, made):
            copy = self._copies.get((segment, view))
            if copy is None or tensor.is_meta or not torch.equal(bytes_of(copy), bytes_of(tensor)):
                copy = self._copies[segment, view] = copy_of(tensor)
            found.setdefault(view, copy)
        return found


def operand_of(recording: Recording, position: int, slot: int) -> Tensor:
    """The value that an operand had when a call read it. slot: its number among the call's
    operands. Raises NotReplayable."""
    where = window(recording, recording.step_of(position))
    at, index, _ = where.find(position)
    call = where.segments[at].calls[index]
    refs = list(refs_in((call.args, tuple(call.kwargs.values()))))
    ((_, shown),) = Values(where.segments).of([(at, index)])
    if slot >= len(refs) or refs[slot].view not in shown.read:
        raise NotReplayable("the operand is not known")
    return shown.read[refs[slot].view]


class Results:
    """The tensors that the calls of some lines read and made."""

    def __init__(self, shared: Values) -> None:
        self.shared = shared
        self._wanted: set[tuple[int, int]] = set()
        self._written: set[tuple[int, int]] = set()  # (segment, storage) that a wanted call writes
        # what a view of these showed when a call read it, by the index of that call
        self._seen: dict[tuple[int, Any], list[tuple[int, Tensor]]] = {}
        self.values: dict[int, dict[Any, Any]] = {at: {} for at in range(len(shared.segments))}
        self.results: dict[tuple[int, int], Any] = {}

    def want(self, segment: int, indices: Sequence[int]) -> None:
        for i in indices:
            self._wanted.add((segment, i))
            call = self.shared.segments[segment].calls[i]
            if call.func._schema.is_mutable:
                self._written |= {(segment, ref.storage) for ref in refs_in(call.out)}

    def value(self, segment: int, index: int, ref: Ref) -> Any:
        """The value of a view when the call at an index began; None where nobody read it."""
        for at, seen in self._seen.get((segment, ref.view), ()):
            if at >= index:
                return seen
        return self.values[segment].get(ref.view)

    def run(self) -> None:
        for (segment, index), shown in self.shared.of(self._wanted):
            for view, value in shown.read.items():
                self.values[segment].setdefault(view, value)
                if (segment, view[0]) in self._written:
                    self._seen.setdefault((segment, view), []).append((index, value))
            self.results[segment, index] = shown.result
            for view, value in shown.made.items():
                self.values[segment].setdefault(view, value)


def _paired(refs: Any, made: Any) -> Iterator[tuple[Any, Tensor]]:
    """(view, tensor) of each reference among arguments or results."""
    if refs.__class__ is Ref:
        if isinstance(made, Tensor):
            yield refs.view, made
    elif isinstance(refs, tuple | list) and isinstance(made, tuple | list):
        for ref, item in zip(refs, made, strict=False):
            yield from _paired(ref, item)
