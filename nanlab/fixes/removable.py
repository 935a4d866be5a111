"""Removable singularities: where a program writes one, and the series that replaces it."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from nanlab.fixes.match import Reading, Scope
from nanlab.fixes.term import Term, multiplied, negated, number, term_of, text_of
from nanlab.operators import having
from nanlab.program.expression import lines_of, names_in, replaced, span_of
from nanlab.safe.series import Series, series

Splits = Callable[[Term], bool]
PIECEWISE = having("analytic", "compares") | {"where"}
_MOVED = having("moves") | {"T", "mT"}


@dataclass(frozen=True)
class Removable:
    """An elementwise expression of a variable that it holds more than once."""

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
    def numbers(self) -> set[float]:
        """The numbers in the expression other than 0."""
        nodes = ast.walk(ast.parse(self.expression))
        values = (n.value for n in nodes if isinstance(n, ast.Constant))
        return {abs(float(v)) for v in values if isinstance(v, int | float) and v}

    @property
    def conditions(self) -> set[str]:
        """What ``where`` decides by in it."""
        calls = (n for n in ast.walk(ast.parse(self.expression)) if isinstance(n, ast.Call))
        return {ast.unparse(n.args[0]) for n in calls if n.args and _is_where(n)}

    @property
    def takes_lines(self) -> bool:
        """Whether lines before the statement can read the variable: it is not a lambda's own, nor
        assigned on the same line."""
        read = names_in(ast.parse(self.expression))
        return not _is_bound_inside(self.statement, self.node) and not any(
            n.id in read
            for other in self.scope.order
            if other.lineno == self.first and other is not self.statement
            for n in ast.walk(other)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )

    @property
    def is_elementwise(self) -> bool:
        """Whether the variable has one shape in all its places: ``t[:, None] * t[None]`` makes a
        number of two elements."""
        tree = ast.parse(self.over("_", {}), mode="eval")
        shapes = {
            ast.unparse(parent)
            for parent in ast.walk(tree)
            for child in ast.iter_child_nodes(parent)
            if isinstance(child, ast.Name) and child.id == "_"
            if isinstance(parent, ast.Subscript)
            or (isinstance(parent, ast.Attribute) and parent.attr in _MOVED)
        }
        return len(shapes) < 2

    def over(self, variable: str, others: Mapping[str, str]) -> str:
        """The expression with other names for what it reads."""
        return _renamed(self.expression, {self.variable: variable, **others})

    def as_function(self) -> str:
        """The expression as a lambda of its variable, for ``nanlab.safe.removable``."""
        tree = ast.parse(self.expression, mode="eval")
        used = names_in(tree)
        name = "t"
        while name in used:
            name += "_"
        return f"lambda {name}: {self.over(name, {})}"

    def as_call(self, at: str = "0.0") -> str:
        """The expression by ``nanlab.safe.removable``."""
        more = "" if at in ("0", "0.0") else f", at={at}"
        return f"nanlab.safe.removable({self.as_function()}, {self.variable}{more})"

    def moved(self, distance: float) -> str:
        """The statement with the variable a distance away."""
        return self.edited(f"({self.as_function()})({self.variable} + {distance!r})")

    def edited(self, new: str, before: tuple[str, ...] = ()) -> str:
        """The statement with the new expression in it, below the lines that it needs.

        Inside of a lambda or comprehension, whose names those lines could not read, they are
        written out.
        """
        if before and not self.takes_lines:
            return self.scope.replaced(self.statement, [(self.node, _written_out(before, new))])
        return "\n".join((*before, self.scope.replaced(self.statement, [(self.node, new)])))


def removables(text: str, line: int) -> list[Removable]:
    """Expressions behind this line in which a variable occurs twice; smallest first."""
    found: dict[tuple[str, str, int], Removable] = {}
    for scope in Scope.behind(text, line):
        for statement in scope.statements():
            for node in scope.expressions(statement):
                for made in _of(scope, statement, node):
                    # a series of a series takes the square of its time
                    again = "removable(" in made.expression + ast.unparse(statement)
                    if line in made.lines and not again and made.is_elementwise:
                        found.setdefault((made.expression, made.variable, made.first), made)
    return sorted(found.values(), key=lambda r: len(r.expression))


def _of(scope: Scope, statement: ast.stmt, node: ast.expr) -> Iterator[Removable]:
    if isinstance(node, ast.Call) and any(k.arg == "out" for k in node.keywords):
        return
    whole, reading = scope.term(statement, node)
    yield from _over_each(scope, statement, node, whole, reading)
    if not reading.lines:
        return
    # what it is a function of may have a name
    yield from _over_each(scope, statement, node, term_of(node), Reading(scope, statement))
    read = dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    for name in read if len(read) > 1 else ():
        if scope.assignment(name, statement):
            reading = Reading(scope, statement, kept=(name,))
            yield from _over_each(scope, statement, node, term_of(node, reading.resolve), reading)


def _over_each(
    scope: Scope, statement: ast.stmt, node: ast.expr, whole: Term, reading: Reading
) -> Iterator[Removable]:
    """The expression over each variable that its term holds more than once."""
    if not _divides(whole) or not _splits(whole):
        return
    apart = _counted(_variables(whole, _splits))
    within = _counted(_variables(whole, _splits_or_sums))
    for variable in dict.fromkeys((*apart, *within)):
        sums = apart[variable] < within[variable]
        if max(apart[variable], within[variable]) < 2:
            continue
        lines = frozenset(reading.lines.union(lines_of(node)))
        first, _, last, _ = span_of(statement)
        splits = _splits_or_sums if sums else _splits
        for written in _written(reading, whole, variable, splits):
            yield Removable(*written, first, last, lines, scope, statement, node, sums)


def _is_where(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "where"


def _counted(variables: Iterator[Term]) -> Counter[Term]:
    """How often each occurs, its multiples among them."""
    found: Counter[Term] = Counter()
    for t in variables:
        _, unit = _taken_apart(t)
        found[negated(unit) if negated(unit) in found else unit] += 1
    return found


def _taken_apart(t: Term) -> tuple[Fraction | float, Term]:
    """The numeric factor of a term, and the rest."""
    if t.kind == "sum" and len(t.parts) == 1:
        factor, unit = _taken_apart(t.parts[0])
        return int(t.marks[0]) * factor, unit
    if t.kind != "product":
        return Fraction(1), t
    if any(p.kind == "number" and not p.value for p in t.parts):
        return Fraction(1), t
    numbers = [p.value if m > 0 else 1 / p.value for m, p in t.items if p.kind == "number"]
    rest = [(m, p) for m, p in t.items if p.kind != "number"]
    return math.prod(numbers, start=Fraction(1)), multiplied(rest)


def _written(
    reading: Reading, whole: Term, variable: Term, splits: Splits
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Texts of the expression over the variable, the variable, and the names that it reads besides.
    Where a name is itself computed from such names, also with that name followed."""
    name = reading.spelled(variable)
    opposite = negated(variable)
    others: dict[str, Term] = {}
    followed = [variable]

    def spell(part: Term) -> str | None:
        factor, unit = _taken_apart(part)
        if unit in (variable, opposite):
            factor = factor if unit == variable else -factor
            if abs(factor) == 1:
                return name if factor == 1 else f"-{name}"
            return f"{text_of(number(factor), level=1)} * ({name})"
        named = isinstance(part.node, ast.Name | ast.Attribute) and not any(
            part != each and _holds(part, each) for each in followed
        )
        if part.kind == "number" or (splits(part) and not named):
            return None
        if isinstance(part.node, ast.Slice | ast.Tuple):  # of an index, which is no expression
            return None
        own = reading.spelled(part)
        if own is None:
            raise LookupError
        if not is_constant(own):
            others.setdefault(own, part)
        return own

    before = ""
    while name is not None:
        others.clear()
        try:
            text = text_of(whole, spell)
        except LookupError:
            return
        if text == before:
            return
        yield ast.unparse(ast.parse(text, mode="eval")), name, tuple(others)
        before, followed = text, [variable, *others.values()]


