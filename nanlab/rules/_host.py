"""Kept operands as rules look at them: on the host, of one result; fixes are tried on the device
that they came from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nanlab.rules._neighbourhood import ON_LISTS
from nanlab.trace.recording import Kept


def on_host(kept: Kept | None, place: int = 0) -> Kept | None:
    """The same call with every tensor on the CPU; the very tensors where they are there already.

    place: of the result that is asked for; of a call on lists (``_foreach_``) what went into that
    one is told.
    """
    if kept is None:
        return None
    listed = kept.op is not None and kept.op.overloadpacket.__name__.startswith(ON_LISTS)
    own = _of_member(kept, place) if listed else kept.args
    args, kwargs, outputs, saved = (
        _moved(part) for part in (own, kept.kwargs, kept.outputs, kept.saved)
    )
    return replace(kept, args=args, kwargs=kwargs, outputs=outputs, saved=saved)


def _of_member(kept: Kept, place: int) -> tuple[Any, ...]:
    """The members at one place of the lists that a call was given; None for one that its result has
    overwritten."""
    args = [a[place] if isinstance(a, (list, tuple)) and place < len(a) else a for a in kept.args]
    overwritten = kept.op.overloadpacket.__name__.endswith("_")
    if (
        overwritten
        and isinstance(args[0], torch.Tensor)
        and not bool(torch.isfinite(args[0]).all())
    ):
        args[0] = None
    return tuple(args)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _moved(part) for name, part in value.items()}
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(_moved(part) for part in value) if type(value) in (list, tuple) else value
