"""Learning rates that are no rates: not finite, or negative."""

from __future__ import annotations

import math
from dataclasses import replace

from nanlab.analysis.training import finite_at_rate, last_finite_rate
from nanlab.history import OptimizerStep
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Finding, Fix

# Their updates do not depend on the size of the gradients, which clipping changes.
SCALE_FREE = frozenset(
    "Adam AdamW NAdam RAdam Adamax Adagrad Adafactor RMSprop Rprop Adadelta".split()
)
NOT_NEGATIVE = Fix(
    "a rate of at least 0: below it each step climbs, and a schedule that runs past its end gets"
    " there",
    'group["lr"] = max(rate, 0.0)',
)


def _last_rate(fault: Fault) -> list[Fix]:
    """The last good rate, where the update is finite with it."""
    rate = last_finite_rate(fault.recording, fault.position)
    if rate is None or not finite_at_rate(fault.recording, fault.position, rate):
        return []
    code = (
        'if not math.isfinite(group["lr"]):\n    group["lr"] = last  # the last rate that was a'
        " number"
    )
    return [
        Fix(
            f"keep the last rate, {rate:.3g}, where the schedule gives no number",
            code,
            verdict="verified",
        )
    ]


def bad_rate(fault: Fault, step: OptimizerStep | None, explanation: str) -> Finding:
    """The finding of a rate that is no finite number."""
    rate = (
        next((r for r in step.rates if r is None or not math.isfinite(r)), None) if step else None
    )
    shown = "not a real number" if rate is None else f"{rate:g}"
    return replace(
        fault.finding,
        cause="learning-rate",
        title=f"the learning rate is {shown}",
        explanation=(
            f"{explanation} Here the schedule gave the bad value, and the update spread it to every"
            " parameter; loss and gradients were finite."
        ),
        phase="optimizer",
        fixes=[
            *_last_rate(fault),
            Fix(
                "guard the schedule against a length of zero, a step of zero and steps past"
                " its end",
                "progress = min(step, total) / max(total, 1)",
            ),
        ],
    )
