"""A statement with one operation of it guarded: a value bounded, a mask put on the argument."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nanlab.analysis.rewriting.candidates import Candidate
from nanlab.analysis.rewriting.example import (
    Binding,
    Source,
    Spelled,
    bound,
    filled,
    is_module,
    is_number,
    spellings,
)
from nanlab.analysis.rewriting.guards import Guard
from nanlab.analysis.rewriting.scope import Scope
from nanlab.analysis.rewriting.term import is_pure
from nanlab.operators import CARDS, having
from nanlab.trace.names import Span

_NUMBERS = re.compile(r"\b[A-Z]{3,}\b")
_BENIGN = {one.name.removeprefix("linalg_"): one.benign for one in CARDS.values()}


@dataclass(frozen=True)
class Place:
    """Where an operation stands: its line, and the stretch of source that called it, if known."""

    line: int
    span: Span | None = None
    ran: str = ""  # the operator, where the stretch computed nothing else


def guarded(
    text: str, place: Place, guards: Sequence[Guard], numbers: Mapping[str, str]
) -> list[Candidate]:
    """The statement with the operation guarded, in each way that it is known.

    Of several operations alike in the statement the one at the place, and then all of them.
    """
    page = _Page.around(text, place)
    if page is None:
        return []
    made: dict[str, Candidate] = {}
    known: dict[str, list[tuple[ast.expr, str]]] = {}
    standing: set[str] = set()
    for guard in guards:
        for node in page.nodes:
            found = bound(_with(guard.before, numbers), node, page.assigned, page.known_as(node))
            new = filled(_with(guard.after, numbers), found, page.source) if found else None
            new = page.written(node, new) if new is not None else None
            if new is not None and guard.ahead:
                if page.stands(node) and isinstance(found["x"], ast.Name):  # type: ignore[index]
                    both = f"{new}\n{page.scope.replaced(page.statement, [])}"
                    made.setdefault(both, page.candidate(_with(guard.title, numbers), both))
            elif new is not None:
                key = f"{_with(guard.title, numbers)}\0{guard.after}"
                changes = known.setdefault(key, [])
                if found and page.computes(node, found):
                    standing.add(key)
                    changes.insert(0, (node, new))
                else:
                    changes.append((node, new))
    for key, changes in known.items():
        if standing and key not in standing:
            continue  # of something else on the line
        for chosen in (changes[:1] if key in standing else [], _apart(changes)):
            new = page.changed(chosen) if chosen else None
            if new is not None:
                made.setdefault(new, page.candidate(key.split("\0")[0], new))
    return list(made.values())


def masked(text: str, place: Place) -> list[Candidate]:
    """The program's own mask on the argument as well as on the result: the double where."""
    page = _Page.around(text, place)
    if page is None:
        return []
    known: dict[tuple[str, bool, str], list[tuple[ast.expr, str]]] = {}
    here: dict[tuple[str, bool, str], list[tuple[ast.expr, str]]] = {}
    for node in page.nodes:
        for operation in spellings(node):
            benign = _BENIGN.get(operation.name)
            if benign is None or not operation.operands:
                continue
            operand = operation.operands[-1 if operation.name == "div" else 0]
            for condition, keeps in page.masks(node) if not is_number(operand) else ():
                x = page.source(operand)
                inner = f"{condition}, {x}, {benign}" if keeps else f"{condition}, {benign}, {x}"
                change = (operand, f"torch.where({inner})")
                known.setdefault((condition, keeps, operation.name), []).append(change)
                if page.stands(node):
                    here.setdefault((condition, keeps, operation.name), []).append(change)
    found: dict[str, Candidate] = {}
    for key, changes in here.items():
        for chosen in (changes[:1], _apart(known[key])):
            new = page.changed(chosen)
            if new is not None:
                found.setdefault(new, page.candidate(_MASKED, new))
    return list(found.values())


_MASKED = "the mask on the argument, too (the double where): what it hides is not computed"


def _with(example: str, numbers: Mapping[str, str]) -> str:
    return _NUMBERS.sub(lambda m: numbers.get(m[0], m[0]), example)


