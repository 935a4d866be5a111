"""Expressions in one spelling: sums, products and calls, whichever way a program writes them.

``x.exp() / e``, ``torch.div(torch.exp(x), e)`` and ``1 / (e / torch.exp(x))`` are one product.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from nanlab.operators import CARDS, card, having
from nanlab.program.expression import OBJECTS

# Functions that only compute: the same operands, the same result; with the names of their
# arguments.
SIGNATURES: dict[str, tuple[str, ...]] = {
    **{name: tuple(one.arguments.split()) for name, one in CARDS.items() if one.arguments},
    "tiny": ("input",),  # of the catalogue: torch.finfo(x.dtype).tiny
    "len": ("input",),
    "numel": ("input",),
    "shape": ("input",),  # an attribute
    "size": ("input", "dim"),
    "math_log": ("input",),
    "math_sqrt": ("input",),
    "stack": ("input", "dim"),
    "cat": ("input", "dim"),
    "each": ("input", "other"),  # torch.stack([input for e in other])
    "others": ("input",),  # of the catalogue: a row for each element, with 1 in its place
    "preceding": ("input", "dim"),  # of the catalogue: 1, x[0], x[1], ... along a dimension
    "later": ("input", "dim"),  # of what follows each along a dimension the sum
    "flipped_logcumsumexp": ("input", "dim"),  # its logarithm, by those of the elements
    "powers": ("input", "other"),  # of the catalogue: 1 + x + ... + x**(n - 1)
}
_ONE = frozenset(name for name, arguments in SIGNATURES.items() if arguments == ("input",))
RENAMED = {name: one.alias_of for name, one in CARDS.items() if one.alias_of}
LIBRARIES = (
    "torch torch.nn.functional F nn.functional torch.special torch.linalg"
    " special linalg functional".split()
)
CASTS = frozenset(("half", "float", "double", "bfloat16", "to"))  # methods that only copy
# methods that compute nothing
_MOVES = CASTS | having("moves") | {"reshape", "contiguous", "bool", "long", "int"}
SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
_DEFAULTS = {"keepdim": False, "p": 2, "ord": 2}

Kind = Literal["number", "leaf", "hole", "sum", "product", "power", "call", "index"]


@dataclass(frozen=True, slots=True)
class Term:
    """An expression in one spelling; two terms are equal where they compute the same."""

    kind: Kind
    name: str = ""  # of a call or hole; what a leaf is
    parts: tuple[Term, ...] = ()
    # of a sum +1 or -1 for each part, of a product the power 1 or -1; of a call the argument's name
    marks: tuple[int | str, ...] = ()
    value: Fraction | float = 0
    # how the program writes it
    node: ast.expr | None = field(default=None, compare=False, repr=False)

    @property
    def items(self) -> list[tuple[int, Term]]:
        """The parts with their marks: signs in a sum, powers in a product."""
        return [(int(m), p) for m, p in zip(self.marks, self.parts, strict=True)]

    @property
    def arguments(self) -> list[tuple[str, Term]]:
        """The parts of a call with their names."""
        return [(str(m), p) for m, p in zip(self.marks, self.parts, strict=True)]


def number(value: Fraction | float, node: ast.expr | None = None) -> Term:
    """A number."""
    return Term("number", value=value, node=node)


def negated(t: Term) -> Term:
    """Minus a term."""
    if t.kind == "number":
        return number(-t.value)
    return summed([(-1, t)])


def summed(items: Sequence[tuple[int, Term]], node: ast.expr | None = None) -> Term:
    """A sum of signed terms; sums in it are taken apart."""
    flat: list[tuple[int, Term]] = []
    for sign, t in items:
        for s, part in _items(t):
            if part.kind == "number" and part.value < 0:
                s, part = -s, number(-part.value)
            if part.kind != "number" or part.value:
                flat.append((sign * s, part))
    if len(flat) > 1 and all(part.kind == "number" for _, part in flat):
        return number(sum((sign * part.value for sign, part in flat), Fraction(0)), node)
    if not flat:
        return number(Fraction(0), node)
    if len(flat) == 1:
        sign, only = flat[0]
        if sign == 1:
            return _noted(only, node)
        if only.kind == "number":
            return number(-only.value, node)
    return Term("sum", parts=tuple(t for _, t in flat), marks=tuple(s for s, _ in flat), node=node)


def gathered(items: Sequence[tuple[int, Term]]) -> Term:
    """The sum with its numbers added up, and without terms that cancel."""
    constant: Any = Fraction(0)  # a float where one of them is none
    rest: list[tuple[int, Term]] = []
    for sign, part in _items(summed(items)):
        if part.kind == "number":
            constant += sign * part.value
        elif (-sign, part) in rest:
            rest.remove((-sign, part))
        else:
            rest.append((sign, part))
    return summed([*rest, (1, number(constant))] if abs(constant) > 1e-12 else rest)


def _items(t: Term) -> list[tuple[int, Term]]:
    return t.items if t.kind == "sum" else [(1, t)]


def multiplied(items: Sequence[tuple[int, Term]], node: ast.expr | None = None) -> Term:
    """A product of factors and divisors; products in it are taken apart, signs drawn out."""
    flat: list[tuple[int, Term]] = []
    constant: Any = Fraction(1)  # a float where a number is no fraction
    for power, t in items:
        if t.kind == "sum" and len(t.parts) == 1:  # minus something
            constant, t = -constant, t.parts[0]
        for p, part in _factors(t):
            if part.kind == "number" and part.value:
                constant = constant * part.value if power * p > 0 else constant / part.value
            else:
                flat.append((power * p, part))
    sign = -1 if constant < 0 else 1
    constant = abs(constant)
    if constant != 1 or not flat:
        if isinstance(constant, Fraction) and constant.numerator == 1 and constant != 1:
            flat.append((-1, number(1 / constant)))
        else:
            flat.insert(0, (1, number(constant)))
    if len(flat) == 1 and flat[0][0] == 1:
        made = _noted(flat[0][1], node if sign > 0 else None)
    else:
        own = node if sign > 0 else None
        made = Term(
            "product", parts=tuple(t for _, t in flat), marks=tuple(p for p, _ in flat), node=own
        )
    return made if sign > 0 else Term("sum", parts=(made,), marks=(-1,), node=node)


def _factors(t: Term) -> list[tuple[int, Term]]:
    return t.items if t.kind == "product" else [(1, t)]


def raised(base: Term, exponent: Term, node: ast.expr | None = None) -> Term:
    """A power; the half is a square root, one of e the exponential."""
    if base.kind == "number" and base.value == _fraction(math.e):
        return taken_of("exp", exponent, node)
    if exponent.kind == "number":
        if exponent.value == 1:
            return _noted(base, node)
        if base.kind == "number" and exponent.value == Fraction(1, 2) and base.value > 0:
            return number(_fraction(math.sqrt(base.value)), node)
        if exponent.value == Fraction(1, 2):
            return taken_of("sqrt", base, node)
        if exponent.value < 0:
            return multiplied([(-1, raised(base, number(-exponent.value)))], node)
    return Term("power", parts=(base, exponent), node=node)


def called(name: str, arguments: Sequence[tuple[str, Term]], node: ast.expr | None = None) -> Term:
    """A call of a function that only computes."""
    names, parts = tuple(n for n, _ in arguments), tuple(t for _, t in arguments)
    return Term("call", name, parts, names, node=node)


def taken_of(name: str, x: Term, node: ast.expr | None = None) -> Term:
    """A call of a function of one operand."""
    return called(name, [("input", x)], node)


_CASTS = ("float", "double")
_WIDER = {"float": "float", "double": "double", "float32": "float", "float64": "double"}
# what a conversion may come before: its result has the dtype of what it is given
_CONVERTED = frozenset(SIGNATURES) - having("compares") - {"tiny", "len", "numel", "shape", "size"}


def _widening(node: ast.Call) -> str:
    """``float`` or ``double`` of ``x.float()``, ``x.to(torch.float64)``; "" of other calls."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in _CASTS:
            return name
        case ast.Call(
            func=ast.Attribute(attr="to"),
            args=[ast.Attribute(value=ast.Name(id="torch"), attr=name)],
            keywords=[],
        ):
            return _WIDER.get(name, "")
    return ""


