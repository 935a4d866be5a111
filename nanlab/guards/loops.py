"""Training loops in source code: finding them, instrumenting them, running a body again."""

from __future__ import annotations

import ast
import gc
import linecache
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import FrameType, NoneType
from typing import Any, Protocol

import torch
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from nanlab.capture.places import codes_in
from nanlab.capture.state import is_put_back
from nanlab.errors import NotReplayable
from nanlab.program.expression import parsed

# a name put into the program's own would stay in functions
HEAD = "__import__('nanlab.guards.loops').guards.loops.head({})"
BACKWARD = frozenset(("backward", "manual_backward"))
# Methods so named are seldom the user's training step, and often an optimizer's or a module's.
_COMMON = frozenset(
    "step update forward scale unscale_ zero_grad append item __init__ __call__".split()
)

_STEPS = re.compile("opt|sched|scaler", re.IGNORECASE)

Statement = ast.For | ast.While
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class Loop:
    """A loop in the source of the program."""

    file: str
    source: str
    line: int  # of the loop's head
    column: int

    @cached_property
    def node(self) -> Statement:
        return self._found[0]

    @cached_property
    def function(self) -> FunctionNode | None:
        """The function around it, if any."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Statement, FunctionNode | None]:
        return self.found_in(parsed(self.source))

    def found_in(self, tree: ast.Module) -> tuple[Statement, FunctionNode | None]:
        """It and the function around it, in the code of its file."""
        for loop, function in _loops(tree, None, self.line):
            if (loop.lineno, loop.col_offset) == (self.line, self.column):
                return loop, function
        raise NotReplayable(f"the loop of line {self.line} is no longer in {self.file}")

    @cached_property
    def lines(self) -> range:
        return range(self.node.lineno, (self.node.end_lineno or self.node.lineno) + 1)

    @cached_property
    def targets(self) -> list[str]:
        """Variables that a ``for`` binds at each turn."""
        return sorted(_stored([self.node.target])) if isinstance(self.node, ast.For) else []

    @cached_property
    def stored(self) -> frozenset[str]:
        """Variables that a turn binds."""
        return frozenset(_stored([self.node]))

    @cached_property
    def rebound(self) -> frozenset[str]:
        """Variables that the body of a turn binds."""
        return frozenset(_stored(self.node.body))

    @cached_property
    def read(self) -> frozenset[str]:
        """Variables that a turn reads."""
        return frozenset(
            n.id
            for n in ast.walk(self.node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        )

    @cached_property
    def carried(self) -> frozenset[str]:
        """Variables carried over from turn to turn: bound, and perhaps read before that."""
        settled: set[str] = set(self.targets)
        early: set[str] = set()
        for statement in self.node.body:
            early |= _read(statement) - settled
            if isinstance(statement, ast.Assign):
                settled |= _stored(statement.targets)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                settled |= _stored([statement.target])
        settled_by_test = isinstance(self.node, ast.While) and _read(self.node.test)
        declared = {
            name
            for node in ast.walk(self.node)
            if isinstance(node, ast.Global | ast.Nonlocal)
            for name in node.names
        }
        return self.stored & (early | (settled_by_test or set()) | declared)

    def obstacle(self) -> str:
        """Why its body cannot be run by itself; "" if it can."""
        for node in _own_nodes(self.node):
            if isinstance(node, (ast.Yield, ast.YieldFrom)):
                return "its body yields"
            if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)):
                return "its body awaits"
        return ""

    def takers(self, frame: FrameType) -> list[str]:
        """Calls with irreversible effects: ``next(it)``, ``queue.pop()``, ``env.step(a)``.

        frame: of the loop, which tells whose methods they are.
        """
        names = (
            "pop popleft popitem get get_nowait recv read readline step reset send sample".split()
        )
        found = []
        for node in ast.walk(self.node):
            if not isinstance(node, ast.Call):
                continue
            called, args = node.func, node.args
            if isinstance(called, ast.Name) and called.id in ("next", "input"):
                found.append(ast.unparse(node))
            elif isinstance(called, ast.Attribute) and called.attr in names:
                if called.attr == "step" and (not args or _STEPS.search(ast.unparse(called.value))):
                    continue  # an optimizer's, a scheduler's
                if called.attr == "get" and args and isinstance(args[0], ast.Constant):
                    continue  # of a dictionary
                if isinstance(called.value, ast.Name) and called.value.id in self.targets:
                    continue  # out of the batch, which is kept
                if self._is_harmless(called.value, frame):
                    continue
                found.append(ast.unparse(node))
        return list(dict.fromkeys(found))

    def tells(self, frame: FrameType, whole: bool) -> bool:
        """Whether the body calls, for its effect alone, what a replay may not undo: a method of a
        log, a file, a hash, or a function other than the one that runs now.

        whole: the whole body, not only the lines up to that at which the frame stands.
        """
        now = frame.f_lineno
        for node in ast.walk(self.node):
            if not isinstance(node, ast.Expr) or not (whole or node.lineno <= now):
                continue
            if not isinstance(call := node.value, ast.Call):
                continue
            if isinstance(call.func, ast.Attribute):
                if not is_put_back(_first_of(call.func.value, frame)):
                    return True
            elif not node.lineno <= now <= (node.end_lineno or now):
                if value_of(call.func, frame) is not print:  # which is silenced
                    return True
        return False

    def _is_harmless(self, owner: ast.expr, frame: FrameType) -> bool:
        """Whether it is an optimizer, a scheduler or a scaler, which a replay puts back, or None,
        so that its method was not called."""
        names = {n.id for n in ast.walk(owner) if isinstance(n, ast.Name)}
        return names.isdisjoint(self.stored) and isinstance(
            value_of(owner, frame, ...), (torch.optim.Optimizer, LRScheduler, GradScaler, NoneType)
        )


def _first_of(expression: ast.expr, frame: FrameType) -> Any:
    """The value of an expression, or of the first part of it that has one without running it."""
    value = value_of(expression, frame, ...)
    while value is ...:
        if isinstance(expression, (ast.Attribute, ast.Subscript)):
            expression = expression.value
        elif isinstance(expression, ast.Call):
            expression = expression.func
        else:
            break
        value = value_of(expression, frame, ...)
    return getattr(value, "__self__", value)  # of a method


def value_of(expression: ast.expr, frame: FrameType, missing: Any = None) -> Any:
    """The value of a variable, or of an attribute of one; ``missing`` where there is none."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id, missing))
    if isinstance(expression, ast.Attribute):
        owner = value_of(expression.value, frame, missing)
        return getattr(owner, expression.attr, missing)
    return missing


