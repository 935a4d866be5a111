"""PPO: an old rollout is reused after its policy moved away; exp(new log-prob - old log-prob) is infinite with a negative advantage."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "clamp the log-ratio before exponentiating",
}


class Policy(nn.Module):
    def __init__(self, obs=4, act=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.mean, self.log_std = nn.Linear(24, act), nn.Parameter(torch.full((act,), -1.0))

    def log_prob(self, obs, action):
        z = (action - self.mean(self.body(obs))) / self.log_std.exp()
        return (-0.5 * z.square() - self.log_std).sum(-1)


def surrogate(new, old, advantage, limit):
    gap = new - old
    if limit:
        gap = gap.clamp(-limit, limit)
    ratio = torch.exp(gap)  # ORIGIN
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def build(fixed: bool = False):
    torch.manual_seed(31)
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(131)

    def step(i):
        obs = torch.randn(16, 4, generator=gen)
        with torch.no_grad():
            action = net.mean(net.body(obs)) + net.log_std.exp() * torch.randn(16, 2, generator=gen)
            old = net.log_prob(obs, action)
        advantage = torch.randn(16, generator=gen)
        if i == 4:
            old[9] -= 120.0  # a transition recorded by a policy of long ago
            advantage[9] = -1.5
        opt.zero_grad()
        loss = surrogate(net.log_prob(obs, action), old, advantage, 10.0 if fixed else None)
        loss.backward()
        opt.step()
        return loss

    return net, step
