"""Code whose operations torch.fx records as a graph: its branches, lengths and switches."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanlab.explanations.site import (
    Candidate,
    Place,
    Site,
    bound_by,
    callee,
    first_line,
    lines_as,
    names_in,
    own_nodes,
    spelled,
)

_TRACED = re.compile(r"symbolic(ally)? trac|Proxy\b")
_SIZES = ("size", "shape", "dim", "ndim", "numel", "len")


def recorded(site: Site) -> Iterator[Candidate]:
    """A condition that depends on what is traced, as an operation of the graph, or left out where
    it changes nothing."""
    if not _TRACED.search(site.text) or not site.raising:
        return
    place = replace(site.raising[0], distance=0.0)
    yield from _switches(site, place)
    for call in place.calls():
        if callee(call) == "float" and "float()" in site.text and len(call.args) == 1:
            yield place.replaced(0.1, (call, place.text(call.args[0])))
        if callee(call) == "len" and "'len'" in site.text and len(call.args) == 1:
            yield place.replaced(0.1, (call, f"{place.whole(call.args[0])}.size(0)"))
    row: Any = place.statement
    if isinstance(row, ast.Assert):
        told = f", {place.text(row.msg)}" if row.msg is not None else ', ""'
        yield place.replaced(0.1, (row, f"torch._assert({place.text(row.test)}{told})"))
    elif isinstance(row, ast.If):
        yield from _without_branch(place, row)
    for part in place.parts():
        if isinstance(part, ast.IfExp) and not _asks_for_sizes(part.test):
            texts = map(place.text, (part.test, part.body, part.orelse))
            yield place.replaced(0.2, (part, f"torch.where({', '.join(texts)})"))
    yield from _apart(site, place)


_OPPOSITE = {
    ast.NotEq: "==",
    ast.Eq: "!=",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
}


def checks_recorded(site: Site) -> Iterator[Candidate]:
    """A check that raises, as an assertion that is recorded with the rest of a traced module."""
    for source in site.program.texts if "control flow" in site.text else ():
        for node in source.nodes:
            raised = node.body[0] if isinstance(node, ast.If) and len(node.body) == 1 else None
            told = getattr(getattr(raised, "exc", None), "args", None)
            if not isinstance(node, ast.If) or not isinstance(raised, ast.Raise) or node.orelse:
                continue
            test = node.test
            if not told or not isinstance(test, ast.Compare) or len(test.ops) != 1:
                continue
            sign = _OPPOSITE.get(type(test.ops[0]))
            left, right = source.part(test.left), source.part(test.comparators[0])
            indent = " " * node.col_offset
            row = f"{indent}torch._assert({left} {sign} {right}, {source.part(told[0])})"
            if sign is not None:
                first, last = node.lineno, node.end_lineno or 0
                yield Candidate(0.3, (lines_as(source, first, last, row),))


def _switches(site: Site, place: Place) -> Iterator[Candidate]:
    """Switches of ``forward`` that the one who traces it gives their values: it takes all of its
    arguments for tensors, those with defaults too."""
    function = place.function
    test = getattr(place.statement, "test", None)
    read = names_in(test) if isinstance(test, ast.expr) else set[str]()
    if function is None:
        return
    taken = function.args
    defaults: list[Any] = [*taken.defaults, *taken.kw_defaults]
    names = [
        a.arg for a in (*taken.args[len(taken.args) - len(taken.defaults) :], *taken.kwonlyargs)
    ]
    known = zip(names, defaults, strict=True)
    plain = {n: d for n, d in known if getattr(d, "value", None) is not None}
    plain = {n: d for n, d in plain.items() if n in read or isinstance(d.value, bool)}
    if not read & {*plain}:
        return
    told = ", ".join(f'"{n}": {place.text(d)}' for n, d in plain.items())
    for above in site.raising[1:]:
        for call in above.calls():
            given = {k.arg for k in call.keywords}
            if callee(call) in ("symbolic_trace", "trace") and "concrete_args" not in given:
                yield replace(above, distance=0.0).added(0.05, call, f"concrete_args={{{told}}}")


def _without_branch(place: Place, row: ast.If) -> Iterator[Candidate]:
    """A branch as one operation: a cut that changes nothing where it is not needed, or a choice
    among elements."""
    test, last = row.test, row.body[-1]
    if len(row.body) > 1 or len(row.orelse) > 1:
        return
    own = place.text(last)
    if not row.orelse and _is_cut(test, last):
        yield place.written(0.1, own)
    if _asks_for_sizes(test):
        return
    other = row.orelse[0] if row.orelse else None
    chosen = f"torch.where({place.text(test)}, "
    if isinstance(last, ast.Assign) and len(last.targets) == 1 and spelled(last.targets[0]):
        name = spelled(last.targets[0])
        if other is None or bound_by(other) == [name]:
            rest = name if other is None else place.text(getattr(other, "value", other))
            yield place.written(0.2, f"{name} = {chosen}{place.text(last.value)}, {rest})")
    elif isinstance(last, ast.Return) and last.value is not None:
        after = place.block[place.block.index(row) + 1 :]
        then = other or (after[0] if after else last)
        if isinstance(then, ast.Return) and then.value is not None and then is not last:
            text = f"return {chosen}{place.text(last.value)}, {place.text(then.value)})"
            if other is not None:
                yield place.written(0.2, text)
            elif len(after) == 1:
                indent = " " * row.col_offset
                source, end = place.source, then.end_lineno or 0
                edit = lines_as(source, row.lineno, end, indent + text)
                yield Candidate(0.2, (edit,))


def _asks_for_sizes(test: ast.AST) -> bool:
    """Whether a condition asks how large something is: that is no tensor to choose by."""
    names = (getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(test))
    return any(name in _SIZES for name in names)


def _is_cut(test: ast.AST, row: ast.stmt) -> bool:
    """Whether a statement leaves as much of a tensor as its size is compared with:
    ``if x.size(1) > n: x = x[:, -n:]``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Gt | ast.GtE):
        return False
    value = row.value if isinstance(row, ast.Assign) else None
    if not isinstance(value, ast.Subscript) or bound_by(row) != [spelled(value.value)]:
        return False
    index = value.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    cut = [n for n in parts if isinstance(n, ast.Slice) and (n.lower or n.upper)]
    limit, name = ast.dump(test.comparators[0]), spelled(value.value)
    asked = re.escape(name) + r"\.(size\((\d+)\)|shape\[(\d+)\])|len\(" + re.escape(name) + r"\)"
    told = re.fullmatch(asked, ast.unparse(test.left))
    if told is None or len(cut) != 1 or len(test.ops) > 1 or cut[0].step is not None:
        return False
    first = isinstance(cut[0].lower, ast.UnaryOp) and isinstance(cut[0].lower.op, ast.USub)
    end: Any = cut[0].lower
    ends = cut[0].upper is None and first and ast.dump(end.operand) == limit
    begins = cut[0].lower is None and cut[0].upper and ast.dump(cut[0].upper) == limit
    whole = all(isinstance(n, ast.Slice) for n in parts)
    return bool(whole and (ends or begins) and parts.index(cut[0]) == int(told[2] or told[3] or 0))


