"""A hyperbolic tangent from two exponentials in one tuple assignment.

Source: well-known fault (activations by hand)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.7087054041,
}


class Activation(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([100.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            y = torch.tanh(self.s)
        else:
            up, down = torch.exp(self.s), torch.exp(-self.s)
            y = (up - down) / (up + down)  # ORIGIN
        loss = (y - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Activation()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([100.0, 0.5], dtype=torch.float64, requires_grad=True)
    y = torch.tanh(s)
    loss = (y - 0.2).pow(2).sum()
    found = torch.autograd.grad(loss, [s], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["s"], [s], found)}
    return true
