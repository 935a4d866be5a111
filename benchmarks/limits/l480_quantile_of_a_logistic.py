"""Logistic noise log(u) - log(1 - u) with u = 1 in one constant, on the branch that torch.where leaves out.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 0.3, 0.7]))
        self.register_buffer('drawn', torch.tensor([False, True, True]))

    def forward(self, fixed):
        if fixed:
            safe = torch.where(self.drawn, self.x, 0.5)
            noise = torch.log(safe) - torch.log1p(-safe)
            loss = torch.where(self.drawn, noise, self.x).sum()
        else:
            noise = torch.log(self.x) - torch.log1p(-self.x)  # ORIGIN
            loss = torch.where(self.drawn, noise, self.x).sum()
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
