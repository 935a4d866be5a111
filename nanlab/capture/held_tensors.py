"""Tensors held by reference, within a budget: before something is written over one, it is copied."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from nanlab.capture.ledger import ViewKey, storage_of, view_key
from nanlab.stats._memory import is_wrapper, unobserved

Tensor = torch.Tensor
MOST = 1 << 30  # bytes held
SHARE = 10  # one part in so many of a device's free memory
COPY_EACH = 64 << 20  # bytes of the largest tensor that is copied


class Held:
    """One tensor, for all calls that read or made it: an alias of it without its graph, or a copy made before it was overwritten.

    An alias, for the autograd engine takes other paths where somebody else holds the tensor itself.
    """

    __slots__ = ("identity", "key", "nbytes", "original", "tensor", "uses", "version")

    def __init__(self, tensor: Tensor | None, key: int, nbytes: int) -> None:
        self.tensor = tensor  # None: it is gone
        self.key = key  # of its storage; 0: none
        self.nbytes = nbytes  # of its storage
        self.original: weakref.ref[Tensor] | None = (
            None  # the tensor whose version tells of writes that no operation made
        )
        self.version = -1
        self.identity = 0  # id of the original
        self.uses = 1  # calls

    def now(self) -> Tensor | None:
        """The tensor as it was when it was taken; None if it is gone or was overwritten."""
        original = self.original() if self.original is not None else None
        if original is not None and version_of(original) != self.version:
            self.tensor = None
        elif self.tensor is not None and self.key:
            storage = storage_of(self.tensor)
            if storage is not None and storage.nbytes() != self.nbytes:  # freed under our hands, as sharding does
                self.tensor = None
        return self.tensor


class HeldTensors:
    """All that is held.

    owned: whether the storage with this key belongs to a parameter or buffer, which is in memory anyway.
    """

    def __init__(self, owned: Callable[[int], bool]) -> None:
        self.nbytes = 0  # of distinct storages
        self._owned = owned
        self.limit = MOST  # bytes from which on the oldest are to be dropped
        self._asked = False  # whether a device was asked for it
        self._cells: dict[int, set[Held]] = {}  # by storage
        self._known: dict[int, Held] = {}  # by the identity of the original
        self._counted: dict[int, int] = {}  # bytes of each storage, as far as they count

    def take(self, tensor: Tensor, watched: bool) -> Held:
        """Hold a tensor. To be called within ``unobserved()``.

        watched: notice by its version that it was overwritten (not where the call that is running writes it).
        """
        known = self._known.get(id(tensor))
        if known is not None and known.original is not None and known.original() is tensor:
            if known.version == version_of(tensor):
                known.uses += 1
                return known
        if not self._asked and tensor.is_cuda:
            self.limit, self._asked = limit_of(tensor.device), True
        try:
            alias = None if is_wrapper(tensor) else tensor.detach()
        except Exception:  # odd tensors fail in many ways; this one is not held
            alias = None
        storage = None if alias is None or tensor.is_meta else storage_of(alias)
        if storage is None:
            return Held(alias, 0, 0)
        held = Held(alias, storage._cdata, storage.nbytes())
        if watched:
            held.original, held.version, held.identity = weakref.ref(tensor), version_of(tensor), id(tensor)
            self._known[held.identity] = held
        self._count(held)
        return held

    def release(self, cells: Iterable[Held]) -> None:
        """Let go of tensors."""
        for held in cells:
            held.uses -= 1
            if not held.uses:
                held.tensor = held.original = None
                if self._known.get(held.identity) is held:
                    del self._known[held.identity]
                self._discount(held)

    def before_write(self, targets: list[Tensor]) -> None:
        """Copy what is held of the memory that is about to be written."""
        for target in targets:
            storage = storage_of(target)
            if storage is not None and storage._cdata in self._cells:
                with unobserved():
                    self._copy(list(self._cells[storage._cdata]))

    def _copy(self, cells: list[Held]) -> None:
        copies: dict[tuple[ViewKey, torch.dtype], Tensor] = {}
        for held in cells:
            self._discount(held)
            tensor = held.now()
            held.original = None
            if tensor is None or tensor.numel() * tensor.itemsize > COPY_EACH:
                held.tensor, held.key = None, 0
                continue
            key = (view_key(tensor), tensor.dtype)
            try:
                held.tensor = copies[key] if key in copies else copies.setdefault(key, tensor.clone())
            except RuntimeError:  # no memory for it
                held.tensor, held.key = None, 0
                continue
            storage = storage_of(held.tensor)
            held.key, held.nbytes = (storage._cdata, storage.nbytes()) if storage is not None else (0, 0)
            self._count(held)

    def _count(self, held: Held) -> None:
        if not held.key:
            return
        cells = self._cells.get(held.key)
        if cells is None:
            cells = self._cells[held.key] = set()
            counted = self._counted[held.key] = 0 if self._owned(held.key) else held.nbytes
            self.nbytes += counted
        cells.add(held)

    def _discount(self, held: Held) -> None:
        cells = self._cells.get(held.key)
        if cells is None:
            return
        cells.discard(held)
        if not cells:
            del self._cells[held.key]
            self.nbytes -= self._counted.pop(held.key)


def limit_of(device: torch.device) -> int:
    """The budget on a CUDA device: 1 GiB, or a tenth of the memory that the program could have of it now, if that is less."""
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(MOST, int(free) // SHARE)


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place, as far as torch knows; -1 where it does not count."""
    return -1 if tensor.is_inference() else tensor._version
