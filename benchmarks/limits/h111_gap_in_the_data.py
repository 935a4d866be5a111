"""Measurements with NaN, replaced before use."""
import torch
from torch import nn

META = {
    "healthy": True,
    "first_bad_step": 0,
    "n_steps": 3,
    "loss_truth": 1.8,
    "why": "known gaps count with 0",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -0.2]))

    def forward(self, fixed):
        y = torch.tensor([1.0, torch.nan, 0.3])
        x = torch.tensor([[1.0, 0.5], [0.2, 0.1], [-1.0, 2.0]])
        known = ~y.isnan()
        return ((x @ self.w - y.nan_to_num()).square() * known).sum()


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
