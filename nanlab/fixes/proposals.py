"""Texts to write instead of an operation or its makers, not yet tried."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F

from nanlab.analysis.libraries import library_of
from nanlab.analysis.training import optimizer_step_at
from nanlab.errors import NanlabError
from nanlab.fixes.candidates import (
    Candidate,
    candidates,
    carried_over,
    spelled_out,
    takes_all_but_last,
)
from nanlab.fixes.example import Place, guarded, masked, renamed_behind
from nanlab.fixes.guards import AHEAD, BEHIND, GUARDS, IN_FLOAT32, MAKERS, Guard, numbers
from nanlab.fixes.pages import Pages
from nanlab.operators import card, having
from nanlab.program.batch import refs_by_name
from nanlab.program.edit_text import function_around
from nanlab.program.expression import first_line
from nanlab.program.readings import text_of
from nanlab.program.rerun import window
from nanlab.stats import TensorStats
from nanlab.trace.chunk import Span
from nanlab.trace.op import OPTIMIZER, Op, walk
from nanlab.trace.program import Ref, refs_in
from nanlab.trace.recording import Recording

MOST_ROWS = 24  # that are looked at on the way back to what made the operands
MOST_INNER = 200  # of those that one call of a library computes
MOST_MAKERS = 2
LOW = -1e3  # of numbers that may hide a score
VANISHING = 1e-18  # below it a number's square is none
_CAST = re.compile(r"\.(half|bfloat16|to|type)\(")  # that the program wrote itself
_HALF = (torch.float16, torch.bfloat16)
_MAKERS = having("root", "non_negative", "masks", "softmax", "clamps", "floors")
_COUNTED = having("moves", "accumulates", "copies") | {"sum", "mul"}  # of counts these are counts


def pages_of(
    recording: Recording, position: int, file: str, text: str, read: Callable[[str], str]
) -> Pages:
    """The text of a file, and of the program's other files that made operands of the operation at a
    position.

    read: gives a file's text by its name.
    """
    ran: dict[str, list[int]] = {}
    op = forward_of(recording, position)
    for made in _upstream(recording, op) if op is not None else ():
        ran.setdefault(made.file, []).append(made.line)
    return Pages.of(file, text, ran, read)


def proposals(recording: Recording, position: int, pages: Pages) -> list[Candidate]:
    """The statement of an operation with the operation guarded.

    position: of the operation, or of its derivative.
    """
    op = forward_of(recording, position)
    if op is None or not op.line or _is_update(recording, op):
        return []
    found = _guarded(recording, op, pages)
    for maker in _upstream(recording, op, pages):
        if maker.born and maker.place != op.place:
            found += _guarded(recording, maker, pages)
    device = autocast(recording, op)
    if not device:
        return found
    wrapped = (_outside(c, device) if c.title == IN_FLOAT32 else c for c in found)
    return [each for each in wrapped if each is not None]


def library_proposals(recording: Recording, position: int, text: str, line: int) -> list[Candidate]:
    """A library's statement, in whose file an operation stands, with a guard."""
    op = forward_of(recording, position)
    span = recording.spans[op.site] if op and op.site < len(recording.spans) else None
    return proposals_at(recording, position, text, Place(line, span))


def proposals_at(recording: Recording, position: int, text: str, place: Place) -> list[Candidate]:
    """A statement elsewhere than the user's innermost line, with a guard."""
    op = forward_of(recording, position)
    if op is None or _is_update(recording, op):
        return []
    guards = _fitting(GUARDS, facts_of(recording, op))
    return guarded(text, place, guards, _numbers(recording, op))


def _guarded(recording: Recording, op: Op, pages: Pages) -> list[Candidate]:
    facts, place = facts_of(recording, op), _place(recording, op, pages)
    # it hides parts of tensors
    hidden = [] if "number" in facts else masked(pages.text, place, "weighed" in facts)
    guards = _fitting(GUARDS, facts)
    return [*hidden, *guarded(pages.text, place, guards, _numbers(recording, op))]


