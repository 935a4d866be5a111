"""InfoNCE of two views: exp(similarity / temperature) over the sum of its row, with a temperature
of 0.01.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.549833764,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 0.2], [0.9, 0.3], [-0.8, 0.4]]))
        self.b = nn.Parameter(torch.tensor([[0.9, 0.25], [0.85, 0.2], [-0.7, 0.6]]))

    def forward(self, fixed):
        a, b = F.normalize(self.a, dim=1), F.normalize(self.b, dim=1)
        sim = a @ b.t()
        if fixed:
            return F.cross_entropy(sim / 0.01, torch.arange(3))
        expo = torch.exp(sim / 0.01)
        pos = torch.diag(expo)
        neg = expo.sum(dim=1)
        return -torch.log(pos / neg).mean()  # ORIGIN


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
