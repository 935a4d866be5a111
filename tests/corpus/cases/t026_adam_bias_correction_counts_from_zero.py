"""A hand-written Adam counts its steps from zero: the first bias correction divides by 1 - beta**0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "count the step before the correction",
}


class PlainAdam:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), first=0):
        self.params, self.lr, self.betas, self.count = list(params), lr, betas, first
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            m_hat = m / (1 - b1**self.count)  # ORIGIN
            v_hat = v / (1 - b2**self.count)
            p.sub_(self.lr * m_hat / (v_hat.sqrt() + 1e-8))
        self.count += 1


def build(fixed: bool = False):
    torch.manual_seed(426)
    net = nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(32, 3)
    )
    opt = PlainAdam(net.parameters(), first=1 if fixed else 0)
    gen = torch.Generator().manual_seed(526)

    def step(i):
        x = torch.randn(8, 2, 24, generator=gen)
        y = torch.randint(0, 3, (8,), generator=gen)
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step
