"""Options of a library's code: the parameters that decide whether one of its lines runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nanlab.program.expression import functions_around, lines_of, names_in, stored_in
from nanlab.program.patched import parsed_file

MOST_VALUES = 3  # of a named way to compute
# in the place of None, for which the library computes one
A_NUMBER, A_TENSOR = "1.0", "torch.tensor(1.0)"
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_LEAVES = ast.Return | ast.Raise | ast.Continue | ast.Break
_Test = tuple[ast.expr, bool]  # and whether it held where the line ran


@dataclass(frozen=True)
class Option:
    """A value of a parameter with which a line is not reached, or not with what it computes."""

    name: str
    owner: str  # class whose objects are made with it; empty: of the function itself
    value: str  # as it is written


@lru_cache(maxsize=256)
def options_at(file: str, line: int) -> tuple[Option, ...]:
    """The options of a library's function that decide how one of its lines runs."""
    tree = parsed_file(file)
    functions = functions_around(tree, line)
    if not functions:
        return ()
    function, classes = functions[-1], [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    own = next((n for n in classes[::-1] if line in lines_of(n)), None)
    maker, owner = _maker(own, classes), own.name if own is not None else ""
    found: dict[Option, None] = {}
    for test, held in _tests(function, line):
        for path, value in _otherwise(test, held, tree):
            if isinstance(path, ast.Name) and not _is_assigned(function, path):
                where, name, of = function, path.id, ""
            elif maker is not None and ast.unparse(path).startswith("self."):
                where, name, of = maker, _parameter(maker, ast.unparse(path)), owner
            else:
                continue
            for each in (value, A_TENSOR) if value == A_NUMBER else (value,):
                if _takes(where, name, each):
                    found.setdefault(Option(name, of, each))
    return tuple(found)


def _is_assigned(function: ast.AST, name: ast.Name) -> bool:
    """Whether a function gives a name another value before it reads it here."""
    stores = (n for n in ast.walk(function) if isinstance(n, ast.stmt) and not hasattr(n, "body"))
    return any(name.id in stored_in(each) and each.lineno < name.lineno for each in stores)


def _maker(own: ast.ClassDef | None, classes: Sequence[ast.ClassDef]) -> ast.FunctionDef | None:
    """The ``__init__`` of a class, or of the next of its bases in the file that has one."""
    while own is not None:
        for each in own.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                return each
        bases = {ast.unparse(base) for base in own.bases} - {own.name}
        own = next((n for n in classes if n.name in bases), None)
    return None


def _parameter(maker: ast.FunctionDef, path: str) -> str:
    """The parameter that an ``__init__`` keeps as an attribute; empty if none."""
    for node in ast.walk(maker):
        if isinstance(node, ast.Assign) and any(ast.unparse(t) == path for t in node.targets):
            return node.value.id if isinstance(node.value, ast.Name) else ""
    return ""


def _takes(function: _FUNCTIONS, name: str, value: str) -> bool:
    """Whether a parameter of a function takes a value, by its default and annotation."""
    given = function.args
    every = [*given.posonlyargs, *given.args]
    pairs = [*zip(every[::-1], given.defaults[::-1], strict=False)]
    pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d]
    default = next((ast.unparse(d) for a, d in pairs if a.arg == name), "")
    named = (a for a in (*every, *given.kwonlyargs) if a.arg == name and a.annotation)
    kind = next((ast.unparse(a.annotation) for a in named if a.annotation), "")
    if value in ("True", "False"):
        return default in ("True", "False") or kind == "bool"
    if value == A_NUMBER:
        return default == "None" and (not kind or "float" in kind or "int" in kind)
    if value == A_TENSOR:
        return "Tensor" in kind and "float" not in kind and ("Opt" in kind or "None" in kind)
    if value == "None":
        return default == "None" or "None" in kind or "Optional" in kind
    return bool(default or kind) and (default[:1] in "'\"" or default == "None" or "str" in kind)


def _tests(function: _FUNCTIONS, line: int) -> Iterator[_Test]:
    """What a function tests before it comes to a line, and to what that line is computed from."""
    own = [*_leading(function.body, line)]
    yield from own
    here = [s for s in ast.walk(function) if isinstance(s, ast.stmt) and line in lines_of(s)]
    statement = max(here, key=lambda s: s.lineno)
    yield from _inside(statement)
    known, read = [ast.dump(test) for test, _ in own], {*names_in(statement)}
    before = (n for n in ast.walk(function) if isinstance(n, ast.Assign) and n.lineno < line)
    for each in sorted(before, key=lambda s: -s.lineno):
        if read.isdisjoint(stored_in(each)):
            continue
        read |= names_in(each.value)
        yield from _inside(each)
        for test, _ in _leading(function.body, each.lineno):
            if ast.dump(test) not in known:
                yield from ((test, True), (test, False))


def _inside(statement: ast.stmt) -> Iterator[_Test]:
    """What conditional expressions test, either way."""
    if hasattr(statement, "body"):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.IfExp):
            yield from ((node.test, True), (node.test, False))


def _leading(body: Sequence[ast.stmt], line: int) -> Iterator[_Test]:
    """The tests of a block's statements that lead to a line."""
    for statement in body:
        if statement.lineno > line:
            return
        parts = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if isinstance(statement, ast.If):
            for block, held in ((statement.body, True), (statement.orelse, False)):
                if any(line in lines_of(each) for each in block):
                    yield statement.test, held
                elif block and isinstance(block[-1], _LEAVES) and line not in lines_of(statement):
                    yield statement.test, not held
        for block in parts:
            if any(line in lines_of(each) for each in block):
                yield from _leading(block, line)


def _otherwise(test: ast.expr, held: bool, tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """(path, value) of what makes a test come out the other way."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _otherwise(inner, not held, tree)
        case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) is held:
            for part in parts:
                yield from _otherwise(part, held, tree)
        case ast.Name() | ast.Attribute():
            yield test, str(not held)
        case ast.Compare(left=path, ops=[op], comparators=[ast.Constant(value=value)]):
            same = isinstance(op, ast.Is | ast.Eq)
            if not same and not isinstance(op, ast.IsNot | ast.NotEq):
                return
            if value is None:
                yield path, A_NUMBER if same is held else "None"
            elif isinstance(value, str):
                own = () if same is held else (repr(value),)
                others = (v for v in _compared(tree, path) if v != repr(value))
                yield from ((path, v) for v in [*dict.fromkeys([*own, *others])][:MOST_VALUES])


def _compared(tree: ast.AST, path: ast.expr) -> Iterator[str]:
    """The names of ways to compute with which a file compares an option."""
    own = ast.unparse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == own:
            for each in (c for given in node.comparators for c in ast.walk(given)):
                if isinstance(each, ast.Constant) and isinstance(each.value, str | None):
                    yield repr(each.value)
