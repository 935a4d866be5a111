"""A logit of -1e9 and a hard target: log_softmax and the fused loss stay finite."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "a logit of -1e9 and a hard target: log_softmax and the fused loss stay finite",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(5, 6)

    def forward(self, x, mask):
        return self.l(x).masked_fill(~mask, -1e9)


def build(fixed: bool = False):
    torch.manual_seed(410)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(910)

    def step(i):
        opt.zero_grad()
        x = torch.randn(7, 5, generator=gen)
        mask = torch.rand(7, 6, generator=gen) < 0.6
        y = torch.arange(7) % 6
        mask[torch.arange(7), y] = True
        out = net(x, mask)
        probs = out.softmax(-1)
        loss = F.cross_entropy(out, y) - 0.01 * (probs * (probs + 1e-12).log()).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
