"""Single operations kept inside their domain and their range: what a program writes, and what it
may write instead.

Each is an example: see :mod:`nanlab.fixes.example`. They bound a value where the
catalogue of expressions knows no form that keeps its signal. ``EPS``, ``EDGE``, ``LARGE``, ... are
numbers of the dtype, see :func:`numbers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from nanlab import safe
from nanlab.operators import CARDS, Card

F = "torch.nn.functional"
EYE = "torch.eye($x.shape[-1], dtype=$x.dtype, device=$x.device)"
RAMP = "torch.diag(torch.linspace(1, 2, $x.shape[-1], dtype=$x.dtype, device=$x.device))"
FILLED = "nan=0.0, posinf=0.0, neginf=0.0"


FACTS = {
    "half": "it was computed in half precision",
    "wide": "it was computed in float32 or float64",
    "complex": "it was computed with complex numbers",
    "real": "it was not",
    "infinite": "an operand holds an infinity",
    "low": "an operand holds very low numbers, as a mask may",
    "too-large": "its result is infinite, of finite operands of which none is near 0",
    "grows": "it is an exponential",
    "zero": "an operand holds a 0, or a number whose square is none",
    "negative": "an operand holds negative numbers",
    "vanishes": "what makes its operand makes a 0, or a number whose square is none",
    "falling": "no operand holds a positive number",
    "empty": "an operand holds nothing",
    "number": "it divides by a Python number",
    "tensor": "it divides by a tensor, or by nothing",
    "count": "it divides by whole numbers: how many there are",
    "measure": "it does not",
}


@dataclass(frozen=True)
class Guard:
    """An operation, and what to write instead."""

    title: str
    before: str
    after: str
    ahead: bool = False  # what is written stands before the statement, which stays
    when: str = ""  # facts that must hold of the operation, see :data:`FACTS`
    last_resort: bool = False  # worth its line only where no other is right


def each(names: str, title: str, before: str, after: str, when: str = "") -> list[Guard]:
    """The same guard for each of several names, which take the place of NAME in the texts."""
    pattern = Guard(title, before, after, when=when)
    texts = "title", "before", "after"
    return [
        replace(pattern, **{text: getattr(pattern, text).replace("NAME", name) for text in texts})
        for name in names.split()
    ]


def _of_domain(one: Card) -> list[Guard]:
    """Functions with a floor, or with two edges, by what their cards say."""
    name = one.name.removeprefix("special_")
    home = f"torch.special.{name}" if name != one.name else f"torch.{name}"
    (low, high), found = one.domain, []
    if hasattr(safe, name):
        found.append(
            Guard(
                f"nanlab.safe.{name}: finite value and gradient",
                f"{name}($x)",
                f"nanlab.safe.{name}($x)",
            )
        )
    if high < math.inf:
        lower = "EDGE" if low == 0 else f"{low:g} + EDGE"
        inside = f"{home}($x.clamp({lower}, {high:g} - EDGE), ...)"
        edge = f"{home}($x.clamp({low:g}, {high:g}), ...)"
        return [
            *found,
            Guard("clamp the argument EDGE inside its domain", f"{name}($x, ...)", inside),
            *(
                [
                    Guard(
                        "the argument drawn EDGE into its domain, which keeps the gradient's sign",
                        f"{name}($x)",
                        f"{home}((1 - EDGE) * $x)",
                        last_resort=True,
                    )
                ]
                if low == -high
                else ()
            ),
            Guard("clamp the argument to the edge itself", f"{name}($x, ...)", edge),
        ]
    floor = "EPS" if low == 0 else f"{low:g} + EDGE"
    place = "root" if "sqrt" in name else name
    if low == 0:
        found.append(
            Guard(f"an epsilon of EPS inside the {place}", f"{name}($x)", f"{home}($x + EPS)")
        )
    found.append(
        Guard(f"clamp the argument at {floor}", f"{name}($x)", f"{home}($x.clamp_min({floor}))")
    )
    if "sqrt" in name:  # whose value moves by the root of it
        title = "a smaller epsilon of TINY inside the root"
        found.append(Guard(title, f"{name}($x)", f"{home}($x + TINY)", last_resort=True))
    return found


DOMAINS = [
    guard for one in CARDS.values() if -math.inf < one.domain[0] for guard in _of_domain(one)
]

ANGLES = [
    Guard(
        "nanlab.safe.atan2: finite value and gradient", "atan2($y, $x)", "nanlab.safe.atan2($y, $x)"
    ),
    Guard(
        "an epsilon of SQUARED inside the root",
        "hypot($x, $y)",
        "torch.sqrt($x ** 2 + $y ** 2 + SQUARED)",
    ),
    Guard(
        "the angle by nanlab.safe.atan2 of both parts",
        "angle($x)",
        "nanlab.safe.atan2($x.imag, $x.real)",
    ),
]

LOGARITHMS = [
    Guard(
        "nanlab.safe.xlogy: 0 where the factor is 0, and a finite gradient",
        "$x * log($y)",
        "nanlab.safe.xlogy($x, $y)",
    ),
    Guard(
        "nanlab.safe.xlogy: 0 where the factor is 0, and a finite gradient",
        "log($y) * $x",
        "nanlab.safe.xlogy($x, $y)",
    ),
    Guard(
        "nanlab.safe.xlogy: finite value and gradient", "xlogy($x, $y)", "nanlab.safe.xlogy($x, $y)"
    ),
    Guard("clamp the argument at EPS", "xlogy($x, $y)", "torch.xlogy($x, $y.clamp_min(EPS))"),
    Guard(
        "clamp the argument at -1 + EDGE",
        "xlog1py($x, $y)",
        "torch.special.xlog1py($x, $y.clamp_min(-1 + EDGE))",
    ),
    Guard(
        "clamp the argument at EDGE", "polygamma($n, $x)", "torch.polygamma($n, $x.clamp_min(EDGE))"
    ),
]

POWERS = [
    Guard("nanlab.safe.pow: finite value and gradient", "$x ** $p", "nanlab.safe.pow($x, $p)"),
    Guard("clamp the base at EPS", "$x ** $p", "$x.clamp_min(EPS) ** $p"),
    Guard("an epsilon of EPS on the base", "$x ** $p", "($x + EPS) ** $p"),
    Guard(
        "a smaller epsilon of 1e-12 on the base",
        "$x ** $p",
        "($x + 1e-12) ** $p",
        when="wide",
        last_resort=True,
    ),
    Guard(
        "the power of the magnitude, at least EPS: an even power, or a fractional one",
        "$x ** $p",
        "$x.abs().clamp_min(EPS) ** $p",
        when="negative",
    ),
    Guard(
        "clamp the base between -ROOT and ROOT",
        "$x ** $p",
        "$x.clamp(-ROOT, ROOT) ** $p",
        when="too-large",
    ),
    Guard(
        "clamp the base between -ROOT and ROOT",
        "square($x)",
        "$x.clamp(-ROOT, ROOT).square()",
        when="too-large",
    ),
    Guard(
        "clamp the exponent at GROWTH", "$n ** $x", "$n ** $x.clamp(max=GROWTH)", when="too-large"
    ),
    *each(
        "exp exp2 expm1",
        "clamp the argument at GROWTH",
        "NAME($x)",
        "torch.NAME($x.clamp(max=GROWTH))",
        when="too-large",
    ),
    *each(
        "sinh cosh",
        "clamp the argument at GROWTH",
        "NAME($x)",
        "torch.NAME($x.clamp(-GROWTH, GROWTH))",
        when="too-large",
    ),
    *(
        Guard(
            "the largest exponent subtracted: right where what follows divides by the sum",
            "exp($x)",
            f"torch.exp($x - $x.amax({dim}, keepdim=True).detach())",
            when="too-large",
        )
        for dim in (-1, 0)
    ),
    Guard(
        "nanlab.safe.exp: finite value and gradient",
        "exp($x)",
        "nanlab.safe.exp($x)",
        when="too-large",
    ),
    Guard(
        "clamp the real part of the argument at GROWTH",
        "exp($x)",
        "torch.exp(torch.complex($x.real.clamp(max=GROWTH), $x.imag))",
        when="complex",
    ),
]

QUOTIENTS = [
    Guard(
        "times the conjugate, over the squared magnitude plus EPS",
        "$n / $y",
        "$n * $y.conj() / ($y.abs().square() + EPS)",
        when="tensor complex",
    ),
    Guard("count at least one", "$n / $y", "$n / $y.clamp_min(1)", when="tensor count"),
    Guard("count at least one", "$x / $n", "$x / max($n, 1)", when="number count"),
    *each(
        "tau temperature temp",
        "keep the temperature at 0.01",
        "$f(..., NAME=$n)",
        "$f(..., NAME=max($n, 0.01))",
        when="number measure",
    ),
    Guard(
        "no division where the divisor is 0",
        "$x / (1 - $n ** $p)",
        "$x / (1 - $n ** $p or 1.0)",
        when="number",
    ),
    Guard("divide by at least 0.01", "$x / $n", "$x / max($n, 0.01)", when="number measure"),
    Guard("nanlab.safe.div: 0 where the divisor is 0", "$n / $y", "nanlab.safe.div($n, $y)"),
    Guard(
        "nanlab.safe.reciprocal: 0 where the divisor is 0",
        "reciprocal($x)",
        "nanlab.safe.reciprocal($x)",
    ),
    Guard("clamp the divisor at EPS", "$n / $y", "$n / $y.clamp_min(EPS)", when="tensor measure"),
    Guard("clamp the divisor at -EPS", "$n / $y", "$n / $y.clamp_max(-EPS)", when="tensor falling"),
    Guard(
        "an epsilon of EPS taken from the divisor, which is negative",
        "$n / $y",
        "$n / ($y - EPS)",
        when="tensor falling",
    ),
    Guard("clamp the divisor at EPS", "reciprocal($x)", "$x.clamp_min(EPS).reciprocal()"),
    Guard("an epsilon of EPS on the divisor", "$n / $y", "$n / ($y + EPS)", when="tensor measure"),
    Guard(
        "an epsilon of EPS on the divisor, on the side of zero where it is",
        "$n / $y",
        "$n / ($y + torch.where($y >= 0, EPS, -EPS))",
        when="tensor negative",
    ),
    Guard(
        "both plus EPS: the ratio of nothing to nothing becomes 1, which has a logarithm",
        "$x / $y",
        "($x + EPS) / ($y + EPS)",
        when="tensor measure zero",
        last_resort=True,
    ),
    *(
        Guard(
            f"an epsilon of {eps} on the divisor, for all that read it",
            "$n / $x",
            f"$x = $x + {eps}",
            ahead=True,
            when="tensor measure zero",
            last_resort=True,
        )
        for eps in ("EPS", "1e-3")
    ),
    Guard(
        "clamp the divisor at EPS", "remainder($x, $y)", "torch.remainder($x, $y.clamp_min(EPS))"
    ),
    Guard(
        "an epsilon of EPS on the divisor",
        "addcdiv($x, $y, $z, ...)",
        "torch.addcdiv($x, $y, $z + EPS, ...)",
    ),
]

NORMS = [
    Guard(
        "nanlab.safe.norm: derivative 0 at norm zero", "norm($x, ...)", "nanlab.safe.norm($x, ...)"
    ),
    Guard(
        "an epsilon of SQUARED inside the root of the norm",
        "norm($x)",
        "torch.sqrt($x.square().sum() + SQUARED)",
    ),
    *(
        Guard(
            "an epsilon of SQUARED inside the root of the norm",
            f"norm($x, {given}dim=$d, ...)",
            "torch.sqrt($x.square().sum(dim=$d, ...) + SQUARED)",
        )
        for given in ("", "p=2, ")
    ),
    Guard(
        "nanlab.safe.normalize: 0 for a vector of norm zero",
        "normalize($x, ...)",
        "nanlab.safe.normalize($x, ...)",
    ),
    Guard("an eps of EDGE, which the dtype holds", "normalize($x)", f"{F}.normalize($x, eps=EDGE)"),
    Guard(
        "an eps of EDGE, which the dtype holds",
        "normalize($x, dim=$d)",
        f"{F}.normalize($x, dim=$d, eps=EDGE)",
    ),
    Guard(
        "nanlab.safe.cosine_similarity: finite value and gradient",
        "cosine_similarity($x, $y, ...)",
        "nanlab.safe.cosine_similarity($x, $y, ...)",
    ),
]

ROWS = [
    *each(
        "softmax log_softmax logsumexp logsigmoid",
        "nanlab.safe.NAME: finite value and gradient",
        "NAME($x, ...)",
        "nanlab.safe.NAME($x, ...)",
    ),
    *each(
        "softmax log_softmax logsumexp logcumsumexp",
        "mask with a finite number instead of -inf",
        "NAME($x, ...)",
        "torch.NAME($x.clamp_min(LOWEST), ...)",
    ),
    Guard(
        "mask with the dtype's lowest number, torch.finfo(dtype).min, instead of -inf",
        "masked_fill($x, $m, INFINITY)",
        "$x.masked_fill($m, torch.finfo($x.dtype).min)",
    ),
    *each(
        "softmax log_softmax",
        "mask with the dtype's lowest number, torch.finfo(dtype).min, instead of -inf",
        "NAME(masked_fill($x, $m, INFINITY), ...)",
        "torch.NAME($x.masked_fill($m, torch.finfo($x.dtype).min), ...)",
    ),
    Guard(
        "binary_cross_entropy_with_logits",
        "binary_cross_entropy(sigmoid($x), $y, ...)",
        f"{F}.binary_cross_entropy_with_logits($x, $y, ...)",
    ),
    Guard(
        "FAR instead of -inf, in both",
        "logaddexp($x, $y)",
        "torch.logaddexp($x.clamp_min(FAR), $y.clamp_min(FAR))",
    ),
    Guard(
        "leave at least one key unmasked",
        "$f(..., key_padding_mask=$m)",
        "$f(..., key_padding_mask=$m & ~$m.all(-1, keepdim=True))",
    ),
]

SPREADS = [
    guard
    for name in ("std", "var")
    for guard in (
        Guard(
            "correction=0: the deviation of one sample is 0",
            f"{name}($x)",
            f"torch.{name}($x, correction=0)",
        ),
        Guard(
            "correction=0: the deviation of one sample is 0",
            f"{name}($x, $d)",
            f"torch.{name}($x, $d, correction=0)",
        ),
        Guard(
            "correction=0: the deviation of one sample is 0",
            f"{name}($x, dim=$d, ...)",
            f"torch.{name}($x, dim=$d, ..., correction=0)",
        ),
        Guard(
            "correction=0: the deviation of one sample is 0",
            f"{name}($x, $d, keepdim=$n)",
            f"torch.{name}($x, $d, keepdim=$n, correction=0)",
        ),
        Guard(
            f"nanlab.safe.{name}: finite value and gradient",
            f"{name}($x, ...)",
            f"nanlab.safe.{name}($x, ...)",
        ),
    )
] + [
    Guard(
        "an epsilon of EPS inside the root, correction=0",
        before,
        f"torch.sqrt({after} + EPS)",
    )
    for before, after in (
        ("std($x)", "torch.var($x, correction=0)"),
        ("std($x, $d)", "torch.var($x, $d, correction=0)"),
        ("std($x, dim=$d)", "torch.var($x, dim=$d, correction=0)"),
    )
]

COUNTS = [
    Guard(
        "divide the sum by a count of at least one",
        "mean($x)",
        "$x.sum() / max($x.numel(), 1)",
        when="empty",
    ),
    Guard(
        "divide the sum by a count of at least one",
        "mean($x, $d)",
        "$x.sum($d) / max($x.shape[$d], 1)",
        when="empty",
    ),
    Guard(
        "divide the sum by a count of at least one",
        "mean($x, dim=$d)",
        "$x.sum(dim=$d) / max($x.shape[$d], 1)",
        when="empty",
    ),
    Guard(
        "count at least one",
        "nanmean($x, ...)",
        "$x.nansum(...) / (~$x.isnan()).sum(...).clamp_min(1)",
    ),
    *each(
        "cross_entropy nll_loss",
        "divide the sum by the number of counted targets, at least one",
        "NAME($x, $y, ...)",
        f'{F}.NAME($x, $y, ..., reduction="sum") / ($y != -100).sum().clamp_min(1)',
    ),
    *each(
        "cross_entropy nll_loss",
        "divide the sum by the weights of the targets, at least 1e-3",
        "NAME($x, $y, weight=$w)",
        f'{F}.NAME($x, $y, weight=$w, reduction="sum") / $w[$y].sum().clamp_min(1e-3)',
    ),
    *each(
        "cross_entropy nll_loss",
        "a finite mask of LOWEST instead of -inf: an impossible target costs that much",
        "NAME($x, $y, ...)",
        f"{F}.NAME($x.clamp_min(LOWEST), $y, ...)",
    ),
    *each(
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits",
        "divide the sum by a count of at least one",
        "NAME($x, $y)",
        f'{F}.NAME($x, $y, reduction="sum") / max($y.numel(), 1)',
        when="empty",
    ),
    Guard(
        "initial=0.0: a segment without elements counts 0",
        "segment_reduce($x, ...)",
        "torch.segment_reduce($x, ..., initial=0.0)",
    ),
    Guard(
        "0 in the place of the maximum of a segment without elements",
        "segment_reduce($x, ...)",
        'torch.segment_reduce($x, ...).nan_to_num(nan=float("nan"), neginf=0.0)',
    ),
    Guard(
        "0 in the place of the minimum of a segment without elements",
        "segment_reduce($x, ...)",
        'torch.segment_reduce($x, ...).nan_to_num(nan=float("nan"), posinf=0.0)',
    ),
    Guard(
        "zero_infinity=True: an infeasible target costs nothing",
        "ctc_loss($x, ...)",
        f"{F}.ctc_loss($x, ..., zero_infinity=True)",
    ),
    *each(
        "0 0.0", "an eps of 1e-5, as torch has by default", "$f(..., eps=NAME)", "$f(..., eps=1e-5)"
    ),
    Guard(
        "an eps of at least 1e-5, as torch has by default",
        "$f(..., eps=$e)",
        "$f(..., eps=max($e, 1e-5))",
    ),
]

_JITTERED = (
    "torch.logdet",
    "torch.linalg.slogdet",
    "torch.linalg.det",
    "torch.linalg.inv",
    "torch.linalg.solve",
    "torch.linalg.solve_ex",
    "torch.linalg.inv_ex",
    "torch.linalg.cholesky_ex",
    "torch.linalg.cholesky",
)
_SPECTRA = ("svd", "eigh", "eig", "svdvals", "eigvalsh")
MATRICES = [
    *(
        Guard(
            "add JITTER to the diagonal",
            f"{path.rsplit('.', 1)[-1]}($x, ...)",
            f"{path}($x + JITTER * {EYE}, ...)",
        )
        for path in _JITTERED
    ),
    Guard(
        "add JITTER to the diagonal",
        "qr($x, ...)",
        f"torch.linalg.qr($x + JITTER * {EYE.replace('$x.shape[-1]', '*$x.shape[-2:]')}, ...)",
    ),
    *(
        Guard(
            "split equal eigenvalues by an uneven diagonal of JITTER",
            f"{name}($x, ...)",
            f"torch.linalg.{name}($x + JITTER * {RAMP}, ...)",
        )
        for name in _SPECTRA
    ),
    *(
        Guard(
            "cut the gradient of the decomposition, where the loss does not need it",
            f"{name}($x, ...)",
            f"torch.linalg.{name}($x.detach(), ...)",
        )
        for name in _SPECTRA
    ),
    Guard(
        "add JITTER to the diagonal of the triangular factor",
        "solve_triangular($x, $y, ...)",
        f"torch.linalg.solve_triangular($x + JITTER * {EYE}, $y, ...)",
    ),
    Guard(
        "clamp the entries at GROWTH / n",
        "matrix_exp($x)",
        "torch.linalg.matrix_exp($x.clamp(-GROWTH / $x.shape[-1], GROWTH / $x.shape[-1]))",
    ),
]

INFINITIES = [
    Guard(
        "set the infinite factor to 0 where the other is 0, before they meet",
        "$x * $y",
        "$x * $y.masked_fill($x == 0, 0.0)",
        when="infinite",
    ),
    Guard(
        "set the infinite factor to 0 where the other is 0, before they meet",
        "$x * $y",
        "$x.masked_fill($y == 0, 0.0) * $y",
        when="infinite",
    ),
    Guard("a finite number of -LARGE in the place of the infinity", "$x * INFINITY", "$x * -LARGE"),
    Guard("a finite number of -LARGE in the place of the infinity", "INFINITY * $x", "$x * -LARGE"),
    Guard(
        "clamp the infinite factor at LARGE",
        "$x * $y",
        "$x * $y.clamp(-LARGE, LARGE)",
        when="infinite",
    ),
    Guard(
        "clamp the infinite factor at LARGE",
        "$x * $y",
        "$x.clamp(-LARGE, LARGE) * $y",
        when="infinite",
    ),
    Guard(
        "a finite mask of -LARGE, which can be scaled",
        "$x / $n",
        "$x.clamp_min(-LARGE) / $n",
        when="low",
    ),
    Guard(
        "a finite mask of -LARGE, which can be scaled",
        "$x * $n",
        "$x.clamp_min(-LARGE) * $n",
        when="low",
    ),
    Guard(
        "a finite mask of -LARGE instead of -inf, in both",
        "$x + $y",
        "$x.clamp(-LARGE, LARGE) + $y.clamp(-LARGE, LARGE)",
        when="infinite",
    ),
    Guard(
        "a finite mask of -LARGE instead of -inf, in both",
        "$x - $y",
        "$x.clamp(-LARGE, LARGE) - $y.clamp(-LARGE, LARGE)",
        when="infinite",
    ),
    Guard(
        "bound the sum of the masks at -LARGE", "$x + $n", "($x + $n).clamp_min(-LARGE)", when="low"
    ),
    *(
        Guard(
            "0 in the place of the infinities before the product: right where 0 meets them",
            before,
            after,
            when="infinite",
        )
        for before, after in (
            ("$x @ $y", "$x @ $y.masked_fill($y.isinf(), 0.0)"),
            ("$x @ $y", "$x.masked_fill($x.isinf(), 0.0) @ $y"),
            ("$x @ $y", "$x.masked_fill($x.isinf(), 0.0) @ $y.masked_fill($y.isinf(), 0.0)"),
            (
                "einsum($n, $x, $y, ...)",
                "torch.einsum($n, $x.masked_fill($x.isinf(), 0.0),"
                " $y.masked_fill($y.isinf(), 0.0), ...)",
            ),
            ("linear($x, $y, ...)", f"{F}.linear($x.masked_fill($x.isinf(), 0.0), $y, ...)"),
            ("$f($x, ...)", "$f($x.masked_fill($x.isinf(), 0.0), ...)"),
        )
    ),
]

_WIDENED = {
    "$x @ $y": "$x.float() @ $y.float()",
    "einsum($n, $x, $y, ...)": "torch.einsum($n, $x.float(), $y.float(), ...)",
    "$x * $y": "$x.float() * $y.float()",
    "$x * $n": "$x.float() * $n",
    "$n * $x": "$n * $x.float()",
    "$x + $y": "$x.float() + $y.float()",
    "$x - $y": "$x.float() - $y.float()",
    "$x / $y": "$x.float() / $y.float()",
    "$x / $n": "$x.float() / $n",
    "$n / $x": "$n / $x.float()",
    "$x ** $p": "$x.float() ** $p",
    "mse_loss($x, $y, ...)": f"{F}.mse_loss($x.float(), $y.float(), ...)",
    "smooth_l1_loss($x, $y, ...)": f"{F}.smooth_l1_loss($x.float(), $y.float(), ...)",
    "huber_loss($x, $y, ...)": f"{F}.huber_loss($x.float(), $y.float(), ...)",
    "half($x)": "$x.float()",
    "to($x, $d)": "$x.float()",
    "$f($x, ...)": "$f($x.float(), ...)",
    "$x.$m(...)": "$x.float().$m(...)",
}
IN_FLOAT32 = "compute this operation in float32"
COSINES = "normalise the factors: their product is a cosine, at most 1"
IN_WIDER = [
    *(
        Guard(
            "compute this operation in float32, from the epsilon on: float32 holds it",
            before,
            after,
            when="half",
        )
        for before, after in (
            ("$n / ($x + $e)", "$n / ($x.float() + $e)"),
            ("$n / clamp_min($x, $e)", "$n / $x.float().clamp_min($e)"),
            ("$n / clamp($x, min=$e)", "$n / $x.float().clamp_min($e)"),
            ("sqrt($x + $e)", "torch.sqrt($x.float() + $e)"),
            ("log($x + $e)", "torch.log($x.float() + $e)"),
            ("log(clamp_min($x, $e))", "torch.log($x.float().clamp_min($e))"),
            ("log(clamp($x, min=$e))", "torch.log($x.float().clamp(min=$e))"),
            ("rsqrt($x + $e)", "torch.rsqrt($x.float() + $e)"),
        )
    ),
    *(Guard(IN_FLOAT32, before, after, when="half") for before, after in _WIDENED.items()),
]
RANGE = [
    Guard(
        COSINES, "$x @ $y", f"{F}.normalize($x, dim=-1) @ {F}.normalize($y, dim=-2)", when="half"
    ),
    Guard(
        "the mean in the place of the sum and its division by the count: summed in float32",
        "sum($x, ...) / $n",
        "$x.mean(...)",
        when="half",
    ),
    Guard(
        "the mean instead of the sum: smaller by the count, summed in float32",
        "sum($x, ...)",
        "$x.mean(...)",
        when="half",
    ),
    Guard(
        "clamp at TOP before the cast, within what the dtype holds",
        "half($x)",
        "$x.clamp(-TOP, TOP).half()",
    ),
    Guard(
        "clamp at TOP before the cast, within what the dtype holds",
        "to($x, $d)",
        "$x.clamp(-TOP, TOP).to($d)",
    ),
    *(
        Guard(
            "clamp both factors at PAIR: their product fits; see why they grow",
            before,
            after,
            when="wide too-large",
        )
        for before, after in (
            ("$x * $y", "$x.clamp(-PAIR, PAIR) * $y.clamp(-PAIR, PAIR)"),
            ("$x @ $y", "$x.clamp(-PAIR, PAIR) @ $y.clamp(-PAIR, PAIR)"),
            (
                "mse_loss($x, $y, ...)",
                f"{F}.mse_loss($x.clamp(-PAIR, PAIR), $y.clamp(-PAIR, PAIR), ...)",
            ),
        )
    ),
    *each(
        "prod cumprod",
        "clamp the factors at FACTOR, or add up their logarithms",
        "NAME($x, ...)",
        "torch.NAME($x.clamp(-FACTOR, FACTOR), ...)",
        when="wide",
    ),
]
MEMORY = [
    Guard("allocate zeros", "empty(...)", "torch.zeros(...)"),
    Guard("allocate zeros", "empty_like($x, ...)", "torch.zeros_like($x, ...)"),
    Guard("allocate zeros", "new_empty($x, ...)", "$x.new_zeros(...)"),
]

DISTRIBUTIONS = [
    Guard(
        "keep the value EDGE inside the support",
        "log_prob($n, $x)",
        "$n.log_prob($x.clamp_min(EDGE))",
    ),
    Guard(
        "keep the value EDGE inside the support",
        "log_prob($n, $x)",
        "$n.log_prob($x.clamp(EDGE, 1 - EDGE))",
    ),
    Guard(
        "keep the value EDGE inside the support",
        "log_prob($n, $x)",
        "$n.log_prob($x.clamp(-1 + EDGE, 1 - EDGE))",
    ),
    Guard(
        "keep the probability EDGE away from 0 and 1",
        "icdf($n, $x)",
        "$n.icdf($x.clamp(EDGE, 1 - EDGE))",
    ),
]

# where a program makes a number that vanishes, is divided by or is exponentiated further on
MAKERS = [
    Guard(
        "at least 1e-3 where softplus makes it",
        "softplus($x, ...)",
        f"{F}.softplus($x, ...) + 1e-3",
        when="vanishes",
    ),
    *each(
        "exp sigmoid relu square abs",
        "at least 1e-3 where NAME makes it",
        "NAME($x)",
        "$x.NAME() + 1e-3",
        when="vanishes zero",
    ),
    *(
        Guard(
            "clamp the exponent where it is made, for all that read it",
            made if made[0] == "$" else made[1:-1],
            f"{made}.clamp({bounds})",
            when="grows too-large",
        )
        for bounds in ("max=GROWTH", "-FALL, GROWTH")
        for made in ("$f($x, ...)", *(f"($x {sign} $y)" for sign in "+-*/@"))
    ),
    Guard(
        "mask with the dtype's lowest number, torch.finfo(dtype).min, instead of -inf",
        "masked_fill($x, $m, INFINITY)",
        "$x.masked_fill($m, torch.finfo($x.dtype).min)",
    ),
    Guard(
        "the softmax in float32",
        "softmax($x, $d, dtype=$t)",
        "torch.softmax($x, $d, dtype=torch.float32)",
        when="half",
    ),
    *each(
        "softmax sigmoid",
        "the NAME in float32",
        "NAME($x, ...)",
        "torch.NAME($x.float(), ...)",
        when="half",
    ),
    Guard(
        "an epsilon of EPS under the root that makes the 0",
        "sqrt($x)",
        "torch.sqrt($x + EPS)",
        when="vanishes",
    ),
]

# data that is bad before the program computes with it
GAPS = [
    Guard(
        "0 in the place of what is missing, or a better guess, where the data is loaded",
        "$f($x, ...)",
        f"$x = torch.nan_to_num($x, {FILLED})",
        ahead=True,
    ),
    Guard(
        "0 in the place of what is missing, or a better guess, where the data is loaded",
        "$f($x, ...)",
        f"$f(torch.nan_to_num($x, {FILLED}), ...)",
    ),
    Guard(
        "an error of 0 where the target is missing",
        "$x - $y",
        f"torch.nan_to_num($x - $y, {FILLED})",
    ),
    *each(
        "mse_loss l1_loss smooth_l1_loss huber_loss",
        "the loss of those whose target is there",
        "NAME($x, $y, ...)",
        f"{F}.NAME($x[torch.isfinite($y)], $y[torch.isfinite($y)], ...)",
    ),
]

GUARDS = (
    *MEMORY,
    *IN_WIDER,
    *DOMAINS,
    *ANGLES,
    *LOGARITHMS,
    *POWERS,
    *NORMS,
    *QUOTIENTS,
    *ROWS,
    *SPREADS,
    *COUNTS,
    *MATRICES,
    *INFINITIES,
    *DISTRIBUTIONS,
    *RANGE,
)


def numbers(dtype: torch.dtype, least: float | None = None, terms: int = 1) -> dict[str, str]:
    """What the numbers in the examples are for a dtype.

    least: magnitude of the smallest healthy operand, below which an epsilon stays. terms: how many
    elements each element of the result is made of.
    """
    info = torch.finfo(dtype)
    default = {2: 1e-3, 8: 1e-12}.get(dtype.itemsize, 1e-6)
    default = 1e-5 if dtype == torch.bfloat16 else default
    eps = squared = default
    if least:  # so that it moves a healthy value by no more than a thousandth
        low = {2: 1e-4, 8: 1e-24}.get(dtype.itemsize, 1e-12)
        low = 1e-12 if dtype == torch.bfloat16 else low
        eps = max(low, min(default, 10.0 ** math.floor(math.log10(least) - 3)))
        squared = max(low**2, min(default, 10.0 ** math.floor(2 * math.log10(least) - 3)))
    growth = math.log(info.max)
    top = info.max / (8 if dtype == torch.float16 else 64)
    found = {
        "EPS": eps,
        "TINY": max(eps / 1000, info.tiny),
        "SQUARED": squared,
        "EDGE": 1e-2 if dtype == torch.bfloat16 else default,
        "JITTER": default,
        "GROWTH": float(math.floor(min(20.0, growth / 2))),
        "FALL": float(math.floor(min(30.0, growth / 2))),
        "ROOT": 10.0 ** math.floor(math.log10(top) / 3),
        "PAIR": 10.0 ** math.floor(math.log10(math.sqrt(top / 4))),
        "FACTOR": float(f"{top ** (1 / max(terms, 1)) / 2:.2g}"),
        "LARGE": 1e4 if top > 1e4 else 1e3,
        "TOP": float(f"{min(top, 1e4):.0e}"),
    }
    shown = {name: number(value) for name, value in found.items()}
    return {**shown, "LOWEST": f"-{shown['LARGE']}", "FAR": "-1e30" if top > 1e30 else "-1e3"}


def number(value: float) -> str:
    """A number as one types it: ``1e-6``."""
    text = f"{value:.0e}" if value < 1e-2 else f"{value:.6g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
