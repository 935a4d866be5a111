"""What is other in a replay, and whether the step can be run above autograd at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanlab.errors import NotReplayable
from nanlab.program.batch import Batch
from nanlab.program.edit import Edited
from nanlab.program.rebuild import Patch, rebuild, same_bits
from nanlab.program.rerun import rerun
from nanlab.program.settings import Steps, joined
from nanlab.program.window import Window
from nanlab.trace.program import Segment, refs_in


@dataclass(frozen=True)
class Change:
    """What is other in a replay."""

    segments: Sequence[Segment]
    edited: Edited | None = None
    steps: Steps = field(default_factory=dict)  # of optimizers with other settings
    skipped: Steps = field(default_factory=dict)  # steps of optimizers that a GradScaler may skip
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer
    batch: Batch | None = None  # without some of its rows

    @property
    def patches(self) -> Sequence[Patch]:
        """The edits as patches."""
        return self.edited.patches if self.edited is not None else ()

    @property
    def instead(self) -> Steps:
        """What is run in the place of the optimizers' calls."""
        return joined(self.steps, self.skipped)

    def is_any(self, where: Window) -> bool:
        """Whether anything is."""
        return bool(self.segments is not where.segments or self.edited or self.instead)


def check_rebuilt(where: Window) -> None:
    """Raises NotReplayable unless the unchanged step, run above autograd, gives the loss and
    gradients that were recorded."""
    segment = where.segments[-1]
    reason = _REBUILT.get(id(segment))
    if reason is None or reason[0] is not segment:
        reason = _REBUILT[id(segment)] = segment, _difference(where)
        while len(_REBUILT) > 16:
            _REBUILT.pop(next(iter(_REBUILT)))
    if reason[1]:
        raise NotReplayable(reason[1])


_REBUILT: dict[int, tuple[Segment, str]] = {}


def _difference(where: Window) -> str:
    """Why the step run above autograd is not what was recorded; "" where it is."""
    try:
        graph, _ = rebuild(where.segments)
    except NotReplayable as error:
        return str(error)
    except Exception as error:
        return f"the step cannot be run above autograd ({type(error).__name__}: {error})"
    memory = rerun(where.segments)
    for segment in where.segments:
        for run in segment.engine:
            for ref in refs_in((*run.roots, *run.after.values())):
                try:
                    same = same_bits(graph.get(ref).detach(), memory.tensor(ref))
                except NotReplayable as error:
                    return str(error)
                if not same:
                    return (
                        "the step does something between its calls that a graph of them does not"
                        " repeat: a hook, or a function with a backward of its own"
                    )
    return ""
