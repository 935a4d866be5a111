"""Magnetisation coth x - 1 / x at zero field: inf minus inf, the limit is x / 3.

Source: well-known fault (Langevin function)
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3939402383,
}


class Magnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = nn.Parameter(torch.tensor([0.0, 1.5, -0.6]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.field.abs() < 1e-2, torch.ones_like(self.field), self.field)
            m = torch.where(self.field.abs() < 1e-2, self.field / 3 - self.field**3 / 45, 1 / torch.tanh(small) - 1 / small)
        else:
            m = 1 / torch.tanh(self.field) - 1 / self.field  # ORIGIN
        loss = (m - torch.tensor([0.5, 0.2, 0.1])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Magnet()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    field = torch.tensor([0.0, 1.5, -0.6], dtype=torch.float64, requires_grad=True)
    small = torch.where(field.abs() < 1e-2, torch.ones_like(field), field)
    m = torch.where(field.abs() < 1e-2, field / 3 - field**3 / 45, 1 / torch.tanh(small) - 1 / small)
    loss = (m - torch.tensor([0.5, 0.2, 0.1])).pow(2).sum()
    dfield_, = torch.autograd.grad(loss, [field])
    return {"field": dfield_}
