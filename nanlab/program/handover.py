"""What one step leaves to the next: storages that a replay of the steps before makes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.memory import Memory
from nanlab.program.rerun import rerun
from nanlab.trace.program import Call, Program, Segment


def handed_over(segments: Sequence[Segment]) -> list[set[int]]:
    """For each segment the storages that begin with the very bytes with which the segments before,
    run again, leave them; tried, not assumed."""
    found = [set[int]() for _ in segments]

    def reached(at: int, memory: Memory) -> None:
        segment = segments[at]
        for number, storage in segment.leaves.items():
            made = memory.storages.get(number)
            if made is not None and _same(made, segment.saved.get(number, storage)):
                found[at].add(number)

    with suppress(Exception):  # what cannot be run again hands nothing over
        _run_through(segments, reached)
    return found


def complete(program: Program, wanted: Sequence[Segment]) -> None:
    """Make the storages of these segments that a capsule left to a replay."""
    lacking = [s for s in wanted if s.unmade]
    if not lacking:
        return
    last = max(at for at, s in enumerate(program.segments) if any(s is each for each in lacking))

    def reached(at: int, memory: Memory) -> None:
        segment = program.segments[at]
        for number in segment.unmade:
            made = memory.storages.get(number)
            if made is None or made.nbytes() != segment.leaves[number].nbytes():
                raise NotReplayable("the steps before it do not make what it begins with")
            segment.saved[number] = made.clone()
        segment.unmade = set()

    reason = "what it begins with is not in the file"
    try:
        _run_through(program.segments[: last + 1], reached)
    except Exception as error:
        reason = str(error)
    for segment in lacking:
        if segment.unmade:
            segment.unmade, segment.lost = set(), (0, reason)


def _run_through(segments: Sequence[Segment], reached: Callable[[int, Memory], None]) -> None:
    """Run these segments one after the other in one memory, but for the last; ``reached`` is called
    with each of the others before it begins."""

    def visit(at: int, index: int, call: Call, out: Any) -> bool:
        if segments[at].unmade:
            raise NotReplayable("what it begins with is not in the file")
        if index == len(segments[at].calls) - 1 and at + 1 < len(segments):
            reached(at + 1, memory)
            return at + 2 == len(segments)
        return False

    memory = Memory()
    if len(segments) > 1:
        rerun(segments, visit, memory=memory)


def _same(a: Any, b: Any) -> bool:
    if a.nbytes() != b.nbytes() or a.device != b.device:
        return False
    views = [
        torch.empty(0, dtype=torch.uint8, device=s.device).set_(s, 0, (s.nbytes(),), (1,))
        for s in (a, b)
    ]
    return torch.equal(*views)
