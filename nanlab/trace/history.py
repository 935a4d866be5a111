"""What happened in the training loop: losses, scales, optimizer steps, updates, what was lost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from nanlab.trace.recording import Recording

FEWEST_ZERO = 2  # steps in which a gradient must be zero to be told
FEWEST_ZERO_LATE = 5  # the same for one that was not zero before
FEWEST_ZERO_ALL = 3  # and where all are zero
SCALED = 64.0  # a factor on the loss from which on it is taken for a loss scale


# what a flush cost; "divisor": what an update divides by
Cost = Literal["gradient", "update", "divisor", "value", "tensor", "part"]


@dataclass(frozen=True, slots=True)
class Loss:
    """The root of a backward pass."""

    position: int  # of the trace when backward was called
    source: int  # row or source of the loss, before a loss scaler multiplied it
    scaled: bool  # whether a loss scaler did
    root: int  # row or source that backward was called on
    line: int  # of the call, as a number of Recording.places
    adds: bool  # whether its gradients were added to others
    # root over loss, where a scaler or the program multiplied it; 1 if it did not
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ScaleUpdate:
    """One ``GradScaler.update()``."""

    position: int  # row of the new scale
    before: float  # the old scale
    after: float
    skipped: bool  # the inf checks found something: the optimizer did not step


UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"  # what a scaler divides its scale out with


@dataclass(frozen=True, slots=True)
class Unscale:
    """The gradients of one optimizer divided by the loss scale, and checked."""

    position: int  # row of the first gradient
    count: int  # gradients
    found_inf: bool


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One ``Optimizer.step()`` that was not skipped."""

    position: int  # of the trace when it began
    end: int  # and when it had ended
    optimizer: str  # class name
    number: int  # which optimizer, from 0 in the order of their first step
    rates: tuple[float | None, ...]  # learning rate of each parameter group
    # of the first group: eps, weight_decay, momentum, ...
    settings: tuple[tuple[str, Any], ...]
    line: int
    site: int
    writer: str = ""  # operation that wrote the parameters last, e.g. "add_"
    uncleared: bool = False  # its gradients were added to those that its last step had used
    # (parameter, row of its value) of those that ask for a gradient, and have none
    unreached: tuple[tuple[int, int], ...] = ()
    begins: bool = False  # the optimizer had no state before


@dataclass(frozen=True, slots=True)
class ParameterStep:
    """A parameter in a step; numbers of rows, sources or statistics, None: none."""

    position: int
    owner: int
    value: int | None
    gradient: int | None  # as the backward pass left it
    used: int | None  # as the optimizer took it: unscaled, clipped
    update: int | None  # statistics number of new value - old value
    lr: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """An operation of a step that may be folded by now."""

    position: int
    op: str
    phase: int  # of Recording.PHASES
    module: int
    node: int
    line: int
    site: int
    dtype: str


def place_at(recording: Recording, position: int) -> Place | None:
    """Where a row is, in a form that outlives the row."""
    row = recording.op(position)
    if row is None:
        return None
    dtype = str(row.dtype).removeprefix("torch.")
    module = recording.modules(row.module)
    return Place(position, row.name, row.phase, module, row.node, row.place, row.site, dtype)


@dataclass(slots=True)
class Flush:
    """An operation with non-zero operands and an all-zero result, and its cost. One is kept for
    each place and victim."""

    at: Place
    # value: of a result that the gradient came back through; part: some elements of one
    cost: Cost
    name: str  # of the parameter
    numel: int
    largest: float  # magnitude among the operands that were lost
    first: int  # position at which it was first noticed
    last: int
    count: int = 1  # steps
    overflow: bool = False  # ``at`` is what overflowed: divided by it, everything became zero


@dataclass(slots=True)
class Dead:
    """A parameter whose gradient was zero throughout in the last steps."""

    alive: bool = False  # it was not, in the last step
    lived: bool = False  # nor in another
    offset: bool = False  # and it has one dimension at most: a bias
    steps: int = 0  # with such a gradient, up to now
    unknown: int = 0  # steps in which no operation was to blame: the program wrote the zero
    at: Place | None = None  # where the signal died
    why: str = ""  # as _WHY of nanlab/topics/dead_gradients.py names it
    first: int = -1  # row of the first such gradient
    numel: int = 0  # elements of what died
    blockers: tuple[str, ...] = ()  # parameters that are zero, and that it is multiplied by
    buffer: str = ""  # that is infinite throughout, and that it is divided by


