"""An edit of the source as patches of the step: its text is compiled and run."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.exact.numbers import count_work
from nanlab.operators import having
from nanlab.program.callee import (
    Run,
    enters_library,
    known_in,
    makers_of,
    meant,
    packages_of,
    run_with,
    runs_of,
    settings_between,
    with_settings,
)
from nanlab.program.dtype_changes import check_dtypes_asked, conversions, created
from nanlab.program.edit_text import (
    EditLike,
    PartOfStatement,
    both_forms,
    called_in_float32,
    changed_arguments,
    differences_between,
    function_around,
    joined,
    leaves_autocast,
    lifted_out,
    name_given,
    named_parts,
    number_changed,
    occurring_in,
    outward_of,
    statement_around,
    statements_with,
    unwrapped,
    whole_expressions,
    whole_spans,
    with_makers,
)
from nanlab.program.expression import (
    Bound,
    Code,
    Dual,
    Expression,
    Made,
    Mapped,
    all_but_last,
    autocast,
    by_sides,
    inside,
    key_of,
    lines_of,
    names_in,
    nodes_of,
    parsed,
    postorder,
    replaced,
    sides_taken,
    span_of,
    stored_in,
    transformed,
)
from nanlab.program.imports import Rows, computing
from nanlab.program.limited import decorated, handed_on, patches_of
from nanlab.program.patched import patching
from nanlab.program.readings import Readings, device_of, text_of
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get, operate
from nanlab.program.terms import added_by, left_out
from nanlab.program.values import BySegment, Values
from nanlab.trace.chunk import Span
from nanlab.trace.mode import DispatchMode
from nanlab.trace.op import Op, is_installed
from nanlab.trace.program import Call, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor


HALF = (torch.float16, torch.bfloat16)
_HANDED = "other functions read the value that the edit names anew"
CHANGES_NOTHING = "the edit changes nothing that the step computed"  # why one is not tried
NOT_FOUND = "the replay has no operation that the edit changes"
MOST_HANDED = 2  # functions through which a value goes on
MOST_AROUND = 4  # expressions around a part of a line that are tried in its place
_SUMS = having("matmul") | having("layer")


_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Region:
    """One run of an expression that an edit rewrites."""

    segment: int
    outer: tuple[int, Any]  # index of the call that gave the whole line its value, and that value


_Found = tuple[Region, Patch]  # what a patch rewrites, and the patch
_LibraryRun = tuple[int, Run, Sequence[Made]]  # its segment, and the calls of its expression


@dataclass(frozen=True)
class Edited:
    """An edit as it changes the step."""

    patches: list[Patch]
    regions: list[Region]


def apply(
    recording: Recording,
    segments: Sequence[Segment],
    edits: Sequence[EditLike],
    values: Values | None = None,
) -> Edited:
    """The patches of these edits. Raises NotReplayable, with the reason, for one that cannot be
    tried.

    values: of the step's calls, as far as earlier edits have asked; kept there.
    """
    values = Values(segments) if values is None else values
    edits = computing(edits, partial(text_of, recording))
    texts = {edit: text_of(recording, edit.file) for edit in edits}
    several = len(edits) > 1
    named = {edit: named_parts(text, edit) if several else {} for edit, text in texts.items()}
    started = {edit: number_changed(text, edit) for edit, text in texts.items()}
    parts = {name: part for each in named.values() for name, part in each.items()}
    numbers = {name: pair for each in started.values() for name, pair in each.items()}
    found: list[_Found] = []
    for edit in edits:
        if is_installed(edit.file):
            try:  # by the values that the package's line computed with
                found += _Rewrite(recording, edit, values, {}, {}).found()
            except NotReplayable:
                found += _in_package(recording, values, edit)
            continue
        if several and started[edit]:
            continue  # the others compute with the number
        if named[edit] and _only_names(texts[edit], edit, named[edit]):
            continue  # the rest computes what it did
        if (function := decorated(texts[edit], edit)) is not None:
            runs = [*patches_of(recording, values, texts[edit], edit.file, function)]
            if not runs:
                raise NotReplayable(NOT_FOUND)
            found += [(Region(at, (last, out)), patch) for at, last, out, patch in runs]
            continue
        found += _Rewrite(recording, edit, values, parts, numbers).found()
    patches = [patch for _, patch in found]
    taken: set[tuple[int, int]] = set()
    for patch in patches:
        own = {(patch.segment, i) for i in patch.skipped}
        if own & taken:
            raise NotReplayable("two of the edits rewrite the same call")
        taken |= own
    check_dtypes_asked(recording, values, edits, patches)
    patches += conversions(recording, segments, edits, taken)
    patches += created(recording, values, edits, taken)
    return Edited(patches, [region for region, _ in found])


def _in_package(recording: Recording, values: Values, edit: EditLike) -> Iterator[_Found]:
    """The program's calls that led into edited lines of a package, made again with the package
    patched. Raises NotReplayable."""
    check_trusted(recording)
    context, lines = patching(edit), range(edit.first, edit.last + 1)
    places = recording.places
    inner = {n for n, place in enumerate(places) if place[0] == edit.file and place[1] in lines}
    led: dict[int, None] = {}
    for segment in values.segments:
        for index, call in enumerate(segment.calls):
            op = recording.op(call.position)
            within = any(run.first <= index < run.last for run in segment.engine)
            if op is not None and op.site in inner and op.place not in inner and not within:
                led[op.place] = None
    for number in led:
        file, line, _ = places[number]
        row = text_of(recording, file).splitlines()[line - 1 : line]
        same = Rows(file, line, line, "".join(row))
        rewrite, span = _Rewrite(recording, same, values, {}, {}), recording.spans[number]
        yield from rewrite.made_again(span, context)
    if not led:
        raise NotReplayable(NOT_FOUND)


def check_trusted(recording: Recording) -> None:
    """Raise NotReplayable where text of the recording may not be run: that of a file."""
    if not recording.trusted:
        raise NotReplayable(
            "it would run source text of the file that was loaded; try nanlab.load(path,"
            " trusted=True)"
        )


class _Rewrite:
    """One edit: the statements it replaces, the new ones, and the patches that apply it."""

    def __init__(
        self,
        recording: Recording,
        edit: EditLike,
        shared: Values,
        named: dict[str, tuple[ast.expr, int]],
        started: dict[str, tuple[Any, Any]],
    ) -> None:
        """named: parts that other edits name; started: what numbers they make of numbers."""
        self.recording, self.segments, self.started = recording, shared.segments, started
        check_trusted(recording)
        self.readings = Readings(recording, shared, edit.file, edit.first)
        self.text, self.made = self.readings.text, self.readings.made
        if not self.text:
            raise NotReplayable(f"the source of {edit.file} is not at hand")
        self.packages = packages_of(recording)
        try:
            self.old, new = both_forms(self.text, edit)
        except PartOfStatement:
            self.old, new = statement_around(self.text, edit)
        except SyntaxError as error:
            raise NotReplayable(f"the edit is no Python ({error.msg})") from None
        self.readings.statements, self.readings.named = self.old, named
        self.contexts, new = unwrapped(new)
        extra = len(new) - len(self.old)
        if extra < 0:
            raise NotReplayable("the edit removes a statement")
        self.behind: list[ast.stmt] = []  # statements put behind, where those in the place stay
        if extra and [key_of(s) for s in new[:-extra]] == [key_of(s) for s in self.old]:
            new, self.behind, extra = new[:-extra], new[-extra:], 0
        self.before, self.new = new[:extra], new[extra:]  # statements put before, and in the place
        added = self.contexts or self.before or self.behind
        if added and any(isinstance(was, _DEFINITIONS) for was in self.old):
            raise NotReplayable("what stands around a function of one line does not run with it")

    def found(self) -> list[_Found]:
        """The runs that it rewrites, and the patches of each."""
        inner = {n.arg for s in self.old for n in ast.walk(s) if isinstance(n, ast.arg)}
        loops = (c for s in self.old for c in ast.walk(s) if isinstance(c, ast.comprehension))
        inner |= names_in(*(loop.target for loop in loops))
        for statement in self.before:
            names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
            read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
            if read & inner:
                raise NotReplayable(
                    f"{sorted(read & inner)[0]} has no value where the edit reads it"
                )
        if self.behind:
            return list(self._parts_renamed())
        match self.old, self.new:
            case [was], [ast.If(test=test, body=[now], orelse=[])] if key_of(was) == key_of(now):
                return self._left_out(was, test)
        found: list[_Found] = []
        changed = False
        for was, now in zip(self.old, self.new, strict=True):
            made = self.made(span_of(was))
            spans = {each.span for _, group in made for each in group}
            sides = sides_taken(was, spans)
            was, now = by_sides(was, sides), by_sides(now, sides)
            pairs = list(differences_between(was, now, spans))
            if self.contexts and isinstance(getattr(was, "value", None), ast.expr):
                pairs = [(was.value, now.value)]
            changed = changed or bool(pairs)
            for old, new in pairs:
                found += self._rewritten(made, was, now, old, new)
        if not changed and self.before:
            if len(self.old) == 1:
                (was,), (now,) = self.old, self.new
                found = self._given_anew(was) or self._called(was, now, None, None)
            found = found or list(self._renamed())
        if not found:
            raise NotReplayable(NOT_FOUND if changed or self.before else CHANGES_NOTHING)
        return found

    # -- rewritten expressions

    def _rewritten(
        self, made: BySegment, was: ast.stmt, now: ast.stmt, old: ast.expr, new: ast.expr
    ) -> list[_Found]:
        """Patches for a part of a statement in a new form, by the first way that works."""
        try:
            found = list(self._regions(made, old, new))
        except NotReplayable:
            leaves = leaves_autocast(self.contexts)
            known = not self.before and (not self.contexts or leaves)
            found = self._apart(made, old, new)
            if not found and known:
                found = list(self._wrapped(made, was, old, new))
            found = found or self._called(was, now, old, new)
            if not found and known:
                found = [*(self._in_float32 if leaves else self._fed)(made, old, new)]
            found = found or self._around(made, was, now, old, new)
            found = found or self._by_name(was, old, new)
            if not found:
                raise
        if not found and not self.before and not self.contexts:
            found = list(self._wrapped(made, was, old, new))
        if not found and isinstance(was, ast.AugAssign) and isinstance(now, ast.AugAssign):
            if old is was.value and type(was.op) is type(now.op):  # by a number of the program
                found = list(self._regions(made, joined(was), joined(now)))
        return found or self._set(was, old, new) or self._made_of(was, now)

    def _code(self, new: ast.expr, used: Iterable[str], computed: Collection[str] = ()) -> Code:
        """New code with all statements before it and contexts around it that the edit adds."""
        return Code(new, used, self.readings.names, self.before, self.contexts, computed)

    def _regions(self, made: BySegment, old: ast.expr, new: ast.expr) -> Iterator[_Found]:
        span = span_of(old)
        cut = {key_of(whole) for whole in whole_expressions((*self.before, new))}
        if isinstance(old, ast.Call) and key_of(old) in cut:
            yield from self._without_last(made, old, new)
            return
        if isinstance(old, ast.BinOp) and hasattr(old, "statement"):
            span = span_of(old.statement)
        for at, group in made:
            own = [each for each in group if inside(each.span, span)]
            if own:
                expression, runs = self.readings.bound(old, span, own, at)
                for bound in runs:
                    yield self._region(at, bound, expression, new, cut, group)

    def _without_last(self, made: BySegment, call: ast.Call, new: ast.expr) -> Iterator[_Found]:
        """The call of a Sequential whose last layer is written otherwise."""
        key = key_of(all_but_last(call))
        code = self._code(new, [key])
        code.check()
        for at, group in made:
            for last in self.readings.last_layers(group, span_of(call)):
                out, given = last.call.out, next(refs_in(last.call.args))
                region = Region(at, _outermost(last.index, out, span_of(call), group))
                skipped = frozenset({last.index})
                yield region, Patch(at, last.index, skipped, out, _over(code, key, given))

    def _region(
        self,
        at: int,
        bound: Bound,
        expression: Expression,
        new: ast.expr,
        cut: Collection[str],
        around: Sequence[Made],
    ) -> _Found:
        """Patch a run of an expression. cut: keys of Sequential calls without the last layer."""
        values = dict(bound.parts)
        for key, (was, is_now) in self.started.items():
            if type(values.get(key)) is type(was) and values[key] == was:
                values[key] = is_now
        own = self._drawn(bound, expression, values, around)
        for node in ast.walk(expression.node):
            if isinstance(node, ast.Call) and key_of(node) in cut & bound.parts.keys():
                given = self.readings.given_to_last_layer(node, node.lineno, at, bound.calls[0])
                values[key_of(all_but_last(node))] = given
        computed = own.keys() - bound.parts.keys()
        used = occurring_in(values, new, self.before, computed)
        code = self._code(new, used, computed)
        if code.free:
            for path in code.free:
                elsewhere = self.readings.elsewhere(path, at, bound.calls)
                values[key_of(path)] = self._transformed(path, elsewhere, bound)
            used += map(key_of, code.free)
            code = self._code(new, used, computed)
        needed = {i for key in used for i in own.get(key, ())}
        skipped = frozenset(set(bound.calls) - needed)
        _check_skipped(each.call for each in around if each.index in skipped)

        def run(get: Get) -> Any:
            given = {
                key: part.of(get) if isinstance(part := values[key], Dual | Mapped) else get(part)
                for key in used
            }
            with autocast(expression.device, bound.cast), _Bounded():
                made = transformed(code, given)
            if bound.tangent is None:
                return made
            if not isinstance(made, Dual):
                return made, torch.zeros_like(made).expand(bound.tangent.size)
            return made.value, made.tangent

        region = Region(at, _outermost(bound.calls[-1], bound.out, expression.span, around))
        out = bound.out if bound.tangent is None else (bound.out, bound.tangent)
        return region, Patch(at, bound.calls[-1], skipped, out, run)

    def _drawn(
        self, bound: Bound, expression: Expression, values: dict[str, Any], around: Sequence[Made]
    ) -> dict[str, set[int]]:
        """The parts that draw random numbers, each with its calls: their recorded values are
        reused, and all else is computed anew."""
        own: dict[str, set[int]] = {}
        calls = [each for each in around if each.index in bound.calls]
        drawn = {each.index for each in calls if _is_drawn(each.call)}
        if not drawn:
            return own
        for node in ast.walk(expression.node):
            if not isinstance(node, ast.expr) or key_of(node) in values:
                continue
            within = {each.index for each in calls if inside(each.span, span_of(node))}
            results = [each.call.out for each in calls if each.span == span_of(node)]
            if results and within & drawn and len(outs := list(refs_in(results[-1]))) == 1:
                values[key_of(node)], own[key_of(node)] = outs[0], within
        whole = key_of(expression.node)
        if whole not in own:
            values[whole], own[whole] = bound.out, set(bound.calls)
        return own

    def _transformed(self, path: ast.expr, value: Any, bound: Bound) -> Any:
        """A value from another line as the expression sees it in a transform: split over samples
        under vmap. Raises NotReplayable where it may have a tangent."""
        if value.__class__ is not Ref:
            return value
        if bound.tangent is not None and value.storage not in self.recording.program.names:
            raise NotReplayable(f"the derivative of {ast.unparse(path)} is not known at this line")
        # the first dimensions are vmap's; were it whole, the trial would see other values
        maps = bound.maps
        batched = maps and value.size[:maps] == bound.out.size[:maps]
        return Mapped(value, (0,) * maps) if batched else value

    def _apart(self, made: BySegment, old: ast.expr, new: ast.expr) -> list[_Found]:
        """Patches for several parts of an expression; nothing where a part cannot be patched."""
        pairs = lifted_out(old, new, {m.span for _, group in made for m in group}, apart=True)
        with suppress(NotReplayable):
            found = [self._regions(made, *pair) for pair in pairs]
            return [each for of in found for each in of] if len(pairs) > 1 else []
        return []

    def _around(
        self, made: BySegment, was: ast.stmt, now: ast.stmt, old: ast.expr, new: ast.expr
    ) -> list[_Found]:
        """Patches for a larger expression around a part of unknown value; nothing: none works."""
        for pair in itertools.islice(outward_of(was, now, old, new), 1, MOST_AROUND):
            with suppress(NotReplayable):
                return list(self._regions(made, *pair))
        return []

    def _by_name(self, was: ast.stmt, old: ast.expr, new: ast.expr) -> list[_Found]:
        """Patches for a value that a function assigns to a name, where others read it by that name;
        nothing where nobody does."""
        match was:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is old:
                given = ast.Name(name, ast.Load())
            case _:
                return []
        found: list[_Found] = []
        for at, segment in enumerate(self.segments):
            for ref in next(self.readings.read(given, at), ()):
                calls = ((i, c.out) for i, c in enumerate(segment.calls) if c.out.__class__ is Ref)
                made = [i for i, out in calls if ref.__class__ is Ref and out.view == ref.view]
                with suppress(NotReplayable):
                    if len(made) == 1:  # and written by nothing
                        found.append(self._written_anew(at, made[0], new))
        return found

    def _written_anew(self, at: int, index: int, new: ast.expr) -> _Found:
        """The result of a call, by new code that shares no part with the call."""
        call = self.segments[at].calls[index]
        paths = self._code(new, ()).free
        values = {key_of(path): self.readings.elsewhere(path, at, [index]) for path in paths}
        code = self._code(new, values)
        code.check()
        if call.func.is_view or not call.grad:
            raise NotReplayable("the result is a view, or of no gradient")
        _check_skipped([call])

        def run(get: Get) -> Any:
            with _Bounded():
                return code({key: get(value) for key, value in values.items()})

        return Region(at, (index, call.out)), Patch(at, index, frozenset({index}), call.out, run)

    # -- calls into a library, made again

    def _called(
        self, was: ast.stmt, now: ast.stmt, old: ast.expr | None, new: ast.expr | None
    ) -> list[_Found]:
        """Patches that make a call into a library with new code; nothing where it cannot be made
        again.

        old, new: the parts in which the statements differ; None where they do not.
        """
        pairs = [*outward_of(was, now, old, new)]
        makers = makers_of(was, self.text, self.packages)
        if makers:  # what they make is gone when the step is over
            pairs += [(with_makers(a, makers), with_makers(b, makers)) for a, b in pairs]
        if found := self._made_of(was, now):
            return found
        for a, b in pairs:
            if enters_library(a, self.text, self.packages):
                with suppress(NotReplayable):
                    if found := self._anew(a, b, makers):
                        return found
        return []

    def _anew(self, a: ast.expr, b: ast.expr, makers: Mapping[str, ast.Call]) -> list[_Found]:
        """The runs of a call into a library, written anew. Raises NotReplayable."""
        found = []
        for at, run, group in self._runs(a, makers):
            names = known_in(self.text)
            code = Code(b, run.parts, names, self.before, self.contexts)
            if code.free:
                others = {
                    key_of(path): self.readings.elsewhere(path, at, run.calls) for path in code.free
                }
                run = replace(run, parts={**run.parts, **others})
                code = Code(b, run.parts, names, self.before, self.contexts)
            found.append(self._made_anew(at, run, code, span_of(a), group))
        return found

    def _made_of(self, was: ast.stmt, now: ast.stmt) -> list[_Found]:
        """Patches for an object of a library that is made otherwise: its methods' results change.
        Nothing where some reader of it cannot be made again."""
        match was, now:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as maker), ast.Assign():
                path, new = ast.Name(name, ast.Load()), now.value
            case _:
                return []
        kinds = meant(maker.func, self.text, self.packages)
        if not isinstance(new, ast.Call) or self.before or self.contexts:
            return []
        if not any(isinstance(kind, type) and not issubclass(kind, Tensor) for kind in kinds):
            return []
        around, found = function_around(self.text, was.lineno), list[_Found]()
        reads = [n for n in ast.walk(around) if isinstance(n, ast.Name) and n.id == name]
        every = (s for s in nodes_of(around) if isinstance(s, ast.stmt) and not hasattr(s, "body"))
        users = [s for s in every if name in makers_of(s, self.text, self.packages)]
        if len(reads) - 1 != sum(n in reads for s in users for n in ast.walk(s)):
            return []
        for user in users:
            makers = makers_of(user, self.text, self.packages)
            for node, _ in outward_of(user, user, path, path):
                with suppress(NotReplayable):
                    a, b = (with_makers(node, makers | {name: m}) for m in (maker, new))
                    if own := self._anew(a, b, makers):
                        found += own
                        break
            else:
                return []
        return found

    def made_again(self, span: Span | None, context: Callable[[], Any]) -> list[_Found]:
        """The calls into a library at a place of the line, made again in a context."""
        own = whole_spans(self.text).get(span, span)
        calls = (n for s in self.old for n in ast.walk(s) if isinstance(n, ast.Call))
        node = next((call for call in calls if span_of(call) == own), None)
        found = [f for s in self.old for f in self._called(s, s, node, node)]
        if not found:
            raise NotReplayable(f"the call in line {self.readings.line} cannot be made again")

        def run(code: Callable[[Get], Any], get: Get) -> Any:
            with context():
                return code(get)

        return [(region, replace(patch, run=partial(run, patch.run))) for region, patch in found]

    def _given_anew(self, old: ast.stmt) -> list[_Found]:
        """Patches for a name that gets another value from a statement on, to the end of its
        function, and that a library's calls read; nothing where that is unclear."""
        match self.before:
            case [ast.Assign(targets=[ast.Name(id=given)], value=value)]:
                name = ast.Name(given, ast.Load())
            case _:
                return []
        key, makers = key_of(name), makers_of(old, self.text, self.packages)
        code = Code(value, [key], self.readings.names)
        around = [a for a, _ in outward_of(old, old, name, name)]
        for node in (*around, *(with_makers(a, makers) for a in around if makers)):
            if code.free or not enters_library(node, self.text, self.packages):
                continue
            found: list[_Found] = []
            with suppress(NotReplayable):
                runs = [*self._runs(node, makers)]
                for at, run, group in runs:
                    ref, first = run.parts.get(key), run.calls[0]
                    if ref.__class__ is not Ref:
                        raise NotReplayable(f"the value of {given} is not known")
                    exchange = _Exchange(code, key, ref)
                    last = self._last_reader(at, ref, first, len(runs))
                    region = Region(at, _outermost(run.calls[-1], run.out, span_of(node), group))
                    enter = Patch(at, first, frozenset(), ref, exchange.enter, ahead=True)
                    leave = Patch(at, last, frozenset(), ref, exchange.leave)
                    found += [(region, enter), (region, leave)]
                return found
        return []

    def _set(self, was: ast.stmt, old: ast.expr, new: ast.expr) -> list[_Found]:
        """Patches for an object made with other settings: its calls in the step are made again."""
        path = name_given(was, old)
        if path is None:
            return []
        try:
            settings = settings_between(old, new, self.text, self.packages)
        except NotReplayable:
            return []
        found: list[_Found] = []
        for statement in statements_with(key_of(path), self.text) if settings else ():
            makers = makers_of(statement, self.text, self.packages)
            around = [node for node, _ in outward_of(statement, statement, path, path)]
            for node in (*around, *(with_makers(n, makers) for n in around if makers)):
                with suppress(NotReplayable):
                    for at, run, group in self._runs(node, makers):
                        changed = with_settings(run, key_of(path), settings)
                        code = Code(node, run.parts, known_in(self.text))
                        found.append(self._made_anew(at, changed, code, span_of(node), group))
                    break
        return found

    def _runs(
        self, node: ast.expr, makers: Mapping[str, ast.Call] = MappingProxyType({})
    ) -> list[_LibraryRun]:
        """Every run of a call into a library, with the calls of its expression and of its objects'
        makers in there. Found once for all edits."""
        inner = {span_of(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        spans = tuple(span_of(m) for m in makers.values() if span_of(m) in inner)
        known, readings = self.readings.shared.library_runs, self.readings
        key = readings.file, readings.line, span_of(node), key_of(node), spans
        if key not in known:
            try:
                known[key] = [*self._remade(node, spans)]
            except NotReplayable as error:
                # never the one that was raised, which holds the program's frames
                known[key] = NotReplayable(str(error))
        found = known[key]
        if isinstance(found, NotReplayable):
            raise NotReplayable(str(found))
        return found

    def _remade(self, node: ast.expr, makers: Sequence[Span]) -> Iterator[_LibraryRun]:
        before = [dict(self.made(span)) for span in makers]
        for at, group in self.made(span_of(node)):
            if group:
                where = self.segments[at], device_of(group), self.readings.value(at)
                made = sorted([*group, *(m for each in before for m in each[at])], key=_index)
                own = {m.index for m in group}
                stored = self.recording.program.names
                for run in runs_of(node, self.text, self.packages, made, *where, stored):
                    # what the makers computed may be read elsewhere
                    yield at, replace(run, calls=tuple(i for i in run.calls if i in own)), group

    def _made_anew(
        self, at: int, run: Run, code: Code, span: Span, around: Sequence[Made]
    ) -> _Found:
        segment = self.segments[at]
        if any(use.first in run.calls and use.last > run.calls[-1] for use in segment.functions):
            raise NotReplayable("the call ends in a Function, whose backward would be as it was")
        made = run_with(code, run, segment, device_of(around))
        patch = Patch(at, run.calls[-1], frozenset(run.calls), run.out, made)
        seen = self._seen(run, span)
        return Region(at, _outermost(run.calls[-1], seen, span, around)), patch

    def _seen(self, run: Run, span: Span) -> Any:
        """The result of a call; of an unpacked tuple, only the items whose names are read."""
        for statement in self.old:
            match statement:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=value) if (
                    span_of(value) == span
                    and (run.out.__class__ is tuple and run.kept is None)
                    and len(run.out) == len(names)
                ):
                    kept = (n for n in names if not self._is_unread(n))
                    return tuple(run.out[names.index(n)] for n in kept) or run.out
        return run.out

    def _is_unread(self, name: ast.expr) -> bool:
        """Whether nothing in the file reads a name; another cell may read one outside functions."""
        if not isinstance(name, ast.Name):
            return False
        local = isinstance(function_around(self.text, self.readings.line), _DEFINITIONS)
        nodes = (n for n in nodes_of(parsed(self.text)) if isinstance(n, ast.Name))
        reads = (n.id for n in nodes if isinstance(n.ctx, ast.Load))
        return (local or name.id == "_") and name.id not in reads

    def _left_out(self, statement: ast.stmt, test: ast.expr) -> list[_Found]:
        """Patches for a term that is added only where a test holds."""
        term = added_by(statement)
        if term is None or self.before or self.contexts:
            raise NotReplayable("the edit makes a statement conditional that adds no term")
        paths = [n for n in ast.walk(test) if isinstance(n, ast.expr)]
        keys, runs = {key_of(path) for path in paths}, list[_LibraryRun]()
        makers = makers_of(statement, self.text, self.packages)
        with suppress(NotReplayable):
            runs = self._runs(with_makers(term, makers), makers)

        def named(at: int, calls: Sequence[int]) -> dict[str, Any]:
            own = (run for where, run, _ in runs if where == at and run.calls[-1] in calls)
            return {k: v for run in own for k, v in run.parts.items() if k in keys}

        found = left_out(self.readings, statement, test, named)
        every = [(Region(at, (last, out)), patch) for at, last, out, patch in found]
        if not every:
            raise NotReplayable(CHANGES_NOTHING)
        return every

    # -- functions that are not known: their results, and their arguments

    def _wrapped(
        self, made: BySegment, statement: ast.stmt, old: ast.expr, new: ast.expr
    ) -> Iterator[_Found]:
        """Patches for a call in a new form, where the statement names it or indexes its result: the
        result is replaced once a run. Nothing if that is unclear."""
        key, name = key_of(old), name_given(statement, old)
        picked = isinstance(old, ast.Subscript)
        held = isinstance(old, ast.Attribute) and isinstance(old.value, ast.Call)  # f(x).loss
        if (name is None and not (picked or held)) or not any(
            key_of(n) == key for n in ast.walk(new) if isinstance(n, ast.expr)
        ):
            return
        code = Code(new, [key], self.readings.names)
        if code.free:
            return
        for at, group in made:
            own = {m.index: m.call for m in group if m.span == span_of(old)}
            if (picked or held) and not own:  # of what a call gives
                own = {m.index: m.call for m in group if inside(m.span, span_of(old))}
            outs = handed_on(self.segments[at], own)
            values = [v for values in self.readings.read(name, at) for v in values] if name else []
            read = {ref.view for ref in values if ref.__class__ is Ref}
            if held and not read:
                if len({ref.view for _, ref in outs}) > 1:
                    return
            elif name is None:
                sites = {self.recording.at(own[index].position).site for index, _ in outs}
                if len(sites) > 1:
                    return
            elif any(ref.view not in read for _, ref in outs):
                return
            for index, ref in outs:
                patch = Patch(at, index, frozenset(), ref, _over(code, key, ref))
                yield Region(at, (index, ref)), patch

    def _fed(self, made: BySegment, old: ast.expr, new: ast.expr) -> list[_Found]:
        """Patches for an argument in a new form, which the callee then reads, in each of its runs.
        Nothing if one is unclear."""
        found: list[_Found] = []
        for call, argument, form in changed_arguments(old, new):
            key = key_of(argument)
            code = Code(form, [key], self.readings.names)
            if code.free:
                return []
            for at, group in made:
                every = [m for m in group if m.span == span_of(call)]
                turns = self.readings.turns(argument, at)
                runs = [
                    run for each in self._runs_apart(at, every) for run in _by_turns(each, turns)
                ]
                rows = [taken[0] for taken in turns]
                refs = [self._read_by(run, at, call, argument, rows) for run in runs]
                if None in refs:  # what the program passes to the callee may run in between
                    refs = [*{ref.view: ref for ref in refs if ref is not None}.values()]
                    if len(refs) != 1:
                        return []
                    runs = [every]
                for run, ref in zip(runs, refs, strict=True):
                    outs = [out for m in run for out in refs_in(m.call.out)]
                    if ref is None or not outs:
                        continue
                    first, last = run[0].index, run[-1].index
                    exchange = _Exchange(code, key, ref)
                    enter = Patch(at, first, frozenset(), ref, exchange.enter, ahead=True)
                    leave = Patch(at, last, frozenset(), ref, exchange.leave)
                    found += [(Region(at, (last, outs[-1])), patch) for patch in (enter, leave)]
        return found

    def _runs_apart(self, at: int, made: Sequence[Made]) -> Iterator[Sequence[Made]]:
        """The calls of an expression, parted where other lines of the file made calls between."""
        calls, start = self.segments[at].calls, 0
        for end, (one, other) in enumerate(itertools.pairwise(made), 1):
            between = (self.recording.op(c.position) for c in calls[one.index + 1 : other.index])
            spans = (self._span_of(op) for op in between if op and op.file == self.readings.file)
            if any(span is None or not inside(span, one.span) for span in spans):
                yield made[start:end]
                start = end
        if made:
            yield made[start:]

    def _span_of(self, op: Op) -> Span | None:
        span = self.recording.spans[op.place]
        return whole_spans(self.text).get(span, span)

    def _in_float32(self, made: BySegment, old: ast.expr, new: ast.expr) -> Iterator[_Found]:
        """A module's call in float32 outside autocast; nothing where more than casts differ."""
        call = called_in_float32(old, new)
        if call is None:
            return
        for at, group in made:
            own = [m for m in group if m.span == span_of(call)]
            outs = list(refs_in(own[-1].call.out)) if own else []
            if not outs:
                continue
            calls, last = [m.call for m in own], own[-1].index
            _check_skipped(calls)
            wide = _Wide(self.segments[at], calls, own[0].index)
            skipped = frozenset(m.index for m in own)
            yield Region(at, (last, outs[0])), Patch(at, last, skipped, outs[0], wide.run)

    def _read_by(
        self,
        own: Sequence[Made],
        at: int,
        call: ast.Call,
        argument: ast.expr,
        rows: Sequence[Ref],
    ) -> Ref | None:
        """The value of an argument: the only one read, one of the rows that a loop takes by its
        name, or the one read by that; or None."""
        inner = {ref.view for m in own for ref in refs_in(m.call.out)}
        fresh = (m for m in own if not (m.call.func.is_view or m.call.func._schema.is_mutable))
        created = {ref.storage for m in fresh for ref in refs_in(m.call.out)}
        read = {
            ref.view: ref
            for m in reversed(own)
            for ref in refs_in(m.call.args)
            if ref.view not in inner and ref.storage not in created and not self._is_own(m, ref)
        }
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        others = [each for each in given if key_of(each) != key_of(argument)]
        alone = len(read) == 1 and all(isinstance(each, ast.Constant) for each in others)
        found = next(iter(read.values())) if alone else None
        found = found or next((ref for ref in rows if ref.view in read), None)
        if found is None and own:
            with suppress(NotReplayable):
                found = self.readings.elsewhere(argument, at, [m.index for m in own])
        known = read.get(found.view) if found.__class__ is Ref else None
        return known if known is not None and known.dtype.is_floating_point else None

    def _is_own(self, made: Made, ref: Ref) -> bool:
        """Whether a call reads a parameter of the very module that makes it."""
        op = self.recording.at(made.call.position)
        owner = self.recording.program.names.get(ref.storage, "").rpartition(".")[0]
        return bool(owner) and f".{op.module}".endswith(f".{owner}")

    # -- names that are bound anew

    def _renamed(self) -> Iterator[_Found]:
        """Statements put before others that stay: a name has another value from there on."""
        match self.before:
            case [ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value)]:
                text = ast.unparse(target)
            case [ast.Assign(targets=[_])]:
                raise NotReplayable("the edit assigns to what is no name")
            case _:
                raise NotReplayable("the edit adds statements whose effect cannot be followed")
        key = key_of(ast.parse(text, mode="eval").body)
        code = Code(value, [key], self.readings.names)
        for reader in (node for statement in self.old for node in postorder(statement)):
            parts = (n for n in ast.walk(reader) if isinstance(n, ast.expr))
            if not isinstance(reader, ast.expr) or key not in map(key_of, parts):
                continue
            span = span_of(reader)
            made = [(at, [m for m in g if inside(m.span, span)]) for at, g in self.made(span)]
            if not any(m.span == span for _, group in made for m in group):
                continue
            name = ast.parse(text, mode="eval").body
            given = self._is_given(target)
            if self._hands_on((n for each in self.old for n in ast.walk(each)), name):
                raise NotReplayable(_HANDED)
            for at, group in made:
                _, runs = self.readings.bound(reader, span, group, at) if group else (None, ())
                ends = [*(bound.calls[0] for bound in runs[1:]), len(self.segments[at].calls)]
                for bound, end in zip(runs, ends, strict=False):
                    ref = bound.parts.get(key)
                    if ref.__class__ is not Ref:
                        raise NotReplayable(f"the value of {text} is not known")
                    code.check(" at this line")
                    region = Region(at, _outermost(bound.calls[-1], bound.out, span, group))
                    first, exchange = bound.calls[0], _Exchange(code, key, ref)
                    yield region, Patch(at, first, frozenset(), ref, exchange.enter, ahead=True)
                    last = None
                    if ref.storage in self.recording.program.names:  # elsewhere it is as it was
                        last = self._last_reader(at, ref, first, len(runs))
                    elif isinstance(name, ast.Name):
                        last = self._last_in_function(at, ref, name, (first, end), given)
                    if last is not None:
                        yield region, Patch(at, last, frozenset(), ref, exchange.leave)
            return
        raise NotReplayable(f"{text} is not read by the lines that follow")

    def _parts_renamed(self) -> Iterator[_Found]:
        """A name that a statement gives to one of several results has another value behind it."""
        match self.old[-1], self.behind:
            case (
                ast.Assign(targets=[ast.Tuple(elts=names)], value=maker),
                [ast.Assign(targets=[ast.Name() as target], value=value)],
            ) if [n.id for n in names if isinstance(n, ast.Name)].count(target.id) == 1:
                part = [key_of(name) for name in names].index(key_of(target))
            case _:
                raise NotReplayable("the edit adds statements whose effect cannot be followed")
        key = key_of(ast.Name(target.id, ast.Load()))
        code = Code(value, [key], self.readings.names)
        code.check(" at this line")
        found = False
        for at, group in self.made(span_of(maker)):
            for each in (m for m in group if m.span == span_of(maker)):
                outs = list(refs_in(each.call.out))
                if len(outs) != len(names):
                    continue
                ref, found = outs[part], True
                run = _over(code, key, ref)
                yield Region(at, (each.index, ref)), Patch(at, each.index, frozenset(), ref, run)
        if not found and enters_library(maker, self.text, self.packages):
            for at, made, _ in self._runs(maker, {}):
                if (
                    made.out.__class__ is tuple
                    and made.kept is None
                    and len(made.out) == len(names)
                ):
                    ref, last, found = made.out[part], made.calls[-1], True
                    run = _over(code, key, ref)
                    yield Region(at, (last, ref)), Patch(at, last, frozenset(), ref, run)
        if not found:
            raise NotReplayable(f"the call that gives {target.id} its value is not known")

    def _is_given(self, target: ast.Name | ast.Attribute) -> bool:
        """Whether a name is an argument of the function around the edit: who gave the value has it
        by another name, which stays what it was. Raises NotReplayable for a name of outside, which
        an assignment would hide from the lines before."""
        around = function_around(self.text, self.readings.line)
        if not isinstance(target, ast.Name) or not isinstance(around, ast.FunctionDef):
            return False
        before = [n for n in nodes_of(around) if getattr(n, "lineno", 0) < self.old[0].lineno]
        values = [
            n.value
            for n in before
            if isinstance(n, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr)
            if target.id in stored_in(n)
        ]
        if any(not isinstance(v, ast.Name | ast.Attribute | ast.Subscript) for v in values):
            return False  # made here
        arguments = {n.arg for n in ast.walk(around.args) if isinstance(n, ast.arg)}
        if target.id in arguments or any(target.id in stored_in(n) for n in before):
            return True
        raise NotReplayable(f"{target.id} is no name of the function that the edit is in")

    def _last_in_function(
        self, at: int, ref: Ref, name: ast.Name, calls: tuple[int, int], given: bool
    ) -> int | None:
        """The last of some calls that reads a value in the function around the edit; None where no
        others read it after that by a name of their own. Raises NotReplayable where the function
        may have handed it to those, or reads it by another name.

        given: whether others have a name for it.
        """
        around, whole = function_around(self.text, self.readings.line), whole_spans(self.text)
        (first, end), segment, others = calls, self.segments[at], False
        found = first
        end = min((end, *(r.first for r in segment.engine if r.first > first)))
        for index, call in enumerate(segment.calls[first:end], first):
            if not any(r.storage == ref.storage for r in refs_in(call.args)):
                continue
            op = self.recording.at(call.position)
            if op.file != self.readings.file or function_around(self.text, op.line) is not around:
                others = True
                continue
            span = self.recording.spans[op.place]
            span = whole.get(span, span)
            code = (n for n in nodes_of(around) if isinstance(n, ast.expr) and span_of(n) == span)
            if name.id not in names_in(*code):
                raise NotReplayable(f"the value of {name.id} has another name, too")
            found, others = index, False
        behind = (n for n in nodes_of(around) if getattr(n, "lineno", 0) >= self.old[0].lineno)
        if given and others and self._hands_on(behind, name):
            raise NotReplayable(_HANDED)
        return found if given and others else None

    def _hands_on(self, code: Iterable[ast.AST], name: ast.expr) -> bool:
        """Whether some code passes a value to functions of the program."""
        key = key_of(name)
        return any(
            isinstance(node, ast.Call)
            and any(key_of(a) == key for a in (*node.args, *(k.value for k in node.keywords)))
            and not any(m.span == span_of(node) for _, g in self.made(span_of(node)) for m in g)
            for node in code
        )

    def _last_reader(self, at: int, ref: Ref, first: int, runs: int) -> int:
        """The last call, from a given one on, that reads a parameter in the edited function. Raises
        NotReplayable where other functions read it too."""
        around = function_around(self.text, self.readings.line)
        segment, found = self.segments[at], first
        end = min((r.first for r in segment.engine if r.first > first), default=len(segment.calls))
        for index, call in enumerate(segment.calls[first:end], first):
            if any(r.storage == ref.storage for r in refs_in(call.args)):
                op = self.recording.at(call.position)
                own = op.file == self.readings.file and hasattr(around, "lineno")
                if not own or op.line not in lines_of(around) or runs > 1:
                    raise NotReplayable("other lines read the parameter that the edit names anew")
                found = index
        return found


