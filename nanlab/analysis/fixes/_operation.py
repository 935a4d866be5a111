"""The forward operation behind a fault, rebuilt from the operands that were kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._calls import NOWHERE, Calls
from nanlab.analysis.fixes._following import (
    Product,
    derivative_fails_too,
    fails_too,
    made_of,
    products_after,
    products_before,
    reached,
    same_elsewhere,
    twins_of,
    usual_gradient,
)
from nanlab.analysis.fixes._gradients import carrying, incoming, only_way
from nanlab.analysis.fixes._neighbours import (
    calls_like,
    checkpointed,
    divides,
    logarithm_after,
    products_with_zeros,
    trap,
)
from nanlab.analysis.fixes._nodes import of_node
from nanlab.analysis.fixes._onward import Path, paths_after
from nanlab.analysis.fixes._recorded import OPTIONS, WARNING, first_tensor, is_number, single
from nanlab.analysis.fixes._upstream import Maker, makers, positive_maker
from nanlab.analysis.origin_names import in_hook
from nanlab.analysis.training import comes_from_gradients, optimizer_step_at
from nanlab.trace.names import Span
from nanlab.trace.recording import (
    BACKWARD,
    CALL,
    FLAGS,
    LINE,
    MODULE,
    NODE,
    NOGRAD,
    OP,
    OPTIMIZER,
    OUTPUT,
    PHASE,
    Kept,
    Recording,
)


@dataclass(frozen=True)
class Operation:
    """A forward operation with the operands with which it, or its derivative, failed."""

    name: str  # aten name without the underscore of an in-place variant
    operands: tuple[Any, ...]  # tensors, and numbers where a number was given
    plain: Callable[..., Tensor]  # the operation itself, of the operands
    options: dict[str, Any] = field(default_factory=dict)  # dim, keepdim, correction, ord, dtype
    gradient: Tensor | None = None  # that came in, where it was kept
    backward: bool = False  # its derivative failed, not its value
    differentiates: bool = True  # False: an optimizer's arithmetic, or under no_grad
    divides: bool = False  # what follows divides by the result, or takes its logarithm
    logged: int = 0  # line of a logarithm of what comes of the result, 0 where the result is
    trapped: str = ""  # why its neighbours spoil whatever is written here
    ahead: tuple[Product, ...] = ()  # what its value is multiplied by
    behind: tuple[Product, ...] = ()  # what the gradient that it passes on is multiplied by
    beside: str = ""  # which other line fails as well
    line: int = 0  # of the user's file
    # which other operation fails that is not made of the positive number this one is made of
    unrelated: str = ""
    here: str = ""  # which other operation of the same line does
    twins: tuple[Operation, ...] = ()  # these, where all are of the same operator
    # elements to which 0 or NaN came in as gradient, where that was recorded
    unreached: int | None = None
    usual: float = 1.0  # magnitude of the gradients that come in, where no gradient was kept
    carrying: tuple[int, ...] | None = None  # which operands carry a gradient; None: all that may
    onward: tuple[Path, ...] = ()  # what reads its value, as far as it can be run again
    # of the first two operands: what made them, nearest first
    makers: tuple[tuple[Maker, ...], ...] = ()
    custom: str = ""  # the autograd.Function in whose backward it stands
    twice: bool = False  # its second derivative failed
    module: str = ""  # whose forward it belongs to
    hooked: bool = False  # its saved tensors go through hooks, as under activation checkpointing
    calls: Calls = NOWHERE  # of the operator in this run of the line
    only_way: bool = False  # every gradient of the backward pass comes through its derivative
    # where the step multiplies by a tensor that has zeros; None: not known
    products: frozenset[Span] | None = None

    @property
    def x(self) -> Tensor:
        return next(t for t in self.operands if isinstance(t, Tensor))

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype in which it was computed."""
        found = [
            t.dtype
            for t in self.operands
            if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())
        ]
        return found[0] if found else torch.get_default_dtype()

    @property
    def low(self) -> bool:
        """Whether it was computed in half precision."""
        return self.dtype in (torch.float16, torch.bfloat16)


