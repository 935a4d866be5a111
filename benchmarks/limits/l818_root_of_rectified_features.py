"""Square root of features that a comparison rectifies, sqrt(x * (x > 0)), in a Sequential: where a
unit is off, infinity meets 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.2835922668,
}


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x * (x > 0))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3, bias=False), Root())
        with torch.no_grad():
            self.body[0].weight.copy_(torch.tensor([[0.5, 0.3], [-0.7, -0.2], [0.1, 0.9]]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.5], [0.4, 1.2]])
        y = torch.tensor([[0.5, 0.0, 0.9], [0.4, 0.2, 1.0]])
        if fixed:
            h = self.body[0](x)
            on = h > 0
            out = torch.where(
                on, torch.where(on, h, torch.ones_like(h)).sqrt(), torch.zeros_like(h)
            )
        else:
            out = self.body(x)
        return (out - y).pow(2).sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
