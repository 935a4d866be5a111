"""A Lorentz model measures acosh of minus the inner product; two equal items have exactly one, where the slope is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp at 1 + 1e-5",
}


class Lorentz(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.low = low
        self.emb = nn.Embedding(10, 3)
        nn.init.normal_(self.emb.weight, std=0.3)

    def forward(self, u, v):
        x, y = self.emb(u), self.emb(v)
        inner = ((x - y).square().sum(-1)) * 2 + 1
        return torch.acosh(inner.clamp(min=self.low))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(515)
    net = Lorentz(1 + 1e-4 if fixed else 1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        u = torch.arange(8) % 5
        v = u + 5
        if i == 2:
            v[3] = u[3]
        d = net(u, v)
        loss = (d - 0.5).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
