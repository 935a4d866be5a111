"""What cures a finding: lines, settings of the loop, each tried on the whole step; advice."""

from __future__ import annotations

import ast
import io
import math
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nanlab.analysis.exact import work
from nanlab.analysis.libraries import is_told_elsewhere, patch, rewritings, text_of_library
from nanlab.analysis.precision import best_scale, cast_shares
from nanlab.analysis.training import optimizer_step_at, runaway, stable_rate
from nanlab.analysis.verdict import RAISES, Judge
from nanlab.errors import NanlabError, NotReplayable
from nanlab.findings.fault import plural
from nanlab.findings.rule import Edit, Finding, Fix, TriedFixes
from nanlab.fixes.candidates import Candidate, candidates
from nanlab.fixes.example import Place
from nanlab.fixes.guards import number
from nanlab.fixes.proposals import (
    at_makers,
    carried,
    filled,
    forward_of,
    library_proposals,
    proposals,
    proposals_at,
    reads_probabilities,
)
from nanlab.formats import format_of
from nanlab.program.edit import text_of as source_text
from nanlab.program.replay import RateTrial, Replay, replay_step, tensor_at, try_rate
from nanlab.program.rerun import Window, rerun, window
from nanlab.program.settings import current_scale
from nanlab.topics.scaler import held_in_half, loss_factor
from nanlab.topics.training import CLEARED, overflowed, smaller_rate
from nanlab.trace import Trace
from nanlab.trace.op import Op
from nanlab.trace.program import refs_in
from nanlab.trace.recording import Recording

WITHIN = 0.01  # how far gradients and updates may be from those of the step in float32
SCALES = (2, 6, 10, 14)  # the loss scale is tried at this many halvings
# of ten by which the rate is lowered, beside the first
POWERS = (0, 1, 3, 7, 11, 15, 19, 23, 27, 31)
RUN_UP = 6  # steps before the fault in which another rate is tried
EPSILONS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


def tried_settings(trace: Trace, finding: Finding) -> list[Fix]:
    """Another setting for a cause, with what became of the step: a right one, else finite."""
    propose = _PROPOSED.get(finding.cause)
    step = finding.step - trace.recording.first_step
    if propose is None or step < 0 or finding.severity == "note":
        return []
    near: list[Fix] = []
    try:
        for fix in propose(trace, step):
            if fix.verified:
                return [fix]
            near += [fix] if fix.verdict in ("finite", "untried") else []
    except NanlabError:
        pass
    return near[:1]


def _other_scale(trace: Trace, step: int) -> Iterator[Fix]:
    where = window(trace.recording, step)
    scale = current_scale(where)
    if scale is None or not math.isfinite(scale) or scale <= 0:
        return
    dynamic = any(loss.scaled for loss in trace.recording.history.losses)
    for halvings in SCALES:
        lower = 2.0 ** (math.floor(math.log2(scale)) - halvings)
        again = replay_step(trace.recording, step=step, loss_scale=lower)
        wide = replay_step(trace.recording, step=step, loss_scale=lower, dtype=torch.float32)
        code = f"(loss * {lower:g}).backward()  # and divide the gradients by {lower:g}"
        if dynamic:
            code = f"scaler = torch.amp.GradScaler(device, init_scale={lower:g})"
        yield _setting_fix(f"a loss scale of {lower:g}", code, again, again.gradients, wide)


def _larger_epsilon(trace: Trace, step: int) -> Iterator[Fix]:
    """An eps that the narrowest of parameters and state holds as a normal number; none where the
    arithmetic overflowed, which no eps changes: a second moment of inf makes updates of 0."""
    culprit = trace.culprit
    if culprit is not None and overflowed(trace.recording, culprit.position):
        return
    where = window(trace.recording, step)
    runs = [run for segment in where.segments for run in segment.optimizers]
    held = [
        ref.dtype
        for run in runs
        for group in run.groups
        for ref in refs_in((group.parameters, tuple(tuple(s.values()) for s in group.state)))
        if ref.dtype.is_floating_point
    ]
    narrow = min(held, key=lambda d: -torch.finfo(d).tiny, default=torch.float32)
    steps = trace.recording.training.optimizer_steps
    kind = next((s.optimizer for s in steps if where.start <= s.position < where.end), "Adam")
    for epsilon in (e for e in EPSILONS if e > torch.finfo(narrow).tiny):
        shown = number(epsilon)
        name = f"torch.optim.{kind}" if hasattr(torch.optim, kind) else kind
        code = f"{name}(parameters, lr=..., eps={shown})   # or float32 master weights"
        title = f"an optimizer eps of {shown}, which {format_of(narrow).name} holds"
        try:
            again = replay_step(trace.recording, step=step, settings={"eps": epsilon})
            wide = replay_step(trace.recording, step=step, dtype=torch.float32)
        except NanlabError as error:
            yield Fix(title, code, why=str(error))
            return
        yield _setting_fix(title, code, again, again.parameters, wide, _before(where))


