"""Distance of two normal embeddings, sqrt(|m|^2 + (s - t)^2), equal for one pair, in a triplet.

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
    "kind": "no-limit",
    "loss_truth": 1.711043358,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.tensor([[0.0, 0.0], [0.5, 0.3]]))
        self.s = nn.Parameter(torch.tensor([0.7, 0.9]))

    def forward(self, fixed):
        t = torch.tensor([0.7, 0.2])
        d2 = self.m.pow(2).sum(1) + (self.s - t) ** 2
        if fixed:
            d = torch.where(d2 > 0, torch.where(d2 > 0, d2, torch.ones_like(d2)).sqrt(), torch.zeros_like(d2))
        else:
            d = d2.sqrt()  # ORIGIN
        return torch.relu(d - 0.1 + 0.5).sum()


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
    true["m"][0] = float("nan")
    true["s"][0] = float("nan")
    return true
