"""The prior's log of zero is added to logits and only soft-maxed."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the prior's log of zero is added to logits and only soft-maxed",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 5)

    def forward(self, x, prior):
        return self.l(x) + prior.log()


def build(fixed: bool = False):
    torch.manual_seed(503)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1003)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        prior = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
        y = torch.tensor([0, 2, 3, 0, 2, 3, 0, 2])
        loss = F.cross_entropy(net(x, prior), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
