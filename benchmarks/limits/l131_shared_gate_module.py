"""One gate module x / tanh(x) used by two layers, one of which feeds it a 0.

Source: well-known fault (x coth x in a shared module)
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
    "loss_truth": 1.065319382,
}


class Gate(nn.Module):
    def forward(self, x):
        return x / torch.tanh(x)  # ORIGIN


def gate_right(x):
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    return torch.where(x.abs() < 1e-2, 1 + x**2 / 3, small / torch.tanh(small))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.4, -1.0]))
        self.y = nn.Parameter(torch.tensor([0.0, 0.6]))
        self.gate = Gate()

    def forward(self, fixed):
        if fixed:
            out = gate_right(self.x) + 0.5 * gate_right(self.y)
        else:
            out = self.gate(self.x) + 0.5 * self.gate(self.y)
        loss = (out - 1.0).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Shared()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.4, -1.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.0, 0.6], dtype=torch.float64, requires_grad=True)
    out = gate_right(x) + 0.5 * gate_right(y)
    loss = (out - 1.0).pow(2).sum()
    dx_, dy_ = torch.autograd.grad(loss, [x, y])
    return {"x": dx_, "y": dy_}
