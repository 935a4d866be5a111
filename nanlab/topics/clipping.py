"""Gradient clipping: its effect, the best bound, one bad gradient spread to all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from nanlab.analysis.training import where
from nanlab.errors import UsageError
from nanlab.findings.fault import Fault, listed, plural
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.operators import having
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows, numbers_array, parameter_columns
from nanlab.trace.history import (
    UNSCALE,
    GradientEdit,
    Misuse,
    ParameterStep,
    Place,
    place_at,
)
from nanlab.trace.op import OPTIMIZER, walk
from nanlab.trace.recording import Recording, Sink

Array = npt.NDArray[np.float64]

# Gradients changed between the backward pass and the update. Noted when a step ends.

CLAMPS = having("bounds", in_place=True, lists=True) | {"where"}
FACTORS = having("scales", in_place=True, lists=True)
MOST_HOPS = 12
SMALLER = 1.01  # times, from which on a gradient was clipped
NEAR = 0.01  # relative distance up to which a factor is taken for the loss scale


def note_edits(rows: StepRows) -> None:
    """Add an entry to ``history.edits`` for each optimizer step that took other gradients than
    backward had left.

    The way back is walked for one parameter only, the one whose gradient shrank most; the numbers
    of the others are in their own rows.
    """
    losses = rows.events(rows.history.losses)
    factor = next((loss.factor for loss in losses if 2.0 < loss.factor < math.inf), 1.0)
    for position, group in groupby(rows.parameter_steps, key=lambda step: step.position):
        changed = [
            s
            for s in group
            if s.used is not None and s.gradient is not None and s.used > s.gradient
        ]
        chosen = _shrunk_most(rows, changed)
        if chosen is not None:
            scale, at, constant, early = _way_back(rows.recording, chosen, factor)
            rows.history.edits.append(GradientEdit(position, scale, at, constant))
            if early and at is not None:
                ratio = _ratio(rows.recording, _source_of(rows.recording, chosen, at), at.position)
                if ratio > SMALLER:
                    found = Misuse("clip-before-unscale", at, position, factor, ratio)
                    rows.history.misuses.append(found)


def _shrunk_most(rows: StepRows, steps: list[ParameterStep]) -> ParameterStep | None:
    inside = [s for s in steps if s.gradient is not None and s.gradient >= rows.start]
    if not inside:
        return None
    before: npt.NDArray[np.int64] = np.array([s.gradient for s in inside], np.int64) - rows.start
    after: npt.NDArray[np.int64] = np.array([s.used for s in inside], np.int64) - rows.start
    rms = rows.numbers["rms"]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = rms[after] / rms[before]
    return inside[int(np.argmin(np.where(np.isfinite(ratio), ratio, np.inf)))]


def _way_back(
    recording: Recording, step: ParameterStep, factor: float
) -> tuple[float, Place | None, bool, bool]:
    """(scale divided out, last other operation that changed its size, whether by a number, whether
    by a norm that still had a scale on it which the program divides out itself)."""
    assert step.used is not None and step.gradient is not None
    scale, at, constant, early, by_hand = 1.0, -1, False, False, False
    position = step.used
    for _ in range(MOST_HOPS):
        row = recording.at(position)
        if not row or position <= step.gradient:
            break
        op, source = row.name, _source(recording, position, row.output, step.gradient)
        ratio = _ratio(recording, source, position)
        if op == UNSCALE or (op in FACTORS and factor > 2.0 and abs(ratio / factor - 1.0) < NEAR):
            scale *= _power_of_two(ratio)
            by_hand = op != UNSCALE
        elif at < 0 and op in CLAMPS | FACTORS:
            at, constant = position, bool(row.scaled)
            early = by_hand and not constant and _is_by_norm(recording, position, step.gradient)
        if source < 0:
            break
        position = source
    return scale, place_at(recording, at) if at >= 0 else None, constant, early


def _is_by_norm(recording: Recording, position: int, gradient: int) -> bool:
    """Whether a gradient is multiplied by what is made of the norm of gradients."""
    above = walk([position], lambda at: (p for p in recording.parents(at) if p > gradient))
    return any(recording.at(at).name in _NORMS for at in above if at != position)


def _source_of(recording: Recording, step: ParameterStep, at: Place) -> int:
    """The gradient that an operation changed on the way to a step."""
    assert step.gradient is not None
    return _source(recording, at.position, recording.at(at.position).output, step.gradient)


def _source(recording: Recording, position: int, output: int, gradient: int) -> int:
    """The operand that a changed gradient was made from; -1 if it is none of the gradient's."""
    operands = recording.operands(position)
    copied = recording.at(position).name in ("copy_", "_foreach_copy_")
    slots = {slot: source for source, slot in operands if source >= gradient}
    if copied and (sources := [s for slot, s in slots.items() if slot != output and s > gradient]):
        return sources[0]
    return slots.get(output, next(iter(slots.values()), -1))


