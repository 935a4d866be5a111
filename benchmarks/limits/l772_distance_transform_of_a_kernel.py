"""Distance in feature space sqrt(k(x, x) + k(y, y) - 2 k(x, y)) of a point and itself, k a radial
kernel.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.8870956434,
    "bound": 1.5,
}


def kernel(a, b):
    return torch.exp(-((a - b) ** 2).sum(-1) / 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.3, 0.4], [1.0, -0.5]]))

    def forward(self, fixed):
        b = torch.tensor([[0.3, 0.4], [0.2, 0.1]])
        if fixed:
            u = ((self.a - b) ** 2).sum(-1) / 2
            return torch.sqrt(-2 * torch.expm1(-u) + 1e-24).sum()
        d2 = kernel(self.a, self.a) + kernel(b, b) - 2 * kernel(self.a, b)
        return torch.sqrt(d2).sum()  # ORIGIN


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
    true["a"][0] = float("nan")
    return true
