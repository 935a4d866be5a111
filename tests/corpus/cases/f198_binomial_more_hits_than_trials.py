"""A Binomial likelihood gets a row with more successes than trials; its coefficient is the log of one over infinity."""

import torch
from torch import nn
from torch.distributions import Binomial

META = {
    "origin_op": "lgamma",
    "also_ops": ("log",),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "cap the successes",
}


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, trials):
        return Binomial(trials, logits=self.net(x).squeeze(-1), validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(415)
    net = Rate()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(915)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 4, generator=gen)
        trials = torch.full((10,), 8.0)
        hits = torch.randint(0, 8, (10,), generator=gen).float()
        if i == 2 and not fixed:
            hits[6] = 9.0
        loss = -net(x, trials).log_prob(hits).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
