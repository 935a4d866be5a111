"""A call that waits to be judged: what it was, with something that holds each tensor in the place of the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanlab.capture.calls import Call, SavedValues
from nanlab.capture.holding import Held, Holding

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
    """The call without its tensors, and why."""
    return Waiting(replace(call, targets=[], args=(), kwargs={}, old=None, node=None, lost=reason), [], ())


def held(call: Call, holding: Holding, node: SavedValues | None) -> Waiting:
    """The call, with its tensors held; ``node``: what its autograd node had saved."""
    cells: dict[int, Held] = {}

    def hold(value: Any, watched: bool) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in cells:
                cells[id(value)] = holding.take(value, watched)
            return cells[id(value)]
        if type(value) in (list, tuple):
            return type(value)([hold(part, watched) for part in value])
        return value

    watched = call.plan.plain  # else the version of what it writes is told only when it has returned
    parts = [hold(part, watched) for part in (call.targets, tuple(call.args), call.old)]
    kwargs = {name: hold(part, watched) for name, part in call.kwargs.items()}
    saved = {name: hold(part, False) for name, part in node.values.items()} if node is not None else {}
    waiting = emptied(call, "")
    waiting.call.node = SavedValues(node.label, {}) if node is not None else None
    waiting.cells, waiting.form = list(cells.values()), (parts[0], parts[1], kwargs, parts[2], saved)
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
