"""What the lines of a file computed in a step: their calls, and the values of their names."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.batch import refs_by_name
from nanlab.program.edit_text import (
    argument_of,
    assignments_in,
    comes_later,
    constants_of,
    function_around,
    kept_for_backward,
    readers_of,
    reads_name,
    turned_over,
    whole_spans,
)
from nanlab.program.expression import (
    Bound,
    Expression,
    Made,
    aliases_of,
    all_but_last,
    assigned_pairs,
    bind,
    first_line,
    form_of,
    imports_of,
    inside,
    is_silent,
    key_of,
    last_name,
    lines_of,
    namespace_of,
    nodes_of,
    numbers_in,
    parsed,
    postorder,
    root_of,
    solved,
    span_of,
    stored_in,
    whole_of,
)
from nanlab.program.rerun import ZEROS
from nanlab.program.values import BySegment, Results, Values
from nanlab.trace.chunk import Span
from nanlab.trace.op import RECOMPUTE, Op, is_installed
from nanlab.trace.program import Ref, Segment, refs_in
from nanlab.trace.recording import Recording

MOST_HANDED = 2  # functions through which a value goes on


def text_of(recording: Recording, file: str) -> str:
    """The text of a file or cell, by the name that the tables show."""
    kept = recording.texts.get(file)
    if kept is not None:
        return kept
    real = next((place[2] for place in recording.places if place[0] == file), file)
    return "".join(linecache.getlines(real))


class Readings:
    """A file seen from one of its lines: what its lines computed, and the values of names there."""

    def __init__(self, recording: Recording, shared: Values, file: str, line: int) -> None:
        self.recording, self.shared, self.segments = recording, shared, shared.segments
        self.file, self.line, self.text = file, line, text_of(recording, file)
        self.names = namespace_of(self.text)
        self.statements: Sequence[ast.stmt] = ()  # those at the line
        self.results: list[Results] = []
        self.named: dict[str, tuple[ast.expr, int]] = {}  # parts that edits name, and their lines

    def beside(self, file: str, statement: ast.stmt) -> Readings:
        """The readings of the same step from another statement."""
        there = Readings(self.recording, self.shared, file, statement.lineno)
        there.statements, there.results = [statement], self.results
        return there

    # -- calls

    def made(self, span: Span) -> BySegment:
        """By segment, the calls made in a span of the file, or by a custom Function's backward
        there."""
        key = self.file, span
        if key not in self.shared.lines:
            self.shared.lines[key] = self._made_again(span)
        results, made = self.shared.lines[key]
        self.results.append(results)
        return made

    def _made_again(self, span: Span) -> tuple[Results, BySegment]:
        places, spans, whole = self.recording.places, self.recording.spans, whole_spans(self.text)
        wanted: dict[int, Span] = {
            number: whole.get(own, own)
            for number, (place, own) in enumerate(zip(places, spans, strict=True))
            if own is not None and place[0] == self.file and inside(own, span)
        }
        results, found = Results(self.shared), []
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
                    again = op and op.phase == RECOMPUTE
                    if not own or not op or (op.place == applied and not again):
                        continue
                if op and (place := self._place(op)) in wanted:
                    group.append((index, call, wanted[place]))
            results.want(at, [index for index, _, _ in group])
            found.append((at, group))
        results.run()
        return results, [
            (at, [Made(i, call, span, results.results.get((at, i))) for i, call, span in group])
            for at, group in found
        ]

    def value(self, segment: int) -> Callable[[int, Ref], Any]:
        """A function that gives the value of a reference at the moment when a call began."""

        def value(index: int, ref: Ref) -> Any:
            for results in reversed(self.results):
                found = results.value(segment, index, ref)
                if found is not None:
                    return found
            raise KeyError(ref)

        return value

    def bound(
        self, node: ast.expr, span: Span, made: Sequence[Made], at: int
    ) -> tuple[Expression, list[Bound]]:
        """An expression, and its runs in some calls of a segment, told apart once. Raises
        NotReplayable."""
        known, lines = self.shared.bound, (self.file, self.line)
        key = lines, span, key_of(node), at, tuple(each.index for each in made)
        if key not in known:
            device, kinds = device_of(made), self._kinds
            known_as = {given for given, *_ in imports_of(self.text)}
            known_as |= {alias for alias, of in aliases_of(self.text) if root_of(of) in known_as}
            known_as -= self.names.keys()
            expression = Expression(
                node,
                self.names,
                device,
                kinds,
                constants_of(function_around(self.text, self.line)),
                self._stored,
                self._is_forward,
                known_as,
            )
            expression.span = span
            try:
                known[key] = expression, bind(expression, made, self.value(at))
            except NotReplayable as error:
                # never the one that was raised, which holds the program's frames
                known[key] = NotReplayable(str(error))
        found = known[key]
        if isinstance(found, NotReplayable):
            raise NotReplayable(str(found))
        return found

    def _place(self, op: Op) -> int:
        """The number of a row's line in this file; in a package's file, of the innermost line."""
        return op.site if is_installed(self.file) else op.place

    @cached_property
    def _is_forward(self) -> bool:
        """Whether the step differentiates forward."""
        calls = (call for segment in self.segments for call in segment.calls)
        return any(call.func in ZEROS for call in calls)

    @cached_property
    def _stored(self) -> frozenset[str]:
        """Names of the attributes that are parameters or buffers."""
        return frozenset(n.rpartition(".")[2] for n in self.recording.program.names.values())

    @cached_property
    def _kinds(self) -> dict[str, bool | None]:
        """Keys of names that the function assigns, and their kind: True for results of calls, which
        are tensors; False for plain numbers, from arithmetic that made no call."""
        if self.file not in self.shared.computing:
            calls = (call for segment in self.segments for call in segment.calls)
            rows = (self.recording.at(c.position) for c in calls if any(refs_in(c.out)))
            places, spans_of = self.recording.places, self.recording.spans
            own = [at for at in map(self._place, rows) if places[at][0] == self.file]
            spans = {spans_of[at] for at in own}
            self.shared.computing[self.file] = {places[at][1] for at in own}, spans - {None}
        lines, spans = self.shared.computing[self.file]
        kinds: dict[str, set[bool | None]] = {}
        for statement in nodes_of(function_around(self.text, self.line)):
            for name, value in assignments_in(statement):
                kind = True if span_of(value) in spans else None
                arithmetic = isinstance(value, ast.BinOp | ast.UnaryOp | ast.Constant)
                if arithmetic and lines.isdisjoint(lines_of(value)):
                    kind = False
                kinds.setdefault(key_of(name), set()).add(kind)
        return {key: known.pop() for key, known in kinds.items() if len(known) == 1}

    def last_layers(self, group: Sequence[Made], span: Span) -> list[Made]:
        """The call of the last layer in each run of a Sequential."""
        own = [m for m in group if m.span == span and not is_silent(m.call.func)]

        def layer(m: Made) -> tuple[Any, str]:
            return m.call.func, self.recording.at(m.call.position).module

        return [m for m in own if layer(m) == layer(own[-1])]

    def given_to_last_layer(self, call: ast.Call, line: int, at: int, index: int) -> Ref:
        """The input of a Sequential's last layer, in the last run before an index by a
        statement."""
        for statement in nodes_of(parsed(self.text)):
            if isinstance(statement, ast.stmt) and statement.lineno == line:
                for node in ast.walk(statement):
                    if key_of(node) == key_of(call):
                        group = dict(self.made(span_of(node))).get(at, [])
                        ends = self.last_layers(group, span_of(node))
                        if found := [m for m in ends if m.index < index]:
                            return next(refs_in(found[-1].call.args))
        raise NotReplayable(f"the value of {ast.unparse(all_but_last(call))} is not known")

    # -- names

    def elsewhere(self, path: ast.expr, at: int, reader: Sequence[int]) -> Any:
        """The value, at a call, of a name that the calls of its own line do not show."""
        if isinstance(path, ast.Name) and path.id in self.named:
            part, line = self.named[path.id]
            if (whole := whole_of(part)) is not None:
                return self.given_to_last_layer(whole, line, at, reader[0])
            values = next(self.read(part, at, reader[0], line), None)
            if values is None:
                raise NotReplayable(f"the value of {ast.unparse(part)} is not known")
            return values[-1]
        names = [n.id for n in ast.walk(path) if isinstance(n, ast.Name)]
        values = next(self.read(path, at, reader[0]), None)
        if values is None:
            ways = (self._handed_over, self._iterated, self._solved, self._parameter, self._data)
            more = self._assigned_to, self._kept, self._noted, self._returned, self._passed
            others = (of(path, at, reader) for of in (*ways, *more))
            values = next(filter(None, others), None)
        if values is None or any(comes_later(n, self.text, self.line) for n in names):
            raise NotReplayable(f"the value of {ast.unparse(path)} is not known at this line")
        return values[-1]

    def read(
        self,
        path: ast.expr,
        at: int,
        before: int | None = None,
        line: int = 0,
        within: Collection[int] | None = None,
    ) -> Iterator[list[Any]]:
        """By run, the values that calls of the function's lines read by a name. before: runs before
        this index come first. line: look there alone. within: look at these calls alone."""
        key = key_of(path)
        for statement in readers_of(key, self.text, self.statements[0]):
            if line and statement.lineno != line:
                continue
            for reader in postorder(statement):
                if not isinstance(reader, ast.expr) or not reads_name(reader, key):
                    continue
                if isinstance(getattr(reader, "ctx", None), ast.Store):
                    continue
                for segment, group in self.made(span_of(reader)):
                    group = [m for m in group if within is None or m.index in within]
                    own = [m for m in group if before is None or m.index < before]
                    run = slice(None) if own else slice(1)  # else the next run that reads it
                    own = own or group
                    if segment != at or not any(m.span == span_of(reader) for m in own):
                        continue
                    try:
                        _, bound = self.bound(reader, span_of(reader), own, at)
                    except NotReplayable:
                        continue
                    if key_of(reader) == key:  # it is computed there: a part of a complex number
                        yield [each.out for each in bound[run]]
                    elif values := [each.parts[key] for each in bound[run] if key in each.parts]:
                        yield values

    def _handed_over(
        self, path: ast.expr, at: int, reader: Sequence[int], most: int = MOST_HANDED
    ) -> list[Any] | None:
        """Values of a name that the function passes to another function, which reads them or passes
        them on, and whose parameter gets its value from nowhere else."""
        key, tree = key_of(path), parsed(self.text)
        calls = _calls_in(tree)
        around = function_around(self.text, self.line)
        own = {span_of(n) for n in nodes_of(around) if isinstance(n, ast.Call)}
        for file, callee in self._callees(tree, calls.keys()):
            those = calls.get(callee.name, [])
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
                read, there = ast.Name(name, ast.Load()), self.beside(file, callee.body[0])
                for found in there.read(read, at, reader[0]):
                    if all(same):
                        return found
                    if len(found) == len(same):  # one run for each call
                        return [v for v, is_it in zip(found, same, strict=True) if is_it]
                if all(same) and most:
                    inner = there._iterated(read, at, reader)
                    inner = inner or there._handed_over(read, at, reader, most - 1)
                    if inner:
                        return inner
        return None

    def _callees(self, tree: ast.AST, called: Set[str]) -> Iterator[tuple[str, ast.FunctionDef]]:
        """The functions of the file, and functions of other files that only this file calls by
        name, each with its file."""
        yield from ((self.file, n) for n in nodes_of(tree) if isinstance(n, ast.FunctionDef))
        for file in {place[0]: None for place in self.recording.places}:
            if file == self.file:
                continue
            with suppress(SyntaxError):
                other = parsed(text_of(self.recording, file))
                own = {last_name(n.func) for n in nodes_of(other) if isinstance(n, ast.Call)}
                for callee in other.body:
                    if isinstance(callee, ast.FunctionDef) and callee.name in called - own:
                        yield file, callee

    def _iterated(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """A list or tuple that a comprehension iterates over: of the values that its iterations
        read and that the reader depends on."""
        key = key_of(path)
        for statement in readers_of(key, self.text, self.statements[0]):
            for node in ast.walk(statement):
                if not isinstance(node, ast.ListComp | ast.GeneratorExp):
                    continue
                own = turned_over(node.generators, key)
                if own is None:
                    continue
                for segment, group in self.made(span_of(node.elt)):
                    turns = [each for each in group if each.index < reader[0]]
                    if segment != at or not turns:
                        continue
                    around = function_around(self.text, statement.lineno)
                    span = span_of(around if hasattr(around, "lineno") else statement)
                    whole = {m.index for s, g in self.made(span) for m in g if s == at}
                    behind = _behind(self.segments[at], reader[-1], {*whole, *reader})
                    values = [
                        each.parts[own]
                        for each in self.bound(node.elt, span_of(node.elt), turns, at)[1]
                        if own in each.parts and each.calls[-1] in behind
                    ]
                    if values:
                        return [values]
        return None

    def _solved(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """A number whose value follows from numbers that calls read, such as n from ``n // 2``."""
        key = key_of(path)
        for statement in readers_of(key, self.text, self.statements[0]):
            forms = [
                (form, self._numbers_at(name, at))
                for name, value in assignments_in(statement)
                if (form := form_of(value, key)) is not None
            ]
            for found in solved(*forms[0]) if forms else ():
                if all(form(found) in numbers for form, numbers in forms):
                    return [found]
        return None

    def _numbers_at(self, name: ast.expr, at: int) -> list[float]:
        """The numbers that calls read in the statements that read a name."""
        return [
            number
            for statement in readers_of(key_of(name), self.text, self.statements[0])
            for segment, group in self.made(span_of(statement))
            for each in group
            for number in numbers_in((each.call.args, tuple(each.call.kwargs.values())))
            if segment == at and type(number) in (int, float)
        ]

    def _parameter(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """A parameter read as ``self.name``, by the calls of other lines, in the module of this
        line."""
        if not isinstance(path, ast.Attribute) or getattr(path.value, "id", "") != "self":
            return None
        here = (group for each in self.statements for _, group in self.made(span_of(each)))
        ops = (self.recording.op(m.call.position) for group in here for m in group)
        owners = {op.module for op in ops if op is not None}
        names = {f"{owner}.{path.attr}".lstrip(".") for owner in owners}
        calls = self.segments[at].calls[: reader[0]]
        parts = {ref.view for call in calls for ref in refs_in(call.out)}
        found = [
            ref
            for call in calls
            for ref in refs_in(call.args)
            if self.recording.program.names.get(ref.storage) in names and ref.view not in parts
        ]
        return found[:1] if len({ref.view for ref in found}) == 1 else None

    def _data(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """Data that a library's call gets as its only argument: the one tensor read in there that
        is no parameter and no result of a call in the step."""
        key, segment = key_of(path), self.segments[at]
        made = {ref.storage for call in segment.calls for ref in refs_in(call.out)}
        named = self.recording.program.names
        for statement in readers_of(key, self.text, self.statements[0]):
            for call in nodes_of(statement):
                if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 1:
                    continue
                if key_of(call.args[0]) != key:
                    continue
                read = {
                    ref.view: ref
                    for number, group in self.made(span_of(call))
                    for each in group
                    for ref in refs_in(each.call.args)
                    if number == at and ref.storage not in made and ref.storage not in named
                }
                if len(read) == 1:
                    return [*read.values()]
        return None

    def _noted(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """The tensor that a name of this function had where the fault showed, if the reader reads
        it and no later line of the function assigns the name."""
        around, name = function_around(self.text, self.line), ast.unparse(path)
        names = (n for n in ast.walk(around) if isinstance(n, ast.Name) and n.id == name)
        if any(isinstance(n.ctx, ast.Store) and n.lineno >= self.line for n in names):
            return None
        calls = [self.segments[at].calls[index] for index in reader]
        place = self.file, first_line(around), name
        own = (n for n in self.recording.named if (n.file, n.function, n.name) == place)
        after = (n for n in own if n.position >= calls[0].position)
        # of a later step it is another one
        nearest = min(after, key=lambda n: n.position, default=None)
        return [*refs_by_name(calls, [nearest] if nearest else []).values()] or None

    def _returned(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """The last result of a call before the reader: of a layer, or of the program's function or
        module, by its only ``return``."""
        if not isinstance(path, ast.Call):
            return None
        ways = [self._results_of(path, at, reader)]
        for callee in _functions_called(parsed(self.text), path):
            ends = [n for n in nodes_of(callee) if isinstance(n, ast.Return) and n.value]
            if len(ends) == 1:
                there = self.beside(self.file, ends[0])
                ways.append(there._results_of(ends[0].value, at, reader))
        last = (self._among_read(found[-1:], at, reader) for found in ways)
        return next(filter(None, last), None)

    def _among_read(self, refs: Sequence[Ref], at: int, reader: Sequence[int]) -> list[Any] | None:
        """Those of some values that the reader's calls read."""
        calls = self.segments[at].calls
        read = {ref.view for index in reader for ref in calls[index].read}
        return [ref for ref in refs if ref.view in read] or None

    def _results_of(self, node: ast.expr | None, at: int, reader: Sequence[int]) -> list[Any]:
        """What an expression gave before the reader, as far as calls made it; of views of what
        others made, the last of those that follow each other."""
        span = span_of(node)
        own = [
            m
            for segment, group in self.made(span)
            for m in group
            if segment == at and m.index < reader[0] and m.span == span
            if m.call.out.__class__ is Ref
        ]
        if found := [m.call.out for m in own if not is_silent(m.call.func)]:
            return found
        next_to = {m.index - 1 for m in own}
        return [m.call.out for m in own if m.index not in next_to]

    def _passed(
        self, path: ast.expr, at: int, reader: Sequence[int], most: int = MOST_HANDED
    ) -> list[Any] | None:
        """The value of a parameter of this function: what the file's calls of it pass, other than
        those in itself, where the reader reads one value of theirs."""
        around, tree = function_around(self.text, self.line), parsed(self.text)
        if not isinstance(around, ast.FunctionDef) or not isinstance(path, ast.Name) or not most:
            return None
        names = [a.arg for a in around.args.args]
        names = names[1:] if names[:1] == ["self"] else names
        if path.id not in names or path.id in stored_in(around):
            return None
        place = names.index(path.id)
        found: dict[Any, list[Any]] = {}
        for statement in nodes_of(tree):
            if not isinstance(statement, ast.stmt) or hasattr(statement, "body"):
                continue
            for call in ast.walk(statement):
                if (
                    not isinstance(call, ast.Call)
                    or function_around(self.text, call.lineno) is around
                ):
                    continue
                given = argument_of(call, path.id, place)
                if given is None or around not in _functions_called(tree, call):
                    continue
                there = self.beside(self.file, statement)
                ways = there._assigned_to, there._noted, there._returned
                values = next(filter(None, (of(given, at, reader) for of in ways)), None)
                values = values or there._passed(given, at, reader, most - 1)
                known = [value for value in values or () if value.__class__ is Ref]
                for ref in self._among_read(known[-1:], at, reader) or ():
                    found[ref.view] = [ref]
        return found.popitem()[1] if len(found) == 1 else None

    def turns(self, path: ast.expr, at: int) -> list[list[Ref]]:
        """What a loop takes in each turn, that of this name first, where it goes through the rows
        of a tensor, perhaps with others by ``zip`` or ``enumerate``; empty for any other name."""
        around = function_around(self.text, self.line)
        for loop in nodes_of(around):
            if not isinstance(loop, ast.For | ast.comprehension):
                continue
            names = [key_of(name) for name in _iterated_names(loop.target, loop.iter)]
            if key_of(path) in names:
                made = dict(self.made(span_of(loop.iter))).get(at, [])
                parts = [[*refs_in(m.call.out)] for m in made if m.call.func._opname == "unbind"]
                if len(parts) == len(names):
                    own = parts.pop(names.index(key_of(path)))
                    return [list(taken) for taken in zip(own, *parts, strict=False)]
        return []

    def _kept(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """The value that a custom Function's forward saved for the run of its backward that reads
        it."""
        backward, segment = function_around(self.text, self.line), self.segments[at]
        run = next((r for r in segment.function_runs if r.first <= reader[0] < r.last), None)
        use = next((u for u in segment.functions if run and u.number == run.number), None)
        owners = (n for n in nodes_of(parsed(self.text)) if isinstance(n, ast.ClassDef))
        owner = next((n for n in owners if backward in n.body), None)
        kept = kept_for_backward(owner, backward) if owner is not None else None
        if use is None or kept is None:
            return None
        function, pairs = kept
        there, inside = self.beside(self.file, function.body[0]), range(use.first, use.last)
        for name, value in pairs:
            if ast.unparse(name) == ast.unparse(path):
                return next(there.read(value, at, within=inside), None)
        return None

    def _assigned_to(self, path: ast.expr, at: int, reader: Sequence[int]) -> list[Any] | None:
        """The result of the expression in the function's only assignment to a name: of several, the
        last before the reader, if it reads that."""
        around = function_around(self.text, self.line)
        values = [
            value
            for statement in ast.walk(around)
            if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
            for name, value in assignments_in(statement)
            if key_of(name) == key_of(path)
        ]
        found = self._results_of(values[0], at, reader) if len(values) == 1 else []
        return found if len(found) == 1 else self._among_read(found[-1:], at, reader)


def _iterated_names(target: ast.expr, over: ast.expr) -> list[ast.expr]:
    """The part of a loop's target, as it is read, for each iterable, in the order of these."""
    match target, over:
        case ast.Tuple(elts=[_, name]), ast.Call(func=ast.Name(id="enumerate"), args=[one]):
            return _iterated_names(name, one)
        case ast.Tuple(elts=names), ast.Call(func=ast.Name(id="zip"), args=every):
            pairs = zip(names, every, strict=False)
            return [each for name, one in pairs for each in _iterated_names(name, one)]
        case ast.Name(id=name), _:
            return [ast.Name(name, ast.Load())]
    return [target]


def _behind(segment: Segment, index: int, calls: Collection[int]) -> set[int]:
    """Those of some calls that the call at an index depends on through them alone."""
    read = {ref.view for ref in refs_in(segment.calls[index].args)}
    found = set()
    for i in sorted((i for i in calls if i < index), reverse=True):
        call = segment.calls[i]
        if any(ref.view in read for ref in refs_in(call.out)):
            found.add(i)
            read |= {ref.view for ref in refs_in(call.args)}
    return found


def _functions_called(tree: ast.Module, call: ast.Call) -> list[ast.FunctionDef]:
    """The functions of a file that a call may run: of its name, or ``forward`` of a class of which
    an instance is assigned to the name that is called."""
    functions, made = _callable_in(tree)
    return [*functions.get(last_name(call.func), ()), *made.get(ast.unparse(call.func), ())]


@lru_cache(maxsize=16)
def _callable_in(
    tree: ast.Module,
) -> tuple[dict[str, list[ast.FunctionDef]], dict[str, list[ast.FunctionDef]]]:
    """The functions of a file by their names, and ``forward`` of its classes by the names to which
    their instances are assigned."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    forward: dict[str, ast.FunctionDef] = {}
    made: dict[str, list[ast.FunctionDef]] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            for own in node.body:
                if isinstance(own, ast.FunctionDef) and own.name == "forward":
                    forward[node.name] = own
    for node in nodes_of(tree):
        for name, value in assigned_pairs(node) if isinstance(node, ast.Assign) else ():
            if isinstance(value, ast.Call) and last_name(value.func) in forward:
                made.setdefault(ast.unparse(name), []).append(forward[last_name(value.func)])
    return functions, made


@lru_cache(maxsize=16)
def _calls_in(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """The calls of a file by the last name of the function called, inner calls first."""
    found: dict[str, list[ast.Call]] = {}
    for node in postorder(tree):
        if isinstance(node, ast.Call):
            found.setdefault(last_name(node.func), []).append(node)
    return found


def device_of(group: Sequence[Made]) -> str:
    """The kind of device that some calls ran on."""
    tensors = (m.result for m in group if isinstance(m.result, torch.Tensor))
    return next((t.device.type for t in tensors), "cpu")
