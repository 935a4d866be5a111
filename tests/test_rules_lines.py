"""Causes on lines that hold more than one operation: what a line calls is not what failed on it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import nanlab
from nanlab.findings.fault import owner_called
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


@pytest.mark.parametrize("remainder", [torch.remainder, torch.fmod])
def test_a_remainder_of_a_division_by_zero_is_told_as_the_nan_that_it_is(remainder) -> None:  # type: ignore[no-untyped-def]
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        remainder(w, torch.tensor([1.0, 0.0])).sum().backward()
    assert culprit_of(trace).title == "remainder of a division by zero for 1 element of 2: NaN"


def test_a_power_overflows_by_its_exponent_or_by_its_base_whichever_is_larger() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)

    def told(power) -> tuple[str, str]:  # type: ignore[no-untyped-def]
        with nanlab.watch(on_fault="record") as trace:
            power().sum().backward()
        return culprit_of(trace).cause, culprit_of(trace).title

    for exponent in (200, torch.tensor([200.0, 200.0])):
        assert told(lambda e=exponent: w**e)[0] == "exp-overflow"
    assert told(lambda: (w * 1e20) ** 2)[0] == "dtype-overflow"
    assert told(lambda: 10.0 ** (w * 100))[1] == (
        "2 powers x**y (largest base 10, largest exponent 200) overflow float32"
    )


def test_a_scale_of_zero_is_no_sample_outside_of_the_support() -> None:
    scale = torch.nn.Parameter(torch.zeros(2))
    with nanlab.watch(on_fault="record") as trace:
        normal = torch.distributions.Normal(torch.zeros(2), scale, validate_args=False)
        (-normal.log_prob(torch.zeros(2)).sum()).backward()
    assert culprit_of(trace).cause == "log-of-zero"


def test_what_has_a_number_for_a_name_is_not_called_a_parameter_twice() -> None:
    bad = torch.nn.Parameter(torch.tensor([float("nan"), 1.0]))
    with nanlab.watch(on_fault="record") as trace:
        (bad * 2).sum().backward()
    assert culprit_of(trace).title.startswith("parameter 0 (2) holds 1 NaN")


def test_a_product_of_probabilities_is_rewritten_as_a_sum_of_logarithms() -> None:
    layer = torch.nn.Linear(4, 64)
    with nanlab.watch(on_fault="record") as trace:
        p = torch.sigmoid(layer(torch.zeros(3, 4)) - 4)
        likelihood = p.prod(1)
        (-torch.log(likelihood).sum()).backward()
    assert "rewritten with a sum of logarithms" in [fix.title for fix in culprit_of(trace).fixes]


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("parameter", "fc.weight", "the parameter fc.weight"),
        ("parameter", "parameter 0 (4x3)", "parameter 0 (4x3)"),
        ("buffer", "the average of fc.weight (4)", "the average of fc.weight (4)"),
        ("buffer", "", "a buffer"),
    ],
)
def test_an_owner_is_called_by_its_name_once(kind: str, name: str, told: str) -> None:
    assert owner_called(kind, name) == told
