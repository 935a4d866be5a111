"""The dispatch mode that nanlab's own derive from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


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
    """What is computed in here is none of the program's: no mode sees it, nor a watch's hooks."""
    _hidden.depth += 1
    try:
        with _disable_current_modes():
            yield
    finally:
        _hidden.depth -= 1


def is_hidden() -> bool:
    """Whether this thread is inside of :func:`hidden`."""
    return _hidden.depth > 0
