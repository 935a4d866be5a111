"""The text of an edit and of the lines around it: statements, names, calls."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

import torch

from nanlab.errors import NotReplayable
from nanlab.program.expression import (
    assigned_pairs,
    functions_around,
    key_of,
    last_name,
    nodes_of,
    parsed,
    replaced,
    root_of,
    shows_shape,
    span_of,
    stored_in,
    whole_of,
)

Tensor = torch.Tensor


class EditLike(Protocol):
    """Lines ``first`` to ``last`` of ``file`` become ``text``."""

    @property
    def file(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def text(self) -> str: ...


DTYPES = ("float", "double", "half", "dtype")
_CONVERT = ("half", "float", "double", "bfloat16", "type_as")
_DTYPE_NAMES = ("dtype", "float", "bfloat", "half", "double")


def gives_dtype(node: ast.Call, method: str) -> bool:
    """Whether a method gives a tensor a dtype."""
    if method not in ("to", "type"):
        return method in _CONVERT
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(ast.unparse(each).split(".")[-1].startswith(_DTYPE_NAMES) for each in given)


def names_assigned(old: str) -> set[str]:
    """The names that lines assign to."""
    try:
        return {*stored_in(ast.parse(textwrap.dedent(old)))}
    except SyntaxError:
        return set()


def function_around(text: str, line: int) -> ast.AST:
    """The innermost function that holds a line; the file where none does."""
    tree = parsed(text)
    return [tree, *functions_around(tree, line)][-1]


def named_parts(text: str, edit: EditLike) -> dict[str, tuple[ast.expr, int]]:
    """Parts of one statement that an edit names before it: by name, with the line."""
    try:
        (old,), (*before, new) = both_forms(text, edit)
    except (SyntaxError, ValueError, NotReplayable, PartOfStatement):
        return {}
    known: dict[str, ast.expr] = {}
    there = {key_of(n) for n in ast.walk(old) if isinstance(n, ast.expr)}
    for statement in before:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in known:
                if key_of(whole_of(value) or value) not in there:
                    return {}
                known[name] = value
            case _:
                return {}
    used = known.keys() & _names_of(text) if known else ()
    read = [n.id for n in ast.walk(new) if isinstance(n, ast.Name) and n.id in known]
    if used or sorted(read) != sorted(known):  # each once
        return {}
    return {name: (value, old.lineno) for name, value in known.items()}


@lru_cache(maxsize=16)
def _names_of(text: str) -> frozenset[str]:
    """The names that stand in a file."""
    return frozenset(n.id for n in nodes_of(parsed(text)) if isinstance(n, ast.Name))


def number_changed(text: str, edit: EditLike) -> dict[str, tuple[Any, Any]]:
    """The name that an edit gives another number, with both numbers; empty otherwise."""
    with suppress(SyntaxError, ValueError, NotReplayable, PartOfStatement):
        old, new = both_forms(text, edit)
        match [*old, *new]:
            case [
                ast.Assign(targets=[ast.Name() as name], value=was),
                ast.Assign(targets=[ast.Name(other)], value=is_now),
            ] if name.id == other:
                numbers = ast.literal_eval(was), ast.literal_eval(is_now)
                return {key_of(ast.Name(other, ast.Load())): numbers}
    return {}


def whole_expressions(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """The full calls of Sequentials that some code calls without the last layer."""
    for node in nodes:
        yield from (w for n in ast.walk(node) if (w := whole_of(n)) is not None)


@lru_cache(maxsize=16)
def whole_spans(text: str) -> dict[Any, Any]:
    """Spans of the method calls on lines of their own, as the interpreter reports them, with the
    span of the whole call."""
    found = {}
    for node in nodes_of(parsed(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, line = node.func, node.func.end_lineno or 0
            if name.lineno != line:
                start = (name.end_col_offset or 0) - len(name.attr.encode())
                found[line, start, node.end_lineno, node.end_col_offset] = span_of(node)
    return found


def outward_of(
    was: ast.stmt, now: ast.stmt, old: ast.expr | None, new: ast.expr | None
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of expressions at the same place in two statements, around a part and from the
    innermost on; without a part, the whole ones."""
    pairs: list[tuple[ast.expr, ast.expr]] = []

    def visit(a: ast.AST, b: ast.AST) -> bool:
        if isinstance(a, ast.expr) and old is not None and key_of(a) == key_of(old):
            if isinstance(a, ast.Call):
                pairs.append((a, b))  # type: ignore[arg-type]
            return True
        children = zip(ast.iter_child_nodes(a), ast.iter_child_nodes(b), strict=False)
        if not any(visit(x, y) for x, y in children):
            return False
        if isinstance(a, ast.expr) and isinstance(b, ast.expr):
            pairs.append((a, b))
        return True

    if old is None or new is None:
        a, b = getattr(was, "value", None), getattr(now, "value", None)
        return iter([(a, b)] if isinstance(a, ast.expr) and isinstance(b, ast.expr) else [])
    visit(was, now)
    return iter(pairs)


