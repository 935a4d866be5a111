"""Who wrote what: the latest writers of each storage, known statistics, and views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch

from nanlab.capture.plans import Plan
from nanlab.stats.memory import has_storage, is_dense, local_part
from nanlab.trace.chunk import Names
from nanlab.trace.program import View
from nanlab.trace.recording import Recording

# Who wrote what: the latest operations that wrote each storage.

ViewKey = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Entry:
    """What is known of one storage.

    Numbers >= 0 in ``last``, ``parts`` and ``views`` are positions in the trace; negative ones are
    sources (see ``Recording.sources``).
    """

    # What shows as many bytes shows all of it, as a rule; elements would not tell, for dtypes have
    # several sizes.
    nbytes: int
    serial: int  # its number in the program; no two storages of a watch share one
    alive: _Alive
    last: int = 0  # the latest operation that wrote all of it
    parts: list[int] | tuple[()] = ()  # later operations that wrote a part of it
    # rows of partial views, valid until the next write
    views: dict[ViewKey, int] | None = None
    # whether a non-finite value may be in it: 0 no, 1 yes, -1 unknown (not on the CPU)
    bad: int = 0
    grad: bool = False  # whether its content was computed from gradients
    owner: int = -1  # number of the parameter or buffer that lives in it
    # whether its gradient was asked for as that of a leaf: a parameter, if the program comes to
    # write to it
    asked: bool = False
    uninit: bool = False  # allocated and not yet written
    # whether some tensor has as many bytes as it, and yet does not show all of it:
    # ``x[:1].expand(4)`` of four elements
    odd: bool = False

    def show(self, key: ViewKey, row: int) -> None:
        """Note that a row describes a part of the storage."""
        if self.views is None:
            self.views = {}
        self.views[key] = row

    def write(self, row: int, bad: int, whole: bool, uninit: bool) -> None:
        """Note that a row wrote the storage, or a part of it."""
        self.views = None
        if whole:
            self.last, self.bad, self.uninit = row, bad, uninit
            if self.parts:
                self.parts = ()
            return
        if isinstance(self.parts, list):
            self.parts.append(row)
        else:
            self.parts = [row]
        self.bad = self.bad or bad


class _Alive(ref[torch.UntypedStorage]):
    """A weak reference to a storage, with the storage's address."""

    __slots__ = ("address",)
    address: int


