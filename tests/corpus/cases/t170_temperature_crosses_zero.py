"""Soft actor-critic learns its temperature itself, not its logarithm; with a high rate it becomes negative, and its log is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 8,
    "fix": "learn the logarithm",
}


class SAC(nn.Module):
    def __init__(self, logarithm):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 4))
        self.critics = nn.ModuleList(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(2))
        self.temperature = nn.Parameter(torch.tensor(0.0 if logarithm else 0.5))
        self.logarithm = logarithm

    def act(self, obs, noise):
        mu, log_std = self.actor(obs).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        raw = mu + noise * log_std.exp()
        log_p = (-0.5 * noise.square() - log_std).sum(-1) - (2 * (0.693 - raw - nn.functional.softplus(-2 * raw))).sum(
            -1
        )
        return torch.tanh(raw), log_p

    def log_alpha(self):
        return self.temperature if self.logarithm else torch.log(self.temperature)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(802)
    model = SAC(fixed)
    opts = {
        "actor": torch.optim.Adam(model.actor.parameters(), lr=1e-3),
        "critic": torch.optim.Adam(model.critics.parameters(), lr=1e-3),
        "alpha": torch.optim.Adam([model.temperature], lr=0.15),
    }
    gen = torch.Generator().manual_seed(1802)

    def update(name, loss):
        opts[name].zero_grad()
        loss.backward()
        opts[name].step()

    def step(i):
        obs, noise = torch.randn(32, 4, generator=gen), torch.randn(32, 2, generator=gen)
        alpha = model.log_alpha().exp().detach()
        action, log_p = model.act(obs, noise)
        aim = obs[:, :1] - alpha * log_p.detach()[:, None]
        q = [c(torch.cat([obs, action.detach()], 1)) for c in model.critics]
        update("critic", sum(nn.functional.mse_loss(v, aim) for v in q))
        value = torch.min(*(c(torch.cat([obs, action], 1)) for c in model.critics)).squeeze(1)
        loss = (alpha * log_p - value).mean()
        update("actor", loss)
        update("alpha", -(model.log_alpha() * (log_p.detach() - 8.0).mean()))
        return loss.detach()

    return model, step
