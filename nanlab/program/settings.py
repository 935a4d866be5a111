"""Settings that a step read as numbers: the loss scale, the optimizer's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.operators import having
from nanlab.program.rebuild import same_bits
from nanlab.program.rerun import Get, Instead, Window, rerun
from nanlab.trace.history import UNSCALE
from nanlab.trace.program import Call, Calls, EngineRun, OptimizerRun, Ref, Segment, refs_in

Tensor = torch.Tensor
Steps = dict[tuple[int, int], Instead]
_UPDATE = "_amp_update_scale_"
CLIP = "norm of the gradients"  # of all that an optimizer takes: the largest that it may have
_NEAR = 1e-6  # relative: a factor and what it is divided out by are one number, but for rounding


# -- the optimizer


class _Optimizers:
    """Optimizers of torch that step on the tensors of a replay.

    hooked: with the hooks registered for all optimizers, such as a watch's.
    """

    def __init__(self, hooked: bool = False) -> None:
        self.hooked = hooked
        self._made: dict[int, Any] = {}  # number of an optimizer -> the one that stands for it

    def step(self, run: OptimizerRun, get: Get, changed: Mapping[str, Any]) -> Any:
        """One step of the recorded optimizer with these settings in place of its own."""
        made, again = self._made.get(run.number), run.number in self._made
        if made is None:
            settings = run.groups[0].settings if run.groups else {}
            made = self._made[run.number] = _blank(run.kind, settings)
        groups = []
        for group in run.groups:
            settings = {name: _unpacked(value, get) for name, value in group.settings.items()}
            for name, value in changed.items():
                if name in settings:
                    settings[name] = _like(settings[name], value)
            parameters = [get(ref) for ref in group.parameters]
            for parameter, gradient in zip(parameters, group.gradients, strict=True):
                parameter.grad = None if gradient is None else get(gradient)
            groups.append({**settings, "params": parameters})
        if CLIP in changed:
            taken = [each for group in groups for each in group["params"]]
            torch.nn.utils.clip_grad_norm_(taken, changed[CLIP])
        if again:
            _move_state(made, groups)
        else:
            for group, found in zip(run.groups, groups, strict=True):
                for parameter, state in zip(found["params"], group.state, strict=True):
                    if state:
                        made.state[parameter] = {k: _unpacked(v, get) for k, v in state.items()}
        made.param_groups = groups
        for name, ref in run.own.items():
            setattr(made, name, get(ref))
        step = type(made).step
        with torch.set_grad_enabled(run.grad):
            (step if self.hooked else getattr(step, "__wrapped__", step))(made)
        return made


def _blank(kind: str, settings: Mapping[str, Any]) -> Any:
    """An optimizer of a class, made with what it must be given of these settings."""
    with _disable_current_modes():
        module, _, name = kind.rpartition(".")
        of_class = getattr(sys.modules[module] if module else torch.optim, name)
        required = (
            each.name
            for each in inspect.signature(of_class).parameters.values()
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        )
        given = {name: settings[name] for name in required if name in settings}
        made = of_class([torch.zeros(1, 1)], **given)
    made.state.clear()
    return made


def _move_state(made: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Assign the last step's optimizer state to the tensors of this step."""
    states = [made.state.get(p, {}) for g in made.param_groups for p in g["params"]]
    made.state.clear()
    for parameter, state in zip((p for g in groups for p in g["params"]), states, strict=True):
        if state:
            made.state[parameter] = state


def _unpacked(value: Any, get: Get) -> Any:
    if value.__class__ is tuple or value.__class__ is list:
        return value.__class__([_unpacked(item, get) for item in value])
    return get(value)


def _like(old: Any, new: Any) -> Any:
    """A setting in the optimizer's own form: some keep the learning rate as a tensor."""
    if not isinstance(old, Tensor):
        return new
    with _disable_current_modes():
        return torch.full_like(old, new)


