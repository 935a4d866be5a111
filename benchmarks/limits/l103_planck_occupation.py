"""Mean energy of an oscillator, x / (e^x - 1), with a frequency that starts at 0.

Source: well-known fault (Planck's law at zero frequency)
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
    "loss_truth": 0.2372575652,
}


class Oscillator(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-2, torch.ones_like(self.x), self.x)
            energy = torch.where(self.x.abs() < 1e-2, 1 - self.x / 2 + self.x**2 / 12, small / torch.expm1(small))
        else:
            energy = self.x / (torch.exp(self.x) - 1)  # ORIGIN
        loss = (energy - 0.3).pow(2).mean()
        return loss


def build(fixed: bool = False):
    net = Oscillator()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    energy = torch.where(x.abs() < 1e-2, 1 - x / 2 + x**2 / 12, small / torch.expm1(small))
    loss = (energy - 0.3).pow(2).mean()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
