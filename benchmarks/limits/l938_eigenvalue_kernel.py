"""Loewner matrix of the logarithm over pairs of eigenvalues, broadcast, with the diagonal.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 5.338411287,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([0.5, 1.5, 3.0]))

    def forward(self, fixed):
        lam = self.lam
        gap = lam.unsqueeze(0) - lam.unsqueeze(1)
        if fixed:
            a, b = torch.broadcast_tensors(lam.unsqueeze(0), lam.unsqueeze(1))
            u = gap / b
            near = u.abs() < 1e-3
            s = torch.where(near, 1.0, u)
            m = torch.where(near, 1 - u / 2 + u**2 / 3, torch.log1p(s) / s) / b
        else:
            m = (lam.log().unsqueeze(0) - lam.log().unsqueeze(1)) / gap  # ORIGIN
        return (m * torch.tensor([[1.0, 0.5, 0.2], [0.1, 2.0, 0.3], [0.4, 0.6, 1.5]])).sum()


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
