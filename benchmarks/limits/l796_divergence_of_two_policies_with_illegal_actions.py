"""Divergence of two policies, sum p (log p - log q), whose illegal actions have logits of -inf.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sub",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.01129571619,
}


def policy_kl(p, q):
    return (p * (torch.log(p) - torch.log(q))).sum(-1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.new = nn.Parameter(torch.tensor([[0.5, 1.0, -0.2], [0.3, 0.1, 0.7]]))

    def forward(self, fixed):
        legal = torch.tensor([[True, True, False], [True, True, True]])
        old = torch.tensor([[0.2, 0.9, 0.0], [0.4, -0.3, 0.5]])
        if fixed:
            total = 0.0
            for i in range(2):
                a = torch.log_softmax(old[i][legal[i]], 0)
                b = torch.log_softmax(self.new[i][legal[i]], 0)
                total = total + (a.exp() * (a - b)).sum()
            return total / 2
        p = torch.softmax(old.masked_fill(~legal, float("-inf")), -1)
        q = torch.softmax(self.new.masked_fill(~legal, float("-inf")), -1)
        return policy_kl(p, q).mean()


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
