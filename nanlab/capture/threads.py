"""Which threads run the watched program."""

from __future__ import annotations

import threading

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack  # as in torch 2.6 to 2.13


def is_watched(mode: TorchDispatchMode) -> bool:
    """Whether the calling thread runs the watched program: the main thread, or one of torch's engine that works for it.

    torch's hooks are global, so they run in the threads of a prefetcher or of another training as well, while the
    dispatch mode of the watch is on only where the watch began and in the engine's threads.
    """
    return threading.get_ident() == threading.main_thread().ident or mode in _get_current_dispatch_mode_stack()
