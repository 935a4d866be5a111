"""Single operations kept inside their domain and their range: what a program writes, and what it
may write instead.

Each is an example: see :mod:`nanlab.fixes.example`. They bound a value where the
catalogue of expressions knows no form that keeps its signal. ``EPS``, ``EDGE``, ``LARGE``, ... are
numbers of the dtype, see :func:`numbers`. In the tables a title stands above what becomes what;
behind it, in brackets, what must hold of the operation (:data:`FACTS`), ``ahead`` and
``last-resort``. Names before a colon take the place of NAME; ``$call`` is what the program calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from nanlab import safe
from nanlab.operators import CARDS, Card, having

IN_FLOAT32 = "compute this operation in float32"
FILLED = "nan=0.0, posinf=0.0, neginf=0.0"
TEXTS = {  # of the tables, beside the numbers
    "F": "torch.nn.functional",
    "EYE": "torch.eye($x.shape[-1], dtype=$x.dtype, device=$x.device)",
    "OBLONG": "torch.eye(*$x.shape[-2:], dtype=$x.dtype, device=$x.device)",
    "RAMP": "torch.diag(torch.linspace(-1, 1, $x.shape[-1], dtype=$x.dtype, device=$x.device))",
    "FILLED": FILLED,
}
FACTS = {
    "half": "it was computed in half precision",
    "wide": "it was computed in float32 or float64",
    "single": "it was computed in float32",
    "complex": "it was computed with complex numbers",
    "real": "it was not",
    "infinite": "an operand holds an infinity",
    "low": "an operand holds very low numbers, as a mask may",
    "too-large": "its result is infinite, and its operands are finite and not near 0",
    "undefined": "its result holds a NaN",
    "grows": "it is an exponential",
    "pole": "it is no positive power that was too large",
    "zero": "an operand holds a 0, or a number whose square is none",
    "negative": "an operand holds negative numbers",
    "vanishes": "what makes its operand makes a 0, or a number whose square is none",
    "weighed": "no operand holds negative numbers, or zeros and ones alone multiply its result",
    "falling": "no operand holds a positive number",
    "empty": "an operand holds nothing",
    "number": "it divides by a Python number",
    "tensor": "it divides by a tensor, or by nothing",
    "count": "it divides by whole numbers: how many there are",
    "measure": "it does not",
    "share": "it is computed from values between 0 and 1, one of the two among them",
    "range": "it is not",
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


_TITLE = re.compile(r"(.+?)(?: \[(.+)\])?")
_ROW = re.compile(r"    (?:([\w ]+): )?(.+) -> (.+)")


def _read(table: str) -> Iterator[Guard]:
    """The guards of a table."""
    title, marks = "", set[str]()
    for line in table.strip().replace("\n        ->", " ->").replace("\n[", " [").splitlines():
        if line[0] != " ":
            head = _TITLE.fullmatch(line)
            assert head is not None
            title, marks = head[1], set((head[2] or "").split())
            continue
        row = _ROW.fullmatch(line)
        assert row is not None, line
        after = re.sub(rf"\b({'|'.join(TEXTS)})\b", lambda named: TEXTS[named[0]], row[3])
        when = " ".join(fact for fact in FACTS if fact in marks)
        for name in (row[1] or "NAME").split():
            told, before, now = (t.replace("NAME", name) for t in (title, row[2], after))
            yield Guard(told, before, now, "ahead" in marks, when, "last-resort" in marks)


def _of_domain(one: Card) -> Iterator[Guard]:
    """Functions with a floor, or with two edges, by what their cards say."""
    name, (low, high) = one.name.removeprefix("special_"), one.domain
    home = f"torch.special.{name}" if name != one.name else f"torch.{name}"
    plain, whole = f"{name}($x)", f"{name}($x, ...)"
    if hasattr(safe, name):
        yield Guard(f"nanlab.safe.{name}: finite value and gradient", plain, f"nanlab.safe.{plain}")
    if high < math.inf:
        inside = f"{'EDGE' if low == 0 else f'{low:g} + EDGE'}, {high:g} - EDGE"
        title = "clamp the argument EDGE inside its domain"
        yield Guard(title, whole, f"{home}($x.clamp({inside}), ...)")
        if low == -high:
            title = "the argument drawn EDGE into its domain, which keeps the gradient's sign"
            yield Guard(title, plain, f"{home}((1 - EDGE) * $x)", last_resort=True)
            title = "the same by one rounding of its dtype"  # the value moves by the root of it
            just = "(1 - torch.finfo($x.dtype).eps) * $x"
            yield Guard(title, plain, f"{home}({just})", last_resort=True)
        title = "clamp the argument to the edge itself"
        yield Guard(title, whole, f"{home}($x.clamp({low:g}, {high:g}), ...)")
        yield _clamped_straight_through(plain, home, f"clamp({inside})")
        return
    small = "EPS" if low == 0 else "EDGE"
    place = "root" if "sqrt" in name else name
    yield Guard(f"an epsilon of {small} inside the {place}", plain, f"{home}($x + {small})")
    floor = "EPS" if low == 0 else f"{low:g} + EDGE"
    yield Guard(f"clamp the argument at {floor}", plain, f"{home}($x.clamp_min({floor}))")
    if "sqrt" in name:  # whose value moves by the root of it
        title = "an epsilon of TINY inside the root"
        yield Guard(title, plain, f"{home}($x + TINY)", last_resort=True)
    elif name == "log":  # which stays finite with the smallest one
        title = "the smallest normal number as an epsilon inside the log"
        yield Guard(title, plain, f"{home}($x + torch.finfo($x.dtype).tiny)", last_resort=True)
    yield _clamped_straight_through(plain, home, f"clamp_min({floor})")


def _clamped_straight_through(plain: str, home: str, clamp: str) -> Guard:
    """A clamp that stops no gradient, for a derivative that is finite together with what follows,
    as of acosh(x) ** 2."""
    title = "clamp the argument EDGE inside its domain, and pass the gradient straight through"
    return Guard(title, plain, f"{home}($x + ($x.{clamp} - $x).detach())", last_resort=True)


DOMAINS = [
    guard for one in CARDS.values() if -math.inf < one.domain[0] for guard in _of_domain(one)
]

_FIRST = """
pass the gradient straight through, with the derivative of the identity
    round floor ceil trunc sign: NAME($x) -> $x + (torch.NAME($x) - $x).detach()
