"""The sum runs over the legal actions only."""

import torch
from torch import nn
from torch.distributions import Categorical

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the sum runs over the legal actions only",
}


class Pi(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x, mask):
        return Categorical(logits=self.seq(x).masked_fill(~mask, -1e8))


def build(fixed: bool = False):
    torch.manual_seed(312)
    net = Pi()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(812)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        mask = torch.rand(8, 5, generator=gen) < 0.5
        mask[:, 0] = True
        pi = net(x, mask)
        act = mask.long().argmax(-1)
        loss = -(pi.log_prob(act) * x[:, 0]).mean() - 0.01 * pi.entropy().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
