"""A function of the program under ``nanlab.safe.limit``, as patches of the step."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.edit_text import EditLike, assignments_in, root_of, whole_spans
from nanlab.program.expression import (
    assigned_pairs,
    imports_of,
    last_name,
    lines_of,
    names_in,
    nodes_of,
    parsed,
    span_of,
    stored_in,
)
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get
from nanlab.program.slices import Slice, cut
from nanlab.program.values import Values
from nanlab.safe.limit import Memory, limited
from nanlab.trace.chunk import Span
from nanlab.trace.program import Call, EngineRun, FunctionUse, Ref, Segment, refs_in
from nanlab.trace.recording import Recording

DECORATOR = "@nanlab.safe.limit"
_LOOPS = (ast.For, ast.While, ast.comprehension, ast.ListComp, ast.GeneratorExp)
_ACTS = frozenset({"backward", "grad", "step", "zero_grad", "print"})
_TRANSFORMS = frozenset({"vmap", "jvp", "vjp", "jacrev", "jacfwd", "hessian", "compile", "script"})
_WRITES = frozenset({"append", "extend", "insert", "update", "pop", "add", "setdefault"})


def decorated(text: str, edit: EditLike) -> ast.FunctionDef | None:
    """The function that an edit puts under the decorator; None: it does something else."""
    if not edit.text.startswith(DECORATOR + "\n"):
        return None
    functions = (n for n in nodes_of(parsed(text)) if isinstance(n, ast.FunctionDef))
    return next((n for n in functions if n.lineno == edit.first), None)


def under_limit(text: str, line: int) -> Iterator[ast.FunctionDef]:
    """The functions that compute a line and may be called again, the innermost first."""
    functions, seen = _Functions.of(text), list[ast.FunctionDef]()
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


@dataclass(frozen=True)
class _Ran:
    """Where the step computed something, in one file."""

    lines: Set[int]
    spans: Set[Span | None]  # of the calls and operators that did

    def explains(self, call: ast.Call, around: ast.AST) -> bool:
        """Whether a call computed at its own place, or was not made."""
        return span_of(call) in self.spans or call.lineno in _not_run(around, self.lines)

    def reached(self, function: ast.AST, functions: Sequence[ast.FunctionDef]) -> bool:
        """Whether lines of its own computed something."""
        whole = not hasattr(function, "lineno")  # the file
        inner = (f for f in functions if whole or f.lineno in lines_of(function)[1:])
        own = {*lines_of(function)} if not whole else self.lines
        return not self.lines.isdisjoint(own - {line for f in inner for line in lines_of(f)})


class _Functions:
    """The functions of a file, and who calls whom."""

    def __init__(self, text: str) -> None:
        tree = parsed(text)
        self.all = [n for n in nodes_of(tree) if isinstance(n, ast.FunctionDef)]
        self.known = _known(tree, self.all)
        self.imported = {given for given, *_ in imports_of(text)}
        self.calls: dict[ast.AST, list[ast.Call]] = {f: [] for f in (tree, *self.all)}
        called: set[int] = set()
        for call in (n for n in nodes_of(tree) if isinstance(n, ast.Call)):
            called.add(id(call.func))
            around = (f for f in self.all if call.lineno in lines_of(f))
            self.calls[max(around, key=lambda f: f.lineno, default=tree)].append(call)
        every = (
            last_name(call.func)
            for calls in self.calls.values()
            for call in calls
            if not (isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id))
        )
        self.transforms = not _TRANSFORMS.isdisjoint(every)
        self.classes = {n.name for n in nodes_of(tree) if isinstance(n, ast.ClassDef)}
        self.whole = tree
        returned = {
            id(n)
            for r in nodes_of(tree)
            if isinstance(r, ast.Return)
            for n in getattr(r.value, "elts", [r.value])
        }
        names = {
            last_name(n)
            for n in nodes_of(tree)
            if isinstance(n, ast.Name | ast.Attribute) and id(n) not in called | returned
        }
        # functions that somebody is given, alone or as an object's
        self.given = [f for f in self.all if f.name in ("forward", "__call__") or (f.name in names)]

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, text: str) -> _Functions:
        """Those of a text."""
        return cls(text)

    def callees(self, call: ast.Call, around: ast.AST) -> list[ast.FunctionDef] | None:
        """The functions of the file that may be called, none for one of torch's, of a tensor or of
        Python; None: not known."""
        name, root = last_name(call.func), root_of(call.func)
        if root in self.imported:
            return []
        if name in self.known:
            return self.known[name]
        if not isinstance(call.func, ast.Name) and root != "self":
            return []  # of a tensor
        local = isinstance(call.func, ast.Name) and _is_lambda(around, name)
        local |= name in self.classes  # makes an object
        return [] if local or hasattr(builtins, name) or hasattr(torch.Tensor, name) else None

    def callers(self, function: ast.FunctionDef) -> list[ast.FunctionDef]:
        """The functions that call one, or may where it was given to them."""
        found = []
        for other in (f for f in self.all if f is not function and f.name != "__init__"):
            each = [self.callees(call, other) for call in self.calls[other]]
            known = any(c is not None and function in c for c in each)
            if known or (None in each and function in self.given):
                found.append(other)
        return found

    def behind(
        self, function: ast.FunctionDef, ran: _Ran | None = None
    ) -> tuple[list[ast.FunctionDef], list[ast.FunctionDef]]:
        """The functions that run in one, itself first, and those of them that others call, too.

        ran: what the step computed; None: what the text alone tells. Raises NotReplayable where it
        does more than compute.
        """
        if ran is not None and not ran.reached(function, self.all):
            raise NotReplayable(f"nothing that {function.name} computes itself ran in the step")
        if self.transforms:
            raise NotReplayable("it may be run under a transform of torch.func")
        found, todo, asked = [function], [function], False
        while todo:
            body = todo.pop()
            inner = [f for f in self.all if f is not body and f.lineno in lines_of(body)]
            own = {*stored_in(body), *(f.name for f in inner)}
            for call in (call for f in (body, *inner) for call in self.calls[f]):
                name, callees = last_name(call.func), self.callees(call, body)
                if ast.unparse(call.func).endswith("autograd.grad"):
                    continue
                if name in _ACTS or (name in _WRITES and root_of(call.func) not in own):
                    raise NotReplayable(f"{body.name} does more than compute")
                new = callees or []
                if callees is None and ran is not None and not ran.explains(call, body):
                    new, asked = self.given, True
                    if not any(ran.reached(f, self.all) for f in new):
                        raise NotReplayable(f"{body.name} calls what may do more than compute")
                if ran is not None and span_of(call) in ran.spans:
                    new = []  # a method of a tensor, or a layer
                elif ran is not None and len(new) > 1:
                    new = [f for f in new if ran.reached(f, self.all)]
                more = [f for f in new if f not in found and f not in inner]
                found += more
                todo += more
        return found, [] if ran is None else self._shared(found, asked, ran)

    def _shared(
        self, found: Sequence[ast.FunctionDef], asked: bool, ran: _Ran
    ) -> list[ast.FunctionDef]:
        """The functions behind one that others that ran call, too. Raises NotReplayable where what
        these make may be what the one is given: then it is not known where it begins.

        asked: whether some of them are known by having run alone.
        """
        others = [f for f in (self.whole, *self.all) if f not in found and ran.reached(f, self.all)]
        sharing: list[ast.AST] = []
        for _ in others:  # those that call some, and those that call these
            for other in (f for f in others if f not in sharing):
                for call in self.calls[other]:
                    callees = self.callees(call, other)
                    unclear = callees is None and asked and not ran.explains(call, other)
                    if unclear or any(f in (*found[1:], *sharing) for f in callees or ()):
                        sharing.append(other)
                        break
        for other in sharing:
            for call in self.calls[other]:
                callees = self.callees(call, other)
                if callees is None or found[0] in callees:
                    if self._is_fed(call, other, [*found[1:], *sharing], callees is None and asked):
                        name = getattr(other, "name", "the file")
                        raise NotReplayable(f"{name} runs a part of {found[0].name}, too")
        called = [c for other in sharing for c in self.calls[other]]
        known = [f for call in called for f in self.callees(call, self.whole) or ()]
        todo = [f for f in found[1:] if f in known]
        for function in todo:  # and what these call
            for call in self.calls[function]:
                more = self.callees(call, function) or ()
                todo += [f for f in more if f in found[1:] and f not in todo]
        return todo

    def _is_fed(
        self, call: ast.Call, around: ast.AST, shared: Sequence[ast.AST], unclear: bool
    ) -> bool:
        """Whether a call is given what one of some functions has made, as far as names tell."""
        if unclear:
            return True
        read, known = names_in(*call.args, *(k.value for k in call.keywords)), set[str]()
        values: list[ast.AST] = [*call.args, *call.keywords]
        while read - known:
            name = (read - known).pop()
            known.add(name)
            for statement in (n for n in ast.walk(around) if isinstance(n, ast.stmt)):
                if name in stored_in(statement) and not hasattr(statement, "body"):
                    values.append(statement)
                    read |= names_in(statement)
        calls = {id(n): n for v in values for n in ast.walk(v) if isinstance(n, ast.Call)}
        calls.pop(id(call), None)
        return any(
            callees is None or any(f in shared for f in callees)
            for callees in (self.callees(each, around) for each in calls.values())
        )


def _known(tree: ast.AST, functions: Sequence[ast.FunctionDef]) -> dict[str, list[ast.FunctionDef]]:
    """By the names that they are called by; of an object of a class of the file, its ``forward`` or
    ``__call__`` by the object's name."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for function in (f for f in functions if f.name not in ("forward", "__call__")):
        found.setdefault(function.name, []).append(function)
    called = {
        each.name: method
        for each in nodes_of(tree)
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name in ("forward", "__call__")
    }
    for statement in (n for n in nodes_of(tree) if isinstance(n, ast.Assign)):
        for name, value in assigned_pairs(statement):
            if isinstance(value, ast.Call) and last_name(value.func) in called:
                found.setdefault(last_name(name), []).append(called[last_name(value.func)])
    return found


