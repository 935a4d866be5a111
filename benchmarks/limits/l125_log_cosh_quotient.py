"""log(cosh x) / x, a smooth sign times a half near 0.

Source: well-known fault (normalised log-cosh penalty)
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
    "loss_truth": 0.895187274,
}


class Penalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.9, -1.6]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-1, torch.ones_like(self.x), self.x)
            s = torch.where(self.x.abs() < 1e-1, self.x / 2 - self.x**3 / 12 + self.x**5 / 45, torch.log(torch.cosh(small)) / small)
        else:
            s = torch.log(torch.cosh(self.x)) / self.x  # ORIGIN
        loss = (s - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Penalty()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.9, -1.6], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-1, torch.ones_like(x), x)
    s = torch.where(x.abs() < 1e-1, x / 2 - x**3 / 12 + x**5 / 45, torch.log(torch.cosh(small)) / small)
    loss = (s - 0.3).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
