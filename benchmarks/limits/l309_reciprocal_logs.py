"""1 / log x - 1 / (x - 1) at x = 1: 1/2.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.2846510534332745,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 1.8, 0.4]))

    def forward(self, fixed):
        if fixed:
            h = self.x - 1
            near = h.abs() < 1e-2
            safe = torch.where(near, torch.full_like(self.x, 2.0), self.x)
            share = torch.where(near, 0.5 - h / 12 + h**2 / 24 - 19 * h**3 / 720, 1 / safe.log() - 1 / (safe - 1))
            loss = share.square().sum() + share[0]
        else:
            share = torch.log(self.x).reciprocal() - (self.x - 1).reciprocal()  # ORIGIN
            loss = share.square().sum() + share[0]
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
