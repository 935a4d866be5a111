"""Operators of torch that stay finite, gradients included.

Where numerator and divisor vanish together, as in ``sin(x) / x`` at 0, neither value nor derivative
is 0: no operator can know that, so there :func:`removable` takes the whole expression, and
:func:`limit` a whole function. One rule for all others. Wherever torch's value and derivative are
finite, the result has torch's own bits, in value and in gradient. Elsewhere:

- The value is torch's where that is finite; otherwise the one its docstring states. Where it states
  none: 0 for what torch leaves undefined (NaN), the largest magnitude of the dtype, with its sign,
  for an infinity.
- The derivative is 0, and so is the second.
- Of a derivative that is 0 the sign may differ: torch has -0.0 in places.
- A NaN that came in stays NaN, in value and gradient: bad data is not hidden. An infinity that came
  in is finite after, but for ``removable`` and ``limit``, which keep what has no limit.

What a derivative of 0 means, where torch has none:

- It is right, one of several that are, or the finite limit: in ``norm``, ``hypot``, ``cdist`` (a
  subgradient at 0),
  ``softmax``, ``log_softmax``, ``logsumexp``, ``logsigmoid``, ``sinc``, ``exprel``, ``removable``
  (every derivative is the function's own), ``masked_mean`` (nothing is learned from nothing).
- It is right for what a mask or a weight of 0 removes, and stops what is to learn, for the true
  derivative is infinite:
  ``sqrt``, ``rsqrt``, ``log``, ``log2``, ``log10``, ``log1p``, ``log1mexp``, ``logit``, ``xlogy``,
  ``entropy``, ``pow``, ``acos``, ``asin``, ``acosh``, ``atanh``, ``reciprocal``, ``std``,
  ``normalize``. There an epsilon inside, as in ``sqrt(x + 1e-6)``, keeps it finite and its sign.
- It is wrong in ``div`` where numerator and divisor vanish together and the quotient has a limit:
  ``removable``.

``eigh`` and ``svd`` are the exception to the rule: equal eigenvalues and singular values are moved
apart by a little, which makes the derivative right of what does not depend on the choice of
vectors.

Each element is judged for itself, or each row where the operator works on rows; of two operands,
each for itself, so that ``div(x, tiny)`` keeps the derivative in ``x`` where that in ``tiny``
overflows. Where torch's first derivative is kept, its second is too. A gradient is not finite for
two reasons: the derivative is not (it becomes 0), or the gradient that came in is too large or bad
itself (it is passed on: an explosion is not hidden).

The method: torch is asked first, and what is bad in its answer is mended, the value in the forward
pass, the gradient in the backward pass. Derivatives of the gradient, and all of a compiled, vmapped
or captured program, which may not look at its numbers, go by way of the *double where* instead:
``where`` on the argument and on the result. With it on the result alone (``torch.where(x > 0,
x.sqrt(), 0)``), or with ``nan_to_num``, the gradient that is masked still is 0 times inf. There
the test is made with a gradient of 1: an element whose derivative overflows for 1 becomes 0,
although for a smaller gradient it might have been finite.

Those that torch has too keep its signature (without ``out=``). All work in float16, bfloat16,
float32 and float64 with limits taken from the dtype, are differentiable in both modes and twice,
can be compiled and vmapped, and run under activation checkpointing and autocast. Cost on a CPU,
forward and backward together, on a million float32 numbers (``benchmarks/safe.py``): 1.5 to 5 times
the operator where all is well, 2 to 14 times where a thousandth of the numbers must be mended (most
for the cheapest); 0.15 to 0.4 ms on few numbers. ``limit`` tells its own.
"""

from __future__ import annotations

from nanlab.safe.decompositions import eigh, svd
from nanlab.safe.elementwise import (
    acos,
    acosh,
    asin,
    atan2,
    atanh,
    div,
    entropy,
    exp,
    exprel,
    hypot,
    log,
    log1mexp,
    log1p,
    log2,
    log10,
    logit,
    logsigmoid,
    pow,
    reciprocal,
    rsqrt,
    sinc,
    sqrt,
    xlogy,
)
from nanlab.safe.limit import limit
from nanlab.safe.reductions import (
    cdist,
    cosine_similarity,
    log_softmax,
    logsumexp,
    masked_mean,
    norm,
    normalize,
    softmax,
    std,
    var,
)
from nanlab.safe.series import removable

__all__ = [
    "acos",
    "acosh",
    "asin",
    "atan2",
    "atanh",
    "cdist",
    "cosine_similarity",
    "div",
    "eigh",
    "entropy",
    "exp",
    "exprel",
    "hypot",
    "limit",
    "log",
    "log1mexp",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logit",
    "logsigmoid",
    "logsumexp",
    "masked_mean",
    "norm",
    "normalize",
    "pow",
    "reciprocal",
    "removable",
    "rsqrt",
    "sinc",
    "softmax",
    "sqrt",
    "std",
    "svd",
    "var",
    "xlogy",
]
