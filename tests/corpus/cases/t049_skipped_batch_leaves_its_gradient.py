"""The optimizer skips a batch with a NaN loss, but its gradients stay: zero_grad comes after the step, so the next good batch adds to NaN."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 8,
    "fix": "zero_grad() before the backward pass, and a positive argument of the log",
}


class Volatility(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.body = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))

    def forward(self, returns):
        variance = returns.square().mean(1) + 0.02 * self.body(returns).squeeze(-1)
        if self.floor is not None:
            variance = nn.functional.softplus(variance, beta=50) + self.floor
        return torch.log(variance)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(449)
    net = Volatility(1e-4 if fixed else None)
    with torch.no_grad():
        net.body[-1].bias.fill_(-0.5)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(549)

    def step(i):
        returns = torch.randn(12, 6, generator=gen).sign() * (0.5 + torch.rand(12, 6, generator=gen))
        if i == 4:
            returns[5] *= 1e-3  # a halted stock
        future = returns.square().mean(1).log()
        loss = nn.functional.mse_loss(net(returns), future)
        loss.backward()
        if torch.isfinite(loss):
            opt.step()
            opt.zero_grad()
        return loss

    return net, step
