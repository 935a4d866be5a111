"""Contrastive learning with a learned temperature kept non-negative by a clamp: it is driven into the clamp, which is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 14,
    "fix": "clamp at 0.05",
}


class Matcher(nn.Module):
    def __init__(self, least):
        super().__init__()
        self.left, self.right = nn.Linear(10, 16), nn.Linear(10, 16)
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.least = least

    def forward(self, a, b):
        a = nn.functional.normalize(self.left(a), dim=-1)
        b = nn.functional.normalize(self.right(b), dim=-1)
        return a @ b.T / self.temperature.clamp(min=self.least)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(605)
    net = Matcher(0.05 if fixed else 0.0)
    net.right.load_state_dict(net.left.state_dict())
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    gen = torch.Generator().manual_seed(705)

    def step(i):
        a = torch.randn(12, 10, generator=gen)
        b = a + 0.2 * torch.randn(12, 10, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(a, b), torch.arange(12))
        loss.backward()
        opt.step()
        return loss

    return net, step
