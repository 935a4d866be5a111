"""Advice where no line can be fixed: data, state, settings, the loss scale. Untried."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace

import torch

from nanlab.analysis.precision import best_scale, cast_shares
from nanlab.analysis.training import optimizer_step_at
from nanlab.errors import NanlabError
from nanlab.findings.rule import Finding, Fix
from nanlab.fixes.guards import FILL, FILLED, PRESENT
from nanlab.fixes.proposals import forward_of
from nanlab.formats import format_of
from nanlab.program.replay import tensor_at
from nanlab.topics.scaler import held_in_half, loss_factor
from nanlab.trace import Trace
from nanlab.trace.op import Op
from nanlab.trace.recording import Recording

HEADROOM = 8.0  # below the maximum of float16: sums follow


def advised(trace: Trace, finding: Finding) -> list[Fix]:
    """Untried fixes that reach beyond a line of the step; [] where none is known."""
    recording = trace.recording
    op = recording.op(finding.position)
    match finding.cause:
        case "clip-nonfinite-norm":
            return [_WIDE_NORM]
        case "nan-in-input" | "inf-in-input":
            return [Fix(FILL, f"x = torch.nan_to_num(x, {FILLED})")]
        case "nan-in-target":
            code = "seen = torch.isfinite(y); loss = loss_fn(pred[seen], y[seen])"
            return [Fix(PRESENT, code)]
        case "poisoned-buffer" | "poisoned-parameter":
            return _state(recording, finding, op)
        case "poisoned-gradient":
            return [_CLEARED]
        case "dtype-underflow":
            return _raised(recording, finding)
        case "loss-scale-overflow":
            return _lower_scale(recording, finding, loss_factor(recording, finding.position))
        case "norm-at-zero" if op is not None and op.base_name == "_weight_norm_interface":
            return [_magnitude(op)]
        case "dtype-overflow" if finding.phase == "backward":
            return _lower_scale(recording, finding, None)
    if op is not None and finding.phase == "optimizer":
        return _optimizer(recording, finding, op)
    return []


_CLEARED = Fix("clear the gradients before this pass", "optimizer.zero_grad()")


def _state(recording: Recording, finding: Finding, op: Op | None) -> list[Fix]:
    """How to repair state that was bad when the watch began."""
    if "optimizer's state" in finding.title:
        title = (
            "load the optimizer's state from the checkpoint of these weights, or start with an"
            " empty one"
        )
        return [Fix(title, "optimizer.state.clear()   # before the first step")]
    if op is None:
        return []
    op = forward_of(recording, finding.position) or op
    if "batch_norm" in op.name:
        name = op.module.partition(".")[2] or "norm"  # without the name of the model's class
        code = f"model.{name}.reset_running_stats()   # then let it see data in train mode"
        title = "reset the running statistics, and learn them again from good data"
        return [Fix(title, code)]
    if _is_mask(recording, op):
        return [
            Fix(
                "use -10000 in the mask instead of -inf: half precision can hold it",
                "with torch.no_grad():\n"
                "    for table in model.buffers():\n"
                "        table.clamp_(min=-10000)   # those that are masks",
            )
        ]
    return [
        Fix(
            "load a good checkpoint; without one, set the bad elements to 0",
            "with torch.no_grad():\n"
            "    for state in (*model.parameters(), *model.buffers()):\n"
            f"        state.nan_to_num_({FILLED})   # before the optimizer is made",
        )
    ]


def _magnitude(op: Op) -> Fix:
    """How a weight under weight_norm begins at 0: with a direction."""
    held = "parametrizations.weight.original0" if "parametrizations" in op.module else "weight_g"
    code = f"nn.init.zeros_(layer.{held})   # after weight_norm(layer)"
    return Fix("leave the direction random, and set the magnitude to 0", code)


def _is_mask(recording: Recording, op: Op) -> bool:
    """Whether a buffer holds only 0 and -inf; zeros alone would mask nothing."""
    for position in op.inputs:
        stats = recording.stats(position)
        if stats is not None and stats.neginf and stats.neginf + stats.zero == stats.numel:
            return True
    return False


# -- optimizers


_WIDE_NORM = Fix(
    "compute the total norm in float64",
    "grads = [p.grad.double() for p in parameters if p.grad is not None]\n"
    "norm = torch.nn.utils.get_total_norm(grads)\n"
    "torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)",
)


def with_arguments(fix: Fix, source: str) -> Fix:
    """Advice on a call that clips gradients, with the arguments that a line of code gives it, or
    the usual ones.
    """
    try:
        calls = [n for n in ast.walk(ast.parse(source.strip())) if isinstance(n, ast.Call)]
    except SyntaxError:  # of several lines
        calls = []
    if fix.edits or "clip_grad" not in fix.code:
        return fix
    given = {"parameters": "model.parameters()", "max_norm": "1.0"}
    call = next((c for c in calls if ast.unparse(c.func).endswith("clip_grad_norm_")), None)
    if call is not None:
        given |= dict(zip([*given], map(ast.unparse, call.args), strict=False))
        given |= {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg in given}
    code = re.sub(r"\b(parameters|max_norm)\b(?!\()", lambda m: given[m[0]], fix.code)
    return replace(fix, code=code)


def _optimizer(recording: Recording, finding: Finding, op: Op) -> list[Fix]:
    """Settings of the optimizer whose arithmetic failed."""
    step, name = optimizer_step_at(recording, finding.position), op.base_name
    dtypes = [op.dtype, *(recording.at(p).dtype for p in op.inputs)]
    narrow = min((d for d in dtypes if d.is_floating_point), key=lambda d: d.itemsize)
    if name == "addcmul":
        bound = "1e2" if narrow.itemsize < 4 else "1e6"
        return [
            Fix(
                f"clip the gradients at {bound} before the step, so that their squares fit the"
                " second moment",
                f"torch.nn.utils.clip_grad_value_(model.parameters(), {bound})"
                "   # before optimizer.step()",
            )
        ]
    if step is not None and step.optimizer == "RMSprop" and name == "sqrt":
        return [
            Fix(
                "use centered=False, which takes no difference that rounding can make negative",
                "torch.optim.RMSprop(parameters, lr=..., centered=False)",
            )
        ]
    if name == "linalg_vector_norm":
        return [_WIDE_NORM]
    if name == "copy" and narrow.itemsize < 4:
        return [
            Fix(
                "keep the copy in float32",
                "teacher.float()   # the module with the copy; or .bfloat16(), which has the range"
                " of float32",
            )
        ]
    return []


# -- scales


def _lower_scale(recording: Recording, finding: Finding, factor: float | None) -> list[Fix]:
    """The power of two to divide the loss by so that a result fits its dtype, from the step in
    float32.

    factor: the loss scale, inf or NaN if unknown, None without one.
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
        return []  # the scale is not to blame
    if factor is not None and 1.0 < factor < math.inf:
        size = f"a loss scale of {factor * 2.0**-k:g} instead of {factor:g}"
        code = f"scaler = torch.amp.GradScaler(init_scale={factor * 2.0**-k:g})"
    elif factor is not None:
        size = f"a loss scale {2.0**k:g} times smaller"
        code = f"loss_scale = loss_scale * {2.0**-k:g}"
    else:
        size = f"a loss {2.0**k:g} times smaller"
        code = f"(loss * {2.0**-k:g}).backward()   # a smaller loss scale, or a mean for a sum"
    return [Fix(f"{size}: the result then leaves room for the sums that follow", code)]


def _raised(recording: Recording, finding: Finding) -> list[Fix]:
    """The power of two to multiply flushed values by, from the exact histogram."""
    backward = finding.phase == "backward"
    op = _cast_at(recording, finding.position, finding.line, backward)
    histogram = recording.exponents(op.inputs[0]) if op is not None and op.inputs else None
    if op is None or histogram is None or not op.dtype.is_floating_point:
        return []
    k = best_scale(histogram, op.dtype)
    before, after = cast_shares(histogram, op.dtype), cast_shares(histogram, op.dtype, k)
    if not before.zero or after.overflow or after.limit_overflow or after.zero >= before.zero / 10:
        return []
    title, code = _raising(k, op.dtype, backward, held_in_half(recording))
    lost = (
        f"by the histogram it flushes {after.zero:,} of {before.numel:,} values instead of"
        f" {before.zero:,}"
    )
    return [Fix(f"{title}: {lost}", code)]


def _raising(k: int, dtype: torch.dtype, backward: bool, by_hand: bool) -> tuple[str, str]:
    """Title and code of a factor 2**k; by_hand: without a GradScaler, for half precision."""
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
