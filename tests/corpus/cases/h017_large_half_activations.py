"""Half-precision features up to 60000, just below the largest float16, normalised by a layer that computes in float32."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the values are large and representable; nothing overflows"}


class Spectra(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 3))

    def forward(self, counts):
        return self.net(self.norm(counts))


def build(fixed: bool = False):
    torch.manual_seed(17)
    net = Spectra().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(317)

    def step(i):
        counts = (60000 * torch.rand(8, 12, generator=gen)).half()
        y = torch.randint(0, 3, (8,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(counts).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
