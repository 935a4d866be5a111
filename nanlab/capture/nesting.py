"""Loops within the training loop: critics that learn several times before their generator does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nanlab.capture.loops import Loop

MOST_TURNS = 32  # an inner loop of more turns is an epoch, whose turns are steps


@dataclass
class Segment:
    """What ran from one boundary to the next."""

    start: int  # position at which it begins
    loop: Loop | None = None  # the loop that came round there
    left: bool = False  # whether it began with leaving that loop instead
    optimizers: set[int] = field(default_factory=set)  # that stepped in it
    trained: bool = False  # whether a backward pass ran in it, or an optimizer stepped


class Nesting:
    """Tells the turns of an inner loop from steps of their own.

    A loop whose turns are steps is left, and another optimizer steps before the loop around it comes round: then the outer turn is the step
    (a critic's turns belong to the generator's). If the outer loop does not come round, these were two phases of training.
    """

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque([Segment(0)], maxlen=2 * MOST_TURNS)
        self.inner: set[Loop] = set()  # loops whose turns are part of a step

    @property
    def last(self) -> Segment:
        return self.segments[-1]

    def keep(self, starts: list[int]) -> None:
        """Some boundaries may have been taken back: forget them."""
        known = set(starts[-2 * MOST_TURNS :])
        while len(self.segments) > 1 and self.segments[-1].start not in known:
            gone = self.segments.pop()
            self.last.optimizers |= gone.optimizers
            self.last.trained |= gone.trained

    def turned(self, loop: Loop | None, position: int) -> list[int]:
        """A loop came round and a step begins; the boundaries since its last turn that were none."""
        wrong = self._within(loop) if loop is not None else []
        self.segments.append(Segment(position, loop))
        return wrong

    def _within(self, loop: Loop) -> list[int]:
        after = self.last
        if not after.left or not after.optimizers or after.loop is None or not loop.surrounds(after.loop):
            return []
        turns: list[Segment] = []
        for segment in reversed(list(self.segments)[:-1]):
            if segment.loop != after.loop or segment.left:
                first = segment
                break
            turns.append(segment)
        else:
            return []
        before = first.optimizers.union(*(turn.optimizers for turn in turns))
        if len(turns) > MOST_TURNS or after.optimizers & before:
            return []
        self.inner.add(after.loop)
        return [turn.start for turn in turns] + [after.start]
