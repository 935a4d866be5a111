"""What to write instead, as blocks that are copied and tried: a fix, and the cure of all faults of
a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanlab.trace.locations import location
from nanlab.views._html import capital, escape, inline, plural, sentence
from nanlab.views._source import as_typed

if TYPE_CHECKING:
    from nanlab.rules import Edit, Finding, Fix
    from nanlab.rules.cure import Cure
    from nanlab.trace import Trace

CURE = "cure"  # the page's name for the cure of the step; a fix is "finding.fix", by number
ORDER = ("verified", "finite", "untried", "fails")  # of fixes, the best first
VERDICTS = {
    "verified": "the failing step was run again with it: finite and right",
    "finite": "the failing step was run again with it: finite, but not known to be right",
    "fails": "the failing step was run again with it, and is not finite",
    "untried": "the step was not run again with it",
}
WAITING = "Trying fixes on the recorded step …"
INTERRUPTED = "Trying the fixes was interrupted; trace.report() goes on with it."


def best_fix(finding: Finding) -> Fix | None:
    """The fix of the best verdict; of equals the first."""
    return min(finding.fixes, key=lambda fix: ORDER.index(fix.verdict), default=None)


def cure_of(trace: Trace | None) -> Cure | None:
    """The cure of a step with several faults; None where one fix is all, or none is known."""
    cure = getattr(trace, "cure", None)
    return cure if cure is not None and len(cure.fixes) > 1 else None


def first_remedy(finding: Finding, trace: Trace | None, which: int) -> str:
    """The cure where the finding is the first of several faults of a step; else its best fix, or
    that none of them helps."""
    cure = cure_of(trace)
    if cure is not None and trace is not None and finding is trace.culprit:
        return cure_block(cure)
    fix = best_fix(finding)
    if fix is None:
        return ""
    if fix.verdict == "fails":
        count = len(finding.fixes)
        subject = "The one fix" if count == 1 else f"None of the {count} fixes"
        makes = "does not make" if count == 1 else "makes"
        return (
            f'<div class="nl-fix"><span class="nl-tag nl-fails">fails</span> {subject} tried'
            f" {makes} the step finite.</div>"
        )
    return fix_block(fix, finding.fixes.index(fix), which)


def waiting(text: str = WAITING) -> str:
    """What stands in the place of a fix until it was tried."""
    return f'<div class="nl-fix nl-dim" role="status">{escape(text)}</div>'


def fix_block(fix: Fix, number: int, which: int = -1) -> str:
    """A fix: its verdict, what it does, and what to write; ``which`` finding it is of."""
    key = f"{which}.{number}" if which >= 0 and fix.edits else ""
    body = f'<pre class="nl-code nl-written" tabindex="0">{escape(written(fix))}</pre>'
    return _block(fix, sentence(fix.title), body, key, written(fix))


def cure_block(cure: Cure) -> str:
    """The edits for all faults of a step, as lines that go and lines that come."""
    what = "cured together" if cure.verified else "no cure known; these edits come nearest"
    head = f"{plural(len(cure.fixes), 'fault')} in this step, {what}: {sentence(cure.title)}"
    return _block(cure, head, difference(cure.edits), CURE, cure.diff())


def _block(tried: Fix | Cure, head: str, body: str, key: str, text: str) -> str:
    reason = reason_of(tried)
    why = f'. <span class="nl-dim">{inline(reason)}</span>' if reason else ""
    return (
        f'<div class="nl-fix" data-try="{key}" data-copy="{escape(text)}"><div'
        f' class="nl-fix-head">{verdict(tried)} <span'
        f' class="nl-fix-title">{head}{why}</span></div>{body}</div>'
    )


def reason_of(tried: Fix | Cure) -> str:
    """The sentence that says what is missing from a fix that is not verified: ``The loss is
    3.2e-05, its limit 0.``"""
    return f"{capital(tried.why)}." if tried.verdict != "verified" and tried.why else ""


def verdict(tried: Fix | Cure) -> str:
    """The word of the contract on its colour."""
    return (
        f'<span class="nl-tag nl-{tried.verdict}"'
        f' title="{VERDICTS[tried.verdict]}">{tried.verdict}</span>'
    )


def written(fix: Fix) -> str:
    """The lines to write: those of the edit, or the code."""
    return "\n".join(edit.text for edit in fix.edits) if fix.edits else fix.code


def difference(edits: Sequence[Edit]) -> str:
    """Edits as numbered lines that go and lines that come."""
    if not edits:
        return ""
    files = dict.fromkeys(edit.file for edit in edits)
    rows = []
    for file in files:
        if len(files) > 1:
            rows.append(f'<span class="nl-no">{escape(location(file, "").rstrip(":"))}</span>')
        for edit in sorted((e for e in edits if e.file == file), key=lambda e: e.first):
            rows += [_row("-", edit.first + i, row) for i, row in enumerate(edit.old.splitlines())]
            rows += [_row("+", edit.first + i, row) for i, row in enumerate(edit.rows())]
    places = ", ".join(location(edit.file, edit.first) for edit in edits)
    return (
        f'<pre class="nl-code nl-diff" tabindex="0" aria-label="Edits at {escape(places)}">'
        f"{chr(10).join(rows)}</pre>"
    )


def _row(sign: str, number: int, text: str) -> str:
    kind = "nl-goes" if sign == "-" else "nl-comes"
    return (
        f'<span class="nl-row {kind}"><span class="nl-no">{number:>4} </span>{sign}'
        f" {escape(as_typed(text))} </span>"
    )
