"""An expression of the source and its calls: which value is behind each part."""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from types import CodeType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.capture.plans import plan_of
from nanlab.errors import NotReplayable
from nanlab.operators import having
from nanlab.program.rebuild import same_bits
from nanlab.program.rerun import Get, copy_of
from nanlab.stats.memory import has_storage
from nanlab.trace.chunk import Span
from nanlab.trace.mode import DispatchMode
from nanlab.trace.program import Call, Ref, refs_in

Tensor = torch.Tensor
# assignments of values to names that are tried until one gives the recorded result
MOST_TRIES = 800
MOST_LENGTHS = 3  # of a first run that are given up, and by which it may be longer
MOST_CHOICES = 20_000  # most give something else, seen as soon as a few are tried
MOST_MAPS = 2  # vmaps inside of each other
# what Python knows of a tensor without its numbers
SHAPES = frozenset({"shape", "ndim", "dtype", "device", "size", "numel", "dim"})
OBJECTS = frozenset(("self", "cls", "model", "net"))  # of a program: their methods are its own
_LOOPS = ("sum", "zip", "enumerate", "range", "list", "tuple", "reversed")
_MODULES = {name: name for name in ("torch", "math", "numpy", "nanlab")}
_MODULES |= {"F": "torch.nn.functional", "nn": "torch.nn", "np": "numpy"}


def span_of(node: Any) -> Span:
    """First line, first column, last line, column after the last."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def lines_of(node: Any) -> range:
    """The lines on which some code stands."""
    return range(node.lineno, node.end_lineno + 1)


def inside(inner: Span, outer: Span) -> bool:
    """Whether one stretch of source lies in another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


@lru_cache(maxsize=32)
def parsed(text: str) -> ast.Module:
    """The code of a file, parsed once: nobody may change it. Raises SyntaxError, ValueError."""
    return ast.parse(text)


@lru_cache(maxsize=256)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """What :func:`ast.walk` gives of code that nobody changes, walked once."""
    return tuple(ast.walk(tree))