def operation_of(recording: Recording, position: int) -> Operation | None:
    """The operation of a row whose operands were kept; None where they were not, or where it cannot
    be rebuilt."""
    row = recording.row(position) if position >= 0 else None
    kept = recording.kept.get(row[CALL]) if row is not None else None
    if row is None or kept is None:
        return None
    if row[PHASE] != BACKWARD or in_hook(recording, position):
        return _as_it_ran(recording, position, row, kept)
    return _differentiated(recording, row, kept)


def _as_it_ran(recording: Recording, position: int, row: tuple[int, ...], kept: Kept) -> Operation:
    """A call of the program itself: forward, in an update, or in a hook."""
    call, line = row[CALL], recording.places[row[LINE]][1]
    differentiates = row[PHASE] not in (OPTIMIZER, BACKWARD) and not row[FLAGS] & NOGRAD
    if row[NODE] < 0 and comes_from_gradients(recording, call):
        differentiates = False  # an update written by hand
    op = replace(
        as_called(kept), differentiates=differentiates, hooked=checkpointed(recording, row)
    )
    # each result has operands of its own
    listed = recording.ops.items[row[OP]].startswith("_foreach_")
    before = tuple(makers(recording, call, slot) for slot in ((row[OUTPUT],) if listed else (0, 1)))
    step = optimizer_step_at(recording, position) if row[PHASE] == OPTIMIZER else None
    if step is not None:
        op.options["optimizer"] = step.optimizer
    after, arrives = made_of(recording, call), differentiates and reached(recording, row)
    positive = positive_maker(op.name, line, before)
    return replace(
        op,
        line=line,
        unrelated=fails_too(recording, call, after, None, positive.position)
        if positive is not None
        else "",
        divides=divides(recording, call),
        logged=logarithm_after(recording, call),
        trapped=trap(recording, call) if arrives else "",
        ahead=products_after(recording, call),
        behind=products_before(recording, call) if differentiates else (),
        beside=fails_too(recording, call, after) or same_elsewhere(recording, call),
        here=(here := fails_too(recording, call, after, here=True)),
        twins=_twins(recording, call) if here else (),
        usual=usual_gradient(recording, call),
        carrying=carrying(recording, row, op.operands) if arrives else (),
        onward=paths_after(recording, call),
        makers=before,
        module=recording.modules.items[row[MODULE]],
        calls=calls_like(recording, call),
    )


def _twins(recording: Recording, call: int) -> tuple[Operation, ...]:
    """The other calls on this line that fail by themselves; none where the operands of one were not
    kept."""
    rows = {at: recording.row(at) for at in twins_of(recording, call)}
    kept = {at: recording.kept.get(row[CALL]) for at, row in rows.items() if row is not None}
    found = [
        replace(as_called(k), carrying=carrying(recording, row, as_called(k).operands))
        for at, k in kept.items()
        if k is not None and (row := rows[at]) is not None
    ]
    return tuple(found) if len(found) == len(rows) else ()


