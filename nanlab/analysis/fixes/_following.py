"""What the recorded graph says of a fix beyond its operation: products that overflow next, other
lines that fail, too."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch

from nanlab.analysis.fixes._neighbours import MOVES
from nanlab.analysis.provenance import leads_to_harm
from nanlab.trace.recording import (
    BACKWARD,
    BORN,
    CALL,
    DTYPE,
    LINE,
    NODE,
    OP,
    PASS,
    PHASE,
    Recording,
)

_PRODUCTS = frozenset("mul mm bmm addmm baddbmm".split())
_SUMS = frozenset("sum mean".split())
_HALF = "torch.float16"  # of bfloat16 the range is float32's
MOST_ROWS = 64
ROOM = 4.0  # by which a gradient may be larger than those of other steps


@dataclass(frozen=True)
class Product:
    """A recorded product that an operation's value, or its gradient, goes into."""

    line: int
    factor: float  # largest magnitude of the other factor
    itself: bool  # the other factor has the same fault at the same line, and changes with it
    dtype: torch.dtype

    def overflows(self, size: float) -> bool:
        """Whether it may leave the dtype when its first factor has this magnitude."""
        return size * (size if self.itself else self.factor) > torch.finfo(self.dtype).max


def name_of(recording: Recording, row: tuple[int, ...]) -> str:
    """Operator of a row, without the underscore of an in-place variant."""
    name: str = recording.ops.items[row[OP]]
    return name.rstrip("_")


def products_after(recording: Recording, position: int) -> tuple[Product, ...]:
    """The products that read a result, as it is, moved or summed."""
    waiting, found = [position], []
    line = _line(recording, position)
    for at in islice(waiting, MOST_ROWS):
        for call in _readers(recording, at):
            row = recording.row(call)
            if row is None:
                continue
            name = name_of(recording, row)
            if name in MOVES | _SUMS:
                waiting.append(call)
            elif name in _PRODUCTS:
                others = [p for p in recording.parents(call)[-2:] if p != at]
                found += [_product(recording, row, other, line) for other in others]
    return tuple(found)


def products_before(recording: Recording, position: int) -> tuple[Product, ...]:
    """The products in float16 that made the operands: the gradient that comes back is multiplied by
    their factors."""
    found = []
    for at in recording.parents(position):
        row = recording.row(at) if at >= 0 else None
        for _ in range(8):
            if row is None or name_of(recording, row) not in MOVES or not recording.parents(at):
                break
            at = recording.parents(at)[0]
            row = recording.row(at) if at >= 0 else None
        if row is None or row[NODE] < 0 or recording.dtypes.items[row[DTYPE]] != torch.float16:
            continue
        if name_of(recording, row) in _PRODUCTS:
            found += [_product(recording, row, other, -1) for other in recording.parents(at)[-2:]]
    return tuple(found)


def reached(recording: Recording, row: tuple[int, ...]) -> bool:
    """Whether a backward pass came, or may still have come, to the node of a forward row: not to
    what was detached."""
    step = recording.step_of(row[CALL])
    runs = [run for run in recording.node_runs if recording.step_of(run.position) == step]
    return not runs or row[NODE] < 0 or any(_is_of(recording, run.node, row) for run in runs)


def _is_of(recording: Recording, node: int, row: tuple[int, ...]) -> bool:
    """Whether a node is that of a forward row: under ``torch.func`` each level of a derivative has
    its own."""
    info = recording.nodes.get(node) if node != row[NODE] else None
    return node == row[NODE] or (info is not None and info.position == row[CALL])


def usual_gradient(recording: Recording, position: int) -> float:
    """Largest magnitude of the gradients that came into this operation of the program, with room;
    at most 1.

    In this step or another that is at hand, where they were finite; 1 where none was recorded.
    """
    own = recording.row(position)
    sizes = [0.0]
    for run in recording.node_runs:
        info = recording.nodes.get(run.node)
        if own is None or info is None or (info.line, info.op) != (own[LINE], own[OP]):
            continue
        known = [
            stats
            for source in run.taken
            if (stats := recording.stats(source)) is not None and stats.known
        ]
        sizes += [max(abs(stats.min or 0.0), abs(stats.max or 0.0)) for stats in known]
    return min(1.0, ROOM * max(sizes)) or 1.0