def is_constant(text: str) -> bool:
    """Whether an expression holds numbers alone, as ``torch.ones(())`` does."""
    tree = ast.parse(text, mode="eval")
    called = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    filled = having("created", "constant", "fills") | {"ones", "zeros"}
    return names_in(tree) <= {"torch", "math"} and all(
        isinstance(f, ast.Attribute) and f.attr in filled for f in called
    )


def _holds(t: Term, part: Term) -> bool:
    return _taken_apart(t)[1] in (part, negated(part)) or (
        _splits_or_sums(t) and any(_holds(p, part) for p in t.parts)
    )


def _splits(t: Term) -> bool:
    """Whether a term is computed from its parts element by element."""
    return t.kind in ("sum", "product", "power") or (t.kind == "call" and t.name in PIECEWISE)


def _splits_or_sums(t: Term) -> bool:
    """Whether a term is computed element by element, sums over elements, or adds dimensions."""
    return _splits(t) or (t.kind == "call" and t.name in having("totals")) or is_spread(t.node)


def is_spread(node: ast.expr | None) -> bool:
    """Whether an expression is ``x[:, None]``: x with more dimensions."""
    if not isinstance(node, ast.Subscript):
        return False
    taken = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return {ast.unparse(each) for each in taken} <= {":", "None", "..."}


