"""Entropy summed in a comprehension, with a state of probability 0.

Source: well-known fault (entropies of corner distributions)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.6108643021,
}


class Corner(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.3, 0.7]))

    def forward(self, fixed):
        if fixed:
            entropy = torch.special.entr(self.p + 1e-12).sum()
        else:
            entropy = sum([-p * torch.log(p) for p in self.p.unbind()])  # ORIGIN
        loss = entropy
        return loss


def build(fixed: bool = False):
    net = Corner()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    p = torch.tensor([0.0, 0.3, 0.7], dtype=torch.float64, requires_grad=True)
    entropy = torch.special.entr(p.clamp_min(torch.finfo(p.dtype).tiny)).sum()
    loss = entropy
    found = torch.autograd.grad(loss, [p], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["p"], [p], found)}
    true["p"][0] = float("inf")
    return true
