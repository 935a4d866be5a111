"""Posterior weights, prior times exp(s), normalised by an augmented division.

Source: well-known fault (importance weights)
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
    "loss_truth": 0.4282090432,
}


class Posterior(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[120.0, 119.0], [1.0, 0.5]]))

    def forward(self, fixed):
        prior = torch.tensor([0.3, 0.7])
        if fixed:
            w = torch.softmax(self.s + torch.log(prior), 1)
        else:
            w = torch.exp(self.s) * prior
            w /= w.sum(1, keepdim=True)  # ORIGIN
        loss = (w * torch.tensor([1.0, -0.5])).sum()
        return loss


def build(fixed: bool = False):
    net = Posterior()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([[120.0, 119.0], [1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    prior = torch.tensor([0.3, 0.7])
    w = torch.softmax(s + torch.log(prior), 1)
    loss = (w * torch.tensor([1.0, -0.5])).sum()
    found = torch.autograd.grad(loss, [s], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["s"], [s], found)}
    return true
