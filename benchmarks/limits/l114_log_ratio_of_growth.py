"""Growth log(1 + g) / g of an economy that stands still.

Source: well-known fault (log1p(x) / x at 0)
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
    "loss_truth": 0.3489712836,
}


class Growth(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([0.0, 0.4, -0.3]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.g.abs() < 1e-2, torch.ones_like(self.g), self.g)
            rate = torch.where(self.g.abs() < 1e-2, 1 - self.g / 2 + self.g**2 / 3 - self.g**3 / 4, torch.log1p(small) / small)
        else:
            rate = torch.log(1 + self.g) / self.g  # ORIGIN
        loss = (rate - 0.7).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Growth()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    g = torch.tensor([0.0, 0.4, -0.3], dtype=torch.float64, requires_grad=True)
    small = torch.where(g.abs() < 1e-2, torch.ones_like(g), g)
    rate = torch.where(g.abs() < 1e-2, 1 - g / 2 + g**2 / 3 - g**3 / 4, torch.log1p(small) / small)
    loss = (rate - 0.7).pow(2).sum()
    dg_, = torch.autograd.grad(loss, [g])
    return {"g": dg_}
