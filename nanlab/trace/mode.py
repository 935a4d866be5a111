"""The dispatch mode that nanlab's own derive from."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A mode that torch does not wrap to keep the compiler out: the wrapper imports the compiler
    first, which takes a second, and costs 2 us a call. Tried with torch 2.6 to 2.13."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
