"""RMSLE on a demand forecast: the linear head predicts less than -1 for a quiet shop and log1p is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "log1p",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "predict through a softplus, which is never negative",
}


class Forecaster(nn.Module):
    def __init__(self, positive, shops=12):
        super().__init__()
        self.positive = positive
        self.shop = nn.Embedding(shops, 6)
        self.lstm = nn.LSTM(7, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, shop, history):
        e = self.shop(shop).unsqueeze(1).expand(-1, history.shape[1], -1)
        h, _ = self.lstm(torch.cat([history.unsqueeze(-1), e], -1))
        level = history.mean(1) + 6 * self.head(h[:, -1]).squeeze(-1)
        return nn.functional.softplus(level) if self.positive else level


def rmsle(pred, true):
    gap = torch.log1p(pred) - torch.log1p(true)  # ORIGIN
    return (gap.square().mean() + 1e-8).sqrt()


def build(fixed: bool = False):
    torch.manual_seed(6)
    net = Forecaster(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(106)

    def step(i):
        shop = torch.randint(0, 12, (8,), generator=gen)
        history = 4.0 + torch.poisson(torch.full((8, 10), 6.0), generator=gen)
        if i == 3:
            history[5] = -4.0  # returns exceeded sales
        true = history.mean(1).clamp_min(0)
        opt.zero_grad()
        loss = rmsle(net(shop, history), true)
        loss.backward()
        opt.step()
        return loss

    return net, step
