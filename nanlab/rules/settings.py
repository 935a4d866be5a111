"""Another loss scale, eps or learning rate, tried on the step."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from nanlab.analysis.libraries import with_keyword
from nanlab.analysis.training import first_thrown, runaway, stable_rate
from nanlab.errors import NanlabError, NotReplayable
from nanlab.findings.fault import plural
from nanlab.findings.rule import Edit, Finding, Fix
from nanlab.fixes.guards import number
from nanlab.formats import format_of
from nanlab.program.expression import nodes_of, parsed
from nanlab.program.readings import text_of
from nanlab.program.replay import RateTrial, Replay, replay_step, try_rate
from nanlab.program.rerun import Window, rerun, window
from nanlab.program.settings import CLIP, current_scale
from nanlab.topics.optimizer import smaller_eps
from nanlab.topics.training import CLEARED, overflowed, smaller_rate
from nanlab.trace import Trace
from nanlab.trace.history import OptimizerStep
from nanlab.trace.program import OptimizerRun, refs_in
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
    return sorted(near, key=lambda fix: fix.distortion or 0.0)[:1]


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
        fix = _setting_fix(f"a loss scale of {lower:g}", code, again, again.gradients, wide)
        yield replace(fix, settings=(("loss_scale", lower),))


def _larger_epsilon(trace: Trace, step: int) -> Iterator[Fix]:
    """An eps that the narrowest of parameters and state holds as a normal number; none where the
    arithmetic overflowed, which no eps changes: a second moment of inf makes updates of 0."""
    culprit, steps = trace.culprit, trace.recording.training.optimizer_steps
    of_eps = culprit is not None and culprit.cause == "optimizer-eps-underflow"
    if culprit is not None and of_eps and culprit.symptom == "silent-underflow":
        if (smaller := smaller_eps(trace)) is not None:
            yield _smaller_epsilon(trace, culprit, steps[0].optimizer, smaller)
        return
    if culprit is not None and overflowed(trace.recording, culprit.position):
        return
    where = window(trace.recording, step)
    runs = _optimizers(where)
    held = [
        ref.dtype
        for run in runs
        for group in run.groups
        for ref in refs_in((group.parameters, tuple(tuple(s.values()) for s in group.state)))
        if ref.dtype.is_floating_point
    ]
    narrow = min(held, key=lambda d: -torch.finfo(d).tiny, default=torch.float32)
    name, held_now = _epsilon_of(runs)
    if not name:
        return
    inside = [s for s in steps if where.start <= s.position < where.end]
    inside.sort(key=lambda s: (not _made_by(culprit, s), name not in dict(s.settings)))
    if not inside and not runs:
        return  # the program computes its updates itself
    kind = inside[0].optimizer if inside else "Adam"
    unknown = inside and not any(run.groups for run in runs)
    if unknown and name not in dict(inside[0].settings):
        return
    if culprit is not None and not _takes(text_of(trace.recording, culprit.file), kind, name):
        return
    for epsilon in (e for e in EPSILONS if e > torch.finfo(narrow).tiny):
        shown = number(epsilon)
        title = f"an optimizer eps of {shown}, which {format_of(narrow).name} holds"
        value: Any = epsilon
        if isinstance(held_now, tuple):  # one for each of its divisions
            value = tuple(max(epsilon, each) for each in held_now)
            shown = f"({', '.join(map(number, value))})"
        edit = _where_made(trace, culprit, kind, name, shown)
        made = f"torch.optim.{kind}" if hasattr(torch.optim, kind) else kind
        code = f"{made}(parameters, lr=..., {name}={shown})   # or float32 master weights"
        code = edit.text if edit is not None else code
        try:
            again = replay_step(trace.recording, step=step, settings={name: value})
            wide = replay_step(trace.recording, step=step, dtype=torch.float32)
        except NanlabError as error:
            yield Fix(title, code, why=str(error))
            return
        fix = _setting_fix(title, code, again, again.parameters, wide, _before(where))
        yield replace(fix, edits=() if edit is None else (edit,), settings=((name, value),))


def _smaller_epsilon(trace: Trace, culprit: Finding, kind: str, value: float) -> Fix:
    """An eps below the gradients, where it keeps the parameters still."""
    title = "let eps be smaller than the gradients"
    edit = _where_made(trace, culprit, kind, "eps", number(value))
    code, edits = (f"eps={number(value)}", ()) if edit is None else (edit.text, (edit,))
    return Fix(title, code, edits=edits, settings=(("eps", value),))


def _made_by(culprit: Finding | None, step: OptimizerStep) -> bool:
    return culprit is not None and step.position <= culprit.position < step.end


def _optimizers(where: Window) -> list[OptimizerRun]:
    return [run for segment in where.segments for run in segment.optimizers]


def _epsilon_of(runs: Sequence[OptimizerRun]) -> tuple[str, float | tuple[float, ...]]:
    """Name and value of the optimizers' eps, a number or several; no name where they have none."""
    for run in runs:
        for name, value in run.groups[0].settings.items() if run.groups else ():
            numbers = value if isinstance(value, tuple) else (value,)
            if name.startswith("eps") and all(type(each) in (int, float) for each in numbers):
                return name, value
    return "" if any(run.groups for run in runs) else "eps", 0.0


