"""A library's calls made again on fewer rows: their results, and numbers that they compute from
the count of the rows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.callee import Run, known_in, packages_of, run_with, runs_of
from nanlab.program.edit_text import whole_spans
from nanlab.program.expression import Code, ValueAt, is_silent, nodes_of, parsed, span_of
from nanlab.program.readings import Readings, device_of
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get, Window
from nanlab.program.values import Values
from nanlab.trace.mode import DispatchMode
from nanlab.trace.program import Call, Ref


class Recount:
    """The libraries' calls of a step, made on some of the rows of a batch."""

    def __init__(self, where: Window, rows: int, kept: torch.Tensor) -> None:
        self.where, self.rows, self.kept = where, rows, kept
        self.values = Values(where.segments)

    def number(self, call: Call, reached: Container[int]) -> float | None:
        """The number that stands in the place of a call's second operand; None where unknown.

        reached: storages that the batch has a part in.
        """
        for at, run, again, value in self._runs(call, everywhere=False):
            made, seen = [self.where.segments[at].calls[i] for i in run.calls], _Numbers()
            if call.position in [each.position for each in made]:
                with suppress(Exception), torch.random.fork_rng(devices=[]), seen:
                    again(partial(self._fewer, partial(value, run.calls[0]), reached))
                return _beside(seen.found, made, call)
        return None

    def live(self, call: Call) -> list[Patch]:
        """The library's call that makes a call, made by its own code in all of its runs in the
        step, not call by call; none where that is not known."""
        return [
            Patch(at, run.calls[-1], frozenset(run.calls), run.out, again)
            for at, run, again, _ in self._runs(call, everywhere=True)
        ]

    def _runs(
        self, call: Call, everywhere: bool
    ) -> Iterator[tuple[int, Run, Callable[[Get], Any], ValueAt]]:
        """(number of the segment, run, function that makes it again, recorded values) of the
        library's call that makes a call.

        everywhere: in all segments of the step, not only in that of the call.
        """
        recording = self.where.recording
        op = recording.op(call.position)
        if op is None or not recording.trusted:
            return
        readings = Readings(recording, self.values, op.file, op.line)
        span = recording.spans[op.place]
        own = whole_spans(readings.text).get(span, span)
        nodes = (n for n in nodes_of(parsed(readings.text)) if isinstance(n, ast.Call))
        node = next((n for n in nodes if span_of(n) == own), None)
        if node is None:
            return
        known, packages = known_in(readings.text), packages_of(recording)
        for at, group in readings.made(span_of(node)):
            if not everywhere and all(m.call.position != call.position for m in group):
                continue
            segment, device, value = self.where.segments[at], device_of(group), readings.value(at)
            given, stored = (group, segment, device, value), recording.program.names
            with suppress(NotReplayable):
                for run in runs_of(node, readings.text, packages, *given, stored):
                    code = Code(node, run.parts, known)
                    yield at, run, run_with(code, run, segment, device), value

    def _fewer(self, value: Get, reached: Container[int], part: Any) -> Any:
        """The rows of a part of a call that are left."""
        if part.__class__ is not Ref:
            return part
        found, whole = value(part), part.size[:1] == (self.rows,)
        return found.index_select(0, self.kept) if whole and part.storage in reached else found


def _beside(seen: Sequence[tuple[Any, Any]], made: Sequence[Call], call: Call) -> float | None:
    """The second operand of what stands among some operators where a call does among others; None
    where they are not the same."""
    own = [each for each in made if not is_silent(each.func)]
    alike = [(func, number) for func, number in seen if not is_silent(func)][-len(own) :]
    if [func for func, _ in alike] != [each.func for each in own]:
        return None
    number = next(n for (_, n), each in zip(alike, own, strict=True) if each is call)
    return number if type(number) in (int, float) else None


class _Numbers(DispatchMode):
    """The operators that run inside, each with its second operand."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append((func, args[1] if len(args) > 1 else None))
        return func(*args, **(kwargs or {}))
