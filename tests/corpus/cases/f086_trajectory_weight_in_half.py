"""Offline RL weighs each trajectory by a product of ratios of about 1e-9; cast to half every weight is zero, no parameter learns."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "forward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 2,
    "n_steps": 5,
    "watch": "grad:body.0.weight",
    "fix": "normalise the weights to sum to one before the cast",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, obs):
        return torch.log_softmax(self.head(self.body(obs)), -1)


def build(fixed: bool = False):
    torch.manual_seed(86)
    net = Policy().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(186)

    def step(i):
        length = 6 if i < 2 else 40  # long episodes arrive
        obs = torch.randn(5, length, 4, generator=gen).half()
        action = torch.randint(0, 3, (5, length, 1), generator=gen)
        ratio = (0.3 + 0.5 * torch.rand(5, length, generator=gen)).prod(1)
        if fixed:
            ratio = ratio / ratio.sum()
        weight = ratio.half()  # ORIGIN
        opt.zero_grad()
        score = net(obs).gather(2, action).squeeze(2).mean(1)
        loss = -(weight * score).float().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
