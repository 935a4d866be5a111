"""A Normal policy whose scale is softplus of an unbounded output: at -120 the scale is exactly zero in float32."""

import torch
from torch import distributions as D
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "also_ops": ("log",),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("log-of-zero", "infeasible-likelihood"),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "add a floor to the scale",
}


class GaussianActor(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.mu, self.raw = nn.Linear(16, 2), nn.Linear(3, 2)
        self.floor = floor

    def forward(self, obs):
        scale = F.softplus(self.raw(obs)) + self.floor
        return D.Independent(D.Normal(self.mu(self.trunk(obs)), scale, validate_args=False), 1, validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(935)
    net = GaussianActor(1e-2 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(940)
    with torch.no_grad():
        net.raw.weight.copy_(-net.raw.weight.abs() - 0.1)

    def step(i):
        opt.zero_grad()
        obs = torch.rand(8, 3, generator=gen)
        if i == 3:
            obs[5] = 400.0
        act, adv = torch.randn(8, 2, generator=gen), torch.randn(8, generator=gen)
        loss = -(net(obs).log_prob(act) * adv).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
