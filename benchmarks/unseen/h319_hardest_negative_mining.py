"""Batch-hard mining: distances by cdist with zeros on the diagonal, forbidden pairs filled with inf before the minimum."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "an inf never is the minimum, and cdist gives no gradient at zero"}


def build(fixed=False):
    torch.manual_seed(339)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(340)

    def step(i):
        x, y = torch.randn(12, 6, generator=gen), torch.arange(12) % 4
        z = net(x)
        d = torch.cdist(z, z)
        same = y[:, None] == y
        far = d.masked_fill(~same, float("-inf")).amax(1)
        near = d.masked_fill(same, float("inf")).amin(1)
        loss = torch.relu(far - near + 0.5).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
