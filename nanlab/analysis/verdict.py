"""Is a fix right? The failing step runs with it, against the truth of the program."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch

from nanlab.analysis.parts import (
    FEW,
    WHOLE,
    Parts,
    SumsBefore,
    by_zero,
    counted,
    counts_nothing,
    divided_by,
    divides,
    moved,
    saturates,
    tends,
)
from nanlab.capture.state import are_finite, values_of
from nanlab.errors import NotReplayable, UsageError
from nanlab.exact.limits import (
    NOT_COMPUTED,
    Agreement,
    Evaluation,
    Truth,
    Wide,
    agrees,
    compared,
    evaluate,
    longer,
    tolerance,
)
from nanlab.exact.numbers import Undecided, count_work
from nanlab.program.beginnings import Beginnings
from nanlab.program.edit import CHANGES_NOTHING, Edited, Region, apply, is_sum
from nanlab.program.edit_text import EditLike
from nanlab.program.readings import text_of
from nanlab.program.rebuild import Graph, Patch, Rebuilt, same_bits
from nanlab.program.replay import (
    Change,
    FiniteGate,
    Replay,
    check_rebuilt,
    gradient_runs,
    last_backward,
    observed,
    patched,
    place_of,
)
from nanlab.program.rerun import Get, Window, window
from nanlab.program.settings import other_scale, scaler_scale
from nanlab.program.slices import Slice, calls_of, cut, numel, widened
from nanlab.program.values import Values
from nanlab.trace import Trace
from nanlab.trace.op import CARRIED, INTENDED, OK, location
from nanlab.trace.program import Call, EngineRun, Look, Ref, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor

# Is a fix right? The whole failing step is run with it, and held against the truth of the
# program as it was written.

_HERE = Path(__file__).parents[1]
RAISES = "it raises"  # how the reason of a fix begins that cannot be run
WITHIN = 0.01  # how far a healthy element may move
SAME = 1e-4  # how far a loss may move that stays
FEW_ERRORS = 4  # of an expression's own rounding are no change
SMALLER = (0.1, 0.01, 0.001)  # operands, where the loss itself has no finite limit
SMALL = 1e-3  # of the largest element: what is below is compared with that
REVIVED = "the loss stays, and a gradient arrives, which is not the derivative: that is 0"
STILL_ZERO = "the gradient stays 0"
SATURATES = "the dtype's largest number stands for an infinity: of two of them the sum is infinite"
DEAD = "no parameter gets a gradient"
STANDS_FOR = "a number of it stands for an infinity"
WITH_NUMBER = "what it divides may depend on the number that is 0"
MOST_RUNS = 3  # of the engine that are held against their truth
MOST_PUT_BACK = 4  # elements of data that an edit moves, each asked why
LOWER_SCALES = (2, 4, 8, 16)  # halvings of a loss scale that is still too large
MOST_REGIONS = 4  # runs of the edited expression that are held against their truth one by one


Verdict = Literal["verified", "finite", "fails", "untried"]


@dataclass(frozen=True)
class Judgement:
    """What became of the step with some edits."""

    verdict: Verdict
    why: str = ""
    distortion: float | None = None
    gradient_max: float | None = None
    replay: Replay | None = None
    read: str = ""  # why what fails may be right: a bad number that the program has read
    known: bool = False  # whether loss and gradients are held against exact ones throughout

    @property
    def verified(self) -> bool:
        """Whether the step came out right."""
        return self.verdict == "verified"


# an edit that moves a number of the program a distance, in all places of an expression
Move = Callable[[float], EditLike]


def _no_moves(*line: Any) -> Iterator[Move]:
    return iter(())


@dataclass
class Judge:
    """Holds edits against the truth of one step, which is found out once."""

    where: Window
    revives: str = ""  # the cause for which a gradient that is all zero has to become another
    # (file, its text, line) -> what moves the variables of the expressions that the line is part of
    moves: Callable[[str, str, int], Iterator[Move]] = _no_moves
    _known: dict[tuple[Any, ...], Judgement] = field(default_factory=dict)  # by edits
    _by_numbers: dict[int, Truth | None] = field(default_factory=dict)  # by the slice's identity
    _loss: float | None = None  # by lines in another form that come out right

    @property
    def recording(self) -> Recording:
        return self.where.recording

    @cached_property
    def values(self) -> Values:
        """What the step's calls read and returned, shared by all edits."""
        return Values(self.where.segments)

    @cached_property
    def parts(self) -> Parts:
        """What edits are held against, shared by all of them."""
        return Parts(self.values)

    @cached_property
    def beginnings(self) -> Beginnings:
        """What edits leave as it was, shared by all of them."""
        return Beginnings(self.recording, self.values)

    def sharing(self) -> AbstractContextManager[None]:
        """What edits leave as it was is run once for all that are judged in here."""
        return self.beginnings.sharing()

    def judge(self, edits: Sequence[EditLike], another_form: bool = False) -> Judgement:
        """The verdict on these edits, all at once.

        another_form: they compute the same, so that where no exact loss is known it is theirs.
        """
        key = tuple((e.file, e.first, e.last, e.text) for e in edits)
        if key not in self._known:
            try:
                found = self._judged(edits)
                if self.revives and found.verified and self._stays_dead(found.replay):
                    found = replace(found, verdict="finite", why=STILL_ZERO)
                elif self.revives == "dead-gradient" and self._only_revives(found):
                    found = replace(found, why=REVIVED, distortion=None)
                if found.verified and not found.known and found.replay is not None:
                    found = self._less_certain(found, found.replay, edits)
                found = self._beside_another_form(found, another_form)
                if found.verified and (harm := self._harm_before(edits)):
                    found = replace(found, verdict=harm[0], why=harm[1])
            except Exception as error:  # it accuses no edit
                told = f"{type(error).__name__}: {_first_line(error)}"
                found = Judgement("untried", f"nanlab could not tell whether it is right ({told})")
            # tensors are kept of the first alone that is right: it is the cure, as a rule
            first = found.verified and not any(each.verified for each in self._known.values())
            self._known[key] = found if first else replace(found, replay=None)
        return self._known[key]

    def _less_certain(
        self, found: Judgement, replay: Replay, edits: Sequence[EditLike]
    ) -> Judgement:
        """The verdict where no exact loss is known; no more than finite where the loss depends on a
        number in the place of an infinity, or where nothing is learnt."""
        loss, gradients = replay.loss, replay.gradients
        further = [_with_further(edit) for edit in edits]
        if any(a.text != b.text for a, b in zip(edits, further, strict=True)):
            beyond = self.replayed(further).loss
            if loss is not None and beyond is not None and _differ(beyond, loss):
                return replace(found, verdict="finite", why=f"{STANDS_FOR}: the loss is {loss:.4g}")
        off = self._off_at_the_edge(edits)
        if off is not None:
            return replace(found, verdict="finite", why=off.why)
        was = self._as_it_was
        dies = gradients and _all_zero(gradients) and not _all_zero(was.gradients)
        nowhere = was.loss is not None and math.isnan(was.loss)  # an infinite loss tends to that
        if (
            dies and nowhere and not any(map(self._has_limit, self._runs))
        ):  # |x| has a slope of 0 at its least
            return replace(found, verdict="finite", why=DEAD)
        return found

    def _off_at_the_edge(self, edits: Sequence[EditLike]) -> Agreement | None:
        """The disagreement with what loss and gradients tend to at the edge of a domain that an
        operand has left by a little; None where they tend to nothing finite there."""
        with suppress(NotReplayable):
            edited = apply(self.recording, self.where.segments, edits, self.values)
            for run in self._runs:
                whole = self.parts.whole(*run)
                if (true := self.parts.truth_at_the_edge(whole)) is None:
                    continue
                operands, wanted = [*whole.operands.values()], whole.differentiated
                new = evaluate(whole.function(edited.patches), operands, wanted)
                found = compared(new, whole.evaluated, true)
                if found.kind in ("value", "gradient"):
                    return found
        return None

    def _has_limit(self, run: tuple[int, EngineRun]) -> bool:
        """Whether each loss of a run has a limit, an infinite one too; not where none is known, as
        in a step that is too large."""
        try:
            whole = self.parts.whole(*run)
        except NotReplayable:
            return False
        true, by_number = self.parts.truth(whole), self._by_a_number(whole)
        if true is None or by_number is not None:
            return by_number is not None
        return not any(bool(limit.value.isnan().any()) for limit in true.values)

    def tends_nowhere(self) -> bool:
        """Whether the losses of the step have no finite limit, as far as that can be found out."""
        try:
            wholes = [self.parts.whole(*run) for run in self._runs]
            truths = [(self.parts.truth(whole), self._by_a_number(whole)) for whole in wholes]
        except NotReplayable:
            return False
        return bool(truths) and all(
            true is not None
            and by_number is None
            and not any(bool((limit.exists | limit.open).any()) for limit in true.values)
            for true, by_number in truths
        )

    def _beside_another_form(self, found: Judgement, another_form: bool) -> Judgement:
        """The verdict, reduced where the loss differs from an equivalent form's."""
        loss = found.replay.loss if found.replay is not None else None
        if not found.verified or found.known or loss is None:
            return found
        if another_form and self._loss is None:
            self._loss = loss
        right = loss if self._loss is None else self._loss
        if not _differ(loss, right):
            return found
        return replace(
            found, verdict="finite", why=f"the loss is {loss:.4g}, its limit {right:.4g}"
        )

    def _harm_before(self, edits: Sequence[EditLike]) -> tuple[Verdict, str] | None:
        """What edits break or change in the step before, which went well; None where it is
        unknown."""
        try:
            where, values = self._before.where, self._before.values
            count_work(*self._size())
            edited = apply(self.recording, where.segments, edits, values)
            replay = patched(where, edited)[0]
        except (NotReplayable, UsageError):  # it is not kept, or does not run these lines
            return None
        except Exception as error:
            if _is_internal(error):
                return None
            told = f"it raises {type(error).__name__}: {_first_line(error)}"
            return "fails", f"in step {where.step} {told}"
        if not replay.finite:
            return "fails", f"step {where.step}, which was finite, is not with it"
        was, now = self._before._as_it_was.loss, replay.loss
        if was is None or now is None or math.isclose(was, now, rel_tol=SAME):
            return None
        changed = self._before._largest_distortion(edited) or 0.0
        told = f"it changes healthy values of step {where.step} by {_percent(changed)}"
        return ("finite", told) if changed > WITHIN else None

    @cached_property
    def _before(self) -> Judge:
        """The judge of the step before. Raises NotReplayable where it is not kept or went wrong,
        too."""
        step = self.recording.step_of(self.where.start) - 1
        sinks = {self.recording.step_of(sink.step_position) for sink in self.recording.sinks}
        if step < 0 or step in sinks:
            raise NotReplayable("no step before it went well")
        return Judge(window(self.recording, step))

    def _stays_dead(self, replay: Replay | None) -> bool:
        return bool(self._dead) and not self._has_revived(replay)

    def _has_revived(self, replay: Replay | None) -> bool:
        after = replay.gradients if replay is not None else {}
        return any(name in after and bool(after[name].any()) for name in self._dead)

    def _only_revives(self, found: Judgement) -> bool:
        """Whether an all-zero gradient has become another, and the loss is unchanged."""
        loss, now = self._as_it_was.loss, found.replay.loss if found.replay is not None else None
        if found.verdict != "finite" or loss is None or now is None:
            return False
        return math.isclose(loss, now, rel_tol=SAME) and self._has_revived(found.replay)

    @cached_property
    def _as_it_was(self) -> Replay:
        return self.replayed(())

    @cached_property
    def _dead(self) -> list[str]:
        """The parameters whose gradient is all zero in the step as it was."""
        before = self._as_it_was.gradients
        return [name for name, gradient in before.items() if not bool(gradient.any())]

    def observed(self, edits: Sequence[EditLike], updates: bool) -> Trace:
        """What a watch sees of the step with these edits. Raises NotReplayable."""
        count_work(*self._size())
        segments = self.where.segments
        return observed(self.where, apply(self.recording, segments, edits, self.values), updates)

    def replayed(self, edits: Sequence[EditLike]) -> Replay:
        """The step with these edits. Raises NotReplayable."""
        edited = apply(self.recording, self.where.segments, edits, self.values)
        return self._run(edited)[0]

    def _run(self, edited: Edited, gate: FiniteGate | None = None) -> tuple[Replay, Graph, Rebuilt]:
        """The step with edits, from the first call that they change on."""
        beginning = self.beginnings.before(edited.patches)
        check_rebuilt(self.where, beginning)
        found = patched(self.where, edited, gate, beginning)
        begin = beginning.index if beginning is not None else 0
        count_work(*self._size(begin, found[2].ended))
        if beginning is None or beginning.is_intact:
            return found
        self.beginnings.forget()  # new code wrote what it did not make
        return patched(self.where, edited, gate)

    def _size(self, begin: int = 0, ended: bool = False) -> tuple[int, int]:
        """Work of the step: five times its calls, for what a graph takes; and the elements made.

        ended: count up to the first bad gradient only.
        """
        segments = self.where.segments
        at, run = last_backward(self.where)
        end = (at, run.first) if ended and run is not None else (len(segments), 0)
        made = [
            sum(numel(ref) for ref in refs_in(call.out))
            for number, segment in enumerate(segments)
            for index, call in enumerate(segment.calls)
            if (0, begin) <= (number, index) < end
        ]
        return 5 * len(made), sum(made)

    def _judged(self, edits: Sequence[EditLike]) -> Judgement:
        self.beginnings.prepare(edits)
        try:
            edited = apply(self.recording, self.where.segments, edits, self.values)
            replay, graph, _ = self._run(edited, FiniteGate(self.where))
        except NotReplayable as error:
            return Judgement("untried", str(error))
        except Exception as error:
            told = f"{type(error).__name__}: {_first_line(error)}"
            if _is_internal(error):
                return Judgement("untried", f"internal error in nanlab ({told})")
            return Judgement("fails", f"{RAISES} {told}")
        largest = _largest(replay.gradients.values())
        if not replay.finite:
            why = self._what_fails(replay, graph, edited)
            largest = largest if math.isfinite(largest or math.nan) else None
            if replay.loss is not None and math.isfinite(replay.loss):
                with suppress(NotReplayable):
                    if told := self._at_lower_scales(edited):
                        return Judgement("finite", told, None, largest, replay)
            return Judgement("fails", why, None, largest, replay, self._bad_number_read(replay))
        if self._changes_nothing(replay):
            return Judgement("untried", CHANGES_NOTHING)
        self._fetch(edited)
        distortion = self._largest_distortion(edited)
        if (distortion or 0.0) > WITHIN:  # perhaps of elements that fail behind the line
            distortion = self._largest_distortion(edited, behind=True)
        found = Judgement("verified", "", distortion, largest, replay)
        agreement, whole = self._agreement(edited)
        found = replace(found, known=whole)
        right = whole and agreement.kind == "agrees" and not self._shows_more(replay)
        if not right and (distortion or 0.0) > WITHIN:
            why = f"it changes healthy values by {_percent(distortion or 0.0)}"
            return Judgement("finite", why, distortion, largest, replay)
        if agreement.kind == "agrees":
            agreement = self._beside_losses(edited)
        if agreement.kind != "agrees":
            if agreement.kind == "infinite" and not agreement.why.startswith(RAISES):
                # of the losses that torch.func differentiates the replay knows none
                unknown = replay.loss is None
                kind: Verdict = "fails" if unknown else "finite"
                why = agreement.why if unknown else NOT_COMPUTED
                return Judgement(kind, why, distortion, largest, replay)
            return Judgement("finite", agreement.why, distortion, largest, replay)
        if self._saturates(edited):
            return Judgement("finite", SATURATES, distortion, largest, replay)
        if (distortion or 0.0) > WITHIN:  # loss and gradients are right; what is between is another
            return replace(found, distortion=None)
        return found

    def _at_lower_scales(self, edited: Edited) -> str:
        """A remark on a lower loss scale at which a step is finite only with the edits, and to
        which a GradScaler that calibrates would come down; "" if none. Raises NotReplayable."""
        scale = scaler_scale(self.where) or 0.0
        for halvings in LOWER_SCALES:
            if (lower := scale / 2**halvings) < 1.0:
                break
            segments, skipped = other_scale(self.where, lower)
            as_it_was, with_edits = (Change(segments, e, skipped=skipped) for e in (None, edited))
            count_work(*self._size())
            if patched(self.where, with_edits)[0].finite:
                if patched(self.where, as_it_was)[0].finite:
                    break
                return (
                    f"the gradients overflow at the loss scale of {scale:,.0f}, and are finite"
                    f" at {lower:,.0f}, to which the scaler comes down"
                )
        return ""

    def _saturates(self, edited: Edited) -> bool:
        """Whether a sum in the edited step reads the dtype's largest number in the place of an
        infinity."""
        overflowed = any(
            self.recording.may_be_bad(self._call_of(region).position) for region in edited.regions
        )
        with suppress(NotReplayable):
            wholes = [self.parts.whole(*run) for run in self._runs] if overflowed else []
            return any(saturates(whole, edited.patches) for whole in wholes)
        return False

    def _changes_nothing(self, replay: Replay) -> bool:
        """Whether a step that was finite, in which a signal was lost, has the bits that it had."""
        where = self.where
        sinks = (sink.step_position for sink in self.recording.sinks)
        if any(where.start <= position < where.end for position in sinks):
            return False
        was = self._as_it_was
        pairs = [(was.gradients, replay.gradients), (was.parameters, replay.parameters)]
        return was.loss == replay.loss and all(
            a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)
            for a, b in pairs
        )

    def _shows_more(self, replay: Replay) -> bool:
        """Whether a value other than a loss that the program read has changed."""
        others = {place_of(self.recording, look.place) for look in self._looks()}
        return not others.isdisjoint(replay.looked_at)

    def _bad_number_read(self, replay: Replay) -> str:
        """A remark where the replay goes on with a bad number that the program, or an optimizer
        with a closure, had read, and that the edits change; "" where it does not."""
        for look in self._looks():
            place = place_of(self.recording, look.place)
            number = isinstance(look.value, float) and not math.isfinite(look.value)
            if number and place in replay.looked_at:
                bad = "NaN" if math.isnan(look.value) else f"{look.value}"
                return f"the replay goes on with the {bad} that the program read at {place}"
        if any(
            sum(update.first < run.first < update.last for run in segment.engine) > 1
            for segment in self.where.segments
            for update in segment.optimizers
        ):
            return "the optimizer went on by bad numbers: its way with good ones is not known"
        return ""

    def _looks(self) -> Iterator[Look]:
        """Reads of values other than a loss by the program."""
        losses = {ref.storage for _, run in self._runs for ref in refs_in(run.roots)}
        for segment in self.where.segments:
            for look in segment.looks:
                if not {ref.storage for ref in refs_in(look.ref)} <= losses:
                    yield look

    # -- the truth

    def _fetch(self, edited: Edited) -> None:
        """Make all values in one run that these edits are held against."""
        with suppress(Exception):  # what cannot be made is told where it is asked for
            regions, stop = edited.regions[:MOST_REGIONS], self._sums_before(edited)
            parts = [self.parts.whole(*run) for run in self._runs]
            if any(part.size > WHOLE for part in parts):
                around = [self.parts.after(r, True, stop)[0] for r in regions]
                parts = [part for part in around if part.extent <= FEW]
                if len(parts) < len(around):
                    parts += [self.parts.after(r, False, stop)[0] for r in regions]
            parts += [self.parts.all_of_line(r, stop) for r in regions]
            self.values.of({each for part in parts for each in calls_of(part)})

    def _agreement(self, edited: Edited) -> tuple[Agreement, bool]:
        """Whether loss and gradients are exact, and whether this is known of every element."""
        found, complete = Agreement("unknown", NOT_COMPUTED), True
        for run in self._runs:
            try:
                whole = self.parts.whole(*run)
                true = self.parts.truth(whole)
            except NotReplayable:  # as in a reentrant checkpoint, which runs the engine in its own
                complete, found = False, self._locally(edited)
                if found.kind != "agrees":
                    return found, False
                continue
            if true is not None and not any(bool(v.exists.any()) for v in true.values):
                found_by = self._by_a_number(whole)
                if found_by is None and any(divides(c) for _, _, c in by_zero(whole)):
                    return Agreement("unknown", WITH_NUMBER), False
                true = found_by or true
            complete = complete and true is not None and true.is_known
            if true is not None:
                found = self._compared(whole, edited, true)
            if true is None or found.kind == "unknown":
                found = self._other_loss(whole, edited) or self._locally(edited)
                if found.holds and whole.differentiates:  # it tells none of second derivatives
                    found = Agreement("unknown", NOT_COMPUTED)
            elif found.kind == "agrees" and all(bool(v.unknown.all()) for v in true.values):
                near = self._locally(edited)  # a loss without a limit tells no sign
                found = near if near.kind == "sign" else self._of_lines(edited)
            elif found.kind == "agrees" and not any(bool(v.exists.any()) for v in true.values):
                found = self._of_lines(edited)  # one within its bounds tells little of its parts
            elif found.kind == "unbounded" and self._of_lines(edited, each=True).kind == "agrees":
                found = Agreement("agrees")  # a sum goes seldom as far as each of its parts may
            if true is None or found.kind != "agrees":
                return found, False
        return found, complete

    def _by_a_number(self, whole: Slice) -> Truth | None:
        """The limit of loss and gradients as a divisor moves that is the number 0; None where it is
        unknown what else depends on that number."""
        if id(whole) not in self._by_numbers:
            found = None
            for move in self._number_moves(whole):
                with suppress(Exception):  # a variable that is no number, perhaps
                    found = tends(partial(self._moved, whole, move))
                if found is not None:
                    break
            self._by_numbers[id(whole)] = found
        return self._by_numbers[id(whole)]

    def _moved(
        self, whole: Slice, move: Callable[[float], Sequence[Patch]], distance: float
    ) -> Evaluation:
        return moved(whole, move(distance))

    def _number_moves(self, whole: Slice) -> Iterator[Callable[[float], Sequence[Patch]]]:
        for segment, index, call in by_zero(whole):
            row = self.recording.op(call.position)
            if row is not None:
                text = text_of(self.recording, row.file)
                for move in self.moves(row.file, text, row.line):
                    yield partial(self._patches, move)
            if divides(call) and counts_nothing(whole):  # it does not depend on how many there are
                yield partial(divided_by, segment, index, call)

    def _patches(self, move: Move, distance: float) -> list[Patch]:
        edits = [move(distance)]
        return apply(self.recording, self.where.segments, edits, self.values).patches

    def _compared(self, whole: Slice, edited: Edited, true: Truth) -> Agreement:
        operands = list(whole.operands.values())
        old, new = whole.function(), whole.function(edited.patches)
        try:
            got = evaluate(new, operands, whole.differentiated)
        except NotReplayable:  # the new lines read what the old ones did not
            return Agreement("unknown", NOT_COMPUTED)
        found = self._held(whole, got, true, compared(got, whole.evaluated, true))
        narrow = _narrow(whole)
        if (found.kind == "gradient" and narrow) or _is_near_by_rounding(got, found, true):
            with Wide():
                exact = evaluate(new, [widened(t) for t in operands], whole.differentiated)
            exactly = self._held(whole, exact, true, compared(exact, whole.evaluated, true))
            if found.kind == "agrees":  # what is off in float64 too is no rounding
                found = exactly if exactly.kind == "gradient" else found
            elif exactly.kind == "agrees":
                found = replace(found, why=f"{ROUNDED} {narrow} {found.why}")
        if not all(bool(value.exists.all()) for value in true.values):
            off = _off_in_range(old, new, operands, whole.differentiated)
            if off is not None:
                return off
        return found

    def _held(self, whole: Slice, got: Evaluation, true: Truth, otherwise: Agreement) -> Agreement:
        """The disagreement of the loss, or of the first parameter's gradient that is not exact,
        healthy elements included. otherwise: the answer where all agree."""
        names = self.recording.program.names
        for value, limit in zip(got.values, true.values, strict=True):
            off = _off(value, limit.value)
            if off is not None:
                return Agreement("value", f"the loss is {off[0]:.4g}, its limit {off[1]:.4g}")
        largest = true.largest(got)
        for ref, gradient, known in zip(whole.operands, got.gradients, true.gradients, strict=True):
            if gradient is None or known is None:
                continue
            off = _off(gradient, known.value, largest)
            if off is not None:
                name = names.get(ref.storage, "")
                short = f" of {name}" if name else ""
                return Agreement(
                    "gradient", f"the gradient{short} is {off[0]:.4g}, its limit {off[1]:.4g}"
                )
        return otherwise

    @cached_property
    def _runs(self) -> list[tuple[int, EngineRun]]:
        """The runs of the engine that leave gradients, and went wrong; the last where none did."""
        runs, wrong = gradient_runs(self.where), check_rebuilt(self.where)
        bad = [(at, run) for at, run in runs if any(run is each for each in wrong)]
        bad = bad[:1] + [run for run in bad[1:MOST_RUNS] if self._begins_finite(run)]
        return bad or runs[-1:]

    def _begins_finite(self, run: tuple[int, EngineRun]) -> bool:
        """Whether what a run computes with is finite; after an update by bad gradients it is not,
        and tells of no fix."""
        try:
            return are_finite([*self.parts.whole(*run).operands.values()])
        except Exception:  # it is told where the run is held against its truth
            return True

    def _other_loss(self, whole: Slice, edited: Edited) -> Agreement | None:
        """The disagreement where an edit changes a loss that is right; else None."""
        operands, none = list(whole.operands.values()), [False] * len(whole.operands)
        try:
            fns = whole.function(), whole.function(edited.patches)
            old, new = (evaluate(fn, operands, none).values for fn in fns)
            off = _first_off(new, old, "the loss")
            if off is None:
                return None
            with Wide() as wide:
                wide.undecided = Undecided() if are_finite(operands) else None
                right = evaluate(fns[0], [widened(t) for t in operands], none).values
        except Exception:
            return None
        return None if _first_off(old, right, "the loss") else off

    def _locally(self, edited: Edited) -> Agreement:
        """The agreement of what edited lines flow into, from the sums before to the next sums."""
        found, stop = Agreement("unknown", NOT_COMPUTED), self._sums_before(edited)
        for region in edited.regions[:MOST_REGIONS]:
            try:
                part, last, true = self.parts.around(region, stop)
                if true is None:
                    return Agreement("unknown", NOT_COMPUTED)
                own = [p for p in edited.patches if p.segment == region.segment and p.at <= last]
                calls = {i for p in own if not p.follows for i in {*p.skipped, p.at}}
                if not calls & {index for _, index, _ in part.items}:
                    return Agreement("unknown", NOT_COMPUTED)
                new, old, operands = part.function(own), part.function(), [*part.operands.values()]
                wanted, before = part.differentiated, part.evaluated
                found = agrees(new, old, operands, wanted, known=true, old=before)
            except Exception:
                return Agreement("unknown", NOT_COMPUTED)
            if found.kind != "agrees":
                return found
        return found

    def _of_lines(self, edited: Edited, each: bool = False) -> Agreement:
        """The agreement of edited lines alone: no vector may be longer than along any direction.
        each: every element and gradient must agree, too."""
        found, stop = Agreement("unknown" if each else "agrees"), self._sums_before(edited)
        for region in edited.regions[:MOST_REGIONS]:
            with suppress(Exception):
                part = self.parts.line(region, stop)
                if (true := self.parts.truth(part)) is None:
                    continue
                own = [p for p in edited.patches if p.segment == region.segment]
                wanted = part.differentiated
                new = evaluate(part.function(own), [*part.operands.values()], wanted)
                found = longer(new, part.evaluated, true)
                if each and found.holds:
                    found = compared(new, part.evaluated, true)
                if not found.holds:
                    return found
        return found

    def _beside_losses(self, edited: Edited) -> Agreement:
        """The agreement of edited lines that no loss depends on, such as gradients scaled by hand
        or a buffer, where these lines gave nothing finite."""
        bad = [r for r in edited.regions if self.recording.may_be_bad(self._call_of(r).position)]
        for region in bad[:MOST_REGIONS]:
            try:
                if self._is_followed(region):
                    continue
                part = self.parts.line(region)
                operands, old = [*part.operands.values()], part.evaluated
                read = [t for t in operands if t.is_floating_point() or t.is_complex()]
                if are_finite([*old.values]) or not are_finite(read):  # another run of it is first
                    continue
                true = self.parts.truth(part)
                if true is None or not _exist(true, old):
                    true = self._by_a_count(part)
                if true is None or not _exist(true, old) or self._is_rounding(part, old):
                    return Agreement("unknown", NOT_COMPUTED)
                own = [p for p in edited.patches if p.segment == region.segment]
                new = evaluate(part.function(own), operands, part.differentiated)
                found = compared(new, old, true)
            except Exception:
                return Agreement("unknown", NOT_COMPUTED)
            if found.kind != "agrees":
                return found
        return Agreement("agrees")

    def _is_rounding(self, part: Slice, old: Evaluation) -> bool:
        """Whether the rounding of operands decides what is not finite, as in a quotient by the
        difference of nearly equal numbers."""
        values = zip(
            old.values, *(each.values for each in self.parts.in_float64(part)), strict=True
        )
        for was, here, *near in values:
            bad = ~was.isfinite().cpu()
            at, beside = here.double().cpu()[bad], (each.double().cpu()[bad] for each in near)
            if any(bool(((each - at).abs() > WITHIN * at.abs()).any()) for each in beside):
                return True
        return False

    def _is_followed(self, region: Region) -> bool:
        """Whether a loss of its step depends on a line, or it is in the backward part."""
        at, index = region.segment, region.outer[0]
        engine = self.where.segments[at].engine
        if any(run.first <= index < run.last for run in engine):
            return True
        call, step = self._call_of(region), self._step_of(at, index)
        runs = (r for r in gradient_runs(self.where) if self._step_of(r[0], r[1].first) == step)
        try:
            own = [self.parts.whole(*run) for run in runs]
        except NotReplayable:  # it is not known of all
            return True
        if call.read:
            return any((at, index) in calls_of(part) for part in own)
        made = {ref.storage for ref in refs_in(region.outer[1])}  # a constant
        return any(ref.storage in made for part in own for ref in part.operands)

    def _step_of(self, segment: int, index: int) -> int:
        """The step of a call, or of what ends with the segment."""
        calls = self.where.segments[segment].calls
        return self.recording.step_of(calls[min(index, len(calls) - 1)].position)

    def _call_of(self, region: Region) -> Call:
        """The call that gave a line its value."""
        return self.where.segments[region.segment].calls[region.outer[0]]

    def _by_a_count(self, part: Slice) -> Truth | None:
        """The limit of a line as its divisor, a whole number, moves; its dividend, a sum over no
        elements, stays 0."""
        for segment, index, call in counted(part):
            return tends(lambda d: moved(part, divided_by(segment, index, call, d)))  # noqa: B023
        return None

    def _changed(self, edited: Edited, turns: bool = False) -> Iterator[tuple[Region, Slice]]:
        """Each changed line whose results no other changed line reads. turns: the others, where
        what reads them is the same line in a later turn of a loop."""
        parts, stop = [], self._sums_before(edited)
        for region in edited.regions[:MOST_REGIONS]:
            with suppress(Exception):
                parts.append((region, self.parts.line(region, stop)))
        for region, part in parts:
            index, own = region.outer[0], region.segment
            later = (
                each
                for each, other in parts
                if each.segment == own and each.outer[0] > index
                if any((at, i) == (own, index) for at, i, _ in other.items)
            )
            reader = next(later, None)
            alike = reader is not None and turns and self._line(reader) == self._line(region)
            if alike if turns else reader is None:
                yield region, part

    def _line(self, region: Region) -> int:
        """The number of the line that a region gives its value."""
        call = self.where.segments[region.segment].calls[region.outer[0]]
        return self.recording.at(call.position).place

    def _sums_before(self, edited: Edited) -> SumsBefore:
        """The sums before edited lines, where slices of these begin; no edit changes such a sum."""
        segments = self.where.segments
        places = {(r.segment, r.outer[0]) for r in edited.regions[:MOST_REGIONS]}
        anew = [segments[p.segment].calls[i] for p in edited.patches for i in {*p.skipped, p.at}]
        if len(places) < 2 and not any(is_sum(call) for call in anew):
            return SumsBefore()
        anew += [segments[at].calls[index] for at, index in places]
        return SumsBefore(min(call.position for call in anew))

    def _largest_distortion(self, edited: Edited, behind: bool = False) -> float | None:
        found: float | None = None
        for turns in (False, True):  # a sum in a loop is no number where one of its terms is none
            moved = [self._distortion(edited, *p, behind) for p in self._changed(edited, turns)]
            found = max((d for d in moved if d is not None), default=None)
            if found is not None:
                break
        return found

    def _distortion(
        self, edited: Edited, region: Region, part: Slice, behind: bool
    ) -> float | None:
        """Largest relative change of the line's healthy values and derivatives, by float64.

        behind: a value at which a later operation fails is not healthy either.
        """
        try:
            at, index = region.segment, region.outer[0]
            patches = [p for p in edited.patches if p.segment == at and p.at <= index]
            operands, wanted = list(part.operands.values()), part.differentiated
            new = evaluate(part.function(patches), operands, wanted, summed=part.healthy)
            old = part.evaluated
            if part.healthy is not None:
                old = evaluate(part.function(), operands, wanted, summed=part.healthy)
            # of a leaf that the step itself makes no derivative is asked
            telling = old if any(wanted) else evaluate(part.function(), operands)
            old = _without_offending(
                old, [*telling.gradients, *(self._arriving(region) if behind else ())]
            )
            if behind and not any(wanted):
                old = self._without_needed(edited, region, new, old)
            wide, *near = self.parts.in_float64(part)
        except Exception:
            return None
        found = (_joined(each, operands) for each in (new, old, wide, *near))
        rows = zip(*found, strict=True)
        changes = [_change(n, o, w, beside) for n, o, w, *beside in rows]
        return max((c for c in changes if c is not None), default=None)

    def _arriving(self, region: Region) -> Sequence[Tensor | None]:
        """Gradients of the losses by the results of a line: not finite at elements at which
        something later fails. Empty where they cannot be computed."""
        at, (index, out) = region.segment, region.outer
        own, views = self.where.segments[at].calls[index], {ref.view for ref in refs_in(out)}
        found: list[Tensor | None] = []
        for run in (run for segment, run in self._runs if segment == at and run.first > index):
            with suppress(Exception):
                part = cut(self.values, run.roots, (at, run.first), lambda call: call is own)
                wanted = [ref.view in views for ref in part.operands]
                operands = list(part.operands.values())
                if any(wanted):
                    found += evaluate(part.function(), operands, wanted).gradients
        return found

    def _without_needed(
        self, edited: Edited, region: Region, new: Evaluation, old: Evaluation
    ) -> Evaluation:
        """The evaluation with NaN at elements whose old value makes the step fail, among the few
        that an edit moves."""
        at, (index, out) = region.segment, region.outer
        if out.__class__ is not Ref or old.values[0].shape != new.values[0].shape:
            return old
        was, now = old.values[0], new.values[0]
        moved = (now - was).abs() > WITHIN * torch.maximum(now.abs(), was.abs())
        if not 0 < int(moved.sum()) <= MOST_PUT_BACK:
            return old
        left = was.clone()
        for place in moved.nonzero():
            own = torch.zeros_like(moved)
            own[tuple(place)] = True

            def back(get: Get, own: Tensor = own) -> Tensor:
                return torch.where(own, was, get(out))

            patches = [*edited.patches, Patch(at, index, frozenset(), out, back)]
            with suppress(Exception):  # it tells nothing of an element that it cannot be run with
                gate = FiniteGate(self.where)
                if not self._run(replace(edited, patches=patches), gate)[0].finite:
                    left[tuple(place)] = torch.nan
        return replace(old, values=(left, *old.values[1:]))

    # -- what fails

    def _what_fails(self, replay: Replay, graph: Any, edited: Edited) -> str:
        """The place where the step is still not finite, in words."""
        first = min((p.segment, min(p.skipped, default=p.at)) for p in edited.patches)
        skipped = {(p.segment, index) for p in edited.patches for index in p.skipped}
        read = {  # what a rewritten line alone has read does no harm
            ref.storage
            for at, segment in enumerate(self.where.segments)
            for index, call in enumerate(segment.calls)
            if (at, index) not in skipped
            and call.func is not None  # what it read was not seen
            and not call.func.is_view
            and not any(r.first <= index < r.last for r in segment.engine)
            for ref in refs_in((call.args, (*call.kwargs.values(),)))
        }
        calls = (
            ((at, index) < first, call)
            for at, segment in enumerate(self.where.segments)
            for index, call in enumerate(segment.calls)
        )
        for before, call in calls:
            op = self.recording.op(call.position)
            if op is None or not op.line or op.backward or op.status in (CARRIED, INTENDED):
                continue
            if op.status == OK and before:  # what was finite, and is as it was
                continue
            slot = graph.live.get(call.out.view) if hasattr(call.out, "view") else None
            if slot and call.out.storage not in read:
                continue
            result = next((t for t in slot if t is not None), None) if slot else None
            if result is None or not (result.is_floating_point() or result.is_complex()):
                continue
            if not bool(torch.isfinite(result.detach()).all()):
                kind = "NaN" if bool(torch.isnan(result.detach()).any()) else "infinite"
                return f"{op.name} at {location(op.file, op.line)} is {kind} too"
        if replay.loss is not None and not math.isfinite(replay.loss):
            return f"the loss is {replay.loss}"
        for name, gradient in replay.gradients.items():
            if not are_finite([gradient]):
                kind = "NaN" if bool(torch.isnan(values_of(gradient)).any()) else "infinite"
                return f"the gradient of {name} is {kind}"
        bad = next(n for n, p in replay.parameters.items() if not bool(torch.isfinite(p).all()))
        return f"the update makes {bad} non-finite"


