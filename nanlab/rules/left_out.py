"""Samples that a program could leave out: a condition on its data that they alone fail."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from nanlab.analysis.libraries import with_keyword
from nanlab.errors import NanlabError
from nanlab.findings.fault import listed, plural, verb
from nanlab.findings.rule import Edit, Finding, Fix
from nanlab.operators import having
from nanlab.program.batch import LeftOut, data_of, readers_of, refs_by_name
from nanlab.program.expression import (
    assigned_pairs,
    first_line,
    last_name,
    names_in,
    names_of,
    parsed,
)
from nanlab.program.readings import text_of
from nanlab.program.replay import Replay, without_rows
from nanlab.program.rerun import Window, written_by
from nanlab.program.values import Values
from nanlab.trace import Trace
from nanlab.trace.op import Op
from nanlab.trace.program import Ref, refs_in
from nanlab.trace.recording import NamedTensor, Recording

Tensor = torch.Tensor
# What the samples that stay have, and what the others are.
OF_ROWS = {
    "{x}.flatten(1).isfinite().all(1)": "not finite",
    "{x}.flatten(1).any(1)": "all zeros",
    "{x}.flatten(1).amax(1) > {x}.flatten(1).amin(1)": "one number throughout",
    "{x}.flatten(1).diff(dim=1).all(1)": "equal to its neighbour somewhere",
}
OF_MASKS = "{x}.flatten(1).sum(1) > {most}"
OF_NUMBERS = {"{x}.isfinite()": "not finite", "{x} != 0": "0", "{x} > 0": "not above 0"}
WEIGH_MORE = "and the others weigh more"
DEVIATIONS = having("deviation")
_OF_FEW = frozenset(("empty-reduction", "std-of-constant"))  # causes that lie in too few samples
NEAR = 1e-4  # relative; how far a loss may be from the mean of those of its samples
ROUNDING = 1e-5  # of the largest gradient, by which another is off that is 0
MOST = 0.5  # of a batch that is left out
MOST_PLACES = 3  # in a function that are tried
_BLOCKS = ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_NESTED = _FUNCTIONS | ast.ClassDef | ast.Lambda


def without_samples(trace: Trace, finding: Finding, where: Window, values: Values) -> list[Fix]:
    """The batch without the samples of a finding, where their data tells them from the others;
    tried."""
    if not finding.harmful:
        return []
    named = trace.recording.named
    every = (each for each in named if where.start <= each.position < where.end)
    data = data_of(where)
    untried: dict[int, Fix] = {}  # by line, the first
    for (file, _), group in groupby(every, key=lambda each: (each.file, each.function)):
        own = [n for n in group if n.storage in data]
        batch = {n.name: n for n in _of_one_size(own, max(finding.samples, default=0))}
        samples = finding.samples or _failed(where, values, finding, batch.values())
        refs = refs_by_name(where.calls, batch.values()) if samples else {}
        text = text_of(trace.recording, file)
        for statement, names in _first_readers(where, text, own[0], refs) if refs else ():
            known = {name: ref for name, ref in refs.items() if name in names}
            if _others_stay_whole(where, batch, known):
                continue
            for name, condition, said, rows in _conditions(where, values, known, samples):
                written = _written(text, statement, condition, [*known])
                row = text.splitlines()[statement.lineno - 1]
                edit = Edit(file, statement.lineno, statement.lineno, written, row)
                left = tuple(each for each in batch.values() if each.name in known)
                out = LeftOut(known[name].size[0], rows, left)
                fix = _fix(edit, name, said, out)
                try:
                    if without_rows(where, out).finite:
                        return [fix]
                except NanlabError as error:
                    if not _is_made_of(where, finding.position, out):
                        continue
                    fix = replace(fix, verdict="untried", why=str(error), distortion=None)
                    untried.setdefault(statement.lineno, fix)
    return [*untried.values()][-1:]


def _failed(
    where: Window, values: Values, finding: Finding, batch: Collection[NamedTensor]
) -> list[int]:
    """The samples of a batch that are not finite in the first result which has a row for each, on
    the way from where the finding is to where it shows."""
    count = next((each.size[0] for each in batch), 0)
    rows = {row["position"] for row in finding.path}
    for at, segment in enumerate(where.segments):
        for index, call in enumerate(segment.calls):
            out = call.out
            if call.position in rows and out.__class__ is Ref and out.size[:1] == (count,):
                try:
                    ((_, shown),) = values.of([(at, index)])
                except NanlabError:
                    return []
                if shown.result is None:
                    return []
                bad = ~shown.result.isfinite().reshape(count, -1).all(1)
                found: list[int] = bad.nonzero().flatten().tolist()
                if len(found) < count:
                    return found
    return []


def _others_stay_whole(where: Window, batch: dict[str, NamedTensor], cut: dict[str, Ref]) -> bool:
    """Whether other tensors of the batch are read with all their rows once some have fewer."""
    start = next((call.position for _, _, call in readers_of(where, [*cut.values()])), 0)
    whole = {each.storage for name, each in batch.items() if name not in cut}
    whole -= {ref.storage for ref in cut.values()}
    later = [call for call in where.calls if call.position >= start]
    written = {ref.storage for call in later for ref in refs_in(call.out)}
    written -= {ref.storage for call in later for ref in call.read if not written_by(call)}
    return any(ref.storage in whole - written for call in later for ref in call.read)


def is_mean_of_samples(where: Window, fix: Fix) -> Fix:
    """A fix that leaves samples out, verified where the loss and its gradients are the mean, or
    the sum, of what each sample that stays gives by itself."""
    out = fix.left_out
    kept = [] if out is None else [row for row in range(out.rows) if row not in out.without]
    if out is None or len(kept) < 2 or fix.verdict != "finite":
        return fix
    half = len(kept) // 2
    groups = [kept, kept[:half], kept[half:]]
    try:
        whole, *parts = (
            without_rows(where, replace(out, without=(*({*range(out.rows)} - {*group}),)))
            for group in groups
        )
    except NanlabError:
        return fix
    shares = [len(group) / len(kept) for group in groups[1:]]
    if not any(_adds_up(whole, parts, weights) for weights in (shares, [1.0, 1.0])):
        return fix
    sizes = [float(g.abs().max()) for g in whole.gradients.values() if g.numel()]
    return replace(
        fix, verdict="verified", why="", distortion=None, gradient_max=max(sizes, default=None)
    )


def _adds_up(whole: Replay, parts: Sequence[Replay], weights: Sequence[float]) -> bool:
    """Whether a loss and its gradients are the weighted sum of those of parts of the batch."""
    if whole.loss is None or any(part.loss is None for part in parts):
        return False
    shapes = [{n: g.shape for n, g in each.gradients.items()} for each in (whole, *parts)]
    every = [n for n, shape in shapes[0].items() if all(n in other for other in shapes)]
    shared = [n for n in every if len({other[n] for other in shapes}) == 1]  # not of data
    if not shared or len(every) < len(whole.gradients):
        return False
    pairs = [(torch.tensor(whole.loss), [torch.tensor(part.loss) for part in parts])]
    pairs += [(whole.gradients[n], [part.gradients[n] for part in parts]) for n in shared]
    noise = ROUNDING * _size([whole.gradients[n] for n in shared])
    for total, each in pairs:
        own = [weight * part.double() for weight, part in zip(weights, each, strict=True)]
        off = (own[0] + own[1] - total).abs()
        if not bool((off <= NEAR * _size([total, *own]) + noise).all()):
            return False
    return True


def _size(tensors: Sequence[Tensor]) -> float:
    """The largest magnitude in some tensors."""
    return max((float(t.abs().max()) for t in tensors if t.numel()), default=0.0)


def _is_made_of(where: Window, position: int, out: LeftOut) -> bool:
    """Whether a result of the step is computed from tensors that lose rows, as far as can be told:
    no other is mended."""
    refs = [*refs_by_name(where.calls, out.tensors).values()]
    start = next((call.position for _, _, call in readers_of(where, refs)), 0)
    failed = where.recording.at(position).call
    fewer = {ref.storage for ref in refs}
    for call in where.calls:
        reads = any(ref.storage in fewer for ref in call.read)
        if call.position == failed:
            return reads and call.position >= start
        if reads and call.position >= start:
            fewer |= {ref.storage for ref in refs_in(call.out)} | {*written_by(call)}
    return True


def without_last_batch(trace: Trace, finding: Finding) -> list[Fix]:
    """The loader without its last batch, where a step fails by how few samples that has: in all
    steps before, which went well, the same line had more."""
    recording = trace.recording
    op = recording.op(finding.position)
    if finding.cause not in _OF_FEW or op is None or finding.step < 1:
        return []
    op = recording.op(recording.made_by(op.position).position) or op
    here = _read_first(recording, op)
    sizes: dict[int, int] = {}  # by step; one that was folded has few rows left
    for row in recording.all_ops():
        shape = _read_first(recording, row)
        if row.place == op.place and row.step < op.step and shape[1:] == here[1:] and shape:
            sizes[row.step] = max(sizes.get(row.step, 0), shape[0])
    if not here or not sizes or here[0] >= min(sizes.values()):
        return []
    text = text_of(recording, finding.file)
    made = with_keyword(text, "DataLoader", "drop_last", "True")
    if made is None or "batch_sampler" in made.text:
        return []
    begun = [recording.step_of(first) for first, _ in recording.batches]
    given = [n.name for n in recording.named if n.file == finding.file and n.size[:1] == here[:1]]
    from_loader = finding.step in begun or _comes_from(text, given, "DataLoader")
    if not from_loader and "num_workers" not in made.text:  # the step's data are others
        return []
    old = "\n".join(text.splitlines()[made.first - 1 : made.last])
    edit = Edit(finding.file, made.first, made.last, made.text, old)
    return [
        Fix(
            "leave out the last batch, which is shorter: drop_last=True",
            edit.text,
            verdict="finite",
            why=f"the last batch, of {plural(here[0], 'sample')}, is left out",
            edits=(edit,),
        )
    ]


def _comes_from(text: str, names: Sequence[str], made: str) -> bool:
    """Whether a file gives one of some names what an object of a class yields: by its assignments
    and loops."""
    tree, seen, waiting = parsed(text), set[str](), [*names]
    given: list[tuple[ast.AST, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            given += assigned_pairs(node)
        elif isinstance(node, ast.For | ast.comprehension):
            given += [(t, node.iter) for t in ast.walk(node.target) if isinstance(t, ast.Name)]
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for target, value in given:
            if ast.unparse(target) == name:
                calls = (n for n in ast.walk(value) if isinstance(n, ast.Call))
                if any(last_name(call.func) == made for call in calls):
                    return True
                waiting += [n for n in names_in(value) if n not in seen]
    return False


def _read_first(recording: Recording, op: Op) -> tuple[int, ...]:
    """The shape of the first tensor that an operation reads; () if unknown."""
    read = recording.op(op.inputs[0]) if op.inputs else None
    return tuple(read.shape) if read is not None else ()


def left_out(count: int, numel: int, what: str) -> str:
    """What is said of a fix that changes no more than how much the others weigh."""
    return f"{count:,} of {plural(numel, what)} {verb(count, 'is', 'are')} left out, {WEIGH_MORE}"


def _fix(edit: Edit, name: str, said: str, out: LeftOut) -> Fix:
    """The edit, with which the step is finite."""
    count, samples = len(out.without), listed([str(row) for row in out.without], 4)
    which = f"{verb(count, 'sample', 'samples')} {samples}, where `{name}` is {said}"
    return Fix(
        f"leave out {which}",
        edit.text,
        verdict="finite",
        why=left_out(count, out.rows, "sample"),
        edits=(edit,),
        distortion=count / (out.rows - count),
        left_out=out,
    )


def _of_one_size(named: Sequence[NamedTensor], largest: int) -> list[NamedTensor]:
    """Those that share the most common number of rows, in which a row of that number is."""
    sizes = Counter(n.size[0] for n in named if n.size[0] > max(largest, 1))
    return [n for n in named if n.size[0] == sizes.most_common(1)[0][0]] if sizes else []


def _first_readers(
    where: Window, text: str, stood: NamedTensor, refs: dict[str, Ref]
) -> Iterator[tuple[ast.stmt, set[str]]]:
    """The first statements of a function that read the batch, or what is made of it, once all that
    is read from there on stands; and the names of that.

    stood: a tensor of the function, which tells where that was in the step.
    """
    tree = parsed(text)
    functions = (n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS))
    made = next((f.body for f in functions if first_line(f) == stood.function), [])
    every = _own_nodes(ast.Module(made, []) if stood.function else tree)
    ran = {where.recording.places[where.recording.at(c.position).place][1] for c in where.calls}
    own = _that_ran(_up_to([*every], stood.line), ran, {*refs})
    stored = dict.fromkeys(refs, 0)
    for node in own:
        if isinstance(node, ast.expr) and (name := _stores(node)) in stored:
            stored[name] = max(stored[name], node.lineno)
    for last in sorted({*stored.values()})[:MOST_PLACES]:
        known = {name: refs[name] for name, at in stored.items() if at <= last}
        first = next((call.position for _, _, call in readers_of(where, [*known.values()])), -1)
        op = where.recording.at(first)
        line = op.line if op and op.file == stood.file else 0
        place = _first_reader(text, _behind_loops(own, line), {*known}, last)
        if place is not None:
            yield place


def _up_to(own: Sequence[ast.AST], line: int) -> list[ast.AST]:
    """The nodes of a function up to the statement at a line, all of its block among them: a watch
    ends at the line of its ``with``."""
    end = line
    for s in own:
        if isinstance(s, ast.stmt):
            last = s.end_lineno or s.lineno
            head = s.body[0].lineno - 1 if isinstance(s, _BLOCKS) else last
            end = max(end, last) if s.lineno <= line <= head else end
    return [n for n in own if _lines(n)[0] <= end]


def _that_ran(own: Sequence[ast.AST], ran: set[int], names: set[str]) -> list[ast.AST]:
    """The nodes without those of branches that compute with some names, and of which no line ran;
    ran: the lines that made something."""
    blocks = [each for n in own if isinstance(n, ast.If) for each in (n.body, n.orelse) if each]
    skipped = list[tuple[int, int]]()
    for block in blocks:
        first, last = block[0].lineno, _lines(block[-1])[1]
        inner = (
            n for s in block for n in ast.walk(s) if isinstance(n, ast.Attribute | ast.Subscript)
        )
        computes = any(isinstance(n.value, ast.Name) and n.value.id in names for n in inner)
        if computes and ran.isdisjoint(range(first, last + 1)):
            skipped.append((first, last))
    return [n for n in own if not any(a <= _lines(n)[0] <= b for a, b in skipped)]


def _behind_loops(own: Sequence[ast.AST], line: int) -> Sequence[ast.AST]:
    """The nodes without those of loops that end before a line, if the function has that."""
    if not any(isinstance(n, ast.expr) and _lines(n)[0] == line for n in own):
        return own
    loops = [_lines(n) for n in own if isinstance(n, ast.For | ast.While) and _lines(n)[1] < line]
    return [n for n in own if not any(a <= _lines(n)[0] <= b for a, b in loops)]


def _lines(node: ast.AST) -> tuple[int, int]:
    """The first and last line of a node; 0 where it has none."""
    return getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)


def _first_reader(
    text: str, own: Sequence[ast.AST], names: set[str], last: int
) -> tuple[ast.stmt, set[str]] | None:
    """The first statement behind a line that reads one of these names, and those that are read from
    there on."""
    read = [
        n
        for n in own
        if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
        if n.lineno > last
    ]
    statements = [n for n in own if isinstance(n, ast.stmt)]
    first = min((n.lineno for n in read), default=0)
    rows = text.splitlines()
    around = [
        s
        for s in statements
        if last < s.lineno <= first <= (s.end_lineno or s.lineno)
        if not rows[s.lineno - 1].lstrip().startswith("elif ")  # what begins above it does
    ]
    if not around:
        return None
    statement = max(around, key=lambda s: s.lineno)
    # not behind a colon or a semicolon
    begins = not rows[statement.lineno - 1][: statement.col_offset].strip()
    whole = statement.lineno == statement.end_lineno or hasattr(statement, "body")
    return (statement, {n.id for n in read}) if begins and whole else None


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or file, without those of functions in it."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, _NESTED):
            yield child
            yield from _own_nodes(child)


def _stores(node: ast.expr) -> str:
    """The name that an expression gives a value to, or to a part of it."""
    if not isinstance(getattr(node, "ctx", None), ast.Store):
        return ""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _conditions(
    where: Window, values: Values, known: dict[str, Ref], samples: Sequence[int]
) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """(name, condition on it, what those are that fail it, their rows) of what tells the samples
    from the others."""
    for name, ref in known.items():
        value = _value(where, values, ref)
        if value is None or not (value.is_floating_point() or value.dim() > 1):  # labels
            continue
        forms = OF_ROWS if value.dim() > 1 else OF_NUMBERS
        if value.dim() > 1 and not value.is_floating_point():
            forms = {**forms, **_of_mask(value, samples)}
        for form, said in forms.items():
            try:
                stays = eval(form.format(x="x"), {"x": value})
            except Exception:  # rows without elements
                continue
            rows = (~stays).nonzero().flatten().tolist()
            if rows == sorted(samples) and len(rows) <= MOST * len(stays):
                yield name, form.format(x=name), said, tuple(rows)


def _of_mask(value: Tensor, samples: Sequence[int]) -> dict[str, str]:
    """The condition that a sample is longer than some are, by what a mask counts of each."""
    if bool(((value != 0) & (value != 1)).any()) or max(samples) >= len(value):
        return {}
    most = int(value.flatten(1).sum(1)[[*samples]].max())
    return {OF_MASKS.format(x="{x}", most=most): f"not longer than {most}"}


def _value(where: Window, values: Values, ref: Ref) -> Tensor | None:
    """A tensor as the first call that reads it saw it; None where that cannot be run again."""
    for at, index, _ in readers_of(where, [ref]):
        try:
            ((_, shown),) = values.of([(at, index)])
        except NanlabError:
            return None
        return shown.read.get(ref.view)
    return None


def _written(text: str, statement: ast.stmt, condition: str, names: Sequence[str]) -> str:
    """The row of a statement below two that leave the rows out."""
    taken = {*names_of(text)}
    keep = next(n for n in ("keep", "kept", "rows_kept", "_keep") if n not in taken)
    picked = ", ".join(f"{name}[{keep}]" for name in names)
    row = text.splitlines()[statement.lineno - 1].strip()
    return f"{keep} = {condition}\n{', '.join(names)} = {picked}\n{row}"