def _smaller_rate(trace: Trace, step: int) -> Iterator[Fix]:
    """The largest power of ten below the rate with which the steps before the fault run without
    it, and make the loss of the first one's batch smaller."""
    recording, culprit = trace.recording, trace.culprit
    if culprit is None or CLEARED in getattr(culprit.fixes, "given", ()):
        return
    last = culprit.step - recording.first_step
    position = culprit.path[0]["position"] if culprit.path else culprit.position
    away = runaway(recording, position)
    used = away.rate if away is not None else None
    try:
        first = next(
            (s for s in range(max(last - RUN_UP, 0), last) if _is_kept(recording, s)), last
        )
        rates = {rate for rate in _rates(recording, first, last) if not math.isnan(rate)}
        if len(rates) == 1:
            used = rates.pop()
        if used is None or not 0 < used < math.inf:
            return
        if first == last:
            raise NotReplayable("the steps before it are no longer kept")
        stable = stable_rate(recording, away) if away is not None else None
        below = used if stable is None else min(used, stable[0])
        top = math.ceil(math.log10(below)) - 1
        found = _largest(lambda power: try_rate(recording, first, last, position, 10.0**power), top)
    except NotReplayable as error:
        if away is not None and used is not None and 0 < used < math.inf:
            yield replace(smaller_rate(recording, away, used), why=str(error))
        return
    if found is None:
        return
    power, trial = found
    title = "a smaller learning rate"
    if away is not None:
        title = smaller_rate(recording, away, used).title
    why = (
        f"tried on {plural(last - first, 'step')}: the loss of the batch of step"
        f" {first + recording.first_step} falls from {trial.before:.3g} to {trial.after:.3g}"
    )
    yield Fix(title, f"lr={10.0**power:g}", verdict="finite", why=why)


def _is_kept(recording: Recording, step: int) -> bool:
    try:
        return all(segment.lost is None for segment in window(recording, step).segments)
    except NotReplayable:
        return False


def _rates(recording: Recording, first: int, last: int) -> Iterator[float]:
    """The learning rates of all groups in these steps, the last one excluded."""
    for step in range(first, last):
        where = window(recording, step)
        for run in (r for segment in where.segments for r in segment.optimizers):
            for group in run.groups:
                rate = group.settings.get("lr")
                yield float(rate) if isinstance(rate, int | float) else math.nan


def _largest(trial: Callable[[int], RateTrial], top: int) -> tuple[int, RateTrial] | None:
    """The largest power of ten, from the top, that passes: looked for in strides, then halves."""

    def passes(down: int) -> RateTrial | None:
        found = trial(top - down)
        return found if found.finite and found.after < found.before else None

    low = -1  # the last stride that did not pass
    for high in POWERS:
        found = passes(high)
        if found is not None:
            break
        low = high
    else:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        better = passes(middle)
        if better is None:
            low = middle
        else:
            high, found = middle, better
    return top - high, found


def _before(where: Window) -> dict[str, Any]:
    """The parameters as the first step of an optimizer finds them."""
    names = where.recording.program.names
    first = min((at, run.first) for at, s in enumerate(where.segments) for run in s.optimizers)
    memory = rerun(where.segments, lambda at, index, *_: (at, index + 1) >= first)
    leaves = {leaf for s in where.segments for run in s.engine for leaf in run.after}
    return {
        names.get(leaf.storage, f"leaf {leaf.storage}"): memory.tensor(leaf).double()
        for leaf in leaves
    }


