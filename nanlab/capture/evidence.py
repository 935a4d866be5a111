"""What became of non-finite values in one operation, and which calls are guilty of them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from nanlab.capture.ledger import Ledger
from nanlab.capture.places import functions_given, scripted_lines, torch_frame
from nanlab.capture.plans import (
    Call,
    SavedValues,
    read_by_derivative,
    saved_names,
    saved_values,
    tensors_of,
    told_and_hidden,
)
from nanlab.capture.program import ProgramRecorder
from nanlab.operators import having
from nanlab.stats.memory import has_storage
from nanlab.trace.chunk import LITERAL, UNINIT
from nanlab.trace.op import BORN, CARRIED, HEALED, INTENDED, TURNED
from nanlab.trace.recording import GuiltyCall, Kept, Recording

Tensor = torch.Tensor
COPY_EACH = 64 << 20  # bytes of the operands of one call
COPY_ALL = 512 << 20  # bytes of those of all calls
KEEP_CALLS = 64  # guilty calls of one step
# of these, operations that computed with what came in bad: data, a table, a likelihood of nothing
KEEP_USES = 8
# Layers, losses and reductions in which such a value shows first.
SHOWS_BAD_INPUT = having("shows_bad_input")
UNHELD = "nothing of it could have been kept"


def _floating(tensor: Tensor) -> bool:
    """Whether a tensor may hold a readable NaN (isnan on a ZeroTensor crashes torch 2.13)."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and not tensor._is_zerotensor()
        and not tensor.is_meta
    )


def _nonfinite(tensor: Tensor) -> Tensor:
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    return ~torch.isfinite(tensor)


def has_nonfinite(tensor: Tensor) -> bool:
    """Whether a dense floating-point tensor holds a NaN or inf; False where it is unreadable."""
    try:
        return _floating(tensor) and tensor.numel() > 0 and bool(_nonfinite(tensor).any())
    except Exception:
        return False


def is_telling(name: str, bad: int) -> bool:
    """Whether operands decide what happened: the operation may be the first to compute with bad
    input, or it chooses between several bad operands."""
    return name in SHOWS_BAD_INPUT or (name == "where" and bad > 1)


def _operands(call: Call, target: Tensor) -> list[Tensor]:
    """The operand tensors of a call as they were before its result overwrote the first one, views
    of that included: ``x /= x[:, :1]``."""
    read = tensors_of(call.args)
    old = call.old
    if read and read[0] is target and old is not None:
        alike = old.stride() == target.stride()
        begin = old.storage_offset() - target.storage_offset()
        for slot, each in enumerate(read):
            if each is not target and alike and _memory(each) == _memory(target):
                at = begin + each.storage_offset()
                read[slot] = old.as_strided(each.size(), each.stride(), at)
        read[0] = old
    return read


def _memory(tensor: Tensor) -> int:
    """An identity of a tensor's memory, valid as long as the tensor lives."""
    return tensor.untyped_storage()._cdata if has_storage(tensor) else id(tensor)


def _takes_number(call: Call) -> bool:
    """Whether an operand is a non-finite Python number that was read from a tensor."""
    return not call.flags & LITERAL and any(
        v.__class__ is float and v - v != 0.0 for v in (*call.args, *call.kwargs.values())
    )


