"""SAC from a replay buffer with TransformedDistribution: a stored action of exactly one has no inverse under tanh."""

import torch
from torch import nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

META = {
    "origin_op": "atanh",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "also_causes": ("infeasible-likelihood",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "clamp stored actions to 1 - 1e-6",
}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, obs):
        mu, log_std = self.net(obs).chunk(2, -1)
        base = Normal(mu, log_std.clamp(-5, 2).exp())
        return TransformedDistribution(base, [TanhTransform(cache_size=1)], validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(308)
    net = Actor()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    gen = torch.Generator().manual_seed(808)

    def step(i):
        opt.zero_grad()
        obs = torch.randn(16, 6, generator=gen)
        action = torch.tanh(torch.randn(16, 2, generator=gen))
        if i == 2:
            action[9, 1] = 1.0
        if fixed:
            action = action.clamp(-1 + 1e-6, 1 - 1e-6)
        logp = net(obs).log_prob(action).sum(-1)  # ORIGIN
        loss = -logp.mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
