"""Categorical with a -inf logit: torch's own entropy clamps, log_prob is asked of legal actions only."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "torch clamps the logits in entropy, and no illegal action is scored",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(4, 5)

    def forward(self, obs, legal):
        logits = self.pi(obs).masked_fill(~legal, -torch.inf)
        return torch.distributions.Categorical(logits=logits)


def build(fixed: bool = False):
    torch.manual_seed(1877)
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1882)

    def step(i):
        opt.zero_grad()
        legal = torch.ones(6, 5, dtype=torch.bool)
        legal[:, 3] = False
        dist = net(torch.randn(6, 4, generator=gen), legal)
        act = torch.tensor([0, 1, 2, 4, 0, 1])
        loss = -(dist.log_prob(act) * torch.randn(6, generator=gen)).mean() - 0.01 * dist.entropy().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
