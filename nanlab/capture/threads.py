"""Which threads run the watched program, and a thread for our own work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

_T = TypeVar("_T")


def is_watched(mode: TorchDispatchMode) -> bool:
    """Whether the calling thread runs the watched program: the main thread, or one of torch's
    engine that works for it.

    torch's hooks are global, so they run in the threads of a prefetcher or of another training as
    well, while the dispatch mode of the watch is on only where the watch began and in the engine's
    threads.
    """
    return (
        threading.get_ident() == threading.main_thread().ident
        or mode in _get_current_dispatch_mode_stack()
    )


def run_in_thread(function: Callable[[], _T]) -> _T:
    """Call a function in a thread of its own: inside an operation torch's autograd is switched off
    for the thread, and fixes are tried with it."""
    result: Future[_T] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="nanlab diagnosis")
    thread.start()
    thread.join()
    return result.result()
