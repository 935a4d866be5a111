"""House prices in thousands, squared, and summed over the batch: a loss of millions that float32 holds with ease."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 25,
    "why": "a loss far above float16's maximum is no fault where nothing is float16",
}


def build(fixed: bool = False):
    torch.manual_seed(615)
    net = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=0.3)
    gen = torch.Generator().manual_seed(715)

    def step(i):
        x = torch.rand(64, 7, generator=gen)
        price = 250.0 + 300.0 * x[:, 0] * x[:, 1] + 20.0 * torch.randn(64, generator=gen)
        opt.zero_grad()
        loss = (net(x).squeeze(-1) - price).square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
