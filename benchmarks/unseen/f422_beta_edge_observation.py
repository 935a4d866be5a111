"""Beta likelihood of a rate of exactly one: outside the open support, log1p(-1) is -inf."""
import torch
from torch import nn
from torch.distributions import Beta

META = {
    "origin_op": "xlogy", "phase": "forward", "cause": "infeasible-likelihood", "symptom": "loss-inf",
    "also_causes": ["log-of-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "squeeze the observations into (0, 1)",
}


class RateModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 2))

    def forward(self, x):
        mu, log_n = self.body(x).unbind(-1)
        mu, n = torch.sigmoid(mu), 2 + torch.nn.functional.softplus(log_n)
        return Beta(1 + mu * n, 1 + (1 - mu) * n, validate_args=False)


def nll(dist, y):
    return -dist.log_prob(y).mean()  # ORIGIN


def build(fixed=False):
    torch.manual_seed(45)
    net = RateModel()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(46)

    def step(i):
        x = torch.randn(16, 4, generator=gen)
        clicks = torch.rand(16, generator=gen) * 0.9 + 0.05
        if i == 2:
            clicks[3] = 1.0
        if fixed:
            clicks = clicks * 0.998 + 0.001
        loss = nll(net(x), clicks)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