def _variables(t: Term, splits: Splits) -> Iterator[Term]:
    """Candidates for a variable: a term's leaves, and sums and products of several leaves."""
    if not splits(t):
        if t.kind != "number" and not isinstance(t.node, ast.Constant):  # 1j
            yield t
        return
    if len(t.parts) > 1 and _is_combined(t):
        yield t
    for part in t.parts[:1] if t.kind == "index" else t.parts:
        yield from _variables(part, splits)


def _is_combined(t: Term) -> bool:
    """Whether a term is made of leaves by sums, products and quotients alone."""
    if t.kind == "product" and not any(m == 1 and p.kind != "number" for m, p in t.items):
        return False
    combines = t.kind in ("sum", "product", "leaf", "number")
    return t.kind == "index" or (combines and all(map(_is_combined, t.parts)))


def _divides(t: Term) -> bool:
    """Whether something is divided by, or a logarithm or root taken."""
    if t.kind == "product" and any(m == -1 and p.kind != "number" for m, p in t.items):
        return True
    if t.kind == "call" and t.name in having("log") | {"log1p", "sqrt"}:
        return True
    if t.kind == "power" and _divides(t.parts[1]):
        return True
    return _splits(t) and any(_divides(p) for p in t.parts)


def _renamed(expression: str, names: Mapping[str, str]) -> str:
    """The expression, each of the given ones in it replaced by a name."""
    sought = {ast.dump(ast.parse(old, mode="eval").body): new for old, new in names.items()}

    def named(node: ast.expr) -> ast.expr | None:
        name = sought.get(ast.dump(node))
        return None if name is None else ast.Name(name, ast.Load())

    return ast.unparse(replaced(ast.parse(expression, mode="eval"), named))


_OWN_NAMES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _is_bound_inside(statement: ast.stmt, node: ast.expr) -> bool:
    """Whether an expression stands in a lambda or comprehension, with names of its own."""
    inside = [n for n in ast.walk(statement) if isinstance(n, _OWN_NAMES)]
    return any(node is part for n in inside for part in ast.walk(n))


def _written_out(lines: tuple[str, ...], expression: str) -> str:
    """The expression with each assigned name replaced by its value in the lines."""
    known: dict[str, ast.expr] = {}

    def known_as(node: ast.expr) -> ast.expr | None:
        return known.get(node.id) if isinstance(node, ast.Name) else None

    for line in lines:
        assigned = ast.parse(line).body[0]
        assert isinstance(assigned, ast.Assign)
        assert isinstance(assigned.targets[0], ast.Name)
        known[assigned.targets[0].id] = replaced(assigned.value, known_as)
    return ast.unparse(replaced(ast.parse(expression, mode="eval"), known_as))


# A series fix in plain torch: the text that replaces an expression with a removable
# singularity.

# how far value, first and second derivative may be off, in units of the dtype's eps and at most
TOLERANCES = ((16, 2e-3), (256, 5e-3), (8192, 5e-2))
LARGEST_DENOMINATOR = 10**7


