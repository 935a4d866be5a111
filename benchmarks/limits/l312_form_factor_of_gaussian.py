"""(1 - e^(-x^2)) / x^2 at 0: 1.

Source: well-known fault
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
    "loss_truth": 2.3878351833890705,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
        self.width = nn.Parameter(torch.tensor([1.0]))

    def forward(self, fixed):
        if fixed:
            u = (self.q * self.width).square()
            near = u < 1e-3
            safe = torch.where(near, torch.ones_like(u), u)
            form = torch.where(near, 1 - u / 2 + u * u / 6, -torch.expm1(-safe) / safe)
            loss = -(torch.log(form) * torch.tensor([1.0, 0.5, 0.2])).sum() + form.sum()
        else:
            u = (self.q * self.width).square()
            form = (1 - torch.exp(-u)) / u  # ORIGIN
            loss = -(torch.log(form) * torch.tensor([1.0, 0.5, 0.2])).sum() + form.sum()
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
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