# Operations that take one operand in float32 beside another in half precision, and then give
# float32.
_PROMOTING = (
    MOVES
    | _SUMS
    | frozenset(
        """abs neg add sub rsub mul div pow square sqrt log log1p log2 log10 exp tanh sigmoid relu
        clamp clamp_min
        clamp_max cumsum amax amin max min maximum minimum softplus where _softmax _log_softmax
        logsumexp var std round
        reciprocal rsqrt""".split()
    )
)
# back into half's range
_COMPRESSING = frozenset("log log1p log2 log10 tanh sigmoid _softmax _log_softmax".split())


def takes_float32(recording: Recording, position: int) -> bool:
    """Whether what follows goes on in float32 as it is written, until it is small enough for the
    cast that leads back.

    Only where it was recorded to the end: to a loss, or to that cast.
    """
    waiting: list[tuple[int, bool]] = [(position, False)]
    for at, small in islice(waiting, MOST_ROWS):
        readers = [
            (call, row)
            for call in _readers(recording, at)
            if (row := recording.row(call)) is not None
        ]
        own = recording.row(at)
        if not readers and (
            own is None or (name_of(recording, own) != "detach" and not _ends(recording, at))
        ):
            return False
        for call, row in readers:
            name = name_of(recording, row)
            if name in _PROMOTING:
                waiting.append((call, small or name in _COMPRESSING))
            elif not (name == "_to_copy" and small) and "loss" not in name:
                return False
    return len(waiting) <= MOST_ROWS


def _ends(recording: Recording, position: int) -> bool:
    """Whether the backward pass begins here: at a loss function, or at what was recorded as the
    loss."""
    row = recording.row(position)
    named = row is not None and "loss" in name_of(recording, row)
    return named or any(loss.source == position for loss in recording.training.losses)


def made_of(recording: Recording, position: int) -> set[int]:
    """A row, and the rows of its step that were made of it in the forward pass."""
    step = recording.step_of(position)
    seen, waiting = {position}, [position]
    for at in waiting:
        for call in _readers(recording, at):
            if call in seen or recording.step_of(call) != step or len(seen) > MOST_ROWS:
                continue
            seen.add(call)
            waiting.append(call)
    return seen


def fails_too(
    recording: Recording,
    position: int,
    seen: set[int],
    here: bool | None = False,
    cured: int | None = None,
) -> str:
    """Which other line gives a NaN or an infinity of its own that meets the result; "": none was
    recorded.

    seen: the row and what was made of it, see :func:`made_of`.
    here: which other operation of the same line does; None: of any line.
    cured: a row; what is made of it does not count.
    """
    line, step = _line(recording, position), recording.step_of(position)
    if not here and (
        divided := _divides_by_own_zero(recording, sorted(seen - {position}), seen, line)
    ):
        return divided
    others = (
        p for call in sorted(seen - {position}) for p in recording.parents(call) if p not in seen
    )
    for other in others:
        origin = _origin(recording, other, step)
        if origin is None or origin in seen or here not in (None, _line(recording, origin) == line):
            continue
        if cured is not None and _comes_of(recording, origin, cured):
            continue
        row, own = recording.row(origin), recording.row(position)
        if row is not None and own is not None and (row[LINE], row[OP]) == (own[LINE], own[OP]):
            continue  # the same words, run a second time
        named = f"{name_of(recording, row)} on this line" if here and row is not None else ""
        return (
            f"{named or f'line {_line(recording, origin)}'} is not finite either, on its own"
            " account"
        )
    return ""


def twins_of(recording: Recording, position: int) -> list[int]:
    """The other calls on a forward row's line that fail on finite operands of their own, in the
    same step.

    None of them where one is another operation.
    """
    own, step = recording.row(position), recording.step_of(position)
    found = []
    for at in sorted(
        p for p, status in recording.status.items() if status == BORN and p >= 0 and p != position
    ):
        row = recording.row(at)
        if own is None or row is None or row[PHASE] == BACKWARD or recording.step_of(at) != step:
            continue
        if recording.places[row[LINE]] == recording.places[own[LINE]] and row[LINE] != own[LINE]:
            found.append(at if name_of(recording, row) == name_of(recording, own) else -1)
    return found if -1 not in found else []


