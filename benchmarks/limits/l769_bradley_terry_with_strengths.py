"""Bradley-Terry: exp(s_i) / (exp(s_i) + exp(s_j)) of ratings over 100, and its log-likelihood.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 39.08461867,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rating = nn.Parameter(torch.tensor([120.0, 118.0, 3.0]))

    def forward(self, fixed):
        winners, losers = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 1])
        s_w, s_l = self.rating[winners], self.rating[losers]
        if fixed:
            return F.softplus(s_l - s_w).mean()
        strength_w, strength_l = torch.exp(s_w), torch.exp(s_l)
        p = strength_w / (strength_w + strength_l)  # ORIGIN
        return -torch.log(p).mean()


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
