"""Hooks: what one returns takes the place of what a layer gives."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Any

from nanlab.explanations.edits.gradients import is_cut
from nanlab.explanations.site import (
    Candidate,
    Function,
    Site,
    bound_by,
    callee,
    own_nodes,
    spelled,
    spliced,
)
from nanlab.explanations.trial import Source

_NO_TENSOR = re.compile(
    r"must be Tensor|object has no attribute|object is not|expected Tensor|hook"
)


def without_result(site: Site) -> Iterator[Candidate]:
    """A hook that only looks returns nothing, where what it returned was no tensor or was cut from
    the graph, or it kept the same, and it did not raise itself."""
    told = _NO_TENSOR.search(site.text) or is_cut(site)
    for source in site.program.texts:
        calls = (n for n in source.nodes if re.search("register_.*hook$", callee(n)))
        hooks = [h for call in calls for a in getattr(call, "args", []) for h in _hooks(source, a)]
        raised = {at.statement.lineno for at in site.raising if at.source is source}
        ended = [h for h in hooks if raised.isdisjoint(range(h.lineno, h.end_lineno + 1))]
        ended = [h for h in ended if told or _keeps(source, h)]
        pairs = [pair for hook in ended for pair in _silent(source, hook)]
        yield from (Candidate(0.25, spliced(source, [pair])) for pair in pairs)
        if len(pairs) > 1:
            yield Candidate(0.27, spliced(source, pairs))


def of_each_part(site: Site) -> Iterator[Candidate]:
    """What a hook computes with the tuple of arguments that it is given, for each of them."""
    for source in site.program.texts if _OF_SEVERAL.search(site.text) else ():
        calls = [n for n in source.nodes if re.search("register_.*hook$", callee(n))]
        pairs = [(call, given) for call in calls for given in getattr(call, "args", [])]
        for call, given in pairs:
            for hook in _hooks(source, given):
                taken = [each.arg for each in hook.args.args if each.arg != "self"]
                before = "_pre_" in callee(call)
                several = taken[1:2] if before else _tuples(site, hook, taken) or taken[2:]
                for node in (n for n in ast.walk(hook) if isinstance(n, ast.BinOp)):
                    for name in {spelled(node.left), spelled(node.right)}.intersection(several):
                        sides = (node.left, node.right)
                        texts = ("each" if spelled(s) == name else source.part(s) for s in sides)
                        inner = source.part(node)[len(source.part(node.left)) :]
                        sign = inner[: len(inner) - len(source.part(node.right))]
                        text = f"tuple({sign.join(texts)} for each in {name})"
                        yield Candidate(0.25 + 0.1 * (not before), spliced(source, [(node, text)]))


_OF_SEVERAL = re.compile("tuple|sequence|positional arguments|to unpack|attribute")


def _tuples(site: Site, hook: Any, names: list[str]) -> list[str]:
    """The arguments of a hook, which raised, that are tuples."""
    own = [p.frame for p in site.raising if p.function is hook or hook in p.parts()]
    return [name for name in names if own and isinstance(own[0].f_locals.get(name), tuple)]


def _hooks(source: Source, node: Any) -> Iterator[Any]:
    """The functions that an expression stands for: itself, by its name, or made by a call."""
    if isinstance(node, ast.Lambda):
        yield node
    functions = [n for n in source.nodes if isinstance(n, Function)]
    name = getattr(node, "attr", getattr(node, "id", ""))
    yield from (each for each in functions if each.name == name)
    made = [n.value for n in source.nodes if name and name in bound_by(n)]  # type: ignore
    for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
        if kind.name in map(callee, (node, *made)):  # an object that can be called
            yield from (n for n in kind.body if getattr(n, "name", "") == "__call__")
    makers = [each for each in functions if each.name == callee(node) != ""]
    for given in (n.value for each in makers for n in ast.walk(each) if isinstance(n, ast.Return)):
        if isinstance(given, (ast.Lambda, ast.Name)):
            yield from _hooks(source, given)
    if callee(node) == "partial":
        yield from (each for given in node.args[:1] for each in _hooks(source, given))


def _silent(source: Source, hook: Any) -> Iterator[tuple[ast.AST, str]]:
    """What a function returns, so that it is computed and not returned."""
    own = {each.arg for each in hook.args.args} - {"self"}
    if isinstance(hook, ast.Lambda):
        if _does(hook.body, own):
            yield hook.body, _unreturned(source, hook.body)
        return
    for row in own_nodes(hook):
        if isinstance(row, ast.Return) and row.value is not None:
            yield row, source.part(row.value) if _does(row.value, own) else "return"


def _keeps(source: Source, hook: Any) -> bool:
    """Whether a function returns what it keeps elsewhere."""
    if isinstance(hook, ast.Lambda):
        return callee(hook.body) in ("append", "setdefault", "update")
    rows = [n for n in own_nodes(hook) if isinstance(n, ast.Assign)]
    parts = [
        t for row in rows for t in row.targets if isinstance(t, (ast.Subscript, ast.Attribute))
    ]
    kept = [source.part(t) for t in parts]
    kept += [source.part(row.value) for row in rows if {*parts}.intersection(row.targets)]
    calls = [n for n in own_nodes(hook) if callee(n) == "append"]
    kept += [source.part(a) for call in calls for a in getattr(call, "args", [])]
    kept += [f"{source.part(call.func.value)}[-1]" for call in calls]  # type: ignore[attr-defined]
    given = [n.value for n in own_nodes(hook) if isinstance(n, ast.Return) and n.value]
    return any(source.part(value) in kept for value in given)


def _does(node: ast.expr, own: set[str]) -> bool:
    """Whether an expression calls what may change something else than what a hook is given."""
    roots = {_root(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return bool(roots - own - {"", *vars(builtins)})


def _root(node: Any) -> str:
    """The name that an expression begins with; empty: with none."""
    while node is not None and not isinstance(node, ast.Name):
        node = getattr(node, "value", getattr(node, "func", None))
    return node.id if node is not None else ""


def _unreturned(source: Source, node: ast.expr) -> str:
    """An expression computed as before, without returning it."""
    text = source.part(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "setdefault" and len(node.args) == 2:
            key, value = map(source.part, node.args)
            return f"{source.part(node.func.value)}.update({{{key}: {value}}})"
    if isinstance(node, ast.Tuple):
        return f"({', '.join(map(source.part, node.elts))}, None)[-1]"
    return f"({text}, None)[-1]"
