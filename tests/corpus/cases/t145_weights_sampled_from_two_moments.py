"""SWAG: weights are drawn from their running mean and mean square; of weights that hardly move the difference is rounded below zero."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "clamp the variance at zero",
}


class Swag:
    def __init__(self, net, least):
        self.net, self.n, self.least = net, 0, least
        self.mean = [torch.zeros_like(p) for p in net.parameters()]
        self.square = [torch.zeros_like(p) for p in net.parameters()]

    @torch.no_grad()
    def collect(self):
        for m, s, p in zip(self.mean, self.square, self.net.parameters(), strict=True):
            m.mul_(self.n / (self.n + 1)).add_(p / (self.n + 1))
            s.mul_(self.n / (self.n + 1)).add_(p.square() / (self.n + 1))
        self.n += 1

    @torch.no_grad()
    def sample(self, gen):
        for m, s, p in zip(self.mean, self.square, self.net.parameters(), strict=True):
            variance = s - m.square()
            if self.least is not None:
                variance = variance.clamp(min=self.least)
            p.copy_(m + torch.sqrt(variance) * torch.randn(p.shape, generator=gen))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(645)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    swag = Swag(net, 1e-12 if fixed else None)
    gen = torch.Generator().manual_seed(745)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
        opt.step()
        if i < 5:
            swag.collect()
        else:
            swag.sample(gen)
        return loss

    return net, step
