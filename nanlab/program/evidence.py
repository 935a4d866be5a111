"""What a step's calls prove when run again: operands, float32 twins, vain updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from nanlab.capture.plans import plan_of, read_by_derivative
from nanlab.errors import NotReplayable
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.program.replay import gradient_runs, results_at, results_of
from nanlab.program.rerun import Memory, Window, operate, rerun, window
from nanlab.stats import StatsTable, summarize
from nanlab.stats.memory import local_part
from nanlab.trace.op import FORWARD, RECOMPUTE, Op
from nanlab.trace.program import Call, Held, Ref, refs_in
from nanlab.trace.recording import GuiltyCall, Kept, Recording, Shadow

# The operands of the calls that made a bad value, by running their step again.

Tensor = torch.Tensor
EACH = 256 << 20  # bytes of the operands of one call
ALL = 512 << 20  # bytes of those of all calls
# Operators whose derivative may be infinite or NaN at finite operands.
_SINGULAR = having("singular")
# How a node names the first and the second operand of its operation.
_NAMES = (("self",), ("other", "exponent"))


def make_operands(recording: Recording, step: int) -> None:
    """Run a step to its last guilty call; all operands go to ``recording.evidence``, or a note."""
    bounds = [*recording.starts, 1 << 62]
    asked = [
        p
        for p in sorted(recording.guilty)
        if bounds[step] <= p < bounds[step + 1] and p not in recording.evidence
    ]
    reason = ""
    try:
        run = _EvidenceRun(window(recording, step), asked)
        if run.asked:
            rerun(run.where.segments, run.after, run.before, run.memory, kept=run.storages)
    except NotReplayable as error:
        reason = str(error)
    except Exception as error:  # an operator that fails in many ways where it did not before
        reason = f"running the step again failed ({type(error).__name__}: {error})"
    for position in asked:
        if position not in recording.evidence:
            recording.evidence[position] = None
            _tell(recording, position, reason)


def _tell(recording: Recording, position: int, reason: str) -> None:
    """Say once for each reason why a guilty call has no operands."""
    op = recording.at(position)
    if not op or op.arrived or any(note.endswith(reason) for note in recording.notes):
        return  # what a collective brought was computed elsewhere
    recording.notes.append(
        f"no cause and no fixes for {op.name} (row {position}), for its operands are not known:"
        f" {reason}"
    )


class _EvidenceRun:
    """One run of a step, that stops at each guilty call."""

    def __init__(self, where: Window, asked: list[int]) -> None:
        self.where, self.recording, self.memory = where, where.recording, Memory()
        self.storages: set[int] = set()
        self.asked: dict[int, GuiltyCall] = {}  # id of a call
        self._saved: dict[int, dict[str, Any]] = {}
        self._given: dict[int, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {}
        self._bytes = sum(_size(k) for k in self.recording.evidence.values() if k is not None)
        for position in asked:
            try:
                at, index, _ = where.find(position)
            except NotReplayable as error:
                self._give_up(position, str(error))
                continue
            call, guilty = where.segments[at].calls[index], self.recording.guilty[position]
            self.asked[id(call)] = guilty
            hidden = _hidden(where, guilty) if guilty.hidden else {}
            self._saved[id(call)] = saved = hidden | guilty.saved
            self.storages |= {ref.storage for ref in refs_in((tuple(saved.values()), guilty.args))}

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call; what a guilty one is given is copied first, for it may be overwritten."""
        if id(call) in self.asked:
            self._take(call)
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> bool:
        """Note what a guilty call made; True after the last of them."""
        guilty = self.asked.get(id(call))
        if guilty is None:
            return False
        if id(call) not in self._given:  # it was not run: its results are leaves
            self._take(call)
        args, kwargs, saved = self._given.pop(id(call))
        results = [local_part(t) for t in results_of(call, out, self.memory)]
        del self.asked[id(call)]
        if not self._as_bad(guilty.position, results):
            self._give_up(guilty.position, "the step gave other numbers when it was run again")
            return not self.asked
        outputs = tuple(t.detach().clone() for t in results)
        plan = None if call.func is None else plan_of(call.func)
        if plan is not None and plan.overwrites and 0 in plan.writes and outputs:
            args = (outputs[0], *args[1:])  # what was there before is no operand
        if "self" not in saved:
            saved = read_by_derivative(guilty.node_name, call.func, args) | saved
        kept = Kept(guilty.position, call.func, args, kwargs, outputs, saved, guilty.node_name)
        size = _size(kept)
        if size <= EACH and self._bytes + size <= ALL:
            self._bytes += size
            self.recording.evidence[guilty.position] = kept
        else:
            self._give_up(guilty.position, f"they fill {size >> 20:,} MiB")
        return not self.asked

    def _give_up(self, position: int, reason: str) -> None:
        self.recording.evidence[position] = None
        _tell(self.recording, position, reason)

    def _take(self, call: Call) -> None:
        """Copy what a call is given and its node had saved; one copy of each tensor."""
        args = self.asked[id(call)].args or call.args
        parts, form = tree_flatten((args, call.kwargs, self._saved[id(call)]))
        copies: dict[Any, Tensor] = {}
        for at, part in enumerate(parts):
            if part.__class__ is Ref or part.__class__ is Held:
                key = part if part.__class__ is Ref else id(part)
                if key not in copies:
                    copies[key] = local_part(self.memory.tensor(part)).detach().clone()
                parts[at] = copies[key]
        self._given[id(call)] = tree_unflatten(parts, form)

    def _as_bad(self, position: int, results: list[Tensor]) -> bool:
        """Whether the results have as many NaN and infinities as the recorded ones."""
        for i, result in enumerate(results):
            known = self.recording.stats(position + i)
            if known is not None and known.known:
                now = summarize(result)
                if (now.nan, now.posinf, now.neginf) != (known.nan, known.posinf, known.neginf):
                    return False
        return True