_FAR = re.compile(r"\b\d[\d.]*e\+?[3-9]\d\b")  # a number that stands for an infinity


@dataclass(frozen=True)
class _Lines:
    """An edit with changed text."""

    file: str
    first: int
    last: int
    text: str


def _with_further(edit: EditLike) -> EditLike:
    """The edit with numbers that stand for infinities doubled."""
    text = _FAR.sub(lambda found: repr(2 * float(found[0])), edit.text)
    return _Lines(edit.file, edit.first, edit.last, text)


def _all_zero(gradients: Mapping[str, Tensor]) -> bool:
    return not any(bool(values_of(g).any()) for g in gradients.values())


def _differ(a: float, b: float) -> bool:
    """Whether two losses are not the same."""
    return abs(a - b) > WITHIN * abs(b)


ROUNDED = "right in float64; in"  # why a fix is finite only


def _narrow(part: Slice) -> str:
    """The narrowest dtype that a slice computes in; "" where WITHIN covers its rounding."""
    dtypes = {ref.dtype for each in part.reads.values() for ref in each}
    eps = {d: torch.finfo(d).eps for d in dtypes if d.is_floating_point}
    narrow = max(eps, key=eps.__getitem__, default=torch.float64)
    return str(narrow).removeprefix("torch.") if eps.get(narrow, 0.0) > WITHIN / 10 else ""


