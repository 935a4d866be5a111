"""SAC's change of variables log(1 - tanh(u)^2) without its epsilon: for |u| above nine the bracket is zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "2 (log 2 - u - softplus(-2u))",
}


class Actor(nn.Module):
    def __init__(self, obs=5, act=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.mean, self.log_std = nn.Linear(24, act), nn.Linear(24, act)
        self.critic = nn.Sequential(nn.Linear(obs + act, 24), nn.ReLU(), nn.Linear(24, 1)).requires_grad_(False)

    def sample(self, obs, noise, stable):
        h = self.body(obs)
        std = self.log_std(h).clamp(-4, 1).exp()
        u = self.mean(h) + std * noise
        action = torch.tanh(u)
        if stable:
            correction = 2 * (0.6931472 - u - nn.functional.softplus(-2 * u))
        else:
            correction = torch.log(1 - action.square())  # ORIGIN
        return action, (-0.5 * noise.square() - std.log() - correction).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(91)
    net = Actor()
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    gen = torch.Generator().manual_seed(191)

    def step(i):
        obs = torch.randn(16, 5, generator=gen)
        if i == 3:
            obs[2] *= 150.0  # an observation that was not normalised
        action, logp = net.sample(obs, torch.randn(16, 2, generator=gen), fixed)
        q = net.critic(torch.cat([obs, action], -1)).squeeze(-1)
        opt.zero_grad()
        loss = (0.2 * logp - q).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