def statements_with(key: str, text: str) -> Iterator[ast.stmt]:
    """The simple statements of a file that call an object."""
    for statement in nodes_of(parsed(text)):
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body"):
            if any(
                key_of(part) == key
                for node in ast.walk(statement)
                if isinstance(node, ast.Call)
                for part in (node.func, getattr(node.func, "value", node.func))
            ):
                yield statement


def local_makers(statement: ast.stmt | ast.expr, text: str) -> dict[str, ast.Call]:
    """The calls that make the objects that some code calls, by the objects' names. Each is a
    function's only assignment to its name."""
    around = function_around(text, statement.lineno)
    called = {root_of(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)}
    given = [n.arg for n in ast.walk(around) if isinstance(n, ast.arg)]
    stored = [*given, *stored_in(around)]
    return {
        name.id: value
        for each in ast.walk(around)
        for name, value in assignments_in(each)
        if isinstance(name, ast.Name) and isinstance(value, ast.Call)
        if value.lineno < statement.lineno and name.id in called and stored.count(name.id) == 1
    }


def passed_makers(statement: ast.stmt | ast.expr, text: str) -> dict[str, ast.Call]:
    """The calls that make what some code passes to calls by a name, each the last assignment to it,
    in a block around the code."""
    around, found = function_around(text, statement.lineno), dict[str, ast.Call]()
    calls = (n for n in ast.walk(statement) if isinstance(n, ast.Call))
    passed = {
        each.id
        for n in calls
        for each in (*n.args, *(k.value for k in n.keywords))
        if isinstance(each, ast.Name)
    }
    block: Sequence[ast.AST] = [around]
    while passed and block:
        inner = [n for n in block if getattr(n, "lineno", 0) <= statement.lineno]
        last = inner[-1] if inner else None
        for each in inner[:-1]:
            for name in passed.intersection(stored_in(each)):
                found.pop(name, None)  # of an outer block
            for target, value in assignments_in(each):
                if isinstance(target, ast.Name) and isinstance(value, ast.Call):
                    if target.id in passed:
                        found[target.id] = value
        blocks = (getattr(last, field, []) for field in ("body", "orelse", "finalbody"))
        holding = (b for b in blocks if isinstance(b, list) and b and _holds(b, statement.lineno))
        block = next(holding, [])
    return found


def _holds(block: Sequence[ast.stmt], line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or 0)


def with_makers(node: ast.expr, makers: Mapping[str, ast.Call]) -> ast.expr:
    """An expression in which each name is replaced by the call that makes its object."""
    made: ast.expr = replaced(node, lambda n: makers.get(n.id) if isinstance(n, ast.Name) else None)
    return made


