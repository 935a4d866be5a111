"""The backward pass: runs of the engine, and the program's own code in it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.autograd.graph
from torch.autograd.function import BackwardCFunction, _SingleLevelFunction

from nanlab.capture.dispatch import OpRecorder
from nanlab.capture.execution import is_watched
from nanlab.capture.plans import LEAF, unwrapped
from nanlab.capture.step_pattern import Engine
from nanlab.capture.steps import StepClock
from nanlab.trace.program import EngineRun
from nanlab.trace.recording import ACCUMULATES, NO_OWNER, BackwardPass, Sink, leaf_number

# Autograd graphs so deep that freeing one would overflow the stack, once Python has seen its
# nodes.
#
# A node that Python has seen frees the next such node from within its own destructor (torch
# 2.13); some 39,700 of them in a row overflow a stack of 8 MiB. A watch sees every node that
# runs. So it holds the nodes of a deep graph until nothing else does, and lets go of them one
# by one, from the loss's side on: each then frees itself alone.

# references to a node that only the list holds: the list's, and that of the call which counts them
_ALONE = 2
_held: list[Any] = []  # nearer to the leaves first: a list is freed from its end
_letting_go = False


def hold(seen: set[Any], start: Iterable[Any]) -> set[Any]:
    """Hold the nodes ``seen`` and all others reachable from ``start``; returns the latter."""
    waiting, found, known = list(start), set(seen), set(_held)
    found.update(waiting)
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in found:
                found.add(following)
                waiting.append(following)
    _held.extend(node for node in found if node not in known and node._sequence_nr() < LEAF)
    # a node is made after those that its gradient goes to
    _held.sort(key=lambda node: node._sequence_nr())
    if _collected not in gc.callbacks:
        gc.callbacks.append(_collected)
    return found - seen


def let_go() -> None:
    """Free the nodes held here alone, one by one."""
    global _letting_go
    if _letting_go or not _held:
        return
    _letting_go = True
    try:
        left: list[Any] = []
        while _held:
            if sys.getrefcount(_held[-1]) > _ALONE:
                left.append(_held.pop())
            else:
                _held.pop()
        left.reverse()
        _held.extend(left)
    finally:
        _letting_go = False


def _collected(phase: str, info: dict[str, int]) -> None:
    """At each garbage collection: free graphs whose node nearest to the loss is held here alone."""
    if phase == "start" and _held and sys.getrefcount(_held[-1]) <= _ALONE:
        let_go()


# of a graph that are followed one by one; see deep.py for what else there is to do with more
MOST_NODES = 20_000
# Nodes whose formula takes another path, with other rounding, while any dispatch mode is on (torch
# asks isTensorSubclassLike; found by holding torch 2.13's operator database to equal bits). They
# run unobserved, and become one row of their own.
_UNOBSERVED = frozenset({"ProdBackward0", "ProdBackward1", "LinalgLstsqBackward0"})

LossSeen = Callable[[int, bool], None]
GradientSeen = Callable[[torch.Tensor, int, int], int]


class BackwardRecorder:
    """Wraps torch's one entry into the engine and hooks the nodes of each graph that runs.

    ``torch.autograd._engine_run_backward`` is private; it has been the entry of both ``backward``
    and ``grad`` in torch 2.2 to 2.13.
    """

    def __init__(self, ops: OpRecorder, clock: StepClock) -> None:
        self.ops, self.clock = ops, clock
        self.hooks = HookRecorder(ops)
        self.loss_seen: LossSeen = lambda source, adds: None
        self.gradient_seen: GradientSeen = lambda parameter, source, end: NO_OWNER
        self.ended: Callable[[FrameType | None], None] = lambda frame: None
        self._original: Any = None
        self._places: list[Any] = []

    def start(self) -> None:
        self.hooks.start()
        self._original = torch.autograd.graph._engine_run_backward
        codes = self._original.__code__, self._run.__func__.__code__  # type: ignore[attr-defined]
        self.ops.where.engine_codes = {id(code) for code in codes}
        run = partial(self._run)
        for module in (torch.autograd, torch.autograd.graph):
            if getattr(module, "_engine_run_backward", None) is self._original:
                setattr(module, "_engine_run_backward", run)  # noqa: B010
                self._places.append(module)

    def stop(self) -> None:
        self.hooks.stop()
        for module in self._places:
            setattr(module, "_engine_run_backward", self._original)  # noqa: B010
        self._places = []

    def _run(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        ops = self.ops
        if ops.off or not is_watched(ops):
            return self._original(outputs, *args, **kwargs)
        frame = sys._getframe(1)
        handles: list[Any] = []
        outer = ops.where.backward_pass, ops.where.creates_graph
        oldest, accumulates = 0, False
        run: EngineRun | None = None
        again: Engine | None = None
        with ops.harmless:
            ops.settle()
            ops.where.backward_pass = len(ops.recording.passes)
            ops.where.creates_graph = len(args) > 2 and bool(args[2])
            place = ops.lines.here(frame)
            accumulating = bool(kwargs.get("accumulate_grad"))
            if ops.program is not None:
                run = ops.program.engine_begins(outputs, args, accumulating)
                again = ops.learned.engine_begins(run, place)
            oldest, accumulates = self._begin(outputs, frame, place, accumulating, handles, again)
            if not kwargs.get("accumulate_grad") and len(args) > 3:
                self._ask(args[3])
        ops.where.in_backward += 1
        results, failed = None, True
        try:
            results = self._original(outputs, *args, **kwargs)
            failed = False
            return results
        finally:
            ops.observe_again()
            if ops.program is not None and run is not None:
                self._ended(run, again, results, failed)
            ops.where.in_backward -= 1
            ops.where.backward_pass, ops.where.creates_graph = outer
            for handle in handles:
                handle.remove()
            if not ops.where.in_backward and not ops.off:
                with ops.harmless:
                    if kwargs.get("accumulate_grad"):
                        self.clock.backward(frame, oldest, accumulates)
                        self.ended(frame)
                    else:
                        self.clock.differentiated(frame, oldest)

    def _ended(self, run: EngineRun, again: Engine | None, results: Any, failed: bool) -> None:
        ops, program = self.ops, self.ops.program
        assert program is not None
        with ops.harmless:
            if again is not None:
                ops.learned.engine_ended(run, again, failed)
            program.engine_ended(results)
            if again is None and not ops.off:
                ops.learned.engine_ended(run, None, failed)

    def _begin(
        self,
        outputs: Any,
        frame: FrameType,
        place: tuple[int, int],
        accumulates: bool,
        handles: list[Any],
        again: Engine | None,
    ) -> tuple[int, bool]:
        ops, recording = self.ops, self.ops.recording
        number, position = len(recording.passes), recording.end
        let_go()
        roots = [t for t in outputs if isinstance(t, torch.Tensor)]
        sources = tuple(ops.know(ops.source(unwrapped(t)), unwrapped(t)) for t in roots)
        line, site = place
        hook: Callable[[], tuple[list[tuple[int, int]], set[int], int, bool]] = partial(
            self._hook, [t.grad_fn for t in roots if t.grad_fn is not None], number, handles
        )
        if again is not None:
            edges, nodes, oldest, adding = ops.learned.graph_of(again)
            ops.learned.hook = hook
        else:
            edges, nodes, oldest, adding = hook()
        recording.passes.append(
            BackwardPass(
                number, position, line, site, sources, accumulates, tuple(edges), frozenset(nodes)
            )
        )
        if not number:
            ops.put_off()
            recording.began = ops.where.training_began(frame, oldest)
        for root, source in zip(roots, sources, strict=True):
            # else a product with a Jacobian, whose root may well be masked
            loss = accumulates or root.numel() == 1
            if loss and recording.may_be_bad(source):
                recording.sinks.append(Sink("loss", source, position))
                ops.fault_shown()
            if accumulates and ops.where.in_backward == 0:
                self.loss_seen(source, adding)
        return oldest, adding

    def _ask(self, inputs: Any) -> None:
        """Note leaves as inputs of ``torch.autograd.grad``: no gradient arrives at a leaf there."""
        for tensor in inputs if isinstance(inputs, (tuple, list)) else ():
            if isinstance(tensor, torch.Tensor) and tensor.is_leaf:
                if (entry := self.ops.ledger.of(tensor)) is not None:
                    entry.asked = True

    def _hook(
        self, roots: list[Any], number: int, handles: list[Any]
    ) -> tuple[list[tuple[int, int]], set[int], int, bool]:
        """Hook all nodes within reach: (edges, sequence numbers, lowest, gradients exist)."""
        edges: list[tuple[int, int]] = []
        seen: set[Any] = set(roots)
        waiting = list(roots)
        numbers: set[int] = set()
        oldest, adding = LEAF, False
        program = self.ops.program
        beyond: set[Any] = set()  # nodes that are not followed, for there are too many
        while waiting:
            node = waiting.pop()
            here = node._sequence_nr()
            if here >= LEAF:
                here = -1 - len(numbers)
                adding |= self._follow_leaf(node, number, handles)
            else:
                oldest = min(oldest, here)
                name = node.name()
                if name in _UNOBSERVED:
                    handles.append(node.register_prehook(self._stop_observing))
                    handles.append(node.register_hook(partial(self._unobserved_ran, node, name)))
                if program is not None and program.applies and isinstance(node, BackwardCFunction):
                    runs, ran = program.function_runs, program.function_ran
                    handles.append(node.register_prehook(partial(self._tell, runs, here)))
                    handles.append(node.register_hook(partial(self._tell, ran, here)))
                handles.append(node.register_hook(partial(self._ran, here, name, number)))
            numbers.add(here)
            for following, _ in node.next_functions:
                if following is None:
                    continue
                there = following._sequence_nr()
                if there < LEAF:
                    edges.append((here, there))
                if following in seen:
                    continue
                if len(seen) < MOST_NODES:
                    seen.add(following)
                    waiting.append(following)
                else:
                    beyond.add(following)
        if beyond:
            for node in hold(seen, beyond):
                if node._sequence_nr() >= LEAF:
                    adding |= self._follow_leaf(node, number, handles)
                else:
                    oldest = min(oldest, node._sequence_nr())
            note = (
                f"only {MOST_NODES:,} nodes of a backward graph were followed one by one; its"
                " operations are all in trace.ops"
            )
            if note not in self.ops.recording.notes:
                self.ops.recording.notes.append(note)
        return edges, numbers, oldest, adding

    def _follow_leaf(self, node: Any, number: int, handles: list[Any]) -> bool:
        """Hook the node that adds to a leaf's gradient; returns whether the leaf has one
        already."""
        leaf = getattr(node, "variable", None)
        if leaf is not None and self.ops.program is not None:
            for tensor in (leaf, leaf.grad):  # numbered now, under which it is written later
                if tensor is not None:
                    self.ops.source(unwrapped(tensor))
            self.ops.program.leaf(leaf)
            self.hooks.of_leaf(leaf, handles)
        handles.append(node.register_hook(partial(self._gradient_ran, node, number)))
        return leaf is not None and leaf.grad is not None

    def _ran(self, node: int, name: str, number: int, given: Any, taken: Any) -> None:
        ops = self.ops
        if ops.off:
            return
        try:
            source = ops.source
            came = tuple([source(g) for g in taken if g is not None])
            went = tuple([source(g) for g in given if g is not None])
            ops.recording.node_runs.rows.append((node, name, number, ops.recording.end, came, went))
        except Exception as error:
            ops.failed(error)

    def _tell(
        self, told: Callable[[int, Any], None], node: int, gradients: Any, taken: Any = None
    ) -> None:
        """Report the gradients that a custom Function's backward is about to read, or has made."""
        if not self.ops.off:
            with self.ops.harmless:
                told(node, gradients)

    def _stop_observing(self, taken: Any) -> None:
        if not self.ops.off:
            self.ops.stop_observing()

    def _unobserved_ran(self, node: Any, name: str, given: Any, taken: Any) -> None:
        if not self.ops.is_aside:
            return
        self.ops.observe_again()
        self.ops.learned.stop()
        with self.ops.harmless:
            results = [g for g in given if g is not None]
            self.ops.record_node(node, name, [g for g in taken if g is not None], results)
            if self.ops.program is not None:
                position = self.ops.recording.end - len(results)
                with self.ops.quiet():
                    self.ops.program.unobserved(results, position)

    def _gradient_ran(self, leaf: Any, number: int, given: Any, taken: Any) -> None:
        ops = self.ops
        if ops.off:
            return
        with ops.harmless:
            parameter, owner = leaf.variable, NO_OWNER
            gradient = parameter.grad  # torch makes this object anew each time
            if gradient is not None:
                ops.reader.mark_gradient(gradient)
                source = ops.source(gradient)
                owner = self.gradient_seen(parameter, source, ops.recording.end)
                if ops.program is not None:
                    ops.program.arrived(parameter)
                    ops.learned.arrivals.append((parameter, source, ops.recording.end))
            self._ran(leaf_number(owner), ACCUMULATES, number, given, taken)