def _is_lambda(body: ast.AST, name: str) -> bool:
    """Whether a name is that of a lambda of the function's own."""
    given = [v for n in ast.walk(body) for t, v in assignments_in(n) if last_name(t) == name]
    return bool(given) and all(isinstance(value, ast.Lambda) for value in given)


def patches_of(
    recording: Recording, values: Values, text: str, file: str, function: ast.FunctionDef
) -> Iterator[tuple[int, int, Any, Patch]]:
    """(segment, index of the last call, result, patch) of each run. Raises NotReplayable."""
    in_file = {n: place[1] for n, place in enumerate(recording.places) if place[0] == file}
    own = [_calls_at(recording, segment, in_file) for segment in values.segments]
    numbers = {recording.at(call.position).place for calls in own for call in calls.values()}
    whole = whole_spans(text)
    spans = {whole.get(span, span) for span in (recording.spans[number] for number in numbers)}
    ran = _Ran({in_file[number] for number in numbers}, spans)
    functions, shared = _Functions.of(text).behind(function, ran)
    lines = {line for f in functions for line in lines_of(f)}
    alone = lines - {line for f in shared for line in lines_of(f)}
    places = {number for number, line in in_file.items() if line in lines}
    loops = {line for n in ast.walk(parsed(text)) if isinstance(n, _LOOPS) for line in _lines_in(n)}
    for at, segment in enumerate(values.segments):
        calls = _calls_at(recording, segment, places)

        def enter(run: EngineRun, segment: Segment = segment) -> bool:
            return _place_of(recording, segment, run) in places

        for part in _runs(values, at, segment, calls, enter):
            made = [item for _, _, item in part.items if isinstance(item, Call)]
            if not any(recording.at(call.position).line in alone for call in made):
                continue  # somebody else ran it
            _check(recording, part, calls, loops)
            indices = {index for _, index, item in part.items if isinstance(item, Call)}
            runs = [item for _, _, item in part.items if isinstance(item, EngineRun)]
            last = max(indices)
            if any(run.last > last for run in runs):
                raise NotReplayable("it gives a gradient itself")
            gone = indices | _unread(segment, calls, indices, part)
            gone |= {index for run in runs for index in range(run.first, run.last)}
            firsts = frozenset(run.first for run in runs)
            out = part.targets[0] if len(part.targets) == 1 else part.targets
            run = _under_limit(part, calls)
            patch = Patch(at, last, frozenset(gone), out, run, runs=firsts)
            yield at, last, part.targets[-1], patch


