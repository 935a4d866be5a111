"""The fixes of a finding: what was tried on the operands that failed, and what cannot be tried on one operation."""

from __future__ import annotations

import linecache
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from nanlab.analysis.fixes import Tried, candidates_for, operation_of, try_out
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace

SECONDS = 0.8  # findings after the first whose turn comes later get no fixes


def with_fixes(trace: Trace, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their fixes, in their order; what fails here is a note in ``trace.notes``."""
    started = time.perf_counter()
    found = []
    for finding in findings:
        fixes = list(finding.fixes)
        if not found or time.perf_counter() - started < SECONDS:
            try:
                fixes += fixes_for(trace, finding)
            except Exception as error:
                _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
        found.append(replace(finding, fixes=fixes))
    return found


def _note(trace: Trace, text: str) -> None:
    if text not in trace.notes:
        trace.notes.append(text)


def fixes_for(trace: Trace, finding: Finding) -> list[Fix]:
    """What to write instead, verified first, of these the least distorting first."""
    op = operation_of(trace.recording, finding.position)
    if op is None:
        return []
    tried = try_out(op, candidates_for(op), text_of(trace, finding), finding.line)
    return sorted((_fix(t) for t in tried), key=_rank)


def text_of(trace: Trace, finding: Finding) -> str:
    """The text of the file (or cell) of a finding; its line alone where the file is not at hand."""
    real = next((place[2] for place in trace.recording.places if place[0] == finding.file), finding.file)
    return "".join(linecache.getlines(real)) or finding.source


def _fix(tried: Tried) -> Fix:
    fix = Fix(tried.candidate.title, tried.code)
    trial = tried.trial
    if trial is None:
        return replace(fix, title=f"{fix.title} (not tried: {tried.candidate.why or 'it cannot be on one operation'})")
    title = fix.title if trial.finite else f"{fix.title}: tried, and failed: {trial.why}"
    return Fix(title, fix.code, trial.finite, trial.distortion, trial.gradient_max)


def _rank(fix: Fix) -> tuple[int, float]:
    order = {True: 0, None: 1, False: 2}[fix.verified]
    return order, math.inf if fix.distortion is None else fix.distortion