def _differentiated(recording: Recording, row: tuple[int, ...], kept: Kept) -> Operation | None:
    """The forward operation whose derivative failed, rebuilt from what its autograd node had
    saved."""
    info = recording.nodes.get(row[NODE])
    if info is not None and info.custom:
        return replace(
            as_called(kept), custom=kept.node_name.removesuffix("Backward"), differentiates=False
        )
    rebuilt = of_node(kept, recording, row[NODE])
    if rebuilt is None:
        return None
    name, operands, plain, options = rebuilt
    hooked = checkpointed(recording, row)
    before = (
        tuple(makers(recording, info.position, slot) for slot in (0, 1)) if info is not None else ()
    )
    above = recording.row(info.position) if info is not None and info.position >= 0 else None
    second = above is not None and above[PHASE] == BACKWARD
    if second and name == "pow" and not isinstance(operands[1], Tensor):  # d x**p = p x**(p - 1) dx
        return Operation(
            name,
            (operands[0], operands[1] + 1),
            plain,
            options,
            None,
            True,
            twice=True,
            hooked=hooked,
        )
    trapped = "it is a second derivative, of which the line shows only the first" if second else ""
    if not trapped and above is not None and info is not None:
        trapped = trap(recording, info.position)
    gradient = incoming(recording, kept, row)
    onward = paths_after(recording, info.position) if info is not None and not second else ()
    found = Operation(
        name,
        operands,
        plain,
        options,
        gradient,
        True,
        trapped=trapped,
        makers=before,
        hooked=hooked,
    )
    line = recording.places[info.line][1] if info is not None else 0
    taken = [source for run in recording.node_runs if run.node == row[NODE] for source in run.taken]
    stats = recording.stats(taken[0]) if len(taken) == 1 else None
    return replace(
        found,
        line=line,
        calls=calls_like(recording, info.position) if info is not None and not second else NOWHERE,
        products=products_with_zeros(recording, row[CALL]),
        only_way=name.startswith(("_linalg", "linalg")) and only_way(recording, row),
        onward=onward,
        beside=derivative_fails_too(recording, row[CALL]),
        carrying=carrying(recording, above or row, operands),
        # NaN: 0 / NaN
        unreached=int(stats.zero + stats.nan) if stats is not None and stats.known else None,
    )


def as_called(kept: Kept) -> Operation:
    """A forward call, to be repeated with its operands exchanged."""
    kept = single(kept)
    overload = kept.op.overloadpacket.__name__
    name = overload.rstrip("_") or overload
    names = OPTIONS.get(name, ())
    if any(isinstance(a, list) and a and isinstance(a[0], Tensor) for a in kept.args):
        return _of_lists(kept, name)
    slots = [
        i for i, a in enumerate(kept.args) if isinstance(a, Tensor) or (not names and is_number(a))
    ]
    options = dict(kept.kwargs)
    rest = [a for i, a in enumerate(kept.args) if i not in slots]
    options |= dict(zip(names, rest, strict=False))
    inplace = overload.endswith("_")
    call = getattr(torch, overload) if overload in WARNING else kept.op

    def plain(*operands: Any) -> Tensor:
        args = list(kept.args)
        for slot, operand in zip(slots, operands, strict=True):
            args[slot] = operand.clone() if inplace and slot == 0 else operand
        return first_tensor(call(*args, **kept.kwargs))

    return Operation(name, tuple(kept.args[i] for i in slots), plain, options)


def _of_lists(kept: Kept, name: str) -> Operation:
    """A call on lists of one tensor (or number) each, as a function of these; its in-place results
    are the first list."""
    filled = [
        i
        for i, a in enumerate(kept.args)
        if isinstance(a, list)
        and a
        and (isinstance(a[0], Tensor) or (len(a) == 1 and is_number(a[0])))
    ]

    def call(changes: dict[str, Any], *operands: Any) -> Tensor:
        args = list(kept.args)
        for slot, operand in zip(filled, operands, strict=True):
            args[slot] = [operand.detach().clone() if isinstance(operand, Tensor) else operand]
        result = kept.op(*args, **(kept.kwargs | changes))
        return first_tensor(result if result else args[filled[0]])

    single = {
        "_foreach_addcdiv": "addcdiv",
        "_foreach_div": "div",
        "_foreach_reciprocal": "reciprocal",
        "_foreach_sqrt": "sqrt",
        "_foreach_norm": "linalg_vector_norm",
    }.get(name, name)
    options = {"with_eps": lambda eps, *ts: call({"eps": eps}, *ts)}
    return Operation(
        single, tuple(kept.args[i][0] for i in filled), lambda *ts: call({}, *ts), options
    )
