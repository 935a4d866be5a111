"""erf(r) / r of a screened charge at r = 0: 2 / sqrt(pi).

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
    "loss_truth": 2.1090288960469605,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.7, 2.0]))

    def forward(self, fixed):
        if fixed:
            near = self.r.abs() < 1e-2
            safe = torch.where(near, torch.ones_like(self.r), self.r)
            v = torch.where(near, 2 / 3.14159265358979**0.5 * (1 - self.r**2 / 3 + self.r**4 / 10), torch.erf(safe) / safe)
            energy = (torch.tensor([1.0, -1.0, 0.5]) * v).sum()
            loss = energy + (v * self.r).sum() + 0.1 * (v - 1).pow(2).sum()
        else:
            v = torch.special.erf(self.r).div(self.r)  # ORIGIN
            energy = (torch.tensor([1.0, -1.0, 0.5]) * v).sum()
            loss = energy + (v * self.r).sum() + 0.1 * (v - 1).pow(2).sum()
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
