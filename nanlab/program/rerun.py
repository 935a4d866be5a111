"""A recorded step's calls run again below autograd: storages, random states, leftovers."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.capture.plans import plan_of
from nanlab.errors import NotReplayable, TypeMismatchError, UsageError
from nanlab.operators import having
from nanlab.trace.program import (
    MOST_BEFORE,
    Call,
    EngineRun,
    Held,
    Look,
    Program,
    Ref,
    Segment,
    refs_in,
)
from nanlab.trace.recording import Recording

# The storages of a step that is run again, and its random states.

Tensor = torch.Tensor
T = TypeVar("T")
K = TypeVar("K")
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
            raise NotReplayable("the replay does not hold a tensor that it reads")
        found = torch.empty(0, dtype=dtype, device=storage.device).set_(
            storage, offset, size, stride
        )
        if bits & 1:
            found = torch._conj(found)
        return torch._neg_view(found) if bits & 2 else found

    def held(self, held: Held) -> Any:
        """A stand-in for a tensor that is no plain view: a copy, so that the program's is never
        written."""
        key = id(held.tensor)
        if key not in self._held:
            try:
                self._held[key] = held.tensor.detach().clone()
            except RuntimeError as error:
                raise NotReplayable("a tensor inside of a vmap is none outside of it") from error
        return self._held[key]

    def holds_others(self) -> bool:
        """Whether the memory holds tensors that are no plain views."""
        return bool(self._held)

    def unpack(self, value: Any) -> Any:
        """An argument with tensors for references."""
        kind = value.__class__
        if kind is Ref or kind is Held:
            return self.tensor(value)
        if kind is tuple or kind is list:
            return kind([self.unpack(item) for item in value])
        return value

    def place(self, ref: Any, made: Any) -> None:
        """Bind the result of a call to the reference of its recorded result."""
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
    if made.shape != ref.size:  # an operator may compute less where autograd does not look on
        raise NotReplayable(
            f"a result has shape {tuple(made.shape)} when its call runs again, not {ref.size}"
        )
    if 0 not in ref.size:
        last = sum((n - 1) * s for n, s in zip(ref.size, ref[3], strict=True)) + ref[1] + 1
    else:
        last = 0
    fresh = torch.empty(last, dtype=made.dtype, device=made.device)
    fresh.as_strided(ref.size, ref[3], ref[1]).copy_(made)
    return fresh.untyped_storage()


def copy_of(tensor: Tensor) -> Tensor:
    """A copy outside of the graph, with the tensor's strides, because the order of a reduction
    depends on them. Of a small part of a large tensor, a compact copy of the part."""
    found = tensor.detach()
    if found.layout != torch.strided or found.is_conj() or found.is_neg() or not found.numel():
        return found.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(found.shape, found.stride(), strict=True))
    if extent == found.numel() or extent > MOST_AROUND * found.numel():
        return found.clone()
    memory = found.as_strided((extent,), (1,), found.storage_offset()).clone()
    return memory.as_strided(found.shape, found.stride(), 0)


MOST_AROUND = 64  # elements of memory that are copied for one of the tensor


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


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items that have a key in common, by the key."""
    found: dict[K, list[T]] = {}
    for each in items:
        found.setdefault(key(each), []).append(each)
    return found


def with_refs(value: Any, change: Callable[[Ref], Any]) -> Any:
    """An argument or result with other references."""
    if value.__class__ is Ref:
        return change(value)
    if value.__class__ is tuple or value.__class__ is list:
        return value.__class__([with_refs(item, change) for item in value])
    return value


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
    """Restore the generator's state of the first of these calls that draws random numbers."""
    for index in range(first, last):
        if index in segment.states:
            return seed(segment, index)


def written_by(call: Call) -> Iterator[int]:
    """Storages that a call writes, in the order of its rows."""
    if call.func is None:
        return
    plan = plan_of(call.func)
    given: dict[Any, Any] = {**dict(enumerate(call.args)), **call.kwargs}
    for at in (*plan.writes, *plan.hidden):
        yield from (ref.storage for ref in refs_in(given.get(at)))


