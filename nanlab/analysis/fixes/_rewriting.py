"""The user's own line, with one expression in it written otherwise."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from nanlab.analysis.fixes._calls import NOWHERE, Calls, is_module
from nanlab.analysis.fixes._calls import Found as Found
from nanlab.analysis.fixes._layout import on_one_line

_ALIASES = {
    f"arc{name}": f"a{name}" for name in ("cos", "sin", "tan", "tan2", "cosh", "sinh", "tanh")
}
SHORT = 24  # characters of an operand that is written twice rather than named
_ATOMS = (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple)
Parts = dict[str, ast.expr | None]
Spelling = Callable[[ast.AST], "Found | None"]


@dataclass(frozen=True)
class Rewritten:
    """Lines ``first`` to ``last`` of the file, in their new wording, without their common
    indentation."""

    first: int
    last: int
    text: str
    nested: bool = False  # one rewritten expression stands inside another
    count: int = 1  # expressions that were rewritten


def called(*names: str, arity: int = 1) -> Spelling:
    """A call of one of these functions, ``torch.sqrt(x)`` or ``sqrt(x)``, or of the method,
    ``x.sqrt()``."""

    def match(node: ast.AST) -> Found | None:
        if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
            return None
        if isinstance(node.func, ast.Name) and _ALIASES.get(node.func.id, node.func.id) in names:
            args = list(node.args)
        elif (
            isinstance(node.func, ast.Attribute)
            and _ALIASES.get(node.func.attr, node.func.attr) in names
        ):
            args = list(node.args) if is_module(node.func.value) else [node.func.value, *node.args]
        else:
            return None
        if len(args) < arity:
            return None
        return Found(
            tuple(args[:arity]), (*args[arity:], *(k for k in node.keywords if k.arg != "out"))
        )

    return match


def binary(kind: type[ast.operator]) -> Spelling:
    """An infix operation ``a / b`` or ``a /= b`` of something that is not a plain number."""

    def match(node: ast.AST) -> Found | None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, kind) and not is_number(node.right):
            return Found((node.left, node.right))
        if (
            isinstance(node, ast.AugAssign)
            and isinstance(node.op, kind)
            and not is_number(node.value)
        ):
            return Found((node.target, node.value))
        return None

    return match


def is_number(node: ast.expr) -> bool:
    """Whether an expression is a plain number: a literal, a length, part of a shape."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):  # a tensor's own float() is a tensor
            return node.func.attr in ("numel", "size", "item")
        return getattr(node.func, "id", "") in ("len", "float", "int")
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.Attribute) and node.attr == "shape"
    )