class Ledger:
    """The living storages, by the address of their ``StorageImpl``.

    An entry goes with its storage. A weak reference of torch's own would keep the small object at
    the address, and so keep its surroundings from the next large block. The Python object of a
    storage lives as long as the storage (torch 2.1 to 2.13).
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.last = 0  # the latest serial number
        # serial numbers given out before the storage was entered
        self.promised: dict[int, int] = {}
        self.latest_collective = -1  # position at which it was called: it writes unseen
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

    def of(self, tensor: torch.Tensor) -> Entry | None:
        """What is known of a tensor's storage; None where it was not seen, or there is none."""
        storage = storage_of(tensor)
        return None if storage is None else self.entries.get(storage._cdata)

    def _next(self) -> int:
        self.last += 1
        return self.last

    def number(self, count: int) -> int:
        """The first of ``count`` new serial numbers."""
        first = self.last + 1
        self.last += count
        return first

    def promise(self, storage: torch.UntypedStorage) -> int:
        """The serial number that a storage will have once it is entered."""
        address = storage._cdata
        found = self.promised.get(address)
        if found is None:
            found = self.promised[address] = self._next()
        return found

    def clear(self) -> None:
        self.entries.clear()


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage that identifies a tensor, of its local part or values; None: there is none."""
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
    """The part of its storage that a tensor shows."""
    if tensor.layout is not torch.strided:
        return (0, tuple(tensor.shape), ())
    return (int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))


def shows_all(tensor: torch.Tensor, nbytes: int) -> bool:
    """Whether a tensor shows each byte of a storage of this size exactly once."""
    if tensor.numel() * tensor.itemsize != nbytes:
        return False
    return (
        tensor.layout is not torch.strided
        or tensor.is_contiguous()
        or is_dense(tensor.shape, tensor.stride())
    )


# Statistics that are known already: those of a view, a copy, or a gradient put back into zeros.

Tensor = torch.Tensor
# elements from which statistics are worked out from others rather than read from memory
WORTH_SAVING = 4096
# views whose numbers are others than those of their base
_FLIPS = frozenset({"_conj", "_neg_view"})
# A complex number counts as its two parts, so that a view of one as the other changes nothing.
_PARTS = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def known_stat(
    recording: Recording,
    plan: Plan,
    entry: Entry | None,
    target: Tensor,
    whole: bool,
    sources: list[int],
) -> int:
    """The statistics of the first operand that hold for the result, which has the same elements; -1
    if there are none.

    entry: of the storage that the result is a view of, or None. whole: whether it shows all of
    that.
    """
    if not sources:
        return -1
    if plan.copies or (entry is not None and not entry.parts and (plan.same_elements or whole)):
        return _stat_of(recording, sources[0], target) if plan.name not in _FLIPS else -1
    if plan.pads and target.numel() > WORTH_SAVING:
        numel = target.numel() * (2 if target.is_complex() else 1)
        known, chunk = recording.stat_of(sources[0]), recording.chunks[-1]
        if (
            known >> 32 == chunk.number
            and (row := chunk.stats.add_padded(known & 0xFFFFFFFF, numel)) >= 0
        ):
            return (chunk.number << 32) | row
    return -1


def _stat_of(recording: Recording, source: int, target: Tensor) -> int:
    """The statistics of a row (or source) if they hold for a tensor on its memory; else -1.

    They do not where ``view`` changes the dtype, where torch negates or conjugates as it reads, or
    where the row is that of an expanded or sparse tensor.
    """
    if target.is_neg() or target.is_conj():
        return -1
    dtype, stat = _dtype_of(recording, source), recording.stat_of(source)
    if stat < 0 or not (dtype is target.dtype or _PARTS.get(dtype) is target.dtype):
        return -1
    chunk = recording.chunks[stat >> 32]
    count = target.numel() * (2 if target.is_complex() else 1)
    return stat if chunk.stats.numel(chunk.stat_row(stat)) in (count, -1) else -1


def _dtype_of(recording: Recording, number: int) -> Any:
    """The dtype of a row or (negative) source; None if it is gone."""
    chunk = recording.chunks[-1]
    if number >= chunk.start:
        return recording.dtypes.items[chunk.dtype_of(number)]
    if number >= 0:
        row = recording.op(number)
        return row.dtype if row is not None else None
    return getattr(torch, recording.sources[number].dtype, None)


# What tensors show of their storages: each such view once, however many calls name it.

PLAIN: frozenset[Any] = frozenset({Tensor, torch.nn.Parameter})
_STRIDED = torch.strided
# Dtypes whose tensors are no lazy conjugates, nor quantised, until a complex one was seen.
_USUAL = frozenset(
    getattr(torch, name)
    for name in "float16 bfloat16 float32 float64 bool uint8 int8 int16 int32 int64".split()
)
_MOST = 20_000  # of a program whose shapes are others in each step


class TensorViews:
    """The views that were seen.

    ``known``: (offset, shape, strides, dtype, tracked) -> view, for as long as nothing is ``odd``:
    complex numbers, and what is made of them, and symbolic zeros.
    """

    def __init__(self, shapes: Names, dtypes: Names) -> None:
        self._shapes, self._dtypes = shapes, dtypes
        self.known: dict[tuple[Any, ...], View] = {}
        self.together: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # as arguments of one call
        self.odd = False

    def turn_odd(self) -> None:
        """From now on check each tensor for more than a view of memory."""
        if not self.odd:
            self.odd = True
            self.known.clear()

    def of(self, t: Tensor, tracked: int | None) -> View | None:
        """The view of a tensor; None where it is more than a view of memory."""
        if t.__class__ not in PLAIN or t.layout is not _STRIDED:
            return None
        dtype, bits = t.dtype, 0
        if self.odd or dtype not in _USUAL:
            self.turn_odd()
            if not is_plain(t):
                return None
            bits = (1 if t.is_conj() else 0) | (2 if t.is_neg() else 0)
        key = (t.storage_offset(), t.shape, t.stride(), dtype, tracked, bits)
        found = self.known.get(key if self.odd else key[:5])
        if found is None:
            rest = (key[0], tuple(t.shape), *key[2:])
            found = View(rest, t.numel() * t.itemsize, self._shapes(t.shape), self._dtypes(dtype))
            if len(self.known) >= _MOST:
                self.known.clear()
                self.together.clear()
            self.known[key if self.odd else key[:5]] = found
        return found


def is_plain(t: Tensor) -> bool:
    """Whether a tensor is just a view of its storage; symbolic zeros have no memory."""
    return t.__class__ in PLAIN and has_storage(t) and not t.is_quantized and not t._is_zerotensor()


def tracked_by(t: Tensor) -> int:
    """How autograd sees an operand: 0 not at all, 1 as a result, 2 as a leaf."""
    if not t.requires_grad:
        return 0
    try:
        return 2 if t.is_leaf else 1
    except RuntimeError:  # a view made and written without gradients (`p[3] -= 1`) has no node
        return 0
