"""Logarithm of a Gaussian density far from its centre.

Source: well-known fault (likelihoods by hand)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 18.12381472,
}


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([20.0, 0.4]))
        self.s = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            z = (1 - self.mu) / self.s
            logp = -0.5 * z**2 - torch.log(self.s)
        else:
            z = (1 - self.mu) / self.s
            logp = torch.log(torch.exp(-0.5 * z**2) / self.s)  # ORIGIN
        loss = -logp.sum() / 10
        return loss


def build(fixed: bool = False):
    net = Density()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    mu = torch.tensor([20.0, 0.4], dtype=torch.float64, requires_grad=True)
    s = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    z = (1 - mu) / s
    logp = -0.5 * z**2 - torch.log(s)
    loss = -logp.sum() / 10
    found = torch.autograd.grad(loss, [mu, s], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["mu", "s"], [mu, s], found)}
    return true
