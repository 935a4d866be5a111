"""A learning rate just below the stability limit: the loss jumps up and down for a while, and still goes down."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 40,
    "why": "the error changes sign at each step but shrinks",
}


def build(fixed: bool = False):
    torch.manual_seed(616)
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.8)
    gen = torch.Generator().manual_seed(716)
    truth = torch.randn(5, 1, generator=gen)

    def step(i):
        x = torch.randn(64, 5, generator=gen)
        if i == 0:
            x = x * 2  # one rough start
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x @ truth)
        loss.backward()
        opt.step()
        return loss

    return net, step
