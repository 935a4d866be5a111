"""Epochs over a shuffled DataLoader, which draws once more when its data is exhausted: that is no training step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

META = {"healthy": True, "n_steps": 3, "why": "an ordinary loop; the last draw of the sampler trains nothing"}


def build(fixed: bool = False):
    torch.manual_seed(3210)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.BatchNorm1d(12), nn.Linear(12, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randint(0, 4, (32,))), batch_size=8, shuffle=True)

    def step(i):
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
            loss.backward()
            opt.step()
            schedule.step()
            total += loss.item()
        return torch.tensor(total / len(loader))

    return net, step
