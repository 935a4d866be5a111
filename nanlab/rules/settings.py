"""Settings outside of the step as fixes: the loss scale, an optimizer's epsilon.

Each is tried on the whole failing step, which is run again with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from nanlab.analysis.rewriting.guards import number
from nanlab.errors import NanlabError
from nanlab.formats import format_of
from nanlab.program.replay import Replay, replay_step
from nanlab.program.rerun import rerun
from nanlab.program.settings import current_scale
from nanlab.program.window import Window, window
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace
from nanlab.trace.program import refs_in

WITHIN = 0.01  # how far gradients and updates may be from those of the step in float32
SCALES = (2, 6, 10, 14)  # the loss scale is tried at this many halvings
EPSILONS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


def tried_settings(trace: Trace, finding: Finding) -> list[Fix]:
    """Another setting for the cause of a finding, with what became of the step: the first that is
    right, else one that is finite."""
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
        yield _fix(f"a loss scale of {lower:g}", code, again, again.gradients, wide)


def _larger_epsilon(trace: Trace, step: int) -> Iterator[Fix]:
    """An eps that the narrowest of parameters and state holds as a normal number."""
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
        code = f"torch.optim.{kind}(parameters, lr=..., eps={shown})   # or float32 master weights"
        title = f"an optimizer eps of {shown}, which {format_of(narrow).name} holds"
        try:
            again = replay_step(trace.recording, step=step, settings={"eps": epsilon})
            wide = replay_step(trace.recording, step=step, dtype=torch.float32)
        except NanlabError as error:
            yield Fix(title, code, why=str(error))
            return
        yield _fix(title, code, again, again.parameters, wide, _before(where))


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
}


def _fix(
    title: str,
    code: str,
    again: Replay,
    now: Mapping[str, Any],
    wide: Replay,
    before: Mapping[str, Any] | None = None,
) -> Fix:
    """A setting with its verdict: gradients, or updates of the parameters ``before``, held against
    those of the same step in float32."""
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
