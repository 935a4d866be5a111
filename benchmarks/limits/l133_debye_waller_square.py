"""Form factor 3 (sin x - x cos x) / x^3 of a sphere in forward scattering: 1.

Source: well-known fault (small-angle scattering at q = 0)
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
    "loss_truth": 0.2622250933,
}


class Form(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.0, 2.5]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 0.3, torch.ones_like(self.x), self.x)
            form = torch.where(self.x.abs() < 0.3, 1 - self.x**2 / 10 + self.x**4 / 280, 3 * (torch.sin(small) - small * torch.cos(small)) / small**3)
        else:
            form = 3 * (torch.sin(self.x) - self.x * torch.cos(self.x)) / self.x**3  # ORIGIN
        loss = (form - 0.6).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Form()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 0.3, torch.ones_like(x), x)
    form = torch.where(x.abs() < 0.3, 1 - x**2 / 10 + x**4 / 280, 3 * (torch.sin(small) - small * torch.cos(small)) / small**3)
    loss = (form - 0.6).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