allocate zeros
    empty(...) -> torch.zeros(...)
    empty_like($x, ...) -> torch.zeros_like($x, ...)
    new_empty($x, ...) -> $x.new_zeros(...)
convert it after it is scaled [half]
    to($x, $d) / $n -> ($x / $n).to($d)
    to($x, $d) * $n -> ($x * $n).to($d)
    $n * to($x, $d) -> ($n * $x).to($d)
    half($x) / $n -> ($x / $n).half()
    half($x) * $n -> ($x * $n).half()
    $n * half($x) -> ($n * $x).half()
compute this operation in float32, from the epsilon on: float32 holds it [half]
    $n / ($x + $e) -> $n / ($x.float() + $e)
    $n / clamp_min($x, $e) -> $n / $x.float().clamp_min($e)
    $n / clamp($x, min=$e) -> $n / $x.float().clamp_min($e)
    sqrt log: NAME($x + $e) -> torch.NAME($x.float() + $e)
    log(clamp_min($x, $e)) -> torch.log($x.float().clamp_min($e))
    log(clamp($x, min=$e)) -> torch.log($x.float().clamp(min=$e))
    rsqrt($x + $e) -> torch.rsqrt($x.float() + $e)
add up the squares in float32 [half]
    $n + sum($x ** 2, ...) -> $n + $x.float().pow(2).sum(...)
    $n + sum(square($x), ...) -> $n + $x.float().square().sum(...)
    $n + sum($x * $x, ...) -> $n + $x.float().square().sum(...)
    $n + norm($x, ...) ** 2 -> $n + $x.float().norm(...) ** 2
    sum($x ** 2, ...) -> $x.float().pow(2).sum(...)
    sum($x * $x, ...) -> $x.float().square().sum(...)
