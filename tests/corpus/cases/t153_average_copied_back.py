"""A target network in bfloat16, blended by the textbook's formula and copied back to its data: the blend rounds to what was there."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "copy_",
    "also_ops": ("add",),
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "update:target.weight",
    "fix": "a float32 target network",
}


class Agent(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.online = nn.Linear(4, 8)
        self.target = copy.deepcopy(self.online).to(dtype).requires_grad_(False)

    def follow(self, tau):
        for t, p in zip(self.target.parameters(), self.online.parameters(), strict=True):
            t.data.copy_((1 - tau) * t.data + tau * p.data.to(t.dtype))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(653)
    net = Agent(torch.float32 if fixed else torch.bfloat16)
    opt = torch.optim.SGD(net.online.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(753)

    def step(i):
        x = torch.randn(16, 4, generator=gen)
        opt.zero_grad()
        aim = net.target(x.to(net.target.weight.dtype)).float() + 1.0
        loss = nn.functional.mse_loss(net.online(x), aim)
        loss.backward()
        opt.step()
        net.follow(1e-4)
        return loss

    return net, step