def _apart(site: Site, place: Place) -> Iterator[Candidate]:
    """What cannot be traced as one call of the graph: a function of the program that
    ``torch.fx.wrap`` names, or one that a branch of ``forward`` is moved into."""
    tree, function = place.source.tree, place.function
    if function is None:
        return
    if function in tree.body and len(site.raising) > 2:  # it is not what is traced itself
        own = replace(place, statement=function)
        yield own.written(0.15, "@torch.fx.wrap\n{}")
    around = next(
        (n for n in tree.body if n.lineno <= function.lineno <= (n.end_lineno or 0)), None
    )
    row = place.statement
    inside = [*ast.walk(row)]
    kinds = (ast.Return, ast.Break, ast.Continue, ast.Await, ast.Yield, ast.Raise)
    called = {spelled(n.func) for n in inside if isinstance(n, ast.Call)}
    named = re.search(r"^(int|float)\(\) argument", site.text)
    if named is not None and around is not None:
        head = replace(place, statement=around)
        yield head.written(0.3, f'torch.fx.wrap("{named[1]}")\n\n\n{{}}')
    branches = isinstance(row, ast.If | ast.For) and not any(isinstance(n, kinds) for n in inside)
    if around is None or not branches:
        return
    made = [name for n in inside if isinstance(n, ast.stmt) for name in bound_by(n)]
    earlier = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    for node in own_nodes(function):
        if isinstance(node, ast.stmt) and node.lineno < row.lineno:
            earlier |= {*bound_by(node)}
    after = [n for n in own_nodes(function) if getattr(n, "lineno", 0) > (row.end_lineno or 0)]
    later = {spelled(n) for n in after}
    bound = [name for name in dict.fromkeys(made) if name in earlier | later]
    names = dict.fromkeys(filter(None, map(spelled, inside)))
    read = sorted(
        (n for n in names if n != "self" and (n in earlier or n[:5] == "self.")),
        key=lambda n: n[:5] == "self.",
    )
    alone = [n for n in inside if getattr(n, "id", "") == "self"]
    attributes = [n for n in inside if spelled(n)[:5] == "self."]
    held = any(name[:5] == "self." for name in called | {*bound})  # in the module
    if not bound or not {*bound} <= earlier or len(alone) > len(attributes) or held:
        return
    arguments = [each.removeprefix("self.") for each in read]
    if len({*arguments}) < len(arguments):
        return
    name, results = f"branch_of_{bound[0]}", ", ".join(bound)
    rows = [each.removeprefix(" " * row.col_offset) for each in place.text(row).splitlines()]
    body = re.sub(r"\bself\.(\w+)", r"\1", textwrap.indent("\n".join(rows), "    "))
    new = f"@torch.fx.wrap\ndef {name}({', '.join(arguments)}):\n{body}\n    return {results}"
    top = first_line(around)
    above = lines_as(place.source, top, top, f"{new}\n\n\n{place.source.lines[top - 1]}")
    moved = place.written(0.25, f"{results} = {name}({', '.join(read)})")
    yield replace(moved, edits=(*moved.edits, above))
