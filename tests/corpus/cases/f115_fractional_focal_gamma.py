"""Focal loss with an exponent below one: an easy sample has p exactly one, and (1 - p) ** 0.5 has an infinite slope there."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp 1 - p to 1e-6 before the power",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.seq(x)


def focal(logits, y, gamma, floor):
    logp = F.log_softmax(logits, -1).gather(1, y[:, None]).squeeze(1)
    miss = (1 - logp.exp()).clamp_min(floor) if floor else 1 - logp.exp()
    weight = miss**gamma  # ORIGIN
    return (weight * -logp).mean()


def build(fixed: bool = False):
    torch.manual_seed(209)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(709)
    floor = 1e-6 if fixed else 0.0

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 10, generator=gen)
        y = torch.randint(0, 4, (16,), generator=gen)
        logits = net(x)
        if i >= 3:
            logits = logits + 40.0 * F.one_hot(y, 4) * (torch.arange(16) < 3)[:, None]  # a prior for the known items
        loss = focal(logits, y, 0.5, floor)
        loss.backward()
        opt.step()
        return loss

    return net, step
