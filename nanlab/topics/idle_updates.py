"""Idle updates: exactly zero, because a factor that is computed from the parameter is."""

from __future__ import annotations

from collections.abc import Iterator

from nanlab.analysis.training import steps_seen, where
from nanlab.findings.fault import listed
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import HALF_PRECISION
from nanlab.operators import base_name, having
from nanlab.trace import Trace
from nanlab.trace.history import AbsorbedUpdate
from nanlab.trace.op import OPTIMIZER, walk
from nanlab.trace.recording import Recording

# Checked when a step ends.

MOST_VISITS = 2000  # rows searched for one update
UPDATES = having("updates")
MULTIPLIES = having("scales")
MOVES = having("moves", "casts")
MASKS = having("compares")  # what a mask keeps still, it keeps so on purpose
FEWEST = 2  # such updates of a parameter that are told


def is_idle(recording: Recording, position: int) -> bool:
    """Whether an update that changed nothing added exact zeros, in half precision perhaps because
    they were flushed.

    To a parameter that is zero throughout nothing else can be added in vain.
    """
    own = recording.parents(position)
    if base_name(recording.at(position).name) not in UPDATES or len(own) < 2:
        return False
    return _is_zero(recording, own[1]) or all(_is_zero(recording, p) for p in (own[0], position))


def own_zero_factor(recording: Recording, position: int, start: int) -> int | None:
    """The row of the zero factor of an idle update that was computed from the parameter, which is
    zero throughout: it stays so. None if there is none.

    start: position at which the training step began.
    """
    own = recording.parents(position)
    if not _is_zero(recording, own[0]):
        return None
    values = _values(recording, own[0], start)

    def onward(at: int) -> list[int]:
        if at < start or at in values or base_name(recording.at(at).name) in MASKS:
            return []
        return [p for p in recording.parents(at) if _is_zero(recording, p)]

    def reaches(at: int) -> bool:
        return any(before in values for before in walk([at], onward, MOST_VISITS))

    if not _is_zero(recording, own[1]):
        # it was multiplied by a number: one that the program read from a norm?
        wide = recording.at(position).dtype not in HALF_PRECISION
        measured = wide and any(_is_measure(recording, v, start, position) for v in values)
        return position if measured else None
    for at in walk([own[1]], onward, MOST_VISITS):
        parents = recording.parents(at)
        if at < start or base_name(recording.at(at).name) not in MULTIPLIES or len(parents) < 2:
            continue
        zero = [p for p in parents if _is_zero(recording, p)]
        live = [p for p in parents if p not in zero and _of_gradients(recording, p, start)]
        factor = next((p for p in zero if live and reaches(p)), None)
        if factor is not None:
            return _made(recording, factor, at, start)
    return None


def _is_zero(recording: Recording, position: int) -> bool:
    stats = recording.stats(position)
    return stats is not None and bool(stats.numel and stats.all_zero)


def _values(recording: Recording, position: int, start: int) -> set[int]:
    """What a parameter held in a step before an update, which other updates may have preceded."""
    found = {position}
    while position >= start and recording.at(position).inplace:
        if not (before := recording.parents(position)):
            break  # written anew, as by zero_
        position = before[0]
        found.add(position)
    return found


def _is_measure(recording: Recording, value: int, start: int, end: int) -> bool:
    """Whether one number of a parameter of several, such as its norm, was computed within a step
    between two positions, outside of the graph, and is zero."""
    stats = recording.stats(value)
    readers = recording.readers(value) if stats is not None and stats.numel > 1 else []
    return any(
        start <= at < end
        and recording.at(at).phase == OPTIMIZER
        and recording.stats(at).numel == 1
        and _is_zero(recording, at)
        for at in readers
    )


def _of_gradients(recording: Recording, position: int, start: int) -> bool:
    """Whether something was computed from gradients of the step."""

    def onward(at: int) -> list[int]:
        row = recording.at(at)
        return [] if at < start or row.backward else recording.parents(at)

    return any(recording.at(at).backward for at in walk([position], onward, MOST_VISITS))


def _made(recording: Recording, factor: int, product: int, start: int) -> int:
    """The row that computed a factor, but for moves and products with numbers; the product itself
    where it is the parameter's own value."""
    while factor >= start and recording.at(factor).base_name in MOVES | MULTIPLIES:
        if len(before := recording.parents(factor)) != 1:
            break
        factor = before[0]
    row = recording.at(factor)
    return product if factor < start or row.inplace else factor


@rule(
    "error",
    family="training",
    events=("training.absorbed_updates",),
    example="""
        w = nn.Parameter(torch.zeros(4))
        for i in range(3):
            w.grad = None
            (w - 1).square().sum().backward()
            with torch.no_grad():
                ratio = w.norm() / w.grad.norm()  # here
                w -= 0.1 * ratio * w.grad
    """,
    fix={"w.norm() / w.grad.norm()": "w.norm().clamp_min(0.01) / w.grad.norm()"},
)
def optimizer_arithmetic(trace: Trace) -> Iterator[Finding]:
    """A factor of the update is computed from the parameter itself, and is 0 where the parameter
    is: it stays 0 whatever its gradient.

    Typical causes: a trust ratio (LARS, LAMB) or a relative step size of a layer that starts at
    zero.
    """
    groups: dict[tuple[str, int], list[AbsorbedUpdate]] = {}
    for member in trace.recording.training.absorbed_updates.values():
        if member.factor is not None and member.still >= FEWEST and not member.moved:
            groups.setdefault((member.factor.op, member.factor.line), []).append(member)
    for members in groups.values():
        first = min(members, key=lambda m: m.first)
        assert first.factor is not None
        names = [trace.recording.parameter_names[m.owner] for m in members]
        yield optimizer_arithmetic.finding(
            f"the update of {listed(names, 2)} is exactly 0 in all"
            f" {steps_seen(trace.recording, first.still)}: it is multiplied by 0, which was"
            " computed from the zeros of the parameter",
            step=trace.recording.step_of(first.first),
            symptom="silent-underflow",
            fixes=[
                Fix(
                    "take a factor of 1, or a least one, where the parameter is zero",
                    "ratio = torch.where(norm > 0, ratio, torch.ones_like(ratio))",
                )
            ],
            **where(trace.recording, first.factor),
        )
