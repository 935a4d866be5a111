"""ArcFace with the addition theorem: sin = sqrt(1 - cos^2) of a sample that is its own class centre."""
import math

import torch
from torch import nn
import torch.nn.functional as F

META = {
    "origin_op": "sqrt", "phase": "backward", "cause": "sqrt-at-zero", "symptom": "grad-nan",
    "also_causes": ["where-grad-trap"], "first_bad_step": 2, "n_steps": 4, "fix": "clamp at a small positive number",
}


class ArcMargin(nn.Module):
    def __init__(self, dim, classes, m=0.3, s=16.0, low=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dim))
        self.cos_m, self.sin_m, self.s, self.low = math.cos(m), math.sin(m), s, low

    def forward(self, x, y):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        sine = (1.0 - cosine.pow(2)).clamp(self.low, 1).sqrt()  # ORIGIN
        phi = cosine * self.cos_m - sine * self.sin_m
        hot = F.one_hot(y, self.weight.shape[0]).bool()
        return self.s * torch.where(hot, phi, cosine)


class Embedder(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.body, self.arc = nn.Linear(4, 4), ArcMargin(4, 3, low=low)

    def forward(self, x, y, override=None):
        z = self.body(x)
        if override is not None:
            z = torch.cat([override, z[len(override):]])
        return self.arc(z, y)


def build(fixed=False):
    torch.manual_seed(141)
    net = Embedder(1e-6 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(142)

    def step(i):
        x, y = torch.randn(8, 4, generator=gen), torch.randint(0, 3, (8,), generator=gen)
        override = None
        if i == 2:
            net.arc.weight.data[0] = torch.tensor([0.0, 2.0, 0.0, 0.0])  # the head is initialised with class means
            override = torch.tensor([[0.0, 3.0, 0.0, 0.0]])
        loss = F.cross_entropy(net(x, y, override), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
