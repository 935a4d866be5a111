"""A linear value function on raw pixels-like features is trained by SGD with a rate that diverges within a dozen steps."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "add_",
    "also_ops": ("_foreach_add_",),
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "oracle": "drift",
    "fix": "divide the features by 255",
}


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Linear(20, 1)

    def forward(self, obs):
        return self.v(obs).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(207)
    net = Value()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(707)

    def step(i):
        obs = 255 * torch.rand(32, 20, generator=gen)
        ret = torch.rand(32, generator=gen)
        obs = obs / 255 if fixed else obs
        loss = F.mse_loss(net(obs), ret)  # FIRST
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
