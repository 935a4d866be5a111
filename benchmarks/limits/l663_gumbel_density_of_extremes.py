"""Log-likelihood of a Gumbel distribution as log(exp(-(z + exp(-z)))): an observation whose
density has vanished.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 48.49177644,
}


def density(x, mu, beta):
    z = (x - mu) / beta
    return torch.exp(-(z + torch.exp(-z))) / beta


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor(1.0))
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, fixed):
        x = torch.tensor([-1.5, 0.8, 2.5])
        if fixed:
            z = (x - self.mu) / self.beta
            return (z + torch.exp(-z) + torch.log(self.beta)).mean()
        return -torch.log(density(x, self.mu, self.beta)).mean()  # ORIGIN


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