def other_settings(where: Window, segments: Sequence[Segment], changed: Mapping[str, Any]) -> Steps:
    """What to run in place of the optimizers' calls, for changed settings. The segments are the
    window's, with other changes applied. Raises NotReplayable."""
    runs = _runs(where)
    if not runs:
        asked = " and ".join(map(_named, changed))
        verb = "are" if len(changed) > 1 else "is"
        raise NotReplayable(
            f"no optimizer of torch.optim stepped in the step, so its {asked} {verb} not known;"
            " replay one in which such an optimizer steps (step=), or leave that out"
        )
    for name in changed.keys() - {CLIP}:
        if not any(name in group.settings for _, _, run in runs for group in run.groups):
            raise NotReplayable(f"the optimizer {runs[0][2].kind} has no {_named(name)}")
    _check(where, runs)
    return _steps(_runs(replace(where, segments=[*segments])), changed)


def watched_steps(where: Window, segments: Sequence[Segment], changed: Mapping[str, Any]) -> Steps:
    """The same steps for a run under a watch, with real optimizers; none where they step
    otherwise."""
    try:
        runs = _runs(where)
        _check(where, runs)
    except NotReplayable:
        return {}
    return _steps(_runs(replace(where, segments=[*segments])), changed, hooked=True)


def _steps(
    runs: Sequence[tuple[int, int, OptimizerRun]], changed: Mapping[str, Any], hooked: bool = False
) -> Steps:
    optimizers, made = _Optimizers(hooked), Steps()
    for at, first, run in runs:

        def step(get: Get, run: OptimizerRun = run) -> None:
            optimizers.step(run, get, changed)

        made[at, first] = Instead(run.last, step)
    return made


def _named(setting: str) -> str:
    return "learning rate" if setting == "lr" else setting


def _runs(where: Window) -> list[tuple[int, int, OptimizerRun]]:
    """(segment, index, run) of each optimizer step. Raises NotReplayable if not anew."""
    found = []
    for at, segment in enumerate(where.segments):
        for run in segment.optimizers:
            if run.first < run.last and segment.calls[run.first].position < where.end:
                if segment.calls[run.first].position < where.start:
                    continue
                if run.reason:
                    raise NotReplayable(run.reason)
                found.append((at, run.first, run))
    return found


def _check(where: Window, runs: Sequence[tuple[int, int, OptimizerRun]]) -> None:
    """Raises NotReplayable unless the optimizers, unchanged, give the recorded bits."""
    segment = where.segments[-1]
    key = id(segment), where.start
    known = _CHECKED.get(key)
    if known is None or known[0] is not segment:
        known = _CHECKED[key] = segment, _difference(where, runs)
        while len(_CHECKED) > 16:
            _CHECKED.pop(next(iter(_CHECKED)))
    if known[1]:
        raise NotReplayable(known[1])


_CHECKED: dict[tuple[int, int], tuple[Segment, str]] = {}


def _difference(where: Window, runs: Sequence[tuple[int, int, OptimizerRun]]) -> str:
    """Why the optimizers do not step as they did; "" where they do."""
    refs = {r for _, _, run in runs for g in run.groups for r in refs_in(g.parameters)}
    try:
        as_it_was = rerun(where.segments)
        expected = {ref: as_it_was.tensor(ref).clone() for ref in refs}
        anew = rerun(where.segments, instead=_steps(runs, {}))
        for ref, value in expected.items():
            if not same_bits(anew.tensor(ref), value):
                name = where.recording.program.names.get(ref.storage, "a parameter")
                return (
                    f"its optimizer does more than {runs[-1][2].kind}: {name} moves"
                    " otherwise when only that steps"
                )
    except NotReplayable as error:
        return str(error)
    except Exception as error:
        return f"its optimizer cannot step again ({type(error).__name__}: {error})"
    return ""


# -- the loss scale


def other_scale(where: Window, scale: float) -> tuple[list[Segment], Steps]:
    """The segments at another loss scale, and the steps of an optimizer that a GradScaler may skip.

    Raises NotReplayable where no loss scale is seen.
    """
    segments = list(where.segments)
    scales = _scaler_tensors(where)
    if scales:
        for number in scales:
            _set_number(segments, number, scale)
        return segments, _skipped(where)
    return _by_hand(where, segments, scale), {}


