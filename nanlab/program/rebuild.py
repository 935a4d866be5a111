"""The step run again above autograd, some calls replaced, or on fewer rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.capture.ledger import tracked_by
from nanlab.errors import NotReplayable
from nanlab.program.batch import Batch
from nanlab.program.rerun import (
    Get,
    Instead,
    Memory,
    grouped,
    last_uses,
    make,
    operate_call,
    seed_first,
    surroundings,
    written_by,
)
from nanlab.trace.program import (
    Call,
    EngineRun,
    FunctionRun,
    FunctionUse,
    Held,
    HookUse,
    Look,
    Ref,
    Segment,
    refs_in,
)

Tensor = torch.Tensor

# The step run again above autograd, with some of its calls replaced: what the program would
# compute if it were written so.
#
# The forward calls are made with gradients, each run of the engine is a run of the engine, the
# optimizer's calls follow as they were. So the graph, the order of its nodes and the sums of
# gradients are those of the program written anew.

Leaf = Callable[[Ref, Any], Any]  # what stands for a tensor that the step reads from outside
AboutToCall = Callable[[int, int, Call, "Graph"], None]
Around = Callable[[EngineRun, "Graph"], AbstractContextManager[None]]


@dataclass(frozen=True)
class Patch:
    """New code for some calls of a segment, whose result takes the place of theirs."""

    segment: int
    at: int  # index of the call whose result it replaces
    skipped: frozenset[int]  # indices of the calls that are not made, ``at`` among them
    out: Any  # what it replaces: a Ref, or a tuple of them
    run: Callable[[Get], Any]  # from the values of references to the new result
    ahead: bool = False  # before the call at ``at``, not in its place or after it
    follows: bool = False  # it converts what an edit elsewhere changes; None: nothing to convert
    runs: frozenset[int] = frozenset()  # first calls of the engine's runs that are not made


@dataclass
class Rebuilt:
    """What the step computes: roots of engine runs, gradients, tensors at hand."""

    losses: list[Any] = field(default_factory=list)
    gradients: dict[Ref, Any] = field(default_factory=dict)  # leaf -> gradient after its last run
    looked: list[tuple[Look, Any]] = field(default_factory=list)
    ended: bool = False  # before its end


@dataclass(frozen=True, slots=True)
class _Base:
    """The tensor that a storage was made for, and its layout then: ``transpose_`` changes that."""

    ref: Ref
    tensor: Any
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, ref: Ref, made: Tensor) -> _Base:
        return cls(ref, made, made.stride(), int(made.storage_offset()))

    def as_made(self) -> Tensor:
        """The tensor in its layout when it was made."""
        made: Tensor = self.tensor.detach().as_strided(self.ref.size, self.stride, self.offset)
        return made


class Graph:
    """Tensors by the reference under which the recorded program knew them."""

    def __init__(self, leaf: Leaf | None = None) -> None:
        self.memory, self.leaf = Memory(), leaf
        # view -> [the one that autograd does not follow, the one it does, the leaf of its graph,
        # the one that it followed before]
        self.live: dict[Any, list[Any]] = {}
        self.marked: dict[int, Any] = {}  # results that show the memory of others
        # Several results may show one view, as x[0] written twice does: each is read in the order
        # in which it was made.
        self._unread: dict[Any, list[Any]] = {}
        # view -> the leaf of a graph that another may stand for while a custom Function goes back
        self._covered: dict[Any, Any] | None = None
        self.bases: dict[int, _Base] = {}  # by storage
        self.fresh: set[int] = set()  # storages made in this run
        self.edited: set[int] = set()  # storages of what edits made
        self.shared: set[int] = set()  # storages of leaves that other graphs read too
        self._lent: set[int] = set()  # addresses of their memory
        self._views: dict[int, list[Any]] = {}  # storage -> the views of it that are live

    def branch(self) -> Graph:
        """Another graph that goes on from here, with the same tensors."""
        made = Graph(self.leaf)
        made.memory.storages = dict(self.memory.storages)
        made.live = {view: slot[:] for view, slot in self.live.items()}
        made.marked, made.bases = dict(self.marked), dict(self.bases)
        made._unread = {view: found[:] for view, found in self._unread.items()}
        made._views = {number: views[:] for number, views in self._views.items()}
        made.fresh, made.shared = set(self.fresh), set(self.memory.storages)
        made._lent = self._lent | {s.data_ptr() for s in self.memory.storages.values()}
        made.edited = set(self.edited)
        return made

    def own(self, storages: Iterable[int]) -> None:
        """Copy what is about to be written and others read."""
        for number in self.shared.intersection(storages):
            self.shared.discard(number)
            lent = self.memory.storages[number].data_ptr()
            with _disable_current_modes():
                self.memory.storages[number] = self.memory.storages[number].clone()
            for view in self._views.pop(number, ()):
                slot, unread = self.live.pop(view, None), self._unread.pop(view, None)
                if number not in self.edited or slot is None:
                    continue  # it is taken of the copy where it is read next
                shown = next(found for found in slot if found is not None)
                if shown.untyped_storage().data_ptr() == lent:
                    ref = Ref((*view[:5], 0, view[5]))
                    with _disable_current_modes():
                        self.bind(ref, self.memory.tensor(ref))
                    continue
                self.live[view] = slot  # what an edit gave for a part
                self._views.setdefault(number, []).append(view)
                if unread is not None:
                    self._unread[view] = unread

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that a reference stands for."""
        return (found for slot in self.live.values() for found in slot if found is not None)

    def load(self, segment: Segment, borrow: bool = False) -> None:
        """Leaves, as copies, or to be copied before they are written."""
        for number, storage in segment.leaves.items():
            if number not in self.memory.storages and number not in self.fresh:
                held = segment.saved.get(number, storage)
                self.memory.storages[number] = held if borrow else held.clone()
                if borrow:
                    self.shared.add(number)
                    self._lent.add(held.data_ptr())
        for number, (nbytes, device) in segment.blank.items():
            if number not in self.memory.storages and number not in self.fresh:
                self.memory.storages[number] = torch.empty(
                    nbytes, dtype=torch.uint8, device=device
                ).untyped_storage()

    def get(self, ref: Any) -> Any:
        """The tensor of a reference."""
        kind = ref.__class__
        if kind is not Ref:
            if kind is tuple or kind is list:
                return kind([self.get(item) for item in ref])
            return self.memory.held(ref) if kind is Held else ref
        mark, view = ref.tracked, ref.view
        if mark is not None and mark > 2 and mark in self.marked:
            return self.marked[mark]
        slot = self.live.get(view)
        if slot is None:
            return self._unseen(ref)
        if mark is None:
            return next(found for found in (slot[1], slot[2], slot[0]) if found is not None)
        tracked = min(mark, 1) if mark != 2 else 2
        unread = self._unread.get(view) if tracked == 1 else None
        if unread:
            return unread.pop(0)
        found = slot[tracked]
        if found is None or found.requires_grad != bool(tracked):
            found = self._other(ref, slot)
        return found

    def holds(self, value: Any) -> bool:
        """Whether what a reference stands for was made, or loaded."""
        made = self.fresh | self.memory.storages.keys()
        return all(ref.storage in made for ref in refs_in(value))

    def latest(self, ref: Any) -> Any:
        """The tensor of a reference as made last; marked ones stand for it from now on."""
        slot = self.live.get(ref.view) if ref.__class__ is Ref else None
        if slot is None or slot[1] is None or ref.tracked in (0, 2, *self.marked):
            return self.get(ref)
        found = slot[1]
        if ref.tracked > 2:
            self.marked[ref.tracked] = found
            waiting = self._unread.get(ref.view, [])
            waiting[:] = [each for each in waiting if each is not found]
            slot[1] = found if slot[3] is None else slot[3]
        return found

    def _other(self, ref: Ref, slot: list[Any]) -> Any:
        """The tensor, tracked or detached as asked, where only the other form is known."""
        if ref.tracked == 2 and slot[0] is not None and not slot[0].requires_grad:
            slot[2] = slot[0].detach().requires_grad_()  # x.detach().requires_grad_()
            return slot[2]
        for found in slot:
            if found is not None and found.requires_grad == bool(ref.tracked):
                slot[tracked_by(found)] = found  # written in place, autograd follows it since
                return found
        found = next(t for t in slot if t is not None)
        if not ref.tracked:
            return found.detach()
        if found.dtype.is_floating_point or found.dtype.is_complex:
            if ref.tracked == 2 or (found.is_leaf and ref.storage not in self.fresh):
                slot[2] = found.detach().requires_grad_()
                return slot[2]
        if self.edited:  # an edit that detaches
            return found
        raise NotReplayable(
            "autograd follows a tensor whose making it did not see, as in a Function written in C++"
        )

    def _unseen(self, ref: Ref) -> Any:
        """A view that no call returned, made from a leaf or from a call's result."""
        if ref.storage in self.bases:
            base = self.bases[ref.storage].tensor
            if base.requires_grad and not ref.tracked:
                base = base.detach()
            if base.dtype != ref.dtype:
                raise NotReplayable(
                    "a tensor was viewed as another dtype where nanlab did not see it"
                )
            found = base.as_strided(ref.size, ref[3], ref[1])
        else:
            with _disable_current_modes():
                found = self.memory.tensor(ref)
                if self.leaf is not None:
                    found = self.leaf(ref, found)
                if ref.tracked == 2:
                    found = found.detach().requires_grad_()
        if ref.tracked and not found.requires_grad:
            if ref.storage in self.fresh and ref.tracked != 2:
                raise NotReplayable(
                    "autograd follows a tensor whose making it did not see, as in a Function"
                    " written in C++"
                )
            found = found.detach().requires_grad_()
        self.bind(ref, found)
        return found

    def rebind(self, ref: Ref, made: Any) -> None:
        """From here on a reference stands for this tensor alone."""
        self.live.pop(ref.view, None)
        self._unread.pop(ref.view, None)
        self.bind(ref, made)

    def release(self, storages: Sequence[int]) -> None:
        """Forget tensors that nothing reads again."""
        self.memory.release(storages)
        for number in storages:
            self.bases.pop(number, None)
            for view in self._views.pop(number, ()):
                self.live.pop(view, None)
                self._unread.pop(view, None)

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Let a tensor detached in here become a leaf of its own, as in a reentrant checkpoint."""
        outer, self._covered = self._covered, {}
        try:
            yield
        finally:
            for view, leaf in self._covered.items():
                if view in self.live:
                    self.live[view][2] = leaf
            self._covered = outer

    def replace(self, ref: Ref, made: Any) -> None:
        """Let a reference stand for this tensor alone, and its storage for the tensor's memory.

        Memory that others read is not handed on: later calls may write into it.
        """
        number, address = ref.storage, _address(made)
        held = self.memory.storages.get(number)
        if held is not None and held.data_ptr() == address:  # as it was, after another value
            self.rebind(ref, made)
            self.bases.pop(number, None)
            self.edited.discard(number)
            if address in self._lent:
                self.shared.add(number)
            return
        made = made.clone() if address in self._lent else made
        self.rebind(ref, made)
        self.fresh.add(number)
        self.edited.add(number)
        self.bases[number] = _Base.of(ref, made)

    def bind(self, ref: Any, made: Any) -> None:
        """From here on a reference stands for this tensor."""
        kind = ref.__class__
        if kind is Ref and isinstance(made, Tensor):
            view, storage, tracked = ref.view, ref.storage, tracked_by(made)
            slot = self.live.get(view)
            if slot is None:
                slot = self.live[view] = [None, None, None, None]
                self._views.setdefault(storage, []).append(view)
            if tracked == 1 and slot[1] is not made:
                slot[3] = slot[1]
            slot[tracked] = made
            if self._covered is not None and not made.requires_grad and slot[2] is not None:
                self._covered.setdefault(view, slot[2])
                slot[2] = None
            if tracked == 1:
                waiting = self._unread.setdefault(view, [])
                if not any(made is each for each in waiting):
                    waiting.append(made)
            if storage not in self.memory.storages:
                self.fresh.add(storage)
                if storage not in self.bases:
                    self.bases[storage] = _Base.of(ref, made)
        elif kind is Held:
            self.memory.place(ref, made)
        elif kind is tuple and isinstance(made, (tuple, list)):
            for part, item in zip(ref, made, strict=False):
                self.bind(part, item)


def _address(t: Tensor) -> int:
    """The address of a tensor's memory; -1 without one, as for exact numbers."""
    try:
        return t.untyped_storage().data_ptr()
    except RuntimeError:
        return -1


