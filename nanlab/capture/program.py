"""The record of the running program as calls over numbered storages, to be run again."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.nn.parameter import is_lazy

from nanlab.capture.buffers import CopyBuffers
from nanlab.capture.ledger import PLAIN, Ledger, TensorViews, is_plain, tracked_by
from nanlab.capture.plans import Plan, argument, tensors_of, unwrapped
from nanlab.stats.memory import has_storage
from nanlab.trace.op import is_installed
from nanlab.trace.program import (
    Call,
    EngineRun,
    FunctionRun,
    FunctionUse,
    Held,
    HookUse,
    Look,
    OptimizerRun,
    ParameterGroup,
    Program,
    Ref,
    Segment,
    View,
    refs_in,
)

Tensor = torch.Tensor
_COPIED = frozenset({"cpu", "cuda", "xpu", "mps"})
NUMBERS: frozenset[Any] = frozenset(
    {int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout}
    | {torch.memory_format}
)
_ZEROS = frozenset({"_efficientzerotensor"})  # makes zeros without memory
_MOST_LOADS = 64  # copies of memory that was read before it was written, of one segment
_FAR = 2_000  # calls before it that are looked through for what made a storage
_CALLS_A_SEGMENT = 400_000  # beyond that a step is given up: some hundred bytes each
_DETACH = torch.ops.aten.detach.default


class ProgramRecorder:
    """Records each call, and copies a leaf just before a call writes it.

    budget: bytes of copies; a step that needs more is not replayable from there on.
    """

    def __init__(
        self, ledger: Ledger, views: TensorViews, program: Program, budget: int | None = None
    ) -> None:
        self.ledger, self.views, self.program = ledger, views, program
        self.copies = CopyBuffers(budget)
        # storage -> segments that hold it by reference
        self.unsaved: dict[int, list[Segment]] = {}
        self._running: list[EngineRun] = []
        # storages that results of custom Functions, or results with hooks, share with others
        self.shared: set[int] = set()
        # (sequence number of the node, number of its result) -> what tells it apart
        self._marks: dict[tuple[int, int], int] = {}
        self._marked = 2  # the last of these
        self._hooks = 0  # minus the number of hooks so far
        self.applies = False  # whether the program applied a custom Function
        self._returning: list[FunctionRun] = []  # whose backward is running
        self.optimizers = OptimizerRuns(self)
        self.kept = KeptSegments(program, self.copies, self.unsaved)
        # called before what a segment began with is overwritten
        self.losing: Callable[[], None] = lambda: None
        self.segment = Segment(0, threads=torch.get_num_threads())

    def begin(self, position: int) -> None:
        """Begin a segment at a position; an empty one is replaced."""
        if (
            self.program.segments
            and not self.segment.calls
            and self.program.segments[-1] is self.segment
        ):
            self.program.segments.pop()
        else:
            self.segment.end = position
            self.kept.closed(self.segment)
        underway: list[EngineRun | FunctionRun] = [*self._running, *self._returning]
        for run in underway:  # what is left of it is in the new one
            run.first = 0
        self.segment = Segment(position, threads=torch.get_num_threads())
        self.ledger.promised.clear()
        self.program.segments.append(self.segment)
        self.shared.clear()
        self._marks.clear()

    # -- a call

    def before(self, plan: Plan, args: Any, kwargs: Any) -> tuple[Any, Any, int]:
        """The arguments, with views for tensors, and the index of their first storage number;
        leaves that the call writes are copied."""
        self.about_to_run(plan, args, kwargs)
        pack, first = self.pack, len(self.segment.calls.numbers)
        if plan.overwrites:  # what memory held before is not read
            packed = tuple([pack(a, i not in plan.writes) for i, a in enumerate(args)])
        else:
            packed = tuple([pack(a) for a in args])
        return packed, {k: pack(v) for k, v in kwargs.items()} if kwargs else kwargs, first

    def about_to_run(self, plan: Plan, args: Any, kwargs: Any) -> None:
        """A call is about to write memory, or to draw."""
        if plan.writes or plan.hidden:
            self._about_to_write(plan, args, kwargs)
        if plan.draws:
            self._about_to_draw(args, kwargs)
        if plan.name in _ZEROS:
            self.views.turn_odd()

    def after(
        self, func: Any, plan: Plan, packed: tuple[Any, Any, int], result: Any, out: Any, call: int
    ) -> None:
        """Append a call that has run; ``result``: what it returned, packed."""
        calls, given = self.segment.calls, ""
        if plan.namespace != "aten":
            name = getattr(func, "_opname", func)
            given = f"{func.namespace}.{name} is no operator of torch itself"
            self._keep_results(len(calls), out, given)
        args, kwargs, first = packed
        calls.noted += (func, args, kwargs, result, call, torch.is_grad_enabled(), given, first)
        if len(calls.noted) > 8 * _CALLS_A_SEGMENT and self.segment.lost is None:
            self.segment.lost = 0, f"it has more than {_CALLS_A_SEGMENT:,} calls"
            calls.clear()
        promised, leaves = self.ledger.promised, self.segment.leaves
        if promised:  # but for leaves, which are held
            for address in [a for a, number in promised.items() if number not in leaves]:
                del promised[address]

    def unobserved(self, results: list[Tensor], position: int) -> None:
        """Record the results of an autograd node whose calls were not seen, as leaves."""
        segment = self.segment
        out = tuple([self._made(t) for t in results])
        self._keep_results(len(segment.calls), tuple(results), "its calls were not seen")
        segment.calls.append(Call(None, (), {}, out, position, False, "its calls were not seen"))

    def looked(self, tensor: Tensor, value: Any, place: int) -> None:
        self.segment.looks.append(Look(len(self.segment.calls), self.ref(tensor), value, place))

    def holds(self, results: list[Tensor]) -> bool:
        """Whether a replay can make these results of the running call."""
        return self.segment.lost is None and all(t.device.type in _COPIED for t in results)

    def lose(self, reason: str) -> None:
        """From here on the segment cannot be run again."""
        if self.segment.lost is None:
            self.segment.lost = len(self.segment.calls), reason

    # -- tensors

    def pack(self, x: Any, read: bool = True) -> Any:
        """An argument with views for tensors, whose storages are numbered in passing."""
        kind = x.__class__
        if kind in NUMBERS:
            return x
        if isinstance(x, Tensor):
            found = self._find(x, True, read)
            if found is None:
                return _held(x)
            self.segment.calls.numbers.append(found[0])
            return found[1]
        if kind is list or kind is tuple:
            return kind([self.pack(v) for v in x])
        return x

    def pack_result(self, out: Any) -> Any:
        """A result with views for tensors."""
        if isinstance(out, Tensor):
            found = self._find(out, False)
            if found is None:
                return Held(out)
            self.segment.calls.numbers.append(found[0])
            return found[1]
        if out.__class__ is tuple or out.__class__ is list:
            return tuple([self.pack_result(item) for item in out])
        return out

    def ref(self, t: Tensor) -> Any:
        """The reference to an operand."""
        found = self._find(t, True)
        return _held(t) if found is None else found[1].of(found[0])

    def refs(self, x: Any) -> Any:
        """A value with a Ref for each tensor."""
        if isinstance(x, Tensor):
            return self.ref(x)
        if x.__class__ is list or x.__class__ is tuple:
            return x.__class__([self.refs(v) for v in x])
        return x

    def _made(self, t: Tensor | None) -> Any:
        """The reference to a result."""
        if t is None:
            return None
        found = self._find(t, False)
        return Held(t) if found is None else found[1].of(found[0])

    def _find(self, t: Tensor, operand: bool, read: bool = True) -> tuple[int, View] | None:
        """A tensor's storage number and view (None: not plain); notes a leaf that no call made."""
        # torch asks a ragged one for its sizes while it holds the lock that `is_leaf` waits for
        if t.__class__ not in PLAIN:
            return None
        try:
            storage = t.untyped_storage()
            entry = self.ledger.entries.get(storage._cdata)
            number = self.ledger.promise(storage) if entry is None else entry.serial
            tracked = tracked_by(t) if operand else None
            if tracked and number in self.shared:
                tracked = self._result_of(t, tracked)
            view = self.views.of(t, tracked)
        except Exception:
            return None
        if view is None:
            return None
        if operand:
            if number not in self.segment.known:
                self.met(number, storage)
            if read and entry is not None and entry.uninit:
                self._load(number, storage)
        else:
            self.segment.known.add(number)
        return number, view

    def met(self, number: int, storage: Any) -> None:
        """A storage that the segment reads first: a leaf."""
        segment = self.segment
        segment.known.add(number)
        segment.leaves[number] = storage
        waiting = self.unsaved.get(number)
        if waiting is None:
            self.unsaved[number] = [segment]
        else:
            waiting.append(segment)

    def _load(self, number: int, storage: Any) -> None:
        """Keep memory that is read but was never written whole, to load it where it is made."""
        segment = self.segment
        if (
            len(segment.loads) < _MOST_LOADS
            and storage.device.type in _COPIED
            and all(number != known for known, _ in segment.loads.values())
            and self.copies.afford(storage.nbytes())
        ):
            at = self._after_making(number)
            at = len(segment.calls) if at in segment.loads else at
            segment.loads[at] = number, self.copies.copy(storage)

    def _after_making(self, number: int) -> int:
        """The index after the call that made a storage; the running call's if that is far back."""
        calls = self.segment.calls
        for index in range(len(calls) - 1, max(len(calls) - _FAR, 0) - 1, -1):
            call = calls[index]
            if any(ref.storage == number for ref in refs_in(call.out)) and not any(
                ref.storage == number for ref in refs_in(call.args)
            ):
                return index + 1
        return len(calls)

    def _about_to_write(self, plan: Plan, args: Any, kwargs: Any) -> None:
        for where in plan.writes:
            read = args if isinstance(where, str) else args[where + 1 :]
            for t in tensors_of((argument(where, args, kwargs),)):
                self._save(t, plan.overwrites, read)
        for i in plan.hidden:
            if i < len(args) and isinstance(args[i], Tensor):
                self._save(args[i], False)

    def _save(self, t: Tensor, overwrites: bool, read: Sequence[Any] = ()) -> None:
        """Copy what a call writes. overwrites: the target is not read, unless ``read`` holds it."""
        try:
            storage = t.untyped_storage()
            entry = self.ledger.entries.get(storage._cdata)
            segment = self.segment
            number = self.ledger.promise(storage) if entry is None else entry.serial
            if (number in segment.known and number not in self.unsaved) or not is_plain(t):
                return
        except Exception:
            return
        if number not in segment.known:
            whole = t.numel() * t.itemsize == storage.nbytes() and t.is_contiguous()
            if overwrites and whole and not any(_shows(other, storage) for other in read):
                segment.known.add(number)
                segment.blank[number] = storage.nbytes(), str(t.device)
            else:
                self.met(number, storage)
        self.save(number, storage)

    def save(self, number: int, storage: Any) -> None:
        """A storage is about to be written: copy it if it is a leaf that was not copied yet."""
        waiting = self.unsaved.pop(number, None)
        if not waiting:
            return
        if storage.device.type not in _COPIED:
            device = storage.device.type
            self._overwrite(
                waiting, number, f"nanlab does not copy the memory of a {device} device"
            )
            return
        if not self.copies.afford(storage.nbytes()):
            budget = self.copies.budget >> 20
            reason = f"tensors that it overwrites do not fit into the budget of {budget} MiB"
            self._overwrite(waiting, number, reason)
            return
        copy = self.copies.copy(storage)
        for each in waiting:
            each.saved[number] = copy

    def _overwrite(self, segments: list[Segment], number: int, reason: str) -> None:
        """Give up a leaf that is about to be written: calls that read it cannot be replayed."""
        self.losing()
        for each in segments:
            first = next(
                (
                    index
                    for index, call in enumerate(each.calls)
                    if any(ref.storage == number for ref in call.read)
                ),
                len(each.calls),
            )
            if each.lost is None or first < each.lost[0]:
                each.lost = first, reason

    def will_save(self, t: Tensor, room: int) -> bool:
        """Whether a tensor's memory will be copied before this segment writes it, if the copy fits
        into ``room`` bytes."""
        segment = self.segment
        number = self._number(t)
        return (
            segment.lost is None
            and number in segment.leaves
            and number not in segment.saved
            and segment.leaves[number].device.type in _COPIED
            and segment.leaves[number].nbytes() <= room
        )

    def saved_value(self, t: Tensor) -> Tensor | None:
        """The value of a tensor before this segment wrote it, or None; ``unobserved()`` only."""
        saved = self.segment.saved.get(self._number(t))
        if saved is None or saved.nbytes() != t.untyped_storage().nbytes():
            return None
        held = torch.empty(0, dtype=t.dtype, device=saved.device)
        return held.set_(saved, t.storage_offset(), t.size(), t.stride())

    def _number(self, t: Tensor) -> int:
        if not is_plain(t):
            return -1
        entry = self.ledger.entries.get(t.untyped_storage()._cdata)
        return -1 if entry is None else entry.serial

    def _about_to_draw(self, args: Any, kwargs: Any) -> None:
        """Keep the generator's state at each call that draws: the program may seed it."""
        segment = self.segment
        own = next((x for x in (*args, *kwargs.values()) if x.__class__ is torch.Generator), None)
        if own is None:
            tensor = next((x for x in args if isinstance(x, Tensor)), None)
            device = kwargs.get("device") if tensor is None else tensor.device
            if device is not None and torch.device(device).type == "cuda":
                number = torch.device(device).index
                number = torch.cuda.current_device() if number is None else number
                own = torch.cuda.default_generators[number]
        if own is not None:
            segment.generators[len(segment.calls)] = own
        segment.states[len(segment.calls)] = (
            torch.get_rng_state() if own is None else own.get_state()
        )

    def _keep_results(self, index: int, out: Any, reason: str) -> None:
        """Copy results that no call can make again."""
        tensors = tensors_of((out,))
        size = sum(t.numel() * t.itemsize for t in tensors if t.layout is torch.strided)
        if not self.copies.afford(size):
            self.lose(f"{reason}, and what it returned does not fit into the budget")
            return
        self.segment.results[index] = tuple(t.detach().clone() for t in tensors)

    # -- the engine

    def engine_begins(self, outputs: Any, args: tuple[Any, ...], accumulates: bool) -> EngineRun:
        """The autograd engine is about to run, with ``args`` of ``_engine_run_backward``."""
        gradients = args[0] if args else ()
        inputs = args[3] if len(args) > 3 else ()
        run = EngineRun(
            first=len(self.segment.calls),
            last=-1,
            nested=bool(self._running),
            roots=tuple([self.refs(unwrapped(t)) for t in outputs]),
            gradients=tuple([None if g is None else self.refs(unwrapped(g)) for g in gradients]),
            inputs=tuple([self.refs(unwrapped(t)) for t in inputs if isinstance(t, Tensor)]),
            accumulates=accumulates,
            create_graph=bool(args[2]) if len(args) > 2 else False,
        )
        self._running.append(run)
        return run

    def leaf(self, leaf: Tensor) -> None:
        """Note the gradient that a leaf has before the engine's run, which may reach it."""
        if self._running and leaf.grad is not None:
            self._running[-1].before[self.ref(leaf)] = self.refs(leaf.grad)

    def arrived(self, leaf: Tensor) -> None:
        if self._running:
            self._running[-1].after[self.ref(leaf)] = self._made(leaf.grad)

    def engine_ended(self, results: Any) -> None:
        run = self._running.pop()
        run.last = len(self.segment.calls)
        if not run.accumulates and results is not None:
            run.results = tuple([None if t is None else self._made(unwrapped(t)) for t in results])
        self.segment.engine.append(run)
        if not self._running:
            self._returning.clear()

    # -- custom Functions

    def function_begins(
        self, args: tuple[Any, ...], meet: Callable[[Tensor], Any]
    ) -> tuple[Segment, FunctionUse] | None:
        """Begin the use of a custom Function, with its segment; None where autograd will not follow
        it.

        meet: enters a tensor that no call has read yet in the ledger.
        """
        if not torch.is_grad_enabled():
            return None
        inputs: list[Any] = []
        for value in args:
            if isinstance(value, Tensor):
                if value.requires_grad:
                    meet(value)
                inputs.append(self.ref(value) if value.requires_grad else None)
        if all(ref is None for ref in inputs):
            return None
        use = FunctionUse(-1, "", len(self.segment.calls), -1, tuple(inputs), {})
        return self.segment, use

    def function_ended(
        self, begun: tuple[Segment, FunctionUse], args: tuple[Any, ...], results: Any
    ) -> None:
        """End the use of a custom Function, with what it returned."""
        segment, use = begun
        if segment is not self.segment:  # a step began in its forward
            use.first = 0
            for value in args:
                if isinstance(value, Tensor):
                    self._find(value, True)
        taken = {ref.storage for ref in use.inputs if ref.__class__ is Ref}
        for result in results if isinstance(results, tuple) else (results,):
            if not isinstance(result, Tensor) or not result.requires_grad or result.is_leaf:
                continue
            node: Any = result.grad_fn
            output = result.output_nr
            if not isinstance(node, BackwardCFunction):
                continue
            use.number, use.name = node._sequence_nr(), type(node).__name__
            ref = self.ref(result)
            if ref.__class__ is Ref and ref.storage in taken:
                if not any(result is each for each in args):  # else it was written in place
                    ref = self._mark(ref, node, output)
            use.outputs[output] = ref
        if use.outputs:
            use.last = self._last_of_forward(use)
            self.applies = True
            self.segment.functions.append(use)

    def _last_of_forward(self, use: FunctionUse) -> int:
        """Index after the last forward call; detaching a result to save it for backward is none."""
        calls, last = self.segment.calls, len(self.segment.calls)
        views = [ref.view for ref in use.outputs.values() if ref.__class__ is Ref]
        while last > use.first:
            call = calls[last - 1]
            if call.func is not _DETACH or not call.grad or call.args[0].__class__ is not Ref:
                break
            if call.args[0].view not in views:
                break
            last -= 1
        return last

    def _mark(self, ref: Ref, node: Any, output: int) -> Ref:
        """A reference with a mark of its own, for a result that shares memory with others."""
        self.shared.add(ref.storage)
        self._marked += 1
        self._marks[node._sequence_nr(), output] = self._marked
        return Ref((*ref[:5], self._marked, ref[6]))

    def _result_of(self, t: Tensor, tracked: int) -> int:
        """The mark of a result that shares memory with others; else how autograd tracks it."""
        # without gradients no one has asked for the node yet, and asking may make it
        if tracked != 1 or not torch.is_grad_enabled():
            return tracked
        node: Any = t.grad_fn
        return self._marks.get((node._sequence_nr(), t.output_nr), tracked)

    def hook_registered(self, tensor: Tensor, late: bool = False) -> int:
        """Note a hook that may change a tensor's gradient; returns the hook's number."""
        self._hooks -= 1
        ref = self.ref(tensor)
        if ref.__class__ is Ref and ref.tracked == 1 and tensor._is_view():
            ref = self._mark(ref, tensor.grad_fn, tensor.output_nr)
        self.segment.hooks.append(HookUse(self._hooks, len(self.segment.calls), ref, late))
        return self._hooks

    def function_runs(self, number: int, arrived: Any) -> None:
        """Begin a run of a custom Function's backward, or of a hook, with these gradients."""
        came = tuple([None if g is None else self._made(g) for g in arrived])
        self._returning.append(FunctionRun(number, len(self.segment.calls), -1, came, ()))

    def function_ran(self, number: int, left: Any) -> None:
        """End the run of a backward or a hook that began last, with what it returned."""
        run = self._returning.pop()
        if run.number == number:
            run.last = len(self.segment.calls)
            run.left = tuple([None if g is None else self.refs(g) for g in left])
            self.segment.function_runs.append(run)

    def ended(self) -> None:
        """The watch is over: copy what the program may write, and free the spare buffers."""
        for number, segments in sorted(
            self.unsaved.items(), key=lambda each: each[1][0].leaves[each[0]].nbytes()
        ):
            storage = segments[0].leaves[number]
            if storage.device.type not in _COPIED:
                continue
            if not self.copies.afford(storage.nbytes()):
                break
            copy = self.copies.copy(storage)
            for segment in segments:
                segment.saved[number] = copy
                segment.intact.add(number)
        self.copies.free()
        self.unsaved.clear()
        self.optimizers.clear()
        if self.program.segments and not self.program.segments[-1].calls:
            self.program.segments.pop()


