"""Products with an infinity: whether a 0 met it, or whether terms of either sign cancelled."""

from __future__ import annotations

import math

import torch

from nanlab.operators import having
from nanlab.rules._evidence import plural
from nanlab.rules._fault import Fault

TIMES = (
    "A mask of ones times -inf is -inf where it is one, and NaN where it is zero: write it with"
    " masked_fill."
)
_MATRICES = having("matmul", "dot") - {"addmm"}


def infinite_number(fault: Fault) -> bool:
    """Whether a product is with an infinity that the program wrote as a Python number."""
    given = fault.kept.args if fault.kept is not None else ()
    return any(isinstance(value, float) and math.isinf(value) for value in given)


def cancels(fault: Fault) -> bool:
    """Whether a product of matrices is NaN although no 0 of the one meets an infinity of the other:
    its terms cancel."""
    if fault.name not in _MATRICES or len(fault.operands) < 2:
        return False
    x, y = fault.operands[-2:]
    met = (x == 0).double() @ y.isinf().double() + x.isinf().double() @ (y == 0).double()
    return not bool(met.any())


def became_nan(fault: Fault) -> str:
    """How many elements of the result are NaN; the infinities that were carried on are not
    counted."""
    count = int(torch.isnan(fault.result).sum()) if fault.result is not None else 0
    return f"{plural(count or fault.count, 'element')} of {fault.numel:,} became NaN"
