"""Third coefficient of the left Jacobian, (t - sin t) / t^3, at t = 0: 1/6.

Source: well-known fault (SE(3) exponential at identity)
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
    "loss_truth": 0.1839529067,
}


class Jacobian(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.0, 1.2, -2.0]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.t.abs() < 0.3, torch.ones_like(self.t), self.t)
            c = torch.where(self.t.abs() < 0.3, 1 / 6 - self.t**2 / 120 + self.t**4 / 5040, (small - torch.sin(small)) / small**3)
        else:
            c = (self.t - torch.sin(self.t)) / self.t**3  # ORIGIN
        loss = (c - 0.4).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Jacobian()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    t = torch.tensor([0.0, 1.2, -2.0], dtype=torch.float64, requires_grad=True)
    small = torch.where(t.abs() < 0.3, torch.ones_like(t), t)
    c = torch.where(t.abs() < 0.3, 1 / 6 - t**2 / 120 + t**4 / 5040, (small - torch.sin(small)) / small**3)
    loss = (c - 0.4).pow(2).sum()
    dt_, = torch.autograd.grad(loss, [t])
    return {"t": dt_}
