"""torch.hypot at the origin: the slope depends on the direction.

Source: well-known fault (magnitudes of complex numbers)
"""
import torch
from torch import nn

META = {
    "origin_op": "hypot",
    "phase": "backward",
    "cause": "norm-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "bound": 0.5,
    "loss_truth": 2.5,
}


class Magnitude(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 3.0]))
        self.y = nn.Parameter(torch.tensor([0.0, 4.0]))

    def forward(self, fixed):
        if fixed:
            zero = (self.x == 0) & (self.y == 0)
            r = torch.where(zero, torch.zeros_like(self.x), torch.hypot(torch.where(zero, torch.ones_like(self.x), self.x), self.y))
        else:
            r = torch.hypot(self.x, self.y)  # ORIGIN
        loss = r.sum() / 2
        return loss


def build(fixed: bool = False):
    net = Magnitude()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.0, 4.0], dtype=torch.float64, requires_grad=True)
    zero = (x == 0) & (y == 0)
    r = torch.where(zero, torch.zeros_like(x), torch.hypot(torch.where(zero, torch.ones_like(x), x), y))
    loss = r.sum() / 2
    found = torch.autograd.grad(loss, [x, y], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x", "y"], [x, y], found)}
    true["x"][0] = float("nan")
    true["y"][0] = float("nan")
    return true
