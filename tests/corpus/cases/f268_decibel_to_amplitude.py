"""A predicted level in decibels is turned into an amplitude by 10 ** (level / 20) and normalised by its sum."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "clamp the level, or a softmax of its logarithm",
}


class LevelNet(nn.Module):
    def __init__(self, top):
        super().__init__()
        self.net, self.top = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 5)), top

    def forward(self, x):
        level = self.net(x).clamp(max=self.top)
        amp = torch.pow(10.0, level / 20)  # ORIGIN
        return amp / amp.sum(-1, keepdim=True)


def build(fixed: bool = False):
    torch.manual_seed(1377)
    net = LevelNet(120.0 if fixed else torch.inf)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(1382)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, generator=gen)
        if i == 3:
            x[2] *= 9000
        loss = F.mse_loss(net(x), torch.full((8, 5), 0.2))
        loss.backward()
        opt.step()
        return loss

    return net, step
