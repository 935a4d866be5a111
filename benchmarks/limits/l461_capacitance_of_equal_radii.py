"""Field between shells log(b / a) / (b - a) under vmap, radii equal.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 3.772588722,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer('a', torch.tensor([1.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            d = self.b - self.a
            near = d == 0
            s = torch.where(near, 1.0, d)
            field = torch.where(near, 1 / self.a - d / (2 * self.a**2), torch.log1p(s / self.a) / s)
            loss = (field * torch.tensor([1.0, 3.0])).sum()
        else:
            field = torch.vmap(lambda b, a: torch.log(b / a) / (b - a))(self.b, self.a)  # ORIGIN
            loss = (field * torch.tensor([1.0, 3.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
