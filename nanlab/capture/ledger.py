"""Who wrote what: the latest operations that wrote each storage."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.stats._memory import is_dense, local_part

MOST_DEAD = 256  # storages entered between two sweeps, where few are alive

ViewKey = tuple[int, tuple[int, ...], tuple[int, ...]]


class Entry:
    """What is known of one storage.

    Numbers >= 0 in ``last``, ``parts`` and ``views`` are positions in the trace; negative ones are
    sources (see ``Recording.sources``).
    """

    last = 0  # the latest operation that wrote all of it
    parts: list[int] | tuple[()] = ()  # later operations that wrote a part of it
    views: dict[ViewKey, int] | None = None  # rows of partial views, valid until the next write
    bad = 0  # whether a non-finite value may be in it: 0 no, 1 yes, -1 unknown (not on the CPU)
    grad = False  # whether its content was computed from gradients
    owner = -1  # number of the parameter or buffer that lives in it
    asked = (
        # whether its gradient was asked for as that of a leaf: a parameter, if the program comes to
        # write to it
        False
    )
    uninit = False  # allocated and not yet written
    # whether some tensor has as many bytes as it, and yet does not show all of it:
    # ``x[:1].expand(4)`` of four elements
    odd = False

    def __init__(self, nbytes: int, weak: int, serial: int) -> None:
        self.serial = serial  # its number in the program; no two storages of a watch share one
        # What shows as many bytes shows all of it, as a rule; elements would not tell, for dtypes
        # have several sizes.
        self.nbytes = nbytes
        # a weak reference: keeps the address from being used again, not the memory
        self.weak = weak


class Ledger:
    """Storages by the address of their ``StorageImpl``; a held weak reference makes an address
    unique.

    It also keeps that small object where it is, between large blocks of memory, which soon lie in
    pieces: with a few hundred of them the allocator asks the system for fresh pages at every step.
    So the dead are swept out often.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._full = MOST_DEAD  # entries at which it is swept next
        self._serial = 0
        self.promised: dict[int, int] = {}  # serial numbers that a running call gave out

    def enter(self, storage: torch.UntypedStorage) -> Entry:
        """A new entry for a storage not seen before."""
        if len(self.entries) >= self._full:
            self.sweep()
            alive = len(self.entries)  # thousands, of a wide model
            self._full = alive + max(MOST_DEAD, alive // 8)
        weak: int = storage._weak_ref()  # type: ignore[assignment]
        serial = self.promised.pop(weak, 0) if self.promised else 0
        entry = self.entries[weak] = Entry(storage.nbytes(), weak, serial or self._next())
        return entry

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def promise(self, storage: torch.UntypedStorage) -> int:
        """The serial number that a storage will have once the running call has entered it."""
        address = storage._cdata
        found = self.promised.get(address)
        if found is None:
            found = self.promised[address] = self._next()
        return found

    def sweep(self) -> None:
        """Forget storages that the program has freed."""
        expired, free = torch.UntypedStorage._expired, torch.UntypedStorage._free_weak_ref
        gone = [key for key in self.entries if expired(key)]
        for key in gone:
            del self.entries[key]
            free(key)

    def clear(self) -> None:
        for key in self.entries:
            torch.UntypedStorage._free_weak_ref(key)
        self.entries.clear()


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage that identifies a tensor; of a distributed one that of its local part, of a
    sparse one its values'. None where there is none."""
    tensor = local_part(tensor)
    try:
        return tensor.untyped_storage()
    except Exception:
        pass
    try:
        values: Any = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
        return values.untyped_storage()  # type: ignore[no-any-return]
    except Exception:
        return None


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape; () for a nested tensor or a lazy parameter, which have none."""
    try:
        return tensor.shape
    except RuntimeError:
        return ()


def view_key(tensor: torch.Tensor) -> ViewKey:
    """Which part of its storage a tensor shows."""
    if tensor.layout is not torch.strided:
        return (0, tuple(tensor.shape), ())
    return (int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))


def shows_all(tensor: torch.Tensor, nbytes: int) -> bool:
    """Whether a tensor shows each byte of a storage of this size, and each once."""
    if tensor.numel() * tensor.itemsize != nbytes:
        return False
    return (
        tensor.layout is not torch.strided
        or tensor.is_contiguous()
        or is_dense(tensor.shape, tensor.stride())
    )
