"""Masked log-softmax with -inf, gathered at legal entries, entropy by masking the product with where."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the infinities are replaced before they meet anything",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(3, 4)

    def forward(self, x, legal):
        logp = self.pi(x).masked_fill(~legal, -torch.inf).log_softmax(-1)
        safe = logp.masked_fill(~legal, 0.0)
        return logp, -(safe.exp() * safe * legal).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(2705)
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2710)

    def step(i):
        opt.zero_grad()
        legal = torch.rand(6, 4, generator=gen) > 0.4
        legal[:, 0] = True
        logp, entropy = net(torch.randn(6, 3, generator=gen), legal)
        loss = -logp[:, 0].mean() - 0.01 * entropy.mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
