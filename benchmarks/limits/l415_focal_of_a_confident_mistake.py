"""Focal loss of a negative that is scored 40: p^2 log(1 - p) with p = 1.

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
    "loss_truth": 13.46668989,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([40.0, -1.0, 0.5]))
        self.gamma = 2.0

    def forward(self, fixed):
        if fixed:
            p = torch.sigmoid(self.z)
            loss = -(p**self.gamma * nn.functional.logsigmoid(-self.z)).mean()
        else:
            p = torch.sigmoid(self.z)
            loss = -(p**self.gamma * torch.log(1 - p)).mean()  # ORIGIN
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
