"""A fourth root at 0 by a method with a keyword.

Source: well-known fault (compression of spectra)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 2.03010353,
}


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, fixed):
        if fixed:
            y = (self.x + 1e-12).pow(0.25)
        else:
            y = self.x.pow(exponent=0.25)  # ORIGIN
        loss = y.sum()
        return loss


def build(fixed: bool = False):
    net = Spectrum()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    y = x.clamp_min(torch.finfo(x.dtype).tiny).pow(0.25)
    loss = y.sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    true["x"][0] = float("inf")
    return true
