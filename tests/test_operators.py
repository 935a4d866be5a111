"""Faults of operators that no rule names: what float64 tells of them, and layers, losses and
layouts that are easily mistaken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import nanlab
from nanlab.rules import Finding

Tensor = torch.Tensor


def culprit(loss: Callable[[Tensor], Tensor], x: Tensor) -> Finding:
    with nanlab.watch(on_fault="record") as trace:
        loss(x.requires_grad_()).backward()
    found = trace.culprit
    assert found is not None
    assert not trace.notes
    return found


def large(*shape: int) -> Tensor:
    return torch.randn(*shape) * 1e30


HUGE = 3e38
ON_THE_WAY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (4,)).square().sum(), lambda: large(8, 4)),
    "group_norm": (lambda x: F.group_norm(x, 2).square().sum(), lambda: large(8, 4)),
    "batch_norm": (
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True).sum(),
        lambda: torch.full((8, 4), HUGE),
    ),
    "cdist": (lambda x: torch.cdist(x, x + 1).sum(), lambda: large(4, 3)),
    "pdist": (lambda x: F.pdist(x).sum(), lambda: large(4, 3)),
    "mean": (lambda x: x.mean(), lambda: torch.full((64,), 1e38)),
    "sum": (lambda x: x.sum(), lambda: torch.tensor([HUGE, HUGE, -HUGE, -HUGE])),
    "gelu": (lambda x: F.gelu(x, approximate="tanh").mean(), lambda: large(64)),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x).sum(),
        lambda: torch.randn(1, 2, 4, 8) * 1e25,
    ),
    "grid_sample": (
        lambda g: F.grid_sample(torch.ones(1, 1, 4, 4), g, align_corners=False).sum(),
        lambda: torch.full((1, 3, 3, 2), HUGE),
    ),
}
BEYOND: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]] = {
    "fft": (lambda x: torch.fft.fft(x).abs().sum(), lambda: torch.full((16,), 1e38)),
    "stft": (
        lambda x: torch.stft(x, 16, window=torch.ones(16), return_complex=True).abs().sum(),
        lambda: torch.full((64,), 1e38),
    ),
    "complex half": (
        lambda x: torch.view_as_real(torch.complex(x, x).to(torch.complex32)).float().sum(),
        lambda: torch.tensor([1e6]),
    ),
}


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_an_overflow_on_the_way_to_an_ordinary_result_is_told(name: str) -> None:
    loss, made = ON_THE_WAY[name]
    found = culprit(loss, made())
    assert found.cause == "dtype-overflow", found.title
    assert "on its way" in found.title


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", BEYOND)
def test_complex_results_beyond_the_largest_number_are_told(name: str) -> None:
    loss, made = BEYOND[name]
    found = culprit(loss, made())
    assert found.cause == "dtype-overflow", found.title
    assert "is beyond its largest number" in found.title


def test_a_magnitude_that_vanishes_on_the_way_is_told_as_underflow() -> None:
    x = torch.full((5, 6, 7), 1e-38)
    found = culprit(lambda x: torch.fft.fft(x, n=10, dim=1, norm="ortho").abs().sum(), x)
    assert found.cause == "dtype-underflow"
    assert found.phase == "backward"


def test_constant_values_are_told_from_large_ones_in_a_normalisation() -> None:
    constant = culprit(lambda x: F.layer_norm(x, (4,), eps=0.0).sum(), torch.ones(2, 4))
    assert constant.cause == "std-of-constant"
    assert (
        culprit(lambda x: F.layer_norm(x, (4,)).square().sum(), large(2, 4)).cause
        == "dtype-overflow"
    )


@pytest.mark.parametrize("momentum", [0.0, 0.1])
def test_running_statistics_that_a_layer_spoils_itself_do_not_hide_the_fault(
    momentum: float,
) -> None:
    layer = torch.nn.BatchNorm1d(4, momentum=momentum)
    found = culprit(lambda x: layer(x).sum(), torch.full((8, 4), HUGE))
    assert (found.cause, found.op) == ("dtype-overflow", "native_batch_norm")


@pytest.mark.parametrize("power", [-2, -1.0, -0.5])
def test_a_negative_power_of_a_tiny_number_is_a_division_by_it(power: float) -> None:
    found = culprit(lambda x: (x**power).sum(), torch.tensor([1e-30, 1.0]))
    assert found.cause == "div-by-tiny"


def test_the_derivative_of_a_loss_in_its_target_is_a_logarithm() -> None:
    found = culprit(
        lambda t: F.binary_cross_entropy(torch.tensor([0.0, 0.5]), t), torch.tensor([0.2, 0.3])
    )
    assert found.cause == "log-of-zero"
    assert "in the derivative of binary_cross_entropy" in found.title


@pytest.mark.filterwarnings("ignore:Sparse")
def test_rules_read_sparse_operands() -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.sparse.mm((x @ x).to_sparse_csr(), torch.eye(3)).sum()

    assert culprit(loss, torch.full((3, 3), 1e30)).cause == "dtype-overflow"


def test_a_smaller_loss_is_no_cure_for_an_overflow_of_the_activations() -> None:
    found = culprit(lambda x: F.gelu(x, approximate="tanh").mean(), large(64))
    assert not any(fix.verified for fix in found.fixes)