def _off(got: Tensor, limit: Tensor, largest: float = 0.0) -> tuple[float, float] | None:
    """The element that is farthest from a limit that exists; None where all are near.

    largest: of all gradients.
    """
    limit = limit.double().cpu()
    known = limit.isfinite()
    if got.shape != limit.shape or not bool(known.any()):
        return None
    near = tolerance(got, limit, largest)
    got = got.double().cpu()
    gap = torch.where(known, (got - limit).abs() - near, 0.0)
    if not bool((gap > 0).any()):
        return None
    at = int(gap.flatten().argmax())
    return float(got.flatten()[at]), float(limit.flatten()[at])


def _is_near_by_rounding(got: Evaluation, found: Agreement, true: Truth) -> bool:
    """Whether gradients agree with their limits only within the rounding of larger gradients."""
    pairs = zip(got.gradients, true.gradients, strict=True)
    return found.kind == "agrees" and any(
        g is not None and known is not None and _off(g, known.value) is not None
        for g, known in pairs
    )


def _exist(true: Truth, old: Evaluation) -> bool:
    """Whether every value that was not finite has a limit."""
    pairs = zip(true.values, old.values, strict=True)
    return all(bool((limit.exists | was.isfinite().cpu()).all()) for limit, was in pairs)


def _off_in_range(
    old: Callable[..., Any],
    new: Callable[..., Any],
    operands: Sequence[Tensor],
    wanted: Sequence[bool],
) -> Agreement | None:
    """How loss and gradients differ from the program's at smaller operands, where those are finite.
    None where they agree at some scale: a bound may not be reached there."""
    first = None
    for factor in SMALLER:
        near = [x * factor if x.is_floating_point() else x for x in operands]
        try:
            now, before = (evaluate(fn, near, wanted) for fn in (new, old))
        except Exception:
            return None
        if not all(bool(t.isfinite().all()) for t in before.tensors):
            continue
        largest = _largest(t for t in before.gradients if t is not None) or 0.0
        found = _first_off(now.values, before.values, "where the loss is in range it")
        found = found or _first_off(
            [t for t in now.gradients if t is not None],
            [t for t in before.gradients if t is not None],
            "where the loss is in range its gradient",
            largest,
        )
        if found is None:
            return None
        first = first or found
    return first