def rebuild(
    segments: Sequence[Segment],
    patches: Sequence[Patch] = (),
    about_to_call: AboutToCall | None = None,
    instead: Mapping[tuple[int, int], Instead] | None = None,
    rows: Batch | None = None,
    around: Around | None = None,
    beginning: Beginning | None = None,
) -> tuple[Graph, Rebuilt]:
    """Run these segments again with these patches.

    about_to_call: called with (number of the segment, index, call, graph) before each call and each
    run of the engine; the dispatch modes that are on stay on. instead: (segment, index) -> what is
    run from there on in the place of calls. rows: of the batch, where some are left out.
    around: a context for each run of the engine that is in no other; Ended in it ends the step.
    beginning: what was made of the step already, and no patch changes.

    Raises NotReplayable where the program did what a graph of its calls cannot repeat (hooks that
    change gradients, Functions written in C++, views that nanlab did not see), or where a call of
    the changed step raises.
    """
    building = _Building(patches, about_to_call, instead, rows, around)
    building.done = _done_after_backward(segments, patches)
    begun = 0
    if beginning is not None:
        building.go_on_from(beginning.building)
        begun = beginning.index
    unobserved = _disable_current_modes() if about_to_call is None else nullcontext()
    with surroundings(segments), unobserved, torch.enable_grad():
        try:
            for number, segment in enumerate(segments):
                building.segment(number, segment, 0 if number else begun)
        except Ended:
            building.result.ended = True
    return building.graph, building.result


