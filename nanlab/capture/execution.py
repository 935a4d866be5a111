"""How the watched program is executed: its threads, its DataLoaders, code under torch.compile."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

# as in torch 2.6 to 2.13
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter  # private; as in torch 2.6 to 2.13

from nanlab.capture.dispatch import OpRecorder
from nanlab.trace.mode import is_hidden
from nanlab.trace.recording import Recording

# Which threads run the watched program, and a thread for our own work.

_T = TypeVar("_T")


def is_watched(mode: TorchDispatchMode) -> bool:
    """Whether the calling thread runs the watched program: the main thread, or one of torch's
    engine that works for it.

    torch's hooks are global, so they run in the threads of a prefetcher or of another training, and
    in what nanlab computes itself, as well, while the dispatch mode of the watch is on only where
    the watch began and in the engine's threads.
    """
    return not is_hidden() and (
        threading.get_ident() == threading.main_thread().ident
        or mode in _get_current_dispatch_mode_stack()
    )


def run_in_thread(function: Callable[[], _T]) -> _T:
    """Call a function in its own thread: autograd is off inside an operation, and fixes need it."""
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


# Batches of a DataLoader: which sample of the dataset brought a bad value.

MOST_BATCHES = 1000  # after which those whose rows were folded are forgotten


class BatchRecorder:
    """Notes the samples with bad values of each batch, by the indices that the loader's sampler
    drew.

    Also notes between which rows a batch was made, which the tables show as the phase ``data``.
    Wraps ``_next_index`` and ``__next__`` of the loader's iterators. Indices are drawn ahead of the
    batches that workers make of them, and batches come in the same order, unless the loader was
    told otherwise.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self._ops = ops
        self._drawn: WeakKeyDictionary[Any, deque[Any]] = WeakKeyDictionary()
        self._originals: dict[str, Any] = {}

    def start(self) -> None:
        """Follow the loaders that begin an epoch from now on."""
        for name, wrap in (("_next_index", self._draws), ("__next__", self._hands_out)):
            original = self._originals[name] = getattr(_BaseDataLoaderIter, name)
            setattr(_BaseDataLoaderIter, name, wrap(original))

    def stop(self) -> None:
        for name, original in self._originals.items():
            setattr(_BaseDataLoaderIter, name, original)
        self._originals.clear()
        self._drawn.clear()

    def _draws(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_index(loader: Any) -> Any:
            index = original(loader)
            if loader._num_yielded == 0 and getattr(loader, "_send_idx", 0) == 0:
                self._drawn[loader] = deque()  # an epoch begins
            if (drawn := self._drawn.get(loader)) is not None:
                drawn.append(index)
            return index

        return next_index

    def _hands_out(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_batch(loader: Any) -> Any:
            begin = self._ops.recording.end
            try:
                batch = original(loader)
            except StopIteration:
                raise
            except Exception:
                self._index_of(loader)  # of the batch that could not be made
                raise
            finally:
                if is_watched(self._ops):
                    self._made(begin)
            index = self._index_of(loader)
            if isinstance(index, list) and not self._ops.off and is_watched(self._ops):
                with self._ops.harmless:
                    self._note(batch, index)
            return batch

        return next_batch

    def _made(self, begin: int) -> None:
        """Note which rows a batch was made with, in this process."""
        recording = self._ops.recording
        if recording.end > begin:
            recording.batches.append((begin, recording.end))
            if len(recording.batches) > MOST_BATCHES:
                kept = recording.chunks[0].start
                recording.batches = [each for each in recording.batches if each[1] > kept]

    def _index_of(self, loader: Any) -> Any:
        """What the sampler drew for the batch at hand; None where it was not seen."""
        drawn = self._drawn.get(loader)
        return drawn.popleft() if drawn and getattr(loader, "_in_order", True) else None

    def _note(self, batch: Any, index: list[Any]) -> None:
        bad = self._ops.recording.bad
        for tensor in tree_leaves(batch):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.is_floating_point()
                and tensor.dim()
                and len(tensor) == len(index)
                and (source := self._ops.source(tensor)) in bad
            ):
                with self._ops.quiet():
                    rows = (~tensor.isfinite()).reshape(len(index), -1).any(1)
                    places = rows.nonzero().flatten().tolist()
                self._ops.recording.bad_samples[source] = {place: index[place] for place in places}


# Code under torch.compile: runs eagerly while a watch is on, and compiled as before after it.

NOTE = (
    "the watch ran code under torch.compile eagerly, so that each of its operations is seen; after"
    " the watch it runs compiled as before"
)


class EagerCode:
    """Holds ``torch.compiler.set_stance("force_eager")``, and notes between which rows compiled
    code would have run.

    The stance is taken when torch's compiler is first imported, which takes seconds in a program
    that has no use for it. To see a call, ``_callback_from_stance`` and ``_maybe_set_eval_frame``
    of ``torch._dynamo.eval_frame`` are wrapped; they are private, and in torch 2.6 to 2.13 each
    call of compiled code runs the first as it begins and the second as it begins and ends.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._held: ExitStack | None = None
        # Calls that run: frame of the wrapper, position of the first row, whether it was seen to
        # begin.
        self._calls: list[list[Any]] = []

    def start(self) -> None:
        """Take the stance, now or when ``torch.compile`` is first called."""
        self._held = ExitStack()
        if "torch._dynamo.eval_frame" in sys.modules:
            self._hold()
            return
        compile_ = torch.compile

        def compile(*args: Any, **kwargs: Any) -> Any:
            torch.compile = compile_
            self._hold()
            return compile_(*args, **kwargs)

        self._held.callback(setattr, torch, "compile", compile_)
        torch.compile = compile

    def stop(self) -> None:
        held, self._held = self._held, None
        self._calls.clear()
        if held is not None:
            held.close()

    def _hold(self) -> None:
        from torch._dynamo import eval_frame

        if self._held is None:
            return
        self._held.enter_context(torch.compiler.set_stance("force_eager"))
        for name, wrap in (
            ("_callback_from_stance", self._enters),
            ("_maybe_set_eval_frame", self._passes),
        ):
            original = getattr(eval_frame, name, None)
            if original is not None:
                self._held.callback(setattr, eval_frame, name, original)
                setattr(eval_frame, name, wrap(original))

    def _enters(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(callback: Any) -> Any:
            if callback is not None and callback is not False:
                self._calls.append([sys._getframe(1), self._recording.end, False])
                if NOTE not in self._recording.notes:
                    self._recording.notes.append(NOTE)
            return original(callback)

        return run

    def _passes(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(callback: Any) -> Any:
            if self._calls and self._calls[-1][0] is sys._getframe(1):
                if self._calls[-1][2]:
                    _, first, _ = self._calls.pop()
                    if not self._calls:  # not called by other compiled code
                        self._recording.compiled.append((first, self._recording.end))
                else:
                    self._calls[-1][2] = True
            return original(callback)

        return run
