"""What is known of an exception: where it was raised, by which operation, on which operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that the failing operation was given."""

    name: str  # of the argument; "tensors[2]" inside a list
    shape: tuple[int, ...]
    dtype: str  # "float32"
    device: str  # "cuda:0"
    requires_grad: bool
    # row of the trace (or source, negative) that describes it; None without a trace
    source: int | None = None


@dataclass(frozen=True, slots=True)
class BadIndices:
    """Indices outside of what they point into."""

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
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # what the frames on the way say: sizes of the module, state of the optimizer
    bad: BadIndices | None = None


@dataclass(frozen=True, slots=True)
class ReadOut:
    """A tensor that carries gradient was read as a Python number: ``.item()``, ``float()``, ``if
    loss > 3:``."""

    position: int  # of the trace at that moment
    source: int  # row of the tensor
    line: int  # number of the place


MOST_READ_OUTS = 512
_numbers = count(1)


@dataclass(slots=True)
class Escapes:
    """What left the watch: the exception that ended it, and values read out of the graph as Python
    numbers."""

    number: int = field(default_factory=lambda: next(_numbers))  # of the run
    failure: Failure | None = None
    read_outs: list[ReadOut] = field(default_factory=list)  # the latest
    last_read: tuple[int, int] = (
        -1,
        0,
    )  # position at which a tensor was last read as a number, outside of optimizers; its row

    def add(self, read_out: ReadOut) -> None:
        """Note a value that was read; the oldest are forgotten."""
        self.read_outs.append(read_out)
        if len(self.read_outs) > MOST_READ_OUTS:
            del self.read_outs[: MOST_READ_OUTS // 2]
