"""The fixes of a finding: what was tried on the operands that failed, and what cannot be tried on one operation."""

from __future__ import annotations

import linecache
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from nanlab.analysis.fixes import (
    FRESH_MOMENTS,
    MISSING,
    Tried,
    allocation,
    candidates_for,
    gradients_among,
    loss_factor,
    lower_scale,
    operation_of,
    raised_before_cast,
    scaled_operation,
    takes_float32,
    try_out,
)
from nanlab.rules._rule import Edit, Finding, Fix
from nanlab.rules.scaler import held_in_half
from nanlab.trace import Trace
from nanlab.trace.recording import OPTIMIZER, Recording

ROUNDING = 1e-6  # relative; a distortion up to this is no reason to prefer a fix in float32
SECONDS = 0.8  # of processor time; findings after the first whose turn comes later get no fixes


def with_fixes(trace: Trace, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their fixes, in their order; what fails here is a note in ``trace.notes``."""
    started = time.process_time()
    found: list[Finding] = []
    for finding in findings:
        fixes = [_explained(fix) for fix in finding.fixes]
        if not found or time.process_time() - started < SECONDS:
            try:
                fixes += fixes_for(trace, finding)
            except Exception as error:
                _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
        found.append(replace(finding, fixes=sorted(fixes, key=_rank)))
    return found


def _explained(fix: Fix) -> Fix:
    """What a rule proposes itself concerns more than the operation that failed: it says so."""
    if fix.verdict != "untried" or fix.why:
        return fix
    return replace(fix, why="it concerns the program, not one operation")


def _note(trace: Trace, text: str) -> None:
    if text not in trace.notes:
        trace.notes.append(text)


# Their origin is no single operation: what the rule itself proposes is all there is.
BEYOND_ONE_OPERATION = frozenset("learning-rate exploding-gradient scaler-misuse absorbed-update".split())


def fixes_for(trace: Trace, finding: Finding) -> list[Fix]:
    """What to write instead, verified first, of these the least distorting first."""
    text = text_of(trace, finding)
    found = (_fix(t, finding.line, finding.file, text) for t in tried_for(trace, finding))
    return sorted(found, key=_rank)


def tried_for(trace: Trace, finding: Finding) -> list[Tried]:
    """The candidates for the operation of a finding, with what became of each; empty where none is known."""
    text = text_of(trace, finding)
    if finding.cause == "dtype-underflow":
        backward, half = finding.phase == "backward", held_in_half(trace.recording)
        raised = raised_before_cast(trace.recording, finding.position, finding.line, backward, half)
        return [Tried(*raised, None)] if raised is not None else []
    if finding.cause in MISSING:
        op = operation_of(trace.recording, _forward_row(trace.recording, finding.position))
        if op is None:
            return [Tried(FRESH_MOMENTS, None, None)] if "optimizer's state" in finding.title else []
        return _undistorted(try_out(op, MISSING[finding.cause](op), text, finding.line))
    if finding.cause in BEYOND_ONE_OPERATION:
        return []
    if finding.cause == "uninitialised-memory":
        return try_out(*allocation(_shape(trace, finding)), text, finding.line)
    if finding.cause == "loss-scale-overflow":
        return _at_lower_scale(trace, finding, text, loss_factor(trace.recording, finding.position))
    op = operation_of(trace.recording, finding.position)
    if op is None and finding.cause == "dtype-overflow" and finding.phase == "backward":
        return _at_lower_scale(trace, finding, text, None)  # linear in the gradient, whatever it is
    if op is None:
        return []
    forward = _forward_row(trace.recording, finding.position)
    half = held_in_half(trace.recording) and not takes_float32(trace.recording, forward)
    return try_out(op, candidates_for(op), text, finding.line, _autocast(trace, finding), half)


def _forward_row(recording: Recording, position: int) -> int:
    """The row of the forward operation whose derivative a row computed; of others the row itself."""
    row = recording.op(position)
    info = recording.nodes.get(row.node) if row is not None and row.backward else None
    return info.position if info is not None else position


def _at_lower_scale(trace: Trace, finding: Finding, text: str, factor: float | None) -> list[Tried]:
    op = scaled_operation(trace.recording, finding.position)
    gradients = gradients_among(trace.recording, finding.position, op) if op is not None else []
    if op is None or not gradients:
        return []
    op = replace(op, differentiates=False)
    return _undistorted(try_out(op, lower_scale(op, gradients, factor), text, finding.line))


def _undistorted(found: list[Tried]) -> list[Tried]:
    """Trials that distort nothing: a scale is divided out again; what is missing takes no healthy value with it."""
    return [replace(t, trial=replace(t.trial, distortion=None)) if t.trial is not None else t for t in found]


def _shape(trace: Trace, finding: Finding) -> tuple[int, ...]:
    row = trace.recording.op(finding.position)
    return tuple(row.shape) if row is not None else ()


def _autocast(trace: Trace, finding: Finding) -> str:
    """Device type, where a parameter was cast to half precision in this step, as autocast does; "": none was."""
    recording = trace.recording
    step = recording.step_of(finding.position)
    for row in recording.all_ops():
        if row.step != step or row.name != "_to_copy":
            continue
        low = "float16" in str(row.dtype)
        if low and any(_is_weight(recording, p) for p in row.inputs):
            return str(row.device).split(":")[0]
    return ""


def _is_weight(recording: Recording, position: int) -> bool:
    """Whether a source is a parameter, or a row (of an earlier step, perhaps gone) the update of one."""
    if position < 0:
        source = recording.sources.get(position)
        return source is not None and source.kind == "parameter"
    row = recording.op(position)
    return row is None or row.phase == OPTIMIZER


def text_of(trace: Trace, finding: Finding) -> str:
    """The text of the file (or cell) of a finding; its line alone where the file is not at hand."""
    real = next((place[2] for place in trace.recording.places if place[0] == finding.file), finding.file)
    return "".join(linecache.getlines(real)) or finding.source


def _fix(tried: Tried, line: int, file: str, text: str) -> Fix:
    fix = Fix(tried.candidate.title, tried.code, edits=_edits(tried, file, text))
    trial = tried.trial
    if trial is None:
        return replace(fix, why=tried.candidate.why or "it cannot be tried on one operation")
    if tried.line is not None and line and not tried.line.first <= line <= tried.line.last:
        fix = replace(fix, title=f"{fix.title} (line {tried.line.first})")
    elif tried.line is not None and tried.line.last > tried.line.first:
        fix = replace(fix, title=f"{fix.title} (lines {tried.line.first} to {tried.line.last})")
    if not trial.finite:
        return replace(fix, verdict="fails", why=trial.why)
    if not trial.holds:
        return replace(fix, verdict="finite", why=trial.doubt)
    return replace(fix, verdict="verified", distortion=trial.distortion, gradient_max=trial.gradient_max)


def _edits(tried: Tried, file: str, text: str) -> tuple[Edit, ...]:
    """The edit that writes a candidate into the user's file; none where its line could not be rewritten."""
    if tried.line is None or not file:
        return ()
    first, last = tried.line.first, tried.line.last
    old = "\n".join(text.splitlines()[first - 1 : last])
    return (Edit(file, first, last, tried.line.text, old),)


_ORDER = {"verified": 0, "untried": 1, "finite": 2, "fails": 3}


def _rank(fix: Fix) -> tuple[int, bool, float]:
    """Verified first; what lets no gradient through after what does; the least distorting first, but for rounding."""
    distortion = math.inf if fix.distortion is None else fix.distortion
    return (
        _ORDER[fix.verdict],
        fix.gradient_max is None,
        distortion if distortion > ROUNDING else 0.0,
    )