def last_uses(
    segments: Sequence[Segment], kept: Collection[int] = ()
) -> dict[tuple[int, int], list[int]]:
    """(segment, index) of a storage's last use -> storages, without those that stay."""
    outlive: set[int] = set(kept)
    last: dict[int, tuple[int, int]] = {}
    for at, segment in enumerate(segments):
        outlive |= segment.leaves.keys() | segment.blank.keys()
        for run in segment.engine:
            outlive |= {
                r.storage
                for r in refs_in(
                    (*run.roots, *run.inputs, *run.after, *run.after.values(), *run.results)
                )
            }
        for index, call in enumerate(segment.calls):
            for ref in (*call.read, *refs_in(call.out)):
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
_ONE_ELEMENT = torch.zeros(1)


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator, without its warnings: the run itself has shown them."""
    if getattr(func, "_opname", "") not in _WARN:
        return func(*args, **kwargs)
    return unheard(lambda: func(*args, **kwargs))


def unheard(run: Callable[[], T]) -> T:
    """The result of a function, called without its warnings: the run itself has shown them."""
    found: list[T] = []

    def note(element: float) -> float:
        found.append(run())
        return element

    # A Python function of torch turns what is warned of inside of it into Python's own warnings;
    # an operator alone prints it.
    with warnings.catch_warnings(action="ignore"):
        _ONE_ELEMENT.apply_(note)
    return found[0]


# The calls of a step one after the other, below autograd: bit for bit what they were.

Visit = Callable[[int, int, Call, Any], bool | None]
Run = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]


def operate_call(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is done in the place of a call that nothing is known of: the same."""
    return operate(call.func, args, kwargs)


def rerun(
    segments: Sequence[Segment],
    visit: Visit | None = None,
    run: Run = operate_call,
    memory: Memory | None = None,
    looked: Callable[[Look, Any], None] | None = None,
    kept: Collection[int] = (),
    instead: Mapping[tuple[int, int], Instead] | None = None,
    begin: int = 0,
) -> Memory:
    """Run every call of these segments again, and return the storages as they are at the end.

    visit: called with (number of the segment, index, call, result) after each call; True ends the
    run there.
    run: what is done in the place of a call. looked: called with each value that the program read,
    as it is now. kept: storages that are not freed after their last use. instead: (segment, index)
    -> what is run from there on in the place of calls. begin: index, in the first segment, of the
    first call that is made; what those before it made is in the memory. Raises NotReplayable where
    a call cannot be run again.
    """
    memory = Memory() if memory is None else memory
    standing = instead or {}
    done = last_uses(segments, kept)
    with surroundings(segments), torch.no_grad(), _disable_current_modes():
        for number, segment in enumerate(segments):
            memory.load(segment)
            looks = grouped(segment.looks, lambda each: each.index)
            resume = begin if not number else 0
            for index, call in enumerate(segment.calls):
                if segment.lost is not None and index >= segment.lost[0]:
                    raise NotReplayable(segment.lost[1])
                for look in looks.get(index, ()):
                    if looked is not None:
                        looked(look, memory.tensor(look.ref))
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
                result = make(segment, index, memory.unpack, memory.place, run)
                if visit is not None and visit(number, index, call, result):
                    return memory
                if (number, index) in done:
                    memory.release(done[number, index])
            for look in looks.get(len(segment.calls), ()):
                if looked is not None:
                    looked(look, memory.tensor(look.ref))
    return memory


def make(
    segment: Segment,
    index: int,
    get: Get,
    bind: Callable[[Any, Any], None],
    run: Run = operate_call,
) -> Any:
    """Make a call of a segment, as it drew its random numbers, and bind what it returns."""
    call = segment.calls[index]
    if call.given:
        kept = segment.results.get(index)
        if kept is None:
            raise NotReplayable(call.given)
        results = [t.clone() for t in kept]
        bind(call.out if call.out.__class__ is tuple else (call.out,), tuple(results))
        return results
    args = get(call.args)
    kwargs = {name: get(value) for name, value in call.kwargs.items()}
    seed(segment, index)
    with torch.set_grad_enabled(call.grad):
        result = run(call, args, kwargs)
    bind(call.out, result)
    return result


# What one step leaves to the next: storages that a replay of the steps before makes again.


def handed_over(segments: Sequence[Segment]) -> list[set[int]]:
    """For each segment, storages that hold at its beginning what earlier segments left; tried."""
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
    """Fill in storages of these segments that a capsule left for a replay to make."""
    lacking = [s for s in wanted if s.unmade]
    for run in program.runs() if lacking else ():
        ends = [at for at, s in enumerate(run) if any(s is each for each in lacking)]
        if ends:
            _complete(run[: ends[-1] + 1])


def _complete(segments: Sequence[Segment]) -> None:
    def reached(at: int, memory: Memory) -> None:
        segment = segments[at]
        for number in segment.unmade:
            made = memory.storages.get(number)
            if made is None or made.nbytes() != segment.leaves[number].nbytes():
                raise NotReplayable("the steps before it do not make what it begins with")
            segment.saved[number] = made.clone()
        segment.unmade = set()

    reason = "what it begins with is not in the file"
    try:
        _run_through(segments, reached)
    except Exception as error:
        reason = str(error)
    for segment in segments:
        if segment.unmade:
            segment.unmade, segment.lost = set(), (0, reason)