class Ended(Exception):
    """No more of the step is needed."""


@dataclass
class Beginning:
    """The first calls of a step, made once for all that changes later ones."""

    segments: Sequence[Segment]
    index: int  # of the first call that is not made, in the first segment
    building: _Building
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)

    @classmethod
    def up_to(
        cls, segments: Sequence[Segment], index: int, earlier: Beginning | None = None
    ) -> Beginning | None:
        """The calls up to an index, or fewer, made once; None where nothing can be shared.

        earlier: a shorter beginning to continue.
        """
        index = _parting(segments, index)
        if earlier is not None and index <= earlier.index:
            return earlier
        if not index:
            return None
        building = _Building()
        if earlier is not None:
            building.go_on_from(earlier.building)
        with surroundings(segments), _disable_current_modes(), torch.enable_grad():
            building.segment(0, segments[0], earlier.index if earlier is not None else 0, index)
        if building.graph.memory.holds_others():
            return None
        made = cls(segments, index, building)
        made._versions = [(t, t._version) for t in building.graph.tensors()]
        return made

    @property
    def is_intact(self) -> bool:
        """Whether all its tensors are as they were made."""
        return all(tensor._version == version for tensor, version in self._versions)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors made."""
        bases = self.building.graph.bases.values()
        return sum(base.tensor.untyped_storage().nbytes() for base in bases)

    def reaches(self, call: tuple[int, int]) -> int | None:
        """The index at which a run below autograd that makes a call can begin; None: at the
        start."""
        begin = self.index if call[0] else min(call[1], self.index)
        between = range(begin, self.index)
        free = not any(True for i in between for _ in _written_at(self.segments[0], i))
        return begin if free else None

    def memory(self, later: Iterable[Call]) -> Memory:
        """A memory of its storages, with copies of those that these later calls write."""
        graph, found = self.building.graph, Memory()
        found.storages = dict(graph.memory.storages)
        for base in graph.bases.values():
            found.place(base.ref, base.as_made())
        for number in {number for call in later for number in written_by(call)}:
            if number in found.storages:
                found.storages[number] = found.storages[number].clone()
        return found


def _parting(segments: Sequence[Segment], index: int) -> int:
    """The last index, up to a call, at which runs of a step may part: nothing made before is
    written later, and no tracked leaf is while the engine still has to run."""
    first, end = segments[0], (-1, 0)
    for at, segment in enumerate(segments):
        for run in segment.engine:
            end = max(end, (at, run.last))
            if not at and not run.nested:
                index = min(index, run.first)
    for update in first.optimizers:
        index = min(index, update.first)
    if first.lost is not None:
        index = min(index, first.lost[0])
    made: dict[int, int] = {}  # storage -> call that made it
    followed: dict[int, int] = {}  # leaf -> call that first read it with gradients
    spans: list[tuple[int, int]] = []  # (made, written): not to be parted
    for at, segment in enumerate(segments):
        for i, call in enumerate(segment.calls):
            if not at and i < index:
                for ref in call.read:
                    if ref.tracked and ref.storage in first.leaves:
                        followed.setdefault(ref.storage, i)
            for number in _written_at(segment, i):
                if number in made:
                    spans.append((made[number], i if not at else index))
                elif number in followed and (at, i) < end:
                    spans.append((followed[number], i if not at else index))
            if not at and i < index:
                for ref in refs_in(call.out):
                    if ref.storage not in first.leaves and ref.storage not in first.blank:
                        made.setdefault(ref.storage, i)
    for begin, write in sorted(spans, reverse=True):
        if begin < index <= write:
            index = begin
    return index


def _done_after_backward(
    segments: Sequence[Segment], patches: Sequence[Patch]
) -> dict[tuple[int, int], list[int]]:
    """(segment, index) after all engine runs and edits -> storages last used there. An optimizer
    makes several times the memory of what it updates."""
    ends = [(at, run.last) for at, s in enumerate(segments) for run in s.engine]
    ends += [(patch.segment, patch.at + 1) for patch in patches]
    if not ends:
        return {}
    return {at: numbers for at, numbers in last_uses(segments).items() if at >= max(ends)}


def is_skipped(use: FunctionUse, skipped: Collection[int], written: Collection[int]) -> bool:
    """Whether all calls of a Function's forward are skipped, and none written anew: new code calls
    it."""
    calls = range(use.first, use.last)
    return bool(calls) and all(i in skipped and i not in written for i in calls)


class Functions:
    """A replayed step's Functions: forward calls give values, backward calls gradients."""

    def __init__(
        self, graph: Graph, go_on: Callable[[int, int, Sequence[EngineRun]], None]
    ) -> None:
        self.graph, self.go_on = graph, go_on
        self.running: list[EngineRun] = []  # inside of each other
        self._segment = Segment(0)
        self._begun: dict[int, list[FunctionUse]] = {}  # index -> those that begin there
        self._ended: dict[int, list[FunctionUse]] = {}
        self._inputs: dict[int, list[Any]] = {}  # id of a use -> its arguments
        self._hooks: dict[int, list[HookUse]] = {}  # index -> those that are registered there
        self._over: set[int] = set()  # ids of runs of backwards
        self.skipped: Collection[int] = ()  # indices of the calls that are not made
        self.written: Collection[int] = ()  # of those that patches take the place of

    def state(self) -> tuple[Any, ...]:
        """Where they stand."""
        lists = (self._begun, self._ended, self._hooks)
        copies = [{index: uses[:] for index, uses in each.items()} for each in lists]
        return self._segment, *copies, dict(self._inputs), set(self._over)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Stand where they stood."""
        self._segment, *lists, inputs, over = state
        self._begun, self._ended, self._hooks = (
            {index: uses[:] for index, uses in each.items()} for each in lists
        )
        self._inputs, self._over, self.running = dict(inputs), set(over), []

    def enter(self, segment: Segment) -> None:
        """Begin a segment."""
        self._segment = segment
        self._begun = grouped(segment.functions, lambda use: use.first)
        self._ended = grouped(segment.functions, lambda use: use.last)
        self._hooks = grouped(segment.hooks, lambda hook: hook.index)

    def reached(self, index: int, first: int) -> None:
        """Calls from ``first`` to ``index`` ran: apply Functions they end, keep what is taken."""
        ended = self._ended.get(index)
        if ended:
            for use in [each for each in ended if each.first >= first]:
                ended.remove(use)
                if not is_skipped(use, self.skipped, self.written):
                    self.apply(use)
        for use in self._begun.pop(index, ()):
            if use.last > index and not is_skipped(use, self.skipped, self.written):
                self._begin(use)
        for hook in self._hooks.pop(index, ()):
            self._register(hook)

    def _register(self, use: HookUse) -> None:
        tensor = self.graph.latest(use.tensor)
        if use.late and tensor.is_leaf:
            tensor.register_post_accumulate_grad_hook(partial(self._added, use))
        elif tensor.requires_grad and not use.late:
            tensor.register_hook(partial(self._hooked, use))

    def _hooked(self, use: HookUse, gradient: Any) -> Any:
        run = self._run_of_hook(use, gradient)
        return None if run is None else self.graph.get(run.left[0])

    def _added(self, use: HookUse, leaf: Any) -> None:
        run = self._run_of_hook(use, leaf.grad)
        if run is not None:
            leaf.grad = self.graph.get(run.left[0])

    def _run_of_hook(self, use: HookUse, gradient: Any) -> FunctionRun | None:
        """The run of a hook, made again for this gradient; None for the hook of an earlier leaf."""
        outer = self.running[-1] if self.running else None
        run = backward_of(self._segment, use, outer, self._over)
        if run is not None:
            self._make(run, run.arrived, (gradient,), "a hook")
        elif use.tensor.tracked != 2 or outer is None or use.index == outer.first:
            raise NotReplayable("a hook is called where it was not")
        return run

    def _begin(self, use: FunctionUse) -> None:
        if id(use) not in self._inputs:
            self._inputs[id(use)] = [*map(self.graph.get, use.inputs)]

    def apply(self, use: FunctionUse) -> None:
        """Tie the values of a Function's forward, whose calls were made, to its inputs."""
        self._begin(use)
        graph, inputs = self.graph, self._inputs.pop(id(use))
        if any(ref.__class__ is not Ref for ref in use.outputs.values()):
            raise NotReplayable(f"{use.name} gives a tensor that is no plain one")
        values = [graph.get(Ref((*ref[:5], 0, ref[6]))).detach() for ref in use.outputs.values()]
        given = [at for at, each in enumerate(inputs) if each is not None]

        def go_back(gradients: Sequence[Any]) -> list[Any]:
            left = self._go_back(use, gradients)
            return [left[at] for at in given]

        with torch.enable_grad():
            made = _function(use.name).apply(values, go_back, *[inputs[at] for at in given])
        for ref, result in zip(use.outputs.values(), made, strict=True):
            if ref.tracked > 2:
                graph.marked[ref.tracked] = result
            else:
                graph.rebind(ref, result)

    def _go_back(self, use: FunctionUse, gradients: Sequence[Any]) -> list[Any]:
        """The gradients that the recorded backward makes of these gradients of the results."""
        outer = self.running[-1] if self.running else None
        run = backward_of(self._segment, use, outer, self._over)
        if run is None:
            raise NotReplayable(f"{use.name} is differentiated where it was not")
        self._make(run, [run.arrived[output] for output in use.outputs], gradients, use.name)
        return [*map(self.graph.get, run.left)]

    def _make(
        self, run: FunctionRun, arrived: Sequence[Any], gradients: Sequence[Any], name: str
    ) -> None:
        """Make the calls of a recorded run with these gradients in place of the recorded ones."""
        self._over.add(id(run))
        for ref, gradient in zip(arrived, gradients, strict=True):
            if (ref is None) != (gradient is None):
                raise NotReplayable(f"{name} is given other gradients than it was")
            if ref.__class__ is Ref:
                self.graph.replace(ref, gradient)
            elif ref is not None:
                raise NotReplayable(f"{name} is given a gradient that is no plain tensor")
        inside = [
            each
            for each in self._segment.engine
            if run.first <= each.first and each.last <= run.last
            if not any(each is outer for outer in self.running)
        ]
        with self.graph.covering():
            direct = [each for each in inside if not _lies_in(each, inside)]
            self.go_on(run.first, run.last, direct)