@dataclass(slots=True)
class Drive:
    """What drove a row of updates: gradients and rates, as sums of logarithms."""

    updates: int = 0  # whose gradient and rate are both known
    gradient: float = 0.0  # sum of log2 of the gradient's rms
    rate: float = 0.0  # sum of log2 of the learning rate, or of what was added over the gradient
    first: float = 0.0  # log2 of the first rate
    last: float = 0.0

    def add(self, gradient: float, rate: float) -> None:
        """One more update; 0: not known."""
        if gradient > 0 and rate > 0:
            self.last = math.log2(rate)
            self.first = self.first if self.updates else self.last
            self.updates += 1
            self.gradient += math.log2(gradient)
            self.rate += self.last


@dataclass(slots=True)
class AbsorbedUpdate:
    """How often one operation updated a parameter or buffer, and how often in vain."""

    at: Place
    owner: int
    numel: int
    update: float  # largest magnitude that was added in vain, 0 if unknown
    value: float  # rms of what it was added to
    by_hand: bool  # outside of an optimizer: a moving average, say
    # position of the update with which the present row of updates without effect began, -1: there
    # is none
    first: int = -1
    still: int = 0  # updates without effect in a row, up to now
    # dtype in which 1 - decay, say, is exactly zero, and with it what is added
    coefficient: str = ""
    # the factor, computed from the parameter, that is zero with it: the update is exactly zero
    factor: Place | None = None
    # a number to which another is added, the steps so far, or tensors that are only added to
    counter: bool = False
    most: float = 0.0  # of a sum: what was added in vain since ``first``, at most
    moved: int = 0  # updates with effect
    lost: int = 0  # elements that kept their value although they had a gradient, of all updates
    added: int = 0  # elements that had a gradient
    paused: int = 0  # the longest such row that came to an end, once the parameter had moved
    moving: Drive = field(default_factory=Drive)  # of the updates with effect
    standing: Drive = field(default_factory=Drive)  # of the present row without

    def count(self, position: int, still: bool, gradient: float = 0.0, rate: float = 0.0) -> None:
        """Count an update at ``position``. gradient: its rms; rate: the learning rate; 0:
        unknown."""
        if still:
            self.first = self.first if self.still else position
            self.still += 1
            self.standing.add(gradient, rate)
            return
        if self.moved:
            self.paused = max(self.paused, self.still)
        self.moved += 1
        self.still, self.first, self.standing = 0, -1, Drive()
        self.moving.add(gradient, rate)

    def fell(self, what: Literal["gradient", "rate"]) -> float:
        """Bits by which gradients or rates have fallen since updates are absorbed; 0: unknown."""
        if not self.moving.updates or not self.standing.updates:
            return 0.0
        before, now = getattr(self.moving, what), getattr(self.standing, what)
        return float(before / self.moving.updates - now / self.standing.updates)


@dataclass(frozen=True, slots=True)
class Misuse:
    """A step that scaled or clipped its gradients wrongly."""

    kind: Literal["clip-before-unscale", "bypass", "clip-spread", "part-unscaled", "never-scaled"]
    at: Place
    position: int
    scale: float
    # how much smaller the gradients became (clipping), how much too large they were (bypass), how
    # many were spoilt
    ratio: float
    name: str = ""  # of the parameter that was updated, or of those whose gradient was bad before
    # the scale had been divided out of the gradient before the last backward pass added to it
    unscaled: bool = False


@dataclass(frozen=True, slots=True)
class GradientEdit:
    """What was done to one optimizer step's gradients after the backward pass."""

    position: int  # that the step's ParameterStep rows bear
    scale: float  # loss scale that was divided out, 1 if none was
    # the last operation that multiplied, divided or clamped them otherwise; None: none did
    at: Place | None
    constant: bool  # whether it was by a Python number


MOST_KEYS = 20_000  # results that are followed
MOST_STEPS = 256  # and steps that are remembered of each
FEWEST_STEPS = 4  # that a trend is fitted to


