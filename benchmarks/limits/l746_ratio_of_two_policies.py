"""Ratio of new and old policy as a quotient of two densities, exp(-z^2 / 2) both; the action is far
from both.

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
    "kind": "overflow",
    "loss_truth": -0.6951596431,
}


def density(a, mu, std):
    return torch.exp(-((a - mu) ** 2) / (2 * std**2)) / std


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.1, 0.2]))

    def forward(self, fixed):
        action = torch.tensor([8.0, 0.3])
        old_mu = torch.tensor([0.08, 0.25])
        advantage = torch.tensor([1.0, -0.5])
        if fixed:
            log_new = -((action - self.mu) ** 2) / (2 * 0.5**2)
            log_old = -((action - old_mu) ** 2) / (2 * 0.5**2)
            ratio = torch.exp(log_new - log_old)
        else:
            ratio = density(action, self.mu, 0.5) / density(action, old_mu, 0.5)  # ORIGIN
        return -(ratio * advantage).mean()


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
