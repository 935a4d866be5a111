"""Dead gradients: parameters whose gradient is all zero, and where the signal died."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nanlab.analysis.graph import Cut, GraphFlow, cuts_before, last_root
from nanlab.analysis.training import steps_seen, where
from nanlab.errors import NotReplayable
from nanlab.findings.fault import bad_values, every, listed, plural
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import HALF_PRECISION, format_of
from nanlab.operators import base_name, card, having
from nanlab.program.evidence import result_and_twin
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows, parameter_columns
from nanlab.trace.history import FEWEST_ZERO, FEWEST_ZERO_ALL, Dead, Flush, Place, place_at
from nanlab.trace.op import BACKWARD, BORN, FORWARD, OPTIMIZER, walk
from nanlab.trace.recording import PHASES, NodeInfo, Recording

# Checked when a step ends.

MOST_ANCESTORS = 2000  # rows searched for one gradient
MOST_TRIED = 8  # results that are made again in float32
SAME = 1e-4  # how far a loss may fall that is no better
MOST_LOOKS = 4  # steps in which the place is searched
Why = Literal[
    "blocked",
    "flat",
    "choice",
    "bound",
    "stuck",
    "beyond",
    "saturated",
    "value",
    "custom",
    "zeros",
    "absorbed",
]
FLAT = having("flat")
# Every element took another alternative, or lies beyond a bound.
BOUNDS = having("bounds", "cuts")
MAKES = having("makes", "overwrites")
CHOICES = having("bounds", "cuts", "masks", "picks", "parts", "extreme", "assigns", "ranks")
HALF = frozenset(format_of(dtype).name for dtype in HALF_PRECISION)
UNDONE: tuple[Why, ...] = ("choice", "bound")  # another batch may choose otherwise
MULTIPLIES = having("multiplies", "divides") - having("matmul", "composed_product", "dot", "layer")
DIVIDES = having("quotient")
LEAST_AT_ZERO = having("least_at_zero")
DIRECTIONS = having("direction")
ROOTS = having("root")  # as of a distance, which is 0 between equal rows
RUNNING = frozenset(name for name in having("normalises") if card(name).hidden_writes)
ADDS = having("adds")
CANCELS = having("adds", "sums", "matmul", "dot")
# What they make of a gradient is zero by cancellation, or because an operand is.
# A gradient that is the same for all of a row cancels in theirs.
SHARES = having("softmax", "normalises")
LINEAR = (CANCELS | having("layer", "deviation", "moves") | {"neg"}) - MULTIPLIES


def note_dead(rows: StepRows, gradients: dict[int, int]) -> None:
    """Count the steps in which a parameter had a gradient, and an all-zero one.

    gradients: row of the gradient by number of the parameter.
    """
    recording, history = rows.recording, rows.history
    zero = set((np.flatnonzero(rows.all_zero()) + rows.start).tolist())
    for owner, gradient in gradients.items():
        known = history.dead.get(owner)
        if gradient not in zero:
            stats = None if known is not None and known.alive else recording.stats(gradient)
            if stats is not None and stats.numel:
                shape = recording.at(gradient).shape
                history.dead[owner] = Dead(True, True, sum(size > 1 for size in shape) < 2)
            continue
        known = history.dead.setdefault(owner, Dead())
        known.alive = False
        known.steps += 1
        known.first = gradient if known.steps == 1 else known.first
        looks = known.steps - (FEWEST_ZERO_ALL - 1 if known.lived else 0)
        if looks < 1 or looks > MOST_LOOKS or known.blockers:
            continue
        found = _died(recording, gradient, zero)
        if found is None:
            known.unknown += 1
        elif known.at is None:
            place = place_at(recording, found.position)
            assert place is not None  # the step that has just ended is never folded
            known.at, known.why = replace(place, op=found.op), found.why
            known.numel = recording.stats(found.position).numel
            known.blockers, known.buffer = found.blockers, found.buffer


@dataclass(frozen=True, slots=True)
class _Death:
    position: int
    op: str  # of the forward pass
    why: Why
    blockers: tuple[str, ...] = ()  # parameters that are zero, and that it is multiplied by
    buffer: str = ""  # that is infinite throughout, and that it is divided by


def _died(recording: Recording, gradient: int, zero: set[int]) -> _Death | None:
    """Where and why the signal to a gradient died; None if the program wrote the zero."""
    ends: list[int] = []
    without: list[int] = []  # rows that read nothing of the backward pass: zeros_like

    def signals(at: int) -> list[int]:
        node, read = recording.at(at).node, _read(recording, at)
        return [p for p in read if p not in zero and _is_gradient(recording, p, node, zero)]

    def onward(at: int) -> list[int]:
        """With what a derivative builds around a gradient of 0: a matrix of blocks."""
        return [p for p in _read(recording, at) if p not in signals(at)]

    for position in walk([gradient], onward, MOST_ANCESTORS):
        if position not in zero or not recording.at(position).backward:
            continue
        if not _read(recording, position):
            without.append(position)
        elif signals(position):
            ends.append(position)
    found = [_why(recording, end, zero) for end in sorted(ends or without)]
    # where one cancels the others are not to blame
    deaths = [death for death in found if death is not None]
    if not deaths or len(deaths) < len(found):
        return None
    blockers = tuple(dict.fromkeys(name for death in deaths for name in death.blockers))
    return next((replace(d, blockers=blockers) for d in deaths if d.blockers), deaths[0])


def _is_gradient(
    recording: Recording, position: int, node: int, without: Collection[int] = ()
) -> bool:
    """Whether a row of the backward pass comes from the incoming gradient of a node.

    without: rows that bring nothing.
    """
    made = walk([position], lambda at: (p for p in _read(recording, at) if p not in without))
    return any(recording.at(at).node != node for at in made)


def _read(recording: Recording, position: int) -> list[int]:
    """The operands of a backward row that are backward rows themselves."""
    parents = recording.parents(position) if recording.at(position).backward else []
    return [p for p in parents if recording.at(p).backward]


def _why(recording: Recording, end: int, zero: set[int]) -> _Death | None:
    row = recording.at(end)
    info = recording.nodes.get(row.node) if row.node >= 0 else None
    if info is not None and info.custom:
        return _Death(end, row.base_name, "custom") if _masks_itself(recording, end, info) else None
    if info is None or info.op < 0:
        return None
    op = base_name(recording.ops.items[info.op])
    if op in MULTIPLIES | LINEAR and (blockers := _blockers(recording, end, row.node, zero)):
        return _Death(end, op, "blocked", blockers)
    if _rests_at_zero(recording, end, info.position, zero):
        return _Death(end, op, "zeros")
    if op in DIVIDES and (buffer := _infinite_buffer(recording, info.position)):
        return _Death(info.position, op, "value", buffer=buffer)
    if row.base_name in CANCELS:
        absorbed = _absorbed(recording, end, zero)
        return (
            None if absorbed < 0 else _Death(absorbed, recording.at(absorbed).base_name, "absorbed")
        )
    if op in FLAT:
        return _Death(end, op, "flat")
    if op in BOUNDS and (beyond := _beyond_its_bound(recording, end, info.position, zero)):
        return _Death(end, op, beyond)
    if op in CHOICES:
        return _Death(end, op, "bound" if _is_constant(recording, info.position) else "choice")
    if op in MULTIPLIES:
        other = next(
            (p for p in recording.parents(end) if p in zero and not recording.at(p).backward), None
        )
        return None if other is None else _value_lost(recording, other, zero)
    if op in LINEAR or (op in SHARES and not _one_hot(recording, info.position)):
        return None
    if info.position in zero:  # of an operand that is 0 itself it is the right result
        return _value_lost(recording, info.position, zero)
    return _Death(end, op, "saturated")


def _absorbed(recording: Recording, end: int, zero: set[int]) -> int:
    """The addition without effect that made the same of two forward results, whose gradients are
    equal and opposite; -1 where there is none.

    end: the backward row that adds these gradients.
    """
    nodes = (recording.nodes.get(recording.at(p).node) for p in _read(recording, end))
    results = [info.position for info in nodes if info is not None and info.op >= 0]
    if len(results) != 2 or not _same_values(recording, *results):
        return -1

    def before(at: int) -> list[int]:
        made = at in recording.owned or recording.at(at).phase == OPTIMIZER
        return [] if made else [p for p in recording.parents(at) if p >= 0]

    one, other = ({*walk([at], before, MOST_ANCESTORS)} for at in results)
    return min((at for at in one ^ other if _has_no_effect(recording, at)), default=-1)


def _has_no_effect(recording: Recording, position: int) -> bool:
    """Whether an addition gives one of its operands, though the other is not 0."""
    if recording.at(position).base_name not in ADDS:
        return False
    operands = [source for source, _ in recording.own_operands(position)]
    others = [recording.stats(at) for at in operands if not _same_values(recording, at, position)]
    if len(operands) == 1:
        return not others and any(recording.scalars.get(position, ()))
    return len(others) == 1 and others[0] is not None and not others[0].all_zero


def _same_values(recording: Recording, one: int, other: int) -> bool:
    """Whether two results agree in all their statistics."""
    stats = recording.stats(one)
    return stats is not None and stats.known and stats == recording.stats(other)


def _value_lost(recording: Recording, position: int, zero: set[int]) -> _Death | None:
    """The death by a forward row that is all zero; None if that came from outside, or by choice."""
    lost = _vanished(recording, position, zero)
    if lost is None:
        return None
    op = recording.at(lost).base_name
    buffer = _infinite_buffer(recording, lost) if op in DIVIDES else ""
    return _Death(lost, op, "value", buffer=buffer)


def _rests_at_zero(recording: Recording, end: int, position: int, zero: set[int]) -> bool:
    """Whether all operands of an operation are 0, autograd makes its derivative there 0, and the
    loss is not least there.

    end: the backward row, position: the forward one.
    """
    name, parents = recording.at(position).base_name, recording.parents(position)
    if name not in LEAST_AT_ZERO | DIRECTIONS or not parents:
        return False
    if any((s := recording.stats(p)) is None or not s.all_zero for p in parents):
        return False
    if name in DIRECTIONS:
        return True
    gradients = [recording.stats(p) for p in _arriving(recording, end, zero)]
    # where the loss rises with a length, it is least at 0
    return bool(gradients) and all(s.max is not None and s.max <= 0.0 for s in gradients)


def _beyond_its_bound(
    recording: Recording, end: int, position: int, zero: set[int]
) -> Literal["stuck", "beyond"] | None:
    """Whether all that an operation bounds lies beyond its bound, and is made of parameters alone,
    so that no other batch brings it back: "stuck" where the loss would have it back.

    end: the backward row, position: the forward one.
    """
    given = recording.parents(position)[:1]
    inner, bound = (recording.stats(at) for at in (*given, position)) if given else (None, None)
    arrived = [g for at in _arriving(recording, end, zero) if (g := recording.stats(at))]
    if inner is None or bound is None or not arrived or not _of_parameters(recording, given[0]):
        return None
    if None in (inner.min, bound.min, *(g.min for g in arrived)):
        return None
    if inner.max < bound.min:
        return "stuck" if all(g.max < 0 for g in arrived) else "beyond"
    if inner.min > bound.max:
        return "stuck" if all(g.min > 0 for g in arrived) else "beyond"
    return None


def _arriving(recording: Recording, end: int, zero: set[int]) -> list[int]:
    """The rows of the gradient that comes to a backward row from other nodes."""
    node = recording.at(end).node
    return [p for p in _read(recording, end) if p not in zero and recording.at(p).node != node]


def _of_parameters(recording: Recording, position: int) -> bool:
    """Whether a value is computed from parameters, buffers and numbers alone."""

    def before(at: int) -> tuple[int, ...] | list[int]:
        made = at < 0 or recording.at(at).phase == OPTIMIZER or at in recording.owned
        return () if made else recording.parents(at)

    for at in walk([position], before, MOST_ANCESTORS):
        source, row = recording.sources.get(at), recording.at(at)
        if (source is not None and source.kind == "data") or (at >= 0 and not row):
            return False
        if row.base_name in MAKES and at not in recording.owned:  # random numbers, perhaps
            return False
    return True


def _infinite_buffer(recording: Recording, position: int) -> str:
    """The buffer that made all divisors of a row infinite; "" if none did."""
    for at in walk(
        [position],
        lambda at: (p for p in recording.parents(at) if _is_infinite(recording, p)),
        MOST_ANCESTORS,
    ):
        source = recording.sources.get(at)
        if source is not None:
            return source.name if source.kind == "buffer" else ""
    return ""


def _is_infinite(recording: Recording, position: int) -> bool:
    stats = recording.stats(position)
    return stats is not None and 0 < stats.numel == stats.posinf + stats.neginf


def _blockers(recording: Recording, end: int, node: int, zero: set[int]) -> tuple[str, ...]:
    """All-zero parameters that make the other factor of a gradient zero."""
    seen: set[int] = set()
    waiting = [
        p
        for p in recording.parents(end)
        if p < 0
        or (p in zero and not (recording.at(p).backward and _is_gradient(recording, p, node)))
    ]
    found: dict[str, None] = {}
    for position in waiting:
        source, stats = recording.sources.get(position), recording.stats(position)
        name = _parameter_at(recording, position)
        if name or source is not None:
            if name and stats is not None and stats.all_zero:
                found.setdefault(name)
        elif position in zero and recording.at(position).base_name in LINEAR | MULTIPLIES:
            new = [p for p in recording.parents(position) if (p < 0 or p in zero) and p not in seen]
            seen.update(new)
            waiting += new[:MOST_ANCESTORS]
    return tuple(found)


def _parameter_at(recording: Recording, position: int) -> str:
    """The parameter that a source, or the row that made it, stands for; "" if none."""
    source = recording.sources.get(position)
    if source is not None:
        return source.name if source.kind == "parameter" else ""
    owner = recording.owned.get(position, -1)
    known = owner >= 0 and recording.parameter_kinds[owner] == "parameter"
    return recording.parameter_names[owner] if known else ""


def _masks_itself(recording: Recording, end: int, info: NodeInfo) -> bool:
    """Whether a Function of the program multiplies its gradient by zeros that it computed, although
    what its forward pass gave differs from value to value."""
    parents = recording.parents(end)
    if len(parents) < 2 or recording.at(end).base_name not in MULTIPLIES | CHOICES:
        return False
    users = (recording.nodes.get(recording.at(parent).node) for parent in parents)
    results = (
        recording.stats(result)
        for user in users
        if user is not None and not user.custom
        for result in recording.parents(user.position)
        if info.position <= result < user.position
    )
    return any(stats is not None and stats.min != stats.max for stats in results)


def _is_constant(recording: Recording, position: int) -> bool:
    """Whether a result is one number throughout, and not 0: what follows sees no data."""
    stats = recording.stats(position)
    return stats is not None and stats.numel > 1 and stats.min == stats.max != 0


def _one_hot(recording: Recording, position: int) -> bool:
    """Whether a softmax gave 1 to one value of each row and 0 to the others."""
    s = recording.stats(position)
    return s is not None and s.max == 1.0 and s.mean * s.numel == s.numel - s.zero


def _vanished(recording: Recording, position: int, zero: set[int]) -> int | None:
    """The forward row that became all zero; None if from outside, or by choice."""
    for _ in range(MOST_ANCESTORS):
        row, parents = recording.at(position), recording.parents(position)
        if not row:
            return None
        before = next((p for p in parents if p in zero), None)
        if before is None:
            chosen = row.base_name in CHOICES | LINEAR | FLAT or not parents
            alive = all((s := recording.stats(p)) is not None and not s.all_zero for p in parents)
            return None if chosen or not alive else position
        position = before
    return None


# Parameters that feed the loss but get no gradient.

_WHY = {
    "blocked": (
        "{op} multiplies it by a 0 from {blockers}, which gets no gradient either: neither can"
        " leave 0."
    ),
    "flat": "{op} is constant between its jumps: its derivative is 0 everywhere.",
    "choice": (
        "{op} lets none of the {numel:,} values through: each lies beyond its bound, or another was"
        " chosen. Its derivative is 0 there."
    ),
    "cut": (
        "{op} lets none of the {numel:,} values through: each lies beyond its bound. Its derivative"
        " is 0 there."
    ),
    "bound": "{op} gives its bound for {every}: what follows does not see what it reads.",
    "stuck": (
        "{op} reads nothing but values beyond its bound, where its derivative is 0: the loss would"
        " move them back, and no gradient reaches them."
    ),
    "beyond": (
        "{op} reads nothing but values beyond its bound, where its derivative is 0: they stay"
        " there, whatever the loss asks for later."
    ),
    "custom": "The backward of the Function makes {every} 0, by {op}.",
    "value": "{op} gives exactly 0 for {every}, by which the gradient is multiplied.",
    "zeros": (
        "{op} reads nothing but zeros, and autograd makes its derivative there 0: neither can what"
        " it reads leave 0, nor what comes before it learn."
    ),
    "absorbed": (
        "{op} changes none of {numel:,} values: what it adds is below half the distance to the next"
        " number. So what follows is computed twice of the same values, and the two gradients"
        " cancel."
    ),
    "saturated": (
        "The derivative of {op} is exactly 0 for {every}: in floating point it is flat there."
    ),
}
_FIXES = {
    "blocked": Fix(
        "start only one factor of the product at zero, and the other at random values",
        "nn.init.kaiming_uniform_(layer.weight, a=5**0.5)",
    ),
    "flat": Fix("pass the gradient straight through", "x + (torch.round(x) - x).detach()"),
    "choice": Fix(
        "let some gradient through beyond the bound, or start within it", "F.leaky_relu(x, 0.01)"
    ),
    "stuck": Fix(
        "map a free parameter into the range, which has a derivative everywhere",
        "low + (high - low) * torch.sigmoid(free)",
    ),
    "value": Fix(
        "compute the logarithm instead; exponentiate last or not at all",
        "log_p = x  # in the place of p = torch.exp(x)",
    ),
    "custom": Fix("check the mask with which backward multiplies", "grad * inside"),
    "absorbed": Fix(
        "take a step that the dtype resolves, or the exact derivative",
        "h = torch.finfo(x.dtype).eps ** 0.5 * x.abs().clamp_min(1.0)",
    ),
    "zeros": Fix("start away from 0, where it has a derivative", "nn.init.normal_(w, std=0.01)"),
    "saturated": Fix("work in the log domain, or make the values smaller", "F.logsigmoid(x)"),
}
_FIXES["bound"] = _FIXES["choice"]
_FIXES["beyond"] = _FIXES["stuck"]


@rule(
    "error",
    events=("training.starved",),
    example="""
        p = nn.Parameter(torch.tensor([0.4, 1.6]))
        for i in range(2):
            p.grad = None
            q = torch.round(p)  # here
            (q - 1).square().sum().backward()
    """,
    fix={"torch.round(p)": "p + (torch.round(p) - p).detach()"},
)
def dead_gradient(trace: Trace) -> Iterator[Finding]:
    """The parameter is used, but its gradient is exactly zero: it never changes."""
    recording = trace.recording
    history = recording.training
    flushed = {flush.name for flush in history.flushes.values() if flush.cost == "gradient"}
    flushed |= {flush.name for flush in flushed_gradients(trace)}
    groups: dict[tuple[int, str, bool], list[int]] = {}
    lasting = {recording.parameter_names[owner]: owner for owner in history.starved}
    for name, owner in lasting.items():
        dead = history.dead[owner]
        if dead.buffer:
            continue  # told by poisoned_buffer
        if name not in flushed and all(blocker in lasting for blocker in dead.blockers):
            assert dead.at is not None
            groups.setdefault((dead.at.line, dead.why, dead.lived), []).append(owner)
    # a product with what died gives its weights nothing either: what learns then is no offset
    ends = any(dead.unknown and not dead.alive for dead in history.dead.values())
    others = [d for d in history.dead.values() if d.lived and not (ends and d.offset)]
    for (_, why, _), owners in groups.items():
        dead = history.dead[owners[0]]
        learns = any(other.alive or not dead.lived for other in others)
        # what lived goes on where the next batch, or another part, has something to learn
        idle = why not in UNDONE or not any(d.alive for d in history.dead.values())
        rests = dead.lived and (learns or (idle and not _is_no_better_since(trace, dead.first)))
        # these have no derivative for any batch
        rests = rests and why not in ("stuck", "beyond", "flat")
        if not rests and (why not in UNDONE or not _converged(trace)):
            names = [recording.parameter_names[owner] for owner in owners]
            yield _finding(trace, names, dead, learns)


@rule(
    "error",
    events=("training.starved", "normalises"),
    example="""
        norm = nn.BatchNorm1d(2).eval()
        norm.running_var.fill_(1e5)
        norm.running_var.copy_(norm.running_var.half())  # here
        x = torch.randn(4, 2, requires_grad=True)
        norm(x).sum().backward()
    """,
    fix={"norm.running_var.copy_(norm.running_var.half())": "pass"},
)
def poisoned_buffer(trace: Trace) -> Iterator[Finding]:
    """A buffer is not finite, and dividing by it hides that: the result is constant, and no
    gradient goes through it.

    A variance or a scale beyond 65504 becomes infinite in ``model.half()``. Keep it in float32, or
    reset it.
    """
    recording = trace.recording
    told: set[tuple[int, str]] = set()
    for at, running in _normalised(recording):
        stats, line = recording.stats(running), (recording.at(at).place, recording.at(at).module)
        place = place_at(recording, at)
        if place is not None and line not in told:
            told.add(line)
            source = recording.sources.get(running)
            held = bad_values(stats.nan, stats.posinf + stats.neginf)
            yield _poisoned(
                trace,
                place,
                source.name if source is not None and source.name else "a running statistic",
                f"{held} among {plural(stats.numel, 'value')}",
                running if source is None else source.first,
                _birth(recording, running),
            )
    starved = (recording.training.dead[owner] for owner in recording.training.starved)
    for name, dead in {dead.buffer: dead for dead in starved if dead.buffer}.items():
        assert dead.at is not None
        yield _poisoned(trace, dead.at, name, "infinities alone", dead.first)


def _normalised(recording: Recording) -> Iterator[tuple[int, int]]:
    """(row, running statistic) of the normalisations at hand that read one that is not finite, and
    give finite values."""
    names = [name in RUNNING for name in recording.ops.items]
    for chunk in recording.chunks:
        table = chunk.columns()
        rows = chunk.where()[np.array([*names, False])[table.op] & (table.stat >= 0)]
        for at in rows.tolist():
            call = recording.at(at).call
            outputs = range(call, call + recording.outputs_of(call))
            running = [p for p, _ in recording.operands(at)[-2:]]
            bad = [p for p in running if (s := recording.stats(p)) is not None and s.nonfinite]
            # in training mode it writes them, and what that does is told at its origin
            if at == call and bad and not any(recording.at(each).inplace for each in outputs):
                stats = recording.stats(at)
                if stats is not None and stats.numel and stats.is_finite:
                    yield at, bad[0]


def _birth(recording: Recording, value: int) -> Place | None:
    """Where a value became bad, or what moves alone made of it did; None where the watch did not
    see that."""
    for at in walk([value], lambda at: recording.parents(at) if at in recording.bad else ()):
        if recording.status.get(at) == BORN and recording.line_at(recording.at(at).place)[1]:
            return place_at(recording, at)
    return None


def _poisoned(
    trace: Trace, place: Place, name: str, held: str, since: int, birth: Place | None = None
) -> Finding:
    """place: where the values are used. birth: where they became bad, if the watch saw that; then
    the finding is there."""
    fix = Fix("keep the buffers of this module in float32, and load them again", "norm.float()")
    return poisoned_buffer.finding(
        f"{name} holds {held}: what {place.op} divides by it is constant",
        step=trace.recording.step_of(since),
        symptom="silent-underflow",
        fixes=[fix],
        **(where(trace.recording, birth or place) | {"op": (birth or place).op}),
    )


def flushed_gradients(trace: Trace) -> Iterator[Flush]:
    """Gradients that died in an operation whose result is 0 in half precision, and not in float32:
    one for each parameter."""
    recording = trace.recording
    owners: dict[tuple[Place, int], list[int]] = {}
    for owner in recording.training.starved:
        dead = recording.training.dead[owner]
        if dead.why in _PHASES and dead.at is not None and dead.at.dtype in HALF:
            owners.setdefault((dead.at, _PHASES[dead.why]), []).append(owner)
    for (place, phase), starved in owners.items():
        if (largest := _lost_in(recording, place, phase)) is None:
            continue
        for owner in starved:
            dead, name = recording.training.dead[owner], recording.parameter_names[owner]
            span = place.position, recording.end
            yield Flush(place, "gradient", name, dead.numel, largest, *span, dead.steps)


_PHASES = {"saturated": BACKWARD, "value": FORWARD}  # of what made the zeros


def _lost_in(recording: Recording, place: Place, phase: int) -> float | None:
    """The largest magnitude, in float32, of values that an operation of a phase at a line made 0,
    of the latest one that loses most of them; None where none does."""
    tried = 0
    for chunk in reversed(recording.chunks):
        own = chunk.columns().phase == phase
        for at in reversed(chunk.where()[own].tolist()):
            row, stats = recording.at(at), recording.stats(at)
            if row.place != place.line or stats is None or not stats.all_zero:
                continue
            if (tried := tried + 1) > MOST_TRIED:
                return None
            with suppress(NotReplayable):  # else what it is in float32 is not known
                twin = result_and_twin(recording, at)[1]
                if twin is not None and 2 * int(twin.count_nonzero()) > twin.numel():
                    return float(twin.abs().max())
    return None


def _converged(trace: Trace) -> bool:
    """Whether the last loss is 0, so that nothing is left to learn."""
    recording = trace.recording
    losses = [recording.value(loss.source) for loss in recording.training.losses]
    return bool(losses) and losses[-1] == 0.0


def _is_no_better_since(trace: Trace, position: int) -> bool:
    """Whether no loss from the step of a row on is below most of those before: what rests then had
    not reached its aim."""
    losses = trace.steps["loss"].to_numpy(float, na_value=np.nan)
    step = trace.recording.step_of(position)
    before, since = losses[:step], losses[step:]
    if not np.isfinite(before).any() or not np.isfinite(since).all():
        return False
    usual = float(np.nanmedian(before))
    return bool(since.min() > usual - SAME * abs(usual))


def _finding(trace: Trace, names: list[str], dead: Dead, learns: bool) -> Finding:
    recording = trace.recording
    assert dead.at is not None
    place = where(recording, dead.at) | {"op": dead.at.op}
    shown = listed(names, 3)
    error = dead.why not in ("choice", "beyond") or not learns
    cut = dead.why == "choice" and base_name(str(place["op"])) in having("cuts")
    told = _WHY["cut" if cut else dead.why].format(
        op=place["op"],
        numel=dead.numel,
        every=every(dead.numel),
        blockers=" and ".join(dead.blockers),
    )
    return dead_gradient.finding(
        f"no gradient arrives at {shown}: it is exactly 0 in"
        f" {'the last' if dead.lived else 'all'} {steps_seen(recording, dead.steps)}. {told}",
        severity="error" if error else "warning",
        step=recording.step_of(dead.first),
        symptom="silent-underflow",
        fixes=[_FIXES["zeros" if dead.why == "value" and dead.at.op in ROOTS else dead.why]],
        **place,
    )


# How what is computed with a parameter is cut off from the loss.
_CUTS = dict(
    row.split(": ")
    for row in """
