"""An edit of the source as patches of the step: its text is compiled and run."""

from __future__ import annotations

import ast
import itertools
import linecache
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.operators import having
from nanlab.program.callee import (
    Run,
    enters_library,
    imported,
    packages_of,
    run_with,
    runs_of,
    settings_between,
    with_settings,
)
from nanlab.program.edit_text import (
    DTYPES,
    EditLike,
    Lines,
    PartOfStatement,
    argument_of,
    assignments_in,
    called_in_float32,
    called_name,
    changed_arguments,
    comes_later,
    differences_between,
    function_around,
    gives_dtype,
    leaves_autocast,
    lifted_out,
    local_makers,
    name_given,
    named_parts,
    names_assigned,
    number_changed,
    occurring_in,
    outward_of,
    readers_of,
    reads_name,
    statement_around,
    statements_of,
    statements_with,
    turned_over,
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
    bind,
    by_sides,
    form_of,
    inside,
    is_silent,
    key_of,
    names_in,
    namespace_of,
    nodes_of,
    numbers_in,
    parsed,
    postorder,
    replaced,
    sides_taken,
    solved,
    span_of,
    transformed,
    whole_of,
)
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import ZEROS, Get, operate
from nanlab.program.values import Results, Values
from nanlab.trace.chunk import Span
from nanlab.trace.program import Call, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor


HALF = (torch.float16, torch.bfloat16)
CHANGES_NOTHING = "the edit changes nothing that the step computed"  # why one is not tried
MOST_HANDED = 2  # functions through which a value goes on
MOST_AROUND = 4  # expressions around a part of a line that are tried in its place
_SUMS = having("matmul") | having("layer")


@dataclass(frozen=True)
class Region:
    """One run of an expression that an edit rewrites."""

    segment: int
    outer: tuple[int, Any]  # index of the call that gave the whole line its value, and that value


@dataclass(frozen=True)
class Edited:
    """An edit as it changes the step."""

    patches: list[Patch]
    regions: list[Region]


def text_of(recording: Recording, file: str) -> str:
    """The text of a file or cell, by the name that the tables show."""
    kept = recording.texts.get(file)
    if kept is not None:
        return kept
    real = next((place[2] for place in recording.places if place[0] == file), file)
    return "".join(linecache.getlines(real))


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
    patches: list[Patch] = []
    regions: list[Region] = []
    named = {
        edit: given
        for edit in (edits if len(edits) > 1 else ())
        if (given := named_parts(text_of(recording, edit.file), edit))
    }
    started = {edit: number_changed(text_of(recording, edit.file), edit) for edit in edits}
    for edit in edits:
        if len(edits) > 1 and started[edit]:
            continue  # the others compute with the number
        if edit in named and _only_names(recording, edit, named[edit]):
            continue  # the rest computes what it did
        rewrite = _Rewrite(recording, edit, values)
        rewrite.named = {k: v for each in named.values() for k, v in each.items()}
        rewrite.started = {k: v for each in started.values() for k, v in each.items()}
        found = rewrite.edited()
        patches += found.patches
        regions += found.regions
    taken: set[tuple[int, int]] = set()
    for patch in patches:
        own = {(patch.segment, i) for i in patch.skipped}
        if own & taken:
            raise NotReplayable("two of the edits rewrite the same call")
        taken |= own
    patches += _conversions(recording, segments, edits, taken)
    return Edited(patches, regions)


def _conversions(
    recording: Recording,
    segments: Sequence[Segment],
    edits: Sequence[EditLike],
    taken: Collection[tuple[int, int]],
) -> Iterator[Patch]:
    """Conversions that did nothing in the step, and do where an edit changes the dtype.

    ``.to(x.dtype)`` of a tensor that has this dtype is no call of an operator. Raises NotReplayable
    where one converts to the dtype of what is edited.
    """
    for edit in edits:
        text = text_of(recording, edit.file)
        old = "\n".join(text.splitlines()[edit.first - 1 : edit.last])
        if not any(name in edit.text and name not in old for name in DTYPES):
            continue
        whole, given = whole_spans(text), names_assigned(old)
        inner = {
            span_of(node.func.value): node
            for node in nodes_of(parsed(text))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and gives_dtype(node, node.func.attr)
        }
        places = [
            whole.get(own, own) if own is not None and place[0] == edit.file else None
            for place, own in zip(recording.places, recording.spans, strict=True)
        ]
        for at, segment in enumerate(segments if inner else ()):
            ran = [
                (index, call, places[op.place])
                for index, call in enumerate(segment.calls)
                if (op := recording.op(call.position)) is not None
                and not any(run.first <= index < run.last for run in segment.engine)
            ]
            after: list[tuple[int, int, int, int] | None] = [span for _, _, span in ran[1:]]
            for (index, call, span), then in zip(ran, [*after, None], strict=True):
                if span not in inner or span == then or (at, index) in taken:
                    continue
                node = inner[span]
                if then == span_of(node) or call.out.__class__ is not Ref:
                    continue  # it was converted
                if names_in(*node.args) & given:
                    raise NotReplayable(
                        f"line {node.lineno} converts to the dtype of what it edits"
                    )
                if call.out.dtype.is_floating_point:
                    yield Patch(at, index, frozenset(), call.out, _to(call.out), follows=True)


def _to(ref: Ref) -> Callable[[Get], Any]:
    def run(get: Get) -> Any:
        found = get(ref)
        return None if found.dtype is ref.dtype else found.to(ref.dtype)

    return run


