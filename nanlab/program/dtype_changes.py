"""The effects of an edit that changes a dtype: on conversions, on new tensors, on branches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.edit_text import (
    DTYPES,
    EditLike,
    PartOfStatement,
    function_around,
    gives_dtype,
    names_assigned,
    statements_of,
    whole_spans,
)
from nanlab.program.expression import lines_of, names_in, nodes_of, parsed, span_of
from nanlab.program.readings import Readings, text_of
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get
from nanlab.program.values import Values
from nanlab.trace.chunk import Span
from nanlab.trace.program import Ref, Segment, refs_in
from nanlab.trace.recording import Recording

_BY_NAME = {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}


def check_dtypes_asked(
    recording: Recording, values: Values, edits: Sequence[EditLike], patches: Sequence[Patch]
) -> None:
    """Raise NotReplayable where the program asks for a dtype that an edit changes: in a conversion
    that did nothing as it ran, or in a condition."""
    new = {name for edit in edits for name in _dtypes_named(recording, edit)}
    if not new:
        return
    outs = [ref for patch in patches for ref in refs_in(patch.out)]
    dtypes = {ref.dtype for ref in outs} | {_BY_NAME[name] for name in new & _BY_NAME.keys()}
    reached, views = (_reached(values.segments, patches, each) for each in ("storage", "view"))
    for file, ran in _lines_run(recording, values.segments).items():
        text = text_of(recording, file)
        own = {line for e in edits if e.file == file for line in range(e.first, e.last + 1)}
        around = {id(function_around(text, line)) for line in ran}
        edited = {id(function_around(text, line)) for line in own}
        spans = {
            span
            for place, span in zip(recording.places, recording.spans, strict=True)
            if place[0] == file
        }
        for node, base in _asked_in(text):
            function = function_around(text, node.lineno)
            before = id(function) in edited and max(own) > node.lineno
            if id(function) not in around or own & {*lines_of(node)} or before:
                continue
            named = _dtypes_of(node)
            computed = span_of(node) in spans or span_of(base) in spans
            owner = _whose_dtype(node) if computed else None  # it converted to that of a tensor
            if (computed and owner is None) or (named and not named & dtypes):
                continue
            asked = (base, reached) if owner is None else (owner, views)
            if _may_be(recording, values, file, node, *asked):
                asks = "converts" if isinstance(node, ast.Call) else "asks for the dtype of"
                told = f"line {node.lineno} {asks} `{ast.unparse(base)}`"
                raise NotReplayable(f"{told}, whose dtype the edit may change")


def _dtypes_named(recording: Recording, edit: EditLike) -> list[str]:
    """The dtypes that an edit names and the lines it replaces do not."""
    old = "\n".join(text_of(recording, edit.file).splitlines()[edit.first - 1 : edit.last])
    return [name for name in DTYPES if name in edit.text and name not in old]


def _reached(segments: Sequence[Segment], patches: Sequence[Patch], name: str) -> set[Any]:
    """The storages, or views, that patches write, and those computed from them."""
    begun, key = {(patch.segment, patch.at): patch for patch in patches}, attrgetter(name)
    found: set[Any] = set()
    for at, segment in enumerate(segments):
        for index, call in enumerate(segment.calls):
            if (at, index) in begun:
                found |= {key(ref) for ref in refs_in(begun[at, index].out)}
            elif any(key(ref) in found for ref in call.read):
                found |= {key(ref) for ref in refs_in(call.out)}
    return found


def _lines_run(recording: Recording, segments: Sequence[Segment]) -> dict[str, set[int]]:
    """The lines that computed something in the step, those of packages among them, by file."""
    found: dict[str, set[int]] = {}
    for segment in segments:
        for call in segment.calls:
            op = recording.op(call.position)
            for place in {op.place, op.site} - {0} if op is not None else ():
                file, line, _ = recording.places[place]
                found.setdefault(file, set()).add(line)
    return found


def _asked_in(text: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(expression, tensor whose dtype it asks for) of each conversion and each comparison of dtypes
    in a file."""
    for node in nodes_of(parsed(text)) if text else ():
        match node:
            case ast.Call(func=ast.Attribute(value=base, attr=name)):
                if gives_dtype(node, name):
                    yield node, base
            case ast.Compare(left=left, comparators=others):
                for part in (left, *others):
                    match part:
                        case ast.Attribute(value=base, attr="dtype"):
                            yield node, base


