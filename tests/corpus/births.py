"""A witness apart from nanlab: where non-finite values appear, by torch's own dispatcher and anomaly mode."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Birth:
    """One operator whose result is bad although its operands were not: NaN or inf from finite, or NaN from inf."""

    step: int
    op: str
    node: str  # "SqrtBackward0"; "" in the forward pass
    lines: tuple[int, ...]  # of the program, innermost; a second one for a node made by double backward


def badness(values: Iterable[Any]) -> tuple[bool, bool]:
    """Whether any tensor holds a NaN, and an infinity."""
    # tensors of zeros that own no memory, and shapes without values, occur inside derivative formulas
    tensors = [
        value
        for value in values
        if isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
        and not value.is_meta
        and not value._is_zerotensor()
    ]
    tensors = [t.float() if t.dtype.itemsize == 1 else t for t in tensors]  # float8 has no isinf
    return any(bool(t.isnan().any()) for t in tensors), any(bool(t.isinf().any()) for t in tensors)


@dataclass
class Witness(TorchDispatchMode):
    """Records each `Birth`; run it under `torch.autograd.set_detect_anomaly(True, check_nan=False)`."""

    file: str
    step: int = -1
    births: list[Birth] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        nan_in, inf_in = badness(tree_leaves((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        nan_out, inf_out = badness(tree_leaves(result))
        if (nan_out and not nan_in) or (inf_out and not nan_in and not inf_in):
            self.births.append(self.describe(func.__name__.split(".")[0]))
        return result

    def describe(self, op: str) -> Birth:
        node = torch._C._current_autograd_node()
        if node is None:
            return Birth(self.step, op, "", self.lines_in(["".join(traceback.format_stack())]))
        makers = [node, node.metadata.get("parent_")]
        stacks = ["".join(maker.metadata.get("traceback_", [])) for maker in makers if maker is not None]
        return Birth(self.step, op, node.name(), self.lines_in(stacks))

    def lines_in(self, stacks: list[str]) -> tuple[int, ...]:
        found = [re.findall(rf'{re.escape(self.file)}", line (\d+)', stack) for stack in stacks]
        return tuple(int(lines[-1]) for lines in found if lines)
