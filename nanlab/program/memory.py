"""The storages of a step that is run again, and its random states."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.operators import having
from nanlab.trace.program import Held, Ref, Segment, refs_in

Tensor = torch.Tensor
Get = Callable[[Any], Any]


@dataclass(frozen=True)
class Instead:
    """What is run in the place of some calls that follow each other."""

    last: int  # index after the last of them
    run: Callable[[Get], None]  # with the tensors of references
    when: Callable[[Get], bool] = lambda get: True  # else the calls are made as they were


class Memory:
    """Storages by their number, tensors built from references to them."""

    def __init__(self) -> None:
        self.storages: dict[int, Any] = {}
        # id of a tensor held as it is -> the one that stands for it here
        self._held: dict[int, Any] = {}

    def load(self, segment: Segment) -> None:
        """What the segment begins with, but for what was made here already."""
        for number, storage in segment.leaves.items():
            if number not in self.storages:
                copy = segment.saved.get(number)
                self.storages[number] = storage if copy is None else copy.clone()
        for number, (nbytes, device) in segment.blank.items():
            if number not in self.storages:
                self.storages[number] = torch.empty(
                    nbytes, dtype=torch.uint8, device=device
                ).untyped_storage()

    def tensor(self, ref: Any) -> Any:
        """The tensor that a reference stands for; anything else as it is."""
        if ref.__class__ is Held:
            return self.held(ref)
        if ref.__class__ is not Ref:
            return ref
        number, offset, size, stride, dtype, _, bits = ref
        storage = self.storages.get(number)
        if storage is None:
            raise NotReplayable("a tensor that it reads was made where nanlab did not see it")
        found = torch.empty(0, dtype=dtype, device=storage.device).set_(
            storage, offset, size, stride
        )
        if bits & 1:
            found = torch._conj(found)
        return torch._neg_view(found) if bits & 2 else found

    def held(self, held: Held) -> Any:
        """A stand-in for a tensor that is no view of a plain storage; the program's own is never
        written."""
        key = id(held.tensor)
        if key not in self._held:
            self._held[key] = held.tensor.detach().clone()
        return self._held[key]

    def unpack(self, value: Any) -> Any:
        """An argument with tensors for references."""
        kind = value.__class__
        if kind is Ref or kind is Held:
            return self.tensor(value)
        if kind is tuple or kind is list:
            return kind([self.unpack(item) for item in value])
        return value

    def place(self, ref: Any, made: Any) -> None:
        """Bind what a call returned to what it returned when it was recorded."""
        if ref.__class__ is Held:
            self._held[id(ref.tensor)] = made
        elif ref.__class__ is Ref:
            if isinstance(made, Tensor) and ref.storage not in self.storages:
                self.storages[ref.storage] = _laid_out(made, ref)
        elif ref.__class__ is tuple and isinstance(made, (tuple, list)):
            for part, item in zip(ref, made, strict=False):
                self.place(part, item)

    def release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.storages.pop(number, None)


def _laid_out(made: Tensor, ref: Ref) -> Any:
    """The storage of a result, laid out as the recorded one was."""
    if made.stride() == ref[3] and made.storage_offset() == ref[1]:
        return made.untyped_storage()
    last = (
        sum((n - 1) * s for n, s in zip(ref.size, ref[3], strict=True)) + ref[1] + 1
        if 0 not in ref.size
        else 0
    )
    fresh = torch.empty(last, dtype=made.dtype, device=made.device)
    fresh.as_strided(ref.size, ref[3], ref[1]).copy_(made)
    return fresh.untyped_storage()


@contextmanager
def surroundings(segments: Sequence[Segment]) -> Iterator[None]:
    """As many threads as the program had; random states and threads are put back afterwards."""
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    own = {id(g): (g, g.get_state()) for s in segments for g in s.generators.values()}
    try:
        if segments and segments[0].threads != threads:
            torch.set_num_threads(segments[0].threads)
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(before)
        for generator, state in own.values():
            generator.set_state(state)


def seed(segment: Segment, index: int) -> None:
    """Put the generator of a call into the state in which it drew."""
    state = segment.states.get(index)
    if state is not None:
        own = segment.generators.get(index)
        with _disable_current_modes():
            if own is None:
                torch.set_rng_state(state)
            else:
                own.set_state(state)


def seed_first(segment: Segment, first: int, last: int) -> None:
    """Put the generator of the first of these calls that draws into its state."""
    for index in range(first, last):
        if index in segment.states:
            return seed(segment, index)


def last_uses(
    segments: Sequence[Segment], kept: Collection[int] = ()
) -> dict[tuple[int, int], list[int]]:
    """(segment, index) of the last call that names a storage -> these storages, without those that
    outlive the run."""
    outlive: set[int] = set(kept)
    last: dict[int, tuple[int, int]] = {}
    for at, segment in enumerate(segments):
        outlive |= segment.leaves.keys() | segment.blank.keys()
        for run in segment.engine:
            outlive |= {
                r.storage
                for r in refs_in((*run.roots, *run.after, *run.after.values(), *run.results))
            }
        for index, call in enumerate(segment.calls):
            for ref in refs_in((call.args, tuple(call.kwargs.values()), call.out)):
                last[ref.storage] = at, index
                if ref.size == ():
                    outlive.add(ref.storage)  # a loss; it costs nothing
        for step in segment.optimizers:
            groups = step.groups
            outlive |= {r.storage for g in groups for r in refs_in((g.parameters, g.gradients))}
        for look in segment.looks:
            outlive |= {ref.storage for ref in refs_in(look.ref)}
    found: dict[tuple[int, int], list[int]] = {}
    for number, where in last.items():
        if number not in outlive:
            found.setdefault(where, []).append(number)
    return found


# They print a warning of their own where called as operators.
_WARN = having("deviation")


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator; one that would print a warning again is called where Python can catch
    it."""
    name = getattr(func, "_opname", "")
    if name not in _WARN:
        return func(*args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(torch, name)(*args, **kwargs)
