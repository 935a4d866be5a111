"""An absolute value as root of the square: its slope at 0 is between -1 and 1.

Source: well-known fault (Charbonnier losses without epsilon)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "bound": 1.0,
    "loss_truth": 0.6,
}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.4, -2.0]))

    def forward(self, fixed):
        if fixed:
            size = self.r.abs()
        else:
            size = torch.sqrt(self.r.pow(2))  # ORIGIN
        loss = (size * torch.tensor([1.0, 0.5, 0.2])).sum()
        return loss


def build(fixed: bool = False):
    net = Residual()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    r = torch.tensor([0.0, 0.4, -2.0], dtype=torch.float64, requires_grad=True)
    size = r.abs()
    loss = (size * torch.tensor([1.0, 0.5, 0.2])).sum()
    found = torch.autograd.grad(loss, [r], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["r"], [r], found)}
    true["r"][0] = float("nan")
    return true