def _place_of(recording: Recording, segment: Segment, run: EngineRun) -> int:
    """The number of the place that called the engine; -1 where that made no call."""
    if run.last == run.first:
        return -1
    position = segment.calls[run.first].position
    return max(
        (p for p in recording.passes if p.position <= position), key=lambda p: p.position
    ).line


def _not_run(function: ast.AST, ran: Collection[int]) -> set[int]:
    """Lines of the sides of conditions that computed nothing where the other side did."""
    found: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            sides = [
                {line for each in side for line in lines_of(each)}
                for side in (node.body, node.orelse)
            ]
            did = [not side.isdisjoint(ran) for side in sides]
            if did[0] != did[1]:
                found |= sides[did[0]]
    return found


def _lines_in(node: ast.AST) -> Iterator[int]:
    for each in ast.walk(node):
        if hasattr(each, "lineno"):
            yield each.lineno


def _under_limit(part: Slice, own: dict[int, Call]) -> Callable[[Get], Any]:
    """The run under limits; what it makes of numbers alone stays as it is."""
    made = {ref.view for call in own.values() for ref in refs_in(call.out)}
    given = [ref for ref in part.operands if ref.view not in made]
    known: Memory = {}

    def run(get: Get) -> Any:
        fixed = {ref: get(ref) for ref in part.operands if ref.view in made}
        whole = part.function()

        def fn(*values: Any) -> Any:
            each = {ref: t.clone() for ref, t in fixed.items()}  # it may write into them
            each |= dict(zip(given, values, strict=True))
            return whole(*(each[ref] for ref in part.operands))

        found = limited(fn, [get(ref) for ref in given], known)
        return found[0] if len(found) == 1 else tuple(found)

    return run


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
    """What is computed in a function and read outside, run by run.

    enter: whether a run of the engine is a part of it.
    """
    calls = {id(call) for call in own.values()}

    def outside(call: Call) -> bool:
        return id(call) not in calls

    groups: list[tuple[set[int], list[tuple[int, Ref]]]] = []
    for index, ref in _handed_on(segment, own):
        if ref.dtype.is_complex:
            raise NotReplayable("it gives complex numbers, of which no limits are known")
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


