"""What guard says of the step that it ran again."""

from __future__ import annotations

from dataclasses import dataclass


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
