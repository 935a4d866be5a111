"""A state-space model whose data has NaN for missing days; they are replaced before anything is computed with them."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "NaN observations are replaced before use and their terms masked"}


class LocalLevel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_q, self.log_r = nn.Parameter(torch.tensor(-1.0)), nn.Parameter(torch.tensor(0.0))

    def forward(self, y):
        seen = ~torch.isnan(y)
        y = torch.where(seen, y, torch.zeros_like(y))
        q, r = self.log_q.exp(), self.log_r.exp()
        level, p = torch.zeros(len(y)), torch.full((len(y),), 100.0)
        total = torch.zeros(len(y))
        for t in range(y.shape[1]):
            p = p + q
            s, err = p + r, y[:, t] - level
            total = total + torch.where(seen[:, t], s.log() + err**2 / s, 0.0)
            k = torch.where(seen[:, t], p / s, 0.0)
            level, p = level + k * err, (1 - k) * p
        return 0.5 * (total / seen.sum(1).clamp_min(1)).mean()


def build(fixed: bool = False):
    torch.manual_seed(531)
    net = LocalLevel()
    opt = torch.optim.Adam(net.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(532)

    def step(i):
        y = torch.randn(6, 20, generator=gen).cumsum(1)
        y[torch.rand(6, 20, generator=gen) < 0.3] = float("nan")
        if i == 3:
            y[2] = float("nan")
        opt.zero_grad()
        loss = net(y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            _ = float((y.nanmean(1) / y.nanmean(1).abs()).nanmean())
        return loss

    return net, step