add up in float32 [half]
    $n + $x -> $n + $x.float()
compute this operation in float32 [half]
    $x @ $y -> $x.float() @ $y.float()
    einsum($n, $x, $y, ...) -> torch.einsum($n, $x.float(), $y.float(), ...)
    $x * $y -> $x.float() * $y.float()
    $x * $n -> $x.float() * $n
    $n * $x -> $n * $x.float()
    $x + $y -> $x.float() + $y.float()
    $x - $y -> $x.float() - $y.float()
    $x / $y -> $x.float() / $y.float()
    $x / $n -> $x.float() / $n
    $n / $x -> $n / $x.float()
    $x ** $p -> $x.float() ** $p
    mse_loss smooth_l1_loss huber_loss: NAME($x, $y, ...) -> F.NAME($x.float(), $y.float(), ...)
    half($x) -> $x.float()
    to($x, $d) -> $x.float()
    $f($x, ...) -> $f($x.float(), ...)
    $x.$m(...) -> $x.float().$m(...)
"""

_THEN = """
nanlab.safe.atan2: finite value and gradient
    atan2($y, $x) -> nanlab.safe.atan2($y, $x)
the norm of both, whose derivative at 0 is 0
    hypot($x, $y) -> torch.linalg.vector_norm(torch.stack([$x, $y]), dim=0)
an epsilon of SQUARED inside the root
    hypot($x, $y) -> torch.sqrt($x ** 2 + $y ** 2 + SQUARED)
the angle by nanlab.safe.atan2 of both parts
    angle($x) -> nanlab.safe.atan2($x.imag, $x.real)
nanlab.safe.xlogy: 0 where the factor is 0, and a finite gradient [weighed]
    $x * log($y) -> nanlab.safe.xlogy($x, $y)
    log($y) * $x -> nanlab.safe.xlogy($x, $y)
nanlab.safe.xlogy: finite value and gradient
    xlogy($x, $y) -> nanlab.safe.xlogy($x, $y)
clamp the argument at EPS
    xlogy($x, $y) -> torch.xlogy($x, $y.clamp_min(EPS))
clamp the argument at -1 + EDGE
    xlog1py($x, $y) -> torch.special.xlog1py($x, $y.clamp_min(-1 + EDGE))
clamp the argument at EDGE
    polygamma($n, $x) -> torch.polygamma($n, $x.clamp_min(EDGE))
nanlab.safe.pow: finite value and gradient
    $x ** $p -> nanlab.safe.pow($x, $p)
clamp what the mean is of at EPS [pole]
    mean($x ** $n, ...) ** $p -> ($x.clamp_min(EPS) ** $n).mean(...) ** $p
clamp the base at EPS [pole]
    $x ** $p -> $x.clamp_min(EPS) ** $p
an epsilon of EPS on the base [pole]
    $x ** $p -> ($x + EPS) ** $p
an epsilon of 1e-12 on the base [wide pole last-resort]
    $x ** $p -> ($x + 1e-12) ** $p
the power of the magnitude, at least EPS: an even power, or a fractional one [negative pole]
    $x ** $p -> $x.abs().clamp_min(EPS) ** $p
clamp the base between -ROOT and ROOT [too-large]
    $x ** $p -> $x.clamp(-ROOT, ROOT) ** $p
    square($x) -> $x.clamp(-ROOT, ROOT).square()
clamp the exponent at GROWTH [too-large]
    $n ** $x -> $n ** $x.clamp(max=GROWTH)
clamp the argument at GROWTH [too-large]
    exp exp2 expm1: NAME($x) -> torch.NAME($x.clamp(max=GROWTH))
    sinh cosh: NAME($x) -> torch.NAME($x.clamp(-GROWTH, GROWTH))
subtract the largest exponent, for a result that is divided by its sum [too-large last-resort]
    exp($x) -> torch.exp($x - $x.amax(-1, keepdim=True).detach())
    exp($x) -> torch.exp($x - $x.amax(0, keepdim=True).detach())
    exp($x) -> torch.exp($x - $x.max().detach())
nanlab.safe.exp: finite value and gradient [too-large]
    exp($x) -> nanlab.safe.exp($x)