class _Rewrite:
    """One edit."""

    def __init__(self, recording: Recording, edit: EditLike, shared: Values) -> None:
        self.recording, self.segments, self.edit = recording, shared.segments, edit
        self.shared = shared
        if not recording.trusted:
            raise NotReplayable(
                "it would run source text of the file that was loaded; try nanlab.load(path,"
                " trusted=True)"
            )
        text = text_of(recording, edit.file)
        if not text:
            raise NotReplayable(f"the source of {edit.file} is not at hand")
        self.text, self.names = text, namespace_of(text)
        self.packages = packages_of(recording)
        self.results: list[Results] = []
        self.named: dict[str, tuple[ast.expr, int]] = {}  # parts that other edits name
        self.calls: tuple[int, ...] = ()  # of the expression that is replaced
        self.started: dict[str, tuple[Any, Any]] = {}  # what numbers other edits make of numbers
        self.whole_spans = whole_spans(text)
        try:
            self.old = statements_of(text, edit.first, edit.last)
            self.new = ast.parse(textwrap.dedent(edit.text)).body
        except PartOfStatement:
            self.old, self.new = statement_around(text, edit)
        except SyntaxError as error:
            raise NotReplayable(f"the edit is no Python ({error.msg})") from None

    def edited(self) -> Edited:
        contexts, new = unwrapped(self.new)
        old = self.old
        if len(new) < len(old):
            raise NotReplayable("the edit removes a statement")
        before, new = new[: len(new) - len(old)], new[len(new) - len(old) :]
        inner = {n.arg for s in old for n in ast.walk(s) if isinstance(n, ast.arg)}
        loops = (c for s in old for c in ast.walk(s) if isinstance(c, ast.comprehension))
        inner |= names_in(*(loop.target for loop in loops))
        for statement in before:
            names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
            read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
            if read & inner:
                raise NotReplayable(
                    f"{sorted(read & inner)[0]} has no value where the edit reads it"
                )
        patches: list[Patch] = []
        regions: list[Region] = []
        changed = False
        for was, now in zip(old, new, strict=True):
            made = self._made(span_of(was))
            spans = {each.span for _, group in made for each in group}
            sides = sides_taken(was, spans)
            was, now = by_sides(was, sides), by_sides(now, sides)
            pairs = list(differences_between(was, now, spans))
            if contexts and isinstance(getattr(was, "value", None), ast.expr):
                pairs = [(was.value, now.value)]
            changed = changed or bool(pairs)
            for old_part, new_part in pairs:
                try:
                    found = list(self._regions(made, old_part, new_part, before, contexts))
                except NotReplayable:
                    again = self._in_float32 if leaves_autocast(contexts) else self._fed
                    known = not before and (not contexts or again == self._in_float32)
                    found = self._apart(made, (old_part, new_part), before, contexts)
                    if not found and known:
                        found = list(self._wrapped(made, was, old_part, new_part))
                    found = found or self._called(was, now, old_part, new_part, before, contexts)
                    found = found or (list(again(made, old_part, new_part)) if known else [])
                    found = found or self._around(
                        made, was, now, (old_part, new_part), before, contexts
                    )
                    if not found:
                        raise
                found = found or self._set(was, old_part, new_part)
                for region, patch in found:
                    patches.append(patch)
                    regions.append(region)
        if not changed and before:
            found = self._given_anew(before, old[0]) if len(old) == 1 else []
            if not found and len(old) == 1:
                found = self._called(old[0], new[0], None, None, before, ())
            for region, patch in found or self._renamed(before, old):
                patches.append(patch)
                regions.append(region)
        if not patches:
            raise NotReplayable(CHANGES_NOTHING)
        return Edited(patches, regions)

    # -- calls

    def _made(self, span: tuple[int, int, int, int]) -> list[tuple[int, list[Made]]]:
        """By segment the calls of a stretch of file, or of a custom Function's backward."""
        key = self.edit.file, span
        if key not in self.shared.lines:
            self.shared.lines[key] = self._made_again(span)
        results, made = self.shared.lines[key]
        self.results.append(results)
        return made

    def _made_again(
        self, span: tuple[int, int, int, int]
    ) -> tuple[Results, list[tuple[int, list[Made]]]]:
        places, spans, found = self.recording.places, self.recording.spans, []
        wanted: dict[int, tuple[int, int, int, int]] = {
            number: self.whole_spans.get(own, own)
            for number, (place, own) in enumerate(zip(places, spans, strict=True))
            if own is not None and place[0] == self.edit.file and inside(own, span)
        }
        results = Results(self.shared)
        for at, segment in enumerate(self.segments):
            windows = [(run.first, run.last) for run in segment.engine]
            customs = [(run.first, run.last) for run in segment.function_runs]
            group = []
            for index, call in enumerate(segment.calls):
                op = self.recording.at(call.position)
                if any(low <= index < high for low, high in windows):
                    # the backward of a library's Function bears the line that applied it
                    applied = self.recording.made_by(call.position).line if op else -1
                    own = any(low <= index < high for low, high in customs)
                    if not own or not op or op.place == applied:
                        continue
                if op and op.place in wanted:
                    group.append((index, call, wanted[op.place]))
            results.want(at, [index for index, _, _ in group])
            found.append((at, group))
        results.run()
        return results, [
            (at, [Made(i, call, span, results.results.get((at, i))) for i, call, span in group])
            for at, group in found
        ]

    def _value(self, segment: int) -> Callable[[int, Ref], Any]:
        def value(index: int, ref: Ref) -> Any:
            for results in reversed(self.results):
                found = results.value(segment, index, ref)
                if found is not None:
                    return found
            raise KeyError(ref)

        return value

    # -- rewritten expressions

    def _expression(self, node: ast.expr, device: str) -> Expression:
        """An expression, with what is known of its names."""
        return Expression(node, self.names, device, self._plain_numbers, self._is_forward)

    def _bound(
        self, node: ast.expr, span: Span, made: Sequence[Made], at: int
    ) -> tuple[Expression, list[Bound]]:
        """An expression, and its runs in some calls of a segment, told apart once. Raises
        NotReplayable."""
        known = self.shared.bound
        lines = self.edit.file, self.edit.first
        key = lines, span, key_of(node), at, tuple(each.index for each in made)
        if key not in known:
            expression = self._expression(node, _device(made))
            expression.span = span
            try:
                known[key] = expression, bind(expression, made, self._value(at))
            except NotReplayable as error:
                # never the one that was raised, which holds the program's frames
                known[key] = NotReplayable(str(error))
        found = known[key]
        if isinstance(found, NotReplayable):
            raise NotReplayable(str(found))
        return found

    @cached_property
    def _is_forward(self) -> bool:
        """Whether the step differentiates forward."""
        calls = (call for segment in self.segments for call in segment.calls)
        return any(call.func in ZEROS for call in calls)

    @cached_property
    def _plain_numbers(self) -> frozenset[str]:
        """Keys of names that the function assigns from arithmetic alone that made no call."""
        if self.edit.file not in self.shared.computing:
            calls = (call for segment in self.segments for call in segment.calls)
            ops = (self.recording.at(call.position) for call in calls)
            own = {op.line for op in ops if op.file == self.edit.file}
            self.shared.computing[self.edit.file] = own
        lines = self.shared.computing[self.edit.file]
        plain: dict[str, bool] = {}
        for statement in nodes_of(function_around(self.text, self.edit.first)):
            for name, value in assignments_in(statement):
                rows = range(value.lineno, (value.end_lineno or value.lineno) + 1)
                arithmetic = isinstance(value, ast.BinOp | ast.UnaryOp | ast.Constant)
                known = arithmetic and lines.isdisjoint(rows)
                plain[key_of(name)] = known and plain.get(key_of(name), True)
        return frozenset(key for key, known in plain.items() if known)

    def _regions(
        self,
        made: list[tuple[int, list[Made]]],
        old: ast.expr,
        new: ast.expr,
        before: Sequence[ast.stmt],
        contexts: Sequence[ast.withitem],
    ) -> Iterator[tuple[Region, Patch]]:
        span = span_of(old)
        if isinstance(old, ast.Call) and key_of(old) in map(
            key_of, whole_expressions((*before, new))
        ):
            yield from self._without_last(made, old, new, before, contexts)
            return
        if isinstance(old, ast.BinOp) and hasattr(old, "statement"):
            span = span_of(old.statement)
        for at, group in made:
            own = [each for each in group if inside(each.span, span)]
            if not own:
                continue
            expression, runs = self._bound(old, span, own, at)
            by_index = {each.index: each for each in own}
            for bound in runs:
                yield self._region(at, bound, expression, new, before, contexts, by_index, group)

    def _without_last(
        self,
        made: list[tuple[int, list[Made]]],
        call: ast.Call,
        new: ast.expr,
        before: Sequence[ast.stmt],
        contexts: Sequence[ast.withitem],
    ) -> Iterator[tuple[Region, Patch]]:
        """The call of a Sequential whose last layer is written otherwise."""
        key = key_of(all_but_last(call))
        code = _with(contexts, new, {key}, before, self.names)
        if code.free:
            raise NotReplayable(f"the value of {ast.unparse(code.free[0])} is not known")
        for at, group in made:
            for last in self._last_layers(group, span_of(call)):
                out, given = last.call.out, next(refs_in(last.call.args))
                where = _outermost(last.index, out, span_of(call), group)
                yield (
                    Region(at, where),
                    Patch(at, last.index, frozenset({last.index}), out, _over(code, key, given)),
                )

    def _last_layers(self, group: Sequence[Made], span: Span) -> list[Made]:
        """The last call of each run of a Sequential."""
        own = [m for m in group if m.span == span and not is_silent(m.call.func)]

        def layer(m: Made) -> tuple[Any, str]:
            return m.call.func, self.recording.at(m.call.position).module

        return [m for m in own if layer(m) == layer(own[-1])]

    def _given_to_last_layer(self, call: ast.Call, line: int, at: int, index: int) -> Ref:
        """What the last layer of a Sequential was given that a statement called before an index."""
        for statement in nodes_of(parsed(self.text)):
            if isinstance(statement, ast.stmt) and statement.lineno == line:
                for node in ast.walk(statement):
                    if key_of(node) == key_of(call):
                        group = dict(self._made(span_of(node))).get(at, [])
                        ends = self._last_layers(group, span_of(node))
                        if found := [m for m in ends if m.index < index]:
                            return next(refs_in(found[-1].call.args))
        raise NotReplayable(f"the value of {ast.unparse(all_but_last(call))} is not known")

    def _region(
        self,
        at: int,
        bound: Bound,
        expression: Expression,
        new: ast.expr,
        before: Sequence[ast.stmt],
        contexts: Sequence[ast.withitem],
        by_index: dict[int, Made],
        around: Sequence[Made],
    ) -> tuple[Region, Patch]:
        values = dict(bound.parts)
        for key, (was, is_now) in self.started.items():
            if type(values.get(key)) is type(was) and values[key] == was:
                values[key] = is_now
        own: dict[str, set[int]] = {}  # parts that draw random numbers: all else is computed anew
        for node in ast.walk(expression.node):
            if not isinstance(node, ast.expr):
                continue
            within = {i for i in bound.calls if inside(by_index[i].span, span_of(node))}
            calls = [i for i in bound.calls if by_index[i].span == span_of(node)]
            draws = any(_is_drawn(by_index[i].call) for i in within)
            if calls and draws and key_of(node) not in values:
                outs = list(refs_in(by_index[calls[-1]].call.out))
                if len(outs) == 1:
                    values[key_of(node)] = outs[0]
                    own[key_of(node)] = within
        if key_of(expression.node) not in own and any(
            _is_drawn(by_index[i].call) for i in bound.calls
        ):
            values[key_of(expression.node)] = bound.out
            own[key_of(expression.node)] = set(bound.calls)
        cut = {key_of(w) for w in whole_expressions((*before, new))}
        for node in ast.walk(expression.node):
            if isinstance(node, ast.Call) and key_of(node) in cut & bound.parts.keys():
                given = self._given_to_last_layer(node, node.lineno, at, bound.calls[0])
                values[key_of(all_but_last(node))] = given
        computed = own.keys() - bound.parts.keys()
        used = occurring_in(values, new, before, computed)
        code = _with(contexts, new, used, before, self.names, computed)
        extra = [key_of(path) for path in code.free]
        self.calls = bound.calls
        for path in code.free:
            found = self._elsewhere(path, at, bound.calls[0])
            values[key_of(path)] = self._transformed(path, found, bound)
        if extra:
            used += extra
            code = _with(contexts, new, used, before, self.names, computed)
        needed: set[int] = set()
        for key in used:
            needed |= own.get(key, set())
        skipped = frozenset(set(bound.calls) - needed)
        for i in skipped:
            _check_skipped(by_index[i].call)
        cast, device = bound.cast, expression.device

        def run(get: Get) -> Any:
            given = {
                key: part.of(get) if isinstance(part := values[key], Dual | Mapped) else get(part)
                for key in used
            }
            with autocast(device, cast):
                made = transformed(code, given)
            if bound.tangent is None:
                return made
            if not isinstance(made, Dual):
                return made, torch.zeros_like(made).expand(bound.tangent.size)
            return made.value, made.tangent

        region = Region(at, _outermost(bound.calls[-1], bound.out, expression.span, around))
        out = bound.out if bound.tangent is None else (bound.out, bound.tangent)
        return region, Patch(at, bound.calls[-1], skipped, out, run)

    def _transformed(self, path: ast.expr, value: Any, bound: Bound) -> Any:
        """A value of another line as the expression sees it, where a transform runs: each part of
        it under vmap. Raises NotReplayable where it may have had a tangent."""
        if value.__class__ is not Ref:
            return value
        if bound.tangent is not None and value.storage not in self.recording.program.names:
            raise NotReplayable(f"the derivative of {ast.unparse(path)} is not known at this line")
        # the first dimensions are vmap's; were it whole, the trial would see other values
        maps = bound.maps
        batched = maps and value.size[:maps] == bound.out.size[:maps]
        return Mapped(value, (0,) * maps) if batched else value

    def _apart(
        self,
        made: list[tuple[int, list[Made]]],
        part: tuple[ast.expr, ast.expr],
        before: Sequence[ast.stmt],
        contexts: Sequence[ast.withitem],
    ) -> list[tuple[Region, Patch]]:
        """Several parts of an expression, each by itself; nothing where one cannot be."""
        pairs = lifted_out(*part, {m.span for _, group in made for m in group}, apart=True)
        with suppress(NotReplayable):
            found = [self._regions(made, old, new, before, contexts) for old, new in pairs]
            return [each for of in found for each in of] if len(pairs) > 1 else []
        return []

    def _around(
        self,
        made: list[tuple[int, list[Made]]],
        was: ast.stmt,
        now: ast.stmt,
        part: tuple[ast.expr, ast.expr],
        before: Sequence[ast.stmt],
        contexts: Sequence[ast.withitem],
    ) -> list[tuple[Region, Patch]]:
        """An expression around a part of which no value is known; nothing where none is."""
        for old, new in itertools.islice(outward_of(was, now, *part), 1, MOST_AROUND):
            with suppress(NotReplayable):
                return list(self._regions(made, old, new, before, contexts))
        return []

    # -- calls into a library, made again

    def _called(
        self,
        was: ast.stmt,
        now: ast.stmt,
        old: ast.expr | None,
        new: ast.expr | None,
        before: Sequence[ast.stmt],
        contexts: Sequence[ast.withitem],
    ) -> list[tuple[Region, Patch]]:
        """A call into a library, written anew; nothing where it cannot be made again.

        old, new: the parts in which the statements differ; None where these stay as they are.
        """
        pairs = [*outward_of(was, now, old, new)]
        makers = local_makers(was, self.text)
        if makers:  # what they make is gone when the step is over
            pairs += [(with_makers(a, makers), with_makers(b, makers)) for a, b in pairs]
        for a, b in pairs:
            if not enters_library(a, self.text):
                continue
            found: list[tuple[Region, Patch]] = []
            try:
                for at, run, group in self._runs(a, makers):
                    code = _with(contexts, b, run.parts, before, self._known)
                    if code.free:
                        raise NotReplayable(f"the value of {ast.unparse(code.free[0])} is unknown")
                    found.append(self._made_anew(at, run, code, span_of(a), group))
            except NotReplayable:
                continue
            if found:
                return found
        return []

    def _given_anew(self, before: Sequence[ast.stmt], old: ast.stmt) -> list[tuple[Region, Patch]]:
        """A name that a library is given has another value from a statement on, to the end of its
        function; nothing where that is unclear."""
        match before:
            case [ast.Assign(targets=[ast.Name(id=given)], value=value)]:
                name = ast.Name(given, ast.Load())
            case _:
                return []
        key, makers = key_of(name), local_makers(old, self.text)
        code = _with((), value, {key}, (), self.names)
        around = [a for a, _ in outward_of(old, old, name, name)]
        for node in (*around, *(with_makers(a, makers) for a in around if makers)):
            if code.free or not enters_library(node, self.text):
                continue
            found: list[tuple[Region, Patch]] = []
            with suppress(NotReplayable):
                runs = [*self._runs(node, makers)]
                for at, run, group in runs:
                    ref, first = run.parts.get(key), run.calls[0]
                    if ref.__class__ is not Ref:
                        raise NotReplayable(f"the value of {given} is not known")
                    exchange = _Exchange(code, key, ref)
                    last = self._last_reader(at, ref, first, len(runs))
                    where = _outermost(run.calls[-1], run.out, span_of(node), group)
                    enter = Patch(at, first, frozenset(), ref, exchange.enter, ahead=True)
                    leave = Patch(at, last, frozenset(), ref, exchange.leave)
                    found += [(Region(at, where), enter), (Region(at, where), leave)]
                return found
        return []

    def _set(self, was: ast.stmt, old: ast.expr, new: ast.expr) -> list[tuple[Region, Patch]]:
        """An object that is made with other settings, and the calls of it in the step."""
        path = name_given(was, old)
        if path is None:
            return []
        try:
            settings = settings_between(old, new, self.text, self.packages)
        except NotReplayable:
            return []
        found: list[tuple[Region, Patch]] = []
        for statement in statements_with(key_of(path), self.text) if settings else ():
            for node, _ in outward_of(statement, statement, path, path):
                try:
                    for at, run, group in self._runs(node):
                        changed = with_settings(run, key_of(path), settings)
                        code = _with((), node, run.parts, (), self._known)
                        found.append(self._made_anew(at, changed, code, span_of(node), group))
                except NotReplayable:
                    continue
                break
        return found

    @property
    def _known(self) -> dict[str, Any]:
        return {**self.names, **imported(self.text)}

    def _runs(
        self, node: ast.expr, makers: Mapping[str, ast.Call] = MappingProxyType({})
    ) -> Iterator[tuple[int, Run, Sequence[Made]]]:
        """Every run of a call into a library, and the calls of its expression; of the makers of
        objects, those that stand in it."""
        inner = {span_of(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        spans = [span_of(maker) for maker in makers.values() if span_of(maker) in inner]
        before = [dict(self._made(span)) for span in spans]
        for at, group in self._made(span_of(node)):
            if group:
                segment = self.segments[at]
                value = self._value(at)
                made = sorted([*group, *(m for each in before for m in each[at])], key=_index)
                own = {m.index for m in group}
                for run in runs_of(
                    node, self.text, self.packages, made, segment, _device(group), value
                ):  # what the makers computed may be read elsewhere
                    yield at, replace(run, calls=tuple(i for i in run.calls if i in own)), group

    def _made_anew(
        self, at: int, run: Run, code: Code, span: Span, around: Sequence[Made]
    ) -> tuple[Region, Patch]:
        segment = self.segments[at]
        if any(use.first in run.calls and use.last > run.calls[-1] for use in segment.functions):
            raise NotReplayable("the call ends in a Function, whose backward would be as it was")
        made = run_with(code, run, segment, _device(around))
        patch = Patch(at, run.calls[-1], frozenset(run.calls), run.out, made)
        return Region(at, _outermost(run.calls[-1], run.out, span, around)), patch

    # -- functions that are not known: their results, and their arguments

    def _wrapped(
        self, made: list[tuple[int, list[Made]]], statement: ast.stmt, old: ast.expr, new: ast.expr
    ) -> Iterator[tuple[Region, Patch]]:
        """A named call in another form: its calls hand on, once a run. Nothing if misread."""
        key, name = key_of(old), name_given(statement, old)
        if name is None or not any(
            key_of(n) == key for n in ast.walk(new) if isinstance(n, ast.expr)
        ):
            return
        code = _with((), new, {key}, (), self.names)
        if code.free:
            return
        for at, group in made:
            own = {m.index: m.call for m in group if m.span == span_of(old)}
            outs = _handed_on(self.segments[at], own)
            read = {
                ref.view for refs in self._read(name, at) for ref in refs if ref.__class__ is Ref
            }
            if any(ref.view not in read for _, ref in outs):
                return
            for index, ref in outs:
                yield (
                    Region(at, (index, ref)),
                    Patch(at, index, frozenset(), ref, _over(code, key, ref)),
                )

    def _fed(
        self, made: list[tuple[int, list[Made]]], old: ast.expr, new: ast.expr
    ) -> Iterator[tuple[Region, Patch]]:
        """An argument in another form: the callee reads the new value. Nothing if unclear."""
        for call, argument, form in changed_arguments(old, new):
            key = key_of(argument)
            code = _with((), form, {key}, (), self.names)
            if code.free:
                return
            for at, group in made:
                own = [m for m in group if m.span == span_of(call)]
                ref = self._read_by(own, at, call, argument)
                outs = [out for m in own for out in refs_in(m.call.out)]
                if ref is None or not outs:
                    continue
                first, last = own[0].index, own[-1].index
                exchange = _Exchange(code, key, ref)
                region = Region(at, (last, outs[-1]))
                yield region, Patch(at, first, frozenset(), ref, exchange.enter, ahead=True)
                yield region, Patch(at, last, frozenset(), ref, exchange.leave)

    def _in_float32(
        self, made: list[tuple[int, list[Made]]], old: ast.expr, new: ast.expr
    ) -> Iterator[tuple[Region, Patch]]:
        """A module's call in float32 outside autocast; nothing where more than casts differ."""
        call = called_in_float32(old, new)
        if call is None:
            return
        for at, group in made:
            own = [m for m in group if m.span == span_of(call)]
            outs = list(refs_in(own[-1].call.out)) if own else []
            if not outs:
                continue
            skipped = frozenset(m.index for m in own)
            for m in own:
                _check_skipped(m.call)
            wide = _Wide(self.segments[at], [m.call for m in own], own[0].index)
            last = own[-1].index
            yield Region(at, (last, outs[0])), Patch(at, last, skipped, outs[0], wide.run)

    def _read_by(
        self, own: Sequence[Made], at: int, call: ast.Call, argument: ast.expr
    ) -> Ref | None:
        """The value of an argument: the only one read, or the one read by its name; or None."""
        inner = {ref.view for m in own for ref in refs_in(m.call.out)}
        fresh = (m for m in own if not (m.call.func.is_view or m.call.func._schema.is_mutable))
        created = {ref.storage for m in fresh for ref in refs_in(m.call.out)}
        read = {
            ref.view: ref
            for m in reversed(own)
            for ref in refs_in((m.call.args, m.call.kwargs))
            if ref.view not in inner and ref.storage not in created and not self._is_own(m, ref)
        }
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        others = [each for each in given if key_of(each) != key_of(argument)]
        alone = len(read) == 1 and all(isinstance(each, ast.Constant) for each in others)
        found = next(iter(read.values())) if alone else None
        try:
            if found is None and own:
                self.calls = tuple(m.index for m in own)
                found = self._elsewhere(argument, at, own[0].index)
        except NotReplayable:
            return None
        known = read.get(found.view) if found.__class__ is Ref else None
        return known if known is not None and known.dtype.is_floating_point else None

    def _is_own(self, made: Made, ref: Ref) -> bool:
        """Whether a call reads a parameter of the very module that makes it."""
        op = self.recording.at(made.call.position)
        owner = self.recording.program.names.get(ref.storage, "").rpartition(".")[0]
        return bool(owner) and f".{op.module}".endswith(f".{owner}")

    def _elsewhere(self, path: ast.expr, at: int, index: int) -> Any:
        """The value of a name that only other lines read, when calls from ``index`` ran."""
        if isinstance(path, ast.Name) and path.id in self.named:
            part, line = self.named[path.id]
            if (whole := whole_of(part)) is not None:
                return self._given_to_last_layer(whole, line, at, index)
            values = next(self._read(part, at, index, line), None)
            if values is None:
                raise NotReplayable(f"the value of {ast.unparse(part)} is not known")
            return values[-1]
        names = [n.id for n in ast.walk(path) if isinstance(n, ast.Name)]
        values = next(self._read(path, at, index), None)
        if values is None:
            others = (
                self._handed_over,
                self._iterated,
                self._solved,
                self._parameter,
                self._assigned_to,
            )
            values = next(filter(None, (of(path, at, index) for of in others)), None)
        if values is None or any(comes_later(n, self.text, self.edit.first) for n in names):
            raise NotReplayable(f"the value of {ast.unparse(path)} is not known at this line")
        return values[-1]

    def _read(
        self,
        path: ast.expr,
        at: int,
        before: int | None = None,
        line: int = 0,
        near: ast.stmt | None = None,
    ) -> Iterator[list[Any]]:
        """Values that lines read by a name, by run; before: runs before an index first; line: that
        alone; near: in the function around a statement, that of the edit."""
        key = key_of(path)
        for statement in readers_of(key, self.text, near or self.old[0]):
            if line and statement.lineno != line:
                continue
            for reader in postorder(statement):
                if not isinstance(reader, ast.expr) or not reads_name(reader, key):
                    continue
                if isinstance(getattr(reader, "ctx", None), ast.Store):
                    continue
                for segment, group in self._made(span_of(reader)):
                    own = [m for m in group if before is None or m.index < before] or group
                    if segment != at or not any(m.span == span_of(reader) for m in own):
                        continue
                    try:
                        _, bound = self._bound(reader, span_of(reader), own, at)
                    except NotReplayable:
                        continue
                    if key_of(reader) == key:  # it is computed there: a part of a complex number
                        yield [each.out for each in bound]
                    elif values := [each.parts[key] for each in bound if key in each.parts]:
                        yield values

    def _handed_over(
        self, path: ast.expr, at: int, index: int, line: int = 0, most: int = MOST_HANDED
    ) -> list[Any] | None:
        """Values of what the function around a line, that of the edit, gives to another, which
        reads it or hands it on, and gets no other there from anywhere."""
        key, tree = key_of(path), parsed(self.text)
        calls = [n for n in postorder(tree) if isinstance(n, ast.Call)]
        around = function_around(self.text, line or self.edit.first)
        own = {span_of(n) for n in nodes_of(around) if isinstance(n, ast.Call)}
        for there, callee in self._callees(tree, set(map(called_name, calls))):
            those = [c for c in calls if called_name(c) == callee.name]
            if callee.args.vararg or not those or not own.issuperset(map(span_of, those)):
                continue
            names = [a.arg for a in callee.args.args]
            names = names[1:] if names[:1] == ["self"] else names
            for at_place, name in enumerate(names):
                given = [argument_of(c, name, at_place) for c in those]
                stored = (n for n in ast.walk(callee) if isinstance(n, ast.Name) and n.id == name)
                same = [v is not None and key_of(v) == key for v in given]
                if not any(same) or not all(isinstance(n.ctx, ast.Load) for n in stored):
                    continue
                read = ast.Name(name, ast.Load())
                for found in there._read(read, at, index, near=callee.body[0]):
                    if all(same):
                        return found
                    if len(found) == len(same):  # one run for each call
                        return [v for v, is_it in zip(found, same, strict=True) if is_it]
                if all(same) and most:
                    first = callee.body[0]
                    inner = there._iterated(read, at, index, first)
                    inner = inner or there._handed_over(read, at, index, first.lineno, most - 1)
                    if inner:
                        return inner
        return None

    def _callees(
        self, tree: ast.AST, called: set[str]
    ) -> Iterator[tuple[_Rewrite, ast.FunctionDef]]:
        """The functions of the file, and those that it calls by name of others which call them
        nowhere, each with what reads its file."""
        yield from ((self, n) for n in nodes_of(tree) if isinstance(n, ast.FunctionDef))
        for file in {place[0]: None for place in self.recording.places}:
            if file == self.edit.file:
                continue
            with suppress(SyntaxError):
                other = parsed(text_of(self.recording, file))
                own = {called_name(n) for n in nodes_of(other) if isinstance(n, ast.Call)}
                for callee in other.body:
                    if isinstance(callee, ast.FunctionDef) and callee.name in called - own:
                        first = callee.body[0]  # of several lines, where it is a docstring
                        lines = Lines(file, first.lineno, first.end_lineno or first.lineno)
                        there = _Rewrite(self.recording, lines, self.shared)
                        there.results, there.calls = self.results, self.calls
                        yield there, callee

    def _iterated(
        self, path: ast.expr, at: int, index: int, near: ast.stmt | None = None
    ) -> list[Any] | None:
        """A list or tuple that a comprehension goes over, from what each of its turns read that the
        call at the index is computed from; near: in the function around a statement, that of the
        edit."""
        key = key_of(path)
        for statement in readers_of(key, self.text, near or self.old[0]):
            for node in ast.walk(statement):
                if not isinstance(node, ast.ListComp | ast.GeneratorExp):
                    continue
                own = turned_over(node.generators, key)
                if own is None:
                    continue
                for segment, group in self._made(span_of(node.elt)):
                    turns = [each for each in group if each.index < index]
                    if segment != at or not turns:
                        continue
                    around = function_around(self.text, statement.lineno) if near else statement
                    whole = {m.index for s, g in self._made(span_of(around)) for m in g if s == at}
                    behind = _behind(self.segments[at], self.calls[-1], {*whole, *self.calls})
                    values = [
                        each.parts[own]
                        for each in self._bound(node.elt, span_of(node.elt), turns, at)[1]
                        if own in each.parts and each.calls[-1] in behind
                    ]
                    if values:
                        return [values]
        return None

    def _solved(self, path: ast.expr, at: int, index: int) -> list[Any] | None:
        """The number of which others, that calls read, are made without a call."""
        key = key_of(path)
        for statement in readers_of(key, self.text, self.old[0]):
            forms = [
                (form, self._numbers_at(name, at))
                for name, value in assignments_in(statement)
                if (form := form_of(value, key)) is not None
            ]
            for found in solved(*forms[0]) if forms else ():
                if all(form(found) in numbers for form, numbers in forms):
                    return [found]
        return None

    def _parameter(self, path: ast.expr, at: int, index: int) -> list[Any] | None:
        """A parameter of the module on whose line the edit stands, which others alone read."""
        if not isinstance(path, ast.Attribute) or getattr(path.value, "id", "") != "self":
            return None
        ops = (self.recording.op(m.call.position) for _, g in self._made_here() for m in g)
        owners = {op.module for op in ops if op is not None}
        names = {f"{owner}.{path.attr}".lstrip(".") for owner in owners}
        calls = self.segments[at].calls[:index]
        parts = {ref.view for call in calls for ref in refs_in(call.out)}
        found = [
            ref
            for call in calls
            for ref in refs_in(call.args)
            if self.recording.program.names.get(ref.storage) in names and ref.view not in parts
        ]
        return found[:1] if len({ref.view for ref in found}) == 1 else None

    def _assigned_to(self, path: ast.expr, at: int, index: int) -> list[Any] | None:
        """What the one assignment of a name in this function computes."""
        around = function_around(self.text, self.edit.first)
        values = [
            value
            for statement in ast.walk(around)
            if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
            for name, value in assignments_in(statement)
            if key_of(name) == key_of(path)
        ]
        made = self._made(span_of(values[0])) if len(values) == 1 else []
        found = [
            m.call.out
            for segment, group in made
            for m in group
            if segment == at and m.index < index and m.span == span_of(values[0])
            if not is_silent(m.call.func) and m.call.out.__class__ is Ref
        ]
        return found if len(found) == 1 else None

    def _made_here(self) -> list[tuple[int, list[Made]]]:
        """The calls of the statements that the edit replaces."""
        return [each for was in self.old for each in self._made(span_of(was))]

    def _numbers_at(self, name: ast.expr, at: int) -> list[float]:
        """The numbers that calls of the statements that read a name read."""
        return [
            number
            for statement in readers_of(key_of(name), self.text, self.old[0])
            for segment, group in self._made(span_of(statement))
            for each in group
            for number in numbers_in((each.call.args, tuple(each.call.kwargs.values())))
            if segment == at and type(number) in (int, float)
        ]

    def _last_reader(self, at: int, ref: Ref, first: int, runs: int) -> int:
        """The last call that reads a parameter in the function around the edit, from a call on;
        raises NotReplayable where others read it too."""
        around = function_around(self.text, self.edit.first)
        segment, found = self.segments[at], first
        end = min((r.first for r in segment.engine if r.first > first), default=len(segment.calls))
        for index, call in enumerate(segment.calls[first:end], first):
            if any(r.storage == ref.storage for r in refs_in((call.args, call.kwargs))):
                op = self.recording.at(call.position)
                own = op.file == self.edit.file and hasattr(around, "lineno")
                inside_it = own and around.lineno <= op.line <= around.end_lineno  # type: ignore
                if not inside_it or runs > 1:
                    raise NotReplayable("other lines read the parameter that the edit names anew")
                found = index
        return found

    # -- names that are bound anew

    def _renamed(
        self, before: Sequence[ast.stmt], old: Sequence[ast.stmt]
    ) -> Iterator[tuple[Region, Patch]]:
        """Statements put before others that stay: a name has another value from there on."""
        if len(before) != 1 or not isinstance(before[0], ast.Assign) or len(before[0].targets) != 1:
            raise NotReplayable("the edit adds statements whose effect cannot be followed")
        target, value = before[0].targets[0], before[0].value
        if not isinstance(target, ast.Name | ast.Attribute):
            raise NotReplayable("the edit assigns to what is no name")
        load = ast.parse(ast.unparse(target), mode="eval").body
        key = key_of(load)
        for statement in old:
            readers = [
                node
                for node in postorder(statement)
                if isinstance(node, ast.expr)
                and any(key_of(n) == key for n in ast.walk(node) if isinstance(n, ast.expr))
            ]
            for reader in readers:
                made = [
                    (at, [m for m in group if inside(m.span, span_of(reader))])
                    for at, group in self._made(span_of(reader))
                ]
                if not any(m.span == span_of(reader) for _, group in made for m in group):
                    continue
                expression = Expression(reader, self.names)
                for at, group in made:
                    if not group:
                        continue
                    expression = self._expression(reader, _device(group))
                    runs = bind(expression, group, self._value(at))
                    for bound in runs:
                        ref = bound.parts.get(key)
                        if ref.__class__ is not Ref:
                            raise NotReplayable(f"the value of {ast.unparse(target)} is not known")
                        code = _with((), value, {key}, (), self.names)
                        if code.free:
                            raise NotReplayable(
                                f"the value of {ast.unparse(code.free[0])} is not known at this"
                                " line"
                            )
                        region = Region(
                            at, _outermost(bound.calls[-1], bound.out, expression.span, group)
                        )
                        first, exchange = bound.calls[0], _Exchange(code, key, ref)
                        yield region, Patch(at, first, frozenset(), ref, exchange.enter, ahead=True)
                        if ref.storage in self.recording.program.names:  # elsewhere it is as it was
                            last = self._last_reader(at, ref, first, len(runs))
                            yield region, Patch(at, last, frozenset(), ref, exchange.leave)
                return
        raise NotReplayable(f"{ast.unparse(target)} is not read by the lines that follow")


def _only_names(
    recording: Recording, edit: EditLike, named: Mapping[str, tuple[ast.expr, int]]
) -> bool:
    """Whether an edit computes what the statement did, and names parts of it."""
    (old,) = statements_of(text_of(recording, edit.file), edit.first, edit.last)
    *_, new = ast.parse(textwrap.dedent(edit.text)).body
    parts = {name: part for name, (part, _) in named.items()}
    inserted = replaced(new, lambda n: parts.get(n.id) if isinstance(n, ast.Name) else None)
    return key_of(inserted) == key_of(old)


def _index(made: Made) -> int:
    return made.index


def _handed_on(segment: Segment, own: Mapping[int, Call]) -> list[tuple[int, Ref]]:
    """Which results of these calls others of the forward pass read, and the calls' indices."""
    made = {ref.view: (i, ref) for i, call in own.items() for ref in refs_in(call.out)}
    windows = [(run.first, run.last) for run in segment.engine]
    found: dict[Any, tuple[int, Ref]] = {}
    for index, call in enumerate(segment.calls):
        if index in own or any(low <= index < high for low, high in windows):
            continue
        for ref in refs_in((call.args, call.kwargs)):
            if ref.view in made and made[ref.view][0] < index:
                found.setdefault(ref.view, made[ref.view])
    return list(found.values())


class _Exchange:
    """A value that some calls read in another form, and the calls after them as it was."""

    def __init__(self, code: Code, key: str, ref: Ref) -> None:
        self.code, self.key, self.ref = code, key, ref
        self._kept: Any = None

    def enter(self, get: Get) -> Any:
        """The new form."""
        self._kept = get(self.ref)
        return self.code({self.key: self._kept})

    def leave(self, get: Get) -> Any:
        """The value as it was."""
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
    """The last call of the line in this run that an expression stands in, and its result: the last
    before a sum; index, out: those of the expression."""
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


def _over(code: Code, key: str, ref: Ref) -> Callable[[Get], Any]:
    return lambda get: code({key: get(ref)})


def _behind(segment: Segment, index: int, calls: Collection[int]) -> set[int]:
    """Those of some calls that the one at the index is computed from, through them alone."""
    read = {ref.view for ref in refs_in(segment.calls[index].args)}
    found = set()
    for i in sorted((i for i in calls if i < index), reverse=True):
        call = segment.calls[i]
        if any(ref.view in read for ref in refs_in(call.out)):
            found.add(i)
            read |= {ref.view for ref in refs_in(call.args)}
    return found


def _with(
    contexts: Sequence[ast.withitem],
    value: ast.expr,
    used: Any,
    before: Sequence[ast.stmt],
    names: dict[str, Any],
    computed: Collection[str] = (),
) -> Code:
    variables = {key: f"_part{i}" for i, key in enumerate(used)}
    return Code(value, variables, before, names, contexts, computed)


def _is_drawn(call: Call) -> bool:
    """Whether a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ())


def _check_skipped(call: Call) -> None:
    if _is_drawn(call):
        raise NotReplayable("the edit takes away a call that draws random numbers")


def _device(group: Sequence[Made]) -> str:
    return next((m.result.device.type for m in group if isinstance(m.result, Tensor)), "cpu")
