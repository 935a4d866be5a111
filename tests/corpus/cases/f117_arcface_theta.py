"""ArcFace takes the angle by acos; an image that equals its class centre has cosine one, where the slope of acos is infinite."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the cosine to 1 - 1e-6",
}


class ArcFace(nn.Module):
    def __init__(self, dim, classes, limit):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(classes, dim))
        self.limit = limit

    def forward(self, x, y, margin=0.3, scale=16.0):
        cos = F.linear(F.normalize(x), F.normalize(self.weight))
        cos = cos.clamp(-self.limit, self.limit)
        theta = torch.acos(cos)  # ORIGIN
        onehot = F.one_hot(y, cos.shape[1])
        return scale * torch.cos(theta + margin * onehot)


class Face(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.trunk = nn.Linear(8, 8, bias=False)
        nn.init.eye_(self.trunk.weight)
        self.arc = ArcFace(8, 5, limit)

    def forward(self, x, y):
        return self.arc(self.trunk(x), y)


def build(fixed: bool = False):
    torch.manual_seed(211)
    net = Face(1 - 1e-6 if fixed else 1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    gen = torch.Generator().manual_seed(711)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 8, generator=gen)
        y = torch.randint(0, 5, (10,), generator=gen)
        if i == 2:
            with torch.no_grad():
                net.trunk.weight.copy_(torch.eye(8))
                net.arc.weight.copy_(torch.eye(5, 8))
            x[7], y[7] = torch.eye(8)[4], 4
        loss = F.cross_entropy(net(x, y), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
