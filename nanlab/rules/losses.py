"""Empty means and losses, and targets to which the model gives no probability."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nanlab.analysis.provenance import LARGEST
from nanlab.findings.fault import Fault, match, plural
from nanlab.findings.rule import Match, rule
from nanlab.operators import base_name, having
from nanlab.trace.op import CARRIED, OPTIMIZER, location

_SPREADS = having("deviation")
_LOSSES = having("likelihood")
_CHOOSE = having("extreme", "bounds", "softmax", "log_sum")
_PICKS = having("picks") - {"slice"} | {"kl_div"}
_LOGARITHMS = having("log_like")


@rule(
    example="""
        x = torch.randn(5, requires_grad=True)
        loss = x[x > 100].mean()  # here
        loss.backward()
    """,
    fix={
        "loss = x[x > 100].mean()": "chosen = x[x > 100]\n"
        "loss = chosen.sum() / max(chosen.numel(), 1)"
    },
    family="composite",
)
def empty_reduction(fault: Fault) -> Match | None:
    """A mean over no elements is 0/0, as is the unbiased variance of one sample, or a loss that
    ignores every target; the maximum of a row that a mask hides altogether is -inf.

    Skip the batch, or divide the sum by max(count, 1).
    """
    if fault.name in LARGEST and fault.row.status == CARRIED:
        return match(fault, f"{fault.name} over nothing but what a mask hides is infinite")
    first = fault.operands[0] if fault.operands else None
    if first is None:
        return None
    if fault.name in _LOSSES:
        return _nothing_counted(fault)
    if fault.name in _SPREADS and first.numel():
        size = first.numel() // max(1, fault.numel)
        title = f"{fault.forward} of {plural(size, 'sample')} divides by {size} - 1 = {size - 1}"
        return match(fault, title, x=first) if size <= 1 else None
    if fault.name == "segment_reduce":
        return match(
            fault,
            f"segment_reduce of a segment without elements: {plural(fault.count, 'element')} not"
            " finite",
        )
    if any(o.numel() == 0 for o in fault.operands):
        return match(fault, f"{fault.name} of an empty tensor of shape {tuple(first.shape)} is NaN")
    if fault.name == "div" and not fault.backward and _averages(fault):
        below = fault.at(fault.argument(1))
        if below is not None and len(below) and bool((below == 0).all()):
            return match(
                fault,
                "0/0: every element is ignored",
                numerator=fault.argument(0),
                count=fault.argument(1),
            )
    return None


def _averages(fault: Fault) -> bool:
    """Whether a quotient is a mean within torch, of a loss or nanmean."""
    row = fault.operand_row(0)
    if fault.op_at(row) not in ("sum", "nansum"):
        return False
    one = fault.numel_at(row) == 1
    return fault.calls("nanmean") or (one and fault.calls("cross_entropy", "nll_loss", "criterion"))


def _nothing_counted(fault: Fault) -> Match | None:
    target, ignored = fault.argument(1), fault.argument(4)
    if fault.kept is None or not isinstance(target, Tensor):
        return None
    totals = [o for o in fault.kept.outputs[1:] if isinstance(o, Tensor)]
    left = int((target != ignored).sum())
    if left and not (totals and bool((totals[0] == 0).all())):
        return None
    if not left:
        why = f"all {target.numel():,} targets are ignored (ignore_index={ignored})"
    else:
        why = "the class weights of all targets are 0"
    return match(fault, f"the loss is 0/0: {why}")


@rule(
    example="""
        logits = torch.tensor([[1.0, 2.0, -float("inf")]])
        w = torch.ones(1, requires_grad=True)
        F.cross_entropy(logits * w, torch.tensor([2])).backward()  # here
    """,
    fix={'float("inf")': "1e4"},
    family="composite",
)
def infeasible_likelihood(fault: Fault) -> Match | None:
    """The model gives the target a probability of 0, so the loss is infinite.

    The CTC input is shorter than its target, the value lies outside a distribution's support, or a
    mask forbids the target class. Drop such samples, or make masks and targets agree.
    """
    if fault.kind == "intended":
        return _forbidden_target(fault)
    if "ctc_loss" in fault.forward:
        count = int(torch.isinf(fault.result).sum()) if fault.result is not None else 0
        return match(
            fault,
            f"CTC: {plural(count, 'target')} cannot be aligned with so few input frames;"
            " the loss is inf",
        )
    if fault.calls("log_prob", "kl_divergence") and _of_value(fault):
        found = match(fault, "", observed=fault.argument(_of_observed(fault)))
        samples = len(found.samples)
        told = f"{plural(samples, 'sample')} of {fault.batch:,}" if samples else fault.elements
        title = f"log_prob gives {told} a density of 0: outside of the support, or at its edge"
        return replace(found, title=title)
    return None


def _of_observed(fault: Fault) -> int:
    """Which argument of a logarithm it is taken of."""
    return 1 if "xlog" in fault.forward else 0


def _of_value(fault: Fault) -> bool:
    """Whether ``log_prob`` took the logarithm of an observed value, not of a model output."""
    if fault.backward or fault.forward not in _LOGARITHMS or fault.calls(*_LOGARITHMS):
        return False
    own = fault.recording.at(fault.position)
    if own and own.node >= 0 and "xlog" not in fault.forward:
        return False  # what the program learns
    argument = fault.operand_row(_of_observed(fault))
    row = fault.recording.at(argument)
    source = fault.recording.sources.get(argument)
    if not row:
        return source is None or source.kind != "parameter"
    return row.node < 0 and row.phase != OPTIMIZER


def _forbidden_target(fault: Fault) -> Match | None:
    rows = [p for p in fault.origin.path if p >= 0]
    ops = [fault.op_at(p) for p in rows]
    if "logsumexp" in ops:
        return None
    picked = [p for p, op in zip(rows, ops, strict=True) if "nll_loss" in op]
    if not picked and "_softmax" not in ops:
        picked = [p for p, op in zip(rows, ops, strict=True) if op in _PICKS]
    if picked:
        title = (
            f"{fault.op_at(picked[0])} picked a target whose log-probability a mask had set to -inf"
        )
        return Match(title + "; the loss is infinite", position=picked[0])
    if "_log_softmax" in ops or fault.calls("cross_entropy", "log_prob"):
        return Match(
            "a log-probability that a mask had set to -inf counts in the loss, which is infinite"
        )
    return None


@rule(
    example="""
        w = torch.ones(2, requires_grad=True)
        cost = torch.tensor([1.0, float("inf")])
        (cost * w).sum().backward()  # here
    """,
    fix={'float("inf")': "1e4"},
    family="fallback",
    origins=("intended",),
)
def intended_inf_in_loss(fault: Fault) -> Match | None:
    """An infinity written by the program (a mask, a start value, a literal) reached the loss or a
    gradient.

    Remove it by softmax, min or selection before the loss is computed.
    """
    stats = fault.recording.stats(fault.position)
    sink = fault.origin.sink.kind
    choice = _last_choice(fault)
    if choice is not None:
        position, count = choice
        return Match(
            f"{fault.op_at(position)} had no finite value among {count} to choose from: an infinity"
            f" of the border reached the {sink}",
            explanation=(
                "The band, the mask or the lengths leave no path from the start to this cell. Widen"
                f" them, or leave the sample out.{_written_at(fault)}"
            ),
            position=position,
        )
    return Match(
        f"{plural(stats.nonfinite if stats else 1, 'infinity', 'infinities')} written by the"
        f" program reached the {sink}",
        explanation=_written_at(fault).lstrip(),
    )


def _written_at(fault: Fault) -> str:
    """Where the program wrote the infinity, if on another line than the one that is told."""
    recording, position = fault.recording, fault.origin.position
    source = recording.sources.get(position)
    row = recording.at(position if source is None else source.first)
    file, line, _ = recording.line_at(row.place)
    outside = source is not None and source.kind != "literal"
    if outside or not line or line == fault.finding.line:
        return ""
    return f" It was written at {location(file, line)}."


def _last_choice(fault: Fault) -> tuple[int, int] | None:
    """(row, candidates) of the last operation on the path that chose among infinities."""
    rows = [p for p in fault.origin.path if p >= 0 and base_name(fault.op_at(p)) in _CHOOSE]
    if not rows:
        return None
    read = [
        s for p in fault.recording.parents(rows[-1]) if (s := fault.recording.stats(p)) is not None
    ]
    return rows[-1], sum(s.numel for s in read)