def _only_names(text: str, edit: EditLike, named: Mapping[str, tuple[ast.expr, int]]) -> bool:
    """Whether an edit computes what the statement did, and names parts of it."""
    (old,), (*_, new) = both_forms(text, edit)
    parts = {name: part for name, (part, _) in named.items()}
    inserted = replaced(new, lambda n: parts.get(n.id) if isinstance(n, ast.Name) else None)
    return key_of(inserted) == key_of(old)


def _index(made: Made) -> int:
    return made.index


class _Exchange:
    """Replace a value by its new form for some calls, and put it back after them."""

    def __init__(self, code: Code, key: str, ref: Ref) -> None:
        self.code, self.key, self.ref = code, key, ref
        self._kept: Any = None

    def enter(self, get: Get) -> Any:
        """The new form of the value."""
        self._kept = get(self.ref)
        return self.code({self.key: self._kept})

    def leave(self, get: Get) -> Any:
        """The old value."""
        return self._kept


class _Wide:
    """Calls that autocast cast for, made again in float32."""

    def __init__(self, segment: Segment, calls: Sequence[Call], first: int) -> None:
        self.calls = calls
        made = {ref.view for call in calls for ref in refs_in(call.out)}
        wanted = {ref.view for call in calls for ref in refs_in(call.args) if _is_half(ref)} - made
        self.casts: dict[Any, Ref] = {}  # what autocast had cast before, to what it was
        for call in segment.calls[:first]:
            if is_cast(call) and call.out.view in wanted:
                self.casts[call.out.view] = call.args[0]

    def run(self, get: Get) -> Any:
        """The result of the last call."""
        made: dict[Any, Any] = {}

        def value(each: Any) -> Any:
            if each.__class__ in (tuple, list):
                return each.__class__([value(item) for item in each])
            if each.__class__ is torch.dtype:
                return torch.float32 if each in HALF else each
            if each.__class__ is Ref and each.view in made:
                return made[each.view]
            found = get(self.casts.get(each.view, each) if each.__class__ is Ref else each)
            return found.float() if isinstance(found, Tensor) and found.dtype in HALF else found

        result: Any = None
        for call in self.calls:
            args = value(call.args)
            kwargs = {name: value(each) for name, each in call.kwargs.items()}
            result = args[0] if is_cast(call) else operate(call.func, args, kwargs)
            results = result if isinstance(result, tuple | list) else (result,)
            made |= {r.view: t for r, t in zip(refs_in(call.out), results, strict=False)}
            result = results[0]
        return result


