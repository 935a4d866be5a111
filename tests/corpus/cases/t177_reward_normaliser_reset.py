"""A running reward normaliser (Welford) is reset for a new environment: after the first reward m2 / (n - 1) is 0 / 0."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "other",
    "cause": "div-by-zero",
    "also_causes": ("empty-reduction",),
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 7,
    "fix": "clamp n - 1 to at least one, and an epsilon",
}


class RunningNorm:
    def __init__(self, fixed):
        self.fixed = fixed
        self.reset()

    def reset(self):
        self.n, self.mean, self.m2 = torch.zeros(()), torch.zeros(()), torch.zeros(())

    def update(self, x):
        self.n = self.n + 1
        delta = x - self.mean
        self.mean = self.mean + delta / self.n
        self.m2 = self.m2 + delta * (x - self.mean)

    def __call__(self, x):
        if self.fixed:
            var = self.m2 / (self.n - 1).clamp_min(1.0) + 1e-4
        else:
            var = self.m2 / (self.n - 1)  # ORIGIN
        return (x - self.mean) / (var.sqrt() + 1e-8)


def rollouts(policy, norm, gen):
    """Ten rollouts; the sixth begins a new environment."""
    for _ in range(100):
        norm.update(torch.randn((), generator=gen))
    k = 0
    while True:
        if k == 6:
            norm.reset()
        obs = torch.randn(12, 5, generator=gen)
        logp = torch.log_softmax(policy(obs), -1)
        act = torch.multinomial(logp.detach().exp(), 1, generator=gen)
        rewards = []
        for r in (act.squeeze(1) == 0).float() + 0.1 * torch.randn(12, generator=gen):
            norm.update(r)
            rewards.append(norm(r))
        yield logp.gather(1, act).squeeze(1), torch.stack(rewards)
        k += 1


def build(fixed: bool = False):
    torch.manual_seed(74)
    policy = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    data = rollouts(policy, RunningNorm(fixed), torch.Generator().manual_seed(75))

    def step(i):
        logp, reward = next(data)
        loss = -(logp * reward).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return policy, step
