"""Feature maps are gathered into torch.empty, and every element is written before any is read."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "memory that is overwritten before it is read holds nothing of interest"}


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ModuleList([nn.Conv1d(3, 4, k, padding=k // 2) for k in (1, 3, 5)])
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(12, 8, 1), nn.ReLU(), nn.Conv1d(8, 1, 1))

    def forward(self, x):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)  # fresh memory is filled with NaN
        out = torch.empty(x.shape[0], 12, x.shape[2])
        torch.use_deterministic_algorithms(before)
        for k, conv in enumerate(self.scales):
            out[:, 4 * k : 4 * k + 4] = conv(x)
        return self.head(out)


def build(fixed: bool = False):
    torch.manual_seed(2)
    net = Pyramid()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(302)

    def step(i):
        x = torch.randn(4, 3, 12, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.mean(1, keepdim=True))
        loss.backward()
        opt.step()
        return loss

    return net, step
