"""Zero-inflated Poisson log(g + (1 - g) exp(-rate)) where g underflows and the rate is 130.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 60.22938219,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([-120.0, 0.3]))
        self.rate = nn.Parameter(torch.tensor([130.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            F = nn.functional
            loss = -torch.logaddexp(F.logsigmoid(self.gate), F.logsigmoid(-self.gate) - self.rate).mean()
        else:
            g = torch.sigmoid(self.gate)
            none = torch.log(g + (1 - g) * torch.exp(-self.rate))  # ORIGIN
            loss = -none.mean()
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
