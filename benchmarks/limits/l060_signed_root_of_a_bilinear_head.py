"""Signed square root sign(x) |x|^0.5, one module after two branches of a bilinear head: at 0 its slope is infinite, the code says 0 times infinity.

Source: well-known fault (signed power normalisation of pooled features)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "form": "shared nn.Module",
    "loss_truth": 0.6951265841,
    "fix": "x / sqrt(abs(x) + 1e-8)",
}


class SignedRoot(nn.Module):
    def forward(self, x):
        return torch.sign(x) * torch.abs(x) ** 0.5  # ORIGIN


class SignedRootEps(nn.Module):
    def forward(self, x):
        return x / torch.sqrt(torch.abs(x) + 1e-8)


class Bilinear(nn.Module):
    def __init__(self, root):
        super().__init__()
        self.root = root
        self.left = nn.Parameter(torch.tensor([0.5, 0.0, -1.2]))
        self.right = nn.Parameter(torch.tensor([0.0, 0.4, 0.9]))

    def forward(self):
        return self.root(self.left), self.root(self.right)


def build(fixed: bool = False):
    net = Bilinear(SignedRootEps() if fixed else SignedRoot())
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)
    a, b = torch.tensor([0.3, 0.6, -0.5]), torch.tensor([-0.8, 0.7, 0.2])

    def step(i):
        opt.zero_grad()
        one, two = net()
        loss = (one - a).pow(2).mean() + (two - b).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    left, right = torch.tensor([0.5, 0.0, -1.2], dtype=torch.float64), torch.tensor([0.0, 0.4, 0.9], dtype=torch.float64)
    a, b = torch.tensor([0.3, 0.6, -0.5], dtype=torch.float64), torch.tensor([-0.8, 0.7, 0.2], dtype=torch.float64)
    one, two = left.sign() * left.abs().sqrt() - a, right.sign() * right.abs().sqrt() - b
    loss = one.pow(2).mean() + two.pow(2).mean()
    return {"left": 2 / 3 * one * 0.5 / left.abs().sqrt(), "right": 2 / 3 * two * 0.5 / right.abs().sqrt()}
