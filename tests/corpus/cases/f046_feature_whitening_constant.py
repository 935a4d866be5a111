"""Each sample's features are standardised by hand; after a ReLU with a dead layer the features of one sample are all equal."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "add an epsilon to the standard deviation",
}


class Standardise(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, h):
        centred = h - h.mean(-1, keepdim=True)
        spread = h.std(-1, keepdim=True)
        return centred / (spread + self.eps)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(46)
    net = nn.Sequential(
        nn.Linear(6, 24, bias=False),
        nn.ReLU(),
        nn.Linear(24, 16, bias=False),
        Standardise(1e-3 if fixed else 0.0),
        nn.Linear(16, 3),
    )
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(146)

    def step(i):
        x = torch.randn(10, 6, generator=gen)
        if i == 4:
            x[6] = 0.0  # a user without any history
        y = torch.randint(0, 3, (10,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
