"""Candidates for a distribution's scale, rate or concentration that became 0: kept above 0 where
the program makes it."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate, number
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Rewritten, called, rewrite
from nanlab.analysis.fixes._upstream import ZERO_OPERAND, Maker, positive_maker

FLOOR = 1e-3
_DENSITIES = ("log_prob", "kl_divergence", "entropy", "gaussian_nll_loss", "rsample")


def _where_made(text: str, line: int, maker: Maker, form: str, inside: int) -> Rewritten | None:
    """The line that makes the parameter, where the one that failed asks a distribution for a
    density."""
    rows = text.splitlines()
    if not 0 < inside <= len(rows) or not any(
        f"{name}(" in rows[inside - 1] for name in _DENSITIES
    ):
        return None
    return rewrite(text, line, (called(maker.name),), form)


def parameters(op: Operation) -> list[Candidate]:
    """The parameter of a distribution whose density divides by it, or takes its logarithm, inside
    torch."""
    maker = positive_maker(op.name, op.line, op.makers)
    if maker is None or op.backward or op.low or op.dtype.is_complex:
        return []
    slot = ZERO_OPERAND[op.name]

    def run(*ts: Any) -> Tensor:
        # divided by as a square
        kept = ts[slot].clamp_min(FLOOR**2) if op.name == "div" else ts[slot] + FLOOR
        return op.plain(*ts[:slot], kept, *ts[slot + 1 :])

    softplus = f"torch.nn.functional.softplus({{x}}{{rest}}) + {number(FLOOR)}"
    text = softplus if maker.name == "softplus" else f"{{X}}.{maker.name}() + {number(FLOOR)}"

    return [
        Candidate(
            f"at least {number(FLOOR)} where {maker.name} makes it",
            (),
            run,
            rewriter=partial(_where_made, maker=maker, form=text, inside=op.line),
            line=maker.line,
            only_spelled=True,
            at_source=True,
        )
    ]