def _fitting(guards: Iterable[Guard], facts: set[str]) -> list[Guard]:
    """The guards whose conditions all hold."""
    return [g for g in guards if set(g.when.split()) <= facts]


def at_makers(recording: Recording, position: int, pages: Pages) -> list[Candidate]:
    """Statements that make its operands, with these kept off 0 or in range of ``exp``."""
    op = forward_of(recording, position)
    if op is None or not op.line:
        return []
    number, facts = _numbers(recording, op), facts_of(recording, op)
    grows = {"grows", "too-large"} <= facts
    found: list[Candidate] = []
    makers: dict[int, Op] = {}  # elsewhere, the nearest first; of exp its exponent
    for made in _upstream(recording, op, pages):
        if made.place != op.place and (grows or made.base_name in _MAKERS):
            makers.setdefault(made.place, made)
    for maker in list(makers.values())[: 1 if grows else MOST_MAKERS]:
        # 0 times an infinity is NaN without a pole
        harms = op.base_name not in _WITHOUT_POLE or "infinite" in facts
        own = {"vanishes"} if harms and _vanishes(recording, maker.position) else set()
        guards, place = _fitting(MAKERS, facts | own), _place(recording, maker, pages)
        found += guarded(pages.text, place, guards, number, alone=grows)
        if grows:
            found += renamed_behind(pages.text, place, maker.output, BEHIND, number)
    if grows and not found:
        found = guarded(pages.text, _place(recording, op, pages), AHEAD, number)
    return found


def spans_of_makers(recording: Recording, position: int, pages: Pages) -> list[Span]:
    """Places in the program's own code that made operands of a library's operation."""
    op = forward_of(recording, position)
    found = dict[Span, None]()
    if op is None:
        return []
    for made in _upstream(recording, op, pages):
        span = _place(recording, made, pages).span
        own = made.place != op.place and library_of(recording, made.position) is None
        if own and span is not None and made.dtype.is_floating_point:
            found[span] = None
    return [*found][:MOST_MAKERS]


def carried(
    recording: Recording, position: int, pages: Pages, dtype: torch.dtype
) -> list[Candidate]:
    """Forms of the line that need the operand of its operand: the logits instead of their softmax.

    Their maker hands that on: a Sequential called without its last layer, or another function.
    """
    op = forward_of(recording, position)
    found: list[Candidate] = []
    if op is None or not op.line:
        return found
    line = pages.line(op.file, op.line)
    ended: set[Any] = set()  # calls with a later operation that was met
    for maker in _upstream(recording, op, pages):
        span = _place(recording, maker, pages).span
        last = span not in ended
        ended.add(span)
        if maker.base_name.lstrip("_") in _CARRIED and len(found) < MOST_MAKERS:
            lines = _lines_that_read(recording, maker, pages)
            if span is None or not last:
                continue
            name, numbers, several = _last_layer(recording, maker)
            spelled = spelled_out(pages.text, span, name, numbers, several)
            if spelled is not None and several and name in having("compresses", "softmax"):
                made = candidates(spelled[0], line, dtype)
                found += [c for c in made if takes_all_but_last(c)]
            if lines is not None:
                found += carried_over(*(spelled or (pages.text, span)), line, lines)
    return found


def _last_layer(recording: Recording, last: Op) -> tuple[str, tuple[Any, ...] | None, bool]:
    """An operation's name, its numbers beside the operand, and whether its call makes the operand
    too. The numbers are None where they are unknown, or where such a call is not that of a
    Sequential."""
    name, several = last.base_name.lstrip("_"), False
    call = recording.program.call_at(last.position)
    numbers = None if call is None else () if name in having("unary") else call.args[1:2]
    given = (recording.op(at) for at in last.inputs)
    if any(each and each.place == last.place for each in given):
        rows = [r for r in recording.all_ops() if r.place == last.place and r.step == last.step]
        modules = [r.module.split(".") for r in rows if not r.backward]
        depth = len(last.module.split(".")) - 1
        one = all(m[:depth] == modules[0][:depth] and len(m) > depth for m in modules)
        several = True
        if not one or not all(m[depth].isdigit() for m in modules):
            numbers = None
    return name, numbers, several


