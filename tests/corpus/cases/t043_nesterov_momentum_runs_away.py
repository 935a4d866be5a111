"""Nesterov momentum 0.99 on an ill-conditioned regression: the rate suits plain SGD, but with this momentum the error grows without end."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 14,
    "n_steps": 80,
    "oracle": "drift",
    "fix": "scale the features to unit variance",
}


class Ridge(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x):
        return self.linear(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(443)
    net = Ridge()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    gen = torch.Generator().manual_seed(543)
    spread = torch.ones(8) if fixed else torch.tensor([1.0, 1, 1, 1, 1, 1, 5, 24])
    truth = torch.randn(8, generator=gen)

    def step(i):
        x = torch.randn(32, 8, generator=gen) * spread
        target = (x / spread) @ truth
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), target)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