def backward_of(
    segment: Segment,
    use: FunctionUse | HookUse,
    outer: EngineRun | None,
    over: Collection[int] = (),
) -> FunctionRun | None:
    """The first run of a Function's backward, or of a hook, within an engine run and not yet
    over."""
    for run in segment.function_runs:
        if run.number == use.number and id(run) not in over:
            if outer is None or (outer.first <= run.first and run.last <= outer.last):
                return run
    return None


def _lies_in(run: EngineRun, others: Sequence[EngineRun]) -> bool:
    """Whether a run of the engine happened within one of the later entries, which end later."""
    later = others[next(at for at, each in enumerate(others) if each is run) + 1 :]
    return any(each.first <= run.first and run.last <= each.last for each in later)


class _Function(torch.autograd.Function):
    """Stands in the graph for a Function of the program."""

    @staticmethod
    def forward(
        ctx: Any, values: list[Any], go_back: Callable[[Sequence[Any]], list[Any]], *inputs: Any
    ) -> Any:
        ctx.go_back = go_back
        ctx.set_materialize_grads(False)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *ctx.go_back(gradients)


@cache
def _function(node: str) -> type[_Function]:
    """A class with the name of the program's custom Function, which its node bears too."""
    return type(node.removesuffix("Backward"), (_Function,), {})


