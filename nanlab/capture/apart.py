"""A call in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def apart(function: Callable[[], _T]) -> _T:
    """Call a function in a thread of its own: inside an operation torch's autograd is switched off for the thread, and fixes are tried with it."""
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