def loop_at(file: str, line: int, name: str, globals_: dict[str, Any]) -> Loop:
    """The loop with its head at a line, in the function ``name`` (or ``<module>``).

    Raises NotReplayable without source, or without such a loop.
    """
    text = source_of(file, globals_)
    if not text:
        raise NotReplayable(f"the source of {file} is not at hand")
    try:
        tree = parsed(text)
    except SyntaxError:
        raise NotReplayable(f"the source of {file} has changed") from None
    found = None
    for loop, function in _loops(tree, None, line):
        head = loop.iter if isinstance(loop, ast.For) else loop.test
        inside = loop.lineno <= line <= (head.end_lineno or head.lineno)
        if inside and (function.name if function is not None else "<module>") == name:
            found = Loop(file, text, loop.lineno, loop.col_offset)
    if found is None:
        raise NotReplayable(f"no loop stands at line {line} of {file}")
    return found


def source_of(file: str, globals_: dict[str, Any] | None = None) -> str:
    """The text of a file or of a notebook's cell; empty where it is not at hand."""
    return "".join(linecache.getlines(file, globals_))


def instrument(
    tree: ast.Module, register: Callable[[int, int], int], training: Iterable[str] = ()
) -> bool:
    """Put a call at the head of each loop that runs backward, itself or through a function;
    return whether there is one.

    register: returns a number for the line and column of a loop. training: names of functions
    known to run backward.
    """
    names = training_names(tree, training)
    found = False
    for loop, _ in list(_loops(tree, None)):
        if _trains(loop, names):
            number = register(loop.lineno, loop.col_offset)
            head = ast.parse(HEAD.format(number)).body[0]
            for node in ast.walk(head):
                ast.copy_location(node, loop.body[0])
            loop.body.insert(0, head)
            found = True
    ast.fix_missing_locations(tree)
    return found


