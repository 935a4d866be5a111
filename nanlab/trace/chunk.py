"""The rows of a training step as numbers, and what remains of them when they are folded."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nanlab.stats import StatsTable

# Texts, and other things that occur often, as small numbers.

# first line, first column, last line, column after the last; columns in bytes of UTF-8
Span = tuple[int, int, int, int]


class Names:
    """Texts (or other hashables) by small numbers."""

    def __init__(self, *first: Any) -> None:
        self.items: list[Any] = list(first)
        self.ids: dict[Any, int] = {item: i for i, item in enumerate(first)}

    def __call__(self, item: Any) -> int:
        number = self.ids.get(item)
        if number is None:
            number = self.ids[item] = len(self.items)
            self.items.append(item)
        return number


# Columns of Chunk.meta, one int64 each.
OP, PHASE, MODULE, OUTPUT, SHAPE, DTYPE, DEVICE, STAT, NODE, LINE, SITE, FLAGS, CALL, PASS = range(
    14
)
WIDTH = 14
# Bits of FLAGS.
UNINIT, LITERAL, VIEW, INPLACE, NOGRAD = 1, 2, 4, 8, 16
FACTOR = 32  # multiplied or divided by a Python number other than zero
ARRIVED = 64  # written by a collective
# array.frombytes(pack_row(...)) takes a fifth of array.extend((...))
pack_row = struct.Struct(f"{WIDTH}q").pack
pack_edge, pack_edges = struct.Struct("3q").pack, struct.Struct("6q").pack  # of one, of two

Array = npt.NDArray[np.int64]


Mask = npt.NDArray[np.bool_]


def _column(column: int) -> Any:
    """A column of a table, as an attribute."""
    return property(lambda columns: columns._table[:, column])


def _flagged(bit: int) -> Any:
    """The rows with a bit among their flags, as an attribute."""
    return property(lambda columns: (columns._table[:, FLAGS] & bit) != 0)


class Columns:
    """The rows of a step as arrays, one for each column; indexed, some of the rows."""

    def __init__(self, table: Array) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, rows: Any) -> Columns:
        return Columns(self._table[rows])

    def named(self, names: Names, wanted: Container[str]) -> Mask:
        """Rows of these operators."""
        return np.array([name in wanted for name in names.items] or [False])[self.op]

    op: Array = _column(OP)  # numbers in ``recording.ops``
    phase: Array = _column(PHASE)  # FORWARD, BACKWARD, ...
    shape: Array = _column(SHAPE)  # numbers in ``recording.shapes``
    dtype: Array = _column(DTYPE)  # numbers in ``recording.dtypes``
    stat: Array = _column(STAT)  # numbers of statistics; -1 where there are none
    node: Array = _column(NODE)  # autograd sequence numbers; -1 where there are none
    call: Array = _column(CALL)  # positions of the first results of the same calls
    view: Mask = _flagged(VIEW)  # rows that share memory with an operand
    inplace: Mask = _flagged(INPLACE)  # rows that were written into memory that held another value

    @property
    def identity(self) -> Array:
        """(rows, 6): what tells a result from the others of its step."""
        return self._table[:, (LINE, OP, MODULE, OUTPUT, PHASE, DTYPE)]

    def row(self, at: int) -> tuple[int, ...]:
        """The numbers of one row."""
        return tuple(self._table[at].tolist())


class Chunk:
    """The rows of one training step."""

    def __init__(self, number: int, start: int) -> None:
        self.number = number
        self.start = start
        self._meta = array("q")
        self.edges = array("q")  # call, source, slot
        # writes the rows of calls that have run, where these are noted later
        self.late: Callable[[], None] | None = None
        self.coming = 0  # rows that it writes
        self.stats = StatsTable()
        self.positions: npt.NDArray[np.int64] | None = None  # after folding: which rows were kept
        # after folding: which statistics were kept
        self.stat_rows: npt.NDArray[np.int64] | None = None
        self._rows = 0  # rows recorded when it was folded

    @property
    def meta(self) -> array[int]:
        """The rows, number by number."""
        if self.late is not None:
            self.late()
        return self._meta

    @property
    def end(self) -> int:
        """Position after its last row, folded ones included."""
        if self.positions is not None:
            return self.start + self._rows
        coming = 0 if self.late is None else self.coming
        return self.start + len(self._meta) // WIDTH + coming

    def table(self) -> npt.NDArray[np.int64]:
        """(rows, WIDTH), a copy."""
        return np.array(self.meta, dtype=np.int64).reshape(-1, WIDTH)

    def columns(self, start: int = 0, end: int | None = None) -> Columns:
        """The rows at hand as columns, or those of an unfolded step, by positions."""
        if end is None:
            return Columns(self.table())
        first, count = start - self.start, end - start
        rows = np.frombuffer(self.meta, np.int64, WIDTH * count, 8 * WIDTH * first)
        return Columns(rows.reshape(-1, WIDTH).copy())

    def dtype_of(self, position: int) -> int:
        """Number of the dtype of a row of a step that has not been folded."""
        return self.meta[(position - self.start) * WIDTH + DTYPE]

    def phase_of(self, position: int) -> int:
        """Phase of a row of a step that has not been folded."""
        return self.meta[(position - self.start) * WIDTH + PHASE]

    def set_phase(self, position: int, phase: int) -> None:
        """Change what is known of a row: that it belongs to an update, after all."""
        self.meta[(position - self.start) * WIDTH + PHASE] = phase

    def where(self) -> npt.NDArray[np.int64]:
        """Position of each row of :meth:`table`."""
        if self.positions is not None:
            return self.positions
        return np.arange(self.start, self.start + len(self.meta) // WIDTH, dtype=np.int64)

    def edge_table(self) -> npt.NDArray[np.int64]:
        """(edges, 3): call position, source, slot."""
        return np.array(self.edges, dtype=np.int64).reshape(-1, 3)

    def edges_from(self, call: int) -> int:
        """Where the edges of a call begin: they are in the order of their calls."""
        edges = self.edges
        return bisect_left(range(0, len(edges), 3), call, key=edges.__getitem__) * 3

    def outputs_of(self, call: int) -> int:
        """How many outputs a call has; its rows stand together, and are folded together."""
        meta, first = self.meta, self.index(call)
        calls = range(first * WIDTH + CALL, len(meta), WIDTH)
        return bisect_right(calls, call, key=meta.__getitem__)

    def stat_row(self, stat: int) -> int:
        row = stat & 0xFFFFFFFF
        return row if self.stat_rows is None else int(np.searchsorted(self.stat_rows, row))

    def is_put_off(self, stat: int) -> bool:
        """Whether the tensor of these statistics was not read yet."""
        return self.stats.is_put_off(self.stat_row(stat))

    def index(self, position: int) -> int:
        """Row of a position, -1 if it was folded away."""
        if self.positions is None:
            return position - self.start
        at = int(np.searchsorted(self.positions, position))
        return at if at < len(self.positions) and self.positions[at] == position else -1

    def fold(self, keep: npt.NDArray[np.int64], stats: npt.NDArray[np.int64]) -> None:
        """Keep only the rows at these positions and these statistics (both sorted)."""
        where = self.where()
        table = self.table()
        edges = self.edge_table()
        self._rows = self.end - self.start
        mask = np.isin(where, keep)
        self.positions = where[mask]
        self._meta = array("q", table[mask].tobytes())
        self.edges = array(
            "q", np.ascontiguousarray(edges[np.isin(edges[:, 0], table[mask][:, CALL])]).tobytes()
        )
        self._keep(stats, stats)

    def release(self, stats: npt.NDArray[np.int64]) -> None:
        """Of the statistics that folding left, keep only these (sorted)."""
        kept = self.stat_rows
        if kept is not None and len(stats) < len(kept):
            self._keep(stats, np.searchsorted(kept, stats))

    def _keep(self, stats: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        """Keep the statistics of these numbers, which are these rows of the table."""
        self.stat_rows = stats
        if len(stats):
            self.stats.compact(rows)
        else:
            self.stats = _no_stats()


@cache
def _no_stats() -> StatsTable:
    """Shared by emptied folded steps: an own empty table would take 250 KB each."""
    return StatsTable()
