"""A fix tried out: one operation run again, forward and backward, written otherwise, on the
operands that failed."""

from __future__ import annotations

import textwrap
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nanlab.analysis.fixes._calls import NOWHERE, Calls
from nanlab.analysis.fixes._candidate import EPS_IN_FLOAT32, IN_FLOAT32, Candidate
from nanlab.analysis.fixes._composites import composites
from nanlab.analysis.fixes._distributions import quantile, support
from nanlab.analysis.fixes._elementwise import ELEMENTWISE
from nanlab.analysis.fixes._following import takes_float32
from nanlab.analysis.fixes._infinities import INFINITIES
from nanlab.analysis.fixes._inplace import out_of_place
from nanlab.analysis.fixes._masking import backward_lines
from nanlab.analysis.fixes._matrices import MATRICES
from nanlab.analysis.fixes._missing import FRESH_MOMENTS, MISSING
from nanlab.analysis.fixes._onward import followed
from nanlab.analysis.fixes._operation import Operation, operation_of
from nanlab.analysis.fixes._parameters import parameters
from nanlab.analysis.fixes._powers import POWERS
from nanlab.analysis.fixes._quotients import QUOTIENTS, of_reciprocal
from nanlab.analysis.fixes._range import RANGE, allocation
from nanlab.analysis.fixes._reductions import REDUCTIONS
from nanlab.analysis.fixes._rewriting import Rewritten, rewrite
from nanlab.analysis.fixes._rows import ROWS, normalised
from nanlab.analysis.fixes._scales import (
    gradients_among,
    loss_factor,
    lower_scale,
    raised_before_cast,
    scaled_operation,
)
from nanlab.analysis.fixes._scope import whole_line
from nanlab.analysis.fixes._trial import Trial, attempt, sampled
from nanlab.analysis.fixes._updates import updates

# What stands for the operands in code that could not be written into the user's line.
_NAMES = {"x": "x", "y": "y", "z": "z", "X": "x", "Y": "y", "Z": "z", "rest": "", "args": "dtype"}
SECONDS = 1.5  # of processor time; what is not tried by then is said to be untried


@dataclass(frozen=True)
class Tried:
    """A candidate, what became of it, and the user's line written so (None: the line could not be
    rewritten)."""

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
        return candidate.forms[0].text.format(**_NAMES)


