"""Advantages are standardised by torch.std_mean over the batch; the last mini-batch has one row."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "std_mean",
    "also_ops": ("var_mean", "std"),
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "correction=0",
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.v, self.pi = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, obs):
        return self.pi(obs).log_softmax(-1), self.v(obs).squeeze(-1)


def standardise(x, correction):
    std, mean = torch.std_mean(x, dim=0, correction=correction)  # ORIGIN
    return (x - mean) / (std + 1e-8)


def build(fixed: bool = False):
    torch.manual_seed(1026)
    net = Critic()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1031)
    obs = torch.randn(17, 4, generator=gen)

    def step(i):
        opt.zero_grad()
        batch = obs[i * 8 : i * 8 + 8]
        logp, value = net(batch)
        ret = batch.sum(1)
        adv = standardise(ret - value.detach(), 0 if fixed else 1)
        loss = -(logp[:, 0] * adv).mean() + F.mse_loss(value, ret)
        loss.backward()
        opt.step()
        return loss

    return net, step
