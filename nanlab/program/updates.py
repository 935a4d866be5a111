"""The latest update of a parameter that changed none of its elements, by running its step again."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.memory import Memory, operate
from nanlab.program.rerun import rerun
from nanlab.program.window import window
from nanlab.stats._memory import local_part
from nanlab.trace.program import Call, Ref
from nanlab.trace.recording import Kept, Recording

Tensor = torch.Tensor
LARGEST = 1 << 20  # elements of the largest parameter that is looked at
STEPS = 3  # that are looked at, the latest


def absorbed_update(recording: Recording, owner: int, op: str) -> Kept | None:
    """The operands of an update by ``op``, of a call on lists those of this parameter alone; None
    where each of the latest steps moved it, or none can be run again.

    owner: number of the parameter or buffer.
    """
    name = recording.parameter_names[owner]
    storages = {s for s, named in recording.program.names.items() if named == name}
    for step in range(len(recording.starts) - 1, max(len(recording.starts) - 1 - STEPS, -1), -1):
        try:
            where = window(recording, step)
            run = _Run(storages, op)
            if any(run.writes(c) >= 0 for s in where.segments for c in s.calls):
                rerun(where.segments, run.after, run.before, run.memory)
        except NotReplayable:
            continue
        except Exception:  # an operator that fails in many ways where it did not before
            continue
        if run.found is not None:
            return run.found
    return None


class _Run:
    """One run of a step, which ends at the first update without effect."""

    def __init__(self, storages: set[int], op: str) -> None:
        self.memory = Memory()
        self.found: Kept | None = None
        self._storages, self._op = storages, op
        self._taken: Kept | None = None

    def writes(self, call: Call) -> int:
        """Which member of the lists of a call is the parameter that it updates; -1: none is."""
        if call.func is None or call.func.overloadpacket.__name__ != self._op or not call.args:
            return -1
        targets = call.args[0] if isinstance(call.args[0], list | tuple) else (call.args[0],)
        if call.args[0].__class__ is Ref:
            targets = (call.args[0],)
        return next(
            (
                i
                for i, ref in enumerate(targets)
                if ref.__class__ is Ref and ref.storage in self._storages
            ),
            -1,
        )

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Copy the operands of an update, and run it."""
        self._taken, which = None, self.writes(call)
        if which >= 0:
            one = tuple(_member(a, which) for a in args)
            names = {k: _member(v, which) for k, v in kwargs.items()}
            if _target(one).numel() <= LARGEST:
                self._taken = Kept(call.position, call.func, one, names, (), {})
        return operate(call.func, args, kwargs)

    def after(self, segment: int, index: int, call: Call, out: Any) -> bool:
        """Whether the update changed nothing: then it is the one that is wanted."""
        if self._taken is None:
            return False
        which = self.writes(call)
        target = call.args[0] if call.args[0].__class__ is Ref else call.args[0][which]
        if torch.equal(local_part(self.memory.tensor(target)), _target(self._taken.args)):
            self.found = self._taken
        return self.found is not None


def _target(args: tuple[Any, ...]) -> Tensor:
    return args[0][0] if isinstance(args[0], list) else args[0]  # type: ignore[no-any-return]


def _member(value: Any, which: int) -> Any:
    """A copy of an argument; of a list of tensors or numbers, of one for each parameter, only that
    of one parameter."""
    if isinstance(value, (list, tuple)) and which < len(value):
        return [_member(value[which], 0)]
    return local_part(value).detach().clone() if isinstance(value, Tensor) else value