class _Building:
    """A step that is run again: its graph so far."""

    def __init__(
        self,
        patches: Sequence[Patch] = (),
        about_to_call: AboutToCall | None = None,
        instead: Mapping[tuple[int, int], Instead] | None = None,
        rows: Batch | None = None,
        around: Around | None = None,
    ) -> None:
        self.about_to_call, self.rows, self.around = about_to_call, rows, around
        self.instead = instead or {}
        self.by_call = grouped(patches, lambda patch: (patch.segment, patch.at))
        self.skipped = {(p.segment, i) for p in patches for i in p.skipped}
        self.not_run = {(p.segment, first) for p in patches for first in p.runs}
        self.graph, self.result = Graph(None if rows is None else rows.leaf), Rebuilt()
        self.number, self.running = 0, Segment(0)
        self.done: dict[tuple[int, int], list[int]] = {}  # storages after their last use
        self.looks: dict[int, list[Look]] = {}
        self.functions = Functions(self.graph, self.go_on)
        self.state = self.functions.state()  # where others go on from here

    def go_on_from(self, other: _Building) -> None:
        """Begin with another building's tensors, whose Functions belong to this one from now on."""
        self.graph, self.functions = other.graph.branch(), other.functions
        for leaf in self.graph.tensors():
            # torch refuses to say of a view under no_grad whose base was written since
            with suppress(RuntimeError):
                if leaf.is_leaf:
                    leaf.grad = None  # of the run before
        self.looks = dict(other.looks)
        self.functions.restore(other.state)
        self.functions.graph, self.functions.go_on = self.graph, self.go_on

    def segment(
        self, number: int, segment: Segment, begin: int = 0, end: int | None = None
    ) -> None:
        """Run a segment, or the calls from ``begin`` to ``end`` of it."""
        self.number, self.running = number, segment
        self.functions.skipped = {i for at, i in self.skipped if at == number}
        self.functions.written = {i for at, i in self.by_call if at == number}
        with _disable_current_modes():
            self.graph.load(segment, borrow=end is not None)
        if not begin:
            self.looks = grouped(segment.looks, lambda look: look.index)
            self.functions.enter(segment)
        if end is None:
            engine = [run for run in segment.engine if not run.nested]
            self.go_on(0, len(segment.calls), engine, begin)
        else:
            self.go_on(0, end, (), begin)
            self.state = self.functions.state()

    def go_on(
        self, first: int, last: int, engine: Sequence[EngineRun], begin: int | None = None
    ) -> None:
        """Run the segment's calls from ``first`` to ``last``, and engine runs in between.

        begin: of the first that is run, where those before it were run elsewhere.
        """
        number, segment, graph = self.number, self.running, self.graph
        calls, passes = segment.calls, {run.first: run for run in engine}
        index = first if begin is None else begin
        while index <= last:
            for look in self.looks.pop(index, ()):
                if not self.skipped or graph.holds(look.ref):  # else new code has looked anew
                    self.result.looked.append((look, graph.get(look.ref)))
            self.functions.reached(index, first)
            run = passes.pop(index, None)
            if run is not None and run.unrolled:
                edited = any(at == number and i < run.last for at, i in self.skipped)
                if edited and run.forward:
                    raise NotReplayable(
                        "gradients are differentiated forward, so what comes before them cannot be"
                        " edited"
                    )
                run = run if edited else None  # its calls are run as they are
            if run is not None and (number, index) in self.not_run:
                index = run.last
                continue
            if self.about_to_call is not None and index < len(calls):
                self.about_to_call(number, index, calls[index], graph)
            if run is not None:
                self.functions.running.append(run)
                graph.own(ref.storage for ref in refs_in((*run.before.values(),)))
                if self.rows is not None:
                    self.rows.check(run.roots)
                with nullcontext() if self.around is None else self.around(run, graph):
                    _go_backward(graph, run, self.result)
                self.functions.running.pop()
                if run.last > index:
                    index = run.last
                    continue
            if index == last:
                break
            if segment.lost is not None and index >= segment.lost[0]:
                raise NotReplayable(segment.lost[1])
            standing = self.instead.get((number, index))
            if standing is not None and standing.when(graph.get):
                seed_first(segment, index, standing.last)
                standing.run(graph.get)
                if standing.last > index:
                    index = standing.last
                    continue
            own = self.by_call.get((number, index), ())
            if graph.shared:
                near = {index, *(i for patch in own for i in patch.skipped)}
                graph.own(storage for i in near for storage in _written_at(segment, i))
            run_patches(graph, [p for p in own if p.ahead], calls[index].grad)
            if (number, index) not in self.skipped:
                _call(graph, segment, index, self.rows)
            run_patches(graph, [p for p in own if not p.ahead], calls[index].grad)
            if self.rows is not None:
                for patch in own:
                    self.rows.replaced([calls[i] for i in patch.skipped], patch.out)
            graph.release(self.done.get((number, index), ()))
            index += 1


