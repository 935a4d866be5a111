"""Trace: the tables of a watch, its selected row, and doors to findings, replay and views."""

from __future__ import annotations

import linecache
import operator
import os
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from nanlab.errors import TypeMismatchError, UsageError
from nanlab.trace import frames
from nanlab.trace.mode import apart
from nanlab.trace.op import location
from nanlab.trace.ranks import ranks_frame
from nanlab.trace.recording import Kept, Recording

if TYPE_CHECKING:
    import torch

    from nanlab.analysis.loss_scale import LossScale
    from nanlab.program.replay import Replay
    from nanlab.program.why import Origin
    from nanlab.rules import Finding, Findings
    from nanlab.rules.cure import Chain, Cure
    from nanlab.topics.clipping import Clipping
    from nanlab.trace.history import Guarded
    from nanlab.views.report import Report
    from nanlab.views.stepper import Stepper
    from nanlab.views.underflow import UnderflowExplorer


T = TypeVar("T")
# columns by which a row of a table names its position
ROW_OF = ("position", "position_out", "position_in")


class Place(int):
    """The position of a row of ``trace.ops``, with its place as attributes."""

    op: str
    phase: str
    module: str
    file: str
    line: int
    node: int | None  # the autograd sequence number
    step: int

    def __repr__(self) -> str:
        node = "" if self.node is None else f"node {self.node}"
        where = location(self.file, self.line)
        told = ", ".join(
            part for part in (self.op, self.phase, where, node, f"step {self.step}") if part
        )
        return f"{int(self)} ({told})"


def place_at(trace: Trace, position: int) -> Place:
    """The row of ``trace.ops`` at a position. Raises UsageError where there is none."""
    ops = trace.ops
    if position not in ops.index:
        raise UsageError(f"no row at position {position}; trace.ops.position lists those at hand")
    row: Any = ops.loc[position]
    place = Place(position)
    place.op, place.phase, place.module = str(row["op"]), str(row["phase"]), str(row["module"])
    place.file, place.line, place.step = str(row["file"]), int(row["line"]), int(row["step"])
    place.node = None if pd.isna(row["node"]) else int(row["node"])
    return place


def culprit_place(trace: Trace) -> Place | None:
    """The row of the culprit's origin; None without a culprit or a row."""
    found = trace.culprit
    known = found is not None and found.position in trace.ops.index
    return place_at(trace, found.position) if known and found is not None else None


def position_of(what: Any) -> int:
    """The position behind a number, row, finding or widget. Raises TypeMismatchError."""
    if isinstance(what, (str, bytes)):
        raise TypeMismatchError(f"expected a position or a row of a table, got {what!r}")
    try:
        return operator.index(what)
    except TypeError:
        pass
    row: Any = getattr(what, "row", what)  # a widget has the row that it shows
    get: Callable[[str], Any] = (
        row.get if hasattr(row, "get") else lambda name: getattr(row, name, None)
    )
    for name in ROW_OF:
        try:
            return operator.index(get(name))
        except TypeError:
            continue
    raise TypeMismatchError(
        "expected a position, a row of trace.ops or trace.backward, or a finding, got"
        f" {type(what).__name__}; try: trace.at = trace.culprit"
    )


