"""The loop skips a batch whose loss is NaN, but this Poisson loss is infinite: isnan lets it pass and the weights are lost."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "bound the log-rate; test isfinite, not isnan",
}


class CountModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return x.sum(1) + self.net(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(448)
    net = CountModel()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(548)

    def step(i):
        x = 0.5 * torch.randn(20, 5, generator=gen)
        counts = torch.poisson(x.sum(1).clamp_max(4).exp(), generator=gen)
        if i == 6:
            x[11, 3] = 160.0  # a reading in other units
        opt.zero_grad()
        log_rate = net(x)
        if fixed:
            log_rate = log_rate.clamp_max(15.0)
        loss = (torch.exp(log_rate) - counts * log_rate).mean()  # ORIGIN
        if torch.isnan(loss):
            return loss.detach() * 0
        loss.backward()
        opt.step()
        return loss

    return net, step