def widened(t: Term, cast: str) -> Term:
    """The term with its operands converted to a wider dtype instead of its result: ``f(x.float())``
    for ``f(x).float()``, which loses less."""
    if t.kind == "number":
        return t
    if t.kind in ("sum", "product", "power") or t.name == "list":
        return replace(t, parts=tuple(widened(p, cast) for p in t.parts), node=None)
    if t.kind == "call" and t.name in _CONVERTED:
        parts = (widened(p, cast) if n in ("input", "other") else p for n, p in t.arguments)
        return replace(t, parts=tuple(parts), node=None)
    return taken_of(cast, t)


def calls_in(t: Term) -> Iterator[str]:
    """The names of the functions in a term, the outermost first."""
    if t.kind == "call":
        yield t.name
    for part in t.parts:
        yield from calls_in(part)


def _noted(t: Term, node: ast.expr | None) -> Term:
    if node is None or t.node is not None:
        return t
    return replace(t, node=node)


# --- from the program ---------------------------------------------------------------------------

Resolve = Callable[[ast.expr], "Term | None"]  # of a name: what was assigned to it


def term_of(node: ast.expr, resolve: Resolve | None = None, holes: bool = False) -> Term:
    """The expression in one spelling. What is not known to compute only is a leaf of its place."""
    reader = _Reader(resolve, holes)
    return reader.read(node)