def _calls(where: Window, segments: Sequence[Segment]) -> list[tuple[int, int, Call]]:
    return [
        (at, index, call)
        for at, segment in enumerate(segments)
        for index, call in enumerate(segment.calls)
        if where.start <= call.position < where.end
    ]


def _name(call: Call) -> str:
    return getattr(call.func, "_opname", "")


def _scaler_tensors(where: Window) -> set[int]:
    """Storages of the scales that a GradScaler multiplied losses by."""
    found = {c.args[0].storage for _, _, c in _calls(where, where.segments) if _name(c) == _UPDATE}
    for loss in where.recording.history.losses:
        if not (loss.scaled and where.start <= loss.position <= where.end):
            continue
        at, index, _ = where.find(loss.root)
        call = where.segments[at].calls[index]
        found |= {r.storage for r in refs_in(call.args[1:]) if r.size in ((), (1,))}
    return found


def _set_number(segments: list[Segment], number: int, value: float) -> None:
    """Replace the initial value of a storage that holds a single number."""
    for at, segment in enumerate(segments):
        ref = next(
            (r for c in segment.calls for r in refs_in((c.args, c.out)) if r[0] == number), 0
        )
        if not isinstance(ref, Ref):
            continue
        if number in segment.leaves:
            flat = torch.full((1,), value, dtype=ref.dtype, device=segment.leaves[number].device)
            if flat.untyped_storage().nbytes() != segment.leaves[number].nbytes():
                raise NotReplayable("the loss scale is one of several numbers in a tensor")
            saved = {**segment.saved, number: flat.untyped_storage()}
            segments[at] = replace(segment, saved=saved)
            return
        for index, call in enumerate(segment.calls):
            if any(r.storage == number for r in refs_in(call.out)):
                if _name(call) not in having("constant", in_place=True):
                    break
                args = tuple(value if isinstance(a, int | float) else a for a in call.args)
                segments[at] = _with_calls(segment, {index: call._replace(args=args)})
                return
        break
    raise NotReplayable("the loss scale is computed by the step itself")


def _with_calls(segment: Segment, new: Mapping[int, Call]) -> Segment:
    return replace(segment, calls=Calls(new.get(i, call) for i, call in enumerate(segment.calls)))


def joined(steps: Steps, skipped: Steps) -> Steps:
    """Optimizer steps with other settings, left out where the scaler skips them."""
    found = {**skipped, **steps}
    for key in steps.keys() & skipped.keys():

        def step(get: Get, step: Instead = steps[key], skip: Instead = skipped[key]) -> None:
            if not skip.when(get):
                step.run(get)

        found[key] = Instead(steps[key].last, step)
    return found


def _skipped(where: Window) -> Steps:
    """Steps of an optimizer that are left out where the gradients at another scale overflow."""
    made = Steps()
    for at, segment in enumerate(where.segments):
        for run in segment.optimizers:
            checks = [c for c in segment.calls[: run.first] if _name(c) == UNSCALE]
            if not checks or run.first == run.last:
                continue

            def is_bad(get: Get, found: Any = checks[-1].args[1]) -> bool:
                return bool(get(found).item())

            made[at, run.first] = Instead(run.last, lambda get: None, is_bad)
    return made


def scaler_scale(where: Window) -> float | None:
    """The loss scale that the step began with, where it is a GradScaler's."""
    return current_scale(where) if _scaler_tensors(where) else None


def current_scale(where: Window) -> float | None:
    """The loss scale that the step began with; None where it has none."""
    for number in sorted(_scaler_tensors(where)):
        for segment in where.segments:
            if number in segment.leaves:
                storage = segment.saved.get(number, segment.leaves[number])
                flat = torch.empty(0, dtype=torch.float32, device=storage.device)
                return float(flat.set_(storage, 0, (1,), (1,)).item())
            made = [c for c in segment.calls if any(r[0] == number for r in refs_in(c.out))]
            numbers = [a for a in made[0].args if isinstance(a, int | float)] if made else []
            if numbers:
                return float(numbers[-1])
    return next((factor for _, _, _, factor in _multiplied(where, where.segments)), None)