clamp the real part of the argument at GROWTH [complex]
    exp($x) -> torch.exp(torch.complex($x.real.clamp(max=GROWTH), $x.imag))
nanlab.safe.norm: derivative 0 at norm zero
    norm($x, ...) -> nanlab.safe.norm($x, ...)
an epsilon of SQUARED inside the root of the norm
    norm($x) -> torch.sqrt($x.square().sum() + SQUARED)
    norm($x, dim=$d, ...) -> torch.sqrt($x.square().sum(dim=$d, ...) + SQUARED)
    norm($x, p=2, dim=$d, ...) -> torch.sqrt($x.square().sum(dim=$d, ...) + SQUARED)
nanlab.safe.normalize: 0 for a vector of norm zero
    normalize($x, ...) -> nanlab.safe.normalize($x, ...)
an eps of EDGE, which the dtype holds
    normalize($x) -> F.normalize($x, eps=EDGE)
    normalize($x, dim=$d) -> F.normalize($x, dim=$d, eps=EDGE)
nanlab.safe.cosine_similarity: finite value and gradient
    cosine_similarity($x, $y, ...) -> nanlab.safe.cosine_similarity($x, $y, ...)
times the conjugate, over the squared magnitude plus EPS [tensor complex]
    $n / $y -> $n * $y.conj() / ($y.abs().square() + EPS)
count at least one [tensor count]
    $n / $y -> $n / $y.clamp_min(1)
count at least one [number count]
    $x / $n -> $x / max($n, 1)
keep the temperature at 0.01 [number measure]
    $f(..., tau=$n) -> $f(..., tau=max($n, 0.01))
    $f(..., temperature=$n) -> $f(..., temperature=max($n, 0.01))
    $f(..., temp=$n) -> $f(..., temp=max($n, 0.01))
no division where the divisor is 0 [number]
    $x / (1 - $n ** $p) -> $x / (1 - $n ** $p or 1.0)
divide by at least 0.01 [number measure]
    $x / $n -> $x / max($n, 0.01)
nanlab.safe.div: 0 where the divisor is 0
    $n / $y -> nanlab.safe.div($n, $y)
nanlab.safe.reciprocal: 0 where the divisor is 0
    reciprocal($x) -> nanlab.safe.reciprocal($x)
clamp the divisor at EPS [tensor measure]
    $n / $y -> $n / $y.clamp_min(EPS)
clamp the divisor at -EPS [tensor falling]
    $n / $y -> $n / $y.clamp_max(-EPS)
an epsilon of EPS taken from the divisor, which is negative [tensor falling]
    $n / $y -> $n / ($y - EPS)
clamp the divisor at EPS
    reciprocal($x) -> $x.clamp_min(EPS).reciprocal()
an epsilon of EPS on the divisor [tensor measure]
    $n / $y -> $n / ($y + EPS)
an epsilon of EPS on the divisor, on the side of zero where it is [tensor negative]
    $n / $y -> $n / ($y + torch.where($y >= 0, EPS, -EPS))
add EPS to both: 0 / 0 becomes 1
[tensor measure zero last-resort]
    $x / $y -> ($x + EPS) / ($y + EPS)
an epsilon of EPS on the divisor, for all that read it [tensor measure zero ahead last-resort]
    $n / $x -> $x = $x + EPS
an epsilon of 1e-3 on the divisor, for all that read it [tensor measure zero ahead last-resort]
    $n / $x -> $x = $x + 1e-3
clamp the divisor at EPS
    remainder($x, $y) -> torch.remainder($x, $y.clamp_min(EPS))
an epsilon of EPS on the divisor
    addcdiv($x, $y, $z, ...) -> torch.addcdiv($x, $y, $z + EPS, ...)
nanlab.safe.NAME: finite value and gradient
    softmax log_softmax logsumexp logsigmoid: NAME($x, ...) -> nanlab.safe.NAME($x, ...)
mask with a finite number instead of -inf [infinite]
    softmax log_softmax logsumexp logcumsumexp: NAME($x, ...)
        -> torch.NAME($x.clamp_min(LOWEST), ...)
