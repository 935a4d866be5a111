"""log N(atanh(a)) - log(1 - a^2) of an action a = tanh(u): both terms leave float32 at u = 12.

Source: well-known fault
"""

import torch
from torch import nn
from torch.distributions import Normal

META = {
    "origin_op": "atanh",
    "phase": "forward",
    "cause": "asin-acos-boundary",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 4.040021691,
}

NOISE = ((0.3, -0.4), (-1.1, 0.8), (0.2, 0.5))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([[12.0, 0.4], [-0.3, -14.0], [0.6, 0.2]]))
        self.log_std = nn.Parameter(torch.tensor([-0.5, 0.3]))

    def forward(self, fixed):
        mu, std = self.mu, self.log_std.exp()
        dist = Normal(mu, std, validate_args=False)
        u = mu + std * torch.tensor(NOISE, dtype=mu.dtype)
        a = torch.tanh(u)
        if fixed:
            squash = 2 * (0.6931471805599453 - u - nn.functional.softplus(-2 * u))
            logp = dist.log_prob(u).sum(-1) - squash.sum(-1)
        else:
            logp = dist.log_prob(torch.atanh(a)).sum(-1) - torch.log(1 - a.pow(2)).sum(-1)  # ORIGIN
        return (0.2 * logp + a.pow(2).sum(-1)).mean()


def build(fixed: bool = False):
    net = Policy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
