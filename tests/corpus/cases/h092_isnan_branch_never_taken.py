"""A training loop that would skip a NaN loss, computes an infinite running best, and divides by a count that is
never zero.
"""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the infinity is a start value and the branch is not taken",
}


def evaluate(net, x):
    with torch.no_grad():
        return (net(x) - 1).square().mean()


def build(fixed: bool = False):
    torch.manual_seed(2712)
    net = nn.Linear(3, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2717)
    state = {"best": torch.tensor(float("inf"))}

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 3, generator=gen)
        loss = net(x).square().mean() / max(i, 1)
        state["best"] = torch.minimum(state["best"], evaluate(net, x))
        if torch.isnan(loss):
            loss = torch.zeros((), requires_grad=True)
        loss.backward()
        opt.step()
        return loss

    return net, step
