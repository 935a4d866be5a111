"""In one expression: a padded log, masked, times (1 - e^-k) / k with k = 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origins": 1,
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "kind": "two",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.8471400935,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.5, 1.0]))
        self.c = nn.Parameter(torch.tensor([0.5, 1.5, 0.8]))

    def forward(self, fixed):
        x, mask = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])
        if fixed:
            near = self.k.abs() < 1e-3
            s = torch.where(near, 1.0, self.k)
            y = mask * torch.log(torch.where(mask > 0, self.c * x, 1.0)) * torch.where(near, 1 - self.k / 2 + self.k**2 / 6, -torch.expm1(-s) / s)
        else:
            y = mask * torch.log(self.c * x) * (1 - torch.exp(-self.k)) / self.k  # ORIGIN
        return (y - 0.2).square().sum()


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
