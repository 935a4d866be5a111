"""A function of the program under ``nanlab.safe.limit``, as patches of the step."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.exact.limits import Wide
from nanlab.operators import OF_NUMBERS
from nanlab.program.edit_text import EditLike, whole_spans
from nanlab.program.expression import (
    last_name,
    lines_of,
    nodes_of,
    parsed,
)
from nanlab.program.functions import Functions, Ran
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get
from nanlab.program.slices import NUDGE, Slice, cut, nudged, widened
from nanlab.program.values import Values
from nanlab.safe.limit import Memory, limited
from nanlab.trace.program import Call, EngineRun, FunctionUse, Look, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

DECORATOR = "@nanlab.safe.limit"
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


def decorated(text: str, edit: EditLike) -> ast.FunctionDef | None:
    """The function that an edit decorates with ``limit``; None where the edit does something
    else."""
    if not edit.text.startswith(DECORATOR + "\n"):
        return None
    functions = (n for n in nodes_of(parsed(text)) if isinstance(n, ast.FunctionDef))
    return next((n for n in functions if n.lineno == edit.first), None)


def under_limit(text: str, line: int) -> Iterator[ast.FunctionDef]:
    """The functions around a line, callers included, that may be called again; the innermost
    first."""
    functions, seen = Functions.of(text), list[ast.FunctionDef]()
    todo = sorted((f for f in functions.all if line in lines_of(f)), key=lambda f: -f.lineno)
    while todo:
        function = todo.pop(0)
        if function in seen:
            continue
        seen.append(function)
        with suppress(NotReplayable):
            functions.behind(function)
            yield function
        todo += functions.callers(function)


def patches_of(
    recording: Recording, values: Values, text: str, file: str, function: ast.FunctionDef
) -> Iterator[tuple[int, int, Any, Patch]]:
    """(segment, index of the last call, result, patch) of each run. Raises NotReplayable."""
    in_file = {n: place[1] for n, place in enumerate(recording.places) if place[0] == file}
    own = [_calls_at(recording, segment, in_file) for segment in values.segments]
    numbers = {recording.at(call.position).place for calls in own for call in calls.values()}
    whole = whole_spans(text)
    spans = {whole.get(span, span) for span in (recording.spans[number] for number in numbers)}
    ran = Ran({in_file[number] for number in numbers}, spans)
    functions, shared = Functions.of(text).behind(function, ran)
    lines = {line for f in functions for line in lines_of(f)}
    alone = lines - {line for f in shared for line in lines_of(f)}
    places = {number for number, line in in_file.items() if line in lines}
    called = (n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call))
    tensors = any(last_name(n.func) in OF_NUMBERS for n in called)
    loops = {line for n in ast.walk(parsed(text)) if isinstance(n, _LOOPS) for line in _lines_in(n)}
    within = (n for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function)
    once = {*lines_of(function)} - {line for n in within for line in lines_of(n)} - loops
    for at, segment in enumerate(values.segments):
        calls = _calls_at(recording, segment, places)
        if any(_turns(values, at, look, calls) for look in segment.looks if look.place in places):
            raise NotReplayable("it decides by a number that is another where it is called again")

        def enter(run: EngineRun, segment: Segment = segment) -> bool:
            return _place_of(recording, segment, run) in places

        runs_of = partial(_one_by_one, recording, values, at, segment, calls, enter)
        for part, own_calls in runs_of(once, lines - loops):
            made = [item for _, _, item in part.items if isinstance(item, Call)]
            if not any(recording.at(call.position).line in alone for call in made):
                continue  # somebody else ran it
            _check(part, own_calls)
            indices = {index for _, index, item in part.items if isinstance(item, Call)}
            runs = [item for _, _, item in part.items if isinstance(item, EngineRun)]
            last = max(indices)
            if any(run.last > last for run in runs):
                raise NotReplayable("it gives a gradient itself")
            gone = indices | _unread(segment, own_calls, indices, part)
            gone |= {index for run in runs for index in range(run.first, run.last)}
            firsts = frozenset(run.first for run in runs)
            out = part.targets[0] if len(part.targets) == 1 else part.targets
            fixed = _made_inside(recording, segment, part, own_calls, tensors)
            run = _under_limit(part, fixed)
            patch = Patch(at, last, frozenset(gone), out, run, runs=firsts)
            yield at, last, part.targets[-1], patch


def _place_of(recording: Recording, segment: Segment, run: EngineRun) -> int:
    """The number of the place that called the engine; -1 where its run made no call."""
    if run.last == run.first:
        return -1
    position = segment.calls[run.first].position
    return max(
        (p for p in recording.passes if p.position <= position), key=lambda p: p.position
    ).line


def _lines_in(node: ast.AST) -> Iterator[int]:
    for each in ast.walk(node):
        if hasattr(each, "lineno"):
            yield each.lineno


def _under_limit(part: Slice, fixed: Set[Ref]) -> Callable[[Get], Any]:
    """The run under ``nanlab.safe.limit``. fixed: operands that it makes of numbers alone."""
    given = [ref for ref in part.operands if ref not in fixed]
    known: Memory = {}

    def run(get: Get) -> Any:
        held = {ref: get(ref) for ref in part.operands if ref in fixed}
        whole = part.function()

        def fn(*values: Any) -> Any:
            # it may write into them, and differentiate with respect to them
            each = {r: t.detach().clone().requires_grad_(t.requires_grad) for r, t in held.items()}
            each |= dict(zip(given, values, strict=True))
            return whole(*(each[ref] for ref in part.operands))

        found = limited(fn, [get(ref) for ref in given], known)
        return found[0] if len(found) == 1 else tuple(found)

    return run


def _made_inside(
    recording: Recording, segment: Segment, part: Slice, own: dict[int, Call], tensors: bool
) -> set[Ref]:
    """The operands of a run that it makes of numbers. tensors: tensors made of Python numbers too,
    which no call shows."""
    created = _created(own)
    found = {ref for ref in part.operands if ref.storage in created}
    if tensors:
        first = min(index for _, index, _ in part.items)
        before = segment.calls[:first]
        seen = {r.storage for call in before for r in (*call.read, *refs_in(call.out))}
        seen |= recording.program.names.keys()
        found |= {ref for ref in part.operands if ref.storage not in seen}
    return found


def _calls_at(recording: Recording, segment: Segment, places: Collection[int]) -> dict[int, Call]:
    windows = [(run.first, run.last) for run in segment.engine]
    found = {}
    for index, call in enumerate(segment.calls):
        op = recording.op(call.position)
        if op is not None and op.place in places:
            if not any(first <= index < last for first, last in windows):
                found[index] = call
    return found


def _runs(
    values: Values,
    at: int,
    segment: Segment,
    own: dict[int, Call],
    enter: Callable[[EngineRun], bool],
) -> Iterator[Slice]:
    """Each run of a function as a slice: from its operands to the results that others read.

    enter: whether a run of the engine belongs to it.
    """
    calls = {id(call) for call in own.values()}

    def outside(call: Call) -> bool:
        return id(call) not in calls

    groups: list[tuple[set[int], list[tuple[int, Ref]]]] = []
    for index, ref in handed_on(segment, own):
        if ref.dtype.is_complex:
            raise NotReplayable("it gives complex numbers, whose limits are not known")
        if not ref.dtype.is_floating_point:
            continue
        items = {i for _, i, _ in cut(values, (ref,), (at, index + 1), outside, enter=enter).items}
        shared = [group for group in groups if group[0] & items]
        for group in shared:
            groups.remove(group)
            items |= group[0]
        outs = [out for group in shared for out in group[1]]
        groups.append((items, [*outs, (index, ref)]))
    for items, outs in (group for group in groups if group[0]):
        refs = tuple(ref for _, ref in sorted(outs, key=lambda out: out[0]))
        yield cut(values, refs, (at, max(items) + 1), outside, enter=enter)


def _turns(values: Values, at: int, look: Look, own: dict[int, Call]) -> bool:
    """Whether a condition in a function turns out otherwise next to its operands."""
    if not isinstance(look.value, bool):
        return False
    calls = {id(call) for call in own.values()}
    part = cut(values, (look.ref,), (at, look.index), lambda call: id(call) not in calls)
    given, function = [widened(x) for x in part.operands.values()], part.function()
    with Wide():
        near = [function(*[nudged(x, way) for x in given])[0] for way in (NUDGE, -NUDGE)]
    return any(bool(each) is not look.value for each in near)


def _unread(segment: Segment, own: dict[int, Call], made: Collection[int], part: Slice) -> set[int]:
    """Calls of a function that read results no longer made, and whose own results nobody outside
    reads. Raises NotReplayable where somebody does."""
    read_outside = {ref.view for _, ref in handed_on(segment, own)}
    known = {ref.view for ref in part.targets}
    gone = {ref.view for i in made for ref in refs_in(own[i].out)} - known
    found: set[int] = set()
    for index, call in own.items():
        if index not in made and any(ref.view in gone for ref in call.read):
            results = {ref.view for ref in refs_in(call.out)}
            if results & read_outside:
                raise NotReplayable("it gives what is no number, too")
            found.add(index)
            gone |= results
    return found


def handed_on(segment: Segment, own: Mapping[int, Call]) -> list[tuple[int, Ref]]:
    """(index, result) of each call whose result other calls of the forward pass read, or the engine
    begins with."""
    made = {ref.view: (i, ref) for i, call in own.items() for ref in refs_in(call.out)}
    windows = [(run.first, run.last) for run in segment.engine]
    read = [(ref, run.first) for run in segment.engine for ref in refs_in(run.roots)]
    for index, call in enumerate(segment.calls):
        if index not in own and not any(low <= index < high for low, high in windows):
            read += ((ref, index) for ref in call.read)
    found = {r.view: made[r.view] for r, at in read if r.view in made and made[r.view][0] < at}
    return list(found.values())


def _one_by_one(
    recording: Recording,
    values: Values,
    at: int,
    segment: Segment,
    own: dict[int, Call],
    enter: Callable[[EngineRun], bool],
    once: Collection[int],
    lines: Collection[int],
) -> Iterator[tuple[Slice, dict[int, Call]]]:
    """Each run of a function, with its calls. Raises NotReplayable where runs in a row differ in
    what they compute.

    lines: in no loop; once: those of them that each run of the function passes at most once.
    """
    keys: dict[int, tuple[int, Any]] = {}
    counted: set[int] = set()
    for index, call in own.items():
        op = recording.at(call.position)
        if op.line in lines:
            keys[index] = op.place, call.func
        if op.line in once:
            counted.add(index)
    for part in _runs(values, at, segment, own, enter):
        indices = sorted(index for _, index, item in part.items if isinstance(item, Call))
        counts = Counter(keys[index] for index in indices if index in keys)
        repeated = any(counts[keys[index]] > 1 for index in counted.intersection(indices))
        if not repeated and min(counts.values(), default=1) == 1:
            yield part, own
            continue
        turns: list[list[int]] = []  # what one run gives the next one reads
        for index in (i for i in sorted(own) if indices[0] <= i <= indices[-1]):
            if not turns or keys.get(index) == keys.get(indices[0]):
                turns.append([])
            turns[-1].append(index)
        alike = {tuple(keys.get(index) for index in turn) for turn in turns}
        if len(alike) > 1 or indices[0] not in keys:
            raise NotReplayable("several runs of the function follow each other")
        for turn in turns:
            calls = {index: own[index] for index in turn}
            for each in _runs(values, at, segment, calls, enter):
                yield each, calls


def _created(own: dict[int, Call]) -> set[int]:
    """The storages that calls make; views and in-place calls make none."""
    makers = (c for c in own.values() if not (c.func.is_view or c.func._schema.is_mutable))
    return {ref.storage for call in makers for ref in refs_in(call.out)}


def _check(part: Slice, own: dict[int, Call]) -> None:
    """Raise NotReplayable where a run does more than compute."""
    created = _created(own)
    for call in own.values():
        if torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ()):
            raise NotReplayable("it draws random numbers, and would be called again")
        written = {ref.storage for ref in refs_in(call.args[:1])}
        if call.func._schema.is_mutable and not written <= created:
            raise NotReplayable("it writes a tensor of others, and would be called again")
    if any(isinstance(item, FunctionUse) for _, _, item in part.items):
        raise NotReplayable("a Function is applied in it")
