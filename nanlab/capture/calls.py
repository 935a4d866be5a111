"""One call of an operation as it was observed, and what the autograd node behind it had saved."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from nanlab.capture.plans import Plan
from nanlab.stats._memory import has_memory, is_wrapper, local_part

Tensor = torch.Tensor
SavedTensor = torch._C._autograd.SavedTensor


@dataclass(slots=True)
class SavedValues:
    """Stands for an autograd node that has let go of its tensors since."""

    label: str
    values: dict[str, Any]
    hidden: tuple[str, ...] = ()  # what it had saved behind a hook

    def name(self) -> str:
        return self.label


@dataclass(slots=True)
class Call:
    """A call, with the tensors that it read and made; of a distributed tensor, the part that this
    process holds."""

    func: Any
    plan: Plan
    position: int  # of its first row
    outputs: int  # rows
    targets: list[Tensor]  # what it made, then what it changed: a row each
    sources: list[int]
    args: Any
    kwargs: Any
    old: Tensor | None  # what the first operand held before it was overwritten
    flags: int
    node: Any  # the autograd node that ran, its SavedValues, or None
    lost: str = ""  # why targets, args, kwargs and old are not at hand; "": they are

    def __post_init__(self) -> None:
        # this is called for every operation on a device
        if "torch.distributed.tensor" not in sys.modules:
            return
        self.targets, self.old = local_parts(self.targets), local_parts(self.old)
        self.args, self.kwargs = local_parts(self.args), local_parts(self.kwargs)


def saved_names(node: Any) -> list[str]:
    """The attributes under which a node gives what it has saved: ``_saved_*``, or a custom
    Function's ``saved_tensors``."""
    return [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]


def saved_values(node: Any, names: list[str], copied: bool = False) -> dict[str, Any]:
    """What a node has saved, by name, not copied; without what must not or cannot be read.

    copied: with what ``save_on_cpu`` keeps, which is copied back to its device.
    """
    found: dict[str, Any] = {}
    for name in names:
        if _has_hook(node, name, copied):
            continue
        try:
            value = getattr(node, name)
        except Exception:
            continue
        if isinstance(value, Tensor):
            value = unwrapped(value)
            if not is_wrapper(value) and has_memory(value):
                found[name.removeprefix("_saved_")] = value
        elif isinstance(value, (int, float, bool, str, complex)) or value is None:
            found[name.removeprefix("_saved_")] = value
        elif isinstance(value, (tuple, list)) and not any(
            isinstance(v, Tensor) and is_wrapper(v) for v in value
        ):
            found[name.removeprefix("_saved_")] = tuple(value)
    return found


def told_and_hidden(
    names: list[str], values: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values that were read, and the names of those that were not."""
    short = (name.removeprefix("_saved_") for name in names)
    return values, tuple(name for name in short if name not in values)


def _has_hook(node: Any, name: str, copied: bool) -> bool:
    """Whether reading a saved tensor would run somebody's hook, such as a checkpoint's, which may
    run only once.

    copied: not counting the hooks of ``save_on_cpu``, which copy. ``SavedTensor.unpack_hook`` was
    tried with torch 2.13; torch 2.6 and 2.9 have none and cannot say, so nothing is read there.
    """
    if not hasattr(SavedTensor, "unpack_hook"):
        return True
    raw = getattr(node, "_raw" + name if name.startswith("_") else "_raw_" + name, None)
    hooks = [
        getattr(r, "unpack_hook", None) for r in (raw if isinstance(raw, (tuple, list)) else (raw,))
    ]
    return any(hook is not None and not (copied and _copies(hook)) for hook in hooks)


def _copies(hook: Any) -> bool:
    name = getattr(hook, "__qualname__", "")
    return getattr(hook, "__module__", "") == "torch.autograd.graph" and name.startswith(
        "save_on_cpu."
    )


def read_by_derivative(node: str, func: Any, args: Any) -> dict[str, Any]:
    """What a node had saved, told by what its formula computes with: for nodes that do not show
    it."""
    first = args[0] if args and isinstance(args[0], Tensor) else None
    name = func.overloadpacket.__name__ if func is not None else ""
    if first is None or first.is_complex():
        return {}
    if node == "PowBackward0" and name == "pow":  # p x**(p - 1)
        return {"self": first}
    if node in ("AcosBackward0", "AsinBackward0") and name == "rsqrt":  # of 1 - x**2
        return {"self": (1 - first).sqrt()}
    if node == "AcoshBackward0" and name == "rsqrt":  # of x**2 - 1
        return {"self": (1 + first).sqrt()}
    return {}


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that a transform of torch.func works on: its wrapper has no memory. As in torch
    2.13."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def local_parts(value: Any) -> Any:
    """Arguments with what this process holds in the place of distributed tensors."""
    if isinstance(value, Tensor):
        return local_part(value)
    if type(value) in (list, tuple):
        return type(value)(local_parts(v) for v in value)
    return {k: local_parts(v) for k, v in value.items()} if type(value) is dict else value


def tensors_of(args: Any) -> list[Tensor]:
    """The tensors among arguments, in their order."""
    found = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found
