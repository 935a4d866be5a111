"""Parameters, state and settings of an optimizer, copied so that a step can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class OptimizerCopy:
    """Parameters, state and settings of an optimizer as they were."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        with torch.no_grad():
            self.parameters = [
                (p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]
            ]
            self.state = {
                p: {k: _copied(v) for k, v in s.items()} for p, s in optimizer.state.items()
            }
        self.groups = [
            {k: _copied(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups
        ]

    def put(self) -> None:
        """Put them back."""
        for parameter, value in self.parameters:
            write(parameter, value)
        state = self.optimizer.state
        for key in [k for k in state if k not in self.state]:
            del state[key]
        for key, values in self.state.items():
            current = state.setdefault(key, {})
            for name in [n for n in current if n not in values]:
                del current[name]
            for name, value in values.items():
                there = current.get(name)
                if (
                    isinstance(value, torch.Tensor)
                    and isinstance(there, torch.Tensor)
                    and there.shape == value.shape
                    and there.dtype == value.dtype
                ):
                    write(there, value)
                else:
                    current[name] = _copied(value)
        for group, values in zip(self.optimizer.param_groups, self.groups, strict=True):
            group.update({k: _copied(v) for k, v in values.items()})


def size_of(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that a copy of an optimizer takes."""
    states = (
        v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)
    )
    tensors = [*(p for g in optimizer.param_groups for p in g["params"]), *states]
    return sum(t.numel() * t.element_size() for t in tensors)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    # LBFGS keeps lists, and never writes to what is in them
    return list(value) if isinstance(value, list) else value


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write a value into a tensor, unseen by autograd."""
    with torch.no_grad():
        target.detach().copy_(value)


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """The closure that ``Optimizer.step`` was given; ``args`` begins with the optimizer."""
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    return closure if callable(closure) else None


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[..., Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``Optimizer.step`` with another closure."""
    if len(args) > 1:
        return (args[0], closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure}
