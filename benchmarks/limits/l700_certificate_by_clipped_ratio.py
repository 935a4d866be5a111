"""Importance ratio pi(a) / mu(a) of two policies by their softmaxes, both of which exclude the
action.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.1071418556,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.new = nn.Parameter(torch.tensor([[120.0, 0.0, 1.0], [0.2, 0.5, -0.1]]))
        self.register_buffer("old", torch.tensor([[119.8, 0.1, 1.0], [0.1, 0.4, 0.0]]))

    def forward(self, fixed):
        a = torch.tensor([[1], [0]])
        adv = torch.tensor([1.0, -0.5])
        if fixed:
            d = F.log_softmax(self.new, -1).gather(1, a) - F.log_softmax(self.old, -1).gather(1, a)
            ratio = d.exp().squeeze(1)
        else:
            pi, mu = F.softmax(self.new, dim=-1), F.softmax(self.old, dim=-1)
            ratio = (pi.gather(1, a) / mu.gather(1, a)).squeeze(1)  # ORIGIN
        return -(ratio * adv).mean()


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
