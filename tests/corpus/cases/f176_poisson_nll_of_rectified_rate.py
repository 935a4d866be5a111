"""A count model with a ReLU rate uses PoissonNLLLoss(log_input=False, eps=0): a rate of zero takes log of zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "eps=1e-8",
}


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x, shift):
        return torch.relu(self.net(x) + shift)


def build(fixed: bool = False):
    torch.manual_seed(320)
    net = Counts()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(820)
    criterion = nn.PoissonNLLLoss(log_input=False, eps=1e-6 if fixed else 0.0)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 4, generator=gen)
        count = torch.poisson(torch.full((10, 3), 2.0), generator=gen)
        rate = net(x, 3.0 if i == 0 else 0.2)
        loss = criterion(rate, count)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