@lru_cache(maxsize=16)
def imports_of(text: str) -> list[tuple[str, str, str, str]]:
    """(name that it is given, module, name in it or "", what is imported) of a file's imports."""
    found = []
    for node in nodes_of(parsed(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                held = alias.name if alias.asname else alias.name.partition(".")[0]
                found.append((alias.asname or held, held, "", alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (a for a in node.names if a.name != "*")
            found += [(a.asname or a.name, node.module, a.name, node.module) for a in names]
    return found


def aliases_of(text: str) -> list[tuple[str, ast.Attribute]]:
    """Names that a file gives to attributes of others, ``softplus = F.softplus``: at its top, or
    once; and what they stand for."""
    tree = parsed(text)
    own = Counter(stored_in(tree))
    own.update(n.arg for n in nodes_of(tree) if isinstance(n, ast.arg))
    top = {id(each) for each in tree.body}
    return [
        (node.targets[0].id, node.value)
        for node in nodes_of(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Attribute)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and (id(node) in top or own[node.targets[0].id] == 1)
        and root_of(node.value) not in ("", node.targets[0].id)
    ]


@cache
def namespace_of(text: str) -> dict[str, Any]:
    """What a file imports from torch, math, NumPy and nanlab, by name; no other import."""
    found = {name: importlib.import_module(module) for name, module in _MODULES.items()}
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError):
        return found
    for given, module, name, imported in imports_of(text):
        if module.partition(".")[0] in ("torch", "math", "numpy", "nanlab"):
            with suppress(ImportError, AttributeError):
                importlib.import_module(imported)
                held = importlib.import_module(module)
                found[given] = getattr(held, name) if name else held
    top = {id(each) for each in tree.body}
    for alias, value in aliases_of(text):
        if root_of(value) in found:
            with suppress(Exception):
                code = compile(ast.Expression(value), "<alias>", "eval")
                found[alias] = eval(code, dict(found))
    for node in nodes_of(tree):
        match node:
            case ast.Assign([ast.Name(id=name)], ast.Constant(constant)) if id(node) in top:
                found[name] = constant  # type: ignore[assignment]
    return found


@lru_cache(maxsize=256)
def functions_around(
    tree: ast.AST, line: int
) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    """The functions that hold a line of code that nobody changes, the innermost last."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = (n for n in nodes_of(tree) if isinstance(n, kinds))
    holding = (n for n in functions if line in lines_of(n))
    return tuple(sorted(holding, key=lambda n: n.lineno))


def names_in(*nodes: ast.AST) -> set[str]:
    """The names that stand in some code."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


@lru_cache(maxsize=32)
def names_of(text: str) -> Set[str]:
    """The names that stand in a file."""
    return frozenset(names_in(parsed(text)))


def stored_in(node: ast.AST) -> list[str]:
    """The names that code gives a value, as often as it does."""
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return [n.id for n in names if isinstance(n.ctx, ast.Store)]


def first_line(node: ast.AST) -> int:
    """The first line of a function, its decorators included; 0 of anything else."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def last_name(path: ast.expr) -> str:
    """The last name of a dotted name, such as the function that a call calls; "" of other code."""
    return str(getattr(path, "id", getattr(path, "attr", "")))


def assigned_pairs(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value; of tuples given tuples each part."""
    for target in statement.targets:
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            yield from zip(target.elts, statement.value.elts, strict=False)
        else:
            yield target, statement.value


def sides_of(value: ast.expr | None) -> Iterator[ast.expr | None]:
    """Both sides of a conditional expression; of any other, itself."""
    if isinstance(value, ast.IfExp):
        yield from (each for side in (value.body, value.orelse) for each in sides_of(side))
    else:
        yield value


def postorder(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of some code, each after those that it is made of."""
    for child in ast.iter_child_nodes(node):
        yield from postorder(child)
    yield node


def replaced(tree: Any, other: Callable[[ast.expr], ast.expr | None]) -> Any:
    """A copy of some code in which other expressions stand where there are some."""
    return ast.fix_missing_locations(copied(tree, other))


def copied(tree: Any, other: Callable[[ast.expr], ast.expr | None] | None = None) -> Any:
    """A copy of some code, without what others have hung on its nodes: where IPython has shown a
    traceback, the contexts that all code shares lead to a whole file."""
    if tree.__class__ is list:
        return [copied(each, other) for each in tree]
    if not isinstance(tree, ast.AST):
        return tree
    new = other(tree) if other is not None and isinstance(tree, ast.expr) else None
    if new is not None:
        return new
    names = (name for name in tree._fields if hasattr(tree, name))
    fields = {name: copied(getattr(tree, name), other) for name in names}
    return ast.copy_location(type(tree)(**fields), tree)


def root_of(node: ast.AST) -> str:
    """The first name of a dotted one; empty where it is none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(maxsize=4096)
def key_of(node: ast.AST) -> str:
    """A text that is equal for two expressions written alike; nobody may change the code later."""
    return ast.dump(node)


def sides_taken(code: ast.AST, spans: Collection[Span]) -> dict[str, bool]:
    """For each conditional expression, by the key of its test: True where its first side ran.

    spans: places where calls were made. An expression is left out where they do not decide.
    """
    found: dict[str, set[bool]] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.IfExp):
            sides = node.body, node.orelse
            made = [any(inside(span, span_of(side)) for span in spans) for side in sides]
            if made[0] == made[1]:  # the other would have made calls
                made = [not any(isinstance(n, _COMPUTES) for n in ast.walk(s)) for s in sides]
            if made[0] != made[1]:
                found.setdefault(key_of(node.test), set()).add(made[0])
    return {key: sides.pop() for key, sides in found.items() if len(sides) == 1}


_COMPUTES = (ast.Call, ast.BinOp, ast.Compare)


def by_sides(code: Any, sides: dict[str, bool]) -> Any:
    """Some code with the sides of conditional expressions that ran in their places."""

    def other(node: ast.expr) -> ast.expr | None:
        if not isinstance(node, ast.IfExp) or key_of(node.test) not in sides:
            return None
        side: ast.expr = node.body if sides[key_of(node.test)] else node.orelse
        return replaced(side, other)  # type: ignore[no-any-return]

    return replaced(code, other) if sides else code


_ALL_BUT_LAST = ast.parse("_[:-1]", mode="eval").body.slice  # type: ignore[attr-defined]


def all_but_last(call: ast.Call) -> ast.Call:
    """The call of a Sequential without its last layer: ``net[:-1](x)`` of ``net(x)``."""
    func = ast.Subscript(call.func, _ALL_BUT_LAST, ast.Load())
    return ast.Call(func, call.args, call.keywords)


def whole_of(node: ast.AST) -> ast.Call | None:
    """The call of the whole Sequential, of one without its last layer; None for all else."""
    match node:
        case ast.Call(func=ast.Subscript(value=whole, slice=cut)):
            if key_of(cut) == key_of(_ALL_BUT_LAST):
                return ast.Call(whole, node.args, node.keywords)
    return None


def _is_method(function: ast.expr) -> bool:
    """Whether a function may be a method of a tensor."""
    return (
        isinstance(function, ast.Attribute)
        and hasattr(Tensor, function.attr)
        and not (isinstance(function.value, ast.Name) and function.value.id in OBJECTS)
    )


@dataclass(frozen=True, slots=True)
class Made:
    """A call that a stretch of source made."""

    index: int
    call: Call
    span: Span
    result: Any  # its first result, as recorded


class _Other(Exception):
    """The code does something else than the recorded calls."""


def _is_same(func: Any, recorded: Any) -> bool:
    """Whether two operators are the same, or the second is the first one's in-place form."""
    if func is recorded:
        return True
    names = getattr(func, "_opname", ""), getattr(recorded, "_opname", "")
    return names[1] == f"{names[0]}_" and not names[1].startswith("_foreach")


# results that autograd keeps or a transform looks through: they compute nothing
_SILENT = having("silent")
_UNINITIALISED = having("uninitialised")


def _fit(given: Any, recorded: Any) -> bool:
    """Whether tensors have the sizes of the recorded ones."""
    if isinstance(given, Tensor):
        return recorded.__class__ is not Ref or tuple(given.shape) == recorded.size
    if isinstance(given, dict):
        return all(_fit(each, recorded.get(name)) for name, each in given.items())
    if isinstance(given, tuple | list) and isinstance(recorded, tuple | list):
        return recorded.__class__ is Ref or all(map(_fit, given, recorded))
    return True


def _may_be_known(call: Call) -> bool:
    """Whether code may skip a call that it made before, because it keeps the constant result."""
    draws = torch.Tag.nondeterministic_seeded in call.func.tags
    return is_silent(call.func) or not (draws or any(refs_in((call.args, call.kwargs))))


def is_silent(func: Any) -> bool:
    return func.is_view or getattr(func, "_opname", "") in _SILENT


def _has_storage(value: Any) -> bool:
    return isinstance(value, Tensor) and has_storage(value)


class Following(DispatchMode):
    """Compares each operator that runs inside with a recorded call: its operands and its results.

    operands: (value, reference) of all that the code is given, so that tensors of equal values are
    told apart.
    """

    def __init__(self, made: Sequence[Made], operands: Iterable[tuple[Any, Any]] = ()) -> None:
        super().__init__()
        self.made, self.count = made, 0
        self._given: list[tuple[Tensor, Ref]] = []  # results, and the recorded ones
        self._unwritten = set[int]()  # memory that nobody wrote when it was made, by address
        known = [(t, ref) for t, ref in operands if ref.__class__ is Ref and _has_storage(t)]
        self._operands = {id(t): (t, ref) for t, ref in known}
        # numbers of the storages that tensors stand for, by address
        self._numbers = {t.untyped_storage()._cdata: ref.storage for t, ref in known}

    def ref_of(self, result: Any) -> Ref | None:
        """The recorded reference to a result of these calls."""
        if _has_storage(result):
            shown = result.data_ptr(), result.shape, result.stride(), result.dtype
            for each, ref in reversed(self._given):
                if (each.data_ptr(), each.shape, each.stride(), each.dtype) == shown:
                    return ref
        return None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gives_tensors = any("Tensor" in str(each.type) for each in func._schema.returns)
        silent = is_silent(func) or not gives_tensors
        at = self.count
        while at < len(self.made) and not _is_same(func, self.made[at].call.func):
            at = at + 1 if _may_be_known(self.made[at].call) else len(self.made)
        if at >= len(self.made):
            if silent:
                return plan_of(func).run(*args, **(kwargs or {}))
            raise _Other
        self.count, call = at, self.made[at].call
        if not _fit((args, kwargs or {}), (call.args, call.kwargs)):
            raise _Other
        if not self._stand_for((args, kwargs or {}), (call.args, call.kwargs)):
            raise _Other
        out = plan_of(func).run(*args, **(kwargs or {}))
        outs = out if isinstance(out, tuple | list) else (out,)
        first, known = next(iter(outs), None), self.made[at].result
        if (func.is_view or not silent) and isinstance(first, Tensor) and isinstance(known, Tensor):
            memory = first.untyped_storage()._cdata if _has_storage(first) else 0
            made = func._opname in _UNINITIALISED
            if made:
                self._unwritten.add(memory)
            unwritten = made or (func.is_view and memory in self._unwritten)
            if first.shape != known.shape if unwritten else not same_bits(first.detach(), known):
                raise _Other
        results = zip((t for t in outs if isinstance(t, Tensor)), refs_in(call.out), strict=False)
        for result, ref in results:
            if _has_storage(result):
                self._given.append((result, ref))
                self._numbers[result.untyped_storage()._cdata] = ref.storage
        self.count += 1
        return out

    def _stand_for(self, given: Any, recorded: Any) -> bool:
        """Whether the tensors given, as far as known, are those of the recorded call."""
        if isinstance(given, Tensor):
            if recorded.__class__ is not Ref or not _has_storage(given):
                return True
            _, ref = self._operands.get(id(given), (None, recorded))
            if ref.view != recorded.view:
                return False
            number = self._numbers.get(given.untyped_storage()._cdata, recorded.storage)
            return bool(number == recorded.storage)
        if isinstance(given, dict):
            return all(self._stand_for(each, recorded.get(name)) for name, each in given.items())
        if isinstance(given, tuple | list) and isinstance(recorded, tuple | list):
            return recorded.__class__ is Ref or all(map(self._stand_for, given, recorded))
        return True

    def followed(self) -> bool:
        """Whether all recorded calls have run, but for silent ones."""
        made = self.made
        return all(
            is_silent(each.call.func) and reads_of(each, made[:at])
            for at, each in enumerate(made[self.count :], self.count)
        )


@dataclass(frozen=True, slots=True)
class Dual:
    """A value with its tangent, its derivative in a direction; a batch of directions adds leading
    dimensions to ``tangent``."""

    value: Any
    tangent: Any

    def of(self, get: Get) -> Dual:
        """The pair of tensors for its references."""
        return Dual(get(self.value), get(self.tangent))


@dataclass(frozen=True, slots=True)
class Mapped:
    """A value that ``vmap`` splits along a dimension: one for each vmap, the outermost first,
    counted among the dimensions that outer ones leave. None: this vmap does not split it."""

    value: Any
    dims: tuple[int | None, ...]

    def of(self, get: Get) -> Mapped:
        """The same with the tensor for its reference."""
        return Mapped(get(self.value), self.dims)


@dataclass(frozen=True)
class Bound:
    """The values behind the parts of an expression in one of its runs."""

    calls: tuple[int, ...]  # indices of its calls in the segment
    out: Any  # Ref of its value; a tuple of them where it is one
    parts: dict[str, Any]  # key of a part -> Ref, Dual of two, Mapped, or a plain value
    cast: torch.dtype | None  # of the autocast that it ran under
    computing: int  # how many of its calls compute something
    tangent: Ref | None = None  # of its value, where it was differentiated forward

    @property
    def maps(self) -> int:
        """Number of ``vmap`` around it."""
        return next((len(p.dims) for p in self.parts.values() if isinstance(p, Mapped)), 0)


_BARE = (ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)


@dataclass
class Expression:
    """An expression of a file, in the place where it stands.

    ``names``: what its free names mean, as far as modules go. ``calls``: (index, call, span) of all
    calls that it made.
    """

    node: ast.expr
    names: dict[str, Any]
    device: str = "cpu"
    # keys of names that are known to be tensors (True) or plain numbers (False)
    kinds: Mapping[str, bool | None] = field(default_factory=dict)
    # keys of names -> constants that they may be
    constants: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    stored: Collection[str] = ()  # names of parameters and buffers: other attributes may be numbers
    forward: bool = False  # whether the step differentiates forward, as ``torch.func.jvp`` does
    imported: Collection[str] = ()  # names of what is imported: functions of many operators
    span: Span = field(init=False)
    # key of a function that is an operator -> its call
    callees: dict[str, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.span = span_of(self.node)

    # -- parts

    def leaves(self, spans: set[Span]) -> list[ast.expr]:
        """Parts whose values come from elsewhere, in order of evaluation, each once.

        Of a tensor that is asked for its size or dtype alone, that is the part.
        """
        found: dict[str, ast.expr] = {}
        asked: list[tuple[ast.expr, ast.expr]] = []  # (what Python knows of a tensor, the tensor)
        self.callees = {}
        loops = (n for n in ast.walk(self.node) if isinstance(n, ast.comprehension))
        inner = names_in(*(loop.target for loop in loops))
        slices = (n.slice for n in ast.walk(self.node) if isinstance(n, ast.Subscript))
        counts = {id(n) for each in slices for n in ast.walk(each)}

        def visit(node: ast.AST) -> None:
            if isinstance(node, _BARE) or (isinstance(node, ast.Name) and node.id in inner):
                return
            if isinstance(node, ast.expr) and (tensor := _asked(node)) is not None:
                if root_of(tensor) not in (*self.names, *inner):
                    asked.append((node, tensor))
                    return
            if isinstance(node, ast.expr) and self._comes_from_elsewhere(node, spans):
                found.setdefault(key_of(node), node)
                return
            if isinstance(node, ast.BinOp) and _is_index(node, counts):
                found.setdefault(key_of(node), node)
                return
            if isinstance(node, ast.Call):
                if span_of(node) in spans and self._is_unknown(node):
                    self.callees[key_of(node.func)] = span_of(node)
                elif isinstance(node.func, ast.Attribute) and root_of(node.func) not in (
                    *self.names,
                    *self.imported,
                ):
                    visit(node.func.value)
                for each in (*node.args, *node.keywords):
                    visit(each)
                return
            for child in ast.iter_child_nodes(node):
                visit(child)

        visit(self.node)
        for node, tensor in asked:
            if key_of(tensor) not in found:
                found.setdefault(key_of(node), node)
        return list(found.values())

    def _is_unknown(self, node: ast.Call) -> bool:
        """Whether a call is of a function that is not known to be torch's."""
        function = node.func
        if root_of(function) in (*self.names, *self.imported, *_LOOPS) or is_plain(node):
            return False
        return not _is_method(function)

    def _comes_from_elsewhere(self, node: ast.expr, spans: set[Span]) -> bool:
        if (
            isinstance(node, ast.Name | ast.Attribute)
            and root_of(node) in self.names
            and root_of(node)
        ):
            return False  # torch.pi, F.softmax
        if isinstance(node, ast.Name):
            return True
        if any(inside(span, span_of(node)) for span in spans):
            if isinstance(node, ast.Call):
                own = span_of(node) in spans
                function = node.func
                known = root_of(function) in (*self.names, *_LOOPS) or (
                    isinstance(function, ast.Attribute)
                    and not isinstance(function.value, ast.Name | ast.Attribute)
                    and own
                )
                method = _is_method(function)
                owner = getattr(function, "value", None)
                of_result = method and isinstance(owner, ast.BinOp | ast.UnaryOp)
                alone = own and node is self.node  # an operator under another name
                return not (known or (method and own) or of_result or alone or is_plain(node))
            return False
        if isinstance(node, ast.Attribute):
            return not is_plain(node)
        if isinstance(node, ast.Subscript):
            return not (isinstance(node.value, ast.Attribute | ast.Call) and is_plain(node.value))
        if isinstance(node, ast.Call):
            return not is_plain(node) and root_of(node.func) not in ("math",)
        return False


def _is_index(node: ast.BinOp, within: Collection[int]) -> bool:
    """Whether a node is a sum of several plain numbers in an index: no call shows each of them.

    within: the ids of all nodes inside of indices.
    """
    parts = [n for n in ast.walk(node) if not isinstance(n, ast.operator | ast.expr_context)]
    plain = all(isinstance(n, ast.BinOp | ast.Constant | ast.Name) for n in parts)
    return id(node) in within and plain and len(names_in(node)) > 1


def is_plain(node: ast.AST) -> bool:
    """``x.shape``, ``x.size(0)``, ``len(x)``, ``float(x)``: what Python knows of a tensor."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("len", "float", "int", "abs", "max", "min")
    return shows_shape(node)


def shows_shape(node: ast.AST) -> bool:
    """Whether code asks only for a tensor's shape: ``x.shape``, ``x.size(0)``."""
    if isinstance(node, ast.Attribute):  # self.shape is a parameter of the module
        return node.attr in SHAPES | _MADE and getattr(node.value, "id", "") != "self"
    return isinstance(node, ast.Call) and shows_shape(node.func)


def _asked(node: ast.AST) -> ast.expr | None:
    """The tensor whose size, dtype or device is asked for; None for any other code."""
    match node:
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute() as inner):
            return _asked(inner)
        case ast.Attribute(value=ast.Name() | ast.Attribute() as tensor, attr=attr):
            return tensor if attr in SHAPES and shows_shape(node) else None
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name() | ast.Attribute() as tensor]):
            return tensor
    return None


_MADE = frozenset({"new_zeros", "new_ones"})  # of its dtype, on its device


def free_paths(tree: ast.AST, known: set[str]) -> list[ast.expr]:
    """The names, and attributes of names, that have no value here; each once."""
    found: dict[str, ast.expr] = {}

    def visit(node: ast.AST) -> None:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and root_of(node.func) not in known
        ):
            for part in (node.func.value, *node.args, *node.keywords):
                visit(part)
            return
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            root = root_of(node)
            if root:
                if root not in known:
                    found.setdefault(key_of(node), node)
                return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return list(found.values())


