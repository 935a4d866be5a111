"""Log of a posterior's scale, log(softplus(rho)), with a rho of -110: the softplus is 0 there.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 110.3097828,
}


class Posterior(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.2, -0.4]))
        self.rho = nn.Parameter(torch.tensor([-1.0, -110.0]))

    def kl(self):
        sigma = F.softplus(self.rho)
        return (0.5 * (sigma**2 + self.mu**2 - 1) - torch.log(sigma)).sum()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.posterior = Posterior()

    def forward(self, fixed):
        if fixed:
            mu, rho = self.posterior.mu, self.posterior.rho
            logs = torch.stack([torch.log(F.softplus(rho[0])), rho[1]])
            return (0.5 * (torch.exp(2 * logs) + mu**2 - 1) - logs).sum()
        return self.posterior.kl()


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