def _takes(text: str, kind: str, setting: str) -> bool:
    """Whether a class takes an argument; True where a file does not say."""
    try:
        nodes = nodes_of(parsed(text))
    except (SyntaxError, ValueError):
        return True
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for made in node.body:
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    given = made.args
                    names = {each.arg for each in (*given.args, *given.kwonlyargs)}
                    return setting in names or given.kwarg is not None
    return True


def _where_made(
    trace: Trace, finding: Finding | None, kind: str, setting: str, value: str
) -> Edit | None:
    """The line that makes the one optimizer of a class, with another setting; None where the
    file of a finding makes none, or several."""
    text = text_of(trace.recording, finding.file) if finding is not None else ""
    made = None if not text else with_keyword(text, kind, setting, value)
    if finding is None or made is None:
        return None
    old = "\n".join(text.splitlines()[made.first - 1 : made.last])
    return Edit(finding.file, made.first, made.last, made.text, old)


def _clipped_gradients(trace: Trace, step: int) -> Iterator[Fix]:
    """Gradients of a norm of 1, for an update rule that is defined for small ones alone."""
    finding = trace.culprit
    try:
        body = parsed(finding.source).body if finding is not None else []
    except SyntaxError:  # part of a statement
        return
    match body:
        case [ast.Expr(value=ast.Call(func=ast.Attribute(value=path, attr="step"))) as called]:
            made, source = ast.unparse(path), ast.unparse(called)
        case _:
            return
    assert finding is not None
    clip = (
        "torch.nn.utils.clip_grad_norm_("
        f'[p for group in {made}.param_groups for p in group["params"]], 1.0)'
    )
    text = text_of(trace.recording, finding.file)
    old = next(iter(text.splitlines()[finding.line - 1 : finding.line]), "")
    edit = Edit(finding.file, finding.line, finding.line, f"{clip}\n{source}", old)
    again = replay_step(trace.recording, step=step, settings={CLIP: 1.0})
    if again.finite and source in old:
        title, why = "clip the gradients to a norm of 1", "its updates are smaller ones"
        yield Fix(title, edit.text, "finite", why, (edit,), settings=((CLIP, 1.0),))


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
        thrown = first_thrown(recording, position)
        if thrown < position and recording.step_of(thrown) < first:
            raise NotReplayable("the weights were thrown before the first step that is kept")
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
    title = "use a smaller learning rate"
    if away is not None:
        title = smaller_rate(recording, away, used).title
    why = (
        f"tried on {plural(last - first, 'step')}: the loss of the batch of step"
        f" {first + recording.first_step} falls from {trial.before:.3g} to {trial.after:.3g}"
    )
    held, since = (("lr", 10.0**power),), first + recording.first_step
    yield Fix(title, f"lr={10.0**power:g}", "finite", why, settings=held, since=since)


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
    "optimizer-arithmetic": lambda *of: chain(_larger_epsilon(*of), _clipped_gradients(*of)),
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
