"""Rows are normalised, the padded one too: 0 / 0, and a weight of 0.

Source: well-known fault (cosine scores of padding)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.6,
}


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -1.0]]))

    def forward(self, fixed):
        keep = torch.tensor([[1.0], [0.0], [1.0]])
        if fixed:
            unit = torch.where(keep > 0, self.h, 1.0)
            unit = unit / unit.norm(dim=1, keepdim=True)
        else:
            unit = self.h / self.h.norm(dim=1, keepdim=True)  # ORIGIN
        loss = (keep * (unit - 0.2).pow(2)).sum()
        return loss


def build(fixed: bool = False):
    net = Rows()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[1.0], [0.0], [1.0]])
    unit = torch.where(keep > 0, h, 1.0)
    unit = unit / unit.norm(dim=1, keepdim=True)
    loss = (keep * (unit - 0.2).pow(2)).sum()
    dh_, = torch.autograd.grad(loss, [h])
    return {"h": dh_}
