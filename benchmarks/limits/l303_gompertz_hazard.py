"""Cumulative hazard of a Gompertz law, a (e^(b t) - 1) / b at b = 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 2.9931426055439365,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_a = nn.Parameter(torch.tensor([-1.0, -0.5]))
        self.b = nn.Parameter(torch.tensor([0.0, 0.2]))

    def forward(self, fixed):
        if fixed:
            loss = torch.zeros(())
            for t in (0.5, 1.5, 3.0):
                near = self.b.abs() < 1e-3
                safe = torch.where(near, torch.ones_like(self.b), self.b)
                cumulative = self.log_a.exp() * torch.where(near, t + self.b * t * t / 2 + self.b**2 * t**3 / 6, torch.expm1(safe * t) / safe)
                loss = loss + (cumulative - 0.3 * t).pow(2).sum()
        else:
            loss = torch.zeros(())
            for t in (0.5, 1.5, 3.0):
                cumulative = self.log_a.exp() * torch.exp(self.b * t).sub(1).div(self.b)  # ORIGIN
                loss = loss + (cumulative - 0.3 * t).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, _ = build(True)
    net.double()
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
