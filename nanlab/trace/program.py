"""A training step as a program: operator calls over numbered storages, and its leaves."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, overload

import torch

MOST_BEFORE = 3  # steps that are run again before the one in which a fault shows


class Ref(tuple[Any, ...]):
    """A tensor as a view of a numbered storage:
    ``(storage, offset, size, stride, dtype, tracked, bits)``.

    ``tracked``: 0 if autograd did not follow the tensor, 1 if it did, 2 for a leaf of its graph.
    Each result of a custom Function or with a hook that shares memory with others has its own
    number from 3 on. None in a result: known later. ``bits``: 1 for a lazy conjugate, 2 for a lazy
    negation.
    """

    __slots__ = ()

    storage: int = property(itemgetter(0))  # type: ignore[assignment]
    size: tuple[int, ...] = property(itemgetter(2))  # type: ignore[assignment]
    dtype: torch.dtype = property(itemgetter(4))  # type: ignore[assignment]
    tracked: int | None = property(itemgetter(5))  # type: ignore[assignment]

    @property
    def view(self) -> tuple[Any, ...]:
        """Which elements it shows, whoever follows it."""
        return (*self[:5], self[6])


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that is no view of a plain storage (sparse, quantised, ...), held as it is."""

    tensor: Any


class Call(NamedTuple):
    """One call of one operator."""

    func: Any  # torch._ops.OpOverload
    args: tuple[Any, ...]  # a Ref in the place of each tensor
    kwargs: dict[str, Any]
    out: Any  # a Ref, a tuple of them, or what else the operator returns
    position: int  # of its first row in the trace
    grad: bool  # whether gradients were enabled
    given: str = ""  # why it is not run again: its results are leaves

    @property
    def read(self) -> list[Ref]:
        """The views that it is given."""
        return [*refs_in((self.args, tuple(self.kwargs.values())))]


@dataclass(slots=True, eq=False)
class View:
    """The part of a storage that a tensor shows: a Ref without the storage's number."""

    rest: tuple[Any, ...]  # of the Ref: offset, size, stride, dtype, tracked, bits
    nbytes: int  # of its elements
    shape_number: int  # in the recording
    dtype_number: int

    def of(self, storage: int) -> Ref:
        """The Ref of this view on a storage."""
        return Ref((storage, *self.rest))


class Calls(Sequence[Call]):
    """Calls in order. A call is noted while the program runs, and becomes a Call when it is read.

    A Call is ten objects, which Python's garbage collector walks again and again: a seventh of a
    transformer's step. A note is one at most: it shares views, and the collector walks no numbers.
    """

    def __init__(self, made: Iterable[Call] = ()) -> None:
        self._made = [*made]
        self.noted: list[Any] = []  # func, args, kwargs, out, position, grad, given, first of each
        # of the storages, in the order of the views in args, kwargs and out
        self.numbers = array("q")
        # each puts the numbers among the arguments of some calls into what was noted of them
        self.late: list[Callable[[list[Any]], None]] = []

    def __len__(self) -> int:
        return len(self._made) + len(self.noted) // 8

    @overload
    def __getitem__(self, at: int) -> Call: ...
    @overload
    def __getitem__(self, at: slice) -> list[Call]: ...
    def __getitem__(self, at: int | slice) -> Call | list[Call]:
        return self._all()[at]

    def __iter__(self) -> Iterator[Call]:
        return iter(self._all())

    def append(self, call: Call) -> None:
        self._all().append(call)

    def put(self, at: int, call: Call) -> None:
        """Another call in the place of one."""
        self._all()[at] = call

    @property
    def graded(self) -> bool:
        """Whether gradients were enabled in any."""
        return any(call.grad for call in self._made) or any(self.noted[5::8])

    def clear(self) -> None:
        self._made.clear()
        self.noted.clear()
        self.late.clear()

    def _all(self) -> list[Call]:
        if self.noted:
            late, self.late = self.late, []
            for fill in late:
                fill(self.noted)
            fields = iter(self.noted)
            for func, args, kwargs, out, position, grad, given, first in zip(
                *[fields] * 8, strict=True
            ):
                numbers = map(self.numbers.__getitem__, count(first))
                found = _named(args, numbers)
                by_name = {name: _named(value, numbers) for name, value in kwargs.items()}
                result = _named(out, numbers)
                self._made.append(Call(func, found, by_name, result, position, grad, given))
            self.noted.clear()
        return self._made


