"""What is wrong, why, what cures it: Trace -> Findings."""

from __future__ import annotations

from nanlab.analysis.provenance import harmful_origins
from nanlab.rules._origin import finding_of
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace

MOST_FINDINGS = 20


def diagnose(trace: Trace) -> list[Finding]:
    """Every finding of a run, most harmful first."""
    findings = []
    for origin in harmful_origins(trace.recording):
        findings.append(finding_of(trace, origin))
        if len(findings) >= MOST_FINDINGS:
            break
    return findings


def culprit_of(findings: list[Finding]) -> Finding | None:
    """The finding that explains the symptom."""
    return next((f for f in findings if f.harmful and f.severity == "error"), None)


__all__ = ["Finding", "Fix", "culprit_of", "diagnose"]