def power(node: ast.AST) -> Found | None:
    """``x ** p``, ``x **= p``, or a call of pow."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return Found((node.left, node.right))
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Pow):
        return Found((node.target, node.value))
    return called("pow", "float_power", arity=2)(node)


def rewrite(
    text: str,
    line: int,
    spellings: Sequence[Spelling],
    form: str,
    page: Page | None = None,
    calls: Calls = NOWHERE,
) -> Rewritten | None:
    """Write every expression on a line that has one of the spellings in another form; None if there
    is none.

    text: of the whole file. form: a template with ``{x}``, ``{y}``, ... for the operands as they
    stand, ``{X}``, ``{Y}``, ... for the same made safe to be followed by an operator or a dot,
    ``{rest}`` for the other arguments, with the comma before them, ``{args}`` without it. page: of
    the text, where it is at hand. calls: which of the expressions.
    """
    page = page or Page.of(text)
    if page is None:
        return None
    spots = {}
    for node in page.covering(line):
        found = next((f for spelling in spellings if (f := spelling(node)) is not None), None)
        if found is not None:
            spots[node] = found
    named = calls.standing(spots) or calls.through_a_value(list(page.covering(line)), form)
    spots = named or calls.in_order(spots)
    if not spots:
        return None
    outer = [n for n in spots if not any(n is not m and _inside(n, m) for m in spots)]
    changed = page.replaced([(n, page.render(n, spots, form)) for n in outer])
    return replace(changed, nested=len(outer) < len(spots), count=len(spots))


def _inside(inner: ast.AST, outer: ast.AST) -> bool:
    return any(n is inner for n in ast.walk(outer))


def _directly(node: ast.AST, statement: ast.stmt) -> bool:
    """Whether an expression stands in a statement itself, and in none within it."""
    parts = [n for n in ast.iter_child_nodes(statement) if isinstance(n, ast.expr)]
    return any(_inside(node, part) for part in parts)


def _parsed(text: str) -> ast.expr | None:
    """The expression that a text writes; None for a text that is none."""
    try:
        return ast.parse(text.strip(), mode="eval").body if not _bracketed(text) else ast.Tuple([])
    except SyntaxError:
        return None


def _bracketed(text: str) -> bool:
    """Whether one pair of parentheses holds the whole text."""
    depth = 0
    for i, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return sign == ")" and i == len(text) - 1
    return False


def _unaliased(tree: ast.Module) -> ast.Module:
    """The tree, in which calls name what a module's function is called there: ``ce =
    F.cross_entropy``, then ``ce(z, y)``."""
    bound = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Attribute)
    ]
    known = {
        n.targets[0].id: n.value.attr
        for n in bound
        if isinstance(n.targets[0], ast.Name)
        and isinstance(n.value, ast.Attribute)
        and is_module(n.value.value)
    }
    for node in ast.walk(tree) if known else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            node.func.id = known.get(node.func.id, node.func.id)
    return tree


@dataclass(frozen=True)
class Page:
    """A file's lines (as UTF-8, in which ast counts columns) and its tree."""

    lines: list[bytes]
    tree: ast.AST
    # calls of in-place methods, under the name of the function
    writes: frozenset[ast.AST] = frozenset()

    @staticmethod
    def of(text: str) -> Page | None:
        try:
            return Page([line.encode() for line in text.splitlines()], _unaliased(ast.parse(text)))
        except (SyntaxError, ValueError):
            return None

    def covering(self, line: int) -> Iterator[ast.AST]:
        """Expressions and augmented assignments that reach over a line."""
        waiting: list[ast.AST] = [self.tree]
        for node in waiting:
            for child in ast.iter_child_nodes(node):
                if not hasattr(child, "lineno") or child.lineno <= line <= child.end_lineno:  # type: ignore[attr-defined]
                    waiting.append(child)
            if isinstance(node, ast.expr | ast.AugAssign | ast.keyword):
                yield node

    def source(self, node: ast.AST) -> str:
        return on_one_line(self._bytes(*self._span(node)))

    def render(self, node: ast.AST, spots: dict[ast.AST, Found], form: str) -> str:
        """The text of a node, every spot in it in its new form."""
        if node not in spots:
            return self._patched(node, spots, form)
        found = spots[node]
        parts: dict[str, str] = {}
        for name, operand in zip("xyzw", found.operands, strict=False):
            text = self.render(operand, spots, form)
            parts[name] = text
            parts[name.upper()] = text if isinstance(_parsed(text), _ATOMS) else f"({text})"
            if is_number(operand):
                form = form.replace(f"{{{name.upper()}}}.float()", f"{{{name.upper()}}}")
        if form.count("{X}") > 1 and len(parts["x"]) > SHORT:
            first, _, others = form.partition("{X}")  # computed once, under a name
            form = f"{first}(inner := {{x}}){others.replace('{X}', 'inner')}"
        parts["rest"] = "".join(", " + self.source(a) for a in found.rest)
        parts["args"] = parts["rest"].removeprefix(", ")
        new = form.format(**parts)
        if isinstance(node, ast.AugAssign):
            return f"{parts['x']} = {new}"
        out = next((k.value for k in getattr(node, "keywords", ()) if k.arg == "out"), None)
        if out is not None and isinstance(out, _ATOMS):
            return f"{self.source(out)}.copy_({new})"
        if node in self.writes and isinstance(found.operands[0], ast.Name):
            around = next(
                n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and _directly(node, n)
            )
            if isinstance(around, ast.Expr) and around.value is node:
                return f"{parts['x']} = {new}"
            if not isinstance(around, ast.Return):
                return f"({parts['x']} := {new})"
        return f"({new})" if self._needs_parentheses(node, _parsed(new)) else new

    def _needs_parentheses(self, old: ast.AST, new: ast.expr | None) -> bool:
        """Whether what stands around an expression would take its new form apart."""
        if isinstance(new, _ATOMS):
            return False
        if (
            isinstance(old, ast.BinOp)
            and isinstance(new, ast.BinOp)
            and type(old.op) is type(new.op)
        ):
            return False
        around = next(
            (n for n in ast.walk(self.tree) if any(c is old for c in ast.iter_child_nodes(n))), None
        )
        if isinstance(around, ast.Subscript):
            return around.value is old
        if isinstance(around, ast.Call):
            return around.func is old
        return isinstance(around, ast.Attribute | ast.BinOp | ast.UnaryOp | ast.Await | ast.Starred)

    def _patched(self, node: ast.AST, spots: dict[ast.AST, Found], form: str) -> str:
        inner = [n for n in spots if n is not node and _inside(n, node)]
        outer = [n for n in inner if not any(n is not m and _inside(n, m) for m in inner)]
        start, end = self._span(node)
        text, after = "", end
        for spot in sorted(outer, key=self._span, reverse=True):
            first, last = self._span(spot)
            text = self.render(spot, spots, form) + self._bytes(last, after) + text
            after = first
        return on_one_line(self._bytes(start, after) + text)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node starts and ends, in bytes from the start of the file."""
        starts = [0, *accumulate(len(line) + 1 for line in self.lines)]
        first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
        return starts[first] + node.col_offset, starts[last] + node.end_col_offset  # type: ignore[attr-defined]

    def _bytes(self, start: int, end: int) -> str:
        return b"\n".join(self.lines)[start:end].decode()

    def uncommented(self, number: int) -> bytes:
        """A line without the comment after its code: it was written about the code as it was."""
        row = self.lines[number - 1]
        if b"#" not in row:
            return row
        text = b"\n".join(self.lines).decode()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.start[0] == number:
                code = row.decode()[: token.start[1]].rstrip()
                return code.encode() if code else row
        return row

    def replaced(self, changes: Sequence[tuple[ast.AST, str]]) -> Rewritten:
        """The lines of these nodes with their new texts."""
        first = min(n.lineno for n, _ in changes)  # type: ignore[attr-defined]
        last = max(n.end_lineno for n, _ in changes)  # type: ignore[attr-defined]
        rows = list(self.lines)
        for number in range(first, last + 1):
            rows[number - 1] = self.uncommented(number)
        for node, text in sorted(
            changes,
            key=lambda c: (c[0].lineno, c[0].col_offset),  # type: ignore[attr-defined]
            reverse=True,
        ):
            start, end = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
            joined = (
                rows[start][: node.col_offset] + text.encode() + rows[end][node.end_col_offset :]  # type: ignore[attr-defined]
            )
            rows[start : end + 1] = [joined] + [b""] * 0
            last -= end - start
        code = b"\n".join(rows[first - 1 : last]).decode()
        end_line = max(n.end_lineno for n, _ in changes)  # type: ignore[attr-defined]
        return Rewritten(first, end_line, textwrap.dedent(code).strip())
