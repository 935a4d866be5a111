"""What the processes of a distributed run told each other when it ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.trace.columns import typed

if TYPE_CHECKING:
    from nanlab.trace.recording import Recording

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
    # what each rank says of a bad value that only arrived there; of a sum, with the largest value
    # that this rank gave, and the largest of the dtype
    struck: list[dict[str, Any]] = field(default_factory=list)

    @property
    def overflowed(self) -> bool:
        """Whether a sum over all ranks was too large, though each gave finite values."""
        if self.told or len(self.struck) < self.world:
            return False
        limits = {each.get("limit") for each in self.struck}
        if None in limits or len(limits) > 1:
            return False
        return bool(sum(each["largest"] for each in self.struck) > limits.pop())

    @property
    def culprits(self) -> list[dict[str, Any]]:
        """A culprit of each rank in which one began, or had its part; first ones first."""
        found = self.struck if self.overflowed else self.told
        return sorted(found, key=lambda each: (each["step"], each["rank"]))

    @property
    def first(self) -> dict[str, Any] | None:
        """The culprit that began first."""
        return min(self.told, key=lambda each: (each["step"], each["rank"]), default=None)


def ranks_frame(recording: Recording) -> pd.DataFrame:
    """A row per rank in which a culprit began, first ones first; empty for one process."""
    columns = ["rank", "step", "cause", "phase", "op", "module", "file", "line", "source", "title"]
    rows = recording.ranks.culprits if recording.ranks is not None else []
    frame = pd.DataFrame([[each[name] for name in columns] for each in rows], columns=columns)
    return typed(frame, "cause phase op module file source title", "rank step line")


def as_sent(finding: Any, rank: int) -> dict[str, Any]:
    """A finding as plain data, for the other processes."""
    sent = {name: getattr(finding, name) for name in SENT}
    fixes = [asdict(fix) for fix in finding.fixes[:MOST_FIXES]]
    return sent | {"rank": rank, "samples": list(finding.samples[:20]), "fixes": fixes}
