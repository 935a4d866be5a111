"""Soft dynamic time warping: the soft minimum -g log(sum exp(-x / g)) with g = 0.01 of costs above
1.

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
    "loss_truth": 4.689995412,
}


def softmin(a, b, c, gamma):
    x = torch.stack([a, b, c])
    return -gamma * torch.log(torch.exp(-x / gamma).sum())  # ORIGIN


def softmin_stable(a, b, c, gamma):
    return -gamma * torch.logsumexp(-torch.stack([a, b, c]) / gamma, 0)


def soft_dtw(D, gamma, soft):
    n, m = D.shape
    R = [[torch.tensor(1e4)] * (m + 1) for _ in range(n + 1)]
    R[0][0] = torch.tensor(0.0)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            R[i][j] = D[i - 1, j - 1] + soft(R[i - 1][j - 1], R[i - 1][j], R[i][j - 1], gamma)
    return R[n][m]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.1, 1.4, 2.3]))

    def forward(self, fixed):
        y = torch.tensor([1.5, 1.9, 3.9])
        D = (self.x[:, None] - y[None, :]) ** 2
        return soft_dtw(D, 0.01, softmin_stable if fixed else softmin)


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
