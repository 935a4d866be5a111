"""A call that waits to be judged: what it was, with something that holds each tensor in the place of the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanlab.capture.calls import Call, SavedValues
from nanlab.capture.held_tensors import Held, HeldTensors

Tensor = torch.Tensor
OVERWRITTEN = "they were overwritten before their device had told its statistics"


@dataclass(slots=True)
class Waiting:
    """One call."""

    call: Call  # without its tensors
    cells: list[Held]
    form: tuple[
        Any, ...
    ]  # targets, args, kwargs, old, saved values, with Held in place of tensors; (): they were let go

    def recall(self) -> Call:
        """The call with its tensors, or with the reason why they are lost."""
        if not self.form:
            return self.call
        try:
            targets, args, kwargs, old = (_given_back(part) for part in self.form[:4])
        except _GoneError:
            return replace(self.call, lost=OVERWRITTEN)
        node = self.call.node
        if node is not None:
            node = SavedValues(node.label, dict(_still_there(self.form[4])))
        return replace(self.call, targets=targets, args=args, kwargs=kwargs, old=old, node=node)


def emptied(call: Call, reason: str) -> Waiting:
    """The call, which lets go of its tensors, and why."""
    call.targets, call.args, call.kwargs, call.old, call.node, call.lost = [], (), {}, None, None, reason
    return Waiting(call, [], ())


def held(call: Call, holding: HeldTensors, node: SavedValues | None) -> Waiting:
    """The call, which lets go of its tensors, and what holds them; ``node``: what its autograd node had saved."""
    cells: dict[int, Held] = {}
    take, watched = (
        holding.take,
        call.plan.plain,
    )  # else the version of what it writes is told only when it has returned

    def hold(value: Any) -> Any:
        if isinstance(value, Tensor):
            cell = cells.get(id(value))
            if cell is None:
                cell = cells[id(value)] = take(value, watched)
            return cell
        if type(value) in (list, tuple):
            return type(value)([hold(v) if isinstance(v, (Tensor, list, tuple)) else v for v in value])
        return value

    targets, args, old = hold(call.targets), hold(tuple(call.args)), hold(call.old)
    kwargs = {name: hold(value) for name, value in call.kwargs.items()}
    watched = False
    saved = {name: hold(value) for name, value in node.values.items()} if node is not None else {}
    waiting = emptied(call, "")
    if node is not None:
        call.node = SavedValues(node.label, {})
    waiting.cells, waiting.form = list(cells.values()), (targets, args, kwargs, old, saved)
    return waiting


class _GoneError(Exception):
    """A tensor that was held is no longer what it was."""


def _given_back(value: Any) -> Any:
    """The value with tensors in place of what holds them; raises _GoneError."""
    if isinstance(value, Held):
        tensor = value.now()
        if tensor is None:
            raise _GoneError
        return tensor
    if isinstance(value, dict):
        return {name: _given_back(part) for name, part in value.items()}
    return type(value)([_given_back(part) for part in value]) if type(value) in (list, tuple) else value


def _still_there(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        with suppress(_GoneError):
            yield name, _given_back(value)
