"""Overflows of half precision that a quotient turns into zeros: told where they lose something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import nanlab

Tensor = torch.Tensor
F16 = torch.float16


def findings_of(use: Callable[[Tensor], Tensor], outlier: float = 1000.0) -> list[nanlab.Finding]:
    """The findings of eight steps, in the third of which one sample is larger."""
    torch.manual_seed(0)
    net = nn.Linear(8, 16)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    with nanlab.watch(on_fault="record") as trace:
        for step in range(8):
            x = torch.randn(4, 8)
            x[1] *= outlier if step == 2 else 1.0
            loss = use(net(x).half()).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert trace.culprit is None
    assert not trace.findings or "overflows" in str(trace.report())
    return trace.findings


def unit_rows(z: Tensor) -> Tensor:
    return z / (z * z).sum(-1, keepdim=True, dtype=F16).sqrt()


def unit_rows_with_a_floor(z: Tensor) -> Tensor:
    energy = z.square().sum(-1, keepdim=True)
    return z / energy.sqrt().clamp_min(1e-3)


def root_mean_square_norm(z: Tensor) -> Tensor:
    return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5)


def inverse_power(z: Tensor) -> Tensor:
    return (z * (z * z).mean(-1, keepdim=True).pow(-0.5)).float()


@pytest.mark.parametrize(
    "use", [unit_rows, unit_rows_with_a_floor, root_mean_square_norm, inverse_power]
)
def test_a_sample_whose_norm_overflows_is_told(use: Callable[[Tensor], Tensor]) -> None:
    (found,) = findings_of(use)
    assert (found.cause, found.step, found.severity) == ("dtype-overflow", 2, "warning")
    assert any(lost in found.title for lost in ("16 of 64 values of div", "1 of 4 values of"))
    assert any("float32" in fix.title for fix in found.fixes)


def a_kernel(z: Tensor) -> Tensor:
    return (1 + z.square()).reciprocal()


def a_logged_share(z: Tensor) -> Tensor:
    with torch.no_grad():
        float((z / z.square().sum(-1, keepdim=True)).sum())
    return z.tanh()


def a_mask(z: Tensor) -> Tensor:
    return (z + torch.tensor([-65504.0, 0.0] * 8, dtype=F16)).softmax(-1)


def a_comparison(z: Tensor) -> Tensor:
    return torch.where(z.square() < 60000, z, z.sign())


def an_infinite_temperature(z: Tensor) -> Tensor:
    return z / torch.tensor([1.0, float("inf")] * 8, dtype=F16)


@pytest.mark.parametrize(
    "use",
    [a_kernel, a_logged_share, a_mask, a_comparison, an_infinite_temperature],
)
def test_an_infinity_that_loses_nothing_is_not(use: Callable[[Tensor], Tensor]) -> None:
    assert not findings_of(use)


def test_a_sample_that_fits_is_not() -> None:
    assert not findings_of(unit_rows, outlier=1.0)