def _lines_that_read(
    recording: Recording, maker: Op, pages: Pages
) -> dict[int, set[Span | None]] | None:
    """The lines that compute with the result of a call, in any step, each with the places of its
    operations. None where another file than these computes with it."""
    lines: dict[int, set[Span | None]] = {}
    same: set[int] = set()
    for row in recording.all_ops():
        if row.place == maker.place and row.base_name == maker.base_name and not row.backward:
            same.add(row.position)
        if row.backward or not same & set(row.inputs):
            continue
        if row.base_name in _SAME:
            same.add(row.position)
            if row.line == maker.line and row.file == maker.file:  # moved where it is made
                continue
        if row.base_name in having("silent"):
            continue
        if not row.line or not pages.line(row.file, row.line):
            return None
        span = recording.spans[row.place] if row.place < len(recording.spans) else None
        lines.setdefault(pages.line(row.file, row.line), set()).add(pages.span(row.file, span))
    return lines


MOST_HOPS = 3  # from an operation to a product with its result
_CARRIED = having("unary") | {"softmax"}
# An operand that is 0 makes none of these infinite.
_WITHOUT_POLE = having("adds", "sums", "matmul", "dot", "multiplies") - having(
    "divides", "quotient", "singular"
)
_SAME = having("same_elements", "silent")


def _vanishes(recording: Recording, position: int) -> bool:
    """Whether a result holds a 0 or a number close to 0."""
    stats: TensorStats | None = recording.stats(position)
    return stats is None or not stats.known or _is_small(stats)


def _is_small(stats: TensorStats) -> bool:
    return bool(stats.zero or (stats.absmin is not None and stats.absmin < VANISHING))


def filled(
    gaps: Sequence[Guard], recording: Recording, position: int, pages: Pages
) -> list[Candidate]:
    """The statement at which bad data comes in, rewritten to do without the bad values."""
    op = forward_of(recording, position)
    if op is None or not op.line:
        return []
    return guarded(pages.text, _place(recording, op, pages), gaps, _numbers(recording, op))


def _is_update(recording: Recording, op: Op) -> bool:
    """Whether an optimizer of torch computed a result: no line of the program does."""
    if op.phase != OPTIMIZER:
        return False
    step = optimizer_step_at(recording, op.position)
    return step is not None and hasattr(torch.optim, step.optimizer)


def forward_of(recording: Recording, position: int) -> Op | None:
    """The operation at a position; of a derivative in torch the forward one."""
    op = recording.op(position)
    info = recording.nodes.get(op.node) if op is not None and op.backward else None
    return recording.op(info.position) if info is not None and not info.custom else op


def facts_of(recording: Recording, op: Op) -> set[str]:
    """What is true of an operation, of :data:`nanlab.fixes.guards.FACTS`."""
    known = [s for p in op.inputs if (s := recording.stats(p)) is not None and s.known]
    low = [s.min for s in known if s.min is not None]
    high = [s.max for s in known if s.max is not None]
    finite = all(s.is_finite for s in known)
    overflow = op.stats is not None and (op.stats.posinf or op.stats.neginf) and finite
    dtypes = [op.dtype, *(r.dtype for p in op.inputs if (r := recording.op(p)) is not None)]
    half, complex_ = any(d in _HALF for d in dtypes), any(d.is_complex for d in dtypes)
    zero = any(map(_is_small, known))
    kind, count = _divisor(recording, op)
    share = scores_shares(recording, op.position)
    facts = {
        "half" if half else "wide": True,
        "single": all(d == torch.float32 for d in dtypes if d.is_floating_point),
        "complex" if complex_ else "real": True,
        "infinite": not known or any(s.posinf or s.neginf for s in known),
        "low": not known or any(x < LOW for x in low),
        "too-large": not known or (overflow and max(map(abs, [*low, *high]), default=0.0) > 4.0),
        "undefined": op.stats is None or not op.stats.known or op.stats.nan,
        "grows": op.base_name in having("exponential"),
        "pole": not (overflow and _raises_power(recording, op)),
        "zero": not known or zero,
        "negative": not known or any(x < 0 for x in low),
        "weighed": not any(x < 0 for x in low) or _is_masked(recording, op),
        "falling": bool(high) and high[-1] <= 0 and any(x < 0 for x in low[-1:]),
        "empty": not known or any(not s.numel for s in known),
        "number": kind == "number",
        "tensor": kind != "number",
        "count": count,
        "measure": not count,
        "share": share,
        "range": not share,
    }
    return {name for name, holds in facts.items() if holds}


