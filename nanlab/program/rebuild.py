"""The step run again above autograd, with some of its calls replaced: what the program would
compute if it were written so.

The forward calls are made with gradients, each run of the engine is a run of the engine, the
optimizer's calls follow as they were. So the graph, the order of its nodes and the sums of
gradients are those of the program written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.program.batch import Batch
from nanlab.program.memory import (
    Get,
    Instead,
    Memory,
    operate,
    seed,
    seed_first,
    surroundings,
)
from nanlab.trace.program import Call, EngineRun, Held, Look, Ref, Segment, refs_in

Tensor = torch.Tensor
Leaf = Callable[[Ref, Any], Any]  # what stands for a tensor that the step reads from outside
AboutToCall = Callable[[int, int, Call, "Graph"], None]


@dataclass(frozen=True)
class Patch:
    """New code for some calls of a segment: they are skipped, and its result takes the place of
    theirs."""

    segment: int
    at: int  # index of the call whose result it replaces
    skipped: frozenset[int]  # indices of the calls that are not made, ``at`` among them
    out: Any  # what it replaces: a Ref, or a tuple of them
    run: Callable[[Get], Any]  # from the values of references to the new result
    ahead: bool = False  # before the call at ``at``, not in its place or after it


@dataclass
class Rebuilt:
    """What the step computes: the roots of its engine runs, the gradients, and every tensor still
    at hand."""

    losses: list[Any] = field(default_factory=list)
    gradients: dict[Ref, Any] = field(default_factory=dict)  # leaf -> gradient after its last run
    looked: list[tuple[Look, Any]] = field(default_factory=list)
    stopped: str = ""  # the exception that the changed step raised


class Graph:
    """Tensors by the reference under which the recorded program knew them."""

    def __init__(self, leaf: Leaf | None = None) -> None:
        self.memory, self.leaf = Memory(), leaf
        # view -> [the one that autograd does not follow, the one it does]
        self.live: dict[Any, list[Any]] = {}
        # Several results may show one view, as x[0] written twice does: each is read in the order
        # in which it was made.
        self._unread: dict[Any, list[Any]] = {}
        self.bases: dict[int, Any] = {}  # storage -> the tensor that it was made for
        self.fresh: set[int] = set()  # storages made in this run

    def load(self, segment: Segment) -> None:
        """Leaves, as copies: the run writes them, and gives them gradients."""
        for number, storage in segment.leaves.items():
            if number not in self.memory.storages and number not in self.fresh:
                self.memory.storages[number] = segment.saved.get(number, storage).clone()
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
        slot = self.live.get(ref.view)
        if slot is not None:
            if ref.tracked is None:
                return slot[0] if slot[1] is None else slot[1]
            unread = self._unread.get(ref.view)
            if ref.tracked and unread:
                return unread.pop(0)
            found = slot[1 if ref.tracked else 0]
            if found is None or found.requires_grad != bool(ref.tracked):
                found = self._other(ref, slot)
            return found
        return self._unseen(ref)

    def _other(self, ref: Ref, slot: list[Any]) -> Any:
        """The twin of a tensor that is known with the other tracking only."""
        for found in slot:
            if found is not None and found.requires_grad == bool(ref.tracked):
                return found
        found = next(t for t in slot if t is not None)
        if not ref.tracked:
            return found.detach()
        if found.dtype.is_floating_point or found.dtype.is_complex:
            if ref.tracked == 2 or (found.is_leaf and ref.storage not in self.fresh):
                slot[1] = found.detach().requires_grad_()
                return slot[1]
        raise NotReplayable(
            "autograd follows a tensor whose making it did not see, as in a torch.autograd.Function"
        )

    def _unseen(self, ref: Ref) -> Any:
        """A view that no call returned: of a leaf's storage, or of what a call made."""
        base = self.bases.get(ref.storage)
        if base is not None:
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
                    "autograd follows a tensor whose making it did not see, as in a"
                    " torch.autograd.Function"
                )
            found = found.detach().requires_grad_()
        self.bind(ref, found)
        return found

    def rebind(self, ref: Ref, made: Any) -> None:
        """From here on a reference stands for this tensor alone."""
        self.live.pop(ref.view, None)
        self._unread.pop(ref.view, None)
        self.bind(ref, made)

    def bind(self, ref: Any, made: Any) -> None:
        """From here on a reference stands for this tensor."""
        kind = ref.__class__
        if kind is Ref and isinstance(made, Tensor):
            slot = self.live.get(ref.view)
            if slot is None:
                slot = self.live[ref.view] = [None, None]
            slot[made.requires_grad] = made
            if made.requires_grad and not made.is_leaf:
                waiting = self._unread.setdefault(ref.view, [])
                if not any(made is each for each in waiting):
                    waiting.append(made)
            if ref.storage not in self.memory.storages:
                self.fresh.add(ref.storage)
                self.bases.setdefault(ref.storage, made)
        elif kind is Held:
            self.memory.place(ref, made)
        elif kind is tuple and isinstance(made, (tuple, list)):
            for part, item in zip(ref, made, strict=False):
                self.bind(part, item)


