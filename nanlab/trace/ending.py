"""How a run ended: its exception, what its processes told each other, what guard says of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from nanlab.trace.recording import Recording


# What is known of an exception: where it was raised, by which operation, on which operands.


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
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # what the frames on the way say: sizes of the module, state of the optimizer
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
    """What left the watch: the exception that ended it, and values read as numbers."""

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


# What the processes of a distributed run told each other when it ended.

ARRIVED = "from-another-rank"  # the cause of what a collective brought
MOST_FIXES = 3  # of a finding that is sent
# Fields of a finding that a process sends to the others, as plain data.
SENT = (
    "cause severity title explanation phase op module step file line source symptom samples".split()
)


@dataclass(slots=True)
class Ranks:
    """This process among the others, and the culprits that began in each."""

    rank: int  # of this process
    world: int  # processes in all
    # a culprit of each rank in which one began
    told: list[dict[str, Any]] = field(default_factory=list)
    heard: int = 0  # ranks that had ended their watch, and told what they found
    struck: int = 0  # of these, ranks that had only what others brought

    @property
    def first(self) -> dict[str, Any] | None:
        """The culprit that began first."""
        return min(self.told, key=lambda each: (each["step"], each["rank"]), default=None)


def ranks_frame(recording: Recording) -> pd.DataFrame:
    """A row per rank in which a culprit began, first ones first; empty for one process."""
    columns = ["rank", "step", "cause", "phase", "op", "module", "file", "line", "source", "title"]
    told = recording.ranks.told if recording.ranks is not None else []
    rows = sorted(told, key=lambda each: (each["step"], each["rank"]))
    return pd.DataFrame([[each[name] for name in columns] for each in rows], columns=columns)


def as_sent(finding: Any, rank: int) -> dict[str, Any]:
    """A finding as plain data, for the other processes."""
    sent = {name: getattr(finding, name) for name in SENT}
    fixes = [asdict(fix) for fix in finding.fixes[:MOST_FIXES]]
    return sent | {"rank": rank, "samples": list(finding.samples[:20]), "fixes": fixes}


# What guard says of the step that it ran again.


@dataclass(frozen=True, slots=True)
class Guarded:
    """The step of a guarded run that was replayed under a full watch."""

    step: int  # its number in the run, from 0
    identical: bool  # whether loss and gradients of the replay have the bits that stopped the run
    reason: str = ""  # why they have not; empty where they have

    def __str__(self) -> str:
        """One sentence for a report."""
        if self.identical:
            return f"step {self.step:,} of the run was replayed, bit for bit"
        return (
            f"step {self.step:,} of the run could not be replayed: {self.reason}; the run was"
            " stopped before its gradients reached the weights. To see the step itself, watch with"
            " --detail fault instead"
        )
