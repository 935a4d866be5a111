"""A legality mask in log space is log(0/1): zeros and -inf, added to logits; each row keeps a legal action and the target is legal."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "log(0) is meant: it makes an illegal action's probability zero"}


def build(fixed: bool = False):
    torch.manual_seed(14)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 6))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(314)

    def step(i):
        obs = torch.randn(12, 8, generator=gen)
        legal = (torch.rand(12, 6, generator=gen) < 0.6).float()
        action = torch.randint(0, 6, (12, 1), generator=gen)
        legal.scatter_(1, action, 1.0)
        advantage = torch.randn(12, generator=gen)
        opt.zero_grad()
        logp = torch.log_softmax(net(obs) + legal.log(), -1)
        loss = -(advantage * logp.gather(1, action).squeeze(1)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
