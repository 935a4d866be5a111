"""A loader prepares batches with NaN padding that the collate turns into a mask."""

import torch
from torch import nn
from torch.utils.data import DataLoader

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "a loader prepares batches with NaN padding that the collate turns into a mask",
}


def collate(rows):
    longest = max(len(r) for r in rows)
    out = torch.full((len(rows), longest), torch.nan)
    for k, r in enumerate(rows):
        out[k, : len(r)] = r
    mask = ~out.isnan()
    return out.nan_to_num(), mask


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(1, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x, mask):
        h = self.seq(x[..., None]).squeeze(-1)
        return (h * mask).sum(1) / mask.sum(1)


def build(fixed: bool = False):
    torch.manual_seed(319)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(819)
    rows = [torch.randn(n, generator=gen) for n in (3, 5, 2, 4, 6, 3, 2, 5, 4, 3)]
    batches = list(DataLoader(rows, batch_size=2, collate_fn=collate))

    def step(i):
        opt.zero_grad()
        x, mask = batches[i]
        loss = (net(x, mask) - x.sum(1)).abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
