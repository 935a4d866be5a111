"""Where a program writes an expression that may have a removable singularity, and in which
variable."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from nanlab.analysis.rewriting.scope import Reading, Scope
from nanlab.analysis.rewriting.term import Term, term_of, text_of

Splits = Callable[[Term], bool]
ELEMENTWISE = frozenset(
    """exp expm1 log log1p log2 log10 sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh sigmoid erf
    erfc erfinv lgamma digamma abs sinc logit logsigmoid softplus ndtr log_ndtr xlogy hypot
    logaddexp i0 i0e i1 i1e erfcx""".split()
)


@dataclass(frozen=True)
class Removable:
    """An expression that is computed element by element from a variable that it holds more than
    once."""

    expression: str  # names followed as far as they depend on the variable: "torch.sin(x / 2) / x"
    variable: str  # as the program writes it: "x", "self.w", "(a - b)"
    others: tuple[str, ...]  # what else it reads; none: a function of the variable alone
    first: int  # the statement's lines
    last: int
    lines: frozenset[int]  # of everything that the expression was made of
    scope: Scope
    statement: ast.stmt
    node: ast.expr
    sums: bool  # over the other tensors, so that the variable has to be a single number

    @property
    def names(self) -> frozenset[str]:
        """Names that the function around has."""
        nodes = [n for statement in self.scope.body for n in ast.walk(statement)]
        return frozenset(n.id for n in nodes if isinstance(n, ast.Name)) | self.scope.parameters

    @property
    def takes_lines(self) -> bool:
        """Whether lines before the statement can read the variable: it is not a lambda's own."""
        return not _is_bound_inside(self.statement, self.node)

    def over(self, variable: str, others: Mapping[str, str]) -> str:
        """The expression with other names for what it reads."""
        return _renamed(self.expression, {self.variable: variable, **others})

    def as_function(self) -> str:
        """The expression as a lambda of its variable, for ``nanlab.safe.removable``."""
        tree = ast.parse(self.expression, mode="eval")
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        name = "t"
        while name in used:
            name += "_"
        return f"lambda {name}: {self.over(name, {})}"

    def as_call(self, at: str = "0.0") -> str:
        """The expression by ``nanlab.safe.removable``."""
        more = "" if at in ("0", "0.0") else f", at={at}"
        return f"nanlab.safe.removable({self.as_function()}, {self.variable}{more})"

    def edited(self, new: str, before: tuple[str, ...] = ()) -> str:
        """The statement with the new expression in it, below the lines that it needs.

        Inside of a lambda or comprehension, whose names those lines could not read, they are
        written out.
        """
        if before and not self.takes_lines:
            return self.scope.replaced(self.statement, [(self.node, _written_out(before, new))])
        return "\n".join((*before, self.scope.replaced(self.statement, [(self.node, new)])))


def removables(text: str, line: int) -> list[Removable]:
    """Expressions computed from this line's in which a variable occurs twice; the smallest
    first."""
    scope = Scope.around(text, line)
    if scope is None:
        return []
    found: dict[tuple[str, str, int], Removable] = {}
    for statement in scope.statements():
        for node in scope.expressions(statement):
            for made in _of(scope, statement, node):
                # a series of a series takes the square of its time
                again = "removable(" in made.expression + ast.unparse(statement)
                if line in made.lines and not again:
                    found.setdefault((made.expression, made.variable, made.first), made)
    return sorted(found.values(), key=lambda r: len(r.expression))


