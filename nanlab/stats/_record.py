"""TensorStats: the numbers of one tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorStats:
    """The numbers of one tensor; ``None`` where no element has the property, counts of 0 where
    ``known`` is False.

    A complex element counts as two: its real and its imaginary part. The counts of subnormals and
    of float16 losses are 0 for integers and bool.
    """

    # elements, those of expanded dimensions and the implicit zeros of sparse tensors included
    numel: int
    nan: int
    posinf: int
    neginf: int
    zero: int  # 0.0 and -0.0
    subnormal: int  # in the tensor's own dtype
    fp16_zero: int  # non-zero finite elements that torch's cast to float16 makes zero
    fp16_subnormal: int  # ... a float16 subnormal
    fp16_inf: int  # ... an infinity
    min: float | None  # of the finite elements, as are max, mean and rms
    max: float | None
    absmin: float | None  # least magnitude of the non-zero finite elements
    mean: float | None
    rms: float | None  # root of the mean square
    known: bool  # False where there is no data to read: meta, fake, quantised and wrapper tensors

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN, inf or -inf."""
        return self.nan + self.posinf + self.neginf

    @property
    def is_finite(self) -> bool:
        """Whether no element is NaN, inf or -inf."""
        return self.nonfinite == 0