def _first_off(
    got: Sequence[Tensor], right: Sequence[Tensor], what: str, largest: float = 0.0
) -> Agreement | None:
    """The first pair of tensors that differ."""
    for a, b in zip(got, right, strict=True):
        if (off := _off(a, b, largest)) is not None:
            kind: Literal["value", "gradient"] = "gradient" if largest else "value"
            return Agreement(kind, f"{what} is {off[0]:.4g} and not {off[1]:.4g}")
    return None


def _without_offending(found: Evaluation, gradients: Sequence[Tensor | None]) -> Evaluation:
    """The evaluation with NaN where a derivative is not finite: no such element is healthy."""
    values = []
    for value in found.values:
        for gradient in gradients:
            if gradient is not None and gradient.shape == value.shape:
                value = torch.where(gradient.isfinite(), value, torch.nan)
        values.append(value)
    return replace(found, values=tuple(values))


def _joined(found: Evaluation, operands: Sequence[Tensor]) -> list[Tensor]:
    """Values, and gradients summed over equal operands, which an edit may join."""
    first: dict[int, int] = {}
    for i, x in enumerate(operands):
        twins = (j for j in first.values() if same_bits(operands[j], x))
        first[i] = next(twins, i)
    sums: dict[int, Tensor] = {}
    for i, gradient in enumerate(found.gradients):
        if gradient is not None:
            have = sums.get(first[i])
            sums[first[i]] = gradient if have is None else have + gradient
    return [*found.values, *sums.values()]


