"""What made an operand of a failed operation: the operations before it, and the range of what they
read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nanlab.trace.recording import BORN, LINE, OP, OUTPUT, Recording

MOST_STEPS = 8
_PICKS = frozenset("index gather select slice index_select masked_select take".split())
_KEEPS = frozenset(
    """view reshape expand unsqueeze squeeze permute transpose t clone detach _to_copy _unsafe_view
    alias
    clamp clamp_min add""".split()
)


@dataclass(frozen=True)
class Maker:
    """An operation on the way to an operand."""

    name: str  # operator, without the underscore of an in-place variant
    line: int  # of the user's file, 0 if unknown
    low: float  # smallest finite value of its own first operand
    high: float  # and the largest
    position: int
    born: bool = False  # it made something infinite or NaN of finite operands
    numbers: tuple[float, ...] = ()  # the Python numbers that it was called with


def makers(recording: Recording, position: int, slot: int) -> tuple[Maker, ...]:
    """What made the operand in a slot of a call, nearest first, along the first operands."""
    found: list[Maker] = []
    at = next((source for source, s in recording.operands(position) if s == slot), -1)
    while at >= 0 and len(found) < MOST_STEPS:
        row = recording.row(at)
        read = recording.operands(at)
        if row is None or not read:
            break
        name = recording.ops.items[row[OP]]
        own = (
            [pair for pair in read if pair[1] == row[OUTPUT]]
            if name.startswith("_foreach_")
            else []
        )
        read = own or read
        stats = recording.stats(read[0][0])
        line = recording.places[row[LINE]][1]
        low, high = (stats.min, stats.max) if stats is not None else (None, None)
        born, numbers = recording.status.get(at) == BORN, tuple(recording.scalars.get(at, ()))
        found.append(
            Maker(name.rstrip("_") or name, line, low or 0.0, high or 0.0, at, born, numbers)
        )
        at = read[0][0]
    return tuple(found)


# Functions by which a program makes a number positive, and that underflow to 0 or are 0 below 0.
_POSITIVE = frozenset("softplus exp sigmoid relu square abs".split())
# the operand that must not be 0
ZERO_OPERAND = {"log": 0, "lgamma": 0, "digamma": 0, "reciprocal": 0, "div": 1}


def positive_maker(name: str, line: int, makers: tuple[tuple[Maker, ...], ...]) -> Maker | None:
    """What made the operand that is 0 positive, on another line than the one that failed; None if
    nothing known did."""
    slot = ZERO_OPERAND.get(name, 2)
    chain = makers[slot][:MOST_STEPS] if slot < len(makers) else ()
    return next((m for m in chain if m.name in _POSITIVE and m.line and m.line != line), None)


def first_of(found: tuple[Maker, ...], *names: str, beside: tuple[str, ...] = ()) -> Maker | None:
    """The first of the makers, if it has one of these names; views, casts, picks, clamps, sums with
    a number are passed."""
    for maker in found:
        if maker.name in names:
            return maker
        if maker.name == "add" and not maker.numbers:
            return None
        if maker.name not in _KEEPS and maker.name not in _PICKS and maker.name not in beside:
            return None
    return None


def picked(found: tuple[Maker, ...], maker: Maker) -> bool:
    """Whether only some elements of what ``maker`` made came through."""
    return any(m.name in _PICKS for m in found[: found.index(maker)])


def logits(p: Tensor, maker: Maker, dim: int | None) -> Tensor:
    """Logits that give these probabilities, in their dtype; where a probability is 0 or 1, as far
    out as the logits went.

    dim: of a softmax; None: of a sigmoid, or of single elements of a softmax.
    """
    wide = p.detach().double()
    reach = max(maker.high - maker.low, 1.0)
    if dim is not None:
        found = torch.where(wide > 0, wide.clamp_min(1e-300).log(), -reach)
        return found.to(p.dtype)
    low, high = (maker.low, maker.high) if maker.name == "sigmoid" else (-reach, reach)
    inner = torch.logit(wide.clamp(1e-300, 1 - 2**-53))
    return torch.where(wide <= 0, low, torch.where(wide >= 1, high, inner)).to(p.dtype)


def softmax_dim(p: Tensor) -> int | None:
    """The last dimension along which probabilities add up to 1, None if there is none."""
    for dim in reversed(range(p.dim())):
        total = p.double().sum(dim)
        if p.shape[dim] > 1 and bool(((total - 1).abs() < 0.1).all()):
            return dim
    return None
