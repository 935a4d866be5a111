"""Two faults: log(p / (1 - p)) of a sigmoid that is 1, and weights whose sum is inf.

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
    "kind": "two",
    "origins": 2,
    "loss_truth": 3.529148458,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([40.0, 0.5]))
        self.w = nn.Parameter(torch.tensor([120.0, 118.0]))

    def forward(self, fixed):
        if fixed:
            loss = (self.s * torch.softmax(self.w, 0)).sum() / 10
        else:
            p = torch.sigmoid(self.s)
            odds = torch.log(p / (1 - p))  # ORIGIN
            w = torch.exp(self.w) / torch.exp(self.w).sum()  # ORIGIN
            loss = (odds * w).sum() / 10
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
