"""One operation, whichever way a program writes it, and another in its place: both by example.

``sqrt($x)`` is ``torch.sqrt(a)``, ``a.sqrt()`` and ``a ** 0.5``. ``$x`` stands for an expression
that is no plain number, ``$n`` and ``$p`` for any, ``$f`` for a function, ``$m`` for the name of a
method; ``...`` for the arguments that the example does not name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from nanlab.analysis.rewriting.term import CASTS, LIBRARIES, RENAMED, is_pure

Binding = dict[str, "ast.expr | tuple[ast.expr | ast.keyword, ...]"]
ANY = ("n", "p", "f", "d", "m")  # holes that a plain number may fill, or a function
MODULES = frozenset({*LIBRARIES, "nn", "math", "np", "numpy", "nanlab", "nanlab.safe", "safe"})
MODULES |= {"torch.nn", "torch.fft", "fft"}
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.Mod: "remainder",
}
_SAME = {"divide": "div", "true_divide": "div", "subtract": "sub", "multiply": "mul"}
_SAME |= {"mm": "matmul", "bmm": "matmul", "mv": "matmul", "dot": "matmul", "float_power": "pow"}
_SAME |= {"norm": "vector_norm", "inverse": "inv", "expit": "sigmoid", "fmod": "remainder"}
_INFINITIES = {"float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf", "-inf"}
_ATOMS = (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple)
_HOLE = re.compile(r"\$(\w+)")
SHORT = 24  # characters of an operand that is written twice rather than named


@dataclass(frozen=True)
class Spelled:
    """An operation in the words of a program."""

    name: str
    operands: tuple[ast.expr, ...]
    rest: tuple[ast.keyword, ...] = ()
    function: ast.expr | None = None  # of what is no method
    more: bool = False  # of an example: there may be further arguments
    method: str = ""  # what the program calls it, where it is a method


def spellings(node: ast.AST) -> Iterator[Spelled]:
    """The operations that an expression may be read as."""
    if isinstance(node, ast.BinOp):
        name = _SIGNS.get(type(node.op), "")
        if name == "pow" and isinstance(node.right, ast.Constant) and node.right.value == 0.5:
            yield Spelled("sqrt", (node.left,))
        yield Spelled(name, (node.left, node.right))
    elif isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args):
        args, rest = tuple(node.args), tuple(k for k in node.keywords if k.arg not in (None, "out"))
        more = any(k.arg is None for k in node.keywords)
        if any(k.arg is None and not _is_more(k) for k in node.keywords):
            return
        if isinstance(node.func, ast.Attribute):
            name = _common(node.func.attr.rstrip("_") or node.func.attr)
            if is_module(node.func.value):
                yield Spelled(name, args, rest, node.func, more)
            else:
                operands, attr = (node.func.value, *args), node.func.attr
                called = attr if hasattr(torch.Tensor, attr) else ""
                if not _is_module(node.func.value):
                    yield Spelled(name, operands, rest, more=more, method=called)
                if not hasattr(torch.Tensor, node.func.attr) or _is_own(node.func):
                    yield Spelled("", args, rest, node.func, more)
        elif isinstance(node.func, ast.Name):
            yield Spelled(_common(node.func.id), args, rest, node.func, more)
        else:
            yield Spelled("", args, rest, node.func, more)


def _is_more(argument: ast.keyword) -> bool:
    return isinstance(argument.value, ast.Name) and argument.value.id == "_more"


def _common(name: str) -> str:
    name = RENAMED.get(name, name)
    return _SAME.get(name, name)


def _is_own(node: ast.expr) -> bool:
    """Whether it is a layer of the program's own: ``self.norm``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return _is_module(node)


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "model", "net")


def is_module(node: ast.expr) -> bool:
    """Whether an expression names a module of functions, ``torch`` or ``torch.linalg``."""
    text = ast.unparse(node)
    return text in MODULES or (text.startswith("torch.") and "(" not in text)