mask with the dtype's lowest number, torch.finfo(dtype).min, instead of -inf
    masked_fill($x, $m, INFINITY) -> $x.masked_fill($m, torch.finfo($x.dtype).min)
    softmax log_softmax: NAME(masked_fill($x, $m, INFINITY), ...)
        -> torch.NAME($x.masked_fill($m, torch.finfo($x.dtype).min), ...)
binary_cross_entropy_with_logits
    binary_cross_entropy(sigmoid($x), $y, ...) -> F.binary_cross_entropy_with_logits($x, $y, ...)
write FAR instead of -inf, in both [infinite]
    logaddexp($x, $y) -> torch.logaddexp($x.clamp_min(FAR), $y.clamp_min(FAR))
leave at least one key unmasked
    $f(..., key_padding_mask=$m) -> $f(..., key_padding_mask=$m & ~$m.all(-1, keepdim=True))
correction=0: the deviation of one sample is 0
    std($x) -> torch.std($x, correction=0)
    std($x, $d) -> torch.std($x, $d, correction=0)
    std($x, dim=$d, ...) -> torch.std($x, dim=$d, ..., correction=0)
    std($x, $d, keepdim=$n) -> torch.std($x, $d, keepdim=$n, correction=0)
    std($x, unbiased=$n) -> torch.std($x, correction=0)
    std($x, $d, unbiased=$n, ...) -> torch.std($x, $d, correction=0, ...)
    std($x, dim=$d, unbiased=$n, ...) -> torch.std($x, dim=$d, correction=0, ...)
    std($x, $d, correction=1, ...) -> torch.std($x, $d, correction=0, ...)
    std($x, dim=$d, correction=1, ...) -> torch.std($x, dim=$d, correction=0, ...)
nanlab.safe.std: finite value and gradient
    std($x, ...) -> nanlab.safe.std($x, ...)
correction=0: the deviation of one sample is 0
    var($x) -> torch.var($x, correction=0)
    var($x, $d) -> torch.var($x, $d, correction=0)
    var($x, dim=$d, ...) -> torch.var($x, dim=$d, ..., correction=0)
    var($x, $d, keepdim=$n) -> torch.var($x, $d, keepdim=$n, correction=0)
    var($x, unbiased=$n) -> torch.var($x, correction=0)
    var($x, $d, unbiased=$n, ...) -> torch.var($x, $d, correction=0, ...)
    var($x, dim=$d, unbiased=$n, ...) -> torch.var($x, dim=$d, correction=0, ...)
    var($x, $d, correction=1, ...) -> torch.var($x, $d, correction=0, ...)
    var($x, dim=$d, correction=1, ...) -> torch.var($x, dim=$d, correction=0, ...)
nanlab.safe.var: finite value and gradient
    var($x, ...) -> nanlab.safe.var($x, ...)
an epsilon of EPS inside the root, correction=0
    std($x) -> torch.sqrt(torch.var($x, correction=0) + EPS)
    std($x, $d) -> torch.sqrt(torch.var($x, $d, correction=0) + EPS)
    std($x, dim=$d) -> torch.sqrt(torch.var($x, dim=$d, correction=0) + EPS)
divide the sum by a count of at least one [empty]
    mean($x) -> $x.sum() / max($x.numel(), 1)
    mean($x, $d) -> $x.sum($d) / max($x.shape[$d], 1)
    mean($x, dim=$d) -> $x.sum(dim=$d) / max($x.shape[$d], 1)
count at least one
    nanmean($x, ...) -> $x.nansum(...) / (~$x.isnan()).sum(...).clamp_min(1)
divide the sum by the number of counted targets, at least one [undefined]
    cross_entropy nll_loss: NAME($x, $y, ...)
        -> F.NAME($x, $y, ..., reduction="sum") / ($y != -100).sum().clamp_min(1)
divide the sum by the weights of the targets, at least 1e-3 [undefined]
    cross_entropy nll_loss: NAME($x, $y, weight=$w)
        -> F.NAME($x, $y, weight=$w, reduction="sum") / $w[$y].sum().clamp_min(1e-3)
