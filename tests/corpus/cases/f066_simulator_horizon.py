"""A learned simulator is trained through its own rollout; states are angles, gradients grow with every step of the horizon."""

import torch
from torch import nn

META = {
    "origin_op": "mm",
    "also_ops": ("addmm", "mul", "sin", "linear"),
    "phase": "backward",
    "cause": "exploding-gradient",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 4,
    "fix": "truncate backpropagation: detach the state every few steps",
}


class Simulator(nn.Module):
    def __init__(self, truncate, dim=8):
        super().__init__()
        self.truncate = truncate
        self.inp, self.out = nn.Linear(dim, 24), nn.Linear(24, dim)
        nn.init.normal_(self.inp.weight, std=1.5)
        nn.init.normal_(self.out.weight, std=1.0)

    def advance(self, angle):
        h = torch.sin(self.inp(angle))  # ALSO
        return torch.sin(self.out(h))  # ORIGIN

    def forward(self, angle, horizon):
        for k in range(horizon):
            if self.truncate and k % 5 == 0:
                angle = angle.detach()
            angle = self.advance(angle)
        return angle


def build(fixed: bool = False):
    torch.manual_seed(66)
    net = Simulator(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(166)

    def step(i):
        angle = torch.randn(6, 8, generator=gen)
        target = torch.sin(angle)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(angle, 5 + 14 * i), target)  # the horizon grows by curriculum
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.1)
        opt.step()
        return loss

    return net, step