def is_number(node: ast.AST) -> bool:
    """Whether an expression is a plain number: a literal, a length, part of a shape."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in ("numel", "size", "item", "dim")
        case ast.Call(func=ast.Name(id=name)):
            return name in ("len", "float", "int", "max", "min")
        case ast.Subscript():
            return is_number(node.value)
        case ast.BinOp():
            return is_number(node.left) and is_number(node.right)
        case ast.UnaryOp():
            return is_number(node.operand)
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.Attribute) and node.attr == "shape"
    )


@cache
def read(example: str) -> ast.expr:
    """An example, its holes as names."""
    text = _HOLE.sub(r"_hole_\1", example).replace("...", "**_more")
    return ast.parse(text, mode="eval").body


Resolve = Callable[[ast.Name], "ast.expr | None"]  # what a name was assigned


def bound(
    example: str, node: ast.AST, resolve: Resolve, known_as: Spelled | None = None
) -> Binding | None:
    """What the holes of an example stand for in an expression; None where it is another operation.

    known_as: the operation that it ran, where the program calls it by a name of its own.
    """
    tree = read(example)
    found = next(_matches(tree, node, {}, resolve), None)
    if found is None and known_as is not None:
        ways = (b for want in spellings(tree) for b in _operations(want, known_as, {}, resolve))
        return next(ways, None)
    return found


def _matches(
    example: ast.AST, node: ast.AST, known: Binding, resolve: Resolve
) -> Iterator[Binding]:
    if isinstance(example, ast.Name) and example.id.startswith("_hole_"):
        name = example.id.removeprefix("_hole_")
        have = known.get(name)
        if isinstance(have, ast.AST):
            if ast.dump(have) == ast.dump(node):
                yield known
        elif isinstance(node, ast.expr) and (name in ANY or not is_number(node)):
            yield {**known, name: node}
        return
    if isinstance(example, ast.Name) and example.id == "INFINITY":
        if ast.unparse(node).replace('"', "'") in _INFINITIES:
            yield known
        return
    if isinstance(example, ast.Constant):
        if isinstance(node, ast.Constant) and node.value == example.value:
            yield known
        return
    if isinstance(node, ast.Name):
        assigned = resolve(node)
        node = node if assigned is None else assigned
    for want in spellings(example):
        for have_one in spellings(node):
            yield from _operations(want, have_one, known, resolve)


def _operations(
    want: Spelled, have: Spelled, known: Binding, resolve: Resolve
) -> Iterator[Binding]:
    hole = want.name.removeprefix("_hole_") if want.name.startswith("_hole_") else ""
    if hole == "m":
        if not have.method or have.method in CASTS:
            return
        known = {**known, hole: ast.Name(have.method, ast.Load())}
    elif hole:
        if have.function is None:
            return
        known = {**known, hole: have.function}
    elif want.name != have.name:
        return
    operands, more = want.operands, want.more
    if len(have.operands) < len(operands) or (len(have.operands) > len(operands) and not more):
        return
    named = {str(k.arg): k.value for k in have.rest}
    wanted = {str(k.arg): k.value for k in want.rest}
    if not set(wanted) <= set(named) or (set(named) - set(wanted) and not more):
        return
    pairs = [*zip(operands, have.operands, strict=False)]
    pairs += [(value, named[name]) for name, value in wanted.items()]
    if more:
        rest = [k for k in have.rest if k.arg not in wanted]
        known = {**known, "...": (*have.operands[len(operands) :], *rest)}
    yield from _all(pairs, known, resolve)


def _all(
    pairs: Sequence[tuple[ast.AST, ast.AST]], known: Binding, resolve: Resolve
) -> Iterator[Binding]:
    if not pairs:
        yield known
        return
    for found in _matches(*pairs[0], known, resolve):
        yield from _all(pairs[1:], found, resolve)


def filled(example: str, known: Binding, source: Source) -> str | None:
    """An example in the program's words; None where something impure would be evaluated twice."""
    text = example
    rest = known.get("...", ())
    if "..." in text:
        more = ", ".join(source(a) for a in rest) if isinstance(rest, tuple) else ""
        gone = r",\s*\.\.\.|\.\.\.,\s*|\.\.\."
        text = text.replace("...", more) if more else re.sub(gone, "", text)
    for name in dict.fromkeys(_HOLE.findall(example)):
        node = known.get(name)
        if not isinstance(node, ast.expr):
            return None
        own = source(node)
        if is_number(node):
            text = text.replace(f"${name}.float()", f"${name}")
        if len(re.findall(rf"\${name}\b", text)) > 1 and (len(own) > SHORT or not is_pure(node)):
            if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
                text = re.sub(rf"\${name}\b", f"(inner_{name} := {_quoted(own)})", text, count=1)
                text = re.sub(rf"\${name}\b", f"inner_{name}", text)
                continue
        text = re.sub(rf"\${name}\b", lambda m: _placed(m, own, node), text)  # noqa: B023
    return text


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\")


def _placed(hole: re.Match[str], own: str, node: ast.expr) -> str:
    """An operand's text, in parentheses where what stands beside it would take it apart."""
    before, after = hole.string[: hole.start()].rstrip(), hole.string[hole.end() :].lstrip()
    alone = (not before or before[-1] in "([,=") and (not after or after[0] in ")],")
    return own if alone or isinstance(node, _ATOMS) else f"({own})"


class Source:
    """The text of a part of a file, on one line."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, node: ast.AST) -> str:
        own = ast.get_source_segment(self.text, node) or ast.unparse(node)
        if isinstance(node, ast.keyword):
            own = f"{node.arg}={self(node.value)}"
        return ast.unparse(node) if "\n" in own else own
