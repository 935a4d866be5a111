"""x / (1 - e^(-x)) as the activation of two layers that share it, at 0: 1.

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
    "loss_truth": 3.457140220707584,
}


class Bernoulli(nn.Module):
    def forward(self, x):
        return x / (1 - torch.exp(-x))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.0, -2.0]))
        self.v = nn.Parameter(torch.tensor([0.5, 0.0, 1.5]))
        self.act = Bernoulli()

    def forward(self, fixed):
        if fixed:
            def act(x):
                near = x.abs() < 1e-3
                safe = torch.where(near, torch.ones_like(x), x)
                return torch.where(near, 1 + x / 2 + x * x / 12, -safe / torch.expm1(-safe))
            h = act(self.w)
            o = act(self.v * 1.0)
            loss = (h * o).sum() + h[0] * self.v[1]
        else:
            h = self.act(self.w)
            o = self.act(self.v * 1.0)
            loss = (h * o).sum() + h[0] * self.v[1]
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
