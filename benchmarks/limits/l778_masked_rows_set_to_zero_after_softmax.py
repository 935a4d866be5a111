"""Attention whose fully masked rows are turned from NaN to 0 by nan_to_num; the backward pass is
NaN all the same.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "softmax",
    "phase": "forward",
    "cause": "fully-masked",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.484323666,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(2, 2, bias=False)
        self.k = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.q.weight.copy_(torch.tensor([[0.5, -0.2], [0.3, 0.8]]))
            self.k.weight.copy_(torch.tensor([[0.1, 0.7], [-0.4, 0.6]]))

    def forward(self, x, keep):
        bias = torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))
        scores = self.q(x) @ self.k(x).transpose(-1, -2) + bias
        weights = torch.softmax(scores, dim=-1)  # ORIGIN
        return torch.nan_to_num(weights, nan=0.0) @ x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, fixed):
        x = torch.tensor([[0.4, 1.0], [1.2, -0.5], [0.3, 0.6]])
        keep = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])
        if fixed:
            a = self.attention
            scores = (a.q(x) @ a.k(x).t())[:2].masked_fill(~keep[:2], float("-inf"))
            return (torch.softmax(scores, -1) @ x).pow(2).sum()
        return self.attention(x, keep).pow(2).sum()


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