def _of(scope: Scope, statement: ast.stmt, node: ast.expr) -> Iterator[Removable]:
    reading = scope.reading(statement)
    whole = term_of(node, reading.resolve)
    if not _divides(whole) or not _splits(whole):
        return
    counts: dict[Term, int] = {}
    for leaf in _leaves(whole, _splits):
        counts[leaf] = counts.get(leaf, 0) + 1
    for leaf in _leaves(whole, _splits_or_sums):
        counts.setdefault(leaf, 1)
    within: dict[Term, int] = {}
    for leaf in _leaves(whole, _splits_or_sums):
        within[leaf] = within.get(leaf, 0) + 1
    for variable, count in counts.items():
        sums = count < 2 <= within.get(variable, 0)
        if count < 2 and not sums:
            continue
        written = _written(reading, whole, variable, _splits_or_sums if sums else _splits)
        if written is None:
            continue
        expression, name, others = written
        lines = reading.lines | set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        yield Removable(
            expression, name, others, first, last, frozenset(lines), scope, statement, node, sums
        )


def _written(
    reading: Reading, whole: Term, variable: Term, splits: Splits
) -> tuple[str, str, tuple[str, ...]] | None:
    """The expression expanded down to the variable, the variable, and what else is read, as
    text."""
    name = reading.spelled(variable)
    others: list[str] = []

    def spell(part: Term) -> str | None:
        if part == variable:
            return name
        named = isinstance(part.node, ast.Name | ast.Attribute) and not _holds(part, variable)
        if part.kind == "number" or (splits(part) and not named):
            return None
        own = reading.spelled(part)
        if own is None:
            raise LookupError
        if own not in others:
            others.append(own)
        return own

    if name is None:
        return None
    try:
        text = text_of(whole, spell)
    except LookupError:
        return None
    return ast.unparse(ast.parse(text, mode="eval")), name, tuple(others)


def _holds(t: Term, part: Term) -> bool:
    return t == part or (_splits_or_sums(t) and any(_holds(p, part) for p in t.parts))


def _splits(t: Term) -> bool:
    """Whether a term is computed from its parts element by element."""
    return t.kind in ("sum", "product", "power") or (t.kind == "call" and t.name in ELEMENTWISE)


def _splits_or_sums(t: Term) -> bool:
    """Whether it is computed so, or by a sum over elements."""
    return _splits(t) or (t.kind == "call" and t.name in ("sum", "mean", "prod", "logsumexp"))


def _leaves(t: Term, splits: Splits) -> Iterator[Term]:
    if splits(t):
        for part in t.parts:
            yield from _leaves(part, splits)
    elif t.kind != "number":
        yield t


def _divides(t: Term) -> bool:
    """Whether something is divided by, or a logarithm or root taken."""
    if t.kind == "product" and any(
        m == -1 and p.kind != "number" for m, p in zip(t.marks, t.parts, strict=True)
    ):
        return True
    if t.kind == "call" and t.name in ("log", "log2", "log10", "log1p", "sqrt"):
        return True
    if t.kind == "power" and _divides(t.parts[1]):
        return True
    return _splits(t) and any(_divides(p) for p in t.parts)


def _renamed(expression: str, names: Mapping[str, str]) -> str:
    """The expression, each of the given ones in it replaced by a name."""
    sought = {ast.dump(ast.parse(old, mode="eval").body): new for old, new in names.items()}

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and ast.dump(node) in sought:
                return ast.Name(sought[ast.dump(node)], ast.Load())
            return super().generic_visit(node)

    return ast.unparse(Replace().visit(ast.parse(expression, mode="eval")))


_OWN_NAMES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _is_bound_inside(statement: ast.stmt, node: ast.expr) -> bool:
    """Whether an expression stands where names are bound that the statement's own block does not
    have."""
    inside = [n for n in ast.walk(statement) if isinstance(n, _OWN_NAMES)]
    return any(node is part for n in inside for part in ast.walk(n))


def _written_out(lines: tuple[str, ...], expression: str) -> str:
    """The expression with what the lines assign in the places of their names."""
    known: dict[str, ast.expr] = {}

    class Insert(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return known.get(node.id, node)

    for line in lines:
        assigned = ast.parse(line).body[0]
        assert isinstance(assigned, ast.Assign)
        assert isinstance(assigned.targets[0], ast.Name)
        known[assigned.targets[0].id] = Insert().visit(assigned.value)
    return ast.unparse(Insert().visit(ast.parse(expression, mode="eval")))