def _dtypes_of(node: ast.expr) -> set[torch.dtype]:
    """The dtypes that a conversion or comparison names; a tensor's own dtype is none of them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        found = {name} - {"to", "type"}
    else:
        given, found = [n for n in ast.walk(node) if isinstance(n, ast.expr)], set()
    found |= {each.attr for each in given if isinstance(each, ast.Attribute)}
    return {_BY_NAME[name] for name in found & _BY_NAME.keys()}


def _whose_dtype(node: ast.expr) -> ast.expr | None:
    """The tensor to whose dtype a conversion converts: y of ``x.to(y.dtype)``."""
    given = [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
    owned = (n.value for n in given if isinstance(n, ast.Attribute) and n.attr == "dtype")
    return next(owned, None)


def _may_be(
    recording: Recording,
    values: Values,
    file: str,
    node: ast.expr,
    base: ast.expr,
    reached: set[Any],
) -> bool:
    """Whether a name in a line may stand for one of these storages, or views."""
    readings = Readings(recording, values, file, node.lineno)
    try:
        readings.statements = statements_of(readings.text, node.lineno, node.end_lineno or 0)
    except (NotReplayable, PartOfStatement):
        return True
    known = [
        value
        for at in range(len(values.segments))
        for run in readings.read(base, at)
        for value in run
    ]
    if not known:
        return True
    refs = [ref for ref in known if ref.__class__ is Ref]
    return any(ref.storage in reached or ref.view in reached for ref in refs)


def conversions(
    recording: Recording,
    segments: Sequence[Segment],
    edits: Sequence[EditLike],
    taken: Collection[tuple[int, int]],
) -> Iterator[Patch]:
    """Patches for conversions that did nothing in the step, and do where an edit changes a dtype.

    ``x.to(y.dtype)`` calls no operator where x has this dtype. Raises NotReplayable where a
    conversion is to the dtype of an edited value.
    """
    for edit in edits:
        text = text_of(recording, edit.file)
        old = "\n".join(text.splitlines()[edit.first - 1 : edit.last])
        if not _dtypes_named(recording, edit):
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


def _to(ref: Ref, like: Ref | None = None) -> Callable[[Get], Any]:
    """A function that gives a tensor in its recorded dtype, or in the present one of another."""

    def run(get: Get) -> Any:
        found, dtype = get(ref), ref.dtype if like is None else get(like).dtype
        return None if found.dtype is dtype else found.to(dtype)

    return run


def created(
    recording: Recording, values: Values, edits: Sequence[EditLike], taken: Collection[Any]
) -> Iterator[Patch]:
    """Patches for tensors created in the dtype of another tensor, which an edit may change:
    ``torch.zeros(n, dtype=x.dtype)``."""
    for edit in edits:
        text = text_of(recording, edit.file)
        given = _dtypes_given(text) if any(name in edit.text for name in DTYPES) else {}
        if not given:
            continue
        places = [
            span if place[0] == edit.file else None
            for place, span in zip(recording.places, recording.spans, strict=True)
        ]
        for at, segment in enumerate(values.segments):
            for index, call in enumerate(segment.calls):
                op = None if call.read else recording.op(call.position)
                span = places[op.place] if op is not None else None
                if span not in given or call.out.__class__ is not Ref or (at, index) in taken:
                    continue
                readings = Readings(recording, values, edit.file, span[0])
                with suppress(NotReplayable, PartOfStatement):
                    readings.statements = statements_of(text, span[0], span[2])
                    like = readings.elsewhere(given[span], at, [index])
                    if like.__class__ is Ref:
                        run = _to(call.out, like)
                        yield Patch(at, index, frozenset(), call.out, run, follows=True)


@lru_cache(maxsize=16)
def _dtypes_given(text: str) -> dict[Span, ast.expr]:
    """For each call in a file with ``dtype=x.dtype``: the tensor ``x``."""
    found = {}
    for node in nodes_of(parsed(text)):
        for each in node.keywords if isinstance(node, ast.Call) else ():
            match each:
                case ast.keyword(arg="dtype", value=ast.Attribute(value=like, attr="dtype")):
                    found[span_of(node)] = like
    return found