a finite mask of LOWEST instead of -inf: an impossible target costs that much [infinite]
    cross_entropy nll_loss: NAME($x, $y, ...) -> F.NAME($x.clamp_min(LOWEST), $y, ...)
divide the sum by a count of at least one [empty]
    mse_loss smooth_l1_loss huber_loss: NAME($x, $y)
        -> F.NAME($x, $y, reduction="sum") / max($y.numel(), 1)
    binary_cross_entropy binary_cross_entropy_with_logits: NAME($x, $y)
        -> F.NAME($x, $y, reduction="sum") / max($y.numel(), 1)
initial=0.0: a segment without elements counts 0
    segment_reduce($x, ...) -> torch.segment_reduce($x, ..., initial=0.0)
use 0 as the maximum of a segment without elements
    segment_reduce($x, ...)
        -> torch.segment_reduce($x, ...).nan_to_num(nan=float("nan"), neginf=0.0)
use 0 as the minimum of a segment without elements
    segment_reduce($x, ...)
        -> torch.segment_reduce($x, ...).nan_to_num(nan=float("nan"), posinf=0.0)
zero_infinity=True: an infeasible target costs nothing
    ctc_loss($x, ...) -> F.ctc_loss($x, ..., zero_infinity=True)
an eps of 1e-5, as torch has by default
    $f(..., eps=0) -> $f(..., eps=1e-5)
    $f(..., eps=0.0) -> $f(..., eps=1e-5)
an eps of at least 1e-5, as torch has by default
    $f(..., eps=$e) -> $f(..., eps=max($e, 1e-5))
add JITTER to the diagonal
    logdet($x, ...) -> torch.logdet($x + JITTER * EYE, ...)
    slogdet det inv solve solve_ex inv_ex cholesky_ex cholesky: NAME($x, ...)
        -> torch.linalg.NAME($x + JITTER * EYE, ...)
    qr($x, ...) -> torch.linalg.qr($x + JITTER * OBLONG, ...)
nanlab.safe.NAME: equal values are moved apart
    svd eigh: NAME($x, ...) -> nanlab.safe.NAME($x, ...)
split equal eigenvalues by an uneven diagonal of up to SPLIT
    svd eigh eig svdvals eigvalsh: NAME($x, ...) -> torch.linalg.NAME($x + SPLIT * RAMP, ...)
cut the gradient of the decomposition, where the loss does not need it [last-resort]
    svd eigh eig svdvals eigvalsh: NAME($x, ...) -> torch.linalg.NAME($x.detach(), ...)
add JITTER to the diagonal of the triangular factor
    solve_triangular($x, $y, ...) -> torch.linalg.solve_triangular($x + JITTER * EYE, $y, ...)
clamp the entries at GROWTH / n
    matrix_exp($x)
        -> torch.linalg.matrix_exp($x.clamp(-GROWTH / $x.shape[-1], GROWTH / $x.shape[-1]))
set the infinite factor to 0 where the other is 0, before they meet [infinite]
    $x * $y -> $x * $y.masked_fill($x == 0, 0.0)
    $x * $y -> $x.masked_fill($y == 0, 0.0) * $y
write -LARGE in place of the infinity
    $x * INFINITY -> $x * -LARGE
    INFINITY * $x -> $x * -LARGE
LOWEST as the mask's constant: half precision holds it, with room for the scores [half]
    $x * LOW -> $x * LOWEST
    LOW * $x -> LOWEST * $x
    $n - $x * HIGH -> $n - $x * LARGE
    $n - HIGH * $x -> $n - LARGE * $x
    where($m, $x, LOW) -> torch.where($m, $x, LOWEST)
    where($m, LOW, $x) -> torch.where($m, LOWEST, $x)
clamp the infinite factor at LARGE [infinite]
    $x * $y -> $x * $y.clamp(-LARGE, LARGE)
    $x * $y -> $x.clamp(-LARGE, LARGE) * $y
keep it at -LARGE or more, enough for a mask [low]
    $x / $n -> $x.clamp_min(-LARGE) / $n
    $x * $n -> $x.clamp_min(-LARGE) * $n
