"""Discrete-time survival: log1p(-hazard) of a hazard whose sigmoid saturated at one while training converged."""

import torch
from torch import nn

META = {
    "origin_op": "log1p",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "logsigmoid(-logit) for the log of the survival probability",
}


class Hazards(nn.Module):
    def __init__(self, bins=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.ELU(), nn.Linear(24, 24), nn.ELU(), nn.Linear(24, bins))

    def forward(self, x):
        return self.net(x)


def survival_nll(logits, event_bin, observed, stable):
    hazard = torch.sigmoid(logits)
    if stable:
        log_event, log_stay = nn.functional.logsigmoid(logits), nn.functional.logsigmoid(-logits)
    else:
        log_event = torch.log(hazard + 1e-7)
        log_stay = torch.log1p(-hazard)  # ORIGIN
    before = torch.arange(logits.shape[1]) < event_bin.unsqueeze(1)
    at = log_event.gather(1, event_bin.unsqueeze(1)).squeeze(1)
    return -(log_stay.masked_fill(~before, 0.0).sum(1) + observed * at).mean()


def build(fixed: bool = False):
    torch.manual_seed(4)
    net = Hazards()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(104)

    def step(i):
        x = torch.randn(24, 5, generator=gen)
        if i == 6:
            x[11] = -400.0  # a patient far outside the cohort
        event_bin = torch.full((24,), 5)
        observed = (torch.rand(24, generator=gen) < 0.7).float()
        opt.zero_grad()
        loss = survival_nll(net(x), event_bin, observed, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