def _size(kept: Kept) -> int:
    parts = tree_leaves((kept.args, kept.outputs, kept.saved))
    return sum(t.numel() * t.itemsize for t in parts if isinstance(t, Tensor))


# -- what activation checkpointing computed again, for nodes that do not show what they had saved


def _hidden(where: Window, guilty: GuiltyCall) -> dict[str, Any]:
    """Tensors that a node had saved behind a hook, by name, as far as a replay made them."""
    recording = where.recording
    info = recording.nodes.get(recording.at(guilty.position).node)
    if info is None or info.op < 0 or recording.ops.items[info.op].rstrip("_") not in _SINGULAR:
        return {}
    for again, call in _again(where, guilty.position):
        if (again.place, again.name) != (info.line, recording.ops.items[info.op]):
            continue
        if not _same(recording, again.call, info.position):
            continue
        names = [argument.name for argument in call.func._schema.arguments]
        found = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
        returns = [result.name for result in call.func._schema.returns]
        results = call.out if call.out.__class__ is tuple else (call.out,)
        returns = ["result"] if len(results) == 1 else returns
        found |= dict(zip(returns, results, strict=False))
        return {name: value for name, value in found.items() if name in guilty.hidden}
    found = {}
    for source, slot in recording.operands(info.position):
        names = [name for name in _NAMES[slot] if name in guilty.hidden] if slot < 2 else []
        ref = _made_again(where, guilty.position, source) if names else None
        if ref is not None:
            found[names[0]] = ref
    return found


def _again(where: Window, end: int) -> Iterator[tuple[Op, Call]]:
    """The recomputed calls of a step up to a position, the latest first."""
    for segment in reversed(where.segments):
        for call in reversed(segment.calls):
            op = where.recording.at(call.position)
            if call.position < end and op.phase == RECOMPUTE and call.func is not None:
                yield op, call


def _made_again(where: Window, end: int, source: int) -> Any:
    """A Ref to the recomputed result of a row of the forward pass."""
    row = where.recording.at(source)
    for again, call in _again(where, end) if row else ():
        if (again.place, again.name) == (row.place, row.name):
            results = list(refs_in(call.out))
            if row.output < len(results):
                same = _same(where.recording, again.call + row.output, source)
                return results[row.output] if same else None
    return None


def _same(recording: Recording, again: int, before: int) -> bool:
    """Whether two rows hold the same numbers, as far as their statistics tell."""
    stats = recording.stats(before)
    return stats is not None and recording.stats(again) == stats


# Each half-precision operation of the kept steps once more in float32, from the same operands:
# what the narrow format lost.

HALF = (torch.float16, torch.bfloat16)