MOST_SPREAD = 2**26  # elements of what is far larger than its operands


class _Bounded(DispatchMode):
    """Count the work of operators, and refuse those that would broadcast to a huge tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count_work(4, 0)  # of a function that an edit calls, and that calls others many times
        given = [x for x in args if isinstance(x, torch.Tensor)]
        large = math.prod(x.numel() for x in given) > MOST_SPREAD
        if large and len(given) > 1 and torch.Tag.pointwise in func.tags:
            size = 0
            with suppress(RuntimeError):  # which the operator raises too
                size = math.prod(torch.broadcast_shapes(*(x.shape for x in given)))
            if size > max(MOST_SPREAD, 16 * max(x.numel() for x in given)):
                raise NotReplayable(f"its lines would make a tensor of {size:,} elements")
        return func(*args, **(kwargs or {}))


def _is_half(ref: Ref) -> bool:
    return ref.dtype in HALF


def is_cast(call: Call) -> bool:
    """Whether a call casts to half precision."""
    name = getattr(call.func, "_opname", "")
    return name == "_to_copy" and call.out.__class__ is Ref and call.out.dtype in HALF


def is_sum(call: Call) -> bool:
    """Whether each element of a result is a sum over many, so that it moves by itself."""
    return getattr(call.func, "_opname", "") in _SUMS


def _outermost(index: int, out: Any, span: Span, around: Sequence[Made]) -> tuple[int, Any]:
    """The last call on the line, in this run, that the expression's result flows into before a sum,
    and its result. index, out: the expression's own."""
    reached, last = {ref.storage for ref in refs_in(out)}, index
    for each in around:
        if each.index <= last:
            continue
        if inside(each.span, span):
            break  # the expression again
        read = {ref.storage for ref in refs_in((each.call.args, (*each.call.kwargs.values(),)))}
        if inside(span, each.span) and read & reached:
            if is_sum(each.call):
                break  # what goes into a sum moves by itself
            refs = list(refs_in(each.call.out))
            reached |= {ref.storage for ref in refs}
            if len(refs) == 1:
                index, out = each.index, refs[0]
    return index, out


def _by_turns(made: Sequence[Made], turns: Sequence[Sequence[Ref]]) -> list[Sequence[Made]]:
    """Calls by the turn of a loop: each from the first that reads some of what that turn takes."""
    starts: list[int] = []
    for taken in turns:
        views = {ref.view for ref in taken}
        first = (i for i, m in enumerate(made) if any(ref.view in views for ref in m.call.read))
        starts += itertools.islice(first, 1)
    return [made[a:b] for a, b in itertools.pairwise([*starts, len(made)])] if starts else [made]


def _over(code: Code, key: str, ref: Ref) -> Callable[[Get], Any]:
    return lambda get: code({key: get(ref)})


def _is_drawn(call: Call) -> bool:
    """Whether a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ())


def _check_skipped(calls: Iterable[Call]) -> None:
    if any(map(_is_drawn, calls)):
        raise NotReplayable("the edit takes away a call that draws random numbers")