def candidates_for(op: Operation) -> list[Candidate]:
    """Other ways to write an operation; empty where none is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            *composites(op),
            *normalised(op),
            *support(op),
            *quantile(op),
            *updates(op),
            *of_reciprocal(op),
            *parameters(op),
        ]
        for table in (
            ELEMENTWISE,
            POWERS,
            QUOTIENTS,
            ROWS,
            REDUCTIONS,
            MATRICES,
            INFINITIES,
            RANGE,
        ):
            if op.name in table:
                found += table[op.name](op)
    return found


def try_out(
    op: Operation,
    candidates: Sequence[Candidate],
    text: str,
    line: int,
    autocast: str = "",
    half: bool = False,
) -> list[Tried]:
    """Each candidate on the operands of the operation, with the user's line (of a file's text)
    written so.

    autocast: device type, where the line runs under autocast, which would cast back what is to be
    float32.
    half: parameters are in half precision, so that float32 does not go with them.

    Where some are written in the words of the line, those that are not are left out.
    """
    sample = _sample(op)
    started = time.process_time()
    found, composite = [], False
    for candidate in candidates:
        if op.custom:
            candidate = replace(candidate, title=f"in {op.custom}.backward: {candidate.title}")
        spelled = (
            _in_backward(op, candidate, text, line)
            if op.custom
            else _rewritten(candidate, text, line, _calls(op))
        )
        spelled = spelled or _written_in_place(op, candidate, text, line)
        if spelled is None and candidate.only_spelled:
            continue
        composite = composite or candidate.only_spelled
        if spelled is None and composite and candidate.forms:
            continue
        if candidate.title in (IN_FLOAT32, EPS_IN_FLOAT32) and half:
            candidate = replace(
                candidate,
                run=None,
                why="what follows is in half precision, and must take float32 too",
            )
        if spelled is not None and spelled.nested and "epsilon" in candidate.title:
            candidate = replace(
                candidate, run=None, why="the line has the operation twice, one inside the other"
            )
        if autocast and candidate.title == IN_FLOAT32:
            spelled = spelled or (whole_line(text, line) if op.name == "_to_copy" else None)
            spelled = _outside_autocast(spelled, autocast) if spelled is not None else None
        trial: Trial | None = None
        if candidate.run is not None and time.process_time() - started < SECONDS:
            trial = judged(op, candidate, _tried(op, candidate, *sample), spelled)
            trial = _followed(op, candidate, trial, *sample)
            if (
                spelled is not None
                and spelled.nested
                and candidate.title == IN_FLOAT32
                and not trial.finite
            ):
                candidate, trial = (
                    replace(candidate, why="it takes the inner one with it, on the same line"),
                    None,
                )
        elif candidate.run is not None:
            candidate = replace(candidate, why=f"the others took {SECONDS} s")
        found.append(Tried(candidate, trial, spelled))
    written = any(t.line is not None for t in found)
    if not op.differentiates and not op.custom:  # nobody rewrites torch.optim
        found = [t for t in found if t.line is not None or not t.candidate.forms]
    return [t for t in found if t.line is not None or not (written and t.candidate.forms)]


def _tried(
    op: Operation, candidate: Candidate, operands: list[object], gradient: torch.Tensor | None
) -> Trial:
    assert candidate.run is not None
    carrying = op.carrying
    if candidate.operands:
        # made of what carries
        if len(candidate.operands) != len(op.operands) or candidate.plain is not None:
            carrying = () if op.carrying == () else None
        operands, gradient = list(candidate.operands), op.gradient
    return attempt(
        candidate.run,
        candidate.plain or op.plain,
        operands,
        gradient,
        carrying=carrying if op.differentiates else (),
        hooked=op.hooked,
        twice=op.twice,
    )


def _followed(
    op: Operation,
    candidate: Candidate,
    trial: Trial,
    operands: list[object],
    gradient: torch.Tensor | None,
) -> Trial:
    """A trial in view of what the next operations make of the new value."""
    if not trial.holds or candidate.run is None or candidate.plain is not None or not op.onward:
        return trial
    if candidate.operands:
        operands, gradient = list(candidate.operands), op.gradient
    wanted = range(len(operands)) if op.carrying is None else op.carrying
    try:
        doubt = followed(
            op.onward, candidate.run, op.plain, operands, wanted, gradient, op.backward
        )
    except (RuntimeError, TypeError):  # sampled operands, or a dtype that a step does not take
        doubt = None
    if doubt is None:
        return trial
    return (
        replace(trial, finite=False, why=doubt.why)
        if doubt.sure
        else replace(trial, doubt=doubt.why)
    )


def judged(op: Operation, candidate: Candidate, trial: Trial, line: Rewritten | None) -> Trial:
    """A trial in view of what stands before and after the operation.

    line: the user's line, rewritten with every such operation on it; others that fail there go on
    failing.
    """
    if trial.finite and op.trapped and not candidate.frees:
        return replace(trial, finite=False, why=op.trapped)
    rerun = bool(op.onward) and candidate.plain is None  # what follows is run on its value
    if trial.finite and op.divides and trial.zeros and not rerun:
        return replace(trial, finite=False, why="what follows divides by its 0")
    # it reaches the rest of the line
    wider = candidate.plain is not None or candidate.frees or candidate.at_source
    cured = line is not None and (wider or (trial.finite and _cures_twins(op, candidate, line)))
    doubt = _doubt(op, candidate, trial) or ("" if cured else op.here)
    return replace(trial, doubt=doubt) if trial.finite else trial


def _cures_twins(op: Operation, candidate: Candidate, line: Rewritten) -> bool:
    """Whether the others on the line that fail are written anew as well, and hold then."""
    if not op.twins or line.count <= len(op.twins) or candidate.run is None or candidate.operands:
        return False
    tried = (
        attempt(candidate.run, twin.plain, twin.operands, carrying=twin.carrying)
        for twin in op.twins
    )
    return all(trial.finite for trial in tried)


def _doubt(op: Operation, candidate: Candidate, trial: Trial) -> str:
    """Why the program may stay bad although the operation is finite: "" where nothing recorded says
    so."""
    ends = (
        path for path in op.onward if path[-1].line == op.logged and path[-1].name.startswith("log")
    )
    rerun = any(all(step.known for step in path) for path in ends)
    if op.logged and trial.zeros and op.name in QUOTIENTS and not rerun:
        return f"the logarithm at line {op.logged} may be taken of a 0 that comes of it"
    for product in (
        op.ahead if candidate.title not in (IN_FLOAT32, EPS_IN_FLOAT32) else ()
    ):  # what follows takes float32
        if product.overflows(trial.value_max):
            return f"the product at line {product.line} may overflow with it"
    for product in op.behind:
        if trial.gradient_max is not None and product.overflows(trial.gradient_max * op.usual):
            return f"the gradient may overflow float16 at line {product.line}"
    return op.unrelated if candidate.at_source else op.beside


def _outside_autocast(line: Rewritten, device: str) -> Rewritten:
    inner = textwrap.indent(line.text, "    ")
    return replace(line, text=f'with torch.autocast("{device}", enabled=False):\n{inner}')


def _in_backward(op: Operation, candidate: Candidate, text: str, line: int) -> Rewritten | None:
    """The line of a hand-written backward that spells the operation, if it is just one."""
    lines = backward_lines(text, op.custom)
    found = [_rewritten(candidate, text, each) for each in ([line] if line in lines else lines)]
    written = {r.first: r for r in found if r is not None}
    return next(iter(written.values())) if len(written) == 1 else None


def _calls(op: Operation) -> Calls:
    """Where the operation stands; through a value of the program only what takes its operands
    alone."""
    plain = (
        op.name in ELEMENTWISE or op.name in POWERS or op.name in QUOTIENTS
    ) and op.differentiates
    return op.calls if plain else replace(op.calls, own=None)


def _rewritten(
    candidate: Candidate, text: str, line: int, calls: Calls = NOWHERE
) -> Rewritten | None:
    if candidate.line not in (0, line):
        line, calls = candidate.line, NOWHERE
    if candidate.only_spelled:
        calls = replace(calls, own=None)
    calls = replace(calls, itself=not candidate.only_spelled and candidate.plain is None)
    if candidate.rewriter is not None:
        return candidate.rewriter(text, line)
    for form in candidate.forms:
        found = rewrite(text, line, form.spellings, form.text, calls=calls)
        if found is not None:
            return found
    return None


def _written_in_place(
    op: Operation, candidate: Candidate, text: str, line: int
) -> Rewritten | None:
    """The line where it has the operation as an in-place method."""
    page = (
        out_of_place(text, line, op.name)
        if candidate.forms and op.differentiates and not candidate.line
        else None
    )
    if page is None:
        return None
    found = (rewrite(text, line, form.spellings, form.text, page) for form in candidate.forms)
    return next((line for line in found if line is not None), None)


def _sample(op: Operation) -> tuple[list[object], torch.Tensor | None]:
    if op.name not in ELEMENTWISE and op.name not in POWERS and op.name not in QUOTIENTS:
        return list(op.operands), op.gradient
    with torch.no_grad():
        result = op.plain(*op.operands)
    bad = ~torch.isfinite(result)
    for operand in op.operands:
        if isinstance(operand, torch.Tensor) and op.backward:
            bad = bad | (operand.abs() <= operand.abs().min()) if operand.numel() else bad
    return sampled(op.operands, op.gradient, bad)


__all__ = [
    "FRESH_MOMENTS",
    "MISSING",
    "NOWHERE",
    "Candidate",
    "Operation",
    "Rewritten",
    "Trial",
    "Tried",
    "allocation",
    "attempt",
    "candidates_for",
    "gradients_among",
    "loss_factor",
    "lower_scale",
    "operation_of",
    "raised_before_cast",
    "rewrite",
    "scaled_operation",
    "takes_float32",
    "try_out",
]