def name_given(statement: ast.stmt, value: ast.expr) -> ast.expr | None:
    """The name that a statement gives to a value; None where it gives it none of its own."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    for name, each in assigned_pairs(statement):
        if isinstance(name, ast.Name | ast.Attribute) and span_of(each) == span_of(value):
            return ast.parse(ast.unparse(name), mode="eval").body
    return None


def leaves_autocast(contexts: Sequence[ast.withitem]) -> bool:
    """Whether ``with torch.autocast(..., enabled=False):`` is all that stands around."""
    text = ast.unparse(contexts[0].context_expr) if len(contexts) == 1 else ""
    return "autocast(" in text and text.endswith("enabled=False)")


def called_in_float32(old: ast.expr, new: ast.expr) -> ast.Call | None:
    """The call whose arguments became ``.float()``; None where more has changed."""
    if not isinstance(old, ast.Call) or not isinstance(new, ast.Call):
        return None
    wide = []
    for a, b in zip(ast.iter_child_nodes(old), ast.iter_child_nodes(new), strict=False):
        if key_of(a) == key_of(b):
            continue
        match b:
            case ast.Call(func=ast.Attribute(value=inner, attr="float"), args=[]) if key_of(
                inner
            ) == key_of(a):
                wide.append(a)
            case _:
                return None
    return old if wide and len(old.args) == len(new.args) else None


def changed_arguments(old: ast.expr, new: ast.expr) -> list[tuple[ast.Call, ast.expr, ast.expr]]:
    """(call, argument, present one) of each differing argument; none if more differs."""
    found: list[tuple[ast.Call, ast.expr, ast.expr]] = []

    def visit(a: ast.AST, b: ast.AST, call: ast.Call | None) -> bool:
        if key_of(a) == key_of(b):
            return True
        plain = isinstance(a, ast.Name | ast.Attribute | ast.Call)
        if plain and isinstance(b, ast.expr) and isinstance(a, ast.expr) and call is not None:
            if reads_name(b, key_of(a)):
                found.append((call, a, b))
                return True
        if type(a) is not type(b):
            return False
        within = a if isinstance(a, ast.Call) else call
        pairs = list(zip(ast.iter_fields(a), ast.iter_fields(b), strict=True))
        for (_, x), (_, y) in pairs:
            xs, ys = (v if isinstance(v, list) else [v] for v in (x, y))
            if len(xs) != len(ys):
                return False
            for one, other in zip(xs, ys, strict=True):
                if isinstance(one, ast.AST) and isinstance(other, ast.AST):
                    if not visit(one, other, within):
                        return False
                elif one != other:
                    return False
        return True

    return found if visit(old, new, None) else []


def reads_name(node: ast.AST, key: str) -> bool:
    """Whether an expression reads the value of a key, beyond its shape."""
    if isinstance(node, ast.expr) and key_of(node) == key:
        return True
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "").endswith("_as"):
        return reads_name(node.func, key)
    return not shows_shape(node) and any(reads_name(n, key) for n in ast.iter_child_nodes(node))


def comes_later(name: str, text: str, line: int) -> bool:
    """Whether the function around a line binds a name only on that line or further down."""
    function = function_around(text, line)
    if isinstance(function, ast.Module):
        return False
    own = {
        id(n)
        for c in nodes_of(function)
        if isinstance(c, ast.comprehension)
        for n in ast.walk(c.target)
    }
    bound = [
        n.lineno
        for n in nodes_of(function)
        if (isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store))
        and id(n) not in own
    ]
    arguments = any(isinstance(n, ast.arg) and n.arg == name for n in nodes_of(function))
    return bool(bound) and not arguments and min(bound) >= line


def readers_of(key: str, text: str, statement: ast.stmt) -> list[ast.stmt]:
    """The simple statements that read a name in the function around a statement, or an attribute of
    ``self`` in the class: those before it first, the nearest first."""
    return _readers_of(key, text, statement.lineno, statement.end_lineno or 0)


@lru_cache(maxsize=1024)
def _readers_of(key: str, text: str, first: int, last: int) -> list[ast.stmt]:
    of_self = key.startswith("Attribute(value=Name(id='self'")
    kinds = ast.ClassDef if of_self else ast.FunctionDef | ast.AsyncFunctionDef
    holders = (n for n in nodes_of(parsed(text)) if isinstance(n, kinds))
    around = [n for n in holders if n.lineno <= first and last <= (n.end_lineno or 0)]
    statements = (n for n in nodes_of([parsed(text), *around][-1]) if isinstance(n, ast.stmt))
    simple = [n for n in statements if not hasattr(n, "body") and reads_name(n, key)]
    return sorted(simple, key=lambda n: (n.lineno >= first, abs(n.lineno - first)))


def kept_for_backward(
    owner: ast.ClassDef, backward: ast.AST
) -> tuple[ast.FunctionDef, list[tuple[ast.expr, ast.expr]]] | None:
    """The function of a custom Function that saves tensors for its backward, with (name in
    backward, saved expression) of each; attributes of ``ctx`` count too."""
    taken = [
        (s.targets[0].elts, s.value.value)
        for s in ast.walk(backward)
        if isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Attribute)
        and s.value.attr == "saved_tensors"
        and isinstance(s.targets[0], ast.Tuple)
    ]
    for function in owner.body if len(taken) == 1 else ():
        if not isinstance(function, ast.FunctionDef) or function is backward:
            continue
        (names, there), nodes = taken[0], [*ast.walk(function)]
        keeps = (n for n in nodes if isinstance(n, ast.Call))
        kept = next((c for c in keeps if last_name(c.func) == "save_for_backward"), None)
        if kept is None or len(kept.args) != len(names) or not isinstance(kept.func, ast.Attribute):
            continue
        here = ast.unparse(kept.func.value)
        attributes = [
            (ast.Attribute(there, target.attr, ast.Load()), value)
            for target, value in (
                p for n in nodes if isinstance(n, ast.Assign) for p in assigned_pairs(n)
            )
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == here
        ]
        return function, [*zip(names, kept.args, strict=True), *attributes]
    return None


def argument_of(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """The argument that a call passes for a parameter; None where it passes none."""
    if place < len(call.args):
        return call.args[place]
    return next((k.value for k in call.keywords if k.arg == name), None)


def assignments_in(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Names that a statement assigns, as they are read, and the values."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        for name, value in assigned_pairs(statement):
            if isinstance(name, ast.Name):
                yield ast.Name(name.id, ast.Load()), value


def constants_of(function: ast.AST) -> dict[str, list[Any]]:
    """The constants that a function may give each name, by key: in assignments, in both sides of a
    conditional expression, as defaults."""
    found: dict[str, list[Any]] = {}

    def give(name: ast.expr, value: ast.expr | None) -> None:
        if isinstance(value, ast.IfExp):
            give(name, value.body)
            give(name, value.orelse)
            return
        with suppress(ValueError, TypeError):  # it is no constant
            known = found.setdefault(key_of(name), [])
            known.append(ast.literal_eval(value)) if value is not None else None

    for node in ast.walk(function):
        for name, value in assignments_in(node):
            give(name, value)
        if isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            pairs = [*zip(reversed(named), reversed(node.defaults), strict=False)]
            for argument, default in (*pairs, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
                give(ast.Name(argument.arg, ast.Load()), default)
    return found


def turned_over(loops: Sequence[ast.comprehension], key: str) -> str | None:
    """The name that takes an iterable's values in a loop, perhaps through ``zip``: its key."""
    match loops:
        case [ast.comprehension(target=ast.Name() as name, iter=over, ifs=[])]:
            pairs = [(name, over)]
        case [
            ast.comprehension(
                target=ast.Tuple(elts=targets),
                iter=ast.Call(func=ast.Name(id="zip"), args=zipped),
                ifs=[],
            )
        ]:
            pairs = [
                (n, v) for n, v in zip(targets, zipped, strict=False) if isinstance(n, ast.Name)
            ]
        case _:
            return None
    own = next((name.id for name, each in pairs if key_of(each) == key), None)
    return key_of(ast.Name(own, ast.Load())) if own is not None else None


