"""Diagnosis: the findings of a trace, each with cause, explanation and fixes."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nanlab.analysis.libraries import asked_at, library_of, scripted_at
from nanlab.analysis.provenance import MOVES, harmful_origins
from nanlab.capture.places import display_name
from nanlab.findings.fault import LOW, Fault, finding_of, matched, surveyed
from nanlab.findings.rule import (
    Edit,
    Finding,
    Findings,
    Fix,
    Match,
    Path,
    Rule,
    ranked,
    rule,
    rules_of,
)
from nanlab.formats import HALF_PRECISION
from nanlab.rules import data, division, domain, infinities, losses, precision, ranks
from nanlab.rules.cure import Chain, Cure, chain
from nanlab.rules.data import thrown, with_data
from nanlab.rules.remedies import with_fixes
from nanlab.topics import (
    absorbed_updates,
    clipping,
    dead_gradients,
    flushes,
    hidden_overflows,
    idle_updates,
    optimizer,
    scaler,
    training,
    trends,
)
from nanlab.trace import Trace
from nanlab.trace.op import location, walk
from nanlab.trace.recording import Recording

T = TypeVar("T")
MOST_FINDINGS = 20
FAILED = "rule '%s' failed ({error}); the other rules ran"
BEHIND = "the search for what led to it failed ({error})"
_ORDER = {"error": 0, "warning": 1, "note": 2}

MOST_SAMPLES = 4  # that are named with their place in the dataset
COMPILED = "run eagerly: compiled it may not"
COMPILED_WHY = (
    "The watch ran this code eagerly, where each result is rounded to its dtype. torch.compile"
    " keeps intermediate results of one kernel in float32, so the compiled program may not have"
    " this fault: compare its loss without a watch. It may have it with another backend, shape or"
    " version of torch."
)

OPERATIONS = (domain, division, losses, infinities, precision, data, ranks)
RUNS = (
    *(training, optimizer, scaler, clipping),
    *(flushes, hidden_overflows, dead_gradients, absorbed_updates, idle_updates, trends),
)
BUILTIN: tuple[Rule, ...] = tuple(one for part in (*OPERATIONS, *RUNS) for one in rules_of(part))


def diagnose(trace: Trace, rules: Sequence[Rule] = BUILTIN) -> list[Finding]:
    """Every finding of a run, most harmful first.

    Each origin of a symptom gets one cause, from the most specific matching rule (of equals the
    later one). A cause is reported once per line. A rule that raises leaves a note in
    ``trace.notes``.
    """
    ordered = ranked(rules)
    judges = [r for r in ordered if r.over == "fault"]
    findings: list[Finding] = []
    faults: list[Fault] = []  # of the findings, one of each
    thrown_by: list[Finding] = []  # the update behind the first fault
    for origin in harmful_origins(trace.recording):
        fault = Fault(trace, origin, finding_of(trace, origin))
        finding = explained(trace, fault, judges)
        if not any(_same(finding, other) for other in findings):
            behind = f"{finding.cause}: {BEHIND}"
            findings.append(_tried(trace, behind, with_data, fault, finding) or finding)
            faults.append(fault)
            thrower = None if thrown_by else _tried(trace, behind, thrown, trace, fault, finding)
            thrown_by += [thrower] if thrower is not None else []
        if len(findings) >= MOST_FINDINGS:
            break
    if len(findings) > 1:
        pairs = zip(findings, faults, strict=True)
        findings = [found for found, fault in pairs if not _told_at_birth(fault, found, findings)]
    for survey in (r for r in ordered if r.over == "trace"):
        for found in _tried(trace, FAILED % survey.name, survey.matches, trace) or ():
            finding = surveyed(trace, survey, found)
            if not any(_repeats(finding, other) for other in findings):
                findings.append(finding)
    findings += [f for f in thrown_by if not any(o.cause == f.cause for o in findings)]
    findings = [_placed(trace.recording, f) for f in findings]
    ranking = sorted(findings, key=lambda f: (_ORDER[f.severity], not f.harmful))
    told = [with_samples(trace, qualified(trace, f)) for f in ranking[:MOST_FINDINGS]]
    return Findings(with_fixes(trace, told))


def diagnosed(trace: Trace) -> list[Finding]:
    """The findings of a run, with its own step numbers; an internal error becomes a note."""
    recording = trace.recording
    # a failed watch knows the faults up to there, and nothing of the run as a whole
    rules = [r for r in BUILTIN if r.over == "fault"] if recording.ended == "failed" else BUILTIN
    try:
        found = diagnose(trace, rules)
    except Exception as error:
        recording.notes.append(
            f"the diagnosis failed ({type(error).__name__}: {error}); the tables are complete"
        )
        return Findings()
    first = recording.first_step
    return Findings(replace(each, step=each.step + first) for each in found) if first else found


def chain_of(trace: Trace) -> Chain | None:
    """The faults of the failing step, one by one; None if the step cannot be replayed."""
    culprit, program = trace.culprit, trace.recording.program
    if culprit is None or program.reason or not program.segments:
        return None
    try:
        return chain(trace, culprit)
    except Exception as error:
        trace.recording.notes.append(
            f"the search for a cure failed ({type(error).__name__}: {error})"
        )
        return None


def with_hidden(
    recording: Recording, findings: list[Finding], followed: Chain | None
) -> list[Finding]:
    """The findings; after the harmful ones, the faults that show once those are fixed."""
    if followed is None or len(followed.faults) == 1:
        return findings
    known = [*findings]
    for fault in followed.faults[1:]:
        if not any(_same(fault, other) for other in known) and not _used_it(
            recording, fault, known
        ):
            known.append(fault)
    hidden = known[len(findings) :]
    at = next((i for i, f in enumerate(findings) if not f.harmful), len(findings))
    return Findings([*findings[:at], *hidden, *findings[at:]])


def _used_it(recording: Recording, fault: Finding, others: Sequence[Finding]) -> bool:
    """Whether an operation only used what another fault had made: how it fares with what is written
    there instead is no fault of its own."""
    made = {other.position for other in others}

    def onward(at: int) -> list[int]:
        here = at == fault.position or recording.at(at).name in MOVES
        return [p for p in recording.parents(at) if p in recording.bad] if here else []

    bad = [at for at in walk([fault.position], onward) if not onward(at)]
    return bad != [fault.position] and made.issuperset(bad)


def _placed(recording: Recording, finding: Finding) -> Finding:
    """The finding with the library's line, and the user's line that asked for it; and with the step
    in which the line ran, where the harm shows in a later one."""
    at = finding.position
    step = recording.step_of(at) if at >= recording.began else finding.step
    ran = step + recording.first_step if finding.harmful and step < finding.step else None
    finding = replace(finding, library=library_of(recording, at), ran=ran)
    if finding.library is None:
        scripted = scripted_at(recording, finding.position, finding.op)
        if scripted is None:
            return finding
        (real, line), told = scripted, "torch.jit compiled this line; the call is at"
        file, source = display_name(real), linecache.getline(real, line).strip()
    else:
        asked = asked_at(recording, finding.position)
        if asked is None:
            return finding
        (file, line, source), told = recording.line_at(asked), "The operation ran later, at"
    outer = f"{location(finding.file, finding.line)}: {finding.source}"
    explanation = f"{finding.explanation} {told} {outer}"
    return replace(finding, file=file, line=line, source=source, explanation=explanation)


def qualified(trace: Trace, finding: Finding) -> Finding:
    """A low-precision finding in code that normally runs compiled, with that caveat."""
    recording = trace.recording
    op = recording.at(finding.position)
    if not (op and recording.compiled and recording.would_be_compiled(finding.position)):
        return finding
    ops = [op, *map(recording.at, op.inputs)]
    if not any(str(each.dtype).removeprefix("torch.") in LOW for each in ops):
        return finding
    return replace(
        finding,
        title=f"{finding.title} ({COMPILED})",
        explanation=f"{finding.explanation} {COMPILED_WHY}",
    )


def with_samples(trace: Trace, finding: Finding) -> Finding:
    """The finding of a bad batch, with its samples and their indices in the dataset."""
    known = trace.recording.bad_samples
    found = next((known[row["position"]] for row in finding.path if row["position"] in known), None)
    if not finding.harmful or not found:
        return finding
    if None in found.values():  # a dataset without indices
        return replace(finding, samples=list(found))
    shown = [*found.items()][:MOST_SAMPLES]
    places, numbers = (", ".join(map(str, each)) for each in zip(*shown, strict=True))
    told = f"sample {places} of the batch is number {numbers} of the dataset"
    if len(shown) > 1:
        told = f"samples {places} of the batch are numbers {numbers} of the dataset"
    more = f", and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    told = f"By the loader's sampler, {told}{more}."
    return replace(finding, samples=list(found), explanation=f"{finding.explanation} {told}")


def explained(trace: Trace, fault: Fault, judges: Sequence[Rule]) -> Finding:
    """The finding of a fault, by the first of these rules that matches."""
    for judge in judges:
        for found in _tried(trace, FAILED % judge.name, judge.matches, fault) or ():
            finding = matched(trace, fault.finding, judge, found)
            if HALF_PRECISION.isdisjoint(trace.recording.dtypes.items):
                return finding
            return precision.with_lost_zeros(fault, finding)
    return fault.finding


def _tried(trace: Trace, note: str, ask: Callable[..., T], *subjects: Any) -> T | None:
    """The result of a function; None if it raises, with a note of the error."""
    try:
        return ask(*subjects)
    except Exception as error:
        told = note.format(error=f"{type(error).__name__}: {error}")
        if told not in trace.notes:
            trace.notes.append(told)
        return None


def _same(finding: Finding, other: Finding) -> bool:
    """Whether a finding repeats another: in a later step, or backward after forward."""
    if (finding.file, finding.line) != (other.file, other.line) or not finding.line:
        return False
    return finding.cause == other.cause or (finding.step, finding.op) == (other.step, other.op)


def _told_at_birth(fault: Fault, finding: Finding, others: list[Finding]) -> bool:
    """Whether a derivative read a hidden value whose birth has a finding of the same cause."""
    born, recording = infinities.born_above(fault), fault.recording
    if born < 0:
        return False
    file, line, _ = recording.line_at(recording.at(born).place)
    told = (finding.cause, finding.step, file, line)
    return any((f.cause, f.step, f.file, f.line) == told for f in others if f is not finding)


def _repeats(finding: Finding, other: Finding) -> bool:
    """Whether a finding of the run repeats another, or is the milder report of one."""
    place = (finding.file, finding.line, finding.cause)
    if place != (other.file, other.line, other.cause) or not finding.line:
        return False
    silent = [f.symptom == "silent-underflow" for f in (finding, other)]
    same = (finding.title, finding.severity) == (other.title, other.severity)
    return same or (silent == [True, False] and other.severity == "error")


def culprit_of(findings: list[Finding]) -> Finding | None:
    """The finding that explains the symptom."""
    return next((f for f in findings if f.harmful and f.severity == "error"), None)


__all__ = [
    "BUILTIN",
    "Cure",
    "Edit",
    "Fault",
    "Finding",
    "Findings",
    "Fix",
    "Match",
    "Path",
    "Rule",
    "culprit_of",
    "diagnose",
    "rule",
]