def _named(value: Any, numbers: Iterator[int]) -> Any:
    """The argument with a Ref for each View, by the numbers of the storages in order."""
    if value.__class__ is View:
        return value.of(next(numbers))
    if value.__class__ is tuple:
        return tuple([_named(item, numbers) for item in value])
    if value.__class__ is list:
        return [_named(item, numbers) for item in value]
    return value


@dataclass(slots=True)
class EngineRun:
    """One run of the autograd engine: what it began from, and where the gradients went."""

    first: int  # index of its first call
    last: int  # index after its last call
    nested: bool  # inside of another run
    roots: tuple[Any, ...]
    gradients: tuple[Any, ...]  # of the roots, None where it was 1
    inputs: tuple[Any, ...]  # of torch.autograd.grad
    accumulates: bool
    create_graph: bool
    before: dict[Ref, Any] = field(default_factory=dict)  # leaf -> the gradient that it had
    after: dict[Ref, Any] = field(default_factory=dict)  # leaf -> the gradient that it has
    results: tuple[Any, ...] = ()  # of torch.autograd.grad
    forward: bool = False  # it is differentiated forward: its results do not tell all it gave

    @property
    def batched_at(self) -> int | None:
        """The batch dimension of incoming gradients, as ``jacrev`` makes them: one gradient for
        each element of a result. Dimensions of vmaps around it do not count."""
        pairs = zip(self.roots, self.gradients, strict=True)
        given = [(root.size, g.size) for root, g in pairs if root.__class__ is g.__class__ is Ref]
        if not given or any(len(g) != len(root) + 1 for root, g in given):
            return None
        fitting = [
            at
            for at in range(min(len(g) for _, g in given))
            if all(g[:at] + g[at + 1 :] == root for root, g in given)
        ]
        whole = (at for at in fitting if all(g[at] == math.prod(r[at:]) for r, g in given))
        return next(whole, 0 if 0 in fitting else None)

    @property
    def by_sample(self) -> tuple[bool, ...]:
        """For each input, whether its gradient has a dimension for samples, as in
        ``vmap(grad(...))``."""
        pairs = [] if self.batched_at is not None else zip(self.inputs, self.results, strict=False)
        return tuple(
            x.__class__ is g.__class__ is Ref and len(g.size) > len(x.size) for x, g in pairs
        )

    @property
    def unrolled(self) -> bool:
        """Whether a replay makes the run's calls one by one while nothing before them has
        changed."""
        return self.forward or any(self.by_sample)


@dataclass(slots=True)
class FunctionUse:
    """One application of a custom torch.autograd.Function: the calls of its forward."""

    number: int  # sequence number of its node
    name: str
    first: int  # index of its first call
    last: int  # index after its last call
    inputs: tuple[Any, ...]  # its tensor arguments, None for one that autograd does not follow
    outputs: dict[int, Any]  # number of a result -> it, those that autograd follows


@dataclass(slots=True)
class HookUse:
    """A hook that may give a tensor another gradient."""

    number: int  # below 0
    index: int  # of the call before which it was registered; of a leaf, its engine run began
    tensor: Any
    late: bool  # called when the gradient was added to that of the leaf


@dataclass(slots=True)
class FunctionRun:
    """One run of the backward of a custom torch.autograd.Function, or of a hook."""

    number: int  # sequence number of its node, or that of the hook
    first: int  # index of its first call
    last: int  # index after its last call
    arrived: tuple[Any, ...]  # gradients of its results, None where there is none
    left: tuple[Any, ...]  # gradients of its tensor arguments, None where there is none


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """A group of parameters as one step of an optimizer found it."""

    settings: dict[str, Any]  # lr, eps, ...
    parameters: tuple[Any, ...]
    gradients: tuple[Any, ...]  # None where there was none
    state: tuple[dict[str, Any], ...]  # of each parameter


@dataclass(slots=True)
class OptimizerRun:
    """An optimizer's step: its calls and what it began with, to take it with other settings."""

    first: int  # index of its first call
    last: int  # index after its last call
    number: int  # the same for each step of one optimizer
    kind: str  # the class in torch.optim whose code it ran; with its module, an installed one
    grad: bool  # whether gradients were enabled
    groups: tuple[ParameterGroup, ...] = ()
    # tensors that a GradScaler left with it; plain attributes of an installed class
    own: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why it cannot be taken with other settings


