"""A matrix of pairwise log ratios is NaN on its diagonal and only its upper triangle is indexed."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "what is NaN carries no gradient and is replaced",
}


class Ratios(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)

    def forward(self, x):
        s = self.lin(x).squeeze(1)
        with torch.no_grad():
            gap = (x[:, None, 0] - x[None, :, 0]).log()
        i, j = torch.triu_indices(len(x), len(x), 1)
        return (s[i] - s[j]).square() * torch.nan_to_num(gap[i, j], nan=0.0)


def build(fixed: bool = False):
    torch.manual_seed(2719)
    net = Ratios()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2724)

    def step(i):
        opt.zero_grad()
        loss = net(torch.randn(5, 3, generator=gen)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
