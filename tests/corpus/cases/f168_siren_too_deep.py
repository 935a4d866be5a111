"""A SIREN with omega 30 in every layer and the plain linear initialisation: its values stay within one, its gradient grows tenfold a layer."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sin",
    "also_ops": ("mul", "mm", "addmm", "linear", "cos"),
    "phase": "backward",
    "cause": "exploding-gradient",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "omega 1 in the hidden layers",
}


class Siren(nn.Module):
    def __init__(self, omega, depth=60):
        super().__init__()
        self.inp = nn.Linear(2, 32)
        self.mid = nn.ModuleList([nn.Linear(32, 32) for _ in range(depth)])
        self.out = nn.Linear(32, 1)
        self.omega = omega

    def forward(self, x):
        h = torch.sin(30 * self.inp(x))
        for layer in self.mid:
            h = torch.sin(self.omega * layer(h))  # ORIGIN
        return self.out(h).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(311)
    net = Siren(1.0 if fixed else 30.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(811)

    def step(i):
        opt.zero_grad()
        x = torch.rand(16, 2, generator=gen)
        loss = F.mse_loss(net(x), x[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
