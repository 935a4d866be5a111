"""bfloat16 autocast with activations of 1e6, beyond float16: the format has float32's range."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "what float16 could not hold is no concern in bfloat16"}


class Flux(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = self.conv(x * 1e6).float().mean(-1)
        return self.head(torch.log1p(h)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(34)
    net = Flux()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(334)

    def step(i):
        x = torch.randn(6, 1, 20, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), 10 + x.mean((1, 2)))
        loss.backward()
        opt.step()
        return loss

    return net, step