def rebuild(
    segments: Sequence[Segment],
    patches: Sequence[Patch] = (),
    about_to_call: AboutToCall | None = None,
    instead: Mapping[tuple[int, int], Instead] | None = None,
    rows: Batch | None = None,
) -> tuple[Graph, Rebuilt]:
    """Run these segments again with these patches.

    about_to_call: called with (number of the segment, index, call, graph) before each call and each
    run of the engine; the dispatch modes that are on stay on. instead: (segment, index) -> what is
    run from there on in the place of calls. rows: of the batch, of which some are left out.

    Raises NotReplayable where the program did what a graph of its calls cannot repeat (hooks that
    change gradients, custom Functions, views that nanlab did not see), or where a call of the
    changed step raises.
    """
    by_call: dict[tuple[int, int], list[Patch]] = {}
    for patch in patches:
        by_call.setdefault((patch.segment, patch.at), []).append(patch)
    skipped = {(p.segment, i) for p in patches for i in p.skipped}
    graph, result = Graph(None if rows is None else rows.leaf), Rebuilt()
    unobserved = _disable_current_modes() if about_to_call is None else nullcontext()
    with surroundings(segments), unobserved, torch.enable_grad():
        for number, segment in enumerate(segments):
            with _disable_current_modes():
                graph.load(segment)
            passes = {run.first: run for run in segment.engine if not run.nested}
            looks: dict[int, list[Look]] = {}
            for look in segment.looks:
                looks.setdefault(look.index, []).append(look)
            index, calls = 0, segment.calls
            while index <= len(calls):
                for look in looks.get(index, ()):
                    result.looked.append((look, graph.get(look.ref)))
                run = passes.pop(index, None)
                if about_to_call is not None and index < len(calls):
                    about_to_call(number, index, calls[index], graph)
                if run is not None:
                    _go_backward(graph, run, result)
                    if run.last > index:
                        index = run.last
                        continue
                if index == len(calls):
                    break
                if segment.lost is not None and index >= segment.lost[0]:
                    raise NotReplayable(segment.lost[1])
                standing = None if instead is None else instead.get((number, index))
                if standing is not None and standing.when(graph.get):
                    seed_first(segment, index, standing.last)
                    standing.run(graph.get)
                    if standing.last > index:
                        index = standing.last
                        continue
                own = by_call.get((number, index), ())
                run_patches(graph, [p for p in own if p.ahead], calls[index].grad)
                if (number, index) not in skipped:
                    _call(graph, segment, index, calls[index], rows)
                run_patches(graph, [p for p in own if not p.ahead], calls[index].grad)
                index += 1
    return graph, result


def run_patches(graph: Graph, patches: Sequence[Patch], grad: bool) -> None:
    """Bind the results of patches to what they replace."""
    for patch in patches:
        with torch.set_grad_enabled(grad):
            made = patch.run(graph.get)
        refs, results = _paired(patch.out, made)
        for ref, result in zip(refs, results, strict=True):
            if not grad and result.is_leaf:  # what it wrote into, perhaps
                result = result.detach()
            graph.rebind(ref, result)
            graph.fresh.add(ref.storage)
            graph.bases[ref.storage] = result


def _paired(out: Any, made: Any) -> tuple[tuple[Ref, ...], tuple[Any, ...]]:
    """The references that a patch replaces, and the tensors that it gives for them."""
    several = out.__class__ is tuple
    refs = out if several else (out,)
    results = tuple(made) if several and isinstance(made, tuple | list) else (made,)
    if len(refs) != len(results) or not all(isinstance(each, Tensor) for each in results):
        raise NotReplayable(f"the edit gives {type(made).__name__}, not a tensor")
    return refs, results


def _call(
    graph: Graph, segment: Segment, index: int, call: Call, rows: Batch | None = None
) -> None:
    if index in segment.loads and rows is None:
        storage, held = segment.loads[index]
        with _disable_current_modes():
            graph.memory.storages[storage] = held.clone()
        graph.fresh.discard(storage)
        for view in [v for v in graph.live if v[0] == storage]:
            del graph.live[view]
        graph.bases.pop(storage, None)
    if call.given:
        kept = segment.results.get(index)
        if kept is None:
            raise NotReplayable(call.given)
        flat = call.out if call.out.__class__ is tuple else (call.out,)
        for ref, result in zip(flat, kept, strict=False):
            graph.bind(ref, result.clone())
        return
    args = graph.get(call.args)
    kwargs = {name: graph.get(value) for name, value in call.kwargs.items()}
    seed(segment, index)
    with torch.set_grad_enabled(call.grad):
        if rows is None:
            made = operate(call.func, args, kwargs)
        else:
            made = rows.run(segment, index, call, args, kwargs)
    graph.bind(call.out, made)


def _go_backward(graph: Graph, run: EngineRun, result: Rebuilt) -> None:
    roots = [graph.get(root) for root in run.roots]
    gradients = [None if g is None else graph.get(g) for g in run.gradients]
    with _disable_current_modes():
        result.losses.extend(root.detach() for root in roots)
    if not run.accumulates:
        inputs = [graph.get(each) for each in run.inputs]
        found = torch.autograd.grad(
            roots,
            inputs,
            gradients,
            retain_graph=True,
            create_graph=run.create_graph,
            allow_unused=True,
        )
        for ref, gradient in zip(run.results, found, strict=False):
            if ref is not None and gradient is not None:
                graph.bind(ref, gradient)
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
    inputs = [graph.get(each) for each in run.inputs]
    torch.autograd.backward(
        roots, gradients, retain_graph=True, create_graph=run.create_graph, inputs=inputs or None
    )
    for ref, gradient in run.after.items():
        leaf = graph.get(ref)
        if leaf.grad is not None and gradient.__class__ is Ref:
            graph.rebind(gradient, leaf.grad)
            result.gradients[ref] = leaf.grad


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN and -0 to 0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())


__all__ = ["Graph", "Patch", "Rebuilt", "rebuild", "refs_in", "same_bits"]