def _written_at(segment: Segment, index: int) -> Iterator[int]:
    """Storages that a call writes, or that hold something else when it begins."""
    yield from written_by(segment.calls[index])
    if index in segment.loads:
        yield segment.loads[index][0]


def run_patches(graph: Graph, patches: Sequence[Patch], grad: bool) -> None:
    """Bind the results of patches to what they replace."""
    for patch in patches:
        with torch.set_grad_enabled(grad):
            made = patch.run(graph.get)
        if made is None and patch.follows:
            continue
        refs, results = _paired(patch.out, made)
        for ref, result in zip(refs, results, strict=True):
            if not grad and result.is_leaf:  # what it wrote into, perhaps
                result = result.detach()
            graph.replace(ref, result)


def _paired(out: Any, made: Any) -> tuple[tuple[Ref, ...], tuple[Any, ...]]:
    """The references that a patch replaces, and its tensors for them."""
    several = out.__class__ is tuple
    refs = out if several else (out,)
    results = tuple(made) if several and isinstance(made, tuple | list) else (made,)
    if len(refs) != len(results) or not all(isinstance(each, Tensor) for each in results):
        raise NotReplayable(f"the edit gives {type(made).__name__}, not a tensor")
    return refs, results


def _call(graph: Graph, segment: Segment, index: int, rows: Batch | None = None) -> None:
    plain = rows is None or rows.leaves_alone(segment.loads.get(index, (-1,))[0])
    if index in segment.loads and plain and segment.loads[index][0] not in graph.edited:
        storage, held = segment.loads[index]
        base = graph.bases.get(storage)
        with _disable_current_modes():
            if base is None:
                graph.memory.storages[storage] = held.clone()
            else:
                base.tensor.untyped_storage().copy_(held)
    if rows is not None and rows.start and segment.calls[index].position == rows.start:
        rows.enter(graph.get, graph.rebind)
    run = operate_call if rows is None else partial(rows.run, segment, index)
    make(segment, index, graph.get, graph.bind, run)


