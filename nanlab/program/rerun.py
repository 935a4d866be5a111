"""The calls of a step one after the other, below autograd: bit for bit what they were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.program.memory import (
    Instead,
    Memory,
    last_uses,
    operate,
    seed,
    seed_first,
    surroundings,
)
from nanlab.trace.program import Call, Look, Segment

Visit = Callable[[int, int, Call, Any], bool | None]
Run = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]


def _plain(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return operate(call.func, args, kwargs)


def rerun(
    segments: Sequence[Segment],
    visit: Visit | None = None,
    run: Run = _plain,
    memory: Memory | None = None,
    looked: Callable[[Look, Any], None] | None = None,
    kept: Collection[int] = (),
    instead: Mapping[tuple[int, int], Instead] | None = None,
) -> Memory:
    """Run every call of these segments again, and return the storages as they are at the end.

    visit: called with (number of the segment, index, call, result) after each call; True ends the
    run there.
    run: what is done in the place of a call. looked: called with each value that the program read,
    as it is now. kept: storages that are not freed after their last use. instead: (segment, index)
    -> what is run from there on in the place of calls. Raises NotReplayable where a call cannot be
    run again.
    """
    memory = Memory() if memory is None else memory
    standing = instead or {}
    done = last_uses(segments, kept)
    with surroundings(segments), torch.no_grad(), _disable_current_modes():
        for number, segment in enumerate(segments):
            memory.load(segment)
            looks = iter(sorted(segment.looks, key=lambda each: each.index))
            look, resume = next(looks, None), 0
            for index, call in enumerate(segment.calls):
                if segment.lost is not None and index >= segment.lost[0]:
                    raise NotReplayable(segment.lost[1])
                while look is not None and look.index <= index:
                    if looked is not None:
                        looked(look, memory.tensor(look.ref))
                    look = next(looks, None)
                own = standing.get((number, index))
                if own is not None and own.when(memory.unpack):
                    seed_first(segment, index, own.last)
                    own.run(memory.unpack)
                    resume = own.last
                if index < resume:
                    memory.release(done.get((number, index), ()))
                    continue
                if index in segment.loads:
                    storage, held = segment.loads[index]
                    memory.storages[storage] = held.clone()
                result = _call(memory, segment, index, call, run)
                if visit is not None and visit(number, index, call, result):
                    return memory
                if (number, index) in done:
                    memory.release(done[number, index])
            while look is not None and looked is not None:
                looked(look, memory.tensor(look.ref))
                look = next(looks, None)
    return memory


def _call(memory: Memory, segment: Segment, index: int, call: Call, run: Run) -> Any:
    if call.given:
        kept = segment.results.get(index)
        if kept is None:
            raise NotReplayable(call.given)
        results = [t.clone() for t in kept]
        flat = call.out if call.out.__class__ is tuple else (call.out,)
        for ref, result in zip(flat, results, strict=False):
            memory.place(ref, result)
        return results
    args = memory.unpack(call.args)
    kwargs = {name: memory.unpack(value) for name, value in call.kwargs.items()}
    seed(segment, index)
    with torch.set_grad_enabled(call.grad):
        result = run(call, args, kwargs)
    memory.place(call.out, result)
    return result
