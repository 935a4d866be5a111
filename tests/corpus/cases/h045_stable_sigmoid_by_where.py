"""Both branches of the sigmoid take the exponential of a non-positive number."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "both branches of the sigmoid take the exponential of a non-positive number",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        z = self.seq(x).squeeze(-1) * 50
        e = torch.exp(-z.abs())
        return torch.where(z >= 0, 1 / (1 + e), e / (1 + e))


def build(fixed: bool = False):
    torch.manual_seed(309)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(809)

    def step(i):
        opt.zero_grad()
        x = 10 * torch.randn(12, 4, generator=gen)
        p = net(x)
        loss = ((p - (x[:, 0] > 0).float()) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