_PROPOSED: dict[str, Callable[[Trace, int], Iterator[Fix]]] = {
    "loss-scale-overflow": _other_scale,
    "optimizer-eps-underflow": _larger_epsilon,
    "optimizer-arithmetic": _larger_epsilon,
    "learning-rate": _smaller_rate,
}


def _setting_fix(
    title: str,
    code: str,
    again: Replay,
    now: Mapping[str, Any],
    wide: Replay,
    before: Mapping[str, Any] | None = None,
) -> Fix:
    """A setting with its verdict: gradients or updates against the same step in float32."""
    if not again.finite:
        return Fix(title, code, verdict="fails", why="the step is not finite with it either")
    truth, far, worst = wide.gradients if before is None else wide.parameters, 0.0, ""
    for name, value in now.items():
        known = truth[name].double()
        healthy = known.isfinite()
        if not bool(healthy.any()):
            continue
        gap = (value.double() - known).abs()
        size = known.abs()
        if before is not None:  # the parameter itself is rounded; that is not the setting's doing
            gap = (gap - torch.finfo(value.dtype).eps * size).clamp_min(0.0)
            size = (known - before[name]).abs()
        off = float(gap[healthy].max()) / max(float(size[healthy].max()), 1e-300)
        if off > far:
            far, worst = off, name
    if far > WITHIN:
        what = "gradient" if before is None else "update"
        why = f"the {what} of {worst} is off by {100 * far:.3g} % of that in float32"
        return Fix(title, code, verdict="finite", why=why, distortion=far)
    sizes = [float(g.abs().max()) for g in again.gradients.values() if g.numel()]
    return Fix(
        title, code, verdict="verified", distortion=far, gradient_max=max(sizes, default=None)
    )


# The fixes of a finding: what could be written instead, each tried on the whole failing step.

ROUNDING = 1e-6  # relative; a distortion up to this is no reason to prefer a fix in float32
FOREIGN = 1.0  # relative change of healthy values with which a program is another one
WORK = 6_000_000  # for the fixes of all findings together: about 6 s