class OptimizerRuns:
    """Writes down what each step of an optimizer began with."""

    def __init__(self, recorder: ProgramRecorder) -> None:
        self._recorder = recorder
        self._running: list[tuple[Segment, OptimizerRun]] = []
        # id of a parameter -> (it, its state, and references to both): an optimizer keeps them
        self._stepped: dict[int, tuple[Tensor, list[Any], Any, dict[str, Any], dict[int, Any]]] = {}

    def begins(
        self,
        optimizer: torch.optim.Optimizer,
        closure: bool,
        grad: bool,
        meet: Callable[[Tensor], Any],
    ) -> None:
        """Begin an optimizer's step: keep its settings, and what it reads.

        meet: enters a tensor that no call has read yet in the ledger.
        """
        recorder, kind = self._recorder, _rule_of(optimizer)
        segment, pack = recorder.segment, recorder.refs
        made = OptimizerRun(len(segment.calls), -1, id(optimizer), kind, grad)
        self._running.append((segment, made))
        if closure:
            made.reason = "its optimizer takes a closure, which runs the model again"
        elif not kind:
            made.reason = (
                f"the update rule of {type(optimizer).__name__} is not one of torch.optim or of an"
                " installed package"
            )
        else:
            made.groups = tuple(
                [self._group(optimizer.state, g, meet) for g in optimizer.param_groups]
            )
            made.own = {
                name: pack(value)
                for name in ("grad_scale", "found_inf")
                if (value := getattr(optimizer, name, None)) is not None
            }
            if "." in kind:
                own = {n: v for n, v in vars(optimizer).items() if isinstance(v, _PLAIN)}
                made.own = {**own, **made.own}

    def _group(
        self, states: Any, group: dict[str, Any], meet: Callable[[Tensor], Any]
    ) -> ParameterGroup:
        recorder, stepped = self._recorder, self._stepped
        pack, ref = recorder.refs, recorder.ref
        parameters, gradients, state = [], [], []
        for p in group["params"]:
            gradients.append(None if p.grad is None else ref(p.grad))
            own = states.get(p, {})
            known = stepped.get(id(p))
            if (
                known is None
                or known[0] is not p
                or len(known[1]) != len(own)
                or not all(map(is_, known[1], own.values()))
            ):
                for t in (p, *own.values()):
                    if isinstance(t, Tensor) and has_storage(t):
                        if t.untyped_storage()._cdata not in recorder.ledger.entries:
                            meet(t)
                packed = {name: pack(value) for name, value in own.items()}
                storages = {
                    r.storage: t.untyped_storage()
                    for t, r in zip(own.values(), packed.values(), strict=True)
                    if r.__class__ is Ref
                }
                known = stepped[id(p)] = p, [*own.values()], ref(p), packed, storages
            for number, storage in known[4].items():
                if number not in recorder.segment.known:  # read as a number only
                    recorder.met(number, storage)
            parameters.append(known[2])
            state.append(known[3])
        settings = {name: pack(value) for name, value in group.items() if name != "params"}
        return ParameterGroup(settings, tuple(parameters), tuple(gradients), tuple(state))

    @property
    def running(self) -> OptimizerRun:
        """The step of an optimizer that began last."""
        return self._running[-1][1]

    def ended(self) -> None:
        """The step of the optimizer that began last is over."""
        segment, run = self._running.pop()
        if segment is self._recorder.segment:
            run.last = len(segment.calls)
            segment.optimizers.append(run)

    def clear(self) -> None:
        self._stepped.clear()


