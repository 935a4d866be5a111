"""Expressions that leave the range or the domain, and the forms of them that do not.

``$x`` stands for any expression, the same one wherever it stands; ``$_x`` for a number. A sum or
product may hold more than the pattern names: the rest is kept. Inner expressions are rewritten
before outer ones, so that ``log(exp(x) / exp(x).sum(1, keepdim=True))`` becomes ``log(softmax(x,
1))``, and that log_softmax.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from functools import cached_property

from nanlab.fixes.term import Term, calls_in, term_of

LOG2 = repr(math.log(2))
PI = repr(math.pi)
TINY = "tiny($p)"


@dataclass(frozen=True)
class Rule:
    """A pattern and what to write instead."""

    title: str
    pattern: str
    replacement: str
    # for tests: ranges of its operands in which the pattern itself is right in float64
    low: float = -2.0
    high: float = 2.0
    late: bool = False  # only after the inner expressions have been rewritten
    root: bool = False  # only where $_p is no whole number, and once

    @cached_property
    def before(self) -> Term:
        """The pattern, read."""
        return read(self.pattern)

    @cached_property
    def calls(self) -> frozenset[str]:
        """The functions that the pattern names: no term without them is an instance of it."""
        return frozenset(calls_in(self.before))

    @cached_property
    def after(self) -> Term:
        """The replacement, read."""
        return read(self.replacement)


def read(text: str) -> Term:
    """A pattern as a term with holes."""
    tree = ast.parse(re.sub(r"\$(\w+)", r"_hole_\1", text), mode="eval")
    return term_of(tree.body, holes=True)


# fmt: off
CATALOGUE: tuple[Rule, ...] = (
    # probabilities
    Rule("softmax", "exp($x) / sum(exp($x), $d, keepdim=True)", "softmax($x, $d)"),
    Rule("softmax", "exp($x) / (sum(exp($x), $d, keepdim=True) + $_e)", "softmax($x, $d)"),
    Rule("softmax", "exp($x) / unsqueeze(sum(exp($x), $d), $d)", "softmax($x, $d)"),
    Rule("softmax", "$w * exp($x) / sum($w * exp($x), $d, keepdim=True)",
         "softmax($x + log($w), $d)", 0.1),
    Rule("softmax", "exp($x) / sum(exp($x))", "softmax($x.flatten(), 0).view_as($x)"),
    Rule("softmax", "exp($x - logsumexp($x.flatten(), 0))", "softmax($x.flatten(), 0).view_as($x)"),
    Rule("log_softmax", "$x - logsumexp($x, $d, keepdim=True)", "log_softmax($x, $d)"),
    Rule("sigmoid", "1 / (1 + exp($x))", "sigmoid(-$x)"),
    Rule("sigmoid", "exp($x) / (1 + exp($x))", "sigmoid($x)"),
    Rule("sigmoid", "exp($x) / (exp($x) + exp($y))", "sigmoid($x - $y)"),
    Rule("sigmoid", "1 - sigmoid($x)", "sigmoid(-$x)"),
    Rule("logsigmoid", "sigmoid($x)**$_g", "exp($_g * logsigmoid($x))", late=True),
    Rule("logsigmoid", "sqrt(sigmoid($x))", "exp(logsigmoid($x) / 2)", late=True),
    Rule("the logits themselves", "logit(sigmoid($x))", "$x"),
    Rule("the logits themselves", "log(sigmoid($x)) - log(1 - sigmoid($x))", "$x"),
    Rule("the logits themselves", "log(sigmoid($x) / (1 - sigmoid($x)))", "$x"),
    Rule("logit", "log($p) - log(1 - $p)", "logit($p)", 0.1, 0.9, late=True),
    Rule("logit", "log($p / (1 - $p))", "logit($p)", 0.1, 0.9, late=True),
    Rule("a product of sigmoids", "log(sigmoid($a) - sigmoid($b))",
         "logsigmoid($a) + logsigmoid(-$b) + log(-expm1($b - $a))"),
    Rule("a product of sigmoids", "log(clamp_min(sigmoid($a) - sigmoid($b), $_e))",
         "logsigmoid($a) + logsigmoid(-$b) + log(-expm1($b - $a))"),
    Rule("a difference of logarithms", "log($a / $b)", "log($a) - log($b)", 0.1, 2.0, late=True),
    Rule("a sum of logarithms", "log($a * $b)", "log($a) + log($b)", 0.1, 2.0, late=True),
    Rule("exp of the sum of logarithms", "prod($x)**$p", "exp($p * sum(log($x)))", 0.1, 2.0),
    Rule("exp of the sum of logarithms", "prod($x, $d)**$p", "exp($p * sum(log($x), $d))", 0.1),
    Rule("the logarithm of the base", "log($x**2)", "2 * log(abs($x))", 0.1, 2.0),
    Rule("the logarithm of the base", "log(sqrt($x))", "log($x) / 2", 0.1, 2.0),
    Rule("the logarithm of the base", "log($x**$n)", "$n * log($x)", 0.1, 2.0, late=True),
    Rule("logsumexp", "maximum($a, $b) + log1p(exp(-abs($a - $b)))",
         "logsumexp(stack([$a, $b]), 0)"),
    # differences of nearly equal numbers
    Rule("expm1", "exp($x) - 1", "expm1($x)", late=True),
    Rule("expm1", "1 - exp($x)", "-expm1($x)", late=True),
    Rule("log1p", "log(1 + $x)", "log1p($x)", -0.9, 2.0, late=True),
    Rule("logarithm of a product", "log(1 - tanh($x)**2)",
         f"2 * ({LOG2} - $x - softplus(-2 * $x))"),
    Rule("logarithm of a product", "log(1 - tanh($x)**2 + $_e)",
         f"2 * ({LOG2} - $x - softplus(-2 * $x))"),
    Rule("erfc", "1 - erf($x)", "erfc($x)", late=True),
    Rule("1 - tanh^2 without cancellation", "1 - tanh($x)**2",
         "4 * sigmoid(2 * $x) * sigmoid(-2 * $x)", late=True),
    Rule("half angle", "1 - cos($x)", "2 * sin($x / 2)**2", late=True),
    # exponentials
    Rule("the power of the quotient", "$a**$_n / $b**$_n", "($a / $b)**$_n", 0.2),
    Rule("exp of the difference", "exp($a) / exp($b)", "exp($a - $b)"),
    Rule("exp of the difference", "(exp($a) + $b) / exp($c)", "exp($a - $c) + $b * exp(-$c)"),
    Rule("exp of the half", "$x**2 * exp($y)", "($x * exp($y / 2))**2", late=True),
    Rule("exp of the half", "$x**2 / exp($y)", "($x * exp(-$y / 2))**2", late=True),
    Rule("exp of the sum", "exp($a) * exp($b)", "exp($a + $b)"),
    Rule("exp of the negative", "1 / exp($x)", "exp(-$x)"),
    Rule("i1e and i0e", "i1($x) / i0($x)", "i1e($x) / i0e($x)"),
    Rule("exp of a product", "exp($x)**$p", "exp($p * $x)"),
    Rule("exp of the half", "sqrt(exp($x))", "exp($x / 2)"),
    Rule("tanh", "(exp($x) - exp(-$x)) / (exp($x) + exp(-$x))", "tanh($x)"),
    Rule("tanh", "(exp($x) - 1) / (exp($x) + 1)", "tanh($x / 2)"),
    Rule("tanh", "(1 - exp(-$x)) / (1 + exp(-$x))", "tanh($x / 2)"),
    Rule("tanh", "sinh($x) / cosh($x)", "tanh($x)"),
    Rule("tanh", "cosh($x) / sinh($x)", "1 / tanh($x)", 0.2),
    Rule("the inverse itself", "atanh(tanh($x))", "$x"),
    Rule("atanh", "log((1 + $x) / (1 - $x))", "2 * atanh($x)", -0.9, 0.9),
    Rule("atanh", "log(1 + $x) - log(1 - $x)", "2 * atanh($x)", -0.9, 0.9),
    Rule("asinh", "log($x + sqrt(1 + $x**2))", "asinh($x)"),
    Rule("acosh", "log($x + sqrt($x**2 - 1))", "acosh($x)", 1.1),
    # removable singularities that have a name
    Rule("sinc", "sin($x) / $x", f"sinc($x / {PI})", 0.2),
    Rule("sinc", "sin($_c * $x) / $x", f"$_c * sinc($_c * $x / {PI})", 0.2),
    Rule("sinc", "sin($x / $_c) / $x", f"sinc($x / ($_c * {PI})) / $_c", 0.2),
    Rule("sinc", "sin($k * $x) / $x", f"$k * sinc($k * $x / {PI})", 0.2, late=True),
    Rule("sinc", "(1 - cos($x)) / $x**2", f"sinc($x / (2 * {PI}))**2 / 2", 0.2),
    Rule("sinc", "(1 - cos($x)) / $x", f"$x * sinc($x / (2 * {PI}))**2 / 2", 0.2),
    Rule("sinc", "$x / sin($x)", f"1 / sinc($x / {PI})", 0.2),
    Rule("sinc", "tan($x) / $x", f"sinc($x / {PI}) / cos($x)", 0.2, 1.4),
    # norms
    Rule("normalize", "$x / vector_norm($x, dim=$d, keepdim=True)", "normalize($x, dim=$d)", 0.2),
    Rule("normalize", "$x / sqrt(sum($x**2, $d, keepdim=True))", "normalize($x, dim=$d)", 0.2),
    Rule("normalize", "$x / vector_norm($x)", "normalize($x.flatten(), dim=0).view_as($x)", 0.2),
    Rule("normalize", "$x / sqrt(sum($x**2))", "normalize($x.flatten(), dim=0).view_as($x)", 0.2),
    Rule("vector_norm", "sqrt(sum($x**2, $d))", "vector_norm($x, dim=$d)", 0.2),
    Rule("vector_norm", "sqrt(sum($x**2, $d, keepdim=True))",
         "vector_norm($x, dim=$d, keepdim=True)", 0.2),
    Rule("vector_norm", "sqrt(sum($x**2))", "vector_norm($x)", 0.2),
    Rule("hypot", "sqrt($a**2 + $b**2)", "hypot($a, $b)", 0.2),
    Rule("hypot", "sqrt($a**2 + $b**2 + $c**2)", "hypot(hypot($a, $b), $c)", 0.2),
    Rule("hypot", "sqrt($_c + $x**2)", "hypot($x, math_sqrt($_c) * ones_like($x))", 0.2),
    Rule("abs", "sqrt($x**2)", "abs($x)", 0.2),
    Rule("the square itself", "sqrt($x)**2", "$x", 0.2),
    Rule("cosine_similarity",
         "sum($a * $b, $d) / (vector_norm($a, dim=$d) * vector_norm($b, dim=$d))",
         "cosine_similarity($a, $b, $d)", 0.2),
    Rule("cosine_similarity",
         "sum($a * $b, $d) / sqrt(sum($a**2, $d) * sum($b**2, $d))",
         "cosine_similarity($a, $b, $d)", 0.2),
    Rule("sign", "$x / abs($x)", "sign($x)", 0.2),
    # moments
    Rule("var", "mean($x**2) - mean($x)**2", "var($x, correction=0)"),
    Rule("var", "mean($x**2, $d) - mean($x, $d)**2", "var($x, $d, correction=0)"),
    Rule("var", "mean($x**2, $d, keepdim=True) - mean($x, $d, keepdim=True)**2",
         "var($x, $d, correction=0, keepdim=True)"),
    Rule("std", "sqrt(var($x))", "std($x)"),
    Rule("std", "sqrt(var($x, $d))", "std($x, $d)"),
    Rule("std", "sqrt(var($x, correction=$_c))", "std($x, correction=$_c)"),
    Rule("std", "sqrt(var($x, $d, correction=$_c))", "std($x, $d, correction=$_c)"),
    Rule("std", "sqrt(var($x, $d, keepdim=True))", "std($x, $d, keepdim=True)"),
    # a logarithm times what vanishes with it
    Rule("the logarithm bounded", "$p * log($p)", f"$p * log(clamp_min($p, {TINY}))", 0.1, 2.0),
    Rule("the logarithm bounded", "$p * (log($p) - $q)", f"$p * (log(clamp_min($p, {TINY})) - $q)",
         0.1, 2.0),
    Rule("the factors before each", "cumprod($x, $d) / $x", "cumprod(preceding($x, $d), $d)", 0.2),
    Rule("the product of the others", "prod($x) / $x", "prod(others($x), 1).view_as($x)", 0.2),
    *(
        Rule("the product of the others", f"{product} / $x",
             f"cumprod(preceding($x, {d}), {d})"
             f" * flip(cumprod(preceding(flip($x, {d}), {d}), {d}), {d})", 0.2)
        for product, d in (
            ("prod($x, $d, keepdim=True)", "$d"),
            ("unsqueeze(prod($x, $d), $d)", "$d"),
            ("prod($x, -1)[..., None]", "-1"),
        )
    ),
    Rule("the sum of the powers", "(1 - $g**$_n) / (1 - $g)", "powers($g, $_n)", 0.2, 0.8),
    Rule("the sum of the powers", "($g**$_n - 1) / ($g - 1)", "powers($g, $_n)", 0.2, 0.8),
)

# other forms of what the catalogue knows, for other faults of it: a norm at 0, or squares that
# underflow
ALTERNATIVES: tuple[Rule, ...] = (
    Rule("a loss of the logits", "-mean($y * log(sigmoid($x)) + (1 - $y) * log(1 - sigmoid($x)))",
         "binary_cross_entropy_with_logits($x, $y)", 0.1, 0.9),
    Rule("the signed power", "sign($x) * abs($x)**$_p",
         "$x * clamp_min(abs($x), tiny($x))**($_p - 1)", 0.2, root=True),
    Rule("the signed root", "sign($x) * sqrt(abs($x))", "$x / sqrt(clamp_min(abs($x), tiny($x)))",
         0.2),
    Rule("an epsilon of 1e-12", "$x**$_p", "($x + 1e-12)**$_p", 0.2, late=True, root=True),
    Rule("hypot", "log1p($x**2)", "2 * log(hypot($x, ones_like($x)))"),
    Rule("hypot", "log1p($w * $x**2)", "2 * log(hypot($x * sqrt($w), ones_like($x)))", 0.1),
    Rule("hypot", "log1p($x**2 / $w)", "2 * log(hypot($x / sqrt($w), ones_like($x)))", 0.1),
    Rule("hypot", "log(1 + $w * $x**2)", "2 * log(hypot($x * sqrt($w), ones_like($x)))", 0.1),
    Rule("hypot", "log(1 + $x**2 / $w)", "2 * log(hypot($x / sqrt($w), ones_like($x)))", 0.1),
    Rule("hypot", "log($_c + $x**2)", "2 * log(hypot($x, math_sqrt($_c) * ones_like($x)))",
         late=True),
    Rule("hypot", "log($a**2 + $b**2)", "2 * log(hypot($a, $b))", 0.2),
    Rule("hypot", "log2($a**2 + $b**2)", "2 * log2(hypot($a, $b))", 0.2),
    Rule("hypot", "log10($a**2 + $b**2)", "2 * log10(hypot($a, $b))", 0.2),
    Rule("hypot", "1 / ($_c + $x**2)", "1 / hypot($x, math_sqrt($_c) * ones_like($x))**2"),
    Rule("vector_norm", "sqrt($a**2 + $b**2)", "vector_norm(stack([$a, $b]), dim=0)", 0.2),
    Rule("the vectors scaled first",
         "sum($a * $b, $d) / (sqrt(sum($a**2, $d)) * sqrt(sum($b**2, $d)))",
         "cosine_similarity($a / amax(abs($a), $d, keepdim=True),"
         " $b / amax(abs($b), $d, keepdim=True), $d)", 0.2),
    Rule("the vectors scaled first",
         "sum($a * $b, $d) / sqrt(sum($a**2, $d) * sum($b**2, $d))",
         "cosine_similarity($a / amax(abs($a), $d, keepdim=True),"
         " $b / amax(abs($b), $d, keepdim=True), $d)", 0.2),
    Rule("the power of the quotient", "1 / $x**$_n", "(1 / $x)**$_n", 0.2),
    Rule("the vector scaled first", "sqrt(sum($x**2, $d) / $_c)",
         "amax(abs($x), $d) * vector_norm($x / amax(abs($x), $d, keepdim=True), dim=$d)"
         " / math_sqrt($_c)", 0.2),
    Rule("the vector scaled first", "sqrt(sum($x**2, $d))",
         "amax(abs($x), $d) * vector_norm($x / amax(abs($x), $d, keepdim=True), dim=$d)", 0.2),
    Rule("the vector scaled first", "$x / vector_norm($x)",
         "normalize(flatten($x / amax(abs($x))), dim=0).view_as($x)", 0.2),
    Rule("the vector scaled first", "$x / sqrt(sum($x**2))",
         "normalize(flatten($x / amax(abs($x))), dim=0).view_as($x)", 0.2),
    Rule("the vectors scaled first", "$x / vector_norm($x, dim=$d, keepdim=True)",
         "normalize($x / amax(abs($x), $d, keepdim=True), dim=$d)", 0.2),
    Rule("the vectors scaled first", "$x / sqrt(sum($x**2, $d, keepdim=True))",
         "normalize($x / amax(abs($x), $d, keepdim=True), dim=$d)", 0.2),
)
