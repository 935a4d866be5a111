"""A target network held in half precision follows the online one with tau = 1e-4, written to its data: it stays where it was."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "absorbed-update",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "update:target.0.weight",
    "fix": "a float32 target network",
}


class Agent(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target = copy.deepcopy(self.online).to(dtype).requires_grad_(False)

    def follow(self, tau):
        for t, p in zip(self.target.parameters(), self.online.parameters(), strict=True):
            t.data.add_(tau * (p.data.to(t.dtype) - t.data))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(641)
    net = Agent(torch.float32 if fixed else torch.float16)
    with torch.no_grad():
        for p in net.online.parameters():
            p.add_(0.02)
    opt = torch.optim.SGD(net.online.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(741)

    def step(i):
        obs, after = torch.randn(16, 4, generator=gen), torch.randn(16, 4, generator=gen)
        act = torch.randint(0, 2, (16, 1), generator=gen)
        aim = obs[:, :1] + 0.9 * net.target(after.to(net.target[0].weight.dtype)).float().amax(1, keepdim=True)
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(net.online(obs).gather(1, act), aim)
        loss.backward()
        opt.step()
        net.follow(1e-4)
        return loss

    return net, step
