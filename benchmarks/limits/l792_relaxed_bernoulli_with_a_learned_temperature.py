"""Relaxed Bernoulli sample, sigmoid((log u - log(1 - u) + logit) / temperature), with a learned
temperature; one uniform draw is 0.

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
    "kind": "removable",
    "loss_truth": 0.1822480765,
}


class RelaxedBernoulli(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(-0.5))

    def forward(self, logits, u):
        noise = torch.log(u) - torch.log(1 - u)  # ORIGIN
        return torch.sigmoid((logits + noise) / self.log_temperature.exp())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.4, -0.2, 0.9]))
        self.sample = RelaxedBernoulli()

    def forward(self, fixed):
        u = torch.tensor([0.3, 0.0, 0.8])
        if fixed:
            keep = [0, 2]
            z = self.sample(self.logits[keep], u[keep])
            return (z - torch.tensor([0.2, 0.7])).pow(2).sum() + 0.09
        z = self.sample(self.logits, u)
        return (z - torch.tensor([0.2, 0.3, 0.7])).pow(2).sum()


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
