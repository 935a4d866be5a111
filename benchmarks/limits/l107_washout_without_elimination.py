"""Amount washed out, (1 - exp(-k t)) / k, with an elimination rate that starts at 0: t, slope -t^2 / 2.

Source: well-known fault (pharmacokinetics with zero rate)
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
    "loss_truth": 0.8491139219,
}


class Washout(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.4]))
        self.scale = nn.Parameter(torch.tensor([1.5, 0.7]))

    def forward(self, fixed):
        t = torch.tensor([[0.5], [2.0], [1.1]])
        if fixed:
            small = torch.where(self.k.abs() < 1e-3, torch.ones_like(self.k), self.k)
            amount = torch.where(self.k.abs() < 1e-3, t - self.k * t**2 / 2 + self.k**2 * t**3 / 6, -torch.expm1(-small * t) / small)
        else:
            amount = (1 - torch.exp(-self.k * t)) / self.k  # ORIGIN
        loss = (self.scale * amount - 1.0).pow(2).mean()
        return loss


def build(fixed: bool = False):
    net = Washout()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    k = torch.tensor([0.0, 0.4], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([1.5, 0.7], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([[0.5], [2.0], [1.1]])
    small = torch.where(k.abs() < 1e-3, torch.ones_like(k), k)
    amount = torch.where(k.abs() < 1e-3, t - k * t**2 / 2 + k**2 * t**3 / 6, -torch.expm1(-small * t) / small)
    loss = (scale * amount - 1.0).pow(2).mean()
    dk_, dscale_ = torch.autograd.grad(loss, [k, scale])
    return {"k": dk_, "scale": dscale_}
