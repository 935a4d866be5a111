"""A finding as text: what, where, when, why, its path, and the fixes that were tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanlab.rules import Path
from nanlab.trace.locations import location
from nanlab.views._columns import known

if TYPE_CHECKING:
    from nanlab.rules import Finding, Fix
    from nanlab.trace import Trace


def first_of(trace: Trace) -> Finding | None:
    """What the card shows: the culprit; else the first finding that is worth a warning."""
    found = trace.culprit
    return found or next((f for f in trace.findings if f.severity in ("error", "warning")), None)


def known_first(trace: Trace) -> Finding | None:
    """The same, as far as it is known before any fix was tried."""
    found = trace.culprit
    return found or next(
        (f for f in trace.own_findings if f.severity in ("error", "warning")), None
    )


def is_tried(trace: Trace) -> bool:
    """Whether the fixes of what the card shows were tried, so that the page is made at once."""
    found = known_first(trace)
    return found is None or getattr(found.fixes, "tried", True)


def place(finding: Finding) -> str:
    """``train.py:41, in encoder.0, step 3, backward``; what is not known is left out."""
    module = f"in {finding.module}" if finding.module else ""
    inside = f"inside {library_text(finding)}" if finding.library else ""
    step = f"step {finding.step}" if known(finding.step) != "" and finding.step >= 0 else ""
    return ", ".join(
        part
        for part in (location(finding.file, finding.line), inside, module, step, finding.phase)
        if part
    )


def library_text(finding: Finding) -> str:
    """``kornia/geometry/linalg.py:41 (transform)``: where inside a library it was born."""
    if finding.library is None:
        return ""
    file, line, function = finding.library
    for folder in ("site-packages", "dist-packages"):
        file = file.rsplit(f"/{folder}/", 1)[-1]
    return f"{file}:{line}" + (f" ({function})" if function else "")


def fix_title(fix: Fix) -> str:
    """What a fix does and, where it is not verified, why."""
    return f"{fix.title}: {fix.why}" if fix.why else fix.title


def as_text(finding: Finding) -> str:
    """The finding for a terminal."""
    lines = [f"{finding.severity}: {finding.title}", f"  at {place(finding)}"]
    lines += [f"    {finding.source}"] if finding.source else []
    lines += [f"  {finding.explanation}"]
    lines += [f"  path: {Path(finding.path).chain()}"] if finding.path else []
    lines += [f"  fix ({fix.verdict}): {fix_title(fix)}:  {fix.code}" for fix in finding.fixes]
    return "\n".join(lines)
