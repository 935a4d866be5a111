"""Settings outside of the step are tried as fixes: the failing step is run again with them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import nanlab
from nanlab.rules import Fix


def fixes(trace: nanlab.Trace, cause: str) -> list[Fix]:
    found = [f for f in trace.findings if f.cause == cause]
    assert found, trace.findings
    return list(found[0].fixes)


def test_a_lower_loss_scale_is_verified_and_mends_the_program() -> None:
    def run(scale: float) -> tuple[nn.Linear, nanlab.Trace]:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        with nanlab.watch(net, on_fault="record") as trace:
            loss = net(torch.randn(3, 4)).half().float().mean()
            (loss * scale).backward()
            for p in net.parameters():
                p.grad.div_(scale)
        return net, trace

    _, trace = run(2.0**24)
    best = fixes(trace, "loss-scale-overflow")[0]
    assert best.verified and best.title == "a loss scale of 262144"
    assert best.code.startswith("(loss * 262144)")
    net, _ = run(262144.0)
    torch.testing.assert_close(net.bias.grad, torch.full((2,), 0.5), rtol=1e-3, atol=0.0)


def test_a_larger_epsilon_of_the_optimizer_is_tried_on_the_step() -> None:
    def run(eps: float) -> tuple[nn.Parameter, nanlab.Trace]:
        w = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]).half())
        optimizer = torch.optim.Adam([w], lr=0.01, eps=eps)
        with nanlab.watch(on_fault="record") as trace:
            (w * torch.tensor([0.0, 1.0, 2.0]).half()).sum().backward()
            optimizer.step()
        return w, trace

    _, trace = run(1e-8)
    best = fixes(trace, "optimizer-eps-underflow")[0]
    told = re.match(r"torch\.optim\.Adam\(parameters, lr=\.\.\., eps=([\d.e-]+)\)", best.code)
    assert best.verified and told is not None
    w, _ = run(float(told[1]))
    expected = torch.tensor([0.5, 0.99, 1.99])  # Adam's first step moves by the rate
    torch.testing.assert_close(w.detach().float(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("size", "smaller"), [(1e-14, True), (1e-30, False)])
def test_gradients_that_adam_divides_by_its_epsilon_are_told_though_nothing_moves(
    size: float, smaller: bool
) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = torch.randn(16, 4)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(5):
            opt.zero_grad()
            (size * (net(x) - 1).square().mean()).backward()
            opt.step()
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "optimizer-eps-underflow"
    assert any("eps" in fix.title for fix in culprit.fixes) == smaller  # its square is zero


def test_a_smaller_learning_rate_is_tried_on_the_steps_before_the_fault() -> None:
    def run(rate: float, steps: int) -> tuple[list[float], nanlab.Trace]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adadelta(net.parameters(), lr=rate)
        x, y, losses = torch.randn(32, 6), torch.randn(32, 1), []
        with nanlab.watch(net) as trace:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(net(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, trace

    losses, trace = run(1e25, 4)
    (best,) = (fix for fix in fixes(trace, "learning-rate") if fix.code.startswith("lr="))
    assert best.verdict == "finite" and f"falls from {losses[0]:.3g} to" in best.why
    rate = float(best.code.removeprefix("lr="))
    again, _ = run(rate, 2)
    assert best.why.endswith(f" to {again[1]:.3g}") and again[1] < again[0]
    assert run(10 * rate, 2)[0][1] > losses[0]  # ten times as large is too large


def test_a_rate_that_throws_the_weights_over_several_steps_stands_beside_the_overflow() -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=1.0)
    x = torch.randn(64, 8)
    with nanlab.watch(net) as trace:
        for _ in range(20):
            optimizer.zero_grad()
            mean, log_scale = net(x).unbind(1)
            scale = torch.exp(4 * log_scale.abs())
            loss = (mean / scale).square().mean() - log_scale.abs().mean()
            loss.backward()
            optimizer.step()
    assert trace.culprit is not None and trace.culprit.cause == "exp-overflow"
    (thrown,) = (f for f in trace.findings if f.cause == "learning-rate")
    assert thrown.line == trace.culprit.line + 3 and "at a learning rate of 1" in thrown.title
    assert thrown.title.startswith("the updates of steps 0 to ")
    assert all("clip" not in fix.code for fix in thrown.fixes)  # which changes nothing for Adam


def fails_in_the_third_step(counted: bool) -> nanlab.Trace:
    """An update that moves the weights far, and then a fault that they have no part in: a count
    from the labels alone, or targets far larger than what they are held against."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=10.0 if counted else 0.2)
    with nanlab.watch(on_fault="record") as trace:
        for i in range(3):
            x, y = torch.randn(8, 4), torch.randint(0, 2, (8,)) * (i < 2)
            far = 1e30 if i == 2 and not counted else 1.0
            off = (net(x)[:, 0] - far * x.sum(1).abs()).square()
            loss = (y * off).sum() / y.sum() if counted else off.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    return trace


@pytest.mark.parametrize("counted", [True, False])
def test_an_update_is_not_blamed_for_a_fault_that_its_parameter_has_no_part_in(
    counted: bool,
) -> None:
    trace = fails_in_the_third_step(counted)
    assert trace.culprit is not None
    assert not any(found.cause == "learning-rate" for found in trace.findings)


def test_the_size_of_a_parameter_before_its_first_update_is_that_which_the_update_read() -> None:
    w = nn.Parameter(torch.tensor([0.3, -5.0]))
    opt = torch.optim.SGD([w], lr=1e3)
    with nanlab.watch(on_fault="record") as trace:
        for x in (1.0, -1.0):
            opt.zero_grad()
            (w[0] * x).exp().backward()
            opt.step()
    (thrown,) = (f for f in trace.findings if f.cause == "learning-rate")
    assert thrown.title.endswith("before, it was at most 5")
