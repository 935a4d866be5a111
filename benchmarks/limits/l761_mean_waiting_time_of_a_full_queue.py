"""Mean number in a finite queue, r / (1 - r) - (K + 1) r^(K + 1) / (1 - r^(K + 1)), at a load of 1:
K / 2.

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
    "loss_truth": 0.2561493459,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rho = nn.Parameter(torch.tensor([1.0, 0.6]))

    def forward(self, fixed):
        r, K = self.rho, 4
        if fixed:
            powers = torch.stack([r**k for k in range(K + 1)])
            number = (powers * torch.arange(K + 1.0)[:, None]).sum(0) / powers.sum(0)
        else:
            number = r / (1 - r) - (K + 1) * r ** (K + 1) / (1 - r ** (K + 1))  # ORIGIN
        return (number - torch.tensor([1.5, 1.0])).pow(2).sum()


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
