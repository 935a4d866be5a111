"""The same 0 / 0 in three statements: numerator and divisor have names.

Source: well-known fault (ratio of named quantities)
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
    "loss_truth": 0.1056518367,
}


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-2, torch.ones_like(self.x), self.x)
            ratio = torch.where(self.x.abs() < 1e-2, 1 + self.x**2 / 6, torch.sinh(small) / small)
        else:
            above = torch.exp(self.x) - torch.exp(-self.x)
            below = 2 * self.x
            ratio = above / below  # ORIGIN
        loss = (ratio * torch.tensor([0.5, 0.3]) - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Named()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.7], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    ratio = torch.where(x.abs() < 1e-2, 1 + x**2 / 6, torch.sinh(small) / small)
    loss = (ratio * torch.tensor([0.5, 0.3]) - 0.2).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