class Code:
    """An expression, and statements before it, as a function of values; the code shown is run."""

    def __init__(
        self,
        node: ast.expr,
        parts: Iterable[str],
        names: dict[str, Any],
        before: Sequence[ast.stmt] = (),
        contexts: Sequence[ast.withitem] = (),
        computed: Collection[str] = (),
    ) -> None:
        """parts: keys of what is given; names: what others mean; computed: keys of parts that a
        function computes itself when it is called."""
        self.names = names
        self.variables = variables = {key: f"_part{i}" for i, key in enumerate(parts)}
        self._computed = frozenset(computed)
        self._assigned: set[str] = set()  # from here on these are no parts any more
        body: list[ast.stmt] = []
        for statement in (*before, ast.Assign([ast.Name("_value", ast.Store())], node)):
            body.append(self._replaced(statement, variables))
            self._assigned.update(stored_in(statement))
        inner: list[ast.stmt] = [ast.With(copied(list(contexts)), body)] if contexts else body
        module = ast.fix_missing_locations(ast.Module(inner, []))
        known = set(variables.values()) | set(names) | set(dir(builtins))
        known |= {n.target.id for n in ast.walk(module) if isinstance(n, ast.NamedExpr)}
        known |= {n.arg for n in ast.walk(module) if isinstance(n, ast.arg)}
        self.free = [path for item in contexts for path in free_paths(item, known)]
        for statement in body:  # `x = f(x)` reads another x than what follows
            read = statement.value if isinstance(statement, ast.Assign) else statement
            self.free += free_paths(read, known | {*stored_in(read)})
            known.update(stored_in(statement))
        self.code = compile(module, "<edit>", "exec")
        self.read: Collection[str] | None = None  # keys of the parts that the last call has read

    def check(self, where: str = "") -> None:
        """Raises NotReplayable where a name means nothing here."""
        if self.free:
            raise NotReplayable(f"the value of {ast.unparse(self.free[0])} is not known{where}")

    def _replaced(self, tree: Any, known: dict[str, str]) -> Any:
        """The code with variables in the places of the parts that are known by their keys."""

        def other(node: ast.expr) -> ast.expr | None:
            if isinstance(node, ast.Lambda):
                own = {
                    key_of(ast.Name(a.arg, ast.Load()))
                    for a in ast.walk(node.args)
                    if isinstance(a, ast.arg)
                }
                outer = {k: name for k, name in known.items() if k not in own | self._computed}
                return None if outer == known else self._replaced(node, outer)
            name = known.get(key_of(node))
            if name is None or isinstance(getattr(node, "ctx", None), ast.Store):
                return None
            if self._assigned and not self._assigned.isdisjoint(names_in(node)):
                return None  # of what was assigned it is another value
            return ast.copy_location(ast.Name(name, ast.Load()), node)

        return replaced(tree, other)

    def __call__(self, parts: dict[str, Any]) -> Any:
        given = {variable: parts[key] for key, variable in self.variables.items()}
        inner = any(isinstance(each, CodeType) for each in self.code.co_consts)
        scope = {**self.names, **given} if inner else dict(self.names)
        own = scope if inner else _Given({v: k for k, v in self.variables.items()}, given)
        self.read = own.read if isinstance(own, _Given) else self.variables.keys()
        with warnings.catch_warnings():  # a trial of ours: the run itself has warned
            warnings.simplefilter("ignore")
            exec(self.code, scope, own)
        return own["_value"]