@dataclass(frozen=True, slots=True)
class SeriesText:
    """An expression written with its series near the singular point."""

    lines: tuple[str, ...]  # assignments that stand before the expression
    expression: str  # what takes the expression's place
    terms: str  # the series alone
    radius: float  # where it takes over

    @property
    def code(self) -> str:
        """All lines, the expression last."""
        return "\n".join((*self.lines, self.expression))


def series_text(
    fn: Callable[[Tensor], Tensor],
    expression: str,
    variable: str,
    at: float = 0.0,
    dtype: torch.dtype = torch.float32,
    taken: Collection[str] = (),
    known: Series | None = None,
) -> SeriesText:
    """Write ``expression`` so that value, first and second derivative are right around ``at``.

    fn: the expression as a function of ``variable``, whose text it is: a name, or an expression
    such as ``self.w``. taken: names that the new lines must not use. known: its series there.
    Radius and number of terms are the smallest with which series and expression both are right to
    the dtype's rounding. Raises NotRemovableError where there is no such series, ValueError where
    the expression does not hold the variable.
    """
    power_series = series(fn, at) if known is None else known
    if power_series.coefficients.dim() != 1 or power_series.coefficients.is_complex():
        raise ValueError("the series depends on more than real numbers; use nanlab.safe.removable")
    coefficients = _cleaned(power_series)
    radius, count = _chosen(fn, Series(coefficients, power_series.radius), at, dtype)
    near, safe, shift = _names(("near", "safe", "d"), taken, expression, variable)
    lines, base = [], variable
    if at or not isinstance(ast.parse(variable, mode="eval").body, ast.Name | ast.Attribute):
        lines.append(
            f"{shift} = {variable} - {_number(at, dtype)}" if at else f"{shift} = {variable}"
        )
        base = shift
    away = _healthy(fn, at, power_series.radius)
    terms = _polynomial(coefficients[:count].tolist(), base, dtype, power_series.radius)
    lines.append(f"{near} = {base}.abs() < {_number(radius, dtype)}")
    lines.append(f"{safe} = torch.where({near}, {_number(away, dtype)}, {variable})")
    replaced = f"torch.where({near}, {terms}, {_substituted(expression, variable, safe)})"
    return SeriesText(tuple(lines), replaced, terms, radius)


def _names(wanted: tuple[str, ...], taken: Collection[str], *texts: str) -> list[str]:
    """The names, with an underscore where the program has them already."""
    used = set(taken)
    for text in texts:
        used |= names_in(ast.parse(text, mode="eval"))
    made = []
    for name in wanted:
        while name in used:
            name += "_"
        used.add(name)
        made.append(name)
    return made


def _substituted(expression: str, variable: str, name: str) -> str:
    """The expression with another name in the variable's place."""
    made = _renamed(expression, {variable: name})
    if made == _renamed(expression, {}):
        raise ValueError(f"{expression!r} does not hold {variable!r}")
    return made


def _cleaned(power_series: Series) -> Tensor:
    """The coefficients, with rounding noise set to 0."""
    c = power_series.coefficients.detach()
    powers = power_series.radius ** torch.arange(len(c), dtype=torch.float64)
    size = c.abs() * powers
    noise = size <= 1e-10 * size.max()
    return torch.where(noise, 0.0, c)


def _chosen(
    fn: Callable[[Tensor], Tensor], exact: Series, at: float, dtype: torch.dtype
) -> tuple[float, int]:
    """Radius within which the series stands, and the number of its terms."""
    eps = torch.finfo(dtype).eps
    natural = exact.radius
    size = float(
        (exact.coefficients.abs() * natural ** torch.arange(len(exact.coefficients))).max()
    )
    tolerances = [
        min(count * eps, most) * size / natural**order
        for order, (count, most) in enumerate(TOLERANCES)
    ]
    radius = natural  # where the expression itself is never right enough
    for k in range(12, 0, -1):
        tried = natural * 2.0**-k
        if _is_right(fn, exact, at, tried, dtype, tolerances):
            radius = tried
            break
    c = exact.coefficients.abs().tolist()
    for count in range(1, len(c)):
        rest = [0.0, 0.0, 0.0]
        for k in range(count, len(c)):
            for order, factor in enumerate((1, k, k * (k - 1))):
                if k >= order:
                    rest[order] += c[k] * factor * radius ** (k - order)
        if all(r <= t / 4 for r, t in zip(rest, tolerances, strict=True)):
            return radius, count
    return radius, len(c)


