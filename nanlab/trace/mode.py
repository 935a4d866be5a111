"""The dispatch mode that nanlab's own derive from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from inspect import isfunction
from typing import TypeVar

# private; as in torch 2.6 to 2.13
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)


class DispatchMode(TorchDispatchMode):
    """A mode that torch does not wrap to keep the compiler out: the wrapper imports the compiler
    first, which takes a second, and costs 2 us a call. Tried with torch 2.6 to 2.13."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Hidden(threading.local):
    depth = 0


_hidden = _Hidden()


@contextmanager
def hidden() -> Iterator[None]:
    """Hide computations from the program's modes and from a watch's hooks."""
    _hidden.depth += 1
    try:
        with _disable_current_modes():
            yield
    finally:
        _hidden.depth -= 1


@contextmanager
def aside() -> Iterator[None]:
    """Hide nanlab's own computations inside of a watch; outside of one they may be watched."""
    with hidden() if _get_current_dispatch_mode_stack() else nullcontext():
        yield


_C = TypeVar("_C")


def apart(kind: type[_C]) -> type[_C]:
    """Make the public methods and properties of a class safe to call inside of a watch: a decorator
    that hides what they compute."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isfunction(member):
            setattr(kind, name, aside()(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, member.getter(aside()(member.fget)))
    return kind


def is_hidden() -> bool:
    """Whether this thread is inside of :func:`hidden`."""
    return _hidden.depth > 0