class _Given(dict[str, Any]):
    """The variables of code, with the keys of those that it has read; what it assigns is its
    own."""

    def __init__(self, keys: dict[str, str], given: dict[str, Any]) -> None:
        super().__init__()
        self.keys_of, self.given, self.read = keys, given, set[str]()

    def __missing__(self, name: str) -> Any:
        value = self.given[name]
        self.read.add(self.keys_of[name])
        return value


def autocast(device: str, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """The autocast that an expression ran under; none for None."""
    return (
        nullcontext() if dtype is None else torch.autocast(device, dtype=dtype, cache_enabled=False)
    )


ValueAt = Callable[[int, Ref], Any]  # what a reference showed when the call of that index began


def bind(expression: Expression, made: Sequence[Made], value: ValueAt) -> list[Bound]:
    """Every run of an expression: its calls, and the values behind its parts.

    value: the recorded value of a reference at a call. An assignment of values to names counts only
    if the expression, computed from it, gives the recorded result bit for bit. Raises NotReplayable
    where none does.
    """
    if not made:
        raise NotReplayable("the line made no calls in this step")
    spans = {each.span for each in made}
    expression.node = by_sides(expression.node, sides_taken(expression.node, spans))
    leaves = expression.leaves(spans)
    # what a part that comes from elsewhere computes, a module's call, is no part of the expression
    parts = [span_of(leaf) for leaf in leaves if leaf is not expression.node]
    made = [each for each in made if not any(inside(each.span, part) for part in parts)]
    keys = [key_of(leaf) for leaf in leaves]
    code = Code(expression.node, [*keys, *expression.callees], expression.names)
    code.check()
    orders = sorted(range(MOST_MAPS + 1), key=lambda n: n == 0 and _lines_up(expression.node, made))
    found: list[Bound] = []
    rest, tried = list(made), set[int]()
    while rest:
        run = partial(_first_run, expression, code, keys, leaves, rest, value, tried)
        before = found[-1] if found else None
        for maps in orders if before is None else (before.maps,):
            with suppress(NotReplayable):
                found.append(run(before, maps))
                break
        else:
            length = len(found[0].calls) if found and not found[0].maps else 0
            if length and length not in tried and len(tried) < MOST_LENGTHS:
                tried.add(length)  # it was cut too short
                orders, found, rest = [0], [], list(made)
                continue
            text = ast.unparse(leaves[0]) if leaves else "the expression"
            raise NotReplayable(f"nanlab could not tell which recorded values `{text}` stands for")
        rest = rest[len(found[-1].calls) :]
    for key in expression.callees:
        if any(run.parts[key] != found[0].parts[key] for run in found):
            raise NotReplayable(f"`{ast.unparse(expression.node)}` calls several operators")
    return found


def _first_run(
    expression: Expression,
    code: Code,
    keys: list[str],
    leaves: list[ast.expr],
    made: Sequence[Made],
    value: ValueAt,
    tried: Collection[int],
    before: Bound | None,
    maps: int,
) -> Bound:
    """tried: lengths of a first run after which there was no second."""
    if before is None:
        length = _guess(expression, made)
        lengths = sorted(range(1, min(len(made), 64) + 1), key=lambda n: (n != length, n))
        if tried:
            lengths = [n for n in lengths if 0 < n - max(tried) <= MOST_LENGTHS]
    else:  # as many calls, apart from those that autograd makes where it keeps a result
        counts = list(itertools.accumulate(int(not is_silent(m.call.func)) for m in made))
        alike = counts.index(before.computing) + 1 if before.computing in counts else 0
        length = alike if before.computing else len(before.calls)
        lengths = [length] if length else []
    spans = {each.span for each in made}
    places = [_places(expression, leaf, spans) for leaf in leaves]
    lists = _lists_in(expression.node)
    attributes = [leaf for leaf in leaves if isinstance(leaf, ast.Attribute)]
    numbers = {key_of(leaf) for leaf in attributes if leaf.attr not in expression.stored}
    tries = 0
    forward = expression.forward if before is None else before.tangent is not None
    for size in lengths:
        group = made[:size]
        outs = list(refs_in(group[-1].call.out))
        lowered = casts(group)
        operators: dict[str, Any] = {}
        for key, span in expression.callees.items():
            own = [m for m in group if m.span == span and not is_silent(m.call.func)]
            if len(own) == 1 and (one := _operator(expression.node, span, own[0].call)):
                operators[key] = one
        if not outs or len(operators) < len(expression.callees):
            continue
        at = group[0].index
        ordered = _lined_up(group) if maps else group
        choices = _choices(ordered, keys, places, expression, numbers, lists)
        if forward:
            choices = _with_tangents(choices, group)
        elif maps:
            choices = _mapped(choices, outs[0].size[:maps], maps)
        most = MOST_TRIES if not maps else MOST_TRIES // 8  # most lines run under none
        misfits = [_Misfits(keys) for _ in lowered]
        for chosen in itertools.islice(choices, MOST_CHOICES):
            if tries == most:
                break
            known = [each.holds(chosen) for each in misfits]
            tries += not all(known)
            parts = dict(zip(keys, chosen, strict=True)) | operators
            for cast, misfit, seen in zip(lowered, misfits, known, strict=True):
                if seen:
                    continue
                given = _gives(code, parts, partial(value, at), group, expression.device, cast)
                if given is None and code.read is not None:
                    misfit.note(chosen, code.read)
                if given is not None and not (maps and given[0].shape != outs[0].size):
                    while size < len(made) and is_silent(made[size].call.func):
                        if made[size].span != group[-1].span:
                            break
                        if not reads_of(made[size], made[:size]):
                            break  # a run of its own, of a view that is taken in a loop
                        size += 1
                    calls = tuple(each.index for each in made[:size])
                    computing = sum(not is_silent(each.call.func) for each in group)
                    if isinstance(given[0], Dual):
                        made_of = given[0].value, parts, cast, computing, given[0].tangent
                        return Bound(calls, *made_of)
                    shown = given[1]  # not what autograd made last, to keep it
                    elsewhere = shown is not None and shown.storage != outs[0].storage
                    out = _several(given[0], group) or (shown if elsewhere else outs[0])
                    return Bound(calls, out, parts, cast, computing)
    raise NotReplayable("none gives what was recorded")


@dataclass(frozen=True)
class _Operator:
    """A function of the program that is one operator: ``criterion(x, y)``."""

    func: Any
    settings: tuple[Any, ...]  # what it gives the operator beside its own arguments

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.func(*args, *self.settings, **named)


def _operator(node: ast.expr, span: Span, made: Call) -> _Operator | None:
    """The operator that a call in an expression made; None where the operator read other tensors
    than the call's arguments."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call) and span_of(n) == span)
    count = next((len(call.args) for call in calls), 0)
    settings = made.args[count:]
    return None if any(refs_in(settings)) else _Operator(made.func, tuple(settings))


def _lines_up(node: ast.expr, made: Sequence[Made]) -> bool:
    """Whether vmap lined up the dimensions of operands: an arithmetic operator alone makes no
    views."""
    spans = {
        span_of(n)
        for n in ast.walk(node)
        if isinstance(n, ast.BinOp) and not isinstance(n.op, ast.MatMult)
    }
    # others are made by autograd, where it keeps a result
    return any(m.span in spans and m.call.func._opname in having("reshapes", "picks") for m in made)


class _Misfits:
    """Combinations of values that failed to give the recorded results. Only the parts that were
    read count: whatever the others are, these values fail."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.known: dict[tuple[int, ...], set[Any]] = {}  # by the places of the parts

    def note(self, chosen: Sequence[Any], read: Collection[str]) -> None:
        """Note that the chosen values of the parts that were read fail."""
        parts = zip(self.keys, chosen, strict=True)
        at = tuple(
            i for i, (key, x) in enumerate(parts) if key in read or isinstance(x, Dual | Mapped)
        )
        self.known.setdefault(at, set()).add(self._of(chosen, at))

    def holds(self, chosen: Sequence[Any]) -> bool:
        """Whether the chosen values are known to fail."""
        return any(self._of(chosen, at) in seen for at, seen in self.known.items())

    @staticmethod
    def _of(chosen: Sequence[Any], at: Iterable[int]) -> tuple[Any, ...]:
        return tuple(_hashable(chosen[i]) for i in at)


def _hashable(value: Any) -> Any:
    """A value with its kind, by which it can be looked up: 1 is neither 1.0 nor True."""
    if isinstance(value, dict):
        return dict, tuple((name, _hashable(each)) for name, each in value.items())
    if value.__class__ is list:
        return list, tuple(map(_hashable, value))
    return value.__class__, value


def _several(value: Any, group: Sequence[Made]) -> tuple[Any, ...]:
    """The references that stand for a value that is a tuple of tensors; empty for any other.

    The operator may return more, for its derivative.
    """
    if not isinstance(value, tuple) or len(value) < 2:
        return ()
    shapes = [tuple(each.shape) if isinstance(each, Tensor) else None for each in value]
    outs = (tuple(refs_in(each.call.out))[: len(value)] for each in reversed(group))
    return next((out for out in outs if [ref.size for ref in out] == shapes), ())


def _choices(
    group: Sequence[Made],
    keys: list[str],
    places: list[list[_Occurrence]],
    expression: Expression,
    numbers: Collection[str],
    lists: dict[str, Span],
) -> Iterator[tuple[Any, ...]]:
    """Combinations of values for the leaves: first what the calls that compute with a leaf read,
    then any value.

    numbers: keys of leaves that are plain numbers. lists: keys of lists that are added up, and
    where.
    """
    kinds = expression.kinds
    inner = {ref.view for each in group if not _is_view(each) for ref in refs_in(each.call.out)}
    pools: dict[Span | None, list[Any]] = {}
    named: dict[tuple[Span | None, str], list[Any]] = {}
    for each in group:
        call = each.call
        if call.func._opname == "lift_fresh":  # of numbers: `torch.tensor(x)` is given no tensor
            continue
        for name, flag in _flags(call):
            named.setdefault((each.span, name), []).append(flag)
        read = [r for r in call.read if r.view not in inner or _writes_first(call, r)]
        for a in (*read, *numbers_in((call.args, tuple(call.kwargs.values())))):
            for pool in (pools.setdefault(each.span, []), pools.setdefault(None, [])):
                if not _holds(pool, a):
                    pool.append(a)
    near = [
        [a for a in _near(pools, named, each) if kinds.get(key) in (None, a.__class__ is Ref)]
        for key, each in zip(keys, places, strict=True)
    ]
    for key, values in zip(keys, near, strict=True):  # what no call was given as it is
        values += (a for a in expression.constants.get(key, ()) if not _holds(values, a))
    for key, values in zip(keys, near, strict=True):
        if key in numbers:
            values.sort(key=lambda a: a.__class__ is Ref)
    for i, key in enumerate(keys):
        if key in lists:
            added = (each.call.args for each in group if each.span == lists[key])
            near[i] = [tuple(r for args in added for r in refs_in(args) if r.view not in inner)]
    if all(near):  # names of one value come last: by coincidence they may give the result too
        late = []
        for chosen in itertools.islice(itertools.product(*near), MOST_CHOICES):
            if any(_holds(chosen[:i], a) for i, a in enumerate(chosen)):
                late.append(chosen)
            else:
                yield chosen
        yield from late
    pool = _either_sign(pools.get(None, []))
    if len(keys) > 1 and all(map(_is_view, group)):  # x.expand_as(y) reads x alone
        pool = [*pool, *refs_in(group[-1].call.out)]
    yield from itertools.permutations(pool, len(keys))


def _lined_up(group: Sequence[Made]) -> list[Made]:
    """The calls with the views that vmap made for them undone. Those views, and conversions of
    numbers, come last."""
    late = [_is_view(each) or not each.call.read for each in group]
    seen = [(each.call.read[:1], each.call.out) for each in group if _is_view(each)]
    pairs = [(out, read) for reads, outs in seen for read in reads for out in refs_in(outs)]
    views = {out.view: read for out, read in pairs if out.view != read.view}

    def before(value: Any) -> Any:
        if value.__class__ is Ref:
            for _ in views:
                value = views.get(value.view, value)
            return value
        return type(value)(map(before, value)) if value.__class__ in (tuple, list) else value

    first = [
        replace(each, call=each.call._replace(args=before(each.call.args)))
        for each, is_late in zip(group, late, strict=True)
        if not is_late
    ]
    return [*first, *(each for each, is_late in zip(group, late, strict=True) if is_late)]


def _flags(call: Call) -> Iterator[tuple[str, bool]]:
    """(name, value) of a call's boolean arguments, defaults included."""
    for at, argument in enumerate(call.func._schema.arguments):
        found = call.args[at] if at < len(call.args) else call.kwargs.get(argument.name)
        found = argument.default_value if found is None else found
        if isinstance(found, bool):
            yield argument.name, found
        elif argument.name == "correction":  # of a deviation, which has it by another name
            yield "unbiased", found != 0


def _with_tangents(
    choices: Iterable[tuple[Any, ...]], group: Sequence[Made]
) -> Iterator[tuple[Any, ...]]:
    """The same choices with each possible tangent among what the calls read, then without."""
    inner = {ref.view for each in group if not _is_view(each) for ref in refs_in(each.call.out)}
    read: dict[Any, Ref] = {}
    for each in group:
        for ref in each.call.read:
            if ref.view not in inner and ref.dtype.is_floating_point:
                read.setdefault((ref.view, ref.tracked), ref)

    def duals(value: Any) -> list[Any]:
        if value.__class__ is not Ref or not value.dtype.is_floating_point:
            return [value]
        count = len(value.size)
        fitting = [r for r in read.values() if r.size[len(r.size) - count :] == value.size]
        return [*(Dual(value, r) for r in fitting if not _is_twin(r, value)), value]

    first, again = itertools.tee(itertools.islice(choices, MOST_TRIES))
    for chosen in first:
        every = itertools.product(*map(duals, chosen))
        yield from (each for each in every if any(isinstance(v, Dual) for v in each))
    yield from again


def _mapped(
    choices: Iterable[tuple[Any, ...]], sizes: Sequence[int], maps: int
) -> Iterator[tuple[Any, ...]]:
    """The same choices, with each value split by the vmaps or whole, in all ways. sizes: those of
    the dimensions that the vmaps add to the result."""

    def forms(left: tuple[int, ...], sizes: Sequence[int]) -> Iterator[tuple[int | None, ...]]:
        if not sizes:
            yield ()
            return
        for dim in (*(dim for dim, n in enumerate(left) if n == sizes[0]), None):
            rest = left if dim is None else left[:dim] + left[dim + 1 :]
            yield from ((dim, *inner) for inner in forms(rest, sizes[1:]))

    def mapped(value: Any) -> list[Any]:
        every = forms(value.size, sizes) if value.__class__ is Ref else ()
        return [*(Mapped(value, dims) for dims in every if any(d is not None for d in dims)), value]

    for chosen in itertools.islice(choices, MOST_CHOICES // 8) if len(sizes) == maps else ():
        for each in itertools.product(*map(mapped, chosen)):
            dims = zip(*(v.dims for v in each if isinstance(v, Mapped)), strict=True)
            if sum(any(d is not None for d in level) for level in dims) == maps:
                yield each


def _lists_in(node: ast.AST) -> dict[str, Span]:
    """The names of lists that an expression adds up, and where."""
    return {
        key_of(call.args[0]): span_of(call)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "sum" and len(call.args) == 1
        if isinstance(call.args[0], ast.Name | ast.Attribute)
    }


def _near(
    pools: dict[Span | None, list[Any]],
    named: dict[tuple[Span | None, str], list[Any]],
    occurrences: list[_Occurrence],
) -> list[Any]:
    """Values that may stand behind a leaf; first those that fit at all of its places."""
    fitting = []
    for each in occurrences:
        pool = pools.get(each.span, []) if each.span is not None else []
        if each.form is not None:
            pool = solved(each.form, [a for a in pool if type(a) in (int, float)])
        else:
            pool = _either_sign(pool)
        first = named.get((each.span, each.argument)) or pool[each.order : each.order + 1]
        fitting.append([*first, *pool[: each.order], *pool[each.order + 1 :]])
    shared = [a for a in fitting[0] if all(_holds(other, a) for other in fitting[1:])]
    found: list[Any] = []
    for a in (*shared, *itertools.chain(*fitting)):
        if not _holds(found, a):
            found.append(a)
    return found


def _either_sign(pool: Sequence[Any]) -> list[Any]:
    """Values that calls read, and the negated numbers: `a - b` may be computed as `a + -b`."""
    return [*pool, *(-a for a in pool if type(a) in (int, float) and -a not in pool)]


def _holds(pool: Sequence[Any], a: Any) -> bool:
    if a.__class__ is Ref:
        return any(a is b or _is_twin(a, b) for b in pool)
    return any(type(a) is type(b) and a == b for b in pool if b.__class__ is not Ref)


def solved(form: Callable[[float], Any], results: Sequence[float]) -> list[Any]:
    """Numbers at which a form, which computes with numbers alone, gives one of these results."""
    guesses = [g for n in results for g in (n, -n, *_roots(form, n))]
    found: list[Any] = []
    whole = (int(g) for g in guesses if abs(g) < 1e3 and g == int(g))
    for sizes in ((*map(float, guesses), *whole), range(1, MOST_SIZE)):
        for g in sizes if not found else ():
            with suppress(ArithmeticError, TypeError, ValueError):
                if form(g) in results and not _holds(found, g):
                    found.append(g)
    return found


def _roots(form: Callable[[float], Any], result: float) -> list[float]:
    """Numbers at which a form has a result, by the secant method, rounded as people write them."""
    found = []
    for a, b in ((1.0, 2.0), (0.5, 0.1), (-1.0, -2.0)):
        with suppress(ArithmeticError, TypeError, ValueError):
            for _ in range(MOST_SECANTS):
                at_a, at_b = form(a) - result, form(b) - result
                if at_a == at_b:
                    break
                a, b = b, b - at_b * (b - a) / (at_b - at_a)
        found += [round(b, digits) for digits in (6, 12, 15) if abs(b) < 1e9] + [b]
    return found


MOST_SECANTS = 12
MOST_SIZE = 1025  # of a dimension that a form with a pole is asked for


def reads_of(each: Made, others: Sequence[Made]) -> bool:
    """Whether a call reads the result of one of the others."""
    read = {ref.view for ref in each.call.read}
    return any(ref.view in read for other in others for ref in refs_in(other.call.out))


def _is_view(each: Made) -> bool:
    return bool(each.call.func.is_view)


def _is_twin(a: Ref, b: Any) -> bool:
    return b.__class__ is Ref and (a.view, a.tracked) == (b.view, b.tracked)


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """A place of a leaf: the smallest part around it that made calls."""

    span: Span | None
    order: int  # how many other leaves the part reads before
    # what the part computes of it in plain numbers, without a call; None: it reads it as it is
    form: Callable[[float], Any] | None
    argument: str = ""  # the name of the part's argument that it is


def _places(expression: Expression, leaf: ast.expr, spans: set[Span]) -> list[_Occurrence]:
    """All places of a leaf in an expression."""
    key, found = key_of(leaf), list[_Occurrence]()

    def visit(part: ast.AST, around: tuple[ast.expr, int] | None, below: ast.expr | None) -> None:
        if isinstance(part, ast.expr) and key_of(part) == key:
            span, order = (span_of(around[0]), around[1]) if around else (None, 0)
            keywords = getattr(around[0], "keywords", ()) if around else ()
            argument = next((k.arg or "" for k in keywords if k.value is part), "")
            form = form_of(below, key) if around else None
            found.append(_Occurrence(span, order, form, argument))
            return
        makes = isinstance(part, ast.expr) and span_of(part) in spans
        order = 0
        for child in ast.iter_child_nodes(part):
            inner = below if below is not None or not isinstance(child, ast.expr) else child
            visit(
                child,
                (part, order) if makes else around,  # type: ignore[arg-type]
                (child if isinstance(child, ast.expr) else None) if makes else inner,
            )
            order += (
                isinstance(child, ast.Name | ast.Attribute | ast.Subscript)
                and root_of(child) not in expression.names
            )

    visit(expression.node, None, None)
    return found or [_Occurrence(None, 0, None)]


def form_of(part: ast.expr | None, key: str) -> Callable[[float], Any] | None:
    """What an expression of one number and constants is, as a function of the number."""
    if not isinstance(part, ast.BinOp | ast.UnaryOp):
        return None

    number = ast.Name("_number", ast.Load())
    tree = replaced(ast.Expression(part), lambda n: number if key_of(n) == key else None)
    parts = list(ast.walk(tree))
    if any(not isinstance(n, _PLAIN) or getattr(n, "id", "_number") != "_number" for n in parts):
        return None
    code = compile(tree, "<number>", "eval")
    return lambda number: eval(code, {"__builtins__": {}, "_number": number})


_PLAIN = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name),
    *(ast.operator, ast.unaryop, ast.expr_context),
)