class Selection:
    """The selected row, and weak references to its followers."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self._followers: list[weakref.WeakMethod[Callable[[Place], None]]] = []

    def follow(self, follower: Callable[[Place], None]) -> None:
        """Call the method at each new selection."""
        self._followers.append(weakref.WeakMethod(follower))

    def select(self, place: Place) -> None:
        """Select a row and tell the followers; selecting it again tells nobody."""
        if place == self.place:
            return
        self.place = place
        self._followers = [each for each in self._followers if each() is not None]
        for reference in list(self._followers):
            follower = reference()
            if follower is not None:
                follower(place)


@apart
class Trace:
    """The record of one watch: numbers, and only the few tensors that are evidence."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        recording.make_operands = partial(_ask, "program.evidence", "make_operands")
        recording.make_twins = partial(_ask, "program.evidence", "make_twins")
        recording.check = partial(_ask, "topics", "check")
        recording.look_through = partial(_ask, "topics", "look_through")
        self.selection = Selection()
        self.is_read = False  # whether somebody looked at a table or at the findings
        self.guarded: Guarded | None = None  # which step of a guarded run this is the replay of
        self._cache: dict[str, tuple[tuple[int, ...], Any]] = {}
        # findings and cure that came with a file
        self._recalled: tuple[Findings, Chain | None] | None = None

    def _state(self) -> tuple[int, ...]:
        recording = self.recording
        # A stopped program is diagnosed in the middle of a step, and again once that was looked
        # through.
        seen = len(recording.history.series.steps)
        events = len(recording.sinks), len(recording.passes), len(recording.notes)
        made = sum(segment.summarised for segment in recording.program.segments)
        return recording.end, len(recording.starts), seen, *events, recording.undecided, made

    def _cached(self, name: str, make: Callable[[Recording], T]) -> T:
        self.is_read = True
        found = self._cache.get(name)
        if found is None or found[0] != self._state():
            made = make(self.recording)
            found = self._cache[name] = (self._state(), made)
        value: T = found[1]
        return value

    def _table(self, name: str, make: Any) -> pd.DataFrame:
        """A table with nanlab's notebook display."""
        from nanlab.views.tables import as_table

        return self._numbered(name, lambda recording: as_table(make(recording), name, self))

    def _numbered(self, name: str, make: Any) -> pd.DataFrame:
        """A frame with steps numbered as in the guarded run."""

        def numbered(recording: Recording) -> pd.DataFrame:
            frame: pd.DataFrame = make(recording)
            if recording.first_step and "step" in frame:
                frame["step"] += recording.first_step
            return frame

        return self._cached(name, numbered)

    # -- tables

    @property
    def ops(self) -> pd.DataFrame:
        """A row per output of each operation; the index is the position.

        ``nan``, ``posinf``, ``neginf``, ``zero``, ``subnormal`` (of the tensor's own dtype) are
        exact counts among ``numel`` elements; ``min``, ``max``, ``absmin``, ``mean`` and ``rms``
        are over the finite ones, ``absmin`` over those that are not zero. ``fp16_zero``,
        ``fp16_subnormal``, ``fp16_inf`` count what float16 would flush, hold as subnormal, or
        overflow.

        ``phase`` is forward, backward, optimizer, recompute, data or other; ``op`` the aten name;
        ``node`` the autograd sequence number that ties forward and backward together; ``file``,
        ``line``, ``source`` the user's innermost line, of a backward operation that of its forward
        one; ``site_file``, ``site_line`` the innermost line outside of torch.

        ``status``: ``ok``; ``born`` (operands finite, result not); ``carried`` (bad operands, bad
        result); ``turned`` (an infinity became NaN); ``healed`` (bad operand, finite result);
        ``intended`` (an infinity that the program wrote).
        """
        self._summarised()
        return self._table("ops", frames.ops_frame)

    @property
    def backward(self) -> pd.DataFrame:
        """A row per autograd node executed, in execution order.

        ``grad_in_*`` is what came from the loss's side, ``grad_out_*`` what the node passed on:
        counts of NaN, inf and zero, root mean square and largest magnitude; ``gain`` is
        grad_out_rms / grad_in_rms. ``position_in`` and ``position_out`` are rows of ``ops``.
        """
        self._summarised()
        return self._table("backward", frames.backward_frame)

    @property
    def parameters(self) -> pd.DataFrame:
        """A row per parameter and step: value, gradient, update.

        Of each: counts of NaN, inf and zero, root mean square and largest magnitude.
        ``update_ratio`` is update_rms / value_rms, ``lr`` the learning rate of its group.
        """
        return self._table("parameters", frames.parameters_frame)

    @property
    def steps(self) -> pd.DataFrame:
        """A row per training step: loss, gradient norm, loss scale, skipped, seconds.

        ``loss`` is what backward was called on last, before a loss scale; of gradients that one
        line accumulates, the sum. ``gradient_norm`` is that of all parameters together, before
        clipping, the loss scale divided out; ``skipped`` whether a loss scaler left the step out;
        ``lr`` the rate of the first group, <NA> where optimizers differ in it; ``nonfinite`` and
        ``born`` count rows of ``ops``.
        """
        return self._table("steps", frames.steps_frame)

    @property
    def skips(self) -> pd.DataFrame:
        """A row per skipped step: scale, first bad gradient, operation, highest finite scale."""
        from nanlab.analysis.loss_scale import skips_frame

        return self._table("skips", skips_frame)

    @property
    def ranks(self) -> pd.DataFrame:
        """A row per rank in which a culprit began: rank, step, cause, place, title."""
        return ranks_frame(self.recording)

    @property
    def edges(self) -> pd.DataFrame:
        """Edges of the backward graphs, by sequence number of their nodes."""
        return self._numbered("edges", frames.edges_frame)

    @property
    def shadow(self) -> pd.DataFrame:
        """A row per half-precision result with a float32 twin: what the narrow format lost."""
        return self._numbered("shadow", frames.shadow_frame)

    @property
    def notes(self) -> list[str]:
        """nanlab's own remarks: internal errors, omissions."""
        return self.recording.notes

    def histogram(self, position: int, *, replays: bool = True) -> pd.Series:
        """Exact count per binary exponent floor(log2|x|) of the non-zero finite elements of a row
        of ``ops``.

        Empty for memory that was allocated and not yet written; of whole numbers and truth values
        by replay, or empty without replays. Raises UsageError for a position that is not in the
        table, TypeMismatchError for what is no whole number, NotReplayable.
        """
        position = self._row(position)
        self._summarised()
        row = self.recording.op(position)
        if replays and row and not (row.dtype.is_floating_point or row.dtype.is_complex):
            return _histogram_of_whole(self.tensor(position))
        found = self.recording.exponents(position)
        if found is None and self.recording.op(position) is not None:
            index = pd.Index([], name="exponent", dtype="int64")
            return pd.Series([], index=index, name="count", dtype="int64")
        if found is None:
            raise self._no_row(position)
        return found

    def _no_row(self, position: int) -> UsageError:
        return UsageError(
            f"no row at position {position}; trace.ops.position lists those at hand (older steps"
            " are folded, see keep=)"
        )

    def _position(self, position: Any) -> int:
        try:
            return operator.index(position)
        except TypeError:
            held = getattr(position, "position", None)
            hint = "" if held is None else f"; its position is {held}"
            raise TypeMismatchError(
                f"expected a position, such as one of trace.ops.position, got {position!r}{hint}"
            ) from None

    def _row(self, position: Any) -> int:
        number = self._position(position)
        if not 0 <= number < self.recording.end:
            raise self._no_row(number)
        return number

    def summarise(self, judge: Any = None) -> None:
        """Give the kept steps of a watch with ``detail="fault"`` their statistics, by replay.

        judge: called with each call that has a non-finite operand or result.
        """
        from nanlab.program.summary import summarise

        summarise(self.recording, judge)

    def fetch(self, judge: Any) -> None:
        """Fetch the statistics that are still on a device.

        judge: called with each call that has a non-finite operand or result.
        """
        from nanlab.program.summary import fetch

        fetch(self.recording, judge)

    def _summarised(self) -> None:
        """Compute postponed statistics, once the watch is over."""
        recording = self.recording
        if recording.detail == "fault" and not recording.puts_off:
            self.summarise()

    def kept(self, position: int) -> Kept | None:
        """The operands of a row that was born or turned, if kept."""
        row = self.recording.op(int(position))
        return None if row is None else self.recording.kept.get(row.call)

    def source(self, file: str, line: int, context: int = 2) -> list[tuple[int, str]]:
        """(number, text) of a line and its neighbours; ``file`` as in the tables."""
        real = next((place[2] for place in self.recording.places if place[0] == file), file)
        texts = [
            (n, linecache.getline(real, n).rstrip("\n"))
            for n in range(max(1, line - context), line + context + 1)
        ]
        return [(n, text) for n, text in texts if text or n == line]

    # -- the selection

    @property
    def at(self) -> Place | None:
        """The selected row: at first the culprit's, then the one clicked in a view or set here.

        Set it to a position, a row of ``ops`` or ``backward``, or a finding; every view follows.
        """
        chosen = self.selection.place
        return culprit_place(self) if chosen is None else chosen

    @at.setter
    def at(self, what: Any) -> None:
        self.selection.select(place_at(self, position_of(what)))

    # -- doors

    @property
    def findings(self) -> list[Finding]:
        """All faults, most harmful first, with those behind the culprit and of other ranks."""
        from nanlab.rules import culprit_of, with_hidden
        from nanlab.rules.ranks import across_ranks

        known = with_hidden(self.recording, self.own_findings, self.chain)
        found, culprit = across_ranks(self.recording, known), self.culprit
        if found is known or culprit is None:
            return found
        same = culprit_of(found)
        return [culprit if each is same else each for each in found]

    @property
    def own_findings(self) -> list[Finding]:
        """The faults that this process found in its own record."""
        from nanlab.rules import diagnosed

        if self._recalled is not None:
            return self._recalled[0]
        return self._cached("findings", lambda recording: diagnosed(self))

    def _struck(self, arrived: Finding, rank: int, world: int) -> dict[str, Any]:
        """What this rank tells the others of a bad value that came from them."""
        from nanlab.rules.ranks import as_struck

        return as_struck(self.recording, arrived, rank, world)

    @property
    def chain(self) -> Chain | None:
        """The faults of the failing step in order, and the cure; None if not replayable."""
        from nanlab.rules import chain_of

        if self._recalled is not None:
            return self._recalled[1]
        return self._cached("chain", lambda recording: chain_of(self))

    @property
    def cure(self) -> Cure | None:
        """The fewest edits that make the failing step right together; None if unknown."""
        followed = self.chain
        return followed.cure if followed is not None else None

    @property
    def culprit(self) -> Finding | None:
        """The harmful fault that explains the symptom; None if the run is healthy."""
        from nanlab.rules import culprit_of
        from nanlab.rules.ranks import across_ranks

        found, ranks = self.own_findings, self.recording.ranks
        if ranks is None:
            return culprit_of(found)
        name = f"culprit {id(ranks)} {len(ranks.told)}"  # the same object as long as they are
        return self._cached(name, lambda recording: culprit_of(across_ranks(recording, found)))

    def replay(
        self,
        fix: Any = None,
        step: int | None = None,
        dtype: torch.dtype | None = None,
        loss_scale: float | None = None,
        lr: float | None = None,
        without: Any = None,
    ) -> Replay:
        """Run a recorded step again, by default the failing one.

        fix: a Fix, a Cure, or a list of them. dtype: half-precision operations in this dtype.
        loss_scale, lr: another loss scale or learning rate. without: rows of the batch to leave
        out, by the leading dimension of the data. Raises NotReplayable, with the reason, and
        UsageError for arguments that do not go together.
        """
        from nanlab.program.replay import replay

        return replay(self, fix, step, dtype, loss_scale, lr, without)

    def save(self, path: str | os.PathLike[str], budget: int = 64 << 20) -> Path:
        """Write the trace to a file that ``nanlab.load`` opens without the model's code, and return
        its path.

        budget: bytes for the tensors that the step reads; a replay names those that did not fit.
        """
        from nanlab.program.capsule import save
        from nanlab.rules.answers import told

        self._summarised()
        self.recording.answers = told(self)
        return save(self, path, budget)

    def recall(self) -> None:
        """Use the findings and cure saved with the recording. Raises CapsuleError if damaged."""
        from nanlab.rules.answers import recalled

        self._recalled = recalled(self.recording.answers)

    def tensor(self, position: int) -> torch.Tensor:
        """The tensor of a row of ``ops``, by replay. Raises NotReplayable, UsageError."""
        from nanlab.program.replay import tensor_at

        return tensor_at(self.recording, self._row(position))

    def why(self, position: int, index: Any = None) -> Origin:
        """The elements behind one element of a row of ``ops``, copies skipped, back to its birth
        if it is bad.

        index: of each dimension, or the number in the flattened tensor; None: the first bad
        element, without any the largest. Raises NotReplayable, UsageError.
        """
        from nanlab.program.why import why

        return why(self, self._row(position), index)

    def report(self) -> Report:
        """Culprit, evidence, path, tried fixes and tables, on one page."""
        from nanlab.views.report import report

        return report(self)

    def stepper(self) -> Stepper:
        """A widget that walks the backward graph."""
        from nanlab.views.stepper import stepper

        return stepper(self)

    def underflow(self) -> UnderflowExplorer:
        """A widget with exponent histograms, float16 against float32, and a loss-scale slider."""
        from nanlab.views.underflow import underflow

        return underflow(self)

    def loss_scale(self) -> LossScale:
        """The gradients in float16 at each loss scale 2^k, and the best scale."""
        from nanlab.analysis.loss_scale import loss_scale

        return loss_scale(self)

    def clipping(self) -> Clipping:
        """Gradient norms before and after clipping, the dominating parameters, the best
        ``max_norm``."""
        from nanlab.topics.clipping import clipping

        return clipping(self)

    def signal_loss(self) -> pd.DataFrame:
        """Where each parameter's gradient was flushed, and the loss scale that keeps it."""
        from nanlab.analysis.signal_loss import signal_loss
        from nanlab.views.tables import as_table

        return as_table(signal_loss(self), "signal_loss", self)

    def __repr__(self) -> str:
        rows = self.recording.end
        steps = len(self.recording.starts) if rows else 0
        return (
            f"<nanlab.Trace: {rows:,} rows, {steps:,} step{'s' if steps != 1 else ''}; try"
            " .report(), .culprit, .ops>"
        )


def _histogram_of_whole(tensor: torch.Tensor) -> pd.Series:
    """Count per exponent floor(log2|x|) of the elements of whole numbers that are not zero."""
    found: Counter[int] = Counter()
    for value, count in zip(*np.unique(tensor.cpu().numpy(), return_counts=True), strict=True):
        if value:
            found[abs(int(value)).bit_length() - 1] += int(count)
    index = pd.Index(sorted(found), name="exponent", dtype="int64")
    return pd.Series([found[e] for e in index], index=index, name="count", dtype="int64")


def _ask(module: str, name: str, *given: Any) -> Any:
    """Call a function of a layer above, imported on demand."""
    return getattr(import_module(f"nanlab.{module}"), name)(*given)