def derivative_fails_too(recording: Recording, position: int) -> str:
    """Which other line has a derivative that fails of finite numbers in the same pass, and harms;
    "": none was recorded."""
    own = recording.row(position)
    for at in sorted(p for p, status in recording.status.items() if status == BORN and p >= 0):
        row = recording.row(at)
        if own is None or row is None or row[PHASE] != BACKWARD or row[PASS] != own[PASS]:
            continue
        if recording.places[row[LINE]][:2] != recording.places[own[LINE]][:2] and leads_to_harm(
            recording, at
        ):
            return f"the derivative at line {_line(recording, at)} fails on its own account, too"
    return ""


def same_elsewhere(recording: Recording, position: int) -> str:
    """Which other line of the step makes the same of the same operand; "": none was recorded."""
    row, read = recording.row(position), recording.parents(position)
    if row is None or not read:
        return ""
    edges = recording.chunk_of(position).edge_table()
    for call in dict.fromkeys(edges[edges[:, 1] == read[-1]][:, 0].tolist()):
        other = recording.row(call)
        if other is None or other[OP] != row[OP] or other[PHASE] == BACKWARD:
            continue
        if _line(recording, call) == _line(recording, position):
            continue
        if recording.status.get(call) == BORN:
            return f"line {_line(recording, call)} is not finite either, of the same number"
    return ""


def _divides_by_own_zero(recording: Recording, calls: list[int], seen: set[int], line: int) -> str:
    """Which of these calls divides by a 0 that does not come of the result; "": none does."""
    for call in calls:
        row, parents = recording.row(call), recording.parents(call)
        if (
            row is None
            or name_of(recording, row) != "div"
            or len(parents) < 2
            or parents[1] in seen
        ):
            continue
        stats = recording.stats(parents[1])
        if stats is not None and stats.zero and _line(recording, call) != line:
            return f"line {_line(recording, call)} divides by a 0 of its own"
    return ""


def _comes_of(recording: Recording, position: int, source: int) -> bool:
    """Whether a row was made of another, a few operations before."""
    waiting = [position]
    for at in islice(waiting, MOST_ROWS):
        if at == source:
            return True
        waiting += recording.parents(at) if at >= source else []
    return False


def _origin(recording: Recording, position: int, step: int) -> int | None:
    """Where what is bad in a forward result came about, in the same step; None if it is no
    operation on finite values."""
    at = position
    for _ in range(MOST_ROWS):
        row = recording.row(at) if at >= 0 else None
        if (
            row is None
            or row[PHASE] == BACKWARD
            or recording.step_of(at) != step
            or not _broken(recording, at)
        ):
            return None
        bad = [p for p in recording.parents(at) if _broken(recording, p)]
        if not bad:
            return at if row[NODE] >= 0 else None
        at = bad[0]
    return None


def _broken(recording: Recording, position: int) -> bool:
    """Whether it has a NaN or +inf, or made -inf of finite numbers; -inf from elsewhere may be a
    mask."""
    stats = recording.stats(position)
    if stats is None:
        return False
    return bool(
        stats.nan or stats.posinf or (stats.neginf and recording.status.get(position) == BORN)
    )


def _product(recording: Recording, row: tuple[int, ...], other: int, line: int) -> Product:
    stats = recording.stats(other)
    factor = max(abs(stats.min or 0.0), abs(stats.max or 0.0)) if stats is not None else 0.0
    step = recording.step_of(other) if other >= 0 else -1
    origin = _origin(recording, other, step) if other >= 0 else None
    itself = origin is not None and _line(recording, origin) == line
    return Product(
        recording.places[row[LINE]][1], factor, itself, recording.dtypes.items[row[DTYPE]]
    )


def _line(recording: Recording, position: int) -> int:
    row = recording.row(position) if position >= 0 else None
    return recording.places[row[LINE]][1] if row is not None else 0


def _readers(recording: Recording, position: int) -> list[int]:
    """The forward operations that read a result, of those recorded beside it."""
    edges = recording.chunk_of(position).edge_table()
    calls = dict.fromkeys(edges[edges[:, 1] == position][:, 0].tolist())
    rows = ((call, recording.row(call)) for call in calls)
    return [call for call, row in rows if row is not None and row[PHASE] != BACKWARD]
