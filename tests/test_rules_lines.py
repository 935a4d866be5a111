"""Causes on lines that hold more than one operation: what a line calls is not what failed on it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import nanlab
from nanlab.rules import Finding

ROWS = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
LABELS = torch.tensor([0, 1])
ZERO = torch.zeros(())


def culprit_of(trace: nanlab.Trace) -> Finding:
    assert trace.culprit is not None
    return trace.culprit


@pytest.mark.parametrize(
    "line",
    [
        lambda w: F.cross_entropy(w * ROWS / ZERO, LABELS),
        lambda w: F.cross_entropy(w * ROWS / ROWS[:, 1:].sum(1, keepdim=True), LABELS),
        lambda w: F.cosine_similarity(w * ROWS / ZERO, ROWS).sum(),
        lambda w: (F.normalize(w * ROWS, dim=-1) / ZERO).sum(),
        lambda w: (1 / F.normalize(w * ROWS, dim=-1)).sum(),
        lambda w: (w * ROWS / (ROWS.std(-1) * LABELS).unsqueeze(-1)).sum(),
    ],
    ids=[
        "temperature",
        "sum of a row",
        "cosine of a quotient",
        "unit over zero",
        "one over unit",
        "std times a count",
    ],
)
def test_a_division_by_zero_is_one_whatever_else_its_line_calls(line) -> None:  # type: ignore[no-untyped-def]
    w = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        line(w).backward()
    finding = culprit_of(trace)
    assert finding.cause == "div-by-zero"
    assert not any(
        "normalize(" in fix.code and "eps" in fix.code for fix in finding.fixes if fix.verified
    )


def test_a_smoothed_loss_without_targets_and_a_unit_vector_of_zeros_are_told_as_before() -> None:
    w = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        F.cross_entropy(w * ROWS, torch.full((2,), -100), label_smoothing=0.1).backward()
    assert culprit_of(trace).cause == "empty-reduction"
    with nanlab.watch(on_fault="record") as trace:
        F.normalize((w * torch.zeros(2, 3)).half(), dim=-1).sum().backward()
    assert culprit_of(trace).cause in ("norm-at-zero", "eps-underflow")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_derivative_of_a_scripted_function_is_no_hand_written_backward() -> None:
    @torch.jit.script
    def geometric_mean(x: torch.Tensor) -> torch.Tensor:
        logs = torch.log(x)
        return torch.exp(logs.mean(-1))

    w = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        # the profiling executor makes a graph with a derivative of its own after two calls
        for i in range(4):
            geometric_mean(w * (ROWS if i == 3 else ROWS + 1)).sum().backward()
    finding = culprit_of(trace)
    assert (finding.phase, finding.op, finding.cause) == ("backward", "div", "div-by-zero")
    assert finding.source.startswith("geometric_mean(")


@pytest.mark.parametrize("exponent", [-1, torch.tensor(-1.0), torch.tensor([-1.0, -1.0])])
def test_power_of_minus_one_divides_by_its_base(exponent: float | torch.Tensor) -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.pow(exponent).sum().backward()
    assert culprit_of(trace).cause == "div-by-zero"