def _reals(t: Tensor) -> Tensor:
    """The numbers themselves in float64, of complex ones their real and imaginary parts."""
    return torch.view_as_real(widened(t).resolve_conj()) if t.is_complex() else t.double()


def _change(new: Tensor, old: Tensor, wide: Tensor, near: Sequence[Tensor]) -> float | None:
    """The largest change of an element that is finite and does not jump, as 0**p does."""
    computed = wide.is_floating_point() or wide.is_complex()
    if not new.shape == old.shape == wide.shape or not computed:
        return None
    new, old, wide, *near = (_reals(t) for t in (new, old, wide, *near))
    healthy = new.isfinite() & old.isfinite() & wide.isfinite()
    apart = torch.stack([(n - wide).abs() > WITHIN * torch.maximum(n, wide).abs() for n in near])
    healthy &= ~apart.all(0)
    if not bool(healthy.any()):
        return None
    size = wide[healthy].abs()
    # an element far below the others is compared with them: of two numbers either may be the
    # rounding of the other
    if bool((size > 0).any()):
        middle = max(float(size[size > 0].median()), SMALL * float(size.max()))
    else:
        middle = 1.0
    # what the expression itself gets wrong by rounding is no change, nor what is of its size
    # elsewhere: all of a derivative may cancel out
    own = (old - wide).abs()[healthy]
    middle = max(middle, FEW_ERRORS / WITHIN * float(own.max()))
    gap = ((new - wide).abs()[healthy] - own).clamp_min(0.0)
    return float((gap / size.clamp_min(middle)).max())


def _largest(tensors: Any) -> float | None:
    known = (values_of(t.detach()) for t in tensors)
    found = [float(t.abs().max()) for t in known if t.numel()]
    return max(found) if found else None


def _percent(x: float) -> str:
    return f"{100 * x:.3g} %" if x < 100 else f"a factor of {x:.3g}"


def _is_internal(error: BaseException) -> bool:
    """Whether nanlab's own code raised it, and not the program's, an edit's or torch's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename)
    # what an edit calls is part of it
    return file.is_relative_to(_HERE) and not file.is_relative_to(_HERE / "safe")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:160]
