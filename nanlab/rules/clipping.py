"""Gradient clipping that spreads one bad gradient to all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nanlab.analysis.provenance import Origin
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace
from nanlab.trace.frames import parameter_columns
from nanlab.trace.recording import DTYPE, OP, OPTIMIZER, PHASE

_NORMS = frozenset("_foreach_norm linalg_vector_norm norm sum dot _foreach_mul_ mul_".split())


def infinite_norm(trace: Trace, origin: Origin, finding: Finding) -> Finding | None:
    """The norm of finite gradients overflowed, and dividing by it made every gradient zero or NaN."""
    recording = trace.recording
    row = recording.row(origin.position) if origin.position >= 0 else None
    if row is None or origin.sink.kind != "gradient" or row[PHASE] != OPTIMIZER or origin.kind != "operation":
        return None
    op = recording.ops.items[row[OP]]
    if op not in _NORMS:
        return None
    dtype = str(recording.dtypes.items[row[DTYPE]]).removeprefix("torch.")
    return replace(
        finding,
        cause="clip-nonfinite-norm",
        title=f"the norm of finite gradients overflows {dtype}; clipping by it destroys every gradient",
        explanation="Each gradient is finite, but the total norm is inf, so the clipping factor max_norm / inf is 0: every gradient becomes zero and nothing is learned.",
        fixes=[
            Fix(
                "stop instead of clipping by a norm that is not finite",
                "clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)",
            )
        ],
    )


def spread_by_clipping(trace: Trace) -> Iterator[Finding]:
    """Clipping by a norm that is not finite multiplied every gradient by NaN or 0; one of them was bad before."""
    recording = trace.recording
    columns = parameter_columns(recording)
    if not len(columns["position"]):
        return
    before = columns["gradient_nan"] + columns["gradient_inf"]
    after = columns["used_nan"] + columns["used_inf"]
    spoiled = (before == 0) & (after > 0) & columns["used_known"] & columns["gradient_known"]
    if not spoiled.any():
        return
    steps = np.searchsorted(recording.starts, columns["position"], side="right") - 1
    step = int(steps[spoiled].min())
    guilty = np.unique(columns["owner"][(steps == step) & (before > 0)])
    if not len(guilty):
        return
    names = [recording.parameter_names[o] for o in guilty.tolist()]
    victims = int((spoiled & (steps == step)).sum())
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    yield Finding(
        cause="clip-nonfinite-norm",
        severity="warning",
        title=f"clipping spread the bad gradient of {shown} to {victims} other parameters",
        explanation="clip_grad_norm_ multiplies every gradient by max_norm / norm; a norm that is NaN or inf spoils them all. Only the gradients named here were bad before.",
        phase="optimizer",
        op="_foreach_mul_",
        node=None,
        module="",
        step=step,
        file="",
        line=0,
        source="",
        symptom="grad-nan",
        fixes=[Fix("refuse to clip by such a norm", "clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)")],
    )
