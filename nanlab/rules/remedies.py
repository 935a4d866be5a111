"""The fixes of a finding: what was tried on the operands that failed, and what cannot be tried on
one operation."""

from __future__ import annotations

import ast
import io
import math
import time
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from nanlab.analysis.fixes import (
    FRESH_MOMENTS,
    MISSING,
    NOWHERE,
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
from nanlab.analysis.library_calls import rewritings
from nanlab.analysis.library_patches import patch, text_of_library
from nanlab.analysis.rewriting.candidates import candidates
from nanlab.analysis.verdict import Judge
from nanlab.errors import NanlabError
from nanlab.program.edit import text_of as source_text
from nanlab.program.window import window
from nanlab.rules._lists import TriedFixes
from nanlab.rules._rule import Edit, Finding, Fix
from nanlab.rules.scaler import held_in_half
from nanlab.rules.settings import tried_settings
from nanlab.trace import Trace
from nanlab.trace.recording import OPTIMIZER, Recording

ROUNDING = 1e-6  # relative; a distortion up to this is no reason to prefer a fix in float32
SECONDS = 6.0  # of processor time, for the fixes of all findings together


def with_fixes(trace: Trace, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their fixes, which are tried when somebody asks for them."""
    clock = Clock()
    return [replace(f, fixes=TriedFixes(partial(_tried_fixes, trace, f, clock))) for f in findings]


@dataclass
class Clock:
    """Seconds of processor time that the fixes of a trace may take together."""

    left: float = field(default_factory=lambda: SECONDS)

    def spent(self) -> bool:
        """Whether they are used up."""
        return self.left <= 0


def _tried_fixes(trace: Trace, finding: Finding, clock: Clock) -> list[Fix]:
    """What to write instead, each tried on the whole failing step; what fails here is a note in
    ``trace.notes``."""
    started = time.process_time()
    proposals = proposed(trace, finding)
    clock.left -= time.process_time() - started
    found = [_judged(trace, finding, fix, clock) for fix in proposals]
    found += tried_settings(trace, finding)
    if finding.library is not None:  # what the user can write comes before what cannot be written
        found.sort(key=lambda fix: not fix.edits and "patch " not in fix.title[:6])
        return sorted(found, key=lambda fix: _ORDER[fix.verdict])
    return sorted(found, key=_rank)


def proposed(trace: Trace, finding: Finding, text: str = "") -> list[Fix]:
    """What could be written instead; text: of the file, where that is not the one on disk."""
    found = [_explained(fix) for fix in finding.fixes]
    text = text or text_of(trace, finding)
    try:
        found = _distinct(
            [
                *passed_otherwise(finding, text),
                *patched_library(trace, finding),
                *rewritten(trace, finding, text),
                *found,
                *fixes_for(trace, finding, text),
            ]
        )
    except Exception as error:
        _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
    return found


def _judged(trace: Trace, finding: Finding, fix: Fix, clock: Clock) -> Fix:
    """A fix with the verdict of the whole step."""
    if not fix.edits and fix.verdict in ("verified", "finite"):
        return replace(
            fix,
            verdict="untried",
            why="it cannot be written into the line by itself; on the operation alone it is finite",
        )
    if not fix.edits or fix.verdict == "fails":
        return fix
    if clock.spent():
        return replace(
            fix, verdict="untried", why=f"the {SECONDS:g} s for trying fixes were used up"
        )
    started = time.process_time()
    judge = judge_of(trace, finding.step)
    alone = f"; {ALONE}" if fix.verdict in ("verified", "finite") else ""
    if isinstance(judge, str):
        return replace(
            fix, verdict="untried", why=judge + alone, distortion=None, gradient_max=None
        )
    found = judge.judge(fix.edits)
    clock.left -= time.process_time() - started
    return replace(
        fix,
        verdict=found.verdict,
        why=found.why + (alone if found.verdict == "untried" else ""),
        distortion=found.distortion,
        gradient_max=found.gradient_max,
    )


def judge_of(trace: Trace, step: int) -> Judge | str:
    """The judge of a step, which finds out its truth once; why there is none."""
    return trace._cached(f"judge {step}", lambda recording: _judge_of(recording, step))  # type: ignore[no-any-return]


def _judge_of(recording: Recording, step: int) -> Judge | str:
    try:
        return Judge(window(recording, step if step >= 0 else None))
    except NanlabError as error:
        return str(error)


def _distinct(fixes: Sequence[Fix]) -> list[Fix]:
    """Each way of writing the program once."""
    seen: set[Any] = set()
    found = []
    for fix in fixes:
        key = tuple((e.first, e.last, _plain_text(e.text)) for e in fix.edits) or (
            fix.title,
            fix.code,
        )
        if key not in seen:
            seen.add(key)
            found.append(fix)
    return found


def _plain_text(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:
        return text


def passed_otherwise(finding: Finding, text: str) -> list[Fix]:
    """What the user's line could pass to the library in which the fault arose."""
    if finding.library is None or not finding.file or not finding.line:
        return []
    found = rewritings(text, finding.line, finding.library, finding.library[0], finding.cause)
    return [
        _as_fix(each.title, each.text, each.first, each.last, finding.file, text)
        for each in found[:MOST_REWRITTEN]
    ]


def patched_library(trace: Trace, finding: Finding) -> list[Fix]:
    """Patches of the library's own line, tried on the operation that failed."""
    library = finding.library
    if library is None or not (text := text_of_library(library)):
        return []
    op = operation_of(trace.recording, finding.position)
    if op is None:
        return []
    found = []
    op = replace(op, calls=NOWHERE)  # known by the columns of the user's line alone
    for tried in try_out(op, candidates_for(op), text, library[1]):
        fix = _fix(tried, library[1], library[0], text)
        if fix.verdict != "verified" or len(fix.edits) != 1:
            continue
        edit = fix.edits[0]
        code = patch(library, edit.old, edit.text)
        if code:
            title = f"patch {library[2]} in this process: {fix.title}"
            found.append(Fix(title, code, why=f"it is the library's line; {ALONE}"))
    return found[:MOST_PATCHES]


def rewritten(trace: Trace, finding: Finding, text: str) -> list[Fix]:
    """The line, or what it is computed with, in a form that keeps its signal: by the catalogue, and
    by a series."""
    if not finding.file or not finding.line:
        return []
    row = trace.recording.op(finding.position)
    low = row is not None and row.dtype in (torch.float16, torch.bfloat16, torch.float64)
    dtype = row.dtype if row is not None and low else torch.float32
    found = candidates(text, finding.line, dtype)
    return [
        _as_fix(c.title, c.text, c.first, c.last, finding.file, text)
        for c in found[:MOST_REWRITTEN]
    ]


MOST_REWRITTEN = 12
MOST_PATCHES = 2  # of a library's line
ALONE = "on the operation alone it is finite"  # of what could not be tried on the whole step


def _uncommented(code: str) -> str:
    """Code without comments: they were written about the code as it was."""
    try:
        found = [
            t
            for t in tokenize.generate_tokens(io.StringIO(code).readline)
            if t.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, IndentationError):
        return code
    rows = code.splitlines()
    for token in found:
        row, column = token.start
        rows[row - 1] = rows[row - 1][:column].rstrip()
    return "\n".join(row for row in rows if row)


def _as_fix(title: str, body: str, first: int, last: int, file: str, text: str) -> Fix:
    body = _uncommented(body)
    old = "\n".join(text.splitlines()[first - 1 : last])
    return Fix(title, body, edits=(Edit(file, first, last, body, old),))


def _explained(fix: Fix) -> Fix:
    """What a rule proposes itself concerns more than the operation that failed: it says so."""
    if fix.verdict != "untried" or fix.why:
        return fix
    return replace(fix, why="it concerns the program, not one operation")


def _note(trace: Trace, text: str) -> None:
    if text not in trace.notes:
        trace.notes.append(text)


# Their origin is no single operation: what the rule itself proposes is all there is.
BEYOND_ONE_OPERATION = frozenset(
    "learning-rate exploding-gradient scaler-misuse absorbed-update".split()
)


def fixes_for(trace: Trace, finding: Finding, text: str) -> list[Fix]:
    """What else to write, as the operation that failed has it; the most promising first."""
    found = (_fix(t, finding.line, finding.file, text) for t in tried_for(trace, finding, text))
    return sorted(found, key=_rank)


def tried_for(trace: Trace, finding: Finding, text: str = "") -> list[Tried]:
    """The candidates for the operation of a finding, with what became of each; empty where none is
    known."""
    text = text or text_of(trace, finding)
    if finding.cause == "dtype-underflow":
        backward, half = finding.phase == "backward", held_in_half(trace.recording)
        raised = raised_before_cast(trace.recording, finding.position, finding.line, backward, half)
        return [Tried(*raised, None)] if raised is not None else []
    if finding.cause in MISSING:
        op = operation_of(trace.recording, _forward_row(trace.recording, finding.position))
        if op is None:
            return (
                [Tried(FRESH_MOMENTS, None, None)] if "optimizer's state" in finding.title else []
            )
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
    """The row of the forward operation whose derivative a row computed; of others the row
    itself."""
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
    """Trials that distort nothing: a scale is divided out again; what is missing takes no healthy
    value with it."""
    return [
        replace(t, trial=replace(t.trial, distortion=None)) if t.trial is not None else t
        for t in found
    ]


def _shape(trace: Trace, finding: Finding) -> tuple[int, ...]:
    row = trace.recording.op(finding.position)
    return tuple(row.shape) if row is not None else ()


def _autocast(trace: Trace, finding: Finding) -> str:
    """Device type, where a parameter was cast to half precision in this step, as autocast does; "":
    none was."""
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
    """Whether a source is a parameter, or a row (of an earlier step, perhaps gone) the update of
    one."""
    if position < 0:
        source = recording.sources.get(position)
        return source is not None and source.kind == "parameter"
    row = recording.op(position)
    return row is None or row.phase == OPTIMIZER


def text_of(trace: Trace, finding: Finding) -> str:
    """The text of the file (or cell) of a finding; its line alone where the file is not at hand."""
    return file_text(trace, finding.file) or finding.source


def file_text(trace: Trace, file: str) -> str:
    """The text of a file or cell, by the name that the tables show; empty where it is not at
    hand."""
    return source_text(trace.recording, file)


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
    return replace(
        fix, verdict="verified", distortion=trial.distortion, gradient_max=trial.gradient_max
    )


def _edits(tried: Tried, file: str, text: str) -> tuple[Edit, ...]:
    """The edit that writes a candidate into the user's file; none where its line could not be
    rewritten."""
    if tried.line is None or not file:
        return ()
    first, last = tried.line.first, tried.line.last
    old = "\n".join(text.splitlines()[first - 1 : last])
    return (Edit(file, first, last, tried.line.text, old),)


_ORDER = {"verified": 0, "untried": 1, "finite": 2, "fails": 3}


def _rank(fix: Fix) -> tuple[int, bool, float]:
    """Verified first; what lets no gradient through after what does; the least distorting first,
    but for rounding."""
    distortion = math.inf if fix.distortion is None else fix.distortion
    return (
        _ORDER[fix.verdict],
        fix.gradient_max is None,
        distortion if distortion > ROUNDING else 0.0,
    )