def _writes_first(call: Call, ref: Ref) -> bool:
    """Whether a call reads and writes a tensor, an operand that is also its result."""
    first = call.args[0] if call.args else None
    if first.__class__ is not Ref or first.view != ref.view:
        return False
    return any(out.view == ref.view for out in refs_in(call.out))


def _guess(expression: Expression, made: Sequence[Made]) -> int:
    """How many calls make the first run: it ends where an earlier part is evaluated again."""
    order = {
        span_of(node): i
        for i, node in enumerate(postorder(expression.node))
        if isinstance(node, ast.expr)
    }
    last = -1
    for count, each in enumerate(made):
        now = order.get(each.span, last)
        if now < last:
            return count
        last = now
    return len(made)


def numbers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Ref):
        return
    if isinstance(value, tuple | list):
        if value and all(isinstance(v, int) for v in value):
            yield value
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int | float | torch.dtype | torch.device):
        yield value


def casts(group: Sequence[Made]) -> list[torch.dtype | None]:
    """The autocasts that it may have run under: none first."""
    low = {
        ref.dtype
        for each in group
        for ref in refs_in((each.call.out, each.call.args))
        if ref.dtype in (torch.float16, torch.bfloat16)
    }
    return [None, *sorted(low, key=str)]


def _gives(
    code: Code,
    parts: dict[str, Any],
    value: Get,
    group: Sequence[Made],
    device: str,
    cast: torch.dtype | None,
) -> tuple[Any, Ref | None] | None:
    """The result of the code and its recorded reference, if the code makes exactly these calls with
    the recorded results; else None."""
    code.read = None  # until it runs
    try:
        values = {key: as_operand(part, value) for key, part in parts.items()}
        if any(each.call.func._schema.is_mutable for each in group):  # into no leaf
            values = {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
        following = Following(group, [(values[key], part) for key, part in parts.items()])
        with (
            torch.set_grad_enabled(group[0].call.grad),
            _disable_current_modes(),
            torch.random.fork_rng(devices=[]),
            autocast(device, cast),
            following,
        ):
            result = transformed(code, values)
    except Exception:
        return None
    if isinstance(result, Dual):
        refs = following.ref_of(result.value), following.ref_of(result.tangent)
        return (Dual(*refs), None) if None not in refs and following.followed() else None
    known = group[-1].result
    if all(is_silent(each.call.func) for each in group) and isinstance(known, Tensor):
        if not isinstance(result, Tensor) or not same_bits(result.detach(), known):
            return None  # another part of the same tensor
    return (result, following.ref_of(result)) if following.followed() else None


def as_operand(part: Any, value: Get) -> Any:
    """A copy of a part's recorded value, which autograd follows if it followed the original."""
    if isinstance(part, Dual | Mapped):
        return part.of(partial(as_operand, value=value))
    if part.__class__ is tuple:
        return tuple(as_operand(each, value) for each in part)
    if part.__class__ is not Ref:
        return part
    found = copy_of(value(part))
    follows = (part.tracked is None or part.tracked > 0) and (
        found.is_floating_point() or found.is_complex()
    )
    return found.requires_grad_() if follows else found


def transformed(code: Callable[[dict[str, Any]], Any], parts: dict[str, Any]) -> Any:
    """The result of code on its parts: under vmap if some are Mapped, a Dual if some are."""
    mapped = {key: part for key, part in parts.items() if isinstance(part, Mapped)}
    if not mapped:
        return _differentiated(code, parts)

    def each(*given: Tensor) -> Any:
        return code({**parts, **dict(zip(mapped, given, strict=True))})

    run: Callable[..., Any] = each
    for dims in reversed([*zip(*(part.dims for part in mapped.values()), strict=True)]):
        run = torch.func.vmap(run, dims)
    return run(*(part.value for part in mapped.values()))


def _differentiated(code: Callable[[dict[str, Any]], Any], parts: dict[str, Any]) -> Any:
    duals = {key: part for key, part in parts.items() if isinstance(part, Dual)}
    if not duals:
        return code(parts)
    values = tuple(part.value for part in duals.values())

    def value_and_tangent(*tangents: Tensor) -> Any:
        def function(*given: Tensor) -> Tensor:
            found: Tensor = code({**parts, **dict(zip(duals, given, strict=True))})
            return found

        return torch.func.jvp(function, values, tangents)

    run: Callable[..., Any] = value_and_tangent
    for _ in range(max(d.tangent.dim() - d.value.dim() for d in duals.values())):
        run = torch.func.vmap(run, out_dims=(None, 0))  # type: ignore[arg-type]
    return Dual(*run(*(part.tangent for part in duals.values())))
