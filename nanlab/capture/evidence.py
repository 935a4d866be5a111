"""What became of non-finite values in one operation, and the operands kept where they were born."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nanlab.capture.ledger import Ledger, storage_of
from nanlab.capture.plans import Plan
from nanlab.stats._memory import is_wrapper
from nanlab.trace.recording import (
    BORN,
    CALL,
    CARRIED,
    FLAGS,
    HEALED,
    INTENDED,
    LITERAL,
    STAT,
    TURNED,
    UNINIT,
    WIDTH,
    Chunk,
    Kept,
    Recording,
    Source,
)

Tensor = torch.Tensor
KEEP_EACH = 64 << 20  # bytes of one kept operation
KEEP_ALL = 512 << 20  # bytes of all of them
KEEP_CALLS = 64  # kept operations of one step


def _tensors(args: Any) -> list[Tensor]:
    found = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def _floating(tensor: Tensor) -> bool:
    """Whether its elements can be looked at for NaN (a ZeroTensor of double backward has none: isnan on it crashes torch 2.13)."""
    return (tensor.is_floating_point() or tensor.is_complex()) and not tensor._is_zerotensor() and not tensor.is_meta


def _nonfinite(tensor: Tensor) -> Tensor:
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    return ~torch.isfinite(tensor)


def has_nonfinite(tensor: Tensor) -> bool:
    """Whether a dense floating-point tensor holds a NaN or an infinity; False where it cannot be looked at."""
    try:
        return _floating(tensor) and tensor.numel() > 0 and bool(_nonfinite(tensor).any())
    except Exception:
        return False


class Evidence:
    """Judges the operations in which something non-finite came in or out, and keeps the operands of the guilty ones."""

    def __init__(self, recording: Recording, ledger: Ledger) -> None:
        self.recording, self.ledger = recording, ledger
        self.bytes = 0
        self.calls = 0
        self.unsettled = -1  # position of the first row whose statistics are still on their device; -1: none

    def postpone(self, position: int) -> None:
        """A row whose statistics are on their device: its status is told when they are fetched."""
        if self.unsettled < 0:
            self.unsettled, self.recording.pending = position, True

    def settle(self) -> None:
        """Fetch what is still on a device, and give those rows their status; one transfer for all of them."""
        if self.unsettled < 0:
            return
        start, self.unsettled, self.recording.pending = self.unsettled, -1, False
        for chunk in self.recording.chunks:
            if chunk.positions is None and chunk.start + len(chunk.meta) // WIDTH > start:
                chunk.stats.flush()
                self._settle_chunk(chunk, start)
        self.recording.sinks[:] = [sink for sink in self.recording.sinks if sink.position in self.recording.bad]

    def _settle_chunk(self, chunk: Chunk, start: int) -> None:
        recording, bad = self.recording, self.recording.bad
        counts = chunk.stats.columns()
        broken = counts["nan"] + counts["posinf"] + counts["neginf"] > 0
        for source in recording.sources.values():
            if source.stat >> 32 == chunk.number and broken[source.stat & 0xFFFFFFFF]:
                bad.add(source.number)
        table, edges = chunk.table(), chunk.edge_table()
        own = table[:, STAT] >> 32 == chunk.number
        rows = np.where(own, broken[np.where(own, table[:, STAT] & 0xFFFFFFFF, 0)] if len(broken) else False, False)
        for at, row in enumerate(table.tolist()):
            position = chunk.start + at
            if position < start:
                continue
            shared = recording.stats(position) if not own[at] else None
            if rows[at] or (shared is not None and shared.nonfinite):
                bad.add(position)
            reads = [s for s in edges[edges[:, 0] == row[CALL], 1].tolist() if s in bad] if bad else []
            if reads or position in bad:
                self._settle_row(position, row, reads)

    def _settle_row(self, position: int, row: list[int], reads: list[int]) -> None:
        recording = self.recording
        if position not in recording.bad:
            recording.status[position] = HEALED
            return
        stats = recording.stats(position)
        if row[FLAGS] & UNINIT:
            return
        if row[FLAGS] & LITERAL and not stats.nan and self._only_intended(reads):
            status = INTENDED
        elif not reads:
            status = BORN
        else:
            before = [recording.stats(s) for s in reads]
            status = TURNED if stats.nan and not any(b is not None and b.nan for b in before) else CARRIED
        recording.status[position] = status

    def new_step(self) -> None:
        self.calls = 0

    def judge(
        self,
        func: Any,
        plan: Plan,
        call: int,
        targets: list[Tensor],
        sources: list[int],
        args: Any,
        kwargs: Any,
        old: Tensor | None,
        flags: int,
        node: Any,
    ) -> None:
        """Give each output row of a call its status."""
        bad = self.recording.bad
        reads = [s for s in sources if s in bad]
        broken = [call + i for i in range(len(targets)) if call + i in bad]
        if broken and not reads and not flags & (UNINIT | LITERAL):
            reads = self._unseen_writes(plan, call, sources, args, kwargs)
        for i, target in enumerate(targets):
            position = call + i
            if position not in bad:
                if reads:
                    self.recording.status[position] = HEALED
                continue
            status = self._status(plan, position, target, reads, args, old, flags)
            if status:
                self.recording.status[position] = status
            if status in (BORN, TURNED):
                self._keep(func, call, args, kwargs, targets, old, plan, node)

    def _status(
        self, plan: Plan, position: int, target: Tensor, reads: list[int], args: Any, old: Tensor | None, flags: int
    ) -> int:
        stats = self.recording.stats(position)
        if flags & UNINIT:
            return 0
        if flags & LITERAL and not stats.nan and self._only_intended(reads):
            return INTENDED
        if not reads:
            return BORN
        before = [self.recording.stats(s) for s in reads]
        if stats.nan and not any(b is not None and b.nan for b in before):
            return (
                BORN
                if plan.pointwise and self._fresh(target, args, old) and not self._meets_infinity(target, args, old)
                else TURNED
            )
        if plan.pointwise and self._fresh(target, args, old):
            return BORN
        return CARRIED

    def _only_intended(self, reads: list[int]) -> bool:
        return all(self.recording.status.get(r) == INTENDED or self._literal(r) for r in reads)

    def _literal(self, number: int) -> bool:
        source = self.recording.sources.get(number)
        return source is not None and source.kind == "literal"

    def _fresh(self, target: Tensor, args: Any, old: Tensor | None) -> bool:
        """Whether some element is non-finite though the elements it was made from are finite (pointwise operations)."""
        try:
            clean = _nonfinite(target)
            for i, operand in enumerate(_tensors(args)):
                if operand is target and old is not None and i == 0:
                    operand = old
                elif operand is target:
                    return False
                if _floating(operand):
                    clean = clean & ~_nonfinite(operand)
            return bool(clean.any())
        except Exception:
            return False

    def _meets_infinity(self, target: Tensor, args: Any, old: Tensor | None) -> bool:
        """Whether some NaN element was made from an infinite one."""
        try:
            made = torch.zeros(target.shape, dtype=torch.bool, device=target.device)
            for i, operand in enumerate(_tensors(args)):
                if operand is target and old is not None and i == 0:
                    operand = old
                if _floating(operand):
                    made = made | torch.isinf(operand)
            return bool((made & torch.isnan(target)).any())
        except Exception:
            return True

    def _unseen_writes(self, plan: Plan, call: int, sources: list[int], args: Any, kwargs: Any) -> list[int]:
        """Operands that turned non-finite behind our back (shared memory with NumPy, a kernel that writes in secret)."""
        recording, found = self.recording, []
        operands = _tensors((*args, *kwargs.values()))
        if plan.overwrites or len(operands) != len(sources):
            return []
        written = {id(t) for w in plan.writes if isinstance(w, int) and w < len(args) for t in _tensors((args[w],))}
        chunk = recording.chunks[-1]
        for slot, (operand, source) in enumerate(zip(operands, sources, strict=True)):
            if id(operand) in written or not has_nonfinite(operand):
                continue
            number = recording.new_number()
            stat = (chunk.number << 32) | chunk.stats.add(operand)
            dtype = str(operand.dtype).removeprefix("torch.")
            recording.sources[number] = Source(
                number, "unseen-write", "", stat, call, tuple(operand.shape), dtype, (source,)
            )
            recording.bad.add(number)
            found.append(number)
            storage = storage_of(operand)
            entry = self.ledger.entries.get(storage._cdata) if storage is not None else None
            if entry is not None:
                entry.last, entry.parts, entry.views, entry.bad = number, (), None, 1
            edges = chunk.edges
            for at in range(len(edges) - 3, -1, -3):
                if edges[at] != call:
                    break
                if edges[at + 2] == slot:
                    edges[at + 1] = number
        return found

    def _keep(
        self,
        func: Any,
        call: int,
        args: Any,
        kwargs: Any,
        targets: list[Tensor],
        old: Tensor | None,
        plan: Plan,
        node: Any,
    ) -> None:
        if call in self.recording.kept or self.calls >= KEEP_CALLS:
            return
        size = sum(t.numel() * t.itemsize for t in (*_tensors(args), *targets))
        if size > KEEP_EACH or self.bytes + size > KEEP_ALL:
            return
        self.calls += 1
        self.bytes += size
        copies: dict[int, Tensor] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in copies:
                    copies[id(value)] = value.detach().clone()
                return copies[id(value)]
            if isinstance(value, (list, tuple)):
                return type(value)(copy(v) for v in value) if type(value) in (list, tuple) else value
            return value

        outputs = tuple(copy(t) for t in targets)
        if plan.writes and args and isinstance(args[0], Tensor) and 0 in plan.writes:
            if old is not None:
                copies[id(args[0])] = old
        kept_args = tuple(copy(a) for a in args)
        saved = _saved(node)
        self.recording.kept[call] = Kept(
            call,
            func,
            kept_args,
            {k: copy(v) for k, v in kwargs.items()},
            outputs,
            saved,
            node.name() if node is not None else "",
        )

    def drop(self, positions: list[int]) -> None:
        """Forget kept operations."""
        for position in positions:
            kept = self.recording.kept.pop(position, None)
            if kept is not None:
                self.bytes -= sum(t.numel() * t.itemsize for t in (*_tensors(kept.args), *kept.outputs))


def _has_hook(node: Any, name: str) -> bool:
    """Whether reading a saved tensor would run somebody's hook, such as a checkpoint's, which may run only once.

    ``SavedTensor.unpack_hook`` was tried with torch 2.13.
    """
    raw = getattr(node, "_raw" + name if name.startswith("_") else "_raw_" + name, None)
    return any(getattr(r, "unpack_hook", None) is not None for r in (raw if isinstance(raw, (tuple, list)) else (raw,)))


def _saved(node: Any) -> dict[str, Any]:
    """Copies of what an autograd node had saved: its ``_saved_*`` attributes, or a custom Function's ``saved_tensors``."""
    if node is None:
        return {}
    found: dict[str, Any] = {}
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            if _has_hook(node, name):
                continue
            try:
                value = getattr(node, name)
            except Exception:
                continue
            if isinstance(value, Tensor):
                if not is_wrapper(value):  # of torch.func: its level may have ended, and it then has no memory to copy
                    found[name.removeprefix("_saved_")] = value.detach().clone()
            elif isinstance(value, (int, float, bool, str, complex)) or value is None:
                found[name.removeprefix("_saved_")] = value
            elif isinstance(value, (tuple, list)) and not any(isinstance(v, Tensor) and is_wrapper(v) for v in value):
                copied = (v.detach().clone() if isinstance(v, Tensor) else v for v in value)
                found[name.removeprefix("_saved_")] = tuple(copied)
    return found
