"""Log probability of observed classes picked by gather; a class that nobody saw has a probability
of exactly 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.5007242701,
}


class Likelihood(nn.Module):
    def forward(self, weight, seen):
        p = torch.relu(weight)
        p = p / p.sum(-1, keepdim=True)
        return torch.log(p).gather(-1, seen).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.5, 0.9, -0.3], [0.4, 0.2, 0.8]]))
        self.likelihood = Likelihood()

    def forward(self, fixed):
        seen = torch.tensor([[1], [2]])
        if fixed:
            a, b = self.weight[0, :2], self.weight[1]
            return -(torch.log(a[1] / a.sum()) + torch.log(b[2] / b.sum())) / 2
        return -self.likelihood(self.weight, seen)


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
