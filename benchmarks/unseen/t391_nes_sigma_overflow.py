"""Separable natural evolution strategy: the step size is multiplied by exp of the raw reward's gradient and overflows within a few turns."""
import torch

META = {
    "origin_op": "exp",
    "phase": "forward",
    "also_phase": "other",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "rank the rewards before they enter the update",
}


def distance_run(x):
    return x.pow(2).sum(1) + 0.1 * torch.sin(5 * x).sum(1)


def build(fixed: bool = False):
    gen = torch.Generator().manual_seed(92)
    mu, sigma = torch.zeros(4), torch.full((4,), 0.5)

    def utility(r):
        if fixed:
            return r.argsort().argsort().float() / (len(r) - 1) - 0.5
        return r - r.mean()

    def step(i):
        nonlocal mu, sigma
        z = torch.randn(12, 4, generator=gen)
        reward = distance_run(mu + sigma * z)
        u = utility(reward)
        mu = mu + 0.1 * sigma * (u[:, None] * z).mean(0)
        sigma = sigma * torch.exp(0.3 * (u[:, None] * (z**2 - 1)).mean(0))  # ORIGIN
        return -reward.mean()

    return None, step
