"""Numbers that a library's function computes from the count of its rows, when it has fewer."""

from __future__ import annotations

import ast
from collections.abc import Container, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.callee import known_in, packages_of, run_with, runs_of
from nanlab.program.edit_text import whole_spans
from nanlab.program.expression import Code, is_silent, nodes_of, parsed, span_of
from nanlab.program.readings import Readings, device_of
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
        recording = self.where.recording
        op = recording.op(call.position)
        if op is None or not recording.trusted:
            return None
        readings = Readings(recording, self.values, op.file, op.line)
        span = recording.spans[op.place]
        own = whole_spans(readings.text).get(span, span)
        nodes = (n for n in nodes_of(parsed(readings.text)) if isinstance(n, ast.Call))
        node = next((n for n in nodes if span_of(n) == own), None)
        if node is None:
            return None
        known = known_in(readings.text)
        for at, group in readings.made(span_of(node)):
            segment = self.where.segments[at]
            if not any(m.call.position == call.position for m in group):
                continue
            given = segment, device_of(group), readings.value(at)
            with suppress(NotReplayable):
                packages, stored = packages_of(recording), recording.program.names
                for run in runs_of(node, readings.text, packages, group, *given, stored):
                    made = [segment.calls[i] for i in run.calls]
                    if call.position in [each.position for each in made]:
                        code, seen = Code(node, run.parts, known), _Numbers()
                        again = run_with(code, run, segment, device_of(group))
                        get = partial(self._fewer, partial(given[-1], run.calls[0]), reached)
                        with suppress(Exception), torch.random.fork_rng(devices=[]), seen:
                            again(get)
                        return _beside(seen.found, made, call)
        return None

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
