"""The order of fixes that nobody could try: by what they do about the operation that failed."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Sequence

from nanlab.findings.rule import Fix
from nanlab.program.expression import key_of, last_name, names_in, nodes_of, parsed, span_of
from nanlab.trace.chunk import Span


def likeliest_first(fixes: Sequence[Fix], text: str, span: Span | None) -> list[Fix]:
    """Untried fixes that leave an operation as it is after those that do not, with those between
    that assume a removable singularity; the others keep their places.

    span: of the operation, in the text of its file.
    """
    operation = _at(text, span)
    untried = [fix for fix in fixes if fix.verdict == "untried" and fix.edits and not fix.may_raise]

    def doubt(fix: Fix) -> int:
        if operation is not None and _leaves(fix, operation):
            return 2
        return int("safe.removable" in fix.code)

    ordered = iter(sorted(untried, key=doubt))
    return [next(ordered) if any(fix is each for each in untried) else fix for fix in fixes]


def left_alike(fix: Fix, op: str) -> tuple[int, int]:
    """How many calls of one name stand in the lines of a fix, and how many are as they were: what
    is mended in one term of a statement fails in its siblings another time."""
    old, new = (
        Counter(call for edit in fix.edits for call in _calls(text(edit), op))
        for text in (lambda edit: edit.old, lambda edit: edit.text)
    )
    return new.total(), (new & old).total()


def _calls(text: str, op: str) -> list[str]:
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(text)))
    except SyntaxError:
        return []
    calls = (n for n in nodes if isinstance(n, ast.Call) and not _is_ours(n.func))
    return [ast.unparse(n) for n in calls if last_name(n.func) == op]


def _at(text: str, span: Span | None) -> ast.expr | None:
    """The expression at a stretch of text."""
    try:
        nodes = nodes_of(parsed(text))
    except (SyntaxError, ValueError):
        return None
    return next((n for n in nodes if isinstance(n, ast.expr) and span_of(n) == span), None)


def _leaves(fix: Fix, operation: ast.expr) -> bool:
    """Whether the lines of a fix hold an operation, of the same operand."""
    known = _operation(operation)
    for edit in fix.edits:
        try:
            nodes = ast.walk(ast.parse(textwrap.dedent(edit.text)))
        except SyntaxError:
            continue
        if any(isinstance(n, ast.expr) and _operation(n) == known for n in nodes):
            return True
    return False


def _operation(node: ast.expr) -> tuple[str, ...]:
    """What an operation does, and to what: for a quotient its divisor, for a power its base."""
    match node:
        case ast.BinOp(op=ast.Pow(), left=base):
            return "Pow", key_of(base)
        case ast.BinOp(op=op, right=right):
            return type(op).__name__, key_of(right)
        case ast.Call(func=function, args=given) if not _is_ours(function):
            of = [function.value] if isinstance(function, ast.Attribute) else [node]
            last = [*of, *(each for each in given if names_in(each))][-1]
            return last_name(function), key_of(last)
    return (key_of(node),)


def _is_ours(function: ast.expr) -> bool:
    """Whether a function is one of ``nanlab.safe``, which are finite."""
    return ast.unparse(function).startswith("nanlab.")
