"""The user's side of a fault inside a library: what the call could be given instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from nanlab.analysis.libraries import Place
from nanlab.trace.names import Span

# What libraries name the numbers that keep a function away from its pole, and a value to try.
GUARDS = {
    "eps": "1e-6",
    "epsilon": "1e-6",
    "tiny": "1e-6",
    "smooth": "1.0",
    "smoothing": "1e-3",
    "jitter": "1e-4",
    "temperature": "0.07",
    "tau": "0.07",
    "p": "2.0",
}
AWAY_FROM_ZERO = ("{x}.clamp_min(1e-6)", "{x} + 1e-6")
INSIDE = ("{x}.clamp(1e-6, 1 - 1e-6)", "{x}.clamp(-1 + 1e-6, 1 - 1e-6)")
SMALLER = ("{x}.clamp(-30.0, 30.0)", "torch.nn.functional.normalize({x}, dim=-1)")
FORMS = {
    "log-of-zero": (*AWAY_FROM_ZERO, *INSIDE),
    "log-of-negative": AWAY_FROM_ZERO,
    "div-by-zero": AWAY_FROM_ZERO,
    "div-by-tiny": AWAY_FROM_ZERO,
    "norm-at-zero": AWAY_FROM_ZERO[::-1],
    "sqrt-at-zero": AWAY_FROM_ZERO[::-1],
    "sqrt-of-negative": AWAY_FROM_ZERO,
    "pow-fraction-at-zero": AWAY_FROM_ZERO,
    "pow-negative-base": AWAY_FROM_ZERO,
    "infeasible-likelihood": (*AWAY_FROM_ZERO, *INSIDE),
    "inverse-function-at-edge": INSIDE[::-1],
    "inverse-function-domain": INSIDE[::-1],
    "std-of-constant": ("{x} + 1e-3 * torch.randn_like({x})",),
    "exp-overflow": SMALLER,
    "dtype-overflow": ("{x}.float()", *SMALLER),
    "where-grad-trap": AWAY_FROM_ZERO,
    "zero-times-inf": AWAY_FROM_ZERO,
}
MOST = 6  # arguments of a call that are tried


@dataclass(frozen=True)
class Rewriting:
    """Lines ``first`` to ``last`` of the user's file as they could be."""

    title: str
    first: int
    last: int
    text: str  # without indentation


def rewritings(
    text: str,
    line: int,
    library: Place,
    real: str,
    cause: str,
    probable: bool = False,
    span: Span | None = None,
) -> list[Rewriting]:
    """What the user could pass to a library, the most promising first.

    text: of the user's file; line: of the call in it; real: the library's file on the disk.
    probable: whether data of the step lies between 0 and 1. span: of the call,
    where several stand in the line.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    calls.sort(key=lambda n: (n.lineno, n.col_offset, n.end_lineno, n.end_col_offset) != span)
    guards = guards_at(real, library[1])
    found = [
        *_guarded(tree, text, calls, guards, library),
        *_fed(tree, text, calls, cause, probable),
    ]
    return list({(r.first, r.text): r for r in found}.values())


@lru_cache(maxsize=256)
def guards_at(file: str, line: int) -> tuple[tuple[str, bool], ...]:
    """(name, whether it is an attribute of self) of the guards that the innermost function around
    a line of a library reads, those of the statement at that line first."""
    try:
        with open(file, encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ()
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not around:
        return ()
    function = max(around, key=lambda node: node.lineno)
    here = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and not hasattr(node, "body")
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    names = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    found: dict[tuple[str, bool], None] = {}
    for part in (*here, function):
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and node.id in names and node.id in GUARDS:
                found.setdefault((node.id, False))
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
                and node.attr.lstrip("_") in GUARDS
            ):
                found.setdefault((node.attr.lstrip("_"), True))
    return tuple(found)


def _guarded(
    tree: ast.Module,
    text: str,
    calls: list[ast.Call],
    guards: tuple[tuple[str, bool], ...],
    library: Place,
) -> Iterator[Rewriting]:
    """A guard that the library has, with a value above zero: where the program passes zero, or
    nothing."""
    owner, _, name = library[2].rpartition(".")
    for guard, of_self in guards:
        value = GUARDS[guard]
        title = f"give {name or 'the library'} its `{guard}`: {value}"
        passed = [
            (call, keyword)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            for keyword in call.keywords
            if keyword.arg == guard
            and isinstance(keyword.value, ast.Constant)
            and not keyword.value.value
        ]
        made_for = owner.rpartition(".")[2]
        near = [each for each in passed if _last(each[0].func) == made_for or each[0] in calls]
        for call, keyword in near or passed[:1]:
            yield _in_place(text, title, call, keyword.value, value)
        if passed:
            continue
        for call in calls:
            if not of_self and _last(call.func) == name:
                written = ast.unparse(call)
                changed = (
                    f"{written[:-1]}{', ' if call.args or call.keywords else ''}{guard}={value})"
                )
                yield _in_place(text, title, call, call, changed)
            elif of_self and isinstance(call.func, ast.Name | ast.Attribute) and name == "forward":
                statement = f"{ast.unparse(call.func)}.{guard} = {value}"
                row = text.splitlines()[call.lineno - 1].strip()
                yield Rewriting(title, call.lineno, call.lineno, f"{statement}\n{row}")


def _fed(
    tree: ast.Module, text: str, calls: list[ast.Call], cause: str, probable: bool
) -> Iterator[Rewriting]:
    """Arguments of the call, kept where the library's function has a value and a derivative."""
    forms = FORMS.get(cause, ())
    for form in sorted(forms, key=lambda each: each != INSIDE[0]) if probable else forms:
        for call in calls:
            for argument in call.args[:MOST]:
                if not isinstance(argument, ast.Name | ast.Attribute):
                    continue
                name = ast.unparse(argument)
                shown = form.format(x=name)
                yield _in_place(text, f"pass {shown}", call, argument, shown)


def _in_place(text: str, title: str, call: ast.Call, node: ast.expr, new: str) -> Rewriting:
    """The lines of a call with one of its parts written anew."""
    rows = text.splitlines()
    first, last = call.lineno, call.end_lineno or call.lineno
    at, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = rows[at].encode()[: node.col_offset].decode()
    tail = rows[end].encode()[node.end_col_offset :].decode()
    made = [*rows[first - 1 : at], head + new + tail, *rows[end + 1 : last]]
    indent = len(made[0]) - len(made[0].lstrip())
    return Rewriting(title, first, last, "\n".join(row[indent:] for row in made))


def _last(node: ast.expr) -> str:
    """The last name of a dotted one."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