def _multiplied(
    where: Window, segments: Sequence[Segment]
) -> list[tuple[int, EngineRun, int, float]]:
    """(segment, engine run, index, factor) of each loss times a number before backward."""
    found = []
    for at, segment in enumerate(segments):
        for run in segment.engine:
            if not run.accumulates or run.nested or run.first >= len(segment.calls):
                continue
            if not where.start <= segment.calls[run.first].position < where.end:
                continue
            root = _out(next(iter(refs_in(run.roots)), None))
            made = [i for i, c in enumerate(segment.calls[: run.first]) if c.out == root]
            factor = _factor(segment.calls[made[-1]]) if made else None
            if factor is not None:
                found.append((at, run, made[-1], factor))
    return found


def _by_hand(where: Window, segments: list[Segment], scale: float) -> list[Segment]:
    """The segments with another factor on the loss in place of the program's own."""
    calls = _calls(where, segments)
    changed: dict[int, dict[int, Call]] = {at: {} for at in range(len(segments))}
    for at, run, index, factor in _multiplied(where, segments):
        call, times = segments[at].calls[index], scale / factor
        changed[at][index] = _scaled(call, times)
        node = _node(where, call)
        for i in range(run.first, run.last):
            each = segments[at].calls[i]
            if node >= 0 and _node(where, each) == node and _factor(each) is not None:
                changed[at][i] = _scaled(each, times)
        undone = _undoing(calls, at, run, factor)
        if not undone:
            raise NotReplayable(
                f"the loss is multiplied by {factor:g}, and nanlab does not see where the gradients"
                " are divided by it again"
            )
        for where_it_is, i in undone:
            changed[where_it_is][i] = _scaled(segments[where_it_is].calls[i], 1 / times)
    if not any(changed.values()):
        raise NotReplayable(
            "the loss of the step has no scale: neither a GradScaler nor the line of the loss"
            " multiplies it; leave loss_scale out, or replay a step with one (step=)"
        )
    return [_with_calls(s, changed[at]) if changed[at] else s for at, s in enumerate(segments)]


def _out(ref: Ref | None) -> Any:
    return None if ref is None else Ref((*ref[:5], None, ref[6]))


def _node(where: Window, call: Call) -> int:
    return where.recording.at(call.position).node


def _factor(call: Call) -> float | None:
    """The Python number that a call multiplies by."""
    name = _name(call).removeprefix("_foreach_").rstrip("_")
    if name not in ("mul", "div") or len(call.args) < 2 or isinstance(call.args[1], bool):
        return None
    number = call.args[1]
    if not isinstance(number, int | float) or not number:
        return None
    return float(number) if name == "mul" else 1 / number


def _scaled(call: Call, times: float) -> Call:
    """The same call with its factor multiplied."""
    factor = _factor(call)
    assert factor is not None
    new = factor * times
    dividing = _name(call).removeprefix("_foreach_").rstrip("_") == "div"
    return call._replace(args=(call.args[0], 1 / new if dividing else new, *call.args[2:]))


def _undoing(
    calls: Sequence[tuple[int, int, Call]], segment: int, run: EngineRun, factor: float
) -> list[tuple[int, int]]:
    """The calls after a run of the engine that divide its gradients by a factor."""
    gradients = {r.storage for r in refs_in(tuple(run.after.values()))}
    found = []
    for at, index, call in calls:
        if (at, index) < (segment, run.last):
            continue
        inverse = _factor(call)
        if inverse is None or abs(inverse * factor - 1) > _NEAR:
            continue
        if any(ref.storage in gradients for ref in refs_in(call.args)):
            found.append((at, index))
    return found


def with_references(value: Any, change: Callable[[Any], Any]) -> Any:
    """A record of what ran, or a part of one, with each reference changed."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: with_references(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **parts)
    if value.__class__ is dict:
        return {with_references(k, change): with_references(v, change) for k, v in value.items()}
    if value.__class__ is tuple or value.__class__ is list:
        return value.__class__([with_references(each, change) for each in value])
    return change(value)
