"""The NaN is a metric, and the infinity a record to beat."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the NaN is a metric, and the infinity a record to beat",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.seq(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(303)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(803)
    best = {"loss": torch.tensor(float("inf")), "log": []}

    def step(i):
        opt.zero_grad()
        x = torch.randn(20, 5, generator=gen)
        pred = net(x)
        loss = F.mse_loss(pred, x[:, 0])
        with torch.no_grad():
            hit = (pred > 100).float()
            best["log"].append((hit * (x[:, 0] > 100)).sum() / hit.sum())
            best["loss"] = torch.minimum(best["loss"], loss)
        loss.backward()
        opt.step()
        return loss

    return net, step
