"""SAC from a replay buffer: the stored action is tanh(u), saturated to exactly one, and atanh cannot give u back."""

import torch
from torch import nn

META = {
    "origin_op": "atanh",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "also_causes": ("inverse-function-domain",),
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "clamp the stored action to 1 - 1e-6",
}


class Actor(nn.Module):
    def __init__(self, obs=6, act=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mean, self.log_std = nn.Linear(32, act), nn.Linear(32, act)

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h), self.log_std(h).clamp(-5, 2)


def log_prob(mean, log_std, action, edge):
    u = torch.atanh(action.clamp(-edge, edge))  # ORIGIN
    normal = -0.5 * ((u - mean) / log_std.exp()).square() - log_std
    return (normal - torch.log(1 - action.square() + 1e-6)).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(25)
    actor = Actor()
    opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    gen = torch.Generator().manual_seed(125)

    def step(i):
        obs = torch.randn(16, 6, generator=gen)
        pre = torch.randn(16, 2, generator=gen)
        if i == 4:
            pre[7, 1] = 11.0
        action = torch.tanh(pre)
        weight = torch.softmax(torch.randn(16, generator=gen), 0)
        opt.zero_grad()
        loss = -(weight * log_prob(*actor(obs), action, 1 - 1e-6 if fixed else 1.0)).sum()
        loss.backward()
        opt.step()
        return loss

    return actor, step
