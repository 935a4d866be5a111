"""What activation checkpointing computed again: operands and results that a node with hooks does
not let us read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nanlab.capture.calls import saved_names, tensors_of
from nanlab.capture.ledger import storage_of
from nanlab.operators import having
from nanlab.stats._memory import is_wrapper
from nanlab.trace.recording import Op, Recording

MOST = 64 << 20  # bytes held; of what is older, the derivative comes later
# results held whatever made them: the last operation of a checkpoint does not run again, its
# operands do
LATEST = 16
# Operators whose derivative may be infinite or NaN at finite operands.
_SINGULAR = having("singular")


# of the first and the second operand, where an operation did not run again
_NAMES = (("self",), ("other", "exponent"))


@dataclass(frozen=True, slots=True)
class _Again:
    """One recomputed call."""

    line: int  # number of its place
    op: int
    position: int
    values: dict[str, Any]  # by the names of torch's schema, "result" for a single result
    nbytes: int  # of the storages behind them


class Recomputed:
    """The recomputed calls of the running backward pass, the latest of them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._calls: deque[_Again] = deque()
        self._by_place: dict[tuple[int, int], list[_Again]] = {}  # line and operator
        self._nbytes = 0
        # (position, what was made there)
        self._results: deque[tuple[int, Tensor]] = deque(maxlen=LATEST)

    def note(
        self,
        func: Any,
        name: str,
        op: int,
        line: int,
        position: int,
        args: Any,
        targets: list[Tensor],
    ) -> None:
        """Hold operands and results of a call, where its derivative may want them."""
        # Not by ``detach``, which is an operation: this is done for everything that is computed
        # again.
        for i, target in enumerate(targets):
            storage = storage_of(target)
            if (
                storage is not None
                and storage.nbytes() <= MOST // LATEST
                and not is_wrapper(target)
            ):
                self._results.append((position + i, target.data))
        if name not in _SINGULAR:
            return
        schema = func._schema
        given = {a.name: v for a, v in zip(schema.arguments, args, strict=False)}
        made = dict(zip((r.name for r in schema.returns), targets, strict=False))
        if len(targets) == 1:
            made = {"result": targets[0]}
        values = {
            k: v.data if isinstance(v, Tensor) else v
            for k, v in (given | made).items()
            if not _odd(v)
        }
        again = _Again(line, op, position, values, _storage_bytes(tensors_of(values.values())))
        self._calls.append(again)
        self._by_place.setdefault((line, op), []).append(again)
        self._nbytes += again.nbytes
        while self._nbytes > MOST:
            oldest = self._calls.popleft()
            self._by_place[oldest.line, oldest.op].remove(oldest)
            self._nbytes -= oldest.nbytes

    def values(self, node: Any, settled: bool = True) -> dict[str, Any]:
        """What a node has saved, by name, as far as its operation (or what it reads) ran again and
        is told from others.

        settled: the statistics are at hand, so that calls on one line are told from each other by
        their numbers.
        """
        info = (
            self.recording.nodes.get(node._sequence_nr()) if self._results or self._calls else None
        )
        if (
            info is None
            or info.op < 0
            or self.recording.ops.items[info.op].rstrip("_") not in _SINGULAR
        ):
            return {}
        names = {name.removeprefix("_saved_") for name in saved_names(node)}
        found = self._by_place.get((info.line, info.op), [])
        if len(found) > 1:
            found = [c for c in found if settled and self._same(c.position, info.position)][-1:]
        if found:
            return {name: value for name, value in found[0].values.items() if name in names}
        values = {}
        for source, slot in self.recording.operands(info.position) if settled else ():
            tensor = self._made_again(source)
            name = (
                next((n for n in _NAMES[slot] if n in names), None) if slot < len(_NAMES) else None
            )
            if tensor is not None and name is not None:
                values[name] = tensor
        return values

    def _made_again(self, position: int) -> Tensor | None:
        """The recomputed result of a row of the forward pass."""
        row = self.recording.op(position)
        for again, tensor in reversed(self._results) if row is not None else ():
            other = self.recording.op(again)
            if row is not None and other is not None and _alike(row, other):
                return tensor if self._same(again, position) else None
        return None

    def _same(self, again: int, before: int) -> bool:
        """Whether two rows hold the same numbers, as far as their statistics tell."""
        stats = self.recording.stats(before)
        return stats is not None and self.recording.stats(again) == stats

    def clear(self) -> None:
        """Let go of all, at the end of a backward pass."""
        self._calls.clear()
        self._by_place.clear()
        self._results.clear()
        self._nbytes = 0


def _storage_bytes(tensors: list[Tensor]) -> int:
    storages = {s._cdata: s.nbytes() for t in tensors if (s := storage_of(t)) is not None}
    return sum(storages.values())


def _odd(value: Any) -> bool:
    """Whether a value cannot be held: lists of tensors, wrappers of torch.func."""
    return isinstance(value, (list, tuple)) or (isinstance(value, Tensor) and is_wrapper(value))


def _alike(one: Op, other: Op) -> bool:
    """Whether two results are the same output of the same operator of one line."""
    return (one.place, one.name, one.output) == (other.place, other.name, other.output)