class Evidence:
    """Judges operations in which something is non-finite; notes the guilty ones for a replay."""

    def __init__(self, recording: Recording, ledger: Ledger) -> None:
        self.recording, self.ledger = recording, ledger
        self.program: ProgramRecorder | None = None
        self.bytes = 0
        self.calls = 0
        self.uses = 0
        # NaNs and elements of the bad rows and sources of this step
        self._counts: dict[int, tuple[int, int]] = {}

    def new_step(self) -> None:
        self.calls = self.uses = 0
        self._counts.clear()

    def judge(self, call: Call) -> None:
        """Give each output row of a call its status."""
        recording, bad = self.recording, self.recording.bad
        reads = [s for s in call.sources if s in bad]
        rows = range(call.position, call.position + call.outputs)
        if (
            not reads
            and not call.lost
            and not call.flags & (UNINIT | LITERAL)
            and not bad.isdisjoint(rows)
        ):
            reads = self._unseen_writes(call)
        for position in rows:
            if position not in bad:
                if reads:
                    recording.status[position] = HEALED
                continue
            status = self._status(call, position, reads)
            if status:
                recording.status[position] = status
            if status in (BORN, TURNED) or (status == CARRIED and self._is_telling(call, reads)):
                self._note(call)

    def _is_telling(self, call: Call, reads: list[int]) -> bool:
        """Whether a call's operands help to judge it; only a step's first few uses count."""
        if call.lost or not is_telling(call.plan.name, len(reads)):
            return False
        self.uses += call.plan.name in SHOWS_BAD_INPUT
        return call.plan.name not in SHOWS_BAD_INPUT or self.uses <= KEEP_USES

    def _status(self, call: Call, position: int, reads: list[int]) -> int:
        if call.flags & UNINIT:
            return 0
        nan = self._has_nan(position)
        if call.flags & LITERAL and not nan:
            if all(self._is_intended(read) or self._is_nan_alone(read) for read in reads):
                return INTENDED
        if not reads:
            return BORN
        fresh = (
            call.plan.pointwise
            and not call.lost
            # an operand without a single number spoils every element
            and not any(self._all_nan(s) for s in reads)
            and not _takes_number(call)
            and self._fresh(call, call.targets[position - call.position])
        )
        if nan and not any(self._has_nan(s) for s in reads):
            if fresh and not self._meets_infinity(call, call.targets[position - call.position]):
                return BORN
            return TURNED
        if fresh:
            return BORN
        return TURNED if nan and self._turns(call, position, reads) else CARRIED

    def _has_nan(self, number: int) -> bool:
        return self._nans(number)[0] > 0

    def _nans(self, number: int) -> tuple[int, int]:
        """(NaNs, elements) of a bad row or source, looked up once in a step."""
        known = self._counts.get(number)
        if known is None:
            stats = self.recording.stats(number)
            known = self._counts[number] = (0, 0) if stats is None else (stats.nan, stats.numel)
        return known

    def _all_nan(self, number: int) -> bool:
        """Whether every element of a bad row or source is known to be NaN."""
        nans, numel = self._nans(number)
        return 0 < numel == nans

    def _is_intended(self, number: int) -> bool:
        source = self.recording.sources.get(number)
        literal = source is not None and source.kind == "literal"
        return literal or self.recording.status.get(number) == INTENDED

    def _is_nan_alone(self, number: int) -> bool:
        """Whether an operand is bad by NaN alone: a result without NaN read none of it."""
        stats = self.recording.stats(number)
        return stats is not None and stats.nan == stats.nonfinite

    def _fresh(self, call: Call, target: Tensor) -> bool:
        """Whether a pointwise result is bad at an element whose operands are finite."""
        try:
            clean = _nonfinite(target)
            for operand in _operands(call, target):
                if operand is target:
                    return False
                if _floating(operand):
                    clean = clean & ~_nonfinite(operand)
            return bool(clean.any())
        except Exception:
            return False

    def _turns(self, call: Call, position: int, reads: list[int]) -> bool:
        """Whether an infinity became NaN at some element, apart from earlier NaN."""
        if not call.plan.pointwise or call.lost or any(self._all_nan(s) for s in reads):
            return False
        known = (stats for s in reads if (stats := self.recording.stats(s)) is not None)
        if not any(stats.posinf or stats.neginf for stats in known):
            return False
        target = call.targets[position - call.position]
        try:
            turned, infinite = torch.isnan(target), torch.zeros_like(target, dtype=torch.bool)
            for operand in _operands(call, target):
                if operand is target:
                    return False
                if _floating(operand):
                    turned = turned & ~torch.isnan(operand)
                    infinite = infinite | torch.isinf(operand)
            return bool((turned & infinite).any())
        except Exception:
            return False

    def _meets_infinity(self, call: Call, target: Tensor) -> bool:
        """Whether a NaN element was made from an infinite operand element."""
        try:
            made = torch.zeros(target.shape, dtype=torch.bool, device=target.device)
            for operand in filter(_floating, _operands(call, target)):
                made = made | torch.isinf(operand)
            return bool((made & torch.isnan(target)).any())
        except Exception:
            return True

    def _unseen_writes(self, call: Call) -> list[int]:
        """Operands in which bad values appeared unseen, as through memory shared with NumPy."""
        recording, found, args = self.recording, [], call.args
        operands = tensors_of((*args, *call.kwargs.values()))
        if call.plan.overwrites or len(operands) != len(call.sources):
            return []
        places = (*(w for w in call.plan.writes if isinstance(w, int)), *call.plan.hidden)
        written = {_memory(t) for w in places if w < len(args) for t in tensors_of((args[w],))}
        chunk = recording.chunks[-1]
        for slot, (operand, source) in enumerate(zip(operands, call.sources, strict=True)):
            if _memory(operand) in written or not has_nonfinite(operand):
                continue
            stat = (chunk.number << 32) | chunk.stats.add(operand)
            arrived = 0 <= source < self.ledger.latest_collective
            kind, parents = ("arrival", ()) if arrived else ("unseen-write", (source,))
            number = recording.new_source(
                kind, operand.shape, operand.dtype, stat, call.position, parents=parents
            )
            recording.bad.add(number)
            found.append(number)
            # its memory holds that, unless it was written since
            entry = self.ledger.of(operand)
            if entry is not None and max(entry.last, *entry.parts, -1) < call.position:
                entry.last, entry.parts, entry.views, entry.bad = number, (), None, 1
            at = chunk.edges_from(call.position)
            while chunk.edges[at + 2] != slot:
                at += 3
            chunk.edges[at + 1] = number
        return found

    def _note(self, call: Call) -> None:
        """Note a guilty call and its node's saved tensors; copy operands no replay can make."""
        recording, position = self.recording, call.position
        if position in recording.guilty or self.calls >= KEEP_CALLS:
            return
        self.calls += 1
        frame = sys._getframe(1)
        if (inside := torch_frame(frame)) is not None:
            recording.inside_torch[position] = inside
        if given := functions_given(frame):
            recording.given[position] = given
        if scripted := scripted_lines(frame):
            recording.scripted[position] = scripted
        values, hidden, name = _saved(call.node)
        program = self.program
        if program is not None and program.holds(call.targets):
            saved = {k: self._reference(v) for k, v in values.items()}
            args = tuple(self._reference(a) for a in call.args) if call.func is None else ()
            recording.guilty[position] = GuiltyCall(position, name, saved, hidden, args)
        elif not call.lost:
            self._copy(call, values, name)

    def _reference(self, value: Any) -> Any:
        """A tensor as a Ref where a replay has its memory, else a copy."""
        if isinstance(value, tuple):
            return tuple(self._reference(v) for v in value)
        if not isinstance(value, Tensor) or self.program is None:
            return value
        known = self.ledger.of(value) is not None
        return self.program.ref(value) if known else value.detach().clone()

    def _copy(self, call: Call, values: dict[str, Any], name: str) -> None:
        """Copy the operands of a call of a step that cannot be run again."""
        size = sum(t.numel() * t.itemsize for t in (*tensors_of(call.args), *call.targets))
        if size > COPY_EACH or self.bytes + size > COPY_ALL:
            return
        self.bytes += size
        copies: dict[int, Tensor] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in copies:
                    copies[id(value)] = value.detach().clone()
                return copies[id(value)]
            return type(value)(map(copy, value)) if type(value) in (list, tuple) else value

        outputs = tuple(copy(t) for t in call.targets)
        if "self" not in values:
            values = read_by_derivative(name, call.func, call.args) | values
        saved = {k: copy(v) for k, v in values.items()}
        if 0 in call.plan.writes and call.old is not None:
            copies[id(call.args[0])] = call.old
        args, kwargs = copy(tuple(call.args)), {k: copy(v) for k, v in call.kwargs.items()}
        self.recording.guilty[call.position] = GuiltyCall(call.position, name)
        self.recording.evidence[call.position] = Kept(
            call.position, call.func, args, kwargs, outputs, saved, name
        )

    def drop(self, positions: list[int]) -> None:
        for position in positions:
            del self.recording.guilty[position]
            self.recording.evidence.pop(position, None)


def _saved(node: Any) -> tuple[dict[str, Any], tuple[str, ...], str]:
    """The values that an autograd node had saved, names of those behind hooks, its own name."""
    if node is None:
        return {}, (), ""
    if isinstance(node, SavedValues):
        return node.values, node.hidden, node.name()
    names = saved_names(node)
    return (*told_and_hidden(names, saved_values(node, names, copied=True)), node.name())
