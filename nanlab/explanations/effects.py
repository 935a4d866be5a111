"""What a run of a program shows of an edit, beside that nothing is raised."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor
_SPREADING = ("expand", "expand_as", "broadcast_to", "interpolate")
_PRODUCTS = ("matmul", "bmm", "mm", "linear", "einsum", "outer", "cdist")


@dataclass(frozen=True)
class Effects:
    """What a run did; the less of each but the first, the more likely it is what was meant."""

    calls: int = 0  # that gave a tensor: how far it came
    unlearned: int = 0  # parameters that are to learn, and got no gradient other than zero
    spread: int = 0  # calls of the program in which operands were broadcast over each other
    varying: int = 0  # calls of the program that now and then give a result of another rank

    def harms_beside(self, other: Effects) -> tuple[int, ...]:
        """What there should be none of, beyond what another run did too."""
        new = self.spread - other.spread, self.varying - other.varying
        return self.unlearned, *(max(0, each) for each in new)


NOTHING = Effects()


class Observed(TorchFunctionMode):
    """Notes what the calls of torch in a program's files do."""

    def __init__(self, files: set[str]) -> None:
        super().__init__()
        self.files = files
        self.calls = 0
        self.ranks: dict[tuple[tuple[CodeType, int], tuple[int, ...]], set[int]] = {}
        self.spread: set[tuple[CodeType, int]] = set()
        self.asked: dict[int, Tensor] = {}  # parameters of optimizers that made a step
        self.learned: set[int] = set()

    def __enter__(self) -> Any:
        self.hook = register_optimizer_step_pre_hook(self._stepped)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.hook.remove()
        super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **kwargs or {})
        frame = sys._getframe(1)
        self.calls += isinstance(found, Tensor)
        if isinstance(found, Tensor) and frame.f_code.co_filename in self.files:
            place = frame.f_code, frame.f_lasti
            given = [each for each in args if isinstance(each, Tensor)]
            ranks = tuple(each.dim() for each in given)
            self.ranks.setdefault((place, ranks), set()).add(found.dim())
            if _is_spread(getattr(func, "__name__", ""), given, found):
                self.spread.add(place)
        return found

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for each in group["params"]:
                self.asked[id(each)] = each
                if _learns(each):
                    self.learned.add(id(each))

    def effects(self, names: dict[str, Any]) -> Effects:
        """What was noted; names: those of the program at its end."""
        asked = dict(self.asked)
        if not asked:  # where only a gradient is computed
            for value in list(names.values()):
                with suppress(Exception):
                    if isinstance(value, nn.Module):
                        asked |= {id(p): p for p in value.parameters() if p.requires_grad}
            if all(p.grad is None for p in asked.values()):
                asked = {}
        learned = self.learned | {key for key, each in asked.items() if _learns(each)}
        varying = sum(len(ranks) > 1 for ranks in self.ranks.values())
        return Effects(self.calls, len({*asked} - learned), len(self.spread), varying)


def _learns(parameter: Tensor) -> bool:
    grad = parameter.grad
    if grad is None or grad.is_meta or grad.is_sparse:
        return grad is not None
    return bool(grad.ne(0).any())


def _is_spread(name: str, given: list[Tensor], found: Tensor) -> bool:
    """Whether each of two operands was broadcast, or one was made to hold more elements."""
    if name in _SPREADING:
        return found.numel() > given[0].numel() if given else False
    if len(given) != 2 or name in _PRODUCTS or not all(each.dim() for each in given):
        return False
    return found.numel() > max(each.numel() for each in given) and found.dim() == max(
        each.dim() for each in given
    )
