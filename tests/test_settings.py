"""Settings outside of the step are tried as fixes: the failing step is run again with them."""

from __future__ import annotations

import re

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