class Series:
    """The largest magnitude of every operation's result, step after step.

    A result is known by its line, operator, module, output, phase, dtype, and by how many such
    there were before it in the step.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []  # position at which each remembered step ended
        self.places: list[Place] = []  # by column: where it was first seen
        self.parents: list[tuple[int, ...]] = []  # by column: the columns of its operands
        self.owners: dict[int, int] = {}  # column -> parameter or buffer that is written there
        self.divisors: set[int] = set()  # columns whose zeros make an infinity or NaN
        # log2 of the magnitude; +inf: it overflowed
        self.values: npt.NDArray[np.float32] = np.full((8, 256), np.nan, np.float32)
        self._columns: dict[int, int] = {}
        # identity and columns of the step before
        self._last: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def may_tell(self) -> bool:
        """Whether it holds more steps than a trend is fitted to."""
        return len(self.steps) > FEWEST_STEPS

    @property
    def table(self) -> npt.NDArray[np.float32]:
        """(steps, columns): log2 of the magnitude; NaN: unseen, -inf: zero, +inf: not finite."""
        return self.values[: len(self.steps), : len(self.places)]

    def columns_of(
        self,
        identity: npt.NDArray[np.int64],
        keys_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.uint64]],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The column of each result (-1: there are too many already), and the indices of the
        results that are new.

        identity: a row of numbers for each result; keys_of: makes one number of each, called where
        they are not those of the step before.
        """
        if self._last is not None and np.array_equal(self._last[0], identity):
            return self._last[1], np.zeros(0, np.int64)
        known, new, keys = self._columns, [], keys_of(identity)
        columns = np.empty(len(keys), np.int64)
        for i, key in enumerate(keys.tolist()):
            column = known.get(key, -1)
            if column < 0 and len(known) < MOST_KEYS:
                column = known[key] = len(known)
                new.append(i)
            columns[i] = column
        self._last = identity, columns
        return columns, np.array(new, np.int64)

    def add(
        self, position: int, columns: npt.NDArray[np.int64], magnitudes: npt.NDArray[np.float32]
    ) -> None:
        """A step that ended at ``position``."""
        if len(self.steps) == MOST_STEPS:
            del self.steps[: MOST_STEPS // 2]
            self.values = np.roll(self.values, -(MOST_STEPS // 2), axis=0)
            self.values[MOST_STEPS // 2 :] = np.nan
        rows, width = self.values.shape
        if len(self.steps) == rows or len(self._columns) > width:
            grown = np.full(
                (rows * (1 + (len(self.steps) == rows)), max(width, 2 * len(self._columns))),
                np.nan,
                np.float32,
            )
            grown[:rows, :width] = self.values
            self.values = grown
        known = columns >= 0
        self.values[len(self.steps), columns[known]] = magnitudes[known]
        self.steps.append(position)


@dataclass(slots=True)
class History:
    """The events of the loop, in their order; positions tie them to the trace."""

    losses: list[Loss] = field(default_factory=list)
    scales: list[ScaleUpdate] = field(default_factory=list)
    unscales: list[Unscale] = field(default_factory=list)
    optimizer_steps: list[OptimizerStep] = field(default_factory=list)
    # rows in which the program itself wrote a parameter, after a backward: the first of each step
    updates_by_hand: list[int] = field(default_factory=list)
    parameters: list[ParameterStep] = field(default_factory=list)
    flushes: dict[tuple[Any, ...], Flush] = field(default_factory=dict)
    absorbed_updates: dict[tuple[Any, ...], AbsorbedUpdate] = field(default_factory=dict)
    dead: dict[int, Dead] = field(default_factory=dict)  # by parameter
    # by row of the latest value: number of an average
    averages: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # the same of counts that are made anew
    sums: dict[int, int] = field(default_factory=dict)  # and of sums in place
    # by row: the number that what was added in place was multiplied by
    factors: dict[int, float] = field(default_factory=dict)
    # calls of backward on a loss that bears a scale of the program's own
    scaled_lines: set[int] = field(default_factory=set)
    misuses: list[Misuse] = field(default_factory=list)
    edits: list[GradientEdit] = field(default_factory=list)
    series: Series = field(default_factory=Series)

    def parameter_steps(self, start: int, end: int) -> list[ParameterStep]:
        """What became of each parameter between two positions, the last first."""
        steps, place = self.parameters, attrgetter("position")
        first, last = (bisect_left(steps, at, key=place) for at in (start, end))
        return steps[first:last][::-1]

    @property
    def starved(self) -> list[int]:
        """Parameters of all-zero gradient for several steps, an operation to blame for each."""
        some = any(dead.alive for dead in self.dead.values())
        late = FEWEST_ZERO_LATE if some else FEWEST_ZERO_ALL
        return [
            owner
            for owner, dead in self.dead.items()
            if dead.steps >= (late if dead.lived else FEWEST_ZERO)
            and not (dead.alive or dead.unknown or dead.at is None)
        ]

    @property
    def scaled(self) -> bool:
        """Whether any loss was multiplied before it went backward."""
        return any(loss.scaled or loss.factor != 1.0 for loss in self.losses)


@dataclass(frozen=True, slots=True)
class Guarded:
    """The step of a guarded run that was replayed under a full watch."""

    step: int  # its number in the run, from 0
    identical: bool  # whether loss and gradients of the replay have the bits that stopped the run
    reason: str = ""  # why they have not; empty where they have

    def __str__(self) -> str:
        """One sentence for a report."""
        if self.identical:
            return f"step {self.step:,} of the run was replayed, bit for bit"
        return (
            f"step {self.step:,} of the run could not be replayed: {self.reason}; the run was"
            " stopped before its gradients reached the weights. To see the step itself, watch with"
            ' --detail fault (in a program: detail="fault") instead'
        )
