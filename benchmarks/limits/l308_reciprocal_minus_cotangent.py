"""1 / x - 1 / tan x at 0: 0, slope 1/3.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.19035966876901456,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.9, -0.5]))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 1e-2
            safe = torch.where(near, torch.ones_like(self.x), self.x)
            f = torch.where(near, self.x / 3 + self.x**3 / 45, 1 / safe - 1 / torch.tan(safe))
            loss = (f - 0.2).pow(2).sum()
        else:
            f = 1 / self.x - 1 / torch.tan(self.x)  # ORIGIN
            loss = (f - 0.2).pow(2).sum()
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