def _is_right(
    fn: Callable[[Tensor], Tensor],
    exact: Series,
    at: float,
    radius: float,
    dtype: torch.dtype,
    tolerances: list[float],
) -> bool:
    """Whether the expression itself is right enough at 1 to 1.5 times the distance."""
    steps = torch.linspace(1.0, 1.5, 8, dtype=torch.float64)
    x = (at + radius * torch.cat([-steps, steps])).to(dtype)
    try:
        found = _derivatives(fn, x)
    except RuntimeError:  # an operator without a second derivative
        return False
    true = _derivatives(exact, x.double() - at)
    side = torch.arange(len(x)) < len(steps)
    for outside in (side, ~side):  # of the domain, as x > 1 is of acos(x)
        if bool(found[0][outside].isnan().all()):
            found, true = [f[~outside] for f in found], [t[~outside] for t in true]
            break
    return all(
        bool(((f.double() - t).abs() <= limit).all())
        for f, t, limit in zip(found, true, tolerances, strict=True)
    )


def _derivatives(fn: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Value, first and second derivative."""
    leaf = x.clone().requires_grad_()
    value = fn(leaf)
    (first,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    if not first.requires_grad:
        return [value.detach(), first, torch.zeros_like(first)]
    (second,) = torch.autograd.grad(first.sum(), leaf, allow_unused=True)
    return [value.detach(), first.detach(), torch.zeros_like(first) if second is None else second]


def _healthy(fn: Callable[[Tensor], Tensor], at: float, radius: float) -> float:
    """A plain number at which the expression and its derivatives are finite."""
    for away in (at + 1.0, at - 1.0, at + radius, at + radius / 2):
        x = torch.tensor([away], dtype=torch.float64)
        if all(bool(t.isfinite().all()) for t in _derivatives(fn, x)):
            return away
    return at + 0.75 * radius


def _number(x: float, dtype: torch.dtype) -> str:
    """A number as one writes it, with the digits that the dtype can use."""
    if x == int(x) and abs(x) < 1e15:
        return str(int(x))
    short = f"{x:.{9 if dtype != torch.float64 else 17}g}"
    return repr(float(short)) if dtype != torch.float64 else repr(x)


def _polynomial(coefficients: list[float], base: str, dtype: torch.dtype, radius: float) -> str:
    """The sum of the terms: ``1 - x / 2 + x**2 / 12``."""
    text = ""
    noise = 1e-15 * max(abs(c) * radius**k for k, c in enumerate(coefficients))
    for k, c in enumerate(coefficients):
        if c == 0:
            continue
        sign = "-" if c < 0 else "+"
        digits = -math.log10(noise / (abs(c) * radius**k))
        term = _term(abs(c), k, base, dtype, digits)
        text = f"{text} {sign} {term}" if text else (f"-{term}" if c < 0 else term)
    return text or "0"


def _term(size: float, power: int, base: str, dtype: torch.dtype, digits: float) -> str:
    factor = f"{base}**{power}" if power > 1 else base
    fraction = _fraction(size, digits)
    if fraction is None:
        number = _number(size, dtype)
        return number if power == 0 else f"{number} * {factor}"
    above, below = fraction.numerator, fraction.denominator
    if power == 0:
        return str(above) if below == 1 else f"{above} / {below}"
    product = factor if above == 1 else f"{above} * {factor}"
    return product if below == 1 else f"{product} / {below}"


def _fraction(size: float, digits: float) -> Fraction | None:
    """The simple fraction that a coefficient is, known to so many digits, where it is one."""
    found = Fraction(size).limit_denominator(LARGEST_DENOMINATOR)
    if found == 0 or size < 1 / LARGEST_DENOMINATOR:
        found = Fraction(1, max(round(1 / size), 1))
    close = abs(float(found) - size) <= 10 ** (1 - digits) * size
    # a fraction of as many digits as the coefficient itself says nothing
    simple = math.log10(found.numerator) + math.log10(found.denominator) <= min(digits - 3, 9)
    return found if close and simple else None
