"""The numbers of one tensor: TensorStats, their order in a row, the code of a histogram bin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# A row is WIDTH int64 words; the words from MIN to RMS hold float64 bits, NaN where there is no
# such element.
COUNTS = "numel nan posinf neginf zero subnormal fp16_zero fp16_subnormal fp16_inf".split()
VALUES = ("min", "max", "absmin", "mean", "rms")
NUMEL, NAN, POSINF, NEGINF, ZERO, SUBNORMAL, FP16_ZERO, FP16_SUBNORMAL, FP16_INF = range(9)
MIN, MAX, ABSMIN, MEAN, RMS = range(9, 14)
FIRST_BIN = 14  # where the row's bins begin in the arena
BINS = 15  # how many bins it has; UNKNOWN or PENDING where there are no numbers
WIDTH = 16

UNKNOWN = -1  # a tensor without readable data: meta, fake, wrapper
PENDING = -2  # still on its device
PUT_OFF = -3  # not read yet: a replay of the step does

# A bin of the arena: count << CODE_BITS | (exponent + EXPONENT_OFFSET) << 1 | (1 if negative)
CODE_BITS = 13
EXPONENT_OFFSET = 2048

# Words of the state that a kernel reads and moves on.
(
    ROWS_ADDRESS,
    NEXT_ROW,
    ROW_CAPACITY,
    ARENA_ADDRESS,
    ARENA_NEXT,
    ARENA_CAPACITY,
    SCRATCH_ADDRESS,
    BLOCK_ADDRESS,
    FLOAT8_ADDRESS,
    TIMES,
    OLD_ADDRESS,
    # 0: count, and write the row; ONE_PART: count only; else write the row of what was counted in
    # so many parts
    PARTS,
    PART_STATES,  # where the states of the parts are
) = range(13)
STATE_WIDTH = 13
ONE_PART = -1

BLOCK = 4096  # elements that stay in the first-level cache between the loops over them
MOST_BINS = 2 * (2046 + 52)  # float64: every normal and subnormal exponent, both signs
# The scratch: two float64 histograms (or sixteen float32 ones), the subnormal exponents, the tally
# of one tensor, and four histograms of pairs.
TALLY, TALLY_WORDS = 2 * 4096 + 2 * 64, 13
PAIRS = TALLY + 16
SCRATCH_WORDS = PAIRS + 2 * 64 * 64 + 64
FULL = -1  # what a kernel returns when rows or arena must grow first
FLOAT8_TABLES = 5  # the float8 dtypes: 256 float32 values each, then their smallest normals

# kinds of element of the float32 kernel; FLOAT8 + i reads the i-th table
FLOAT32, BFLOAT16, FLOAT16, FLOAT8 = range(4)
# float32 less its old values, which lie elsewhere
CHANGE = FLOAT8 + FLOAT8_TABLES
# kinds of element of the kernel of integers; bool is read as uint8
UINT8, INT8, INT16, INT32, INT64 = range(5)


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

    @property
    def all_zero(self) -> bool:
        """Whether every element is 0."""
        return self.zero == self.numel

    @property
    def largest(self) -> float:
        """Largest magnitude of the finite elements; 0.0 where there are none."""
        return max(abs(self.min or 0.0), abs(self.max or 0.0))


# The arena: coded bins of all rows, one after the other.

# Counts that the histogram of a tensor holds: name -> which of the bins to add up, by sign (-1 or
# 1) and exponent. Each is a column of ``trace.ops``: "negative": lambda sign, exponent: sign < 0.
BINNED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}


def decode(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signs (-1 or 1), exponents and counts of coded bins, all int64."""
    code = bins & ((1 << CODE_BITS) - 1)
    return 1 - 2 * (code & 1), (code >> 1) - EXPONENT_OFFSET, bins >> CODE_BITS


def gather(arena: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The bins of ``rows`` moved together; ``rows`` is told where each begins now."""
    lengths = np.maximum(rows[:, BINS], 0)
    begins = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
    bins: np.ndarray = arena[np.repeat(rows[:, FIRST_BIN], lengths) + within]
    rows[:, FIRST_BIN] = begins
    return bins
