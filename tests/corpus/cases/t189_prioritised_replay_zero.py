"""Prioritised replay: a transition with a TD error of exactly zero has priority 0, and its importance weight is 0 to a negative power."""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-fraction-at-zero",
    "also_causes": ("div-by-zero", "pow-negative-base"),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 5,
    "fix": "priority = |td| + eps",
}


class PrioritisedReplay:
    def __init__(self, n, gen, eps):
        self.gen, self.eps = gen, eps
        self.obs = torch.randn(n, 5, generator=gen)
        self.reward = self.obs[:, 0].clone()
        self.obs[::10] = 0.0  # resting states, worth nothing
        self.reward[::10] = 0.0
        self.priority = torch.ones(n)

    def sample(self, k, beta, uniform):
        p = self.priority / self.priority.sum()
        if uniform:  # a share of the batch is drawn evenly, so that nothing is forgotten
            idx = torch.cat([torch.multinomial(p, k // 2, generator=self.gen), torch.arange(0, len(p), 5)[: k // 2]])
        else:
            idx = torch.multinomial(p, k, generator=self.gen)
        w = (len(p) * p[idx]) ** (-beta)  # ORIGIN
        return idx, w / w.max()

    def update(self, idx, td):
        self.priority[idx] = td.abs() + self.eps


def build(fixed: bool = False):
    torch.manual_seed(89)
    value = nn.Sequential(nn.Linear(5, 16, bias=False), nn.Tanh(), nn.Linear(16, 1, bias=False))
    opt = torch.optim.Adam(value.parameters(), lr=1e-2)
    replay = PrioritisedReplay(80, torch.Generator().manual_seed(90), 1e-6 if fixed else 0.0)

    def step(i):
        idx, w = replay.sample(24, 0.4 + 0.05 * i, uniform=i >= 4)
        td = replay.reward[idx] - value(replay.obs[idx]).squeeze(-1)
        loss = (w * td.pow(2)).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(value.parameters(), 10.0)
        opt.step()
        replay.update(idx, td.detach())
        return loss

    return value, step
