"""log(exp(a) + exp(b) + exp(c)) written with three exponentials; one energy is 95.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 14.12495225,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([95.0, 0.1]))
        self.b = nn.Parameter(torch.tensor([94.0, -1.0]))
        self.c = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            total = torch.logsumexp(torch.stack([self.a, self.b, self.c]), 0)
        else:
            total = torch.log(torch.exp(self.a) + torch.exp(self.b) + torch.exp(self.c))  # ORIGIN
        return ((total - torch.tensor([90.0, 1.0])) ** 2).mean()


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
