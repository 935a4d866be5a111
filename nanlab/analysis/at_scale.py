"""A recorded result at another loss scale, element by element: the step is run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nanlab.analysis.precision import CastShares, rounded_shares
from nanlab.errors import NotReplayable
from nanlab.program.evidence import result_and_twin
from nanlab.stats import StatsTable, TensorStats
from nanlab.trace import Trace
from nanlab.trace.op import BACKWARD

if TYPE_CHECKING:
    import pandas as pd

Tensor = torch.Tensor


@dataclass(frozen=True)
class Counted:
    """Statistics and exponents of a tensor."""

    stats: TensorStats
    exponents: pd.Series[int]

    @classmethod
    def of(cls, tensor: Tensor) -> Counted:
        """Of each element."""
        table = StatsTable()
        row = table.add(tensor)
        return cls(table.stats(row), table.histogram(row))


@dataclass(frozen=True)
class AtScale:
    """A result as the step computes it with 2**k times the loss scale that it had."""

    result: Counted
    twin: Counted | None  # the same operation in float32, where the result is in half precision
    flushed: int  # zeros that the twin does not have
    overflowed: int  # elements that are not finite, though those of the twin are
    shares: dict[str, CastShares]  # by the name of the format


def at_scale(
    trace: Trace, position: int, log2_scale: int, formats: Sequence[torch.dtype]
) -> AtScale:
    """The row at a position of ``trace.ops`` with 2**log2_scale times the loss scale of its step.

    A gradient is what the step computes at that scale. A loss scale reaches no forward result:
    there only the shares are those of its values times 2**log2_scale. In the result's own dtype the
    shares count what became of its float32 twin, in other formats what a cast makes of the twin.
    Raises NotReplayable.
    """
    op = trace.recording.op(position)
    scaled = op is not None and op.phase == BACKWARD
    result, twin = result_and_twin(trace.recording, position, log2_scale if scaled else 0)
    if result.layout != torch.strided or result.is_quantized:
        raise NotReplayable("the elements of such a tensor are not looked at one by one")
    as_run = scaled or not log2_scale
    values = result if twin is None else twin
    if values.is_complex():
        values, result = torch.view_as_real(values), torch.view_as_real(result)
    if not as_run:
        values = values.double() * 2.0**log2_scale
    shares = {}
    for dtype in formats:
        own = as_run and dtype == result.dtype
        rounded = result if own else values.to(dtype)
        shares[str(dtype).removeprefix("torch.")] = rounded_shares(values, rounded, dtype)
    flushed = overflowed = 0
    if twin is not None:
        flushed = int(((result == 0) & (twin != 0)).sum())
        overflowed = int((~result.isfinite() & twin.isfinite()).sum())
    wide = None if twin is None else Counted.of(twin)
    return AtScale(Counted.of(result), wide, flushed, overflowed, shares)