def training_names(tree: ast.AST, known: Iterable[str] = ()) -> set[str]:
    """Names of the functions of a file that run backward, directly or through each other."""
    names, functions = set(known), [n for n in ast.walk(tree) if isinstance(n, FunctionNode)]
    while True:
        new = {f.name for f in functions if f.name not in names and _trains(f, names)}
        if not new:
            return names
        names |= new


def _trains(node: ast.AST, names: set[str]) -> bool:
    for each in ast.walk(node):
        if not isinstance(each, ast.Call):
            continue
        called = each.func
        if isinstance(called, ast.Attribute) and (
            called.attr in BACKWARD or called.attr in names - _COMMON
        ):
            return True
        if isinstance(called, ast.Name) and (called.id in BACKWARD or called.id in names):
            return True
    return False


def _loops(
    node: ast.AST, function: FunctionNode | None, line: int | None = None
) -> Iterator[tuple[Statement, FunctionNode | None]]:
    """Every loop, or those around a line, with its function; outer loops first."""
    for child in ast.iter_child_nodes(node):
        if line is not None and not _is_around(child, line):
            continue
        if isinstance(child, (ast.For, ast.While)):
            yield child, function
        inside = child if isinstance(child, FunctionNode) else function
        yield from _loops(child, inside, line)


def _is_around(node: ast.AST, line: int) -> bool:
    """Whether a node covers a line; one without lines, such as a ``case``, may."""
    first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
    return first <= line <= (last or line)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, without those of functions defined in between."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield child
            yield from _own_nodes(child)


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for root in nodes:
        own = [root, *_own_nodes(root)]
        for node in [*own, *(child for each in own for child in ast.iter_child_nodes(each))]:
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                found.add(node.id)
            elif isinstance(node, (*_SCOPES, ast.ExceptHandler)):
                found.add(getattr(node, "name", None) or "")
    return found - {""}


def _read(node: ast.AST) -> set[str]:
    read = {
        n.id
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Load, ast.Del))
    }
    return read | {
        n.target.id
        for n in ast.walk(node)
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }


# -- the body, run again


def repeat(
    loop: Loop,
    frame: types.FrameType,
    values: dict[str, Any],
    turns: Iterable[Any],
    target: ast.expr,
) -> None:
    """Run the body of a loop once for each item of ``turns``, bound to ``target``.

    frame: of the running loop. values: its variables at the start of the first turn, unless they
    are globals.
    """
    if reason := loop.obstacle():
        raise NotReplayable(f"the loop of line {loop.line} cannot be run again: {reason}")
    if loop.function is None or frame.f_code.co_name == "<module>":
        _repeat_in_module(loop, frame, turns, target)
    else:
        _repeat_in_function(loop, frame, values, turns, target)


TURNS = "__nanlab_turns__"


def _once(loop: Statement, target: ast.expr) -> ast.For:
    node = ast.For(target=target, iter=ast.Name(TURNS, ast.Load()), body=loop.body, orelse=[])
    return ast.copy_location(node, loop)


def _repeat_in_module(
    loop: Loop, frame: types.FrameType, turns: Iterable[Any], target: ast.expr
) -> None:
    module = ast.fix_missing_locations(ast.Module([_once(loop.node, target)], []))
    frame.f_globals[TURNS] = turns  # the caller takes it out again
    exec(compile(module, loop.file, "exec", dont_inherit=True), frame.f_globals)


