"""Distillation: KL of two softmaxes at temperature 0.02 with log(q / p).

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
    "loss_truth": 0.9637480355,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[4.0, 1.0, 0.5]]))
        self.register_buffer('t', torch.tensor([[3.0, 2.9, 0.1]]))

    def forward(self, fixed):
        if fixed:
            logq = torch.log_softmax(self.t / 0.02, -1)
            loss = (logq.exp() * (logq - torch.log_softmax(self.s / 0.02, -1))).sum()
        else:
            p = torch.softmax(self.s / 0.02, dim=-1)
            q = torch.softmax(self.t / 0.02, dim=-1)
            loss = (q * torch.log(q / p)).sum()  # ORIGIN
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
