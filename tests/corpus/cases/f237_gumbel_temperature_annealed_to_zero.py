"""The temperature of F.gumbel_softmax is annealed linearly and reaches zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "stop at a temperature of 0.1",
}


class Discrete(nn.Module):
    def __init__(self, steps, floor):
        super().__init__()
        self.enc, self.code = nn.Linear(5, 6), nn.Linear(6, 5, bias=False)
        self.steps, self.floor = steps, floor

    def forward(self, x, i):
        tau = max(1.0 - i / self.steps, self.floor)
        return self.code(F.gumbel_softmax(self.enc(x), tau=tau))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(984)
    net = Discrete(3, 0.1 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(989)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 5, generator=gen)
        loss = F.mse_loss(net(x, i), x)
        loss.backward()
        opt.step()
        return loss

    return net, step
