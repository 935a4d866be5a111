"""Gradient descent with a backtracking line search on a log barrier: trial points beyond the barrier give NaN, and the search comes back."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the line search rejects the points where the barrier is not defined",
}


class Portfolio(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((4,), 0.25))

    def forward(self, returns):
        return -(returns @ self.w).mean() + (self.w.sum() - 1).square() - 0.01 * torch.log(self.w).sum()


def build(fixed: bool = False):
    torch.manual_seed(832)
    net = Portfolio()
    gen = torch.Generator().manual_seed(932)
    returns = 0.1 * torch.randn(64, 4, generator=gen) + torch.tensor([0.4, 0.1, -0.2, -1.0])

    def step(i):
        net.zero_grad()
        loss = net(returns)
        loss.backward()
        with torch.no_grad():
            start, rate = net.w.clone(), 1.0
            for _ in range(20):
                net.w.copy_(start - rate * net.w.grad)
                trial = net(returns)
                if trial < loss:  # false for NaN
                    break
                rate *= 0.5
        return loss

    return net, step