def _ratio(recording: Recording, before: int, after: int) -> float:
    """By how much larger the rms was before; 1 where that cannot be told."""
    old, new = recording.stats(before) if before >= 0 else None, recording.stats(after)
    return old.rms / new.rms if old is not None and new is not None and old.rms and new.rms else 1.0


def _power_of_two(ratio: float) -> float:
    """The power of two beside a measured ratio, if it is one but for rounding."""
    near: float = 2.0 ** round(math.log2(ratio)) if 0.0 < ratio < math.inf else 1.0
    return near if abs(ratio / near - 1.0) < NEAR else ratio


def note_clipping(rows: StepRows) -> list[Sink]:
    """Note a norm that is not finite and spread to all gradients; a sink if it zeroed them."""
    recording, steps = rows.recording, rows.parameter_steps
    if not recording.bad:
        return []
    for step in steps:
        used, gradient = step.used, step.gradient
        if used is None or gradient is None or used == gradient or used < rows.start:
            continue
        before, after = recording.stats(gradient), recording.stats(used)
        if before is None or after is None or before.all_zero or not before.is_finite:
            continue
        if after.is_finite and not after.all_zero:
            continue
        if any(s.gradient in recording.bad for s in steps):
            _note_spread(rows, used)
            return []
        norm = _bad_norm(rows, used, gradient) if after.is_finite else None
        if norm is not None:
            return [Sink("gradient", norm, step.position, recording.parameter_names[step.owner])]
    return []


def _note_spread(rows: StepRows, used: int) -> None:
    recording, steps, misuses = rows.recording, rows.parameter_steps, rows.history.misuses
    guilty = [recording.parameter_names[s.owner] for s in steps if s.gradient in recording.bad]
    place = place_at(recording, used)
    if guilty and place is not None and not any(m.kind == "clip-spread" for m in misuses):
        others = float(len(steps) - len(guilty))
        misuses.append(Misuse("clip-spread", place, used, 0.0, others, listed(guilty, 3)))


def _bad_norm(rows: StepRows, used: int, gradient: int) -> int | None:
    """What is not finite and made a gradient zero: what it was multiplied by, or what was computed
    from the gradients before, where the factor is a Python number."""
    recording = rows.recording
    above = walk([used], lambda at: (p for p in recording.parents(at) if p > gradient))
    found = next((position for position in above if position in recording.bad), None)
    if found is None and recording.at(used).name in FACTORS and _all_zero(rows):
        gradients = {step.gradient for step in rows.parameter_steps}
        last = max(each for each in gradients if each is not None)
        between = (at for at in sorted(recording.bad) if last < at < used)
        found = next((at for at in between if _is_of(recording, at, gradients)), None)
    return found


def _all_zero(rows: StepRows) -> bool:
    """Whether each gradient that an optimizer took is zero throughout."""
    taken = (s.used for s in rows.parameter_steps if s.used is not None)
    return all(known is not None and known.all_zero for known in map(rows.recording.stats, taken))


def _is_of(recording: Recording, position: int, gradients: Collection[int | None]) -> bool:
    """Whether gradients are among what a row is computed from, by operations after backward."""
    first = min(each for each in gradients if each is not None)
    above = walk([position], lambda at: (p for p in recording.parents(at) if p >= first))
    return any(at in gradients for at in above)


# The effect of clipping on a run.

