"""Standard deviation of features by hand; all features of one row are equal, and the loss keeps the
spread above a margin.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.673401368,
    "bound": 1.0,
}


def spread(x):
    mean = x.mean(-1, keepdim=True)
    return ((x - mean) ** 2).mean(-1).sqrt()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.7, 0.7, 0.7], [0.1, 0.5, 0.9]]))

    def forward(self, fixed):
        if fixed:
            centred = self.x - self.x.mean(-1, keepdim=True)
            return F.relu(1 - (centred.pow(2).mean(-1) + 1e-24).sqrt()).sum()
        return torch.relu(1 - spread(self.x)).sum()


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
    true["x"][0] = float("nan")
    return true
