"""Candidates for weight_norm of directions that are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate, number
from nanlab.analysis.fixes._operation import Operation

SMALL = 1e-3  # standard deviation of weights that are to be next to nothing


def zero_direction(op: Operation) -> list[Candidate]:
    """weight_norm of zeros takes no eps: the layer, or the rows that are zero, have to be something
    else."""
    weight, dims = op.operands[0], op.operands[2:]  # the dimension only where it is not the first
    if op.backward:
        return []
    if bool(weight.any()):
        return [_zero_rows(op, weight, dims)]
    small = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).to(weight) * SMALL
    return [
        Candidate(
            f"begin with weights of standard deviation {number(SMALL)} instead of zeros",
            (),
            op.plain,
            snippet=(
                f"torch.nn.init.normal_(layer.weight, std={number(SMALL)})   # before"
                " weight_norm(layer)"
            ),
            operands=(small, torch.norm_except_dim(small, 2, *(dims or (0,))), *dims),
        )
    ]


def _zero_rows(op: Operation, weight: Tensor, dims: Sequence[Any]) -> Candidate:
    length = torch.norm_except_dim(weight, 2, *(dims or (0,)))
    return Candidate(
        "ones in the place of the directions v that are zero; to switch a row off, set its gain g"
        " to 0 instead",
        (),
        op.plain,
        snippet=(
            "v = layer.parametrizations.weight.original1   # weight_v of the older weight_norm\n"
            "v.data[v.flatten(1).norm(dim=1) == 0] = 1.0"
        ),
        operands=(torch.where(length == 0, 1.0, weight), *op.operands[1:]),
    )
