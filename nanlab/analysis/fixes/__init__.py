"""A fix tried out: one operation run again, forward and backward, written otherwise, on the operands that failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanlab.analysis.fixes._candidate import Candidate
from nanlab.analysis.fixes._elementwise import ELEMENTWISE
from nanlab.analysis.fixes._operation import Operation, operation_of
from nanlab.analysis.fixes._rewriting import Rewritten, rewrite
from nanlab.analysis.fixes._trial import Trial, attempt, sampled

SECONDS = 0.5  # what is not tried by then is said to be untried


@dataclass(frozen=True)
class Tried:
    """A candidate, what became of it, and the user's line written so (None: the line could not be rewritten)."""

    candidate: Candidate
    trial: Trial | None  # None: it could not be tried
    line: Rewritten | None

    @property
    def code(self) -> str:
        """What to write instead."""
        if self.line is not None:
            return self.line.text
        candidate = self.candidate
        if candidate.snippet or not candidate.forms:
            return candidate.snippet
        return candidate.forms[0].text.format(x="x", y="y", z="z", X="x", Y="y", Z="z", rest="")


def candidates_for(op: Operation) -> list[Candidate]:
    """Other ways to write an operation; empty where none is known."""
    make = ELEMENTWISE.get(op.name)
    return make(op) if make is not None else []


def try_out(op: Operation, candidates: Sequence[Candidate], text: str, line: int) -> list[Tried]:
    """Each candidate on the operands of the operation, with the user's line (of a file's text) written so.

    Where some are written in the words of the line, those that are not are left out.
    """
    operands, gradient = _sample(op)
    started = time.perf_counter()
    found = []
    for candidate in candidates:
        spelled = _rewritten(candidate, text, line)
        if spelled is None and candidate.only_spelled:
            continue
        trial = None
        if candidate.run is not None and time.perf_counter() - started < SECONDS:
            trial = attempt(candidate.run, candidate.plain or op.plain, operands, gradient)
        found.append(Tried(candidate, trial, spelled))
    return found


def _rewritten(candidate: Candidate, text: str, line: int) -> Rewritten | None:
    for form in candidate.forms:
        found = rewrite(text, line, form.spellings, form.text)
        if found is not None:
            return found
    return None


def _sample(op: Operation) -> tuple[list[object], torch.Tensor | None]:
    if op.name not in ELEMENTWISE:
        return list(op.operands), op.gradient
    with torch.no_grad():
        result = op.plain(*op.operands)
    bad = ~torch.isfinite(result)
    for operand in op.operands:
        if isinstance(operand, torch.Tensor) and op.backward:
            bad = bad | (operand.abs() <= operand.abs().min()) if operand.numel() else bad
    return sampled(op.operands, op.gradient, bad)


__all__ = [
    "Candidate",
    "Operation",
    "Rewritten",
    "Tried",
    "Trial",
    "attempt",
    "candidates_for",
    "operation_of",
    "rewrite",
    "try_out",
]