def _repeat_in_function(
    loop: Loop,
    frame: types.FrameType,
    values: dict[str, Any],
    turns: Iterable[Any],
    target: ast.expr,
) -> None:
    tree = ast.parse(loop.source, loop.file)  # of its own: it is changed here
    (node, function), code = loop.found_in(tree), frame.f_code
    if not isinstance(function, ast.FunctionDef):
        raise NotReplayable("its function is a coroutine")
    first = code.co_varnames[:1]
    cells = cells_of(frame, [n for n in code.co_cellvars if n not in first])
    declared = {
        n for node in _own_nodes(function) if isinstance(node, ast.Global) for n in node.names
    }
    names = [
        n
        for n in values
        if n not in cells and n not in declared and n not in code.co_freevars and n.isidentifier()
    ]
    names.sort(
        key=lambda n: code.co_varnames.index(n) if n in code.co_varnames else len(code.co_varnames)
    )
    outer = {**cells, **cells_of(frame, list(code.co_freevars), free=True)}
    for name, value in values.items():
        if name in outer:
            outer[name].cell_contents = value
    shared = [n for n in outer if n in code.co_cellvars]
    statements: list[ast.stmt] = [
        n for n in _own_nodes(function) if isinstance(n, (ast.Global, ast.Nonlocal))
    ]
    if shared:
        statements.append(ast.Nonlocal(shared))
    function.args = ast.arguments([], [ast.arg(n) for n in [*names, TURNS]], None, [], [], None, [])
    function.body = [*statements, _once(node, target)]
    function.decorator_list = []
    function.returns = None
    _Enclosed(function, shared).visit(tree)
    ast.fix_missing_locations(tree)
    inner = _code_named(
        compile(tree, loop.file, "exec", dont_inherit=True), function.name, function.lineno
    )
    missing = [n for n in inner.co_freevars if n not in outer]
    if missing:
        raise NotReplayable(
            f"the variables {', '.join(missing)} of the functions around it are not at hand"
        )
    closure = tuple(outer[n] for n in inner.co_freevars)
    again = types.FunctionType(inner, frame.f_globals, function.name, None, closure)
    again(*(values[n] for n in names), turns)


class _Enclosed(ast.NodeTransformer):
    """Wraps a function in another one that binds names, making them closure variables."""

    def __init__(self, function: ast.FunctionDef, names: list[str]) -> None:
        self.function, self.names = function, names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node is not self.function:
            return self.generic_visit(node)
        if not self.names:
            return node
        args = ast.arguments([], [ast.arg(n) for n in self.names], None, [], [], None, [])
        outer = ast.FunctionDef("__nanlab_around__", args, [node], [], None)
        return ast.copy_location(outer, node)


def _code_named(code: types.CodeType, name: str, line: int) -> types.CodeType:
    for each in codes_in(code):
        if each.co_name == name and each.co_firstlineno == line:
            return each
    raise NotReplayable(f"the function {name} was not found in its source")


def cells_of(
    frame: types.FrameType, names: list[str], free: bool = False
) -> dict[str, types.CellType]:
    """Cells of a frame's variables, taken from functions that share them, or new ones."""
    if not names:
        return {}
    found: dict[str, types.CellType] = {}
    values = frame.f_locals
    code = frame.f_code
    codes = [code] if free else [c for c in code.co_consts if isinstance(c, types.CodeType)]
    referrers = gc.get_referrers(*codes) if codes else []  # it walks the heap
    functions = [f for f in referrers if isinstance(f, types.FunctionType) and f.__code__ in codes]
    for function in functions:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        if all(_holds(cells[n], values, n) for n in names if n in cells):
            for name in names:
                if name in cells:
                    found.setdefault(name, cells[name])
    for name in names:
        if name not in found:
            found[name] = types.CellType(values[name]) if name in values else types.CellType()
    return found


def _holds(cell: types.CellType, values: dict[str, Any], name: str) -> bool:
    try:
        return name in values and cell.cell_contents is values[name]
    except ValueError:
        return name not in values


# The call at the head of a guarded loop; it does nothing without a running guard.


class _Began(Protocol):
    def __call__(self, loop: Loop, frame: FrameType) -> None: ...


began: list[_Began] = []  # of the guard that is on
_numbers: dict[tuple[int, int], int] = {}  # by line and column
_places: list[tuple[int, int]] = []
_loop_of: dict[tuple[int, str], Loop] = {}  # by the number in the call, and the file


def register(line: int, column: int) -> int:
    """The number of a loop at a line and column of any file."""
    if (line, column) not in _numbers:
        _numbers[line, column] = len(_places)
        _places.append((line, column))
    return _numbers[line, column]


def head(number: int) -> None:
    """Tell the running guard that a turn of a loop begins."""
    if not began:
        return
    frame = sys._getframe(1)
    file = frame.f_code.co_filename
    loop = _loop_of.get((number, file))
    if loop is None:
        loop = Loop(file, source_of(file, frame.f_globals), *_places[number])
        _loop_of[number, file] = loop
    began[-1](loop, frame)
