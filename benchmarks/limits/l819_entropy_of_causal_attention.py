"""Entropy of the weights of causal attention as a regulariser, -(a log a).sum(): 0 times -inf at
the masked places.

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
    "kind": "masked",
    "loss_truth": 2.864505634,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.5, -0.2], [0.3, 0.8]]))

    def forward(self, x):
        n = len(x)
        scores = (x @ self.q) @ x.t()
        scores = scores.masked_fill(torch.triu(torch.ones(n, n), 1).bool(), float("-inf"))
        a = torch.softmax(scores, -1)
        entropy = -(a * torch.log(a)).sum(-1)  # ORIGIN
        return a @ x, entropy.mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, fixed):
        x = torch.tensor([[0.4, 1.0], [1.2, -0.5], [0.3, 0.6]])
        if fixed:
            s = (x @ self.attention.q) @ x.t()
            loss = (x[0]).pow(2).sum()
            total = 0.0
            for i in range(1, 3):
                logs = torch.log_softmax(s[i, : i + 1], -1)
                total = total - (logs.exp() * logs).sum()
                loss = loss + (logs.exp() @ x[: i + 1]).pow(2).sum()
            return loss + 0.1 * total / 3
        out, entropy = self.attention(x)
        return out.pow(2).sum() + 0.1 * entropy


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
