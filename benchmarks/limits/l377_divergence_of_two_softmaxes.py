"""p (log p - log q) of two softmaxes whose tails underflow.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.53001,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([200.0, 3.0, 1.0]))
        self.b = nn.Parameter(torch.tensor([1.0, 150.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            lp, lq = torch.log_softmax(self.a, 0), torch.log_softmax(self.b, 0)
            loss = (lp.exp() * (lp - lq)).sum() / 100 + self.a.square().sum() / 1e6
        else:
            p = torch.softmax(self.a, 0)
            q = torch.softmax(self.b, 0)
            loss = (p * (torch.log(p) - torch.log(q))).sum() / 100 + self.a.square().sum() / 1e6  # ORIGIN
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