@dataclass(frozen=True, slots=True)
class Look:
    """The program read a tensor as a Python number or truth value."""

    index: int  # of the call before which it did
    ref: Any
    value: Any
    place: int  # of the source line


@dataclass(slots=True)
class Segment:
    """The calls between two boundaries of training steps."""

    start: int  # position in the trace
    end: int = 1 << 62  # position of the next; this while the segment is the last
    threads: int = 1  # of torch: sums are split between them, and round accordingly
    calls: Calls = field(default_factory=Calls)
    leaves: dict[int, Any] = field(default_factory=dict)  # storage -> it, as it is now
    # storage -> a copy of what it held, where it was overwritten
    saved: dict[int, Any] = field(default_factory=dict)
    # storage -> (bytes, device): overwritten unread
    blank: dict[int, tuple[int, str]] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)  # storages that it has met
    # index of a call that draws -> state of its generator
    states: dict[int, Any] = field(default_factory=dict)
    # index of a call that draws -> its own generator
    generators: dict[int, Any] = field(default_factory=dict)
    # index -> (storage, what uninitialised memory held)
    loads: dict[int, tuple[int, Any]] = field(default_factory=dict)
    # index -> copies of results that are leaves
    results: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    engine: list[EngineRun] = field(default_factory=list)
    functions: list[FunctionUse] = field(default_factory=list)  # in the order of their ends
    hooks: list[HookUse] = field(default_factory=list)
    function_runs: list[FunctionRun] = field(default_factory=list)
    optimizers: list[OptimizerRun] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    lost: tuple[int, str] | None = None  # (index, reason): from there on it cannot be run again
    # leaves that the segments before make when they are run again, and that were not made yet
    unmade: set[int] = field(default_factory=set)
    # index of a call -> code and instruction of torch's own that made it, while statistics are put
    # off
    inside: dict[int, tuple[Any, int]] = field(default_factory=dict)
    summarised: int = 0  # calls whose rows have statistics, where these were put off
    # of the saved: copied at the end only, nothing overwrote them
    intact: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Program:
    """The segments that are kept, oldest first, and who lives in which storage."""

    segments: list[Segment] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # storage -> parameter or buffer
    # (begin, end) of what was dropped, in their order; turns of a loop without gradients are not in
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    reason: str = ""  # why nothing was recorded

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments that reach into these positions."""
        return [each for each in self.segments if each.start < end and each.end > start]

    def lacks(self, start: int, end: int) -> bool:
        """Whether anything between these positions was dropped."""
        at = bisect_left(self.forgotten, end, key=itemgetter(0))  # of those that begin before it
        return at > 0 and self.forgotten[at - 1][1] > start

    def forget(self, start: int, end: int) -> None:
        """Note that what lies between these positions was dropped."""
        spans: list[tuple[int, int]] = []
        for begin, stop in sorted([*self.forgotten, (start, end)]):
            if spans and begin <= spans[-1][1]:
                begin, stop = spans[-1][0], max(stop, spans[-1][1])
                spans.pop()
            spans.append((begin, stop))
        self.forgotten = spans

    def runs(self) -> list[list[Segment]]:
        """The segments in groups: each begins with what the segment before it in its group left."""
        found: list[list[Segment]] = []
        for segment in self.segments:
            if found and not self.lacks(found[-1][-1].end, segment.start):
                found[-1].append(segment)
            else:
                found.append([segment])
        return found

    def calls(self, start: int, end: int) -> Iterator[Call]:
        """The calls between two positions that are kept, in their order."""
        for segment in self.between(start, end):
            calls = segment.calls
            for at in range(bisect_left(calls, start, key=attrgetter("position")), len(calls)):
                if calls[at].position >= end:
                    break
                yield calls[at]

    def call_at(self, position: int) -> Call | None:
        """The call whose first row is at a position; None where it is not kept."""
        return next(self.calls(position, position + 1), None)


def refs_in(value: Any) -> Iterator[Ref]:
    """Every Ref in an argument or result."""
    if value.__class__ is Ref:
        yield value
    elif value.__class__ is tuple or value.__class__ is list:
        for item in value:
            yield from refs_in(item)
