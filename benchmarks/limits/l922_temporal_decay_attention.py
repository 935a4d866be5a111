"""Hawkes intensity: log of the sum of exp(-b (t - s)) over earlier events; the first event has none but a base rate of 1e-60.

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
    "loss_truth": 126.6666667,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.tensor(30.0))
        self.log_mu = nn.Parameter(torch.tensor([-140.0]))

    def forward(self, fixed):
        t = torch.tensor([0.0, 4.0, 8.0]).to(self.b)
        lag = t[:, None] - t[None]
        past = lag > 0
        if fixed:
            z = torch.where(past, -self.b * lag, float("-inf"))
            return -torch.logsumexp(torch.cat([z, self.log_mu.expand(3, 1)], 1), 1).mean()
        mu = torch.exp(self.log_mu)
        rate = mu + torch.where(past, torch.exp(-self.b * lag), 0.0).sum(1)
        return -torch.log(rate).mean()  # ORIGIN


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
