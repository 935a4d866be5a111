"""Topic proportions are scored under a Dirichlet with concentration below one; a topic of exactly zero has infinite density."""

import torch
from torch import nn
from torch.distributions import Dirichlet

META = {
    "origin_op": "xlogy",
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "smooth the proportions",
}


class Topics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, bow):
        return Dirichlet(0.2 + 0.5 * torch.sigmoid(self.net(bow)), validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(245)
    net = Topics()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(745)

    def step(i):
        opt.zero_grad()
        bow = torch.rand(6, 9, generator=gen)
        share = torch.softmax(torch.randn(6, 4, generator=gen), -1)
        if i == 2:
            share[2] = torch.tensor([0.5, 0.5, 0.0, 0.0])
        if fixed:
            share = (share + 1e-3) / (1 + 4e-3)
        loss = -net(bow).log_prob(share).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
