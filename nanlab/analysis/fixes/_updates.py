"""Candidates for an optimizer's arithmetic, run again on its state: an eps that the dtype holds, a
divisor that is not 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate, number
from nanlab.analysis.fixes._masking import corrections
from nanlab.analysis.fixes._operation import Operation

_DEFAULT = 1e-8
_QUOTIENTS = ("div", "reciprocal")
_LOW = 1e-4  # an eps that float16 holds as a normal number


def updates(op: Operation) -> list[Candidate]:
    """Larger eps for ``p - rate * m / (d + eps)``, and a divisor of at least eps where a number is
    divided by."""
    if op.differentiates:
        return []
    if op.name in _OF_STATE and (op.name not in _QUOTIENTS or _divides_by_zero(op)):
        return _larger_eps(op)
    if op.name in ("div", "true_divide") and _zero_number(op):
        return _number_divisor()
    if op.name == "addcmul":
        return _clipped(op)
    return (
        _not_centred(op) if op.name == "sqrt" and op.options.get("optimizer") == "RMSprop" else []
    )


def _divides_by_zero(op: Operation) -> bool:
    """Whether a quotient in one of torch's own optimizers has a divisor that is 0 somewhere."""
    own = getattr(torch.optim, str(op.options.get("optimizer", "")), None)
    divisor = op.operands[-1]
    return own is not None and isinstance(divisor, Tensor) and bool((divisor == 0).any())


def _clipped(op: Operation) -> list[Candidate]:
    """A second moment whose square overflows."""
    bound = 1e2 if op.low else 1e6
    return [
        Candidate(
            f"clip the gradients at {number(bound)} before the step: their squares fit into the"
            " second moment",
            (),
            lambda v, a, b, *rest: op.plain(
                _unspoilt(v), a.clamp(-bound, bound), b.clamp(-bound, bound), *rest
            ),
            snippet=(
                f"torch.nn.utils.clip_grad_value_(model.parameters(), {number(bound)})   # before"
                " optimizer.step()"
            ),
        )
    ]


def _not_centred(op: Operation) -> list[Candidate]:
    """A variance, mean square less squared mean, that is rounded below zero.

    Of the mean square alone the smallest and the largest element were recorded: a root that both
    have, all have.
    """
    made = op.makers[0][0] if op.makers and op.makers[0] else None
    known = (
        made is not None
        and made.name in ("addcmul", "_foreach_addcmul")
        and 0.0 <= made.low < made.high
    )
    ends = (
        torch.tensor([made.low, made.high], dtype=op.dtype) if known and made is not None else None
    )
    return [
        Candidate(
            "centered=False: no difference is taken that can be rounded below zero",
            (),
            None if ends is None else lambda t: op.plain(ends),
            snippet="torch.optim.RMSprop(parameters, lr=..., centered=False)",
            why="the mean square alone is not at hand",
        )
    ]


def eps_for_state(op: Operation) -> float:
    """The smallest eps that helps: torch's own default, or 1e-4 where half precision rounds that to
    0."""
    return _LOW if _narrowest(op).itemsize < 4 else _DEFAULT


def _narrowest(op: Operation) -> torch.dtype:
    """The dtype in which the state, or the parameter, holds least: moments may be kept narrower
    than parameters."""
    dtypes = [t.dtype for t in op.operands if isinstance(t, Tensor) and t.is_floating_point()]
    return min(dtypes, key=lambda d: d.itemsize, default=op.dtype)


def _larger_eps(op: Operation) -> list[Candidate]:
    eps = (
        10 * eps_for_state(op) if op.name == "reciprocal" and op.low else eps_for_state(op)
    )  # 1 / 1e-4 is near the top of float16
    held = str(_narrowest(op)).removeprefix("torch.")
    return [
        Candidate(
            f"an optimizer eps of {number(eps)}, which {held} holds, on the state of"
            f" {_OF_STATE[op.name][0]}",
            (),
            lambda *ts: _OF_STATE[op.name][1](op, eps, *ts),
            snippet=(
                f"torch.optim.{op.options.get('optimizer') or 'Adam'}(parameters, lr=...,"
                f" eps={number(eps)})   # or float32 master weights"
            ),
        )
    ]


def _divided(op: Operation, eps: float, x: Tensor, d: Tensor, *rest: Any) -> Tensor:
    """Of two roots of running averages, as in Adadelta, both get the eps."""
    if op.options.get("optimizer") == "Adadelta":
        return op.plain((_unspoilt(x).square() + eps).sqrt(), (d.square() + eps).sqrt(), *rest)
    return op.plain(_unspoilt(x), d + eps, *rest)


def _inverted(op: Operation, eps: float, d: Tensor) -> Tensor:
    return op.plain(d + eps)


def _quotient_added(
    op: Operation, eps: float, p: Tensor, m: Tensor, d: Tensor, *rest: Any
) -> Tensor:
    return op.plain(_unspoilt(p), m, d + eps, *rest)


def _unspoilt(state: Tensor) -> Tensor:
    """What the step found, 0 where it had already spoilt it."""
    return torch.where(torch.isfinite(state), state, 0.0)


def _fused(op: Operation, eps: float, *state: Tensor) -> Tensor:
    call: Callable[..., Tensor] = op.options["with_eps"]
    return call(eps, *(_unspoilt(t) for t in state))


_OF_STATE: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "addcdiv": ("the update", _quotient_added),
    "div": ("the update", _divided),
    "reciprocal": ("the update", _inverted),
    "_fused_adam": ("the fused kernel", _fused),
    "_fused_adamw": ("the fused kernel", _fused),
    "_fused_adagrad": ("the fused kernel", _fused),
}


def _zero_number(op: Operation) -> bool:
    return len(op.operands) > 1 and not isinstance(op.operands[1], Tensor) and op.operands[1] == 0


def _number_divisor() -> list[Candidate]:
    """A Python number that is 0: a count that starts at 0, ``1 - beta ** 0``."""
    return [
        Candidate(
            "no division where the divisor, a Python number, is 0",
            (),
            lambda x, y: x / (y or 1.0),
            rewriter=corrections,
        ),
        Candidate(
            "count the steps from 1",
            (),
            None,
            snippet="count += 1   # before the division by 1 - beta ** count",
            why="the count is the program's",
        ),
    ]
