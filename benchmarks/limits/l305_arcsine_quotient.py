"""asin(x) / x in a geodesic's length at x = 0: 1.

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
    "loss_truth": 1.5572007551815221,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.4, -0.7]))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 1e-3
            safe = torch.where(near, 0.5*torch.ones_like(self.x), self.x)
            scale = torch.where(near, 1 + self.x**2 / 6, torch.asin(safe) / safe)
            loss = (scale * torch.tensor([2.0, 1.0, -1.0]) + self.x * scale).sum()
        else:
            scale = torch.asin(self.x) / self.x  # ORIGIN
            loss = (scale * torch.tensor([2.0, 1.0, -1.0]) + self.x * scale).sum()
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
