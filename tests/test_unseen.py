"""Programs in the style of users, each held to the one answer that is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nanlab


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def culprit(step: Callable[[int], Any], steps: int = 4) -> nanlab.Finding | None:
    with nanlab.watch(on_fault="record") as trace:
        for i in range(steps):
            step(i)
    assert not trace.notes
    return trace.culprit


def told(step: Callable[[int], Any], steps: int = 4) -> tuple[str, str, str, int]:
    """(cause, op, phase, step) of the culprit."""
    found = culprit(step, steps)
    assert found is not None
    return found.cause, found.op, found.phase, found.step


def trained(net: nn.Module, loss: Callable[[int], torch.Tensor]) -> Callable[[int], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i: int) -> None:
        optimizer.zero_grad()
        loss(i).backward()
        optimizer.step()

    return step


def test_the_scale_of_a_density_is_no_value_outside_its_support() -> None:
    net = nn.Linear(3, 2)

    def loss(i: int) -> torch.Tensor:
        mean, raw = net(torch.randn(4, 3)).unbind(-1)
        scale = raw.exp() if i < 2 else raw.relu() * 0
        density = torch.distributions.Normal(mean, scale, validate_args=False)
        return -density.log_prob(torch.randn(4)).mean()

    assert told(trained(net, loss)) == ("log-of-zero", "log", "forward", 2)


def test_a_logarithm_beside_log_prob_is_its_own() -> None:
    net = nn.Linear(3, 2)

    def loss(i: int) -> torch.Tensor:
        mean, raw = net(torch.randn(4, 3)).unbind(-1)
        density = torch.distributions.Normal(mean * (1 if i < 2 else 1e3), raw.exp(), validate_args=False)
        u = density.rsample()
        with torch.no_grad():
            weight = density.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return (weight * mean).mean()

    assert told(trained(net, loss)) == ("log-of-zero", "log", "forward", 2)


def test_what_hid_a_value_is_told_long_after_its_step_was_folded() -> None:
    frequency = nn.Parameter(torch.tensor([0.1, 0.2]))
    optimizer = torch.optim.Adam([frequency])

    def step(i: int) -> None:
        x = frequency[:, None] * torch.arange(-4.0, 5.0)
        kernel = torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)
        optimizer.zero_grad()
        (kernel.sum(1) - 1).square().mean().backward()
        optimizer.step()

    assert told(step, steps=8) == ("where-grad-trap", "div", "backward", 0)


def test_a_loop_that_is_all_closure_has_steps() -> None:
    net, data = nn.Linear(3, 1), torch.randn(8, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    now = {"step": 0}

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        out = net(data).square()
        loss = (out * 0 if now["step"] == 3 else out + 1).log().mean()
        loss.backward()
        return loss

    with nanlab.watch(on_fault="record") as trace:
        for now["step"] in range(5):
            optimizer.step(closure)
    assert len(trace.recording.starts) == 5
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("log-of-zero", 3)


def test_a_python_number_can_flush_a_half_precision_gradient() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
    step = trained(net, lambda i: (net(torch.randn(16, 8).half()) * 1e-4 * 1e-4).float().sum())
    assert told(step)[:2] == ("dtype-underflow", "mul")


def test_a_coefficient_of_zero_is_no_underflow() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
    assert culprit(trained(net, lambda i: (net(torch.randn(16, 8).half()) * 0.0).float().sum())) is None