def make_twins(recording: Recording) -> dict[int, Shadow]:
    """The float32 twin of each half-precision result of the steps that are at hand, by row.

    The twin of one operation starts from the operands as they are in half precision, so it shows
    the loss of that operation alone; a cast's twin is what was cast. Random operations, views and
    what torch cannot run in float32 have no twin. A step that cannot be run again has none from
    there on, and a note.
    """
    found: dict[int, Shadow] = {}
    if not any(dtype in HALF for dtype in recording.dtypes.items):
        return found
    for step in range(len(recording.starts)):
        if step < len(recording.folded) and step not in recording.whole:
            continue
        try:
            run = _TwinRun(window(recording, step), found)
            if run.where.segments and run.has_halves():
                rerun(run.where.segments, run.after, run.before, run.memory)
        except NotReplayable as error:
            _note_twins(recording, step, str(error))
        except Exception as error:  # an operator that fails in many ways
            _note_twins(
                recording, step, f"running it again failed ({type(error).__name__}: {error})"
            )
    return found


def _note_twins(recording: Recording, step: int, reason: str) -> None:
    if recording.shadowed and not any(note.endswith(reason) for note in recording.notes):
        recording.notes.append(f"not all float32 twins of step {step} are known: {reason}")


class _TwinRun:
    """One run of a step, with the twins of what it makes."""

    def __init__(self, where: Window, found: dict[int, Shadow]) -> None:
        self.where, self.found, self.memory = where, found, Memory()
        self.table = StatsTable()
        self._twins: list[Tensor] | None = None

    def has_halves(self) -> bool:
        """Whether some call of the step reads or makes half precision."""
        return any(
            ref.dtype in HALF
            for segment in self.where.segments
            for call in segment.calls
            for ref in refs_in((call.args, call.out))
        )

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the twins of a call's results, then run it."""
        inside = self.where.start <= call.position < self.where.end
        self._twins = _twins(call.func, args, kwargs) if inside else None
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> None:
        """Compare the results of a call with their twins."""
        twins, self._twins = self._twins, None
        if not twins:
            return
        targets = results_of(call, out, self.memory)
        if len(targets) != len(twins):
            return
        for i, (target, twin) in enumerate(zip(targets, twins, strict=True)):
            if target.dtype in HALF and twin.dtype == torch.float32 and twin.shape == target.shape:
                self.found[call.position + i] = self._compared(target.float(), twin)

    def _compared(self, wide: Tensor, twin: Tensor) -> Shadow:
        flushed = int(((wide == 0) & (twin != 0)).sum())
        overflowed = int((~torch.isfinite(wide) & torch.isfinite(twin)).sum())
        sound = torch.isfinite(wide) & torch.isfinite(twin) & (twin != 0)
        error = torch.where(sound, (wide - twin).abs() / twin.abs(), torch.zeros_like(twin))
        worst = float(error.max()) if error.numel() else 0.0
        return Shadow(self.table, self.table.add(twin), flushed, overflowed, worst)


def _twins(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Mapping[int, Tensor] | None = None,
) -> list[Tensor] | None:
    """The twins of an operation's results; None where it has none.

    known: twins of operands, by identity. With them the results show the errors of the whole path.
    """
    plan = plan_of(func)
    if (
        plan.uninitialised
        or (not known and (plan.view or plan.copies))
        or torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        # it may write what its schema does not tell, or talk to other processes
        or func.namespace != "aten"
    ):
        return None
    named = known or any(v in HALF for v in kwargs.values() if isinstance(v, torch.dtype))
    if not named and not any(t.dtype in HALF for t in _tensors(args)):
        return None
    try:
        copies = _copies_of_written(func, plan, args, kwargs) | {
            key: twin if plan.plain else twin.clone() for key, twin in (known or {}).items()
        }
        wide_args, wide_kwargs = upcast(tuple(args), copies), upcast(kwargs, copies)
        result = operate(func, wide_args, wide_kwargs)
    except Exception:
        return None
    if plan.writes:
        return [t for w in plan.writes if isinstance(w, int) for t in _tensors(wide_args[w])]
    return _tensors(result)


@dataclass(frozen=True, slots=True)
class Zeros:
    """Elements of a result that are 0 only because a value overflowed in half precision."""

    position: int
    count: int
    numel: int
    largest: float  # magnitude among them without the overflow


# of the largest magnitude: a smaller element that is 0 is no loss in half precision
_TOLD = 2.0**-10


def zeros_of_overflow(recording: Recording, overflow: int, quotient: int) -> Zeros | None:
    """The zeros that an overflow made, from a quotient on; None where they are harmless, or where
    the step cannot be run again.

    They are harmless where float32 gives zeros too, or numbers so small that half precision would
    flush them or lose them beside the others, as in a sigmoid written out.
    """
    try:
        run = _WideRun(window(recording, recording.step_of(overflow)), overflow, quotient)
        rerun(run.where.segments, run.after, run.before, run.memory)
    except Exception:  # an operator that fails in many ways
        return None
    return run.found


