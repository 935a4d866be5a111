"""A population model x -> r x (1 - x) is fitted through its own trajectory: bounded forward, while its derivative doubles each season."""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "also_ops": ("rsub", "sub"),
    "phase": "backward",
    "cause": "exploding-gradient",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "teacher forcing: restart from the observation every ten seasons",
}


class Population(nn.Module):
    def __init__(self, restart):
        super().__init__()
        self.restart = restart
        self.rate = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, habitat, x, seasons):
        r = 3.9 + 0.1 * torch.sigmoid(self.rate(habitat).squeeze(-1))
        path = []
        for k in range(seasons):
            if self.restart and k % 10 == 0:
                x = x.detach()
            x = r * x * (1 - x)  # ORIGIN
            path.append(x)
        return torch.stack(path)


def build(fixed: bool = False):
    torch.manual_seed(103)
    net = Population(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(203)

    def step(i):
        habitat, start = torch.randn(6, 3, generator=gen), 0.1 + 0.8 * torch.rand(6, generator=gen)
        path = net(habitat, start, 20 + 100 * i)  # more and more seasons
        opt.zero_grad()
        loss = (path.mean(0) - 0.55).square().mean()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