class FunctionRecorder:
    """Wraps torch's one entry into custom Functions.

    Programs bind ``f = MyFunction.apply`` long before a watch begins; that ``apply`` looks up the
    one of ``_SingleLevelFunction``, a private class, each time it is called (torch 2.6 to 2.13).
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops

    def start(self) -> None:
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            call = super(_SingleLevelFunction, cls).apply  # type: ignore[misc]
            return recorder._apply(call, args, kwargs)

        _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]

    def stop(self) -> None:
        if "apply" in vars(_SingleLevelFunction):
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]

    def _apply(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ops, program = self.ops, self.ops.program
        if program is None or ops.off or not is_watched(ops):
            return call(*args, **kwargs)
        begun = None
        with ops.harmless:
            ops.learned.stop()
            begun = program.function_begins((*args, *kwargs.values()), ops.source)
        results = call(*args, **kwargs)
        with ops.harmless:
            if begun is not None:
                program.function_ended(begun, args, results)
        return results


class HookRecorder:
    """Wraps the hooks that may give a tensor another gradient.

    Those of a result are wrapped when they are registered, those of a leaf, which may be older than
    the watch, while the engine runs.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops, self.active = ops, False
        self._original: Any = None

    def start(self) -> None:
        original = self._original = torch.Tensor.register_hook

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            return original(tensor, self._of_result(tensor, hook))

        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
        self.active = True

    def stop(self) -> None:
        if self._original is not None:
            torch.Tensor.register_hook = self._original  # type: ignore[method-assign]
        self.active = False

    def _of_result(self, tensor: torch.Tensor, hook: Any) -> Any:
        ops, program = self.ops, self.ops.program
        if program is None or ops.off or not is_watched(ops) or type(tensor) is not torch.Tensor:
            return hook
        with ops.harmless:
            if tensor.requires_grad and not tensor.is_leaf and callable(hook):
                ops.learned.stop()
                return Hook(self, hook, program.hook_registered(tensor))
        return hook

    def of_leaf(self, leaf: torch.Tensor, undo: list[Any]) -> None:
        """Wrap the hooks of a leaf that the engine is about to reach; ``undo`` gets handles that
        put them back."""
        program = self.ops.program
        hooks: Any = leaf._backward_hooks
        added: Any = leaf._post_accumulate_grad_hooks
        if program is None or not (hooks or added):
            return
        for each, late in ((hooks or {}, False), (added or {}, True)):
            for key, hook in list(each.items()):
                if not isinstance(hook, Hook):
                    each[key] = Hook(self, hook, program.hook_registered(leaf, late), late)
                    undo.append(_Unwrapping(each, key, each[key]))


class Hook:
    """A hook of the program, wrapped so that calls in it are recorded as its own."""

    def __init__(self, recorder: HookRecorder, hook: Any, number: int, late: bool = False) -> None:
        self.recorder, self.hook, self.number, self.late = recorder, hook, number, late

    def __call__(self, tensor: torch.Tensor) -> Any:
        ops, program = self.recorder.ops, self.recorder.ops.program
        if not self.recorder.active or ops.off or program is None:
            return self.hook(tensor)
        with ops.harmless:
            program.function_runs(self.number, (tensor.grad if self.late else tensor,))
        result = self.hook(tensor)
        with ops.harmless:
            program.function_ran(self.number, (tensor.grad if self.late else result,))
        return result


class _Unwrapping:
    """A handle that puts the program's hook back in place of the wrapped one."""

    def __init__(self, hooks: Any, key: int, wrapped: Hook) -> None:
        self.hooks, self.key, self.wrapped = hooks, key, wrapped

    def remove(self) -> None:
        if self.hooks.get(self.key) is self.wrapped:
            self.hooks[self.key] = self.wrapped.hook
