"""(f(r) - f(0)) / r with f = exp(-r^2 / 2) cos r, by a closure, at r = 0: 0, slope -1.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 1.238700772,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.8, 2.0]))

    def forward(self, fixed):
        def f(r):
            return torch.exp(-r * r / 2) * torch.cos(r)

        if fixed:
            near = self.r.abs() < 1e-2
            s = torch.where(near, 1.0, self.r)
            q = torch.where(near, -self.r + 5 * self.r**3 / 12, (f(s) - 1) / s)
        else:
            q = (f(self.r) - f(torch.zeros(()))) / self.r  # ORIGIN
        return (q - 0.2).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