def with_fixes(trace: Trace, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their fixes, which are tried when somebody asks for them."""
    clock = Clock()
    return [
        replace(f, fixes=TriedFixes(partial(_tried_fixes, trace, f, clock), f.fixes))
        for f in findings
    ]


@dataclass
class Clock:
    """Work that the fixes of a trace may take together."""

    left: float = field(default_factory=lambda: WORK)

    def spent(self) -> bool:
        """Whether it is done."""
        return self.left <= 0


def _tried_fixes(trace: Trace, finding: Finding, clock: Clock) -> list[Fix]:
    """What to write instead, each tried on the whole step; what fails here becomes a note."""
    judge = judge_of(trace, finding.step)
    with nullcontext() if isinstance(judge, str) else judge.sharing():
        return _tried(trace, finding, clock)


def _tried(trace: Trace, finding: Finding, clock: Clock) -> list[Fix]:
    """What to write instead, tried while the judge shares what goes before."""
    started = work()
    text = text_of(trace, finding)
    groups = [_named(trace, finding, text), *guarded(trace, finding, text)]
    if finding.cause in _MASKS:
        groups.insert(0, groups.pop())
    clock.left -= work() - started
    found: list[Fix] = []
    for i, group in enumerate(groups):
        if i < 2 or finding.cause in _MASKS or not any(f.verified for f in found):
            fresh = [f for f in _distinct([*found, *group]) if f not in found]
            tried: list[Fix] = []
            for fix in fresh:
                cured = any(f.verified for f in (*found, *tried))
                if not (cured and fix.last_resort):
                    tried.append(_judged(trace, finding, fix, clock))
            found += tried if not i else _worth_telling(tried, any(f.verified for f in found))
    found = _distinct([*_helpful(found), *_beyond(trace, finding)])
    if finding.library is not None:  # what the user can write comes before what cannot be written
        found.sort(key=lambda fix: not fix.edits and not fix.title.startswith(_PATCH))
        return sorted(found, key=lambda fix: {"verified": 0, "fails": 3}.get(fix.verdict, 1))
    return sorted(found, key=_rank)


def _beyond(trace: Trace, finding: Finding) -> list[Fix]:
    """What concerns more than the line: a setting that was tried, else advice."""
    try:
        return tried_settings(trace, finding) or [_explained(f) for f in advice(trace, finding)]
    except Exception as error:
        _note(trace, f"no advice for {finding.cause} ({type(error).__name__}: {error})")
        return []


def _helpful(fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes without those nobody would take: failing beside right, distorting beside finite,
    and what cannot be run. What fails by itself may yet be part of a cure."""
    right = any(fix.verified for fix in fixes)
    kept = [
        fix
        for fix in fixes
        if not (fix.edits and fix.verdict == "fails" and (right or fix.why.startswith(RAISES)))
    ]
    mild = [f for f in kept if f.verdict != "finite" or (f.distortion or 0.0) < FOREIGN]
    some = any(f.verdict in ("verified", "finite") for f in mild)
    return mild if some else kept


def _worth_telling(guards: Sequence[Fix], cured: bool) -> list[Fix]:
    """Of bounded operations what helps; else what could not be tried, and some that come near."""
    good = [f for f in guards if f.verified]
    finite = (f for f in guards if f.verdict == "finite")
    near = sorted(finite, key=lambda f: f.distortion or 0.0)[:MOST_TOLD]
    open_ = [f for f in guards if f.verdict == "untried"][:MOST_TOLD]
    if good or cured:
        return [*good, *near]
    return [*open_, *near] or [f for f in guards if f.verdict == "fails"][:MOST_TOLD]


def _named(trace: Trace, finding: Finding, text: str) -> list[Fix]:
    """The line by the catalogue of expressions, and what rule and settings give."""
    found = list(finding.fixes)
    try:
        found = [
            *passed_otherwise(trace, finding, text),
            *patched_library(trace, finding),
            *rewritten(trace, finding, text),
            *found,
        ]
    except Exception as error:
        _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
    return _distinct([_explained(fix) for fix in found])


def proposed(trace: Trace, finding: Finding, text: str = "") -> list[Fix]:
    """What could be written instead, untried; text: of the file, if not that on disk."""
    text = text or text_of(trace, finding)
    finding = replace(finding, fixes=list(getattr(finding.fixes, "given", finding.fixes)))
    groups = [_named(trace, finding, text), *guarded(trace, finding, text)]
    return _distinct([fix for group in groups for fix in group])


def _judged(trace: Trace, finding: Finding, fix: Fix, clock: Clock) -> Fix:
    """A fix with the verdict of the whole step."""
    if not fix.edits or fix.verdict == "fails":
        return fix
    if clock.spent():
        return replace(
            fix, verdict="untried", why="trying others took all the work that is allowed"
        )
    started = work()
    judge = judge_of(trace, finding.step)
    if isinstance(judge, str):
        return replace(fix, verdict="untried", why=judge)
    found = judge.judge(fix.edits)
    clock.left -= work() - started
    return replace(
        fix,
        verdict=found.verdict,
        why=found.why,
        distortion=found.distortion,
        gradient_max=found.gradient_max,
    )


def judge_of(trace: Trace, step: int) -> Judge | str:
    """The judge of a step, which finds out its truth once; why there is none."""
    return trace._cached(f"judge {step}", lambda recording: _judge_of(recording, step))


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


def passed_otherwise(trace: Trace, finding: Finding, text: str) -> list[Fix]:
    """What the user's line could pass to the library in which the fault arose."""
    if finding.library is None or not finding.file or not finding.line:
        return []
    library, recording = finding.library, trace.recording
    span = recording.spans[recording.at(finding.position).place]
    probable = reads_probabilities(recording, finding.position)
    found = rewritings(text, finding.line, library, library[0], finding.cause, probable, span)
    return [
        _as_fix(Candidate(e.title, e.first, e.last, e.text), finding.file, text)
        for e in found[:MOST_REWRITTEN]
    ]


def patched_library(trace: Trace, finding: Finding) -> list[Fix]:
    """Patches of the library's own line; torch itself is patched by nobody."""
    library = finding.library
    if library is None or finding.cause in BEYOND_ONE_OPERATION:
        return []
    if Path(library[0]).is_relative_to(Path(torch.__file__).parent):
        return []
    if not (text := text_of_library(library)):
        return []
    rows, found = text.splitlines(), []
    for each in library_proposals(trace.recording, finding.position, text, library[1]):
        code = patch(library, "\n".join(rows[each.first - 1 : each.last]), each.text)
        if code:
            title = f"{_PATCH}{library[2]} in this process: {each.title}"
            found.append(Fix(title, code, why="it is the library's line"))
    return found[:MOST_PATCHES]


def rewritten(trace: Trace, finding: Finding, text: str) -> list[Fix]:
    """The line, or what feeds it, in a form that keeps its signal: catalogue or series."""
    if not finding.file or not finding.line:
        return []
    dtype = trace.recording.at(finding.position).dtype
    if dtype not in (torch.float16, torch.bfloat16, torch.float64):
        dtype = torch.float32
    found = candidates(text, finding.line, dtype)[:MOST_REWRITTEN]
    found += carried(trace.recording, finding.position, text, dtype)
    return [_as_fix(c, finding.file, text) for c in found]


def guarded(trace: Trace, finding: Finding, text: str) -> list[list[Fix]]:
    """The operation kept inside domain and range; the same of what makes its operands."""
    if not finding.file or not finding.line or finding.cause in BEYOND_ONE_OPERATION:
        return []
    found = []
    ways: tuple[Any, ...] = (filled,) if finding.cause in _GAPS else (proposals, at_makers)
    if is_told_elsewhere(trace.recording, finding.position, finding.op):
        ways = (partial(proposals_at, place=Place(finding.line, None)),)
    for of in ways:
        try:
            made = of(trace.recording, finding.position, text)
        except Exception as error:
            _note(trace, f"no fixes for {finding.cause} ({type(error).__name__}: {error})")
            made = []
        found.append([_as_fix(c, finding.file, text) for c in made])
    return found


_PATCH = "patch "
MOST_REWRITTEN = 12
MOST_PATCHES = 2  # of a library's line
MOST_TOLD = 3  # guards that are finite and no more, or that could not be tried
_MASKS = ("softmax-all-masked", "mask-overflow")  # what is wrong is the mask, at its own line
_GAPS = ("nan-in-input", "inf-in-input", "nan-in-target")
# Their origin is no single operation: what the rule itself proposes is all there is.
BEYOND_ONE_OPERATION = frozenset(
    "learning-rate exploding-gradient scaler-misuse absorbed-update clip-nonfinite-norm"
    " poisoned-parameter poisoned-buffer".split()
)


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


def _as_fix(candidate: Candidate, file: str, text: str) -> Fix:
    rows, edits = text.splitlines(), []
    lines = (candidate.first, candidate.last, candidate.text)
    for first, last, body in sorted((lines, *candidate.also)):
        old = "\n".join(rows[first - 1 : last])
        edits.append(Edit(file, first, last, _uncommented(body), old))
    code = "\n".join(edit.text for edit in edits)
    return Fix(candidate.title, code, edits=tuple(edits), last_resort=candidate.last_resort)


def _explained(fix: Fix) -> Fix:
    """What a rule proposes itself concerns more than the operation that failed: it says so."""
    if fix.verdict != "untried" or fix.why or fix.edits:
        return fix
    return replace(fix, why="it concerns the program, not one operation")


def _note(trace: Trace, text: str) -> None:
    if text not in trace.notes:
        trace.notes.append(text)


def text_of(trace: Trace, finding: Finding) -> str:
    """The text of the file (or cell) of a finding; its line alone where the file is not at hand."""
    return file_text(trace, finding.file) or finding.source


def file_text(trace: Trace, file: str) -> str:
    """The text of a file or cell by the name that tables show; empty if not at hand."""
    return source_text(trace.recording, file)


def _order(fix: Fix) -> int:
    """Settings before lines, and advice before wrong lines, these before untried."""
    line = bool(fix.edits)
    untried = 5 if line or fix.title.startswith(_PATCH) else 3
    return {"verified": 0 + line, "finite": 2 + 2 * line, "untried": untried, "fails": 6}[
        fix.verdict
    ]


def _rank(fix: Fix) -> tuple[int, bool, float]:
    """Verified first; gradient-stopping last; the least distorting first, but for rounding."""
    distortion = math.inf if fix.distortion is None else fix.distortion
    return (
        _order(fix),
        fix.gradient_max is None,
        distortion if distortion > ROUNDING else 0.0,
    )


# What to change where no line cures: data, state, settings, the loss scale. Not tried.

ZERO = "nan=0.0, posinf=0.0, neginf=0.0"
HEADROOM = 8.0  # below the maximum of float16: sums follow


def advice(trace: Trace, finding: Finding) -> list[Fix]:
    """What concerns more than a line of the step; empty where nothing is known."""
    recording = trace.recording
    op = recording.op(finding.position)
    match finding.cause:
        case "clip-nonfinite-norm":
            return [_WIDE_NORM]
        case "nan-in-input" | "inf-in-input":
            return [Fix(GAPS, f"x = torch.nan_to_num(x, {ZERO})")]
        case "nan-in-target":
            code = "seen = torch.isfinite(y); loss = loss_fn(pred[seen], y[seen])"
            return [Fix("the loss of those whose target is there", code)]
        case "poisoned-buffer" | "poisoned-parameter":
            return _state(recording, finding, op)
        case "dtype-underflow":
            return _raised(recording, finding)
        case "loss-scale-overflow":
            return _lower_scale(recording, finding, loss_factor(recording, finding.position))
        case "dtype-overflow" if finding.phase == "backward":
            return _lower_scale(recording, finding, None)
    if op is not None and finding.phase == "optimizer":
        return _optimizer(recording, finding, op)
    return []


GAPS = "0 in the place of what is missing, or a better guess, where the data is loaded"


def _state(recording: Recording, finding: Finding, op: Op | None) -> list[Fix]:
    """State that was bad when the watch began."""
    if op is None:
        title = (
            "load the optimizer's state of the checkpoint that the weights are of, or begin with a"
            " fresh one"
        )
        found = [Fix(title, "optimizer.state.clear()   # before the first step")]
        return found if "optimizer's state" in finding.title else []
    op = forward_of(recording, finding.position) or op
    if "batch_norm" in op.name:
        name = op.module.partition(".")[2] or "norm"  # without the name of the model's class
        code = f"model.{name}.reset_running_stats()   # then let it see data in train mode"
        title = "the running statistics as they start, to be learnt again from good data"
        return [Fix(title, code)]
    if _is_mask(recording, op):
        return [
            Fix(
                "a mask of -10000, which half precision holds, in the place of -inf",
                "with torch.no_grad():\n"
                "    for table in model.buffers():\n"
                "        table.clamp_(min=-10000)   # those that are masks",
            )
        ]
    return [
        Fix(
            "0 in the place of the bad elements; better a good checkpoint, where there is one",
            "with torch.no_grad():\n"
            "    for state in (*model.parameters(), *model.buffers()):\n"
            f"        state.nan_to_num_({ZERO})   # before the optimizer is made",
        )
    ]


def _is_mask(recording: Recording, op: Op) -> bool:
    """Whether a buffer holds nothing but 0 and -inf: as 0 it would hide nothing."""
    for position in op.inputs:
        stats = recording.stats(position)
        if stats is not None and stats.neginf and stats.neginf + stats.zero == stats.numel:
            return True
    return False


# -- optimizers


_WIDE_NORM = Fix(
    "the total norm in float64",
    "norm = torch.nn.utils.get_total_norm([p.grad.double() for p in parameters])\n"
    "torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)",
)


def _optimizer(recording: Recording, finding: Finding, op: Op) -> list[Fix]:
    """Settings of the optimizer whose arithmetic failed."""
    step, name = optimizer_step_at(recording, finding.position), op.base_name
    dtypes = [op.dtype, *(recording.at(p).dtype for p in op.inputs)]
    narrow = min((d for d in dtypes if d.is_floating_point), key=lambda d: d.itemsize)
    if name == "addcmul":
        bound = "1e2" if narrow.itemsize < 4 else "1e6"
        return [
            Fix(
                f"clip the gradients at {bound} before the step: their squares fit into the second"
                " moment",
                f"torch.nn.utils.clip_grad_value_(model.parameters(), {bound})"
                "   # before optimizer.step()",
            )
        ]
    if step is not None and step.optimizer == "RMSprop" and name == "sqrt":
        return [
            Fix(
                "centered=False: no difference is taken that can be rounded below zero",
                "torch.optim.RMSprop(parameters, lr=..., centered=False)",
            )
        ]
    if name == "linalg_vector_norm":
        return [_WIDE_NORM]
    if name == "copy" and narrow.itemsize < 4:
        return [
            Fix(
                "keep what is written to in float32",
                "teacher.float()   # whatever holds the copy; or .bfloat16(), whose range is that"
                " of float32",
            )
        ]
    return []


# -- scales


def _lower_scale(recording: Recording, finding: Finding, factor: float | None) -> list[Fix]:
    """The power of two by which the loss must come down for a result to fit its dtype, by the
    step computed in float32.

    factor: the loss scale, inf or NaN where there is one that is not known; None: there is none.
    """
    op = recording.at(finding.position)
    if op.dtype != torch.float16:
        return []
    try:
        true = tensor_at(recording, finding.position, torch.float32).abs().max()
    except NanlabError:
        return []
    rows = op.stats.numel // max(1, op.shape[-1]) if len(op.shape) > 1 else 1  # a bias sums them
    if not 0 < float(true) < math.inf:
        return []
    room = format_of(op.dtype).max / HEADROOM / max(1, rows)
    k = max(1, math.ceil(math.log2(float(true) / room)))
    if factor is not None and math.isfinite(factor) and factor * 2.0**-k < 1:
        return []  # what overflows then is not the scale's doing
    if factor is not None and 1.0 < factor < math.inf:
        size = f"a loss scale of {factor * 2.0**-k:g} instead of {factor:g}"
        code = f"scaler = torch.amp.GradScaler(init_scale={factor * 2.0**-k:g})"
    elif factor is not None:
        size = f"a loss scale {2.0**k:g} times smaller"
        code = f"loss_scale = loss_scale * {2.0**-k:g}"
    else:
        size = f"a loss {2.0**k:g} times smaller"
        code = f"(loss * {2.0**-k:g}).backward()   # a smaller loss scale, or a mean for a sum"
    return [Fix(f"{size}: this operation's result then leaves room for the sums that follow", code)]


def _raised(recording: Recording, finding: Finding) -> list[Fix]:
    """The power of two by which flushed values must be multiplied, by the exact histogram."""
    backward = finding.phase == "backward"
    op = _cast_at(recording, finding.position, finding.line, backward)
    stat = recording.stat_of(op.inputs[0]) if op is not None and op.inputs else -1
    if op is None or stat < 0 or not op.dtype.is_floating_point:
        return []
    chunk = recording.chunks[stat >> 32]
    histogram = chunk.stats.histogram(chunk.stat_row(stat))
    k = best_scale(histogram, op.dtype)
    before, after = cast_shares(histogram, op.dtype), cast_shares(histogram, op.dtype, k)
    if not before.zero or after.overflow or after.limit_overflow or after.zero >= before.zero / 10:
        return []
    title, code = _raising(k, op.dtype, backward, held_in_half(recording))
    lost = (
        f"by the histogram {before.zero:,} of {before.numel:,} values go to zero without it,"
        f" {after.zero:,} with it"
    )
    return [Fix(f"{title}: {lost}", code)]


def _raising(k: int, dtype: torch.dtype, backward: bool, by_hand: bool) -> tuple[str, str]:
    """Title and code of a factor 2**k; by_hand: a GradScaler takes no half-precision ones."""
    if not backward:
        return (
            f"multiply by 2**{k} before the cast, divide after it in float32",
            f"(x * 2.0**{k}).to({dtype})",
        )
    if not by_hand:
        return f"a loss scale of 2**{k}", f"scaler = torch.amp.GradScaler(init_scale=2.0**{k})"
    code = (
        f"(loss * 2.0**{k}).backward()\nmaster.grad = p.grad.float() / 2.0**{k}   # of float32"
        " copies, which the optimizer updates"
    )
    return f"a loss scale of 2**{k}, divided out in float32", code


def _cast_at(recording: Recording, position: int, line: int, backward: bool) -> Op | None:
    """The cast at a position; if folded away, a later one to a narrow dtype on its line."""
    op = recording.op(position)
    if op is not None:
        return op if op.name == "_to_copy" else None
    for later in recording.all_ops():
        narrow = later.dtype.is_floating_point and later.dtype.itemsize <= 2
        same = later.name == "_to_copy" and later.backward == backward and later.line == line
        if narrow and same and later.position > position:
            return later
    return None
