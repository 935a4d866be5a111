"""Pairwise distances as |a|^2 + |b|^2 - 2ab in half: for near neighbours the rounding is negative and the root NaN."""
import torch
from torch import nn

META = {
    "origin_op": "sqrt", "phase": "forward", "cause": "sqrt-of-negative", "also_causes": ("sqrt-at-zero",), "symptom": "loss-nan",
    "first_bad_step": 0, "n_steps": 3, "fix": "clamp_min before the root, in float32",
}


def pdist(z, wide):
    if wide:
        z = z.float()
    sq = (z * z).sum(-1)
    d2 = sq[:, None] + sq[None, :] - 2 * z @ z.T
    if wide:
        return torch.sqrt(d2.clamp_min(1e-6))
    return torch.sqrt(d2)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(84)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16)).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(85)

    def step(i):
        x = torch.randn(24, 6, generator=gen) * 3
        z = net(x.half())
        d = pdist(z, fixed).float()
        target = torch.cdist(x, x)
        off = ~torch.eye(24, dtype=torch.bool)
        loss = (d - target)[off].pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
