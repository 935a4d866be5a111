"""Which expressions on a line were the calls of an operator, told by where the interpreter
stood."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanlab.trace.names import Span

MODULES = frozenset(
    {"torch", "F", "nn", "math", "special", "linalg", "functional", "fft", "np", "nanlab", "tf"}
)
_TAKES_FUNCTIONS = frozenset(dir(builtins)) | {"functools", "itertools", "reduce", "starmap"}


@dataclass(frozen=True)
class Found:
    """An expression that spells an operation: its operands, and the other arguments."""

    operands: tuple[ast.expr, ...]
    rest: tuple[ast.expr | ast.keyword, ...] = ()


@dataclass(frozen=True)
class Calls:
    """The calls of an operator in one run of a line.

    alike: of them all, in order, which take tensors where the one that failed does. spans: where
    those stand that fail as it does, itself among them; empty where columns are not known. own: its
    span, if nothing else was ever computed there, so that the expression is the operation, whatever
    the program calls it. itself: nothing but the operation is to be rewritten, no expression around
    it.
    """

    alike: Sequence[bool] = ()
    spans: Sequence[Span] = ()
    own: Span | None = None
    itself: bool = False

    def standing(self, spots: dict[ast.AST, Found]) -> dict[ast.AST, Found]:
        """Of expressions that spell the operator, those that stand where it was computed.

        Where one is of a probability, that of its complement fails when its turn comes: ``p *
        log(p) + (1 - p) * log(1 - p)``.
        """
        standing = {
            node: found for node, found in spots.items() if span_of(node) in self.spans
        } or {
            n: f
            for n, f in spots.items()
            if any(_ends_with(span_of(n), span) for span in self.spans)
        }
        return {
            n: f
            for n, f in spots.items()
            if n in standing or any(_complement(f, s) for s in standing.values())
        }

    def in_order(self, spots: dict[ast.AST, Found]) -> dict[ast.AST, Found]:
        """Of expressions that spell the operator, those whose turn it was; all of them where
        nothing tells."""
        # an argument of the call in which it was computed may spell it
        if self.itself and self.spans:
            return {
                n: f
                for n, f in spots.items()
                if any(_within(span_of(n), span) for span in self.spans)
            }
        if len(self.alike) == len(spots) and any(self.alike):
            ordered = zip(sorted(spots, key=_finished), self.alike, strict=True)
            return {node: spots[node] for node, wanted in ordered if wanted}
        return spots

    def through_a_value(self, nodes: Sequence[ast.AST], form: str) -> dict[ast.AST, Found]:
        """The call of the operator through a name of the program, ``root(x)`` or ``self.fn(x)``;
        empty where none is."""
        arity = 2 if "{y}" in form or "{Y}" in form else 1
        for node in nodes if self.own is not None else ():
            if isinstance(node, ast.Call) and span_of(node) == self.own and _plain(node, arity):
                return {node: Found(tuple(node.args))}
        return {}


NOWHERE = Calls()


def is_module(node: ast.expr) -> bool:
    """Whether an expression names a module of functions, ``torch`` or ``torch.linalg``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in MODULES


def _plain(node: ast.Call, arity: int) -> bool:
    """Whether a call hands its operands, so many of them and nothing else, to what the program
    calls otherwise."""
    if len(node.args) != arity or node.keywords or is_module(node.func):
        return False
    root: ast.expr = node.func
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name) or root.id in _TAKES_FUNCTIONS:
        return False
    return not any(
        isinstance(a, ast.Starred | ast.Lambda) or (isinstance(a, ast.Attribute) and is_module(a))
        for a in node.args
    )


def _complement(one: Found, other: Found) -> bool:
    """Whether an operation is of ``1 - p`` and another of ``p``."""
    p, q = (ast.dump(found.operands[0]) for found in (one, other))
    return any(
        isinstance(first := found.operands[0], ast.BinOp)
        and isinstance(first.op, ast.Sub)
        and isinstance(first.left, ast.Constant)
        and first.left.value == 1
        and ast.dump(first.right) == rest
        for found, rest in ((one, q), (other, p))
    )


def span_of(node: Any) -> Span:
    """Where the text of a node stands."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _ends_with(node: Span, call: Span) -> bool:
    """Whether a call is the last of an expression: of a chain over several lines it begins with its
    own method's name."""
    return node[2:] == call[2:] and node[:2] <= call[:2] and call[0] > node[0]


def _within(inner: Span, outer: Span) -> bool:
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


def _finished(node: Any) -> tuple[int, int, int, int]:
    """Sorts expressions as they are computed: the one that ends first, of two the inner one."""
    return node.end_lineno, node.end_col_offset, -node.lineno, -node.col_offset