_PLAIN = (bool, int, float, str)  # settings that a class keeps beside its groups


def _rule_of(optimizer: torch.optim.Optimizer) -> str:
    """Name of the class whose ``step`` an optimizer runs, torch's or a package's; "" if it is the
    user's."""
    kind = next(kind for kind in type(optimizer).__mro__ if "step" in vars(kind))
    if getattr(torch.optim, kind.__name__, None) is kind:
        return str(kind.__name__)
    own = type(optimizer)
    module = sys.modules.get(own.__module__)
    found = getattr(module, own.__name__, None) is own
    installed = is_installed(getattr(module, "__file__", None) or "")
    return f"{own.__module__}.{own.__name__}" if found and installed else ""


class KeptSegments:
    """Decides which segments are kept, by the memory they hold and by who may need them."""

    def __init__(
        self, program: Program, copies: CopyBuffers, unsaved: dict[int, list[Segment]]
    ) -> None:
        self.program, self.copies, self.unsaved = program, copies, unsaved
        self._trained: list[int] = []  # where segments begin that an optimizer or backward ended
        self._stepped_in = False  # whether any has an optimizer
        # bytes that the segments keep alive beside parameters, and their calls
        self._weight = self._weighed = 0

    def closed(self, segment: Segment) -> None:
        self._weigh(segment)
        self._stepped_in |= bool(segment.optimizers)
        if segment.optimizers or (segment.engine and not self._stepped_in):
            self._trained.append(segment.start)

    def forget(self, keep: int, recent: int, sure: int, held: Sequence[tuple[int, int]]) -> int:
        """Drop the segments before the last steps, and use their buffers again; returns the
        position from which segments are kept. Iterations of a loop without gradients are dropped,
        too.

        keep: how many steps, each ended by an optimizer or else by a backward pass. recent: where
        the last boundaries begin. sure: the same without tentative ones, whose segments are kept
        while the budget allows. held: (begin, end) of earlier steps to keep: the first always, the
        others within the budget.
        """
        segments = self.program.segments
        if self._trained:
            sure = min(sure, self._trained[max(len(self._trained) - 1 - keep, 0)])
        if self._weight > self.copies.budget or self._weighed > _CALLS_A_SEGMENT:
            sure, held = recent, held[:1]
        sure = min(sure, recent)
        for segment in segments[:-1]:
            if segment.end > recent or _reaches_into(held, segment):
                continue
            # nothing can be differentiated in it, and it overwrote nothing from before it
            idle = not (
                segment.engine or segment.optimizers or segment.saved or segment.calls.graded
            )
            if segment.end > sure and not idle:
                continue
            self._drop(segment)
            segments.remove(segment)
            if segment.end <= sure:
                self.program.forget(segment.start, segment.end)
            else:
                sure = recent
        return sure

    def _weigh(self, segment: Segment, sign: int = 1) -> None:
        """Add the memory that a segment keeps alive, parameters aside, or subtract it."""
        names = self.program.names
        self._weight += sign * sum(
            storage.nbytes() for number, storage in segment.leaves.items() if number not in names
        )
        self._weighed += sign * len(segment.calls)

    def _drop(self, segment: Segment) -> None:
        self._weigh(segment, -1)
        if self._trained and self._trained[0] <= segment.start:
            self._trained = [start for start in self._trained if start != segment.start]
        for number in segment.leaves:
            waiting = self.unsaved.get(number)
            if waiting is not None and segment in waiting:
                waiting.remove(segment)
                if not waiting:
                    del self.unsaved[number]
        for _, copy in segment.loads.values():
            self.copies.spent -= copy.nbytes()
        for results in segment.results.values():
            self.copies.spent -= sum(t.numel() * t.itemsize for t in results)
        held, segment.saved = segment.saved, {}
        self.copies.give_back(held)


def _reaches_into(spans: Sequence[tuple[int, int]], segment: Segment) -> bool:
    """Whether a segment reaches into one of the spans, which are in order."""
    before = bisect_left(spans, segment.end, key=itemgetter(0))
    return before > 0 and spans[before - 1][1] > segment.start


def _held(t: Tensor) -> Held:
    """An operand as it is; of a lazy parameter its data, for it is initialised in place."""
    return Held(t.data if is_lazy(t) else t)


def _shows(value: Any, storage: Any) -> bool:
    """Whether an argument is a tensor of this storage."""
    own = isinstance(value, Tensor) and is_plain(value)
    return own and value.untyped_storage()._cdata == storage._cdata
