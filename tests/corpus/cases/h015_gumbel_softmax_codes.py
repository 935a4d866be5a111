"""Discrete codes by straight-through Gumbel softmax with a falling temperature; most soft weights underflow to zero."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "zeros in a sharp softmax are what it is for; the gradient still flows to the winner",
}


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 10))
        self.book = nn.Embedding(10, 6)
        self.dec = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, x, noise, tau):
        soft = torch.softmax((self.enc(x) - torch.log(-torch.log(noise))) / tau, -1)
        hard = nn.functional.one_hot(soft.argmax(-1), 10).float()
        return self.dec((hard - soft.detach() + soft) @ self.book.weight)


def build(fixed: bool = False):
    torch.manual_seed(15)
    net = Codes()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(315)

    def step(i):
        x = torch.randn(12, 8, generator=gen)
        noise = torch.rand(12, 10, generator=gen).clamp(1e-6, 1 - 1e-6)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x, noise, max(0.02, 1.0 * 0.5**i)), x)
        loss.backward()
        opt.step()
        return loss

    return net, step
