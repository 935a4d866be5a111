"""Updates in half precision that changed nothing: one of each is kept, so that it can be tried in float32."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.stats._memory import local_part
from nanlab.trace.recording import Kept, Recording

Tensor = torch.Tensor
LOOKS = 4  # first updates of a parameter that are looked at; then the 8th, the 16th, ...: a rate may drop later on
MOST = 8  # parameters of which an update is kept
MOST_LISTS = 64  # lists of tensors whose updates are counted
LARGEST = 1 << 20  # elements of the largest one
LOW = (torch.float16, torch.bfloat16)


class AbsorbedEvidence:
    """Which parameters stood still when they were last looked at, and the next operations that write them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.waiting: set[int] = set()  # numbers of parameters whose next writes are kept
        self._looks: dict[int, int] = {}
        self._lists: dict[int, int] = {}  # calls on each list of tensors, by the address of its first
        self._noting = False  # whether the running call may be an update by hand, whose factor is noted
        self._before: list[Tensor] = []  # what the tensors of such a call held

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do about the call that has run."""
        return not self.waiting and not self._before and not self._noting

    def about_to_write(self, targets: list[Tensor]) -> None:
        """Copy the tensors of a list that an operation is about to write; an optimizer keeps copies itself."""
        if not targets or not all(isinstance(t, Tensor) and t.dtype in LOW for t in targets):
            return
        self._noting = True
        first = local_part(targets[0]).data_ptr()
        if first in self._lists or len(self._lists) < MOST_LISTS:
            calls = self._lists[first] = self._lists.get(first, 0) + 1
            if _due(calls) and all(t.numel() <= LARGEST for t in targets):
                self._before = [t.detach().clone() for t in targets[:MOST]]

    def look(self, owner: int, new: Tensor, old: Tensor) -> None:
        """Compare a parameter with what it was before it was updated."""
        self.waiting.discard(owner)
        self._noting = True
        new, old = local_part(new), local_part(old)
        looks = self._looks.get(owner, 0) + 1
        counter = new.numel() == 1 and new.is_cpu  # it goes on for a while
        if new.dtype not in LOW or new.numel() > LARGEST or new.shape != old.shape:
            return
        self._looks[owner] = looks
        if not (_due(looks) or counter):
            return
        kept = self.recording.absorbed
        if (owner in kept or len(kept) + len(self.waiting) < MOST) and torch.equal(new, old):
            self.waiting.add(owner)

    def wrote(self, targets: list[tuple[int, Tensor]], func: Any, args: Any, kwargs: Any, position: int) -> None:
        """An operation wrote these (number of the parameter, or -1; tensor): keep its operands where an update is absorbed."""
        before, self._before, self._noting = self._before, [], False
        factor = kwargs.get("alpha", kwargs.get("value"))
        if factor.__class__ in (float, int):
            noted = {position + i: float(factor) for i, (owner, _) in enumerate(targets) if owner >= 0}
            self.recording.history.factors.update(noted)
        for (owner, target), old in zip(targets, before, strict=False):
            if owner >= 0:
                self.look(owner, target, old)
        for i, (owner, _) in enumerate(targets):
            if owner in self.waiting:
                self._keep(owner, func, args, kwargs, position + i, i)

    def _keep(self, owner: int, func: Any, args: Any, kwargs: Any, position: int, which: int) -> None:
        """Copy the operands of an operation that wrote a parameter, which is to be found unchanged among them.

        which: of the tensors in the first argument, where that is a list.
        """
        one = [_member(a, which) for a in args]
        names = {k: _member(v, which) for k, v in kwargs.items()}
        self.recording.absorbed[owner] = Kept(position, func, tuple(one), names, (), {})


def _due(count: int) -> bool:
    """Whether the update of this number is looked at: each of the first few, then fewer and fewer."""
    return count <= LOOKS or not count & (count - 1)


def _member(value: Any, which: int) -> Any:
    """A copy of an argument; of a list of tensors or numbers, of one for each parameter, only that of one parameter."""
    if isinstance(value, (list, tuple)) and which < len(value):
        return [_member(value[which], 0)]
    return local_part(value).detach().clone() if isinstance(value, Tensor) else value