class _Reader:
    def __init__(self, resolve: Resolve | None, holes: bool) -> None:
        self.resolve, self.holes = resolve, holes

    def read(self, node: ast.expr) -> Term:
        made = self._made(node)
        return _noted(made, node)

    def _made(self, node: ast.expr) -> Term:
        match node:
            case ast.Constant(value=bool() | complex()):
                return Term("leaf", repr(node.value), node=node)
            case ast.Constant(value=int() | float() as value):
                return number(_fraction(value), node)
            case ast.Name() if self.holes and node.id.startswith("_hole_"):
                return Term("hole", node.id.removeprefix("_hole_"), node=node)
            case ast.Name():
                found = self.resolve(node) if self.resolve else None
                return found or Term("leaf", node.id, node=node)
            case ast.Attribute(
                value=ast.Name(id="math" | "torch" | "np"), attr="pi" | "e" as constant
            ):
                return number(_fraction(getattr(math, constant)), node)
            case ast.Attribute():
                found = self.resolve(node) if self.resolve else None
                if found is None and node.attr == "shape" and ast.unparse(node.value) != "self":
                    return taken_of("shape", self.read(node.value), node)
                if found is None and node.attr == "T":
                    return taken_of("t", self.read(node.value), node)
                return found or Term("leaf", ast.unparse(node), node=node)
            case ast.BinOp() if sign := SIGNS.get(type(node.op)):
                sides = [self.read(node.left), self.read(node.right)]
                return _combined(sign, sides, node) or _unknown(node)
            case ast.UnaryOp(op=ast.USub()):
                return summed([(-1, self.read(node.operand))], node)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.read(node.operand)
            case ast.Compare(ops=[op], comparators=[right]):
                name = type(op).__name__.lower().replace("te", "e")  # GtE is ge
                if name in SIGNATURES:
                    operands = [("input", self.read(node.left)), ("other", self.read(right))]
                    return called(name, operands, node)
            case ast.Subscript():
                at = Term("leaf", ast.unparse(node.slice), node=node.slice)
                if isinstance(node.slice, ast.Name):
                    given = self.read(node.slice)  # of a pattern, or what a function is called with
                    if self.holes or given.kind == "number":
                        at = given if self.holes else Term("leaf", text_of(given), node=given.node)
                whole = self.read(node.value)
                if whole.kind == "call" and whole.name == "exp":  # part of it is exp of a part
                    return taken_of("exp", Term("index", parts=(whole.parts[0], at)), node)
                return Term("index", parts=(whole, at), node=node)
            case ast.Call(func=ast.Attribute(value=copied, attr="clone"), args=[], keywords=[]):
                return self.read(copied)
            case ast.Call(func=ast.Attribute(value=given)) if cast := _widening(node):
                return widened(self.read(given), cast)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math"), attr="sqrt" | "log" | "exp" as name),
                args=[given],
                keywords=[],
            ):
                x = self.read(given)
                if x.kind != "number" or x.value <= 0:
                    return _unknown(node)
                return number(_fraction(getattr(math, name)(x.value)), node)
            case ast.NamedExpr():
                return self.read(node.value)
            case ast.ListComp() | ast.GeneratorExp():
                return self._each(node) or _unknown(node)
            case ast.Call():
                known = self._of_each(node) or self._einsum(node) or self._call(node)
                return known or (self.resolve and self.resolve(node)) or _unknown(node)
        return _unknown(node)

    def _of_each(self, node: ast.Call) -> Term | None:
        """``sum(f(e) for e in values)``, or a stack of such a list, as f of one tensor."""
        match node:
            case ast.Call(
                func=ast.Name(id="sum") | ast.Attribute(value=ast.Name(id="torch"), attr="stack"),
                args=[given],
                keywords=[],
            ):
                found = self.read(given)
            case _:
                return None
        if found.name != "each":
            return None
        made = called(found.name, found.arguments)
        if isinstance(node.func, ast.Attribute):
            return _noted(made, node)
        return called("sum", [("input", made), ("dim", _ZERO)], node)

    def _each(self, node: ast.ListComp | ast.GeneratorExp) -> Term | None:
        """The element of a list comprehension, in which the loop's own names stay as they are."""
        loop = node.generators[0]
        if loop.ifs or len(node.generators) > 1:
            return None
        own = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        outer = self.resolve

        def resolve(read: ast.expr) -> Term | None:
            read_here = {n.id for n in ast.walk(read) if isinstance(n, ast.Name)} & own
            if outer is None or (isinstance(read, ast.Name) and read_here):
                return None
            # what the loop binds stands for itself, also where a function is given it
            return None if any(outer(ast.Name(n, ast.Load())) for n in read_here) else outer(read)

        def bare(t: Term) -> Term:
            if t.kind == "leaf" and t.name in own:
                return Term("leaf", t.name, node=ast.Name(t.name, ast.Load()))
            return replace(t, parts=tuple(map(bare, t.parts)))

        match loop.iter:
            case ast.Call(func=ast.Name(id="zip"), args=several, keywords=[]):
                over = called("zip", [("input", self.read(each)) for each in several])
            case ast.Name() | ast.Attribute() | ast.Subscript():
                over = self.read(loop.iter)
            case _:
                over = Term("leaf", ast.unparse(loop.iter))
        inner = bare(_Reader(resolve, self.holes).read(node.elt))
        return called(
            "each", [("input", inner), (f"for {ast.unparse(loop.target).strip('()')} in", over)]
        )

    def _einsum(self, node: ast.Call) -> Term | None:
        """``einsum("k,nk->n", w, x)`` as the sum of a product, where one operand has all letters;
        ``einsum("bi,ij->bj", x, w)`` as a product of matrices."""
        match node:
            case ast.Call(
                func=ast.Attribute(attr="einsum"),
                args=[ast.Constant(value=str() as text), first, *second],
                keywords=[],
            ):
                given, _, out = text.replace(" ", "").partition("->")
            case _:
                return None
        letters = given.split(",")
        if not len(letters) == 1 + len(second) <= 2:
            return None
        for a, b in ((0, 1), (1, 0)) if second else ():
            if _is_matmul(letters[a], letters[b], out):
                matrices = [self.read(each) for each in (first, *second)]
                return called("matmul", [("input", matrices[a]), ("other", matrices[b])], node)
        whole, part = sorted((*letters, ""), key=len, reverse=True)[:2]
        gone = [i for i, letter in enumerate(whole) if letter not in out]
        kept = "".join(letter for letter in whole if letter in out)
        if not whole.isalpha() or len(set(whole)) < len(whole) or kept != out or len(gone) > 1:
            return None
        rest = whole[whole.find(part[:1]) :]  # the letters that the other operand broadcasts over
        if [c for c in rest if c in part] != [*part]:
            return None
        terms = [(1, self.read(each)) for each in (first, *second)]
        if part and rest != part:
            at = letters.index(part)
            for place in (i for i, letter in enumerate(rest) if letter not in part):
                dim = ("dim", number(Fraction(place)))
                terms[at] = 1, called("unsqueeze", [("input", terms[at][1]), dim])
        product = _squared(terms)
        if not gone:
            return product
        return called("sum", [("input", product), ("dim", number(Fraction(gone[0])))], node)

    def _call(self, node: ast.Call) -> Term | None:
        given = _function(node)
        if given is None or any(isinstance(a, ast.Starred) for a in node.args):
            return None
        name, operands = given
        if any(k.arg is None for k in node.keywords):
            return None
        named = {str(k.arg): k.value for k in node.keywords}
        for place, names in enumerate((("input", "self"), ("other", "exponent"))):
            for key in names:
                if key in named and len(operands) == place and name in _ARITHMETIC:
                    operands = [*operands, named.pop(key)]
        made = None if named else _combined(name, [self.read(a) for a in operands], node)
        return made or self._known(name, operands, named, node)

    def _list(self, node: ast.expr) -> Term | None:
        """A list of tensors to join, item by item."""
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            return None
        if any(isinstance(e, ast.Starred) for e in node.elts):
            return None
        return called("list", [(str(i), self.read(e)) for i, e in enumerate(node.elts)])

    def _known(
        self, name: str, operands: list[ast.expr], named: dict[str, ast.expr], node: ast.Call
    ) -> Term | None:
        names = every = _signature(name, len(operands))
        if len(operands) > len(names) or not set(named) <= {*names, "unbiased"}:
            return None
        if name in ("ones_like", "zeros_like") and not self.holes and not named:
            return number(Fraction(int(name == "ones_like")), node)
        if name in ("var", "std") and len(operands) > 2:
            return None  # a boolean: whether it is unbiased
        given: list[tuple[str, Term]] = []
        if name in _JOINS:
            listed = self._list(operands[0]) if operands else None
            if listed is None:
                return None
            given, names, operands = [("input", listed)], names[1:], operands[1:]
        given += [(n, self.read(a)) for n, a in zip(names, operands, strict=False)]
        given += [(n, self.read(v)) for n, v in named.items()]
        kept = dict(given)
        if name == "clamp" and len(kept) == 2 and "input" in kept:
            (bound,) = kept.keys() - {"input"}
            return called(
                f"clamp_{bound}", [("input", kept["input"]), ("other", kept[bound])], node
            )
        if name == "norm":
            name = "vector_norm"
            given = [("ord" if n == "p" else n, t) for n, t in given]
            every = tuple("ord" if n == "p" else n for n in every)
        if ("unbiased", Term("leaf", "False")) in given:
            given = [(n, t) if n != "unbiased" else ("correction", _ZERO) for n, t in given]
        if name in _MOVERS and given[0][1].name == "exp":
            inner = called(name, [("input", given[0][1].parts[0]), *given[1:]])
            return taken_of("exp", inner, node)
        kept_arguments = [(n, t) for n, t in given if not _is_default(n, t)]
        order = {n: i for i, n in enumerate((*every, "unbiased"))}
        return called(name, sorted(kept_arguments, key=lambda pair: order[pair[0]]), node)