USUAL = (1.0, 5.0, 10.0)  # what people take for max_norm
LESS = 1e-3  # relative loss of norm or largest magnitude from which on a step counts as clipped
# relative spread up to which a factor is the same in all steps: an average, not clipping
SAME = 1e-4
FEWEST = 3  # steps that show it
EXPLODED = 1e4  # times the median of the first half: the gradients ran away
OUTLIER = 10.0  # times the median of the norms before: part of the explosion in such a run
ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
QUANTILE = 0.9  # of the ordinary norms, which the advised bound leaves alone


@dataclass(frozen=True)
class Clipping:
    """The norms of a run's gradients, and what clipping did or would do to them."""

    # a row per optimizer step: step, optimizer, before, after, factor, clipped, top, top_share, ...
    history: pd.DataFrame
    # by parameter: mean and largest share of the squared norm, steps in which it is the largest
    parameters: pd.DataFrame
    kind: str  # "norm", "value", "" where nothing was clipped or would have been
    bound: float | None  # max_norm or clip value in use, as measured; None if no step was clipped
    share: float  # of the optimizer steps that were clipped
    # clips about one ordinary step in ten, or fewer; None without finite gradients
    advised_max_norm: float | None
    place: tuple[str, int] | None  # file and line that clips

    def would_clip(self, max_norm: float) -> float:
        """Share of the steps with a finite norm in which it is above ``max_norm``."""
        norms = _known(self.history["before"])
        norms = norms[np.isfinite(norms)]
        return float((norms > max_norm).mean()) if len(norms) else 0.0

    def table(self) -> pd.DataFrame:
        """What each ``max_norm`` does to the recorded norms: share clipped, median and smallest
        factor of those.

        Rows for 1, 5 and 10, the advised bound, and the one in use.
        """
        chosen = [(bound, "usual") for bound in USUAL]
        if self.advised_max_norm is not None:
            chosen.append((self.advised_max_norm, "advised"))
        if self.bound is not None and self.kind == "norm":
            chosen.append((float(f"{self.bound:.4g}"), "in use"))
        names: dict[float, list[str]] = {}
        for bound, name in chosen:
            names.setdefault(bound, []).append(name)
        rows = [_row(self, bound, ", ".join(name)) for bound, name in sorted(names.items())]
        return pd.DataFrame(rows).set_index("max_norm")

    def plot(self, ax: Any = None) -> Any:
        """Draw norms before and after clipping and the advised bound on ``ax``; returns it."""
        from nanlab.views.plots import plot_clipping

        return plot_clipping(self, ax)

    def told(self) -> str:
        """The shares of steps that were clipped, and that the advised bound would clip."""
        done = len(_known(self.history["after"]))
        if done:
            share = f"{100 * self.share:.0f} %" if self.share else "none"
            steps = f"{share} of {plural(done, 'step')} clipped"
        else:  # no optimizer, or the watch stopped before it, or a scaler skipped all
            steps = f"{plural(len(self.history), 'step')} recorded, none with an update"
        bound = self.advised_max_norm
        if bound is None:
            return steps
        return f"{steps}; max_norm={bound:g} would clip {100 * self.would_clip(bound):.0f} %"

    def __repr__(self) -> str:
        return f"<nanlab.Clipping: {self.told()}; try .table(), .plot(), .history, .parameters>"


def _row(clipping: Clipping, bound: float, name: str) -> dict[str, Any]:
    norms = _known(clipping.history["before"])
    factors = bound / norms[norms > bound]
    return {
        "max_norm": bound,
        "choice": name,
        "clipped": clipping.would_clip(bound),
        "median_factor": float(np.median(factors)) if len(factors) else 1.0,
        "smallest_factor": float(factors.min()) if len(factors) else 1.0,
    }


def _known(column: pd.Series[Any]) -> Array:
    """The values of a column that are there, NaN and infinities included."""
    return np.asarray(column[~column.isna()].to_numpy(dtype=np.float64), np.float64)


ALWAYS = 20  # steps from which on clipping may be always on
OFTEN, HARD = 0.9, 0.1  # share of them clipped, and median factor, from which on it is


def always_on(trace: Trace) -> Clipping | None:
    """What clipping does to a run that cuts nearly every step to a small part; else None."""
    if sum(edit.at is not None for edit in trace.recording.training.edits) < ALWAYS:
        return None
    found = clipping(trace)
    factors = _known(found.history["factor"][found.history["clipped"]])
    hard = len(factors) >= ALWAYS and found.share > OFTEN and float(np.median(factors)) < HARD
    return found if hard and found.kind == "norm" else None


