"""The logarithm of an expression, taken inside of it: it stays in range where the expression leaves
it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from nanlab.fixes.term import Term, called, gathered, multiplied, negated, number, summed, taken_of
from nanlab.operators import having

STEEP = 3  # an exponent above it makes numbers of 1e9 too large, and 1e-9 none
NOTHING = -1e30  # the logarithm of 0: of infinities alone a sum has no derivative
EPSILON = 1e-3  # a number up to this that is added to what may vanish keeps a logarithm finite
_OPPOSITE = {"amax": "amin", "amin": "amax"}  # of what is subtracted from something
_MOVES = having("moves") | {"clone", "each"} | _OPPOSITE.keys()
_HALF, _ONE = number(Fraction(1, 2)), number(Fraction(1))
_LOG2, _ROOT2 = number(math.log(2)), number(math.sqrt(2))


def log_of(t: Term) -> Term | None:
    """The logarithm of a term without the term; None where it has no part whose logarithm is
    known."""
    match t.kind:
        case "call":
            return _of_call(t)
        case "product":
            if any(map(log_of, t.parts)) and all(
                p.kind != "number" or p.value > 0 for p in t.parts
            ):
                return gathered([(m, _log(p)) for m, p in t.items])
        case "power":
            base = t.parts[0]
            if base.kind == "number" and base.value > 0:
                return multiplied([(1, t.parts[1]), (1, number(math.log(base.value)))])
            size = _magnitude(t)
            inner = log_of(size) or (_log(size) if _is_steep(t.parts[1]) else None)
            return multiplied([(1, t.parts[1]), (1, inner)]) if inner is not None else None
        case "index":
            inner = log_of(t.parts[0])
            return Term("index", parts=(inner, t.parts[1])) if inner is not None else None
        case "sum":
            return _of_sum(t.items)
    return None


def _is_steep(exponent: Term) -> bool:
    """Whether a power leaves the range where its base does not."""
    return exponent.kind != "number" or exponent.value > STEEP


def _is_root(exponent: Term) -> bool:
    return exponent.kind == "product" or (exponent.kind == "number" and exponent.value < 1)


def _magnitude(power: Term) -> Term:
    """The base of a power, without its sign where that does not matter."""
    base, exponent = power.parts
    return _size(base) if exponent.kind == "number" and exponent.value % 2 == 0 else base


def _size(t: Term) -> Term:
    return taken_of("abs", t) if t.kind != "number" and t.name != "exp" else t


def as_exponential(t: Term) -> Term | None:
    """The exponential of logarithms instead of a product, or the root of a sum, that leaves the
    range."""
    root = t.kind == "power" and t.parts[0].name in ("sum", "mean") and _is_root(t.parts[1])
    # other factors may be 0, or negative
    if root or (t.name == "prod" and log_of(t.parts[0]) is not None):
        inner = log_of(t)
        return taken_of("exp", inner) if inner is not None else None
    if t.kind != "product":
        return None
    items = [(m, p, _log_of_factor(p)) for m, p in t.items]
    known = [(m, inner) for m, _, inner in items if inner is not None]
    if not any(m < 0 for m, _ in known) and len(known) < 2:
        return None
    rest = [(m, p) for m, p, inner in items if inner is None]
    return multiplied([*rest, (1, taken_of("exp", summed(known)))])


def _log_of_factor(t: Term) -> Term | None:
    """The logarithm of a factor that may leave the range, powers of positive numbers among them."""
    if t.kind == "power" and t.parts[1].kind != "number":
        return multiplied([(1, t.parts[1]), (1, _log(t.parts[0]))])
    return log_of(t)


def _log(t: Term) -> Term:
    inner = log_of(t)
    if inner is not None:
        return inner
    if t.kind == "number" and t.value >= 0:
        size = math.log(t.value) if t.value else NOTHING
        return number(size) if t.value != 1 else number(Fraction(0))
    if t.kind == "leaf" and is_zeros(t.name):
        return summed([(1, t), (1, number(NOTHING))])
    return taken_of("math_log" if _is_count(t) else "log", t)


def _is_count(t: Term) -> bool:
    """Whether a term is a plain number: a length, or a size."""
    sizes = t.parts[0] if t.kind == "index" else t
    return sizes.name in (("shape", "size") if t.kind == "index" else ("len", "numel", "size"))


def is_zeros(text: str) -> bool:
    """Whether an expression makes zeros."""
    return text.startswith(("torch.zeros(", "torch.zeros_like("))


def _with(name: str, inner: Term, t: Term) -> Term:
    """A reduction of the inner term along the dimensions of another reduction; of all elements
    where that one names no dimension."""
    if not _others(t):
        whole = taken_of("flatten", inner)
        return called(name, [("input", whole), ("dim", number(Fraction(0)))])
    return called(name, [("input", inner), *_others(t)])


def _others(t: Term) -> list[tuple[str, Term]]:
    """The arguments of a call but for its operand."""
    return t.arguments[1:]


def _of_call(t: Term) -> Term | None:
    x = t.parts[0] if t.parts else t
    match t.name:
        case "exp":
            return x
        case "sigmoid":
            return taken_of("logsigmoid", x)
        case "softplus" if len(t.parts) == 1 and x.name != "clamp_min":
            floor = ("other", number(Fraction(-17)))  # below it is exp(x), to eps
            above = _log(_softplus(called("clamp_min", [("input", x), floor])))
            where = [("condition", called("gt", [("input", x), floor])), ("input", above)]
            return called("where", [*where, ("other", x)])
        case "softmax":
            return called("log_softmax", t.arguments)
        case "later":
            return called("flipped_logcumsumexp", [("input", _log(x)), *_others(t)])
        case "sqrt":
            inner = log_of(x)
            return multiplied([(1, _HALF), (1, inner)]) if inner is not None else None
        case "abs" if x.name == "prod":
            inner = taken_of("log", taken_of("abs", x.parts[0]))
            return called("sum", [("input", inner), *_others(x)])
        case "abs" if x.kind == "product":
            return log_of(multiplied([(m, _size(p)) for m, p in x.items]))
        case "abs":
            return log_of(x)
        case "expm1":
            return _of_sum([(1, taken_of("exp", x)), (-1, _ONE)])
        case "where" if len(t.parts) == 3:
            if any(p.kind != "number" and log_of(p) is None for p in t.parts[1:]):
                return None  # the gradient of what is not chosen may be no number
            (condition, *chosen) = t.arguments
            return called("where", [condition, *((n, _log(p)) for n, p in chosen)])
        case "list" if any(map(log_of, t.parts)):
            return called("list", [(n, _log(p)) for n, p in t.arguments])
        case "det":
            return taken_of("logdet", x)
        case "ndtr":
            return taken_of("log_ndtr", x)
        case "erfc":
            tail = taken_of("log_ndtr", negated(multiplied([(1, _ROOT2), (1, x)])))
            return summed([(1, tail), (1, _LOG2)])
        case "i0":
            scaled = taken_of("log", taken_of("i0e", x))
            return summed([(1, scaled), (1, taken_of("abs", x))])
        case "cosh":
            double = _softplus(multiplied([(1, number(Fraction(2))), (1, x)]))
            return summed([(1, double), (-1, x), (-1, _LOG2)])
        case "sinh":
            down = taken_of("expm1", multiplied([(1, number(Fraction(-2))), (1, x)]))
            rest = taken_of("log", negated(down))
            return summed([(1, x), (1, rest), (-1, _LOG2)])
        case "prod" | "cumprod":
            name = "sum" if t.name == "prod" else "cumsum"
            return called(name, [("input", _log(x)), *_others(t)])
        case "clamp_min" if t.parts[1].kind == "number" and 0 < t.parts[1].value <= EPSILON:
            return log_of(x)
        case "sum" | "cumsum":
            inner = log_of(x)
            if inner is not None and t.name == "cumsum":
                return called("logcumsumexp", [("input", inner), ("dim", t.parts[1])])
            return _with("logsumexp", inner, t) if inner is not None else None
        case "mean":
            inner = log_of(x)
            if inner is None:
                return None
            one = taken_of("ones_like", inner)
            count = taken_of("log", called("sum", [("input", one), *_others(t)]))
            return summed([(1, _with("logsumexp", inner, t)), (-1, count)])
        case "pad":
            inner, value = log_of(x), dict(t.arguments).get("value")
            if inner is None or value is None or value.kind != "number" or value.value <= 0:
                return None
            others = [(n, _log(p) if n == "value" else p) for n, p in _others(t)]
            return called("pad", [("input", inner), *others])
        case name if name in _MOVES:
            inner = log_of(x)
            if inner is not None:
                return called(name, [("input", inner), *_others(t)])
    return None


def products_summed(t: Term, vector: bool, chosen: Callable[[Term], bool] | None = None) -> Term:
    """The term with products of matrices in it written as sums of products.

    vector: whether the second operand is a vector. chosen: which terms to look at; by default those
    whose logarithm is that of such a product.
    """
    if not t.parts or not (chosen or _is_computed_with)(t):
        return t
    parts = tuple(products_summed(p, vector, chosen) for p in t.parts)
    if t.name == "matmul" and (chosen or any(log_of(p) is not None for p in parts)):
        a, b = parts
        last = ("dim", number(Fraction(-1)))
        a = a if vector else called("unsqueeze", [("input", a), last])
        dim = last if vector else ("dim", number(Fraction(-2)))
        return called("sum", [("input", multiplied([(1, a), (1, b)])), dim])
    if chosen is None and parts == t.parts:  # which keeps its names
        return t
    return Term(t.kind, t.name, parts, t.marks, t.value)


def _is_computed_with(t: Term) -> bool:
    return t.kind in ("sum", "product", "index") or t.name in _MOVES | having("log") | {"matmul"}


def _softplus(x: Term) -> Term:
    return taken_of("softplus", x)


def _of_sum(items: Sequence[tuple[int, Term]]) -> Term | None:
    """The logarithm of a sum of positive terms, or of the difference of two."""
    small = [p for m, p in items if p.kind == "number" and m > 0 and 0 < p.value <= EPSILON]
    rest = [(m, p) for m, p in items if p not in small]
    if len(rest) < len(items) and len(rest) == 1:
        return log_of(rest[0][1]) if rest[0][0] > 0 else None
    if not any(log_of(p) is not None or p.name == "erf" for _, p in rest):
        return None
    if (tail := _of_tail(rest)) is not None:
        return tail
    up, down = ([p for m, p in rest if m == sign] for sign in (1, -1))
    if not up or len(down) > 1:
        return None
    if not down:
        return _added(up)
    (less,) = down
    if len(up) > 1:
        return None
    if up[0] == _ONE:
        if less.name == "softmax":
            return _of_other_classes(less)
        rest_of_1 = _complement(less)
        if rest_of_1 is not None:
            return log_of(rest_of_1)
    if up[0].name == less.name and less.name in ("ndtr", "erf"):
        return _of_interval(up[0], less)
    above, below = _log(up[0]), _log(less)
    gap = taken_of("expm1", gathered([(1, below), (-1, above)]))
    return summed([(1, above), (1, taken_of("log", negated(gap)))])


def _of_interval(up: Term, less: Term) -> Term:
    """The logarithm of a normal distribution's mass between two points. It is computed from the
    tail that holds both points: the other tail is 1 at both, and the difference of those is 0."""
    root = _ROOT2 if less.name == "erf" else _ONE
    high, low = (multiplied([(1, root), (1, t.parts[0])]) for t in (up, less))
    above = called("gt", [("input", low), ("other", number(Fraction(0)))])

    def tail(mirrored: Term, x: Term) -> Term:
        chosen = [("condition", above), ("input", negated(mirrored)), ("other", x)]
        return taken_of("log_ndtr", called("where", chosen))

    more, gap = tail(low, high), summed([(1, tail(high, low)), (-1, tail(low, high))])
    rest = taken_of("log", negated(taken_of("expm1", gap)))
    return summed([(1, more), (1, rest), *([(1, _LOG2)] if less.name == "erf" else [])])


def _complement(t: Term) -> Term | None:
    """1 minus a probability, written without that subtraction; of a softmax, 1 minus each class's.
    None of other terms."""
    if t.name in ("sigmoid", "ndtr"):
        return called(t.name, [("input", negated(t.parts[0]))])
    if t.name == "softmax":
        return summed([(1, _ONE), (-1, t)])
    if t.name == "cumsum" and t.parts[0].name == "softmax" and t.parts[1:] == t.parts[0].parts[1:]:
        return called("later", t.arguments)
    if t.kind == "product":  # what is left of a sum that it is a part of
        above = multiplied([(1, p) for m, p in t.items if m == 1])
        below = [p for m, p in t.items if m == -1]
        if len(below) != 1 or below[0].kind != "sum":
            return None
        rest = below[0].items
        if (1, above) not in rest:
            return None
        rest.remove((1, above))
        return multiplied([(1, summed(rest)), (-1, below[0])])
    if t.kind != "index" and t.name != "mean" and t.name not in _MOVES:
        return None
    inner, name = _complement(t.parts[0]), _OPPOSITE.get(t.name, t.name)
    if inner is None:
        return None
    return replace(t, name=name, parts=(inner, *t.parts[1:]), node=None)


def _of_other_classes(softmax: Term) -> Term | None:
    """The logarithm of 1 minus each probability of a softmax. Where a class has more than half, the
    sum of the other classes is used; at most one class has."""
    if softmax.marks != ("input", "dim"):
        return None
    x, dim = softmax.parts
    likely = called("gt", [("input", softmax), ("other", _HALF)])
    none = Term("leaf", "-torch.inf")
    others = called("where", [("condition", likely), ("input", none), ("other", x)])
    above, below = (
        called("logsumexp", [("input", each), ("dim", dim), ("keepdim", Term("leaf", "True"))])
        for each in (others, x)
    )
    less = called("clamp_max", [("input", softmax), ("other", _HALF)])
    near = [("input", summed([(1, above), (-1, below)]))]
    far = [("other", taken_of("log1p", negated(less)))]
    return called("where", [("condition", likely), *near, *far])


def _of_tail(items: Sequence[tuple[int, Term]]) -> Term | None:
    """The logarithm of 1 plus or minus erf(x): twice a normal distribution's tail."""
    for (_, one), (sign, erf) in (items, items[::-1]) if len(items) == 2 else ():
        if one == _ONE and erf.name == "erf":
            x = multiplied([(1, _ROOT2), (1, erf.parts[0])])
            tail = taken_of("log_ndtr", x if sign > 0 else negated(x))
            return summed([(1, tail), (1, _LOG2)])
    return None


def _added(parts: Sequence[Term]) -> Term | None:
    """The logarithm of a sum of positive terms."""
    plain = [p for p in parts if p.kind == "number"]
    if any(p.value <= 0 for p in plain):
        return None
    logs = [_log(p) for p in parts if p.kind != "number"]
    total = logs[0]
    for each in logs[1:]:
        total = called("logaddexp", [("input", total), ("other", each)])
    if plain:
        constant = number(math.log(sum(float(p.value) for p in plain)))
        if constant.value == 0:
            return _softplus(total)
        total = summed([(1, _softplus(summed([(1, total), (-1, constant)]))), (1, constant)])
    return total