def _signature(name: str, count: int) -> tuple[str, ...]:
    """The parameter names of a function; of ``*args`` as many as the call gives."""
    names = SIGNATURES.get(name, ())
    if names[-1:] == ("*",):
        return (*names[:-1], *(f"*{i}" for i in range(count - len(names) + 1)))
    return names


def _taken(t: Term, part: str) -> Term:
    """A part of a term, as ``t[1:]``, as a term over that part of its elementwise operands."""
    alone = t.kind == "call" and len(t.parts) == 1 and t.name in having("analytic")
    if t.kind in ("sum", "product", "power") or alone:
        parts = tuple(_taken(p, part) for p in t.parts)
        return Term(t.kind, t.name, parts, t.marks, t.value)
    if t.kind == "number":
        return t
    return Term("index", parts=(t, Term("leaf", part)))


def _combined(name: str, terms: Sequence[Term], node: ast.expr) -> Term | None:
    """The term of an arithmetic function on its operands; None for any other function."""
    match name, terms:
        case "add", [a, b]:
            return summed([(1, a), (1, b)], node)
        case "sub", [a, b]:
            return summed([(1, a), (-1, b)], node)
        case "mul", [a, b]:
            return _squared([(1, a), (1, b)], node)
        case "div", [a, b]:
            return multiplied([(1, a), (-1, b)], node)
        case "neg", [a]:
            return summed([(-1, a)], node)
        case "diff", [a]:  # of neighbours along the last dimension
            return summed([(1, _taken(a, "..., 1:")), (-1, _taken(a, "..., :-1"))], node)
        case "reciprocal", [a]:
            return multiplied([(-1, a)], node)
        case "rsqrt", [a]:
            return multiplied([(-1, taken_of("sqrt", a))], node)
        case "square", [a]:
            return raised(a, number(Fraction(2)), node)
        case "pow", [a, b]:
            return raised(a, b, node)
        case "exp2", [a]:
            return raised(number(Fraction(2)), a, node)
        case "matmul", [a, b]:
            return called("matmul", [("input", a), ("other", b)], node)
    return None


