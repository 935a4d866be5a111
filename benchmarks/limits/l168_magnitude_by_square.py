"""|x| written as sqrt(x^2): at 0 any slope up to 1 will do.

Source: well-known fault (smooth L1 by hand)
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
    "loss_truth": 3.15,
    "bound": 1.0,
}


class Magnitude(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, -0.7, 1.4]))

    def forward(self, fixed):
        if fixed:
            loss = (self.x.abs() * torch.tensor([1.0, 0.5, 2.0])).sum()
        else:
            loss = (torch.sqrt(self.x**2) * torch.tensor([1.0, 0.5, 2.0])).sum()  # ORIGIN
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
    x = torch.tensor([0.0, -0.7, 1.4], dtype=torch.float64, requires_grad=True)
    loss = (x.abs() * torch.tensor([1.0, 0.5, 2.0])).sum()
    dx_, = torch.autograd.grad(loss, [x])
    dx_[0] = float("nan")
    return {"x": dx_}