def occurring_in(
    values: dict[str, Any],
    new: ast.expr,
    before: Sequence[ast.stmt],
    computed: Collection[str],
) -> list[str]:
    """The keys of the largest parts of the new code whose values are known.

    computed: keys of parts that a function in the new code computes when called, perhaps otherwise.
    """
    found: dict[str, None] = {}

    def visit(node: ast.AST, later: bool = False) -> None:
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            key = key_of(node)
            if key in values and not (later and key in computed):
                found.setdefault(key)
                return
        for child in ast.iter_child_nodes(node):
            visit(child, later or isinstance(node, ast.Lambda))

    for statement in before:
        visit(statement)
    visit(new)
    return list(found)


def unwrapped(new: list[ast.stmt]) -> tuple[list[ast.withitem], list[ast.stmt]]:
    """The contexts around all of the new statements, and the statements inside."""
    contexts: list[ast.withitem] = []
    while len(new) == 1 and isinstance(new[0], ast.With):
        contexts += new[0].items
        new = new[0].body
    return contexts, new


@lru_cache(maxsize=64)
def statements_of(text: str, first: int, last: int) -> list[ast.stmt]:
    """The statements that these lines hold: nobody may change them."""
    try:
        tree = parsed(text)
    except SyntaxError:
        raise NotReplayable("the source of the line does not parse") from None
    found: list[ast.stmt] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                if first <= child.lineno and (child.end_lineno or child.lineno) <= last:
                    found.append(child)
                    continue
                if child.lineno <= last and first <= (child.end_lineno or child.lineno):
                    visit(child)
            elif not isinstance(child, ast.expr):
                visit(child)

    visit(tree)
    if not found:
        raise PartOfStatement
    return found