def _is_default(name: str, t: Term) -> bool:
    if name == "keepdim":
        return t == Term("leaf", "False")
    return name in _DEFAULTS and t.kind == "number" and t.value == _DEFAULTS[name]


def _squared(items: Sequence[tuple[int, Term]], node: ast.expr | None = None) -> Term:
    """A product; of a term with itself, the square."""
    if len(items) == 2 and items[0][1] == items[1][1] and items[0][1].kind != "number":
        return raised(items[0][1], number(Fraction(2)), node)
    return multiplied(items, node)


def _fraction(value: int | float) -> Fraction | float:
    made = Fraction(str(value)) if value == value and abs(value) != float("inf") else None
    return value if made is None else made


def _function(node: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """The function's name, and its operands, the object of a method among them."""
    func = node.func
    if isinstance(func, ast.Name):  # from torch import exp; in a pattern
        name = func.id
        return (RENAMED.get(name, name), list(node.args)) if name in _KNOWN else None
    if not isinstance(func, ast.Attribute):
        return None
    name = func.attr
    if isinstance(func.value, ast.Call) and name.endswith("_") and name[:-1] in _KNOWN:
        inner = _function(func.value)  # a result that nothing else shows is written in place
        if inner is not None and inner[0] in (*_ONE, *_ARITHMETIC):
            name = name[:-1]
    if ast.unparse(func.value) in LIBRARIES:
        return RENAMED.get(name, name), list(node.args)
    if name in ("max", "min", "add_", "mul_") or name not in _KNOWN:
        return None
    if name == "where":
        return None  # of a tensor: the condition comes after it
    if isinstance(func.value, ast.Name) and func.value.id in _NO_TENSORS:
        return None
    return RENAMED.get(name, name), [func.value, *node.args]


_NO_TENSORS = OBJECTS | {"math", "np", "numpy", "nn", "cmath"}
_ARITHMETIC = having("algebraic")
_KNOWN = frozenset(SIGNATURES) | frozenset(RENAMED) | _ARITHMETIC
_JOINS = ("stack", "cat")
_MOVERS = {name for name in having("moves") if card(name).home == "."}
_ZERO = Term("number", value=Fraction(0))
# what makes the same numbers each time
_MADE = {n for n in having("makes") - having("uninitialised") if "rand" not in n}
_MADE |= {"tensor", "eye", "range", "len", "int", "float"}


def _unknown(node: ast.expr) -> Term:
    """A leaf that equals no other leaf: two draws of random numbers differ."""
    return Term("leaf", f"{ast.unparse(node)} @ {node.lineno}:{node.col_offset}", node=node)


def is_pure(node: ast.AST) -> bool:
    """Whether an expression can be evaluated again, or elsewhere, with the same result."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            given = _function(each)
            moves = isinstance(each.func, ast.Attribute) and each.func.attr in _MOVES
            if moves and isinstance(each.func.value, ast.Name):  # type: ignore[attr-defined]
                moves = each.func.value.id not in _NO_TENSORS  # type: ignore[attr-defined]
            name = ast.unparse(each.func)
            made = name.startswith("math.") or name.removeprefix("torch.") in _MADE
            if not moves and not made and (given is None or given[0] not in _KNOWN):
                return False
        if isinstance(each, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Lambda):
            return False
    return True


# --- to text ------------------------------------------------------------------------------------

Spell = Callable[[Term], str | None]  # how the program writes a term, if it may be written so


def text_of(t: Term, spell: Spell | None = None, level: int = 0) -> str:
    """The term as Python. level: 0 in a sum, 1 in a product, 2 a divisor, 3 a base."""
    own = spell(t) if spell else None
    if own is not None:
        tree = ast.parse(own, mode="eval").body
        return f"({own})" if _level(tree) < level else own
    match t.kind:
        case "number":
            return _number_text(t.value, level)
        case "leaf" | "hole":
            return t.name.split(" @ ")[0]
        case "sum":
            text = ""
            for sign, part in sorted(_items(t), key=lambda item: item[0], reverse=True):
                piece = text_of(part, spell, 1 if sign < 0 else 0)
                if not text:
                    text = f"-{piece}" if sign < 0 else piece
                else:
                    text += f" - {piece}" if sign < 0 else f" + {piece}"
            return f"({text})" if level > 0 else text
        case "product":
            factors = [p for m, p in _factors(t) if m > 0]
            times = [_times_pi(p) for p in factors]
            factors = [made or p for made, p in zip(times, factors, strict=True)]
            above = [text_of(p, spell, 1) for p in factors if p.value != 1]
            below = [text_of(p, spell, 2) for m, p in _factors(t) if m < 0]
            below += ["torch.pi" for made in times if made]
            text = " * ".join(above) or "1"
            text = " / ".join([text, *below])
            return f"({text})" if level > 1 else text
        case "power":
            text = f"{text_of(t.parts[0], spell, 4)}**{text_of(t.parts[1], spell, 3)}"
            return f"({text})" if level > 3 else text
        case "index":
            at = (spell(t.parts[1]) if spell else None) or t.parts[1].name
            return (
                f"{text_of(t.parts[0], spell, 4)}[{at.strip('()') if at.startswith('(') else at}]"
            )
    return _text_of_call(t, spell, level)


def _text_of_call(t: Term, spell: Spell | None, level: int) -> str:
    if t.name == "list":
        return f"[{', '.join(text_of(p, spell) for p in t.parts)}]"
    if t.name == "each":
        each, over = (text_of(p, spell) for p in t.parts)
        return f"torch.stack([{each} {t.marks[1]} {over}])"
    if t.name == "zip":
        return f"zip({', '.join(text_of(p, spell) for p in t.parts)})"
    if t.name == "others":
        x = text_of(t.parts[0], spell, 4)
        own = f"torch.eye({x}.numel(), dtype=torch.bool, device={x}.device)"
        return f"torch.where({own}, 1, {x}.flatten())"
    if t.name == "flipped_logcumsumexp":  # along the last dimension; of others the trial tells
        x, along = text_of(t.parts[0], spell, 4), text_of(t.parts[1], spell)
        sums = f"torch.logcumsumexp({x}.flip({along}), {along}).flip({along})[..., 1:]"
        return f"torch.nn.functional.pad({sums}, (0, 1), value=-torch.inf)"
    if t.name == "preceding":
        x, along = text_of(t.parts[0], spell, 4), text_of(t.parts[1], spell)
        first, rest = (f"{x}.narrow({along}, 0, {n})" for n in ("1", f"{x}.shape[{along}] - 1"))
        return f"torch.cat((torch.ones_like({first}), {rest}), {along})"
    if t.name == "matmul":
        text = f"{text_of(t.parts[0], spell, 2)} @ {text_of(t.parts[1], spell, 3)}"
        return f"({text})" if level > 0 else text
    if t.name in ("shape", "numel", "size"):
        of, *more = [text_of(p, spell, 4 * (i == 0)) for i, p in enumerate(t.parts)]
        return f"{of}.shape" if t.name == "shape" else f"{of}.{t.name}({', '.join(more)})"
    if t.name == "len":
        return f"len({text_of(t.parts[0], spell)})"
    if t.name == "math_log":  # of a plain number
        return f"torch.tensor({text_of(t.parts[0], spell)}, dtype=torch.float64).log()"
    if t.name in _CASTS:
        return f"{text_of(t.parts[0], spell, 4)}.{t.name}()"
    if t.name == "tiny":
        return f"torch.finfo({text_of(t.parts[0], spell, 4)}.dtype).tiny"
    home = card(t.name).home
    placed = _signature(t.name, len(t.parts)) if home == "." else ("", "dim")
    arguments = [
        (
            _unwrapped(text_of(p, spell))
            if i == 0 or n in ("input", "other", *placed[i : i + 1]) or (n == "dims" and i == 1)
            else f"{n}={_unwrapped(text_of(p, spell))}"
        )
        for i, (n, p) in enumerate(t.arguments)
    ]
    if t.name in ("vector_norm", "normalize"):
        named = (f"{n}={text_of(p, spell)}" for n, p in t.arguments[1:])
        arguments = [arguments[0], *named]
    if home == ".":
        return f"{text_of(t.parts[0], spell, 4)}.{t.name}({', '.join(arguments[1:])})"
    return f"{home}{t.name}({', '.join(arguments)})"


def _unwrapped(text: str) -> str:
    """An argument without the parentheses that it needs elsewhere."""
    return ast.unparse(ast.parse(text)) if text[0] + text[-1] == "()" else text


def _is_matmul(a: str, b: str, out: str) -> bool:
    """Whether an einsum of these letters is a product of matrices, or of one with a vector."""
    if not a or not b or not (a + b + out).isalpha() or len({*a, *b}) > len(a) + len(b) - 1:
        return False
    batch, summed_over = b[: max(len(b) - 2, 0)], a[-1]
    same = a.startswith(batch) and (not batch or len(a) == len(b))
    right = b[len(batch) :]
    if not same or right[0] != summed_over or summed_over in out or len(set(a)) < len(a):
        return False
    others = right[1:]
    return out == a[:-1] + others and not set(others) & set(a) and len(set(b)) == len(b)


def _times_pi(t: Term) -> Term | None:
    """A number times pi, where that is a simple one: the program is shown a division by pi."""
    if t.kind != "number" or not isinstance(t.value, Fraction) or not t.value:
        return None
    simple = Fraction(float(t.value) * math.pi).limit_denominator(1000)
    close = abs(float(simple) / math.pi / float(t.value) - 1) < 1e-14
    return number(simple) if close else None


def _level(tree: ast.expr) -> int:
    if isinstance(tree, ast.BinOp):
        if isinstance(tree.op, ast.Add | ast.Sub | ast.MatMult):
            return 0
        return 3 if isinstance(tree.op, ast.Pow) else 1
    if isinstance(tree, ast.UnaryOp):
        return 0
    if isinstance(tree, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant):
        return 4
    return -1


def _number_text(value: Fraction | float, level: int) -> str:
    if isinstance(value, Fraction):
        if value.denominator == 1:
            text = str(value.numerator)
        elif len(str(value.denominator)) > 4 or float(value) == float(f"{float(value):.6g}"):
            text = repr(float(value))
        else:
            text = f"{value.numerator} / {value.denominator}"
            return f"({text})" if level > 1 else text
    else:
        text = repr(value)
    return f"({text})" if text.startswith("-") and level > 0 else text
