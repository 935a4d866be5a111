"""Mean absolute percentage error through functional_call: on a holiday the actual demand is zero."""

import torch
from torch import nn
from torch.func import functional_call

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "divide by max(|actual|, 1)",
}


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.day = nn.Embedding(7, 4)
        self.net = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, day, x):
        return self.net(torch.cat([self.day(day), x], -1)).squeeze(-1).exp()


def build(fixed: bool = False):
    torch.manual_seed(93)
    net = Demand()
    params = dict(net.named_parameters())
    opt = torch.optim.Adam(params.values(), lr=1e-3)
    gen = torch.Generator().manual_seed(193)

    def mape(pred, actual):
        base = actual.abs().clamp_min(1.0) if fixed else actual.abs()
        return ((pred - actual).abs() / base).mean()  # ORIGIN

    def step(i):
        day, x = torch.randint(0, 7, (14,), generator=gen), torch.randn(14, 5, generator=gen)
        actual = 1.0 + torch.poisson(torch.full((14,), 8.0), generator=gen)
        if i == 3:
            actual[6] = 0.0
        opt.zero_grad()
        loss = mape(functional_call(net, params, (day, x)), actual)
        loss.backward()
        opt.step()
        return loss

    return net, step
