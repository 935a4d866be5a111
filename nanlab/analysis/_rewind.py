"""Running the same training step again and again: what it changes is put back."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

MOST_OBJECTS = 2000  # that are looked through for models and optimizers


def held_by(step: Callable[..., Any]) -> list[Any]:
    """Models, optimizers, scalers, schedulers, generators and loose tensors that a step can reach."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(step, 0)]
    for value, depth in waiting:
        if id(value) in seen or len(seen) > MOST_OBJECTS:
            continue
        seen.add(id(value))
        if isinstance(value, (nn.Module, torch.Generator, torch.Tensor)) or _stateful(value):
            found.append(value)
        elif depth < 4:
            waiting.extend((part, depth + 1) for part in _parts(value))
    return found


def _stateful(value: Any) -> bool:
    return (
        hasattr(value, "state_dict")
        and hasattr(value, "load_state_dict")
        and not isinstance(value, (type, types.ModuleType))
    )


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, types.MethodType):
        yield value.__self__
        value = value.__func__
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType):
        closed = inspect.getclosurevars(value)
        yield from closed.nonlocals.values()
        yield from (v for v in closed.globals.values() if not isinstance(v, (types.ModuleType, type)))
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif hasattr(value, "__dict__") and not isinstance(value, (types.ModuleType, type)):
        yield from vars(value).values()


class Rewind:
    """The state before a step, to go back to."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.held = held_by(step)
        self.modules = [m for m in self.held if isinstance(m, nn.Module)]
        self._tensors = {id(t): t for m in self.modules for t in (*m.parameters(), *m.buffers())}
        self._tensors |= {id(t): t for t in self.held if isinstance(t, torch.Tensor)}
        self._values = [
            (t, t.detach().clone(), None if t.grad is None else t.grad.clone()) for t in self._tensors.values()
        ]
        others = [h for h in self.held if _stateful(h) and not isinstance(h, nn.Module)]
        self._states = [(h, copy.deepcopy(h.state_dict())) for h in others]
        self._generators = [(g, g.get_state()) for g in self.held if isinstance(g, torch.Generator)]
        self._modes = [(m, m.training) for root in self.modules for m in root.modules()]
        self._random = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  # the user's global state
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters of all models, by name; those outside of a model by number."""
        named = {n: p for m in self.modules for n, p in m.named_parameters()}
        known = {id(p) for p in named.values()}
        loose = [t for t in self._tensors.values() if t.requires_grad and t.is_leaf and id(t) not in known]
        return named | {f"tensor {i}": t for i, t in enumerate(loose)}

    def back(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for tensor, value, grad in self._values:
                if not torch.equal(tensor.detach(), value):
                    tensor.detach().copy_(value)
                tensor.grad = None if grad is None else grad.clone()
        for holder, state in self._states:
            holder.load_state_dict(copy.deepcopy(state))
        for generator, state in self._generators:
            generator.set_state(state)
        for module, training in self._modes:
            module.training = training
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002  # the user's global state
        torch.set_rng_state(self._random[2])
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    @contextmanager
    def run(self) -> Iterator[None]:
        """A block after which all is as it was."""
        try:
            yield
        finally:
            self.back()
