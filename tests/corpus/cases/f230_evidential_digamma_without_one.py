"""Evidential classification with the Dirichlet's concentration taken as the ReLU evidence itself: digamma of zero."""

import torch
from torch import nn

META = {
    "origin_op": "digamma",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add one to the evidence",
}


class Evidential(nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.net, self.prior = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3)), prior

    def forward(self, x):
        return torch.relu(self.net(x)) + self.prior


def expected_ce(alpha, y):
    return torch.digamma(alpha.sum(1)) - torch.digamma(alpha.gather(1, y[:, None])).squeeze(1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1068)
    net = Evidential(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1073)
    with torch.no_grad():
        net.net[0].weight.abs_()
        net.net[2].weight.fill_(-0.15)
        net.net[2].bias.fill_(1.7)

    def step(i):
        opt.zero_grad()
        x = torch.randn(9, 5, generator=gen)
        if i == 2:
            x[4] = 30 * net.net[0].weight.detach().sum(0)
        loss = expected_ce(net(x), torch.arange(9) % 3).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
