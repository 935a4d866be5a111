"""What stands behind an origin: data alone, or an update that threw a parameter far away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from nanlab.analysis.training import optimizer_step_of, place_text
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace
from nanlab.trace.op import FORWARD, walk
from nanlab.trace.recording import OPTIMIZER

MOST_VISITS = 4000
SMALL = 0.1  # a parameter below this is taken to be of this size: many begin at zero
# change of a parameter in one update, relative to its size before, from which on it was thrown
THROWN = 1.0
SHOWN = 6  # steps of the run-up


def with_data(fault: Fault, finding: Finding) -> Finding:
    """The finding, told to be the data's where no parameter had a part in the operands."""
    if finding.phase != "forward" or not _from_data(fault):
        return finding
    which = (
        f" ({'sample' if len(finding.samples) == 1 else 'samples'}"
        f" {', '.join(map(str, finding.samples[:5]))}"
        + (f" and {len(finding.samples) - 5} more)" if len(finding.samples) > 5 else ")")
    )
    text = (
        f"No parameter took part in its operands: it is the data{which if finding.samples else ''},"
        " not the model."
    )
    return replace(finding, explanation=f"{finding.explanation} {text}".strip())


def _from_data(fault: Fault) -> bool:
    """Whether what an operation read goes back to tensors from outside that are no parameter or
    buffer, and to those alone."""
    recording, outside = fault.recording, False
    if fault.position < 0:
        return False
    for at in walk([fault.position], recording.parents, MOST_VISITS):
        source = recording.sources.get(at) if at < 0 else None
        row = recording.op(at)
        if source is not None:
            if source.kind not in ("data", "literal"):
                return False
            # an array that was turned into a tensor
            outside |= source.kind == "data" or len(source.shape) > 0
        elif row is None or row.node >= 0 or row.phase != FORWARD or at in recording.owned:
            return False
        else:
            outside |= not recording.parents(at)  # drawn at random
    return outside


def thrown(trace: Trace, fault: Fault, finding: Finding) -> Finding | None:
    """The update that threw a parameter on which an operation depends, in the last step before
    that; None if none did."""
    recording = trace.recording
    if fault.position < 0 or finding.phase not in ("forward", "backward") or finding.step < 1:
        return None
    frame = trace.parameters
    before = frame[frame["step"] == finding.step - 1].dropna(
        subset=["update_absmax", "value_absmax"]
    )
    names = _parameters_behind(fault)
    before = before[before["parameter"].isin(names)]
    pairs = zip(before["parameter"].tolist(), before["update_absmax"].tolist(), strict=True)
    far = [
        (change / max(SMALL, was), name, change, was)
        for name, change in pairs
        for was in [_before(frame, name, finding.step - 1)]
    ]
    ratio, name, change, was = max(far, default=(0.0, "", 0.0, 0.0))
    if ratio < THROWN:
        return None
    owner = recording.parameter_names.index(name)
    found = optimizer_step_of(recording, owner, _start(trace, finding.step))
    if found is None:
        return None
    step, rate = found
    file, line, source = place_text(recording, step.line)
    at = f" at a learning rate of {rate:g}" if rate is not None else ""
    series = frame[frame["parameter"] == name]
    series = series[(series["step"] < finding.step) & (series["step"] >= finding.step - SHOWN)]
    return Finding(
        cause="learning-rate",
        severity="warning",
        title=(
            f"the update of step {finding.step - 1} changed {name} by up to {change:.3g}{at}; "
            f"before it was {was:.3g} at most"
        ),
        explanation=(
            f"{finding.op} on line {finding.line} failed in the step after. Its operands depend on"
            " this parameter: a smaller learning rate, a warm-up or a clipped gradient norm keeps"
            " them where they were."
        ),
        phase="optimizer",
        op=step.writer,
        node=None,
        module="",
        step=finding.step - 1,
        file=file,
        line=line,
        source=source,
        symptom=finding.symptom,
        evidence=_run_up(series),
        fixes=[
            Fix(
                "clip the norm of the gradients before the update",
                "nn.utils.clip_grad_norm_(parameters, 1.0)",
            )
        ],
        position=step.position,
    )


def _run_up(series: pd.DataFrame) -> pd.DataFrame:
    """The parameter's size, gradient and update in the steps before."""
    return series[["step", "value_absmax", "gradient_absmax", "update_absmax", "lr"]].reset_index(
        drop=True
    )


def _before(frame: pd.DataFrame, name: str, step: int) -> float:
    """Largest magnitude of a parameter before the update of a step: what it was after the one
    before."""
    rows = frame[(frame["parameter"] == name) & (frame["step"] <= step)]
    known = rows["value_absmax"].dropna()
    if len(known) > 1:
        return float(known.iloc[-2])
    change = rows["update_absmax"].dropna()
    return (
        abs(float(known.iloc[-1]) - float(change.iloc[-1])) if len(known) and len(change) else 0.0
    )


def _start(trace: Trace, step: int) -> int:
    starts = trace.recording.starts
    return starts[step] + 1 if step < len(starts) else trace.recording.end


def _parameters_behind(fault: Fault) -> set[str]:
    """Names of the parameters with which the operands of an operation were computed, in its
    step."""
    recording = fault.recording
    owner_of = {
        step.value: step.owner for step in recording.training.parameters if step.value is not None
    }
    frame = fault.trace.parameters
    names = set()

    def onward(at: int) -> Sequence[int]:
        row = recording.op(at)
        return (
            [] if at in owner_of or row is None or row.phase == OPTIMIZER else recording.parents(at)
        )

    for at in walk([fault.position], onward, MOST_VISITS):
        source = recording.sources.get(at) if at < 0 else None
        if at in owner_of:
            names.add(recording.parameter_names[owner_of[at]])
        elif source is not None and source.kind == "parameter":
            names.add(source.name)
        elif (
            row := recording.op(at)
        ) is not None and row.phase == OPTIMIZER:  # the step that wrote it was folded
            names.update(frame[frame["numel"] == math.prod(row.shape)]["parameter"].unique())
    return names


__all__ = ["thrown", "with_data"]
