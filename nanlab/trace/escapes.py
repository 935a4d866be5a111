"""Escapes: the exception that ended a watch, and tensors read as Python numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of the failing operation."""

    name: str  # of the argument; "tensors[2]" inside a list
    shape: tuple[int, ...]
    dtype: str  # "float32"
    device: str  # "cuda:0"
    requires_grad: bool
    # row of the trace (or source, negative) that describes it; None without a trace
    source: int | None = None


@dataclass(frozen=True, slots=True)
class BadIndices:
    """Indices out of range."""

    op: str  # aten name without overload
    argument: str  # of the operation that took them
    low: int  # least index that is allowed
    high: int  # indices end before this: rows of the embedding, classes, size of the dimension
    ignored: int | None  # a value outside that is allowed: ignore_index
    count: int
    values: tuple[int, ...]  # the first of them
    # where these stand in the tensor of indices; the first number is the sample
    places: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]  # of the tensor of indices
    largest: int  # of all that are outside
    samples: int  # that hold one


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as numbers and texts: holds neither the exception nor a tensor."""

    kind: str  # name of its type
    text: str
    file: str = ""  # the user's innermost line, as the tables show it
    line: int = 0
    source: str = ""
    op: str = ""  # operation that raised it; "" if none is known
    operands: tuple[Operand, ...] = ()
    module: str = ""  # path of the innermost running module
    module_type: str = ""
    # what the frames on the way say: sizes of the module, state of the optimizer
    facts: dict[str, Any] = field(default_factory=dict)
    bad: BadIndices | None = None


@dataclass(frozen=True, slots=True)
class ReadOut:
    """A tensor with gradient read as a Python number: ``.item()``, ``if loss > 3:``."""

    position: int  # of the trace at that moment
    source: int  # row of the tensor
    line: int  # number of the place


MOST_READ_OUTS = 512
_numbers = count(1)


@dataclass(slots=True)
class Escapes:
    """The exception that ended the watch, and values read as numbers."""

    number: int = field(default_factory=lambda: next(_numbers))  # of the run
    failure: Failure | None = None
    read_outs: list[ReadOut] = field(default_factory=list)  # the latest
    # position at which a tensor was last read as a number, outside of optimizers; its row
    last_read: tuple[int, int] = (-1, 0)

    def add(self, read_out: ReadOut) -> None:
        """Add a value that was read, forgetting the oldest."""
        self.read_outs.append(read_out)
        if len(self.read_outs) > MOST_READ_OUTS:
            del self.read_outs[: MOST_READ_OUTS // 2]
