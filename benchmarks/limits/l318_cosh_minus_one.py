"""(cosh x - 1) / x^2 at 0: 1/2.

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
    "loss_truth": 2.300535470054055,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.0, 1.5]))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 1e-2
            safe = torch.where(near, torch.ones_like(self.x), self.x)
            b = torch.where(near, 0.5 + self.x**2 / 24, (torch.cosh(safe) - 1) / safe**2)
            loss = (b * torch.tensor([1.0, 3.0, -1.0])).sum() + (self.x * b).sum()
        else:
            def bend(z):
                return (torch.cosh(z) - 1) / (z * z)  # ORIGIN
            loss = (bend(self.x) * torch.tensor([1.0, 3.0, -1.0])).sum() + (self.x * bend(self.x)).sum()
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
