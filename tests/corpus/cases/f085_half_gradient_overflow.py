"""A half-precision regressor in raw units: the forward pass fits float16, the summed gradient of a weight does not."""

import torch
from torch import nn

META = {
    "origin_op": "mm",
    "also_ops": ("addmm", "linear", "t", "mul"),
    "phase": "backward",
    "cause": "dtype-overflow",
    "symptom": "grad-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "mean instead of sum, in float32",
}


class Calorimeter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return self.out(h).squeeze(-1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(85)
    net = Calorimeter().half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(185)

    def step(i):
        x = 2 * torch.rand(64, 6, generator=gen)
        y = x.sum(1)
        if i == 3:
            y = y + 900.0  # the pedestal was not subtracted
        opt.zero_grad()
        error = net(x.half()).float() - y
        loss = error.square().mean() if fixed else error.square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