a finite mask of -LARGE instead of -inf, in both [infinite]
    $x + $y -> $x.clamp(-LARGE, LARGE) + $y.clamp(-LARGE, LARGE)
    $x - $y -> $x.clamp(-LARGE, LARGE) - $y.clamp(-LARGE, LARGE)
bound the sum of the masks at -LARGE [low]
    $x + $n -> ($x + $n).clamp_min(-LARGE)
replace the infinities by 0 before the product: right where a 0 meets them [infinite]
    $x @ $y -> $x @ $y.masked_fill($y.isinf(), 0.0)
    $x @ $y -> $x.masked_fill($x.isinf(), 0.0) @ $y
    $x @ $y -> $x.masked_fill($x.isinf(), 0.0) @ $y.masked_fill($y.isinf(), 0.0)
    einsum($n, $x, $y, ...)
        -> torch.einsum($n, $x.masked_fill($x.isinf(), 0.0), $y.masked_fill($y.isinf(), 0.0), ...)
    linear($x, $y, ...) -> F.linear($x.masked_fill($x.isinf(), 0.0), $y, ...)
    $f($x, ...) -> $f($x.masked_fill($x.isinf(), 0.0), ...)
keep the value EDGE inside the support [range]
    log_prob($n, $x) -> $n.log_prob($x.clamp_min(EDGE))
    log_prob($n, $x) -> $n.log_prob($x.clamp(-1 + EDGE, 1 - EDGE))
keep the value EDGE inside the support [share]
    log_prob($n, $x) -> $n.log_prob($x.clamp(EDGE, 1 - EDGE))
keep the probability EDGE away from 0 and 1
    icdf($n, $x) -> $n.icdf($x.clamp(EDGE, 1 - EDGE))
normalise the factors: their product is a cosine, at most 1 [half]
    $x @ $y -> F.normalize($x, dim=-1) @ F.normalize($y, dim=-2)
    $x @ $y / $n -> F.normalize($x, dim=-1) @ F.normalize($y, dim=-2) / $n
    $x @ $y * $n -> F.normalize($x, dim=-1) @ F.normalize($y, dim=-2) * $n
take the mean instead of the sum divided by the count: it is summed in float32 [half]
    sum($x, ...) / $n -> $x.mean(...)
the mean instead of the sum: smaller by the count, summed in float32 [half]
    sum($x, ...) -> $x.mean(...)
clamp at TOP before the cast, within what the dtype holds
    half($x) -> $x.clamp(-TOP, TOP).half()
    to($x, $d) -> $x.clamp(-TOP, TOP).to($d)
clamp both factors at PAIR: their product fits; see why they grow [wide too-large]
    $x * $y -> $x.clamp(-PAIR, PAIR) * $y.clamp(-PAIR, PAIR)
    $x @ $y -> $x.clamp(-PAIR, PAIR) @ $y.clamp(-PAIR, PAIR)
    mse_loss($x, $y, ...) -> F.mse_loss($x.clamp(-PAIR, PAIR), $y.clamp(-PAIR, PAIR), ...)
clamp the factors at FACTOR, or add up their logarithms [wide]
    prod cumprod: NAME($x, ...) -> torch.NAME($x.clamp(-FACTOR, FACTOR), ...)
compute this operation in float64, whose range holds it [single too-large last-resort]
    exp exp2 expm1 sinh cosh prod cumprod: NAME($x, ...) -> torch.NAME($x.double(), ...)
"""

GUARDS = (*_read(_FIRST), *DOMAINS, *_read(_THEN))

# where a program makes a number that vanishes, is divided by or is exponentiated further on
MAKERS = [
    *_read("""
compute the NAME in float64, where it does not vanish [single vanishes last-resort]
    exp sigmoid softmax tanh erf erfc: NAME($x, ...) -> torch.NAME($x.double(), ...)
keep it at 1e-3 or more where softplus makes it [vanishes]
    softplus($x, ...) -> F.softplus($x, ...) + 1e-3
