"""x / (exp(x) - 1) / (1 - exp(-y)) * y of two modes that are both soft, in one product.

Source: well-known fault
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
    "loss_truth": 0.08320981001,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.9]))
        self.y = nn.Parameter(torch.tensor([0.7, 0.0]))

    def forward(self, fixed):
        x, y = self.x, self.y
        if fixed:

            def soft(t):
                near = t.abs() < 1e-3
                w = torch.where(near, torch.ones_like(t), t)
                return torch.where(near, 1 - t / 2 + t**2 / 12, w / torch.expm1(w))

            out = soft(x) * (soft(y) + y)
        else:
            out = x / (torch.exp(x) - 1) * y / (1 - torch.exp(-y))  # ORIGIN
        return (out - torch.tensor([1.2, 0.4])).pow(2).sum()


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
