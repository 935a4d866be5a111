"""Attention scores in float16 that are scaled after the product: 300 * 300 is beyond the range.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "mm",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.064669,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[300.0, 10.0, 2.0, 1.0], [0.5, 0.2, 0.1, 0.4]]))
        self.register_buffer('k', torch.tensor([[300.0, 1.0, 0.0, 0.2], [299.9, 1.0, 3.0, 0.1]]))

    def forward(self, fixed):
        if fixed:
            scores = self.q @ self.k.T / 2
            loss = (scores * torch.tensor([[1.0, -1.0], [0.5, 0.2]]) * 1e-3).sum()
        else:
            with torch.autocast('cpu', torch.float16):
                scores = self.q @ self.k.T / 2  # ORIGIN
            loss = (scores.float() * torch.tensor([[1.0, -1.0], [0.5, 0.2]]) * 1e-3).sum()
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
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