def clipping(trace: Trace) -> Clipping:
    """The norm of the gradients before and after clipping in every optimizer step, the loss scale
    divided out.

    It is measured on the gradients themselves, so that it does not matter who clipped them:
    ``clip_grad_norm_``, ``clip_grad_value_`` or the program's own lines. Without clipping both
    norms are the same, and ``table()`` says what a bound would have done. Steps whose update was
    skipped have no norm after.

    Raises UsageError if no gradients were recorded.
    """
    recording = trace.recording
    columns = parameter_columns(recording)
    keep = columns["gradient_known"]
    columns = {name: values[keep] for name, values in columns.items()}
    if not len(columns["position"]):
        raise UsageError("no gradients at hand; watch a training step that calls backward")
    edits = {edit.position: edit for edit in recording.training.edits}
    squares = columns["gradient_rms"] ** 2 * columns["gradient_numel"]
    rows = [_step(recording, columns, squares, edits, rows) for rows in _groups(recording, columns)]
    history = pd.DataFrame(rows)
    names = {s.end - 1: s.optimizer for s in recording.training.optimizer_steps}
    history["optimizer"] = [names.get(p, "") for p in history.pop("position")]
    kind = _kind(history)
    history["clipped"] = history["clipped"] & (kind != "")
    for name in ("before", "after", "factor", "top_share", "largest"):
        history[name] = numbers_array([row[name] for row in rows])
    done, clipped = history[~history.after.isna()], history[history.clipped]
    bound = _known(clipped["after" if kind == "norm" else "largest"])
    return Clipping(
        history.drop(columns=["op", "constant", "largest"]),
        _dominance(recording, columns, squares),
        kind,
        float(np.median(bound)) if len(bound) else None,
        float(done.clipped.mean()) if len(done) else 0.0,
        _advised(_known(history["before"])),
        (clipped.file.iloc[0], int(clipped.line.iloc[0])) if len(clipped) else None,
    )


def _groups(recording: Recording, columns: dict[str, Any]) -> list[npt.NDArray[np.int64]]:
    """Rows of each optimizer step; of a training step without any, those of its gradients."""
    positions = columns["position"]
    steps: npt.NDArray[np.int64] = np.searchsorted(recording.starts, positions, side="right") - 1
    used = set(steps[columns["used_known"]].tolist())
    return _split(positions, np.flatnonzero(columns["used_known"] | ~np.isin(steps, list(used))))


