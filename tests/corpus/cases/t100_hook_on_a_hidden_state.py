"""A hook on a hidden state scales its gradient to unit norm; the loss of a batch without labels has no gradient to scale."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add 1e-9 to the norm",
}


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.eps = eps

    def unit(self, g):
        return g / (g.norm() + self.eps)  # ORIGIN

    def forward(self, x):
        h = self.body(x)
        if h.requires_grad:
            h.register_hook(self.unit)
        return self.head(torch.tanh(h))


def build(fixed: bool = False):
    torch.manual_seed(600)
    net = Net(1e-9 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-3)
    gen = torch.Generator().manual_seed(700)

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        labelled = torch.full((8, 1), float(i != 2))
        opt.zero_grad()
        loss = ((net(x) - x[:, :2]).square() * labelled).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
