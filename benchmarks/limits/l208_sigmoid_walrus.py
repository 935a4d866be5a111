"""A sigmoid by hand with an assignment expression.

Source: well-known fault (gates by hand)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.9378828427,
}


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([120.0, -1.0]))

    def forward(self, fixed):
        if fixed:
            p = torch.sigmoid(self.s)
        else:
            p = (e := torch.exp(self.s)) / (1 + e)  # ORIGIN
        loss = (p * torch.tensor([0.4, 2.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Gate()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([120.0, -1.0], dtype=torch.float64, requires_grad=True)
    p = torch.sigmoid(s)
    loss = (p * torch.tensor([0.4, 2.0])).sum()
    found = torch.autograd.grad(loss, [s], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["s"], [s], found)}
    return true
