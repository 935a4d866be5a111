"""A VICReg-like loss takes the unbiased variance per class; a class with a single sample divides by zero."""

import torch
from torch import nn

META = {
    "origin_op": "var",
    "also_ops": ("sum", "div"),
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "unbiased=False",
}


class Net(nn.Module):
    def __init__(self, unbiased):
        super().__init__()
        self.unbiased = unbiased
        self.enc = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x, y):
        z = self.enc(x)
        spread = [z[y == c].var(0, unbiased=self.unbiased).mean() for c in y.unique()]  # ORIGIN
        return z.square().mean() + torch.stack(spread).mean()


def build(fixed: bool = False):
    torch.manual_seed(410)
    net = Net(not fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(910)

    def step(i):
        opt.zero_grad()
        x = torch.randn(9, 5, generator=gen)
        y = torch.arange(9) % 3
        if i == 2:
            y[y == 2] = 1
            y[0] = 2
        loss = net(x, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