class _WideRun:
    """One run of a step in which all that follows from a row has a float32 twin as well."""

    def __init__(self, where: Window, start: int, quotient: int) -> None:
        self.where, self.memory = where, Memory()
        self.found: Zeros | None = None
        self._start, self._quotient = start, quotient
        self._least = format_of(where.recording.at(start).dtype).smallest_normal
        self._wide: dict[tuple[Any, ...], Tensor] = {}
        self._twins: list[Tensor] | None = None

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the twins of a call's results, then run it."""
        self._twins = None
        if call.func is not None and call.position >= self._start:
            pairs = zip(tree_leaves(list(call.args)), tree_leaves(list(args)), strict=True)
            known = {
                id(part): self._wide[ref.view]
                for ref, part in pairs
                if ref.__class__ is Ref and ref.view in self._wide
            }
            if known or call.position == self._start:
                self._twins = _twins(call.func, args, kwargs, known)
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> bool:
        """Note the twins; True once zeros were found that are none there."""
        refs, twins, self._twins = list(refs_in(call.out)), self._twins, None
        for ref in refs:
            self._wide.pop(ref.view, None)
        targets = results_of(call, out, self.memory) if twins else []
        if not twins or not len(targets) == len(twins) == len(refs):
            return False
        self._wide |= {ref.view: twin for ref, twin in zip(refs, twins, strict=True)}
        row = self.where.recording.at(call.position)
        if call.position < self._quotient or row.phase != FORWARD or row.node < 0:
            return False
        for target, twin in zip(targets, twins, strict=True):
            if self.found is None and target.is_floating_point() and target.shape == twin.shape:
                self.found = self._zeros(call.position, target, twin.abs())
        return self.found is not None

    def _zeros(self, position: int, target: Tensor, twin: Tensor) -> Zeros | None:
        if not target.numel() or not bool(torch.isfinite(twin).all()):
            return None
        least = max(self._least, _TOLD * float(twin.max()))
        lost = twin[(target == 0) & (twin >= least)]
        return Zeros(position, len(lost), target.numel(), float(lost.max())) if len(lost) else None


