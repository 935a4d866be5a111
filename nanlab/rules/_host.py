"""Kept operands on the host, where rules look at them; fixes are tried on the device that they came from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nanlab.trace.recording import Kept


def on_host(kept: Kept | None) -> Kept | None:
    """The same call with every tensor on the CPU; the very tensors where they are there already."""
    if kept is None:
        return None
    args, kwargs, outputs, saved = (_moved(part) for part in (kept.args, kept.kwargs, kept.outputs, kept.saved))
    return replace(kept, args=args, kwargs=kwargs, outputs=outputs, saved=saved)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _moved(part) for name, part in value.items()}
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(_moved(part) for part in value) if type(value) in (list, tuple) else value
