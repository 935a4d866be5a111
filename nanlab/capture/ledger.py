"""Who wrote what: the latest operations that wrote each storage."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch

from nanlab.stats._memory import is_dense, local_part

ViewKey = tuple[int, tuple[int, ...], tuple[int, ...]]


class Entry:
    """What is known of one storage.

    Numbers >= 0 in ``last``, ``parts`` and ``views`` are positions in the trace; negative ones are
    sources (see ``Recording.sources``).
    """

    __slots__ = (
        "alive",
        "asked",
        "bad",
        "grad",
        "last",
        "nbytes",
        "odd",
        "owner",
        "parts",
        "serial",
        "uninit",
        "views",
    )

    def __init__(self, nbytes: int, serial: int, alive: _Alive) -> None:
        self.alive = alive
        self.serial = serial  # its number in the program; no two storages of a watch share one
        # What shows as many bytes shows all of it, as a rule; elements would not tell, for dtypes
        # have several sizes.
        self.nbytes = nbytes
        self.last = 0  # the latest operation that wrote all of it
        # later operations that wrote a part of it
        self.parts: list[int] | tuple[()] = ()
        # rows of partial views, valid until the next write
        self.views: dict[ViewKey, int] | None = None
        # whether a non-finite value may be in it: 0 no, 1 yes, -1 unknown (not on the CPU)
        self.bad = 0
        self.grad = False  # whether its content was computed from gradients
        self.owner = -1  # number of the parameter or buffer that lives in it
        # whether its gradient was asked for as that of a leaf: a parameter, if the program comes to
        # write to it
        self.asked = False
        self.uninit = False  # allocated and not yet written
        # whether some tensor has as many bytes as it, and yet does not show all of it:
        # ``x[:1].expand(4)`` of four elements
        self.odd = False


class _Alive(ref[torch.UntypedStorage]):
    """A weak reference to a storage, which knows its address."""

    __slots__ = ("address",)
    address: int


class Ledger:
    """The storages that live, by the address of their ``StorageImpl``.

    An entry goes with its storage: a weak reference of torch's own would keep the small object of
    the address, and that the holes around it from the next large block. The Python object of a
    storage lives as long as the storage (torch 2.1 to 2.13).
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._serial = 0
        self.promised: dict[int, int] = {}  # serial numbers that a running call gave out
        entries = self.entries

        def forget(gone: Any) -> None:
            entries.pop(gone.address, None)

        self._forget = forget

    def enter(self, storage: torch.UntypedStorage) -> Entry:
        """A new entry for a storage not seen before."""
        address: int = storage._cdata
        serial = self.promised.pop(address, 0) if self.promised else 0
        alive = _Alive(storage, self._forget)
        alive.address = address
        entry = self.entries[address] = Entry(storage.nbytes(), serial or self._next(), alive)
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

    def clear(self) -> None:
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
