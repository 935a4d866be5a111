"""Signal that low precision loses although nothing breaks: most of a result, or an epsilon."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.first_losses import first_losses
from nanlab.formats import format_of
from nanlab.rules._origin import place_of
from nanlab.rules._rule import TRAINING, Finding, Fix, rule
from nanlab.trace import Trace

NEARLY_ALL = 0.9  # share of the values of a result from which a loss is worth a warning


def in_part(trace: Trace, loss: dict[Hashable, Any], explanation: str) -> Finding:
    """The finding of a row of ``first_losses``."""
    limits = format_of(getattr(torch, loss["dtype"]))
    return Finding(
        cause="dtype-underflow",
        severity="warning",
        title=f"{loss['op']} flushes {loss['share']:.0%} of the {loss['numel']:,} values to zero in {limits.name}",
        explanation=f"{explanation} {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to zero.",
        phase=loss["phase"],
        step=loss["step"],
        symptom="silent-underflow",
        fixes=[Fix("compute this in float32; of gradients, a larger loss scale", "x.float()")],
        **place_of(trace, loss["position"]),
    )


@rule(
    "warning",
    precedence=TRAINING,
    example="""
        x = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float16)
        var = x.var()
        y = (x - x.mean()) * torch.rsqrt(var + 1e-9)  # here
    """,
    fix="""
        x = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float16)
        var = x.var()
        y = (x - x.mean()) * torch.rsqrt(var + 1e-5)
    """,
)
def eps_underflow(trace: Trace) -> Iterator[Finding]:
    """An epsilon that the dtype rounds to zero does nothing: what it should prevent is only waiting for the value that needs it."""
    losses = first_losses(trace)
    for loss in losses[losses["told_by"] == "epsilon"].to_dict("records"):
        limits = format_of(getattr(torch, loss["dtype"]))
        amount = "the epsilon" if pd.isna(loss["largest"]) else f"an epsilon of {loss['largest']:g}"
        yield Finding(
            cause="eps-underflow",
            severity="warning",
            title=f"{amount} is 0 in {limits.name}, so {loss['op']} does nothing here",
            explanation=f"{eps_underflow.explanation} {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to zero.",
            phase=loss["phase"],
            step=loss["step"],
            symptom="silent-underflow",
            fixes=[Fix("compute this in float32, or take an epsilon that the dtype can hold", "x.float()")],
            **place_of(trace, loss["position"]),
        )


RULES = (eps_underflow,)