def _apart(changes: Sequence[tuple[ast.expr, str]]) -> list[tuple[ast.expr, str]]:
    """Those of the changes that stand in none of the others."""
    nodes = [n for n, _ in changes]
    return [
        (n, t) for n, t in changes if not any(n is not m and n in list(ast.walk(m)) for m in nodes)
    ]


@dataclass
class _Page:
    """A statement of the program, and its expressions."""

    scope: Scope
    statement: ast.stmt
    nodes: list[ast.expr]  # the outermost first
    place: Place
    source: Source

    @classmethod
    def around(cls, text: str, place: Place) -> _Page | None:
        scope = Scope.around(text, place.line)
        if scope is None:
            return None
        for statement in scope.order:
            inside = statement.lineno <= place.line <= (statement.end_lineno or 0)
            if not inside or hasattr(statement, "body"):
                continue
            nodes = [n for n in ast.walk(statement) if isinstance(n, ast.BinOp | ast.Call)]
            _rename(nodes, text)
            if isinstance(statement, ast.AugAssign):
                target = ast.parse(ast.unparse(statement.target), mode="eval").body
                ast.copy_location(target, statement.target)
                whole = ast.BinOp(target, statement.op, statement.value)
                nodes.insert(0, ast.copy_location(whole, statement))
            page = cls(scope, statement, list(nodes), place, Source(text))
            if place.span is not None and not any(page.stands(n) for n in nodes):
                page.place = Place(place.line)
            return page
        return None

    def stands(self, node: ast.expr) -> bool:
        """Whether the operation was computed by this expression."""
        own = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        span = self.place.span
        if span is None or own == span:
            return True
        # of a chain over several lines a call begins with its own method's name
        return own[2:] == span[2:] and own[:2] <= span[:2] and span[0] > own[0]

    def assigned(self, name: ast.Name) -> ast.expr | None:
        """What a name was assigned, where it may be written here as well."""
        made = self.scope.assignment(name.id, self.statement)
        if made is None or not is_pure(made[1]):
            return None
        return made[1] if self.scope.unchanged(made[1], made[0], self.statement) else None

    def computes(self, node: ast.expr, found: Binding) -> bool:
        """Whether the operation is this expression, or a part of it that an example names."""
        holes = [part for bound in found.values() for part in _walk(bound)]
        return any(self.stands(n) and n not in holes for n in self.nodes if n in _walk(node))

    def known_as(self, node: ast.expr) -> Spelled | None:
        """The operation that a function of the program's own is: ``root(x)``."""
        if not self.place.ran or not isinstance(node, ast.Call) or node.keywords:
            return None
        if self.place.span is None or not self.stands(node):
            return None
        if any(not isinstance(a, ast.Name | ast.Call | ast.BinOp) for a in node.args):
            return None  # it hands a function on, or a list
        return Spelled(self.place.ran, tuple(node.args))

    def writes(self, node: ast.expr) -> bool | None:
        """Whether a call is a method that writes in place, and the statement nothing else; None
        where somebody else may see what it writes."""
        if not isinstance(node, ast.Call) or not _is_in_place(node):
            return False
        written: ast.expr = node.func.value  # type: ignore[attr-defined]
        alone = getattr(self.statement, "value", None) is node
        if isinstance(written, ast.Name):
            made = self.scope.assignment(written.id, self.statement)
            return alone if made is not None and _is_fresh(made[1]) and alone else None
        return False if _is_fresh(written) and not alone else None

    def _shows(self, node: ast.expr) -> bool:
        """Whether an expression is a view that a method writes into."""
        for call in self.nodes:
            if isinstance(call, ast.Call) and _is_in_place(call):
                part: ast.AST = call.func.value  # type: ignore[attr-defined]
                while isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                    if _is_fresh(part):
                        break
                    if part is node:
                        return True
                    part = part.func.value
        return False

    def written(self, node: ast.expr, new: str) -> str:
        """What is written for an expression, put where ``out=`` puts its result."""
        given = node.keywords if isinstance(node, ast.Call) else ()
        place = next((self.source(k.value) for k in given if k.arg == "out"), "")
        return f"{place}.copy_({new})" if place else new

    def changed(self, changes: Sequence[tuple[ast.expr, str]]) -> str | None:
        """The statement with these expressions written anew."""
        written = [self.writes(node) for node, _ in changes]
        if None in written or any(self._shows(node) for node, _ in changes):
            return None
        try:
            if True in written:
                names = [ast.unparse(t) for t in getattr(self.statement, "targets", ())]
                names.append(ast.unparse(changes[0][0].func.value))  # type: ignore[attr-defined]
                return f"{' = '.join(names)} = {changes[0][1]}"
            if isinstance(self.statement, ast.AugAssign) and changes[0][0].lineno == (
                self.statement.lineno
            ):
                if (
                    isinstance(changes[0][0], ast.BinOp)
                    and changes[0][0].right is self.statement.value
                ):
                    return f"{ast.unparse(self.statement.target)} = {changes[0][1]}"
            return self.scope.replaced(self.statement, list(changes))
        except SyntaxError:
            return None

    def candidate(self, title: str, text: str) -> Candidate:
        last = self.statement.end_lineno or self.statement.lineno
        return Candidate(title, self.statement.lineno, last, text, "nanlab." in text)

    # -- masks
    # ------------------------------------------------------------

    def masks(self, node: ast.expr) -> Iterator[tuple[str, bool]]:
        """(condition, whether it is true where the result is kept) of the masks put on the result
        of an expression."""
        for outer in self.nodes:
            if outer is not node:
                yield from self._mask(outer, lambda part: any(n is node for n in ast.walk(part)))
        made = self.statement
        target = made.targets[0] if isinstance(made, ast.Assign) else None
        if not isinstance(target, ast.Name):
            return
        for later in self.scope.order:
            if later.lineno <= made.lineno:
                continue
            for part in ast.walk(later):
                for condition, keeps in self._mask(part, lambda n: _is_named(n, target.id)):
                    tree = ast.parse(condition, mode="eval")
                    if self.scope.unchanged(tree, made, later):
                        yield condition, keeps

    def _mask(self, node: ast.AST, holds: object) -> Iterator[tuple[str, bool]]:
        assert callable(holds)
        for each in spellings(node):
            parts = each.operands
            if each.name == "where" and len(parts) == 3 and (holds(parts[1]) or holds(parts[2])):
                yield self.source(parts[0]), bool(holds(parts[1]))
            if each.name in ("masked_fill", "masked_fill_") and len(parts) == 3 and holds(parts[0]):
                yield self.source(parts[1]), False
            if each.name == "mul" and len(parts) == 2:
                for kept, factor in (parts, parts[::-1]):
                    if holds(kept) and isinstance(factor, ast.Name | ast.Attribute | ast.Subscript):
                        yield f"{self.source(factor)} != 0", True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and holds(target.value):
            if isinstance(target.slice, ast.Compare | ast.Name):
                yield self.source(target.slice), False


def _is_in_place(node: ast.Call) -> bool:
    """Whether it calls a method that writes into its tensor."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return name.endswith("_") and not name.endswith("__")


def _is_fresh(node: ast.expr) -> bool:
    """Whether an expression is a new tensor, as far as it tells: no name, no part, no view of
    something."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name not in having("moves") or name == "clone"
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call)


def _walk(parts: ast.AST | Sequence[ast.AST]) -> list[ast.AST]:
    return [
        n for part in ([parts] if isinstance(parts, ast.AST) else parts) for n in ast.walk(part)
    ]


def _rename(nodes: Sequence[ast.expr], text: str) -> None:
    """Let calls name what a module's function is called there: ``ce = F.cross_entropy``."""
    known = {
        n.targets[0].id: n.value.attr
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Assign)
        and isinstance(n.targets[0], ast.Name)
        and isinstance(n.value, ast.Attribute)
        and is_module(n.value.value)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            node.func.id = known.get(node.func.id, node.func.id)


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
