"""What `nanlab.safe` costs: forward and backward against torch's own, side by side.

    python benchmarks/safe.py

Prints for each operator the ratio of medians, on many numbers of which none, or a thousandth, has
to be mended, and for `limit` the time of a call where all is finite and where one element is not.
One thread, rounds interleaved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nanlab import safe

MANY, ROUNDS = 1_000_000, 15
Operator = Callable[[Tensor], Tensor]
PAIRS: dict[str, tuple[Operator, Operator, float]] = {
    "sqrt": (torch.sqrt, safe.sqrt, 0.0),
    "log": (torch.log, safe.log, 0.0),
    "reciprocal": (torch.reciprocal, safe.reciprocal, 0.0),
    "pow": (lambda x: x**0.5, lambda x: safe.pow(x, 0.5), 0.0),
    "acos": (torch.acos, safe.acos, 1.0),
    "softmax": (
        lambda x: torch.softmax(x.view(-1, 1000), -1),
        lambda x: safe.softmax(x.view(-1, 1000), -1),
        -torch.inf,
    ),
}


def seconds(operator: Operator, x: Tensor) -> float:
    """One call, forward and backward."""
    x.grad = None
    begin = time.perf_counter()
    operator(x).sum().backward()
    return time.perf_counter() - begin


def compared(theirs: Operator, ours: Operator, x: Tensor) -> float:
    """The ratio of medians, rounds interleaved."""
    rounds = [(seconds(theirs, x), seconds(ours, x)) for _ in range(ROUNDS)]
    a, b = (statistics.median(each) for each in zip(*rounds, strict=True))
    return b / a


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'':12} {'all well':>9} {'1 in 1000':>10}   times torch's own, {MANY:,} numbers")
    for name, (theirs, ours, bad) in PAIRS.items():
        well = torch.rand(MANY) * 0.8 + 0.1
        mended = torch.where(torch.arange(MANY) % 1000 == 0, bad, well)
        ratios = [compared(theirs, ours, x.requires_grad_()) for x in (well, mended)]
        print(f"{name:12} {ratios[0]:9.2f} {ratios[1]:10.2f}")

    def quotient(x: Tensor) -> Tensor:
        return torch.sin(x / 2) / x

    limited = safe.limit(quotient)
    for what, x in {"all finite": torch.ones(100), "one is not": torch.arange(100.0)}.items():
        x.requires_grad_()
        rounds = [(seconds(quotient, x), seconds(limited, x)) for _ in range(ROUNDS)]
        plain, own = (1e3 * statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"limit, {what}: {own:.2f} ms a call, the function itself {plain:.3f} ms")


if __name__ == "__main__":
    main()