def both_forms(text: str, edit: EditLike) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements that the lines of an edit hold, and those that it makes of them.

    Raises PartOfStatement; SyntaxError where the edit is no Python.
    """
    old = statements_of(text, edit.first, edit.last)
    row = text.splitlines()[edit.first - 1].encode()
    if old[0].lineno == edit.first and row[: old[0].col_offset].strip():  # ``else: y = f(x)``
        last = edit.first + len(edit.text.splitlines()) - 1
        new = statements_of(_written(text, edit), edit.first, last)
    else:
        new = ast.parse(textwrap.dedent(edit.text)).body
    match old, new:
        case [ast.With(body=was) as one], [ast.With(body=now) as other]:
            if [key_of(each) for each in one.items] == [key_of(each) for each in other.items]:
                return was, now
        case [ast.FunctionDef(body=was) as one], [ast.FunctionDef(body=now) as other]:
            if _header(one) == _header(other):  # a function of one line
                return was, now
    return old, new


def _header(function: ast.FunctionDef) -> tuple[Any, ...]:
    """What a function is called and takes."""
    around = [function.args, *function.decorator_list]
    return function.name, *map(key_of, around)


def _written(text: str, edit: EditLike) -> str:
    """A text with an edit."""
    rows = text.splitlines()
    old = rows[edit.first - 1]
    indent = old[: len(old) - len(old.lstrip())]
    made = (indent + row for row in edit.text.splitlines())
    return "\n".join([*rows[: edit.first - 1], *made, *rows[edit.last :]])


class PartOfStatement(Exception):
    """Lines that hold no whole statement."""


def statement_around(text: str, edit: EditLike) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statement that an edit rewrites in part, and what it becomes."""
    try:
        new = ast.parse(_written(text, edit))
    except SyntaxError as error:
        raise NotReplayable(f"the edit is no Python ({error.msg})") from None
    found = [
        n
        for n in nodes_of(parsed(text))
        if isinstance(n, ast.stmt) and n.lineno <= edit.first and edit.last <= (n.end_lineno or 0)
    ]
    if not found:
        raise NotReplayable(f"lines {edit.first} to {edit.last} hold no statement")
    inner = max(found, key=lambda n: n.lineno)
    twins = [n for n in ast.walk(new) if isinstance(n, ast.stmt) and n.lineno == inner.lineno]
    if not twins:
        raise NotReplayable("the edit removes a statement")
    return [inner], [max(twins, key=lambda n: n.col_offset)]


def differences_between(
    old: ast.stmt, new: ast.stmt, spans: set[tuple[int, int, int, int]]
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The smallest expressions with calls of their own in which two statements differ."""
    if isinstance(old, ast.AugAssign) and isinstance(new, ast.Assign):
        yield joined(old), new.value
        return
    if isinstance(old, ast.Assign) and isinstance(new, ast.Assign):
        if len(new.targets) == len(old.targets) + 1 and _is_written(old.value, new.targets[-1]):
            yield old.value, new.value  # r = d.sqrt_() as r = d = d.sqrt()
            return
    if type(old) is not type(new):
        if isinstance(old, ast.Expr) and isinstance(new, ast.Assign):
            yield old.value, new.value
            return
        raise NotReplayable("the edit turns one kind of statement into another")
    yield from lifted_out(old, new, spans)


def joined(statement: ast.AugAssign) -> ast.BinOp:
    """What a statement like ``x /= n`` computes."""
    target = ast.parse(ast.unparse(statement.target), mode="eval").body
    found = ast.copy_location(ast.BinOp(target, statement.op, statement.value), statement)
    found.statement = statement  # type: ignore[attr-defined]
    return found


def _is_written(node: ast.expr, target: ast.expr) -> bool:
    """Whether an expression is a method that writes into a target."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr.endswith("_") and ast.unparse(node.func.value) == ast.unparse(target)


def lifted_out(
    old: ast.AST, new: ast.AST, spans: set[tuple[int, int, int, int]], apart: bool = False
) -> list[tuple[ast.expr, ast.expr]]:
    """The smallest expressions with recorded values in which two syntax trees differ.

    apart: whether differences on both sides of one operator count as two.
    """
    if key_of(old) == key_of(new):
        return []
    pairs: list[tuple[ast.expr, ast.expr]] = []
    small = type(old) is type(new)
    if small:
        for (_name, a), (_, b) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
            if isinstance(a, ast.AST) and isinstance(b, ast.AST):
                if key_of(a) != key_of(b) and not isinstance(
                    a, ast.expr | ast.keyword | ast.comprehension
                ):
                    small = False
                    break
                pairs += lifted_out(a, b, spans, apart)
            elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
                for x, y in zip(a, b, strict=True):
                    if isinstance(x, ast.AST) and isinstance(y, ast.AST):
                        pairs += lifted_out(x, y, spans, apart)
                    elif x != y:
                        small = False
            elif a != b:
                small = False
                break
    whole = isinstance(old, ast.BinOp | ast.UnaryOp | ast.Compare) and len(pairs) > 1 and not apart
    if small and pairs and not whole and all(span_of(a) in spans for a, _ in pairs):
        return pairs
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        return [(old, new)]
    if pairs and not small:
        raise NotReplayable("the edit changes what the line assigns to")
    return pairs
