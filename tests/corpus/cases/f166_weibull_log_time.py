"""Weibull survival: the hazard's log takes log(t) of the follow-up time, and a patient was lost on the day of admission."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "count half a day",
}


class Weibull(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2)

    def forward(self, x, t, event):
        log_k, log_lam = (0.1 * self.net(x)).unbind(-1)
        k = log_k.exp()
        log_ratio = torch.log(t) - log_lam  # ORIGIN
        hazard = log_k - log_lam + (k - 1) * log_ratio
        return -(event * hazard - torch.exp(k * log_ratio)).mean()


def build(fixed: bool = False):
    torch.manual_seed(309)
    net = Weibull()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(809)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 6, generator=gen)
        t = 10 * torch.rand(12, generator=gen) + 1
        event = (torch.arange(12) % 2).float()
        if i == 2:
            t[3] = 0.5 if fixed else 0.0
        loss = net(x, t, event)
        loss.backward()
        opt.step()
        return loss

    return net, step