def _unread(segment: Segment, own: dict[int, Call], made: Collection[int], part: Slice) -> set[int]:
    """Calls of a function that nobody outside reads, and that read what is not made any more.
    Raises NotReplayable where somebody does."""
    read_outside = {ref.view for _, ref in _handed_on(segment, own)}
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


def _handed_on(segment: Segment, own: dict[int, Call]) -> list[tuple[int, Ref]]:
    """Which results of these calls others of the forward pass read, or the engine begins with."""
    made = {ref.view: (i, ref) for i, call in own.items() for ref in refs_in(call.out)}
    windows = [(run.first, run.last) for run in segment.engine]
    read = [ref for run in segment.engine for ref in refs_in(run.roots)]
    for index, call in enumerate(segment.calls):
        if index not in own and not any(low <= index < high for low, high in windows):
            read += refs_in(call.read)
    found = {ref.view: made[ref.view] for ref in read if ref.view in made}
    return list(found.values())


def _check(recording: Recording, part: Slice, own: dict[int, Call], loops: Collection[int]) -> None:
    """Raise NotReplayable where a run does more than compute, or is several."""
    makers = (c for c in own.values() if not (c.func.is_view or c.func._schema.is_mutable))
    created = {ref.storage for call in makers for ref in refs_in(call.out)}
    for call in own.values():
        if torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ()):
            raise NotReplayable("it draws random numbers, and would be called again")
        written = {ref.storage for ref in refs_in(call.args[:1])}
        if call.func._schema.is_mutable and not written <= created:
            raise NotReplayable("it writes a tensor of others, and would be called again")
    counts: Counter[Any] = Counter()
    for _, _, item in part.items:
        if isinstance(item, FunctionUse):
            raise NotReplayable("a Function is applied in it")
        if not isinstance(item, Call):
            continue
        op = recording.at(item.position)
        if op.line not in loops:
            counts[op.place, item.func] += 1
    if counts and min(counts.values()) > 1:
        raise NotReplayable("several runs of the function follow each other")
