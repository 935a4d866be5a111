"""A connectome loss applies Fisher's z to Pearson correlations; the correlation of a signal with itself rounds above one."""

import torch
from torch import nn

META = {
    "origin_op": "atanh",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "also_causes": ("inverse-function-domain",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "scale the correlations by 1 - 1e-5",
}


def pearson(x):
    x = x - x.mean(-1, keepdim=True)
    x = x / x.norm(dim=-1, keepdim=True)
    return x @ x.transpose(-1, -2)


class Encoder(nn.Module):
    def __init__(self, shrink):
        super().__init__()
        self.shrink = shrink
        self.tcn = nn.Sequential(nn.Conv1d(6, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 6, 5, padding=2))

    def forward(self, bold):
        r = pearson(self.tcn(bold)) * self.shrink
        return torch.atanh(r)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(212)
    net = Encoder(1 - 1e-5 if fixed else 1.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(712)

    def step(i):
        opt.zero_grad()
        bold = torch.randn(4, 6, 40, generator=gen)
        z = net(bold)
        loss = z.triu(1).square().mean() + 1e-3 * z.abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