no-grad: this line runs under no_grad
sample: this line draws a sample, and no gradient goes through that
detach: this line detaches what is made with it
data: this line reads .data, which has no graph
comparison: this line compares what is made with it, and nothing comes back through that
index: this line makes an index of it, and nothing comes back through that
cast: this line makes whole numbers of it, and nothing comes back through them
number: this line computes with a number that line {line} reads of it, and no gradient goes through
""".strip().splitlines()
)


# Nobody cuts off like this on purpose what an optimizer is to change.
_LOST = {
    "sample": Fix(
        "draw by rsample, through which gradients go; what has none is weighed by its log_prob",
        "z = q.rsample()",
    ),
    "comparison": Fix(
        "compare softly: a sigmoid of the difference", "torch.sigmoid((score - cut) / temperature)"
    ),
    "index": Fix(
        "weigh what is chosen by its probability",
        "chosen * scores.softmax(-1).gather(-1, index[..., None]).squeeze(-1)",
    ),
    "cast": Fix("pass the gradient straight through", "x + (x.round() - x).detach()"),
    "number": Fix("compute with the tensor, and read the number for logs alone", "scale * logits"),
}


@rule(
    "note",
    events=("training.optimizer_steps",),
    example="""
        body, head = nn.Linear(4, 4), nn.Linear(4, 1)
        opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for i in range(3):
            opt.zero_grad()
            with torch.no_grad():
                h = body(torch.ones(2, 4))  # here
            head(h).square().mean().backward()
            opt.step()
    """,
    fix={"torch.no_grad()": "torch.enable_grad()"},
)
def dead_gradient_(trace: Trace) -> Iterator[Finding]:
    """The optimizer holds the parameter, and what is computed with it is cut off from the loss: it
    has no gradient, and never moves."""
    recording = trace.recording
    reached = set(parameter_columns(recording)["owner"].tolist())
    steps = recording.training.optimizer_steps
    held = {row: o for step in steps for o, row in step.unreached if o not in reached}
    owners = list(held.values())
    unmoved = {o for o in owners if owners.count(o) == 1}  # nobody writes them by hand either
    root = last_root(recording) if held else None
    if root is None:
        return
    flow = GraphFlow(recording, frozenset(held))
    told: dict[tuple[str, int], tuple[Cut, list[str]]] = {}
    for cut in cuts_before(flow, root):
        if cut.kind in _CUTS and cut.known:
            begun = {cut.carrier, *flow.parents(cut.position)}
            ways = (flow.walk(start, lambda parent, child: flow.carries(parent)) for start in begun)
            rows = sorted({at for way in ways for at, _ in way} & held.keys())
            names = [recording.parameter_names[held[row]] for row in rows]
            told.setdefault((cut.file, cut.line), (cut, []))[1].extend(names)
    for cut, all_names in told.values():
        if names := list(dict.fromkeys(all_names)):
            shown = listed(names, 3)
            still = {recording.parameter_names[o] for o in unmoved} >= {*names}
            lost = cut.kind in _LOST and still and len(steps) >= FEWEST_ZERO
            told_why = _CUTS[cut.kind].format(line=cut.line)
            file, line, source = cut.file, cut.line, cut.source
            if cut.kind == "number":  # which may be read for logs, too
                file, line, source = recording.line_at(recording.at(cut.position).place)
            yield dead_gradient_.finding(
                f"no gradient arrives at {shown}, which the optimizer holds: {told_why}",
                severity="error" if lost else "note",
                phase=PHASES[FORWARD],
                op=cut.op,
                module=cut.module,
                file=file,
                line=line,
                source=source,
                step=recording.step_of(steps[0].position),
                symptom="silent-underflow",
                fixes=[_LOST[cut.kind]] if lost else [],
            )