def _split(
    positions: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """These rows by their position, in its order."""
    rows = rows[np.argsort(positions[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(positions[rows])) + 1) if len(rows) else []


def _step(
    recording: Recording,
    columns: dict[str, Any],
    squares: Array,
    edits: dict[int, GradientEdit],
    rows: npt.NDArray[np.int64],
) -> dict[str, Any]:
    position = int(columns["position"][rows[0]])
    edit = edits.get(position)
    taken = bool(columns["used_known"][rows].all())
    scale = edit.scale if edit is not None else 1.0 if taken else _scale(recording, position)
    before = _norm(columns, rows, "gradient") / scale
    after = _norm(columns, rows, "used") if taken else None
    largest = float(columns["gradient_absmax"][rows].max(initial=0.0)) / scale
    left = float(columns["used_absmax"][rows].max(initial=0.0)) if taken else None
    factor = after / before if after is not None and 0.0 < before < math.inf else None
    smaller = factor is not None and (
        factor < 1 - LESS or (left is not None and left < largest * (1 - LESS))
    )
    top = rows[int(np.argmax(np.nan_to_num(squares[rows], nan=-1.0)))]
    total = float(squares[rows].sum())
    at = edit.at if edit is not None else None
    file, line, _ = recording.places[at.line] if at is not None else ("", 0, "")
    return {
        "position": position,
        "step": recording.step_of(position),
        "optimizer": "",
        "before": before,
        "after": after,
        "factor": factor,
        "clipped": bool(smaller and at is not None),
        "top": recording.parameter_names[int(columns["owner"][top])],
        "top_share": float(squares[top]) / total if 0.0 < total < math.inf else None,
        "file": file,
        "line": line,
        "op": at.op if at is not None else "",
        "constant": edit.constant if edit is not None else False,
        "largest": left,
    }


def _scale(recording: Recording, position: int) -> float:
    """The loss scale of a step whose gradients nobody took."""
    step, scales = recording.step_of(position), recording.training.scales
    used = (s.before for s in scales if recording.step_of(s.position) == step and s.before > 0)
    return next(used, 1.0)


def _norm(columns: dict[str, Any], rows: npt.NDArray[np.int64], name: str) -> float:
    """Norm of all gradients together; NaN or inf as soon as one element is."""
    if columns[f"{name}_nan"][rows].any():
        return math.nan
    if columns[f"{name}_inf"][rows].any():
        return math.inf
    with np.errstate(over="ignore"):
        squares = np.nan_to_num(columns[f"{name}_rms"][rows]) ** 2 * columns[f"{name}_numel"][rows]
    return float(np.sqrt(squares.sum()))


def _kind(history: pd.DataFrame) -> str:
    """How the steps were clipped; "" if averaged over micro-batches or unscaled by hand."""
    clipped = history[history.clipped]
    if not len(clipped):
        return ""
    if clipped.op.iloc[0] in CLAMPS:
        return "value"
    factors, after = clipped.factor.to_numpy(float), clipped.after.to_numpy(float)
    same = float(np.ptp(factors)) < SAME * float(factors.mean())
    capped = float(np.ptp(after)) <= 10 * LESS * float(after.mean())
    if len(clipped) >= FEWEST:
        # a norm bound leaves all clipped steps with the same norm
        by_number = bool(clipped.constant.all())
        return "" if not capped and (same or by_number) else "norm"
    whole = 1.0 / float(factors[0])
    if clipped.constant.all() and same and abs(whole - round(whole)) < SAME * whole:
        return ""
    return "norm"


def _dominance(recording: Recording, columns: dict[str, Any], squares: Array) -> pd.DataFrame:
    """Each parameter's share of the squared norm, over steps of finite gradients."""
    _, group = np.unique(columns["position"], return_inverse=True)
    total = np.bincount(group, np.nan_to_num(squares), int(group.max()) + 1)
    bad = np.bincount(group, columns["gradient_nan"] + columns["gradient_inf"], len(total)) > 0
    sound = ((total > 0.0) & np.isfinite(total) & ~bad)[group]
    shares, owners = squares[sound] / total[group[sound]], columns["owner"][sound]
    largest = np.zeros(len(total))
    np.maximum.at(largest, group[sound], shares)
    frame = pd.DataFrame(
        {"owner": owners, "share": shares, "first": shares == largest[group[sound]]}
    )
    grouped = frame.groupby("owner")
    found = pd.DataFrame(
        {
            "share": grouped["share"].mean(),
            "largest_share": grouped["share"].max(),
            "first": grouped["first"].sum(),
        }
    ).sort_values("share", ascending=False)
    found.index = pd.Index([recording.parameter_names[i] for i in found.index], name="parameter")
    return found


def _advised(norms: Array) -> float | None:
    """The 90 % quantile of the ordinary norms, rounded up to a number that one would write."""
    ordinary = _ordinary(norms)
    if not len(ordinary) or ordinary.max() <= 0.0:
        return None
    limit = float(np.quantile(ordinary[ordinary > 0], QUANTILE, method="higher"))
    power = 10.0 ** math.floor(math.log10(limit))
    return float(f"{next(power * m for m in ROUND if power * m >= limit * (1 - LESS)):g}")


def _ordinary(norms: Array) -> Array:
    """All finite norms; if gradients run away, only those up to the explosion."""
    known = norms[np.logical_and.accumulate(np.isfinite(norms))]
    if not len(norms) or (
        len(known) == len(norms)
        and norms.max() <= EXPLODED * float(np.median(norms[: len(norms) // 2 + 1]))
    ):
        return norms
    kept: list[float] = []
    for norm in known.tolist():
        if not kept or norm <= OUTLIER * float(np.median(kept)):
            kept.append(norm)
    return np.array(kept) if kept else norms[np.isfinite(norms)]


# Findings.

_NORMS = having("norm", "inner") | {"sum", "mul"}
_REFUSE = Fix(
    "raise an error at such a norm",
    "torch.nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)",
)


@rule(
    "error",
    family="training",
    origins=("operation",),
    phase="update",
    example="""
        net = nn.Linear(4, 2).half()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        (60000 * net(torch.ones(3, 4).half()).float()).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # here
        opt.step()
    """,
    fix={
        "nn.Linear(4, 2).half()": "nn.Linear(4, 2)",
        "net(torch.ones(3, 4).half()).float()": "net(torch.ones(3, 4))",
    },
)
def clip_nonfinite_norm(fault: Fault) -> Finding | None:
    """Clipping multiplies every gradient by max_norm / norm: a NaN or inf norm makes all of them
    NaN or zero."""
    clips = fault.row.phase == OPTIMIZER and fault.name in _NORMS
    if fault.origin.sink.kind != "gradient" or not clips:
        return None
    return clip_nonfinite_norm.retold(
        fault.finding,
        f"the norm of finite gradients overflows {fault.dtype}, and clipping by it makes every"
        " gradient zero",
        "Each gradient is finite here; only the norm is not.",
        fixes=[_REFUSE],
    )


@rule(
    "warning",
    events=("training.misuses",),
    example="""
        a, b = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
        opt = torch.optim.SGD([a, b], lr=0.1)
        (a.sqrt() + b).sum().backward()
        nn.utils.clip_grad_norm_([a, b], 1.0)  # here
        opt.step()
    """,
    fix={"torch.zeros(2, requires_grad=True)": "torch.ones(2, requires_grad=True)"},
)
def clip_nonfinite_norm_(trace: Trace) -> Iterator[Finding]:
    """Clipping multiplies every gradient by max_norm / norm: a NaN or inf norm makes all of them
    NaN or zero."""
    for misuse in trace.recording.training.misuses:
        if misuse.kind != "clip-spread":
            continue
        yield clip_nonfinite_norm_.finding(
            f"clipping spread the bad gradient of {misuse.name} to {misuse.ratio:.0f} other"
            " parameters",
            "The gradients of the other parameters were finite before.",
            step=trace.recording.step_of(misuse.position),
            symptom="grad-nan",
            fixes=[_REFUSE],
            **where(trace.recording, misuse.at),
        )
        return


@rule(
    "note",
    events=("training.edits",),
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(24):
            opt.zero_grad()
            (50.0 * (net(torch.ones(3, 4)) - torch.ones(2)).abs().sum()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)  # here
            opt.step()
    """,
    fix={"lr=0.1": "lr=1e-4", "1e-3)": "1000.0)"},
)
def clip_always_on(trace: Trace) -> Iterator[Finding]:
    """Clipping in nearly every step no longer catches outliers: it fixes the length of every
    update.

    The learning rate alone then sets that length. That may be intended (normalised gradient
    descent); optimizers such as Adam divide by the gradient's size anyway.
    """
    if any(misuse.kind == "clip-before-unscale" for misuse in trace.recording.training.misuses):
        return  # told as such
    found = always_on(trace)
    edit = next((e for e in trace.recording.training.edits if e.at is not None), None)
    if found is None or edit is None or edit.at is None:
        return
    factor = float(found.history["factor"][found.history["clipped"]].median())
    top = found.parameters.index[0]
    advised, bound = found.advised_max_norm, found.bound or 0.0
    yield clip_always_on.finding(
        f"clipping to {bound:.3g} cuts {found.share:.0%} of {len(found.history)} steps, most to"
        f" {factor:.2g} of the gradient",
        f"{top} has {found.parameters.share.iloc[0]:.0%} of the squared norm on average.",
        step=trace.recording.step_of(edit.position),
        symptom="clipping",
        fixes=[] if advised is None else [_bound_for_outliers(found, advised)],
        **where(trace.recording, edit.at),
    )


def _bound_for_outliers(found: Clipping, advised: float) -> Fix:
    return Fix(
        f"use a bound that only outliers reach, with a smaller learning rate: {advised:g} clips"
        f" {found.would_clip(advised):.0%} of these steps",
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), {advised:g})",
    )
