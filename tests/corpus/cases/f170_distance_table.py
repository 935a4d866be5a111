"""A relative-position table is the log of the distance; distance zero makes the diagonal -inf, and a head's slope of zero makes it NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "also_ops": ("mul",),
    "phase": "init",
    "cause": "poisoned-buffer",
    "also_causes": ("log-of-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "log1p of the distance",
}


class Bias(nn.Module):
    def __init__(self, n, plus):
        super().__init__()
        pos = torch.arange(n).float()
        dist = (pos[:, None] - pos[None]).abs()
        self.register_buffer("table", torch.log(dist + plus))  # ORIGIN
        self.slope = nn.Parameter(torch.tensor([0.0, -0.5]))

    def forward(self):
        return self.slope[:, None, None] * self.table  # ALSO


class Att(nn.Module):
    def __init__(self, n, plus):
        super().__init__()
        self.bias = Bias(n, plus)
        self.q, self.k, self.out = nn.Linear(4, 16), nn.Linear(4, 16), nn.Linear(4, 2)

    def forward(self, x):
        q, k = (f(x).view(x.shape[0], -1, 2, 8).transpose(1, 2) for f in (self.q, self.k))
        w = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + self.bias(), -1)
        return self.out((w.mean(1) @ x).mean(1))


def build(fixed: bool = False):
    torch.manual_seed(313)
    net = Att(6, 1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(813)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 6, 4, generator=gen)
        loss = F.cross_entropy(net(x), torch.arange(4) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
