"""A part of the step as a function: from what it depends on to a value, in any arithmetic that
answers torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.program.edit import Results
from nanlab.program.memory import operate, seed
from nanlab.program.rebuild import Functions, Graph, Patch, backward_of, run_patches
from nanlab.trace.program import Call, EngineRun, FunctionUse, Ref, Segment, refs_in

Tensor = torch.Tensor
Stop = Callable[[Call], bool]
Item = Call | EngineRun | FunctionUse


@dataclass
class Slice:
    """The calls that some tensors are made of.

    ``operands``: what they read that none of them made, with its recorded value; the function takes
    these.
    """

    segments: Sequence[Segment]
    targets: tuple[Any, ...]
    items: list[tuple[int, int, Item]]  # (segment, index, what runs there)
    operands: dict[Ref, Tensor] = field(default_factory=dict)
    size: int = 0  # elements of all results

    @property
    def differentiated(self) -> list[bool]:
        """Which operands the program has gradients of."""
        return [bool(ref.tracked) for ref in self.operands]

    def function(self, patches: Sequence[Patch] = ()) -> Callable[..., Any]:
        """The targets as a function of the operands; with patches in the places of some calls."""
        by_call: dict[tuple[int, int], list[Patch]] = {}
        for patch in patches:
            by_call.setdefault((patch.segment, patch.at), []).append(patch)
        skipped = {(p.segment, i) for p in patches for i in p.skipped}

        def run(*values: Any) -> Any:
            graph = Graph()
            for ref, value in zip(self.operands, values, strict=True):
                graph.bind(ref, value)
            last = max((segment for segment, _, _ in self.items), default=0)

            def patch(at: tuple[int, int], ahead: bool, grad: bool) -> None:
                run_patches(graph, [p for p in by_call.get(at, ()) if p.ahead is ahead], grad)

            def make(segment: int, index: int, item: Call) -> None:
                patch((segment, index), True, item.grad)
                if (segment, index) not in skipped:
                    args = graph.get(item.args)
                    kwargs = {name: graph.get(value) for name, value in item.kwargs.items()}
                    seed(self.segments[segment], index)
                    with torch.set_grad_enabled(item.grad):
                        graph.bind(item.out, operate(item.func, args, kwargs))
                patch((segment, index), False, item.grad)

            def go_back(first: int, end: int, engine: Sequence[EngineRun]) -> None:
                if engine:
                    raise NotReplayable("a Function runs the autograd engine within its backward")
                for index in range(first, end):
                    make(last, index, self.segments[last].calls[index])

            functions = Functions(graph, go_back)
            functions.enter(self.segments[last])
            for segment, index, item in self.items:
                if isinstance(item, EngineRun):
                    functions.running.append(item)
                    _differentiate(item, graph)
                    functions.running.pop()
                elif isinstance(item, FunctionUse):
                    functions.apply(item)
                else:
                    make(segment, index, item)
            return [graph.get(target) for target in self.targets]

        return run


def _differentiate(run: EngineRun, graph: Graph) -> None:
    """A run of ``torch.autograd.grad`` whose results go on."""
    get = graph.get
    found = torch.autograd.grad(
        [get(r) for r in run.roots],
        [get(i) for i in run.inputs],
        [None if g is None else get(g) for g in run.gradients],
        retain_graph=True,
        create_graph=run.create_graph,
        allow_unused=True,
    )
    for ref, gradient in zip(run.results, found, strict=False):
        if ref is not None and gradient is not None:
            graph.bind(ref, gradient)


def cut(
    segments: Sequence[Segment],
    targets: Sequence[Any],
    before: tuple[int, int],
    stop: Stop = lambda call: False,
    patches: Sequence[Patch] = (),
    most: int = 1 << 62,
) -> Slice:
    """The slice that makes these tensors, from the calls before (segment, index).

    stop: calls that are not followed further; their results become operands, as constants that the
    program makes do. most: elements of its results, at most.
    patches: what their code reads is made too.
    """
    needed = {ref.storage for target in targets for ref in refs_in(target)}
    reads: dict[tuple[int, ...], list[Ref]] = {}
    items: list[tuple[int, int, Item]] = []
    size, ended = 0, set[int]()
    for at in range(before[0], -1, -1):
        segment = segments[at]
        last = before[1] if at == before[0] else len(segment.calls)
        windows = sorted(
            (r for r in segment.engine if not r.nested), key=lambda r: r.first, reverse=True
        )
        applied: dict[int, list[FunctionUse]] = {}
        for use in segment.functions:
            applied.setdefault(use.last, []).append(use)
        for index in range(last - 1, -1, -1):
            for use in reversed(applied.get(index + 1, ())):
                if any(r.storage in needed - ended for r in refs_in((*use.outputs.values(),))):
                    items.append((at, index + 1, use))
                    reads[at, index + 1, use.number] = list(_read_by(segments[before[0]], use))
                    needed |= {r.storage for r in reads[at, index + 1, use.number]}
            while windows and windows[0].first > index:
                windows.pop(0)
            run = windows[0] if windows else None
            if run is not None and run.first <= index < run.last:
                if index == run.last - 1 or index == last - 1:
                    given = {ref.storage for ref in refs_in(run.results)}
                    if given & needed and not run.accumulates and run.last <= last:
                        items.append((at, run.first, run))
                        needed |= {
                            r.storage for r in refs_in((*run.roots, *run.inputs, *run.gradients))
                        }
                continue
            call = segment.calls[index]
            made = list(refs_in(call.out))
            if not any(ref.storage in needed and ref.storage not in ended for ref in made):
                continue
            count = sum(_numel(ref) for ref in made)
            constant = (
                not any(refs_in((call.args, tuple(call.kwargs.values()))))
                and made[0].dtype.is_floating_point
            )
            if call.given or constant or (stop(call) and items) or size + count > most:
                ended |= {ref.storage for ref in made}
                continue
            size += count
            items.append((at, index, call))
            reads[at, index] = list(refs_in((call.args, tuple(call.kwargs.values()))))
            needed |= {ref.storage for ref in reads[at, index]}
    items.reverse()
    found = Slice(segments, tuple(targets), items, size=size)
    _collect_operands(found, reads, before[0])
    return found


def _numel(ref: Ref) -> int:
    count = 1
    for n in ref.size:
        count *= n
    return count


def _read_by(segment: Segment, use: FunctionUse) -> Iterator[Ref]:
    """The inputs of a Function, and what its backward reads that it does not make itself."""
    yield from refs_in(use.inputs)
    run = backward_of(segment, use, None)
    if run is None:
        return
    own = {ref.view for ref in refs_in(run.arrived)}
    for call in segment.calls[run.first : run.last]:
        read = [*refs_in((call.args, tuple(call.kwargs.values())))]
        yield from (ref for ref in read if ref.view not in own)
        own |= {ref.view for ref in refs_in(call.out)}


def _collect_operands(found: Slice, reads: dict[tuple[int, ...], list[Ref]], last: int) -> None:
    """What the calls of a slice read that none of them made before, with the values that it had."""
    results = Results(found.segments)
    for at, index, item in found.items:
        if isinstance(item, Call):
            results.want(at, [index])
        elif isinstance(item, FunctionUse):
            run = backward_of(found.segments[last], item, None)
            results.want(last, range(run.first, run.last) if run is not None else ())
    with _disable_current_modes():
        results.run()
    made: set[Any] = set()
    for at, index, item in found.items:
        if isinstance(item, EngineRun):
            made |= {ref.view for ref in refs_in(item.results)}
            continue
        if isinstance(item, FunctionUse):
            wanted = reads[at, index, item.number]
        else:
            wanted = reads[at, index]
        for ref in wanted:
            if ref.view not in made and not any(ref.view == other.view for other in found.operands):
                value = results.values[at].get(ref.view)
                if value is None:
                    value = results.values[last].get(ref.view)
                if value is None:
                    raise NotReplayable("a tensor is read whose value is not at hand")
                found.operands[ref] = value
        if isinstance(item, Call):
            made |= {ref.view for ref in refs_in(item.out)}


__all__ = ["Slice", "cut"]