def _raises_power(recording: Recording, op: Op) -> bool:
    """Whether an operation is a power with a positive exponent, a number."""
    call = recording.program.call_at(op.position) if op.base_name == "pow" else None
    exponent = call.args[1] if call is not None and len(call.args) > 1 else None
    return isinstance(exponent, int | float) and exponent > 0


def _divisor(recording: Recording, op: Op) -> tuple[Literal["", "number", "tensor"], bool]:
    """The kind of an operation's divisor, and whether it is a count."""
    slot = card(op.base_name).divisor
    try:
        where = window(recording, op.step)
        at, index, _ = where.find(op.position)
    except NanlabError:
        return "", False
    args = where.segments[at].calls[index].args
    if slot is None or slot >= len(args):
        return "", False
    if not isinstance(args[slot], Ref):
        return "number", isinstance(args[slot], int)
    if args[slot].tracked:
        return "tensor", False  # what is differentiated counts nothing
    before = sum(isinstance(each, Ref) for each in args[:slot])
    return "tensor", before < len(op.inputs) and _is_count(recording, op.inputs[before])


def _is_masked(recording: Recording, op: Op) -> bool:
    """Whether what multiplies the result of an operation, if anything, is masks of zeros and ones
    only. Another weight may be 0 by chance, as a count may: then nobody meant to leave the element
    out."""
    rows = {op.position}
    for _ in range(MOST_HOPS):
        readers = {p for at in rows for p in recording.readers(at) if not recording.at(p).backward}
        for product in (each for p in readers if (each := recording.at(p)).base_name == "mul"):
            factors = (recording.stats(p) for p in product.inputs if p not in rows)
            known = [s for s in factors if s is not None and s.known and s.numel > 1]
            if any(s.min is None or s.min < 0 or not s.absmin == s.max == 1.0 for s in known):
                return False
        rows = readers
    return True