def _go_backward(graph: Graph, run: EngineRun, result: Rebuilt) -> None:
    roots = [*map(graph.get, run.roots)]
    with _disable_current_modes():
        result.losses.extend(root.detach() for root in roots)
    if not run.accumulates:
        differentiate(run, graph)
        return
    for ref in run.after:
        if ref.__class__ is not Ref:
            raise NotReplayable("a parameter is no plain tensor (sparse, nested or a subclass)")
        leaf = graph.get(ref)
        had = run.before.get(ref)
        if had is None:
            leaf.grad = None
        elif leaf.grad is None:
            leaf.grad = graph.get(had).detach()
    inputs = [*map(graph.get, run.inputs)]
    gradients = [*map(graph.get, run.gradients)]
    torch.autograd.backward(
        roots, gradients, retain_graph=True, create_graph=run.create_graph, inputs=inputs or None
    )
    for ref, gradient in run.after.items():
        leaf = graph.get(ref)
        if leaf.grad is None:
            continue
        if gradient.__class__ is Ref:
            graph.rebind(gradient, leaf.grad)
            result.gradients[ref] = leaf.grad
        elif gradient is not None:  # a sparse one
            graph.bind(gradient, leaf.grad)


def differentiate(run: EngineRun, graph: Graph) -> None:
    """Make a run of ``torch.autograd.grad`` again, under vmap too: for a batch of gradients, or for
    each sample by itself."""
    roots, inputs, gradients = (
        [*map(graph.get, refs)] for refs in (run.roots, run.inputs, run.gradients)
    )
    if len(inputs) < len(run.results):
        raise NotReplayable("gradients are taken by a place in the graph, which no tensor tells")

    def taken(of: list[Tensor], given: Sequence[Tensor | None], batched: bool) -> Sequence[Any]:
        return torch.autograd.grad(
            roots,
            of,
            given,
            retain_graph=True,
            create_graph=run.create_graph,
            allow_unused=True,
            is_grads_batched=batched,
        )

    apart = run.by_sample
    if any(apart):  # the samples' gradients, those of all but one zero in each
        if not all(root.dim() for root in roots):
            raise NotReplayable("gradients are taken for each sample of one number for all")
        whole = zip(roots, gradients, strict=True)
        each = [_diagonal(torch.ones_like(root) if g is None else g) for root, g in whole]
        made = [
            taken([x], each if own else gradients, own)[0]
            for x, own in zip(inputs, apart, strict=True)
        ]
    elif (at := run.batched_at) is not None:
        batch = [None if g is None else g.movedim(at, 0) for g in gradients]
        made = [None if g is None else g.movedim(0, at) for g in taken(inputs, batch, True)]
    else:
        made = [*taken(inputs, gradients, False)]
    for ref, gradient in zip(run.results, made, strict=False):
        if ref is not None and gradient is not None:
            graph.bind(ref, gradient)


def _diagonal(each: Tensor) -> Tensor:
    """A batch of tensors: the i-th has the i-th row of ``each``, and else zeros."""
    return torch.diag_embed(each.movedim(0, -1)).movedim((-2, -1), (0, 1))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN and -0 to 0."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:  # torch compares these nowhere
        a, b = a.to_dense(), b.to_dense()
    if a._is_zerotensor() or b._is_zerotensor():  # without memory: comparing it ends the process
        return a._is_zerotensor() == b._is_zerotensor()
    if a.dtype is torch.complex32:  # which torch does not compare
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())
