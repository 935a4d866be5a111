"""The line to change for an exception, perhaps not the one that raised it, written anew."""

from __future__ import annotations

import traceback
from dataclasses import replace

from nanlab.capture.places import is_user
from nanlab.explanations.explanation import Explanation, operands_frame
from nanlab.explanations.reading import as_read
from nanlab.explanations.search import mend
from nanlab.findings.rule import Edit, Fix
from nanlab.trace.escapes import Failure


def with_change(
    explanation: Explanation | None, failure: Failure, error: BaseException | None = None
) -> Explanation | None:
    """The explanation, with the line to change written anew as its first fix where known.

    Where the message has no meaning, what was found by trying explains it.
    """
    if "returned nan values" in failure.text:  # an edit that computes something else helps nobody
        own = explanation.fixes[0].edits if explanation is not None and explanation.fixes else ()
        return replace(explanation, change=_changed(own)) if explanation and own else explanation
    line = (explanation.file, explanation.line) if explanation is not None else ("", 0)
    edits = mend(error, line) if error is not None else None
    if not edits:
        if explanation is None and error is not None:
            return as_read(failure, error, _title(failure, failure.file, failure.line, error))
        return explanation
    explanation = explanation or _unknown(failure, edits[0], error)
    lines = ", ".join(_line(each, explanation.file) for each in edits)
    text = "\n".join(each.text for each in edits)
    fixes = [
        fix for fix in explanation.fixes if not text or fix.code not in text
    ]  # it is said once
    title = f"change {lines}" if text else f"leave out {lines}"
    fixes.insert(0, Fix(title, text, edits=edits))
    return replace(explanation, change=_changed(edits), fixes=fixes)


def _changed(edits: tuple[Edit, ...]) -> tuple[str, int, str]:
    """File, number and text of the first line that edits change."""
    old = edits[0].old.split("\n")
    new = [row.strip() for row in edits[0].rows()]
    same = [a.strip() in new for a in old]
    if all(same):  # it moved
        same = [a == b for a, b in zip(old, edits[0].rows(), strict=False)]
    at = min(same.index(False) if False in same else len(same), len(old) - 1)
    return edits[0].file, edits[0].first + at, old[at].strip()


def _line(edit: Edit, file: str) -> str:
    if edit.file != file:
        return f"{edit.file}:{edit.first}"
    return f"line {edit.first}" if edit.first == edit.last else f"lines {edit.first} to {edit.last}"


def _unknown(failure: Failure, edit: Edit, error: BaseException | None) -> Explanation:
    """What is said of a message that has no meaning here, where an edit was found."""
    return Explanation(
        "wrong-argument",
        _title(failure, edit.file, edit.first, error),
        "The program was run again with small changes, without writing files; with this one it"
        " raises no more.",
        failure.file,
        failure.line,
        failure.source,
        operands_frame(failure.operands),
        module=failure.module,
    )


def _title(failure: Failure, file: str, line: int, error: BaseException | None) -> str:
    """What was raised, and in which function: here, where another line is to be changed."""
    place = "" if (file, line) == (failure.file, failure.line) else " raised here"
    steps = traceback.walk_tb(error.__traceback__) if error is not None else ()
    functions = [frame.f_code.co_qualname for frame, _ in steps if is_user(frame)]
    if functions and "<" not in functions[-1]:
        place += f", in {functions[-1]}"
    return ": ".join([f"{failure.kind}{place}", *failure.text.splitlines()[:1]])
