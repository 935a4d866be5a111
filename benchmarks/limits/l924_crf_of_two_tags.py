"""Partition of a linear chain in plain numbers: a product of exp(transition) matrices over 40 words.

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
    "loss_truth": 2.292747821,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trans = nn.Parameter(torch.tensor([[1.5, 0.5], [0.2, 2.0]]))
        self.emit = nn.Parameter(torch.tensor([[1.0, 0.3], [0.4, 1.2]]))

    def forward(self, fixed):
        words = [0, 1] * 20
        if fixed:
            alpha = self.emit[0]
            for n in words[1:]:
                alpha = torch.logsumexp(alpha[:, None] + self.trans, 0) + self.emit[n]
            return (torch.logsumexp(alpha, 0) - self.emit[0, 0] * 20) / 40
        alpha = torch.exp(self.emit[0])
        for n in words[1:]:
            alpha = (alpha @ torch.exp(self.trans)) * torch.exp(self.emit[n])
        return (torch.log(alpha.sum()) - self.emit[0, 0] * 20) / 40  # ORIGIN


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
