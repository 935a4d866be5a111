"""Box-Cox transform (y^l - 1) / l with the exponent started at 0, where it is log y.

Source: well-known fault (learned power transform)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.4604073619,
}


class Transform(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Parameter(torch.tensor(0.0))
        self.shift = nn.Parameter(torch.tensor(0.3))

    def forward(self, fixed):
        y = torch.tensor([0.5, 1.7, 3.0, 0.9])
        if fixed:
            u = self.l * torch.log(y)
            z = torch.log(y) * (1 + u / 2 + u**2 / 6)
        else:
            z = (y**self.l - 1) / self.l  # ORIGIN
        loss = (z - self.shift).pow(2).mean()
        return loss


def build(fixed: bool = False):
    net = Transform()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    l = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    shift = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.5, 1.7, 3.0, 0.9])
    u = l * torch.log(y)
    z = torch.log(y) * (1 + u / 2 + u**2 / 6)
    loss = (z - shift).pow(2).mean()
    dl_, dshift_ = torch.autograd.grad(loss, [l, shift])
    return {"l": dl_, "shift": dshift_}