def _run_through(segments: Sequence[Segment], reached: Callable[[int, Memory], None]) -> None:
    """Run all segments but the last in one memory; ``reached`` is called before each."""

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
    return torch.equal(memory_of(a), memory_of(b))


def memory_of(storage: Any) -> Tensor:
    """The bytes of a storage."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


def bytes_of(t: Tensor) -> Tensor:
    """A copy of the elements, byte by byte."""
    # else what is expanded from one element counts as contiguous with a stride of 0
    plain = t.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.flatten().view(torch.uint8)


# What autograd followed where the calls do not show it: inside of a transform of torch.func.


def follow(segment: Segment) -> None:
    """Mark references from the inputs to the roots of each engine run in a transform, and operands
    of operators that compute with the zeros of forward-mode derivatives."""
    for run in segment.engine:
        inputs = [ref for ref in refs_in(run.inputs) if not ref.tracked]
        run.forward = _gives_more(segment, run)
        if inputs and not run.forward:
            followed = _Followed(segment, run, inputs)
            run.inputs, run.roots = followed.marked(run.inputs), followed.marked(run.roots)
    if any(call.func in ZEROS for call in segment.calls):
        _follow_zeros(segment)


def _gives_more(segment: Segment, run: EngineRun) -> bool:
    """Whether later calls read more of a run than its results, as they do in forward-mode
    differentiation."""
    if run.accumulates or run.nested:
        return False
    made = {ref.storage for c in segment.calls[run.first : run.last] for ref in refs_in(c.out)}
    for call in segment.calls[: run.first]:
        made -= {ref.storage for ref in refs_in(call.out)}
    made -= segment.leaves.keys() | {ref.storage for ref in refs_in(run.results)}
    later = [other for other in segment.engine if other.first >= run.last]
    read = [ref for other in later for ref in refs_in((*other.roots, *other.inputs))]
    for index, call in enumerate(segment.calls[run.last :], run.last):
        if not any(other.first <= index < other.last for other in later):
            read += call.read
    return any(ref.storage in made for ref in read)


ZEROS = {torch.ops.aten._efficientzerotensor.default}  # tangents of what has none


def _follow_zeros(segment: Segment) -> None:
    """Mark operands as tracked where only the result was: an operator that calls others below
    autograd, such as one with a tensor of zeros, hides them."""
    calls, reached = segment.calls, set[int]()  # storages of what was computed from the followed
    for call in calls:
        if call.grad and any(ref.tracked or ref.storage in reached for ref in call.read):
            reached |= {ref.storage for ref in refs_in(call.out)}
    follows: dict[Any, bool] = {}  # view -> whether autograd follows it where it is read next

    def marked(ref: Ref) -> Ref:
        unmarked = ref.tracked or ref.storage not in reached or not ref.dtype.is_floating_point
        return ref if unmarked else Ref((*ref[:5], 1, ref[6]))

    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        outs = [ref.view for ref in refs_in(call.out)]
        if call.grad and any(map(follows.get, outs)) and not any(r.tracked for r in call.read):
            call = call._replace(args=with_refs(call.args, marked))
            calls.put(index, call)
        for view in outs:
            follows.pop(view, None)
        for ref in call.read:
            follows[ref.view] = bool(ref.tracked)


# Autograd follows what they return no more than the memory that it shows.
_UNFOLLOWED = frozenset({"detach", "lift_fresh"})


class _Followed:
    """The calls before an engine run that its inputs flow into, whose operands are marked."""

    def __init__(self, segment: Segment, run: EngineRun, inputs: Sequence[Ref]) -> None:
        self.leaves = {ref.view for ref in inputs}
        self._given = {ref.storage for ref in inputs}
        self._views = set(self.leaves)  # of these: rows of one tensor may be inputs in turn
        self._made: set[int] = set()  # storages
        calls, earlier = segment.calls, [r for r in segment.engine if r.last <= run.first]
        written = (i for i in range(run.first - 1, -1, -1) if self._given & {*written_by(calls[i])})
        for index in range(next(written, -1) + 1, run.first):
            for other in earlier:
                if other.last == index and other.create_graph:
                    if any(map(self._reaches, refs_in((*other.roots, *other.inputs)))):
                        self._reach(other.results)
            call = calls[index]
            if any(other.first <= index < other.last for other in earlier) or not call.grad:
                continue
            name = getattr(call.func, "_opname", "")
            if name in _UNFOLLOWED or name.endswith("_like") or name.startswith("new_"):
                continue  # autograd follows none of these
            args = self.marked(call.args)
            kwargs = {key: self.marked(value) for key, value in call.kwargs.items()}
            if any(ref.tracked for ref in refs_in((args, tuple(kwargs.values())))):
                calls.put(index, call._replace(args=args, kwargs=kwargs))
                self._reach(call.out)

    def _reaches(self, ref: Ref) -> bool:
        return ref.view in self._views if ref.storage in self._given else ref.storage in self._made

    def _reach(self, out: Any) -> None:
        for ref in refs_in(out):
            if ref.storage in self._given:
                self._views.add(ref.view)
            elif ref.dtype.is_floating_point:
                self._made.add(ref.storage)

    def marked(self, value: Any) -> Any:
        """References marked as tensors that autograd follows."""
        return with_refs(value, self._marked)

    def _marked(self, ref: Ref) -> Ref:
        if ref.tracked or not self._reaches(ref) or not ref.dtype.is_floating_point:
            return ref
        return Ref((*ref[:5], 2 if ref.view in self.leaves else 1, ref[6]))


# The recorded calls of one training step.


@dataclass(frozen=True)
class Window:
    """The segments of a step, and which of their calls belong to it."""

    recording: Recording
    step: int
    start: int
    end: int
    segments: list[Segment]

    @property
    def calls(self) -> Iterator[Call]:
        """The calls of all segments."""
        return (call for segment in self.segments for call in segment.calls)

    def find(self, position: int) -> tuple[int, int, int]:
        """(segment, index of the call, number of its result) of a row."""
        op = self.recording.at(position)
        if not op:
            raise UsageError(
                f"no row at position {position}; trace.ops.position lists those at hand"
            )
        first = op.call
        for at, segment in enumerate(self.segments):
            index = bisect_right(segment.calls, first, key=lambda call: call.position) - 1
            if index >= 0 and segment.calls[index].position == first:
                return at, index, op.output
        raise NotReplayable(f"the call of row {position} was not recorded")


def step_that_shows(recording: Recording, step: int, finding: Any) -> int:
    """The step to run again for a finding in a step: that step, or -1 for the last one. The last
    one serves where that step is not kept and each step shows it: a lost signal, or a scaler
    misused at the same line."""
    silent = finding.symptom.startswith("silent-")
    if not silent or not 0 <= step < len(recording.starts):
        return step
    starts = [*recording.starts, 1 << 62]
    gone = finding.position >= 0 and not recording.at(finding.position)  # its lines are, too
    if not gone and not recording.program.lacks(starts[step], starts[step + 1]):
        return step
    lost = finding.symptom == "silent-underflow"
    return -1 if lost or _is_done_again(recording, finding) else step


def _is_done_again(recording: Recording, finding: Any) -> bool:
    """Whether the last step runs the operation of a finding at the same line."""
    rows = (recording.at(at) for at in range(_last_start(recording), recording.end))
    found = (recording.line_at(row.place)[:2] for row in rows if row and row.name == finding.op)
    return (finding.file, finding.line) in found


def _last_start(recording: Recording) -> int:
    """Where the last step that has rows begins."""
    return next((s for s in reversed(recording.starts) if s < recording.end), 0)


def first_of_fault(recording: Recording, step: int, position: int) -> int:
    """The step to begin with for a fault whose origin lies in an earlier step, as in a buffer: that
    earlier step, if all since then is kept; else the step itself."""
    if position < 0 or not 0 <= step < len(recording.starts):
        return step
    begin, starts = recording.step_of(position), [*recording.starts, 1 << 62]
    near = 0 <= begin < step <= begin + MOST_BEFORE
    return begin if near and not recording.program.lacks(starts[begin], starts[step + 1]) else step


def window(recording: Recording, step: int | None = None, begin: int | None = None) -> Window:
    """Segments of a training step: the failing one, else the last; begin: an earlier step from
    which on they are wanted. Raises NotReplayable."""
    program = recording.program
    if program.reason:
        raise NotReplayable(f"the steps were not recorded: {program.reason}")
    if step is None:
        step = len(recording.starts) - 1
        while step and recording.starts[step] >= recording.end:
            step -= 1
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeMismatchError(f"expected the number of a training step, got {step!r}")
    if not 0 <= step < len(recording.starts):
        raise UsageError(f"no step {step}; the watch saw steps 0 to {len(recording.starts) - 1}")
    start = recording.starts[step if begin is None else begin]
    end = recording.starts[step + 1] if step + 1 < len(recording.starts) else 1 << 62
    if program.lacks(start, end):
        raise NotReplayable(
            f"step {step} is no longer kept: the last steps are, and those in which a value first"
            f" turned bad; try keep={len(recording.starts) - step}"
        )
    segments = program.between(start, end)
    if not segments:
        raise NotReplayable("nothing was recorded in that step")
    complete(program, segments)
    for segment in segments:
        follow(segment)
    return Window(recording, step, start, end, segments)