def result_and_twin(
    recording: Recording, position: int, log2_scale: int = 0
) -> tuple[Tensor, Tensor | None]:
    """The tensor of a row, made again, and its float32 twin where it has one.

    log2_scale: the loss is multiplied by 2**log2_scale before backward. Raises NotReplayable.
    """
    where = window(recording, recording.step_of(position))
    at, index, _ = where.find(position)
    target = where.segments[at].calls[index]
    begins = _beginnings(where, at, index) if log2_scale else frozenset[int]()
    twins: list[Tensor] | None = None

    def run(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal twins
        if call.position == target.position and call.func is target.func:
            twins = _twins(call.func, args, kwargs)
        out = operate(call.func, args, kwargs)
        if call.position in begins and isinstance(out, Tensor):
            out *= 2.0**log2_scale
        return out

    found, output = results_at(where, position, run)
    result = found[output]
    twin = twins[output] if twins is not None and len(twins) == len(found) else None
    fits = twin is not None and twin.dtype == torch.float32 and twin.shape == result.shape
    return result, twin if fits and result.dtype in HALF else None


def _beginnings(where: Window, at: int, index: int) -> frozenset[int]:
    """Positions of the ones with which backward began, in the run of the engine that holds a call
    and in runs before it that add to the same gradients.

    Raises NotReplayable where a factor on the loss does not reach the call in this way.
    """
    runs = gradient_runs(where)
    if not any(segment == at and run.first <= index < run.last for segment, run in runs):
        raise NotReplayable("no backward pass of the loss made this gradient")
    updates = [
        (segment, run.last)
        for segment, each in enumerate(where.segments)
        for run in each.optimizers
        if run.first < run.last and (segment, run.last) <= (at, index)
    ]
    found: set[int] = set()
    for segment, run in runs:
        if not max(updates, default=(0, 0)) <= (segment, run.first) <= (at, index):
            continue
        roots = {ref.storage for ref in refs_in(run.roots)}
        calls = where.segments[segment].calls
        ones = [
            calls[i]
            for i in range(max(0, run.first - len(run.roots)), run.first)
            if getattr(calls[i].func, "_opname", "") == "ones_like"
            and any(ref.storage in roots for ref in refs_in(calls[i].args))
        ]
        if len(ones) < len(run.roots):
            raise NotReplayable("backward was given the gradient that it began with")
        found.update(call.position for call in ones)
    return frozenset(found)


def upcast(value: Any, copies: dict[int, Tensor]) -> Any:
    """The value with half precision in float32, by the ``copies``; one per tensor."""

    def wide(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return torch.float32 if part in HALF else part
        if id(part) not in copies and part.dtype in HALF:
            copies[id(part)] = part.float()
        return copies.get(id(part), part)

    return tree_map_only((Tensor, torch.dtype), wide, value)


def _tensors(value: Any) -> list[Tensor]:
    return [v for v in tree_leaves(value) if isinstance(v, Tensor)]


def _copies_of_written(func: Any, plan: Any, args: Any, kwargs: Any) -> dict[int, Tensor]:
    """A copy, by identity, of each wider tensor that the operation will write."""
    copies: dict[int, Tensor] = {}
    if plan.plain:
        return copies
    names = [argument.name for argument in func._schema.arguments]
    for where in (*plan.writes, *plan.hidden):
        at = names.index(where) if isinstance(where, str) else where
        for tensor in _tensors(args[at] if at < len(args) else kwargs.get(names[at])):
            if tensor.dtype not in HALF:
                copies[id(tensor)] = tensor.clone()
    return copies


# The latest update of a parameter that changed none of its elements, by running its step again.

LARGEST = 1 << 20  # elements of the largest parameter that is looked at
STEPS = 3  # that are looked at, the latest


def latest_absorbed_update(recording: Recording, owner: int, op: str) -> Kept | None:
    """The operands of a recent update by ``op`` that changed nothing; None where each recent one
    moved the parameter, or none can be run again. Of a call on lists, this parameter's operands.

    owner: number of the parameter or buffer.
    """
    name = recording.parameter_names[owner]
    storages = {s for s, named in recording.program.names.items() if named == name}
    for step in range(len(recording.starts) - 1, max(len(recording.starts) - 1 - STEPS, -1), -1):
        try:
            where = window(recording, step)
            run = _UpdateRun(storages, op)
            if any(run.writes(c) >= 0 for s in where.segments for c in s.calls):
                rerun(where.segments, run.after, run.before, run.memory)
        except NotReplayable:
            continue
        except Exception:  # an operator that fails in many ways where it did not before
            continue
        if run.found is not None:
            return run.found
    return None


class _UpdateRun:
    """One run of a step, which ends at the first update without effect."""

    def __init__(self, storages: set[int], op: str) -> None:
        self.memory = Memory()
        self.found: Kept | None = None
        self._storages, self._op = storages, op
        self._taken: Kept | None = None

    def writes(self, call: Call) -> int:
        """Which member of the lists of a call is the parameter that it updates; -1: none is."""
        if call.func is None or call.func.overloadpacket.__name__ != self._op or not call.args:
            return -1
        first = call.args[0]
        targets = enumerate(first if first.__class__ in (list, tuple) else (first,))
        return next((i for i, ref in targets if self._is_own(ref)), -1)

    def _is_own(self, ref: Any) -> bool:
        return ref.__class__ is Ref and ref.storage in self._storages

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Copy the operands of an update, and run it."""
        self._taken, which = None, self.writes(call)
        if which >= 0:
            one = tuple(_member(a, which) for a in args)
            names = {k: _member(v, which) for k, v in kwargs.items()}
            if _target(one).numel() <= LARGEST:
                self._taken = Kept(call.position, call.func, one, names, (), {})
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> bool:
        """Whether the update changed nothing: then it is the one that is wanted."""
        if self._taken is None:
            return False
        which = self.writes(call)
        target = call.args[0] if call.args[0].__class__ is Ref else call.args[0][which]
        if torch.equal(local_part(self.memory.tensor(target)), _target(self._taken.args)):
            self.found = self._taken
        return self.found is not None


def _target(args: tuple[Any, ...]) -> Tensor:
    return args[0][0] if isinstance(args[0], list) else args[0]  # type: ignore[no-any-return]


def _member(value: Any, which: int) -> Any:
    """A copy of an argument; of a list over parameters, only one parameter's."""
    if isinstance(value, (list, tuple)) and which < len(value):
        return [_member(value[which], 0)]
    return local_part(value).detach().clone() if isinstance(value, Tensor) else value
