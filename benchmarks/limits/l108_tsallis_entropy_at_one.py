"""Tsallis entropy (1 - sum p^q) / (q - 1) with q started at 1, where it is Shannon's.

Source: well-known fault (learned entropic index)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2912985105,
}


class Entropy(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor(1.0))

    def forward(self, fixed):
        p = torch.tensor([0.25, 0.5, 0.25])
        if fixed:
            d = self.q - 1
            h = -(p * torch.log(p) * (1 + d * torch.log(p) / 2 + (d * torch.log(p)) ** 2 / 6)).sum()
        else:
            h = (1 - (p**self.q).sum()) / (self.q - 1)  # ORIGIN
        loss = (h - 0.5).pow(2)
        return loss


def build(fixed: bool = False):
    net = Entropy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    q = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.25, 0.5, 0.25])
    d = q - 1
    h = -(p * torch.log(p) * (1 + d * torch.log(p) / 2 + (d * torch.log(p)) ** 2 / 6)).sum()
    loss = (h - 0.5).pow(2)
    dq_, = torch.autograd.grad(loss, [q])
    return {"q": dq_}
