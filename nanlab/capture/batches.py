"""Batches of a DataLoader: which sample of the dataset brought a bad value."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter  # private; as in torch 2.6 to 2.13

from nanlab.capture.dispatch import OpRecorder
from nanlab.capture.threads import is_watched

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
        """Follow none."""
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
                try:
                    self._note(batch, index)
                except Exception as error:
                    self._ops.failed(error)
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
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if (
                tensor.dim()
                and len(tensor) == len(index)
                and (source := self._ops.source(tensor)) in bad
            ):
                with self._ops.quiet():
                    rows = (
                        (~tensor.isfinite()).flatten(1).any(1)
                        if tensor.dim() > 1
                        else ~tensor.isfinite()
                    )
                    places = rows.nonzero().flatten().tolist()
                self._ops.recording.bad_samples[source] = {place: index[place] for place in places}