keep it at 1e-3 or more where NAME makes it [vanishes zero]
    exp sigmoid relu square abs: NAME($x) -> $x.NAME() + 1e-3
    exp sigmoid relu square abs: NAME($x) -> $x.NAME().clamp_min(1e-3)
keep it at 1e-3 or more where it is clamped at 0 [vanishes zero]
    clamp($x, min=0) -> $x.clamp(min=1e-3)
    clamp_min($x, 0) -> $x.clamp_min(1e-3)
    clamp($x, 0) -> $x.clamp(1e-3)
clamp the exponent at its source, for all its readers [grows too-large]
    $f($x, ...) -> $f($x, ...).clamp(max=GROWTH)
    $x + $y -> ($x + $y).clamp(max=GROWTH)
    $x - $y -> ($x - $y).clamp(max=GROWTH)
    $x * $y -> ($x * $y).clamp(max=GROWTH)
    $x / $y -> ($x / $y).clamp(max=GROWTH)
    $x @ $y -> ($x @ $y).clamp(max=GROWTH)
    $f($x, ...) -> $f($x, ...).clamp(-FALL, GROWTH)
    $x + $y -> ($x + $y).clamp(-FALL, GROWTH)
    $x - $y -> ($x - $y).clamp(-FALL, GROWTH)
    $x * $y -> ($x * $y).clamp(-FALL, GROWTH)
    $x / $y -> ($x / $y).clamp(-FALL, GROWTH)
    $x @ $y -> ($x @ $y).clamp(-FALL, GROWTH)
mask with the dtype's lowest number, torch.finfo(dtype).min, instead of -inf
    masked_fill($x, $m, INFINITY) -> $x.masked_fill($m, torch.finfo($x.dtype).min)
mask with -1e4 instead of -inf, which can be computed with [last-resort]
    masked_fill($x, $m, INFINITY) -> $x.masked_fill($m, -1e4)
compute the softmax in float32 [half]
    softmax($x, $d, dtype=$t) -> torch.softmax($x, $d, dtype=torch.float32)
compute the NAME in float32 [half]
    softmax sigmoid: NAME($x, ...) -> torch.NAME($x.float(), ...)
an epsilon of EPS under the root that makes the 0 [vanishes]
    sqrt($x) -> torch.sqrt($x + EPS)
""")
]

# where what makes an exponent is no statement of its own
AHEAD = [
    *_read("""
clamp the exponent for all that read it [ahead]
    exp($x) -> $x = $x.clamp(max=GROWTH)
    exp($n * $x) -> $x = $x.clamp(max=GROWTH)
    exp($x * $n) -> $x = $x.clamp(max=GROWTH)
    exp($x / $n) -> $x = $x.clamp(max=GROWTH)
""")
]

# where it is one of several results
BEHIND = [
    *_read("""
clamp the exponent for all that read it
    exp($x) -> $x = $x.clamp(max=GROWTH)
    exp($x) -> $x = $x.clamp(-FALL, GROWTH)
""")
]

# data that is bad before the program computes with it
FILL = "replace missing values by 0; better, impute them where the data is loaded"
PRESENT = "compute the loss only where the target is present"
INPUTS = [
    *_read(f"""
{FILL} [ahead]
    $f($x, ...) -> $x = torch.nan_to_num($x, FILLED)
{FILL}
    $f($x, ...) -> $f(torch.nan_to_num($x, FILLED), ...)
count no difference where one of the two is missing
    $x - $y -> torch.nan_to_num($x - $y, FILLED)
""")
]
TARGETS = [
    *INPUTS,
    *_read(f"""
{PRESENT}
    {" ".join(sorted(having("element_loss")))}: NAME($x, $y, ...)
        -> $call($x[torch.isfinite($y)], $y[torch.isfinite($y)], ...)
"""),
]


def numbers(dtype: torch.dtype, least: float | None = None, terms: int = 1) -> dict[str, str]:
    """The numbers in the examples, for a dtype.

    least: magnitude of the smallest healthy operand; an epsilon stays below it. terms: how many
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
        # between equal values: what it changes, and the rounding over the gap, are both small
        "SPLIT": 10.0 ** round(math.log10(info.eps) / 2 + 0.5),
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
