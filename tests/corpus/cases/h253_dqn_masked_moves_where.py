"""DQN with illegal moves at -inf and terminal states without any: where keeps the infinity out of the target."""
import copy

import torch
from torch import nn

META = {"healthy": True, "n_steps": 10, "why": "where on a target without gradient"}


def build(fixed: bool = False):
    torch.manual_seed(106)
    q = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    slow = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.RMSprop(q.parameters(), lr=1e-3, centered=True)
    gen = torch.Generator().manual_seed(107)
    best = torch.tensor(float("-inf"))

    def step(i):
        nonlocal best
        s, s2 = torch.randn(32, 6, generator=gen), torch.randn(32, 6, generator=gen)
        a = torch.randint(0, 4, (32, 1), generator=gen)
        done = torch.rand(32, generator=gen) < 0.3
        legal = (torch.rand(32, 4, generator=gen) > 0.4) & ~done[:, None]
        dead = ~legal.any(1)
        with torch.no_grad():
            value = slow(s2).masked_fill(~legal, float("-inf")).amax(1)
            y = s[:, 0] + torch.where(dead, torch.zeros_like(value), 0.98 * value)
        loss = nn.functional.smooth_l1_loss(q(s).gather(1, a).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        best = torch.maximum(best, y.mean())
        with torch.no_grad():
            for p, t in zip(q.parameters(), slow.parameters(), strict=True):
                t.lerp_(p, 0.01)
        return loss

    return q, step
