"""Third loading of Nelson and Siegel's curve, (1 - e^-x) / x - e^-x, at maturity 0, made in place.

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
    "loss_truth": 0.0198085184,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.6, 0.3]))
        self.beta = nn.Parameter(torch.tensor([1.2, -0.8]))

    def forward(self, fixed):
        tau = torch.tensor([[0.0], [1.0], [5.0]])
        x = self.rate * tau
        if fixed:
            near = x == 0
            safe = torch.where(near, torch.ones_like(x), x)
            curve = torch.where(near, x / 2, -torch.expm1(-safe) / safe - torch.exp(-safe))
        else:
            decay = torch.exp(-x)
            curve = 1 - decay
            curve /= x  # ORIGIN
            curve -= decay
        return ((curve * self.beta).sum(1) - torch.tensor([0.1, 0.2, 0.3])).pow(2).mean()


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