def _is_count(recording: Recording, position: int, most: int = MOST_ROWS) -> bool:
    """Whether a tensor holds whole numbers, told by its dtype or by the dtype that was summed."""
    op, source = recording.op(position), recording.sources.get(position)
    if op is None and source is None:
        return False
    dtype = str(op.dtype if op is not None else source.dtype)  # type: ignore[union-attr]
    if dtype.removeprefix("torch.").startswith(("int", "uint", "bool")):
        return True
    if op is None or not op.inputs:
        stats = recording.stats(position)
        if stats is None or not stats.known or stats.min is None or stats.min < 0:
            return False
        return bool(stats.absmin == stats.max == 1.0)  # zeros and ones
    if most <= 0 or op.base_name not in _COUNTED:
        return False
    return all(_is_count(recording, p, most // 2) for p in op.inputs)


def reads_probabilities(recording: Recording, position: int) -> bool:
    """Whether an operation is computed from data between 0 and 1 that holds a 0 or a 1."""
    op = forward_of(recording, position)
    for at in walk(op.inputs, recording.parents, MOST_ROWS) if op is not None else ():
        source = recording.sources.get(at)
        if source is not None and source.kind == "data" and _is_share(recording.stats(at)):
            return True
    return False


def scores_shares(recording: Recording, position: int) -> bool:
    """Whether an operation reads values between 0 and 1, with a 0 or a 1 among them, that were
    computed from no parameter."""
    op = forward_of(recording, position)
    read = [recording.op(at) for at in op.inputs] if op is not None else []
    made = any(r is not None and r.node < 0 and _is_share(r.stats) for r in read)
    return made or reads_probabilities(recording, position)


def _is_share(stats: TensorStats | None) -> bool:
    if stats is None or not stats.known or stats.numel < 2:
        return False
    low, high = stats.min, stats.max
    if low is None or high is None:
        return False
    return 0 <= low < high <= 1 and (low == 0 or high == 1)


def makes_weight(recording: Recording, position: int) -> bool:
    """Whether an operation of a library makes a layer's weight in a parametrization. The program
    passes nothing to it, so that no argument can be bounded."""
    op = forward_of(recording, position)
    if op is None:
        return False

    def onward(at: int) -> list[int]:
        made = (recording.op(parent) for parent in recording.parents(at))
        return [m.position for m in made if m and m.place == op.place and m.step == op.step]

    rows = [*walk([op.position], onward, MOST_INNER)]
    calls = [each for at in rows if (each := recording.program.call_at(at)) is not None]
    made = {ref.storage for call in calls for ref in refs_in(call.out)}
    read = {ref.storage for call in calls for ref in refs_in(call.args)} - made
    names = [recording.program.names.get(storage, "") for storage in read]
    by_hook = op.base_name == "_weight_norm_interface"  # of torch before parametrizations
    return bool(names) and all(n and (by_hook or ".parametrizations." in n) for n in names)


def reads_masks(recording: Recording, position: int) -> bool:
    """Whether an operation is computed from a mask that the program made, or was given."""
    op = forward_of(recording, position)
    for at in walk(op.inputs, recording.parents, MOST_ROWS) if op is not None else ():
        made = recording.op(at)
        own = made is not None and library_of(recording, at) is None
        held = made if own else recording.sources.get(at)
        if held is not None and str(held.dtype).endswith("bool"):
            return True
    return False


def dtypes_by_name(recording: Recording, position: int) -> dict[str, torch.dtype]:
    """The dtypes of what the function of an operation's line had under a name when its fault
    showed."""
    op = recording.at(position)
    function = first_line(function_around(text_of(recording, op.file), op.line))
    own = [n for n in recording.named if (n.file, n.function) == (op.file, function)]
    end = own[0].position if own else -1
    start = max((begin for begin in recording.starts if begin <= end), default=0)
    calls = (call for each in recording.program.between(start, end + 1) for call in each.calls)
    return {name: ref.dtype for name, ref in refs_by_name(calls, own).items()}


def autocast(recording: Recording, op: Op) -> str:
    """Device type of autocast, if the operation's step cast to half precision at a line that names
    no cast; else ""."""
    for row in recording.all_ops():
        if row.step == op.step and row.name == "_to_copy" and row.dtype in _HALF:
            if not row.backward and not _CAST.search(_line(recording, row)):
                return row.device.split(":")[0]
    return ""


def _line(recording: Recording, op: Op) -> str:
    """The text of an operation's line; empty where it is not at hand."""
    return next(iter(text_of(recording, op.file).splitlines()[op.line - 1 : op.line]), "")


def _outside(candidate: Candidate, device: str) -> Candidate | None:
    """The candidate outside of autocast, which would cast float32 back; of a definition, its body.
    None where a definition has no statement to move."""
    text, head = candidate.text, ""
    with suppress(SyntaxError):
        match ast.parse(text).body:
            case [ast.FunctionDef(body=[first, *_])]:
                rows = text.splitlines(keepends=True)
                at = sum(map(len, rows[: first.lineno - 1]))
                at += len(rows[first.lineno - 1].encode()[: first.col_offset].decode())
                head, text = f"{text[:at].rstrip()}\n", text[at:]
            case [ast.ClassDef()]:
                return None
            case [statement] if isinstance(getattr(statement, "value", None), ast.Lambda):
                return None
    inner = textwrap.indent(text, "    ")
    wrapped = f'with torch.autocast("{device}", enabled=False):\n{inner}'
    return replace(candidate, text=head + (textwrap.indent(wrapped, "    ") if head else wrapped))


def _place(recording: Recording, op: Op, pages: Pages) -> Place:
    span = recording.spans[op.place] if op.place < len(recording.spans) else None
    others = [r for r in recording.all_ops() if r.place == op.place and not r.backward]
    alone = all(r.name in (op.name, "detach") for r in others)
    name = op.base_name.removeprefix("linalg_").lstrip("_")
    own, line = pages.span(op.file, span), pages.line(op.file, op.line)
    if op.site != op.place:  # what is called is a library's function, not the operator
        return Place(line, own)
    if alone or not op.module or {r.module for r in others} != {op.module}:
        return Place(line, own, name if alone else "")
    # a loss that is averaged
    names = [r.name for r in others if r.step == op.step]
    settings = _settings(recording, op, name, names[-1])
    return Place(line, own, name if names[0] == op.name else "", len(op.inputs), settings)


def _settings(
    recording: Recording, op: Op, name: str, last: str
) -> tuple[tuple[str, int | float | str], ...]:
    """The keywords of a torch function that the call gave a value other than the default, as seen
    by its operator, and by the last operator for ``reduction``."""
    function, call = getattr(F, name, None), recording.program.call_at(op.position)
    if function is None or call is None:
        return ()
    try:
        default = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    except ValueError:  # it is written in C++
        return ()
    arguments = (argument.name for argument in call.func._schema.arguments)
    got: dict[str, Any] = dict(zip(arguments, call.args, strict=False))
    got["reduction"] = last if last in ("mean", "sum") else "none"
    given = [(n, v) for n, v in got.items() if isinstance(v, int | float | str)]
    return tuple((n, v) for n, v in given if type(default.get(n)) is type(v) and default[n] != v)


def _dtype(recording: Recording, op: Op) -> torch.dtype:
    """The floating dtype in which it was computed: the narrowest of its operands."""
    found = [r.dtype for p in op.inputs if (r := recording.op(p)) is not None]
    real = [d.to_real() for d in (*found, op.dtype) if d.is_floating_point or d.is_complex]
    return min(real, key=lambda d: d.itemsize, default=torch.float32)


def _numbers(recording: Recording, op: Op) -> dict[str, str]:
    """The numbers that guards of an operation are written with."""
    known = (recording.stats(p) for p in op.inputs[-1:])
    found = [s.absmin for s in known if s is not None and s.absmin]
    read = recording.op(op.inputs[0]) if op.inputs else None
    terms = math.prod(read.shape) // max(math.prod(op.shape), 1) if read is not None else 1
    return numbers(_dtype(recording, op), min(filter(math.isfinite, found), default=None), terms)


def _upstream(recording: Recording, op: Op, pages: Pages | None = None) -> Iterator[Op]:
    """Operations of the step behind an operation's operands, nearest first; of these files."""
    start: Iterable[int] = op.inputs
    if library_of(recording, op.position) is not None:  # what its line does there is one step

        def inner(at: int) -> bool:
            made = recording.op(at)
            return made is not None and made.place == op.place and made.step == op.step

        own = [*walk(start, lambda at: recording.parents(at) if inner(at) else (), MOST_INNER)]
        yield from (made for at in own if inner(at) and (made := recording.op(at)) is not None)
        start = [at for at in own if not inner(at)]
    for at in walk(start, recording.parents, MOST_ROWS):
        made = recording.op(at) if at >= 0 else None
        if made is not None and made.step == op.step and not made.backward and made.line:
            if pages is None or pages.line(made.file, made.line):
                yield made
