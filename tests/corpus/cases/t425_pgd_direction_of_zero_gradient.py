"""Adversarial training, three ascent steps on the input inside each training step: a padded row whose hinge is masked has no direction."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "other",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "add an epsilon to the norm",
}


class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.f(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(431)
    net = Margin()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(432)
    eps = 1e-12 if fixed else 0.0
    margin = 2.0

    def hinge(x, y, keep):
        return torch.relu(margin - y * net(x)) * keep

    def attack(x, y, keep):
        delta = torch.zeros_like(x)
        for _ in range(3):
            delta.requires_grad_(True)
            (g,) = torch.autograd.grad(hinge(x + delta, y, keep).sum(), delta)
            delta = (delta + 0.05 * g / (g.norm(dim=1, keepdim=True) + eps)).detach()  # ORIGIN
            delta = delta.clamp(-0.1, 0.1)
        return delta

    def step(i):
        y = torch.randint(0, 2, (10,), generator=gen).float() * 2 - 1
        x = torch.randn(10, 4, generator=gen) * 0.3 + y[:, None] * 0.1
        keep = torch.ones(10)
        keep[8:] = 0.0 if i == 3 else 1.0  # the last batch is padded to full size
        loss = hinge(x + attack(x, y, keep), y, keep).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
