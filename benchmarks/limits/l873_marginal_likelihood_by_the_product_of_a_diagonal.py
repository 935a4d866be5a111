"""Gaussian process by hand: the log of the determinant is 2 log(prod(diag L)) of a Cholesky
factor, and the product underflows.

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
    "n_steps": 1,
    "kind": "overflow",
    "loss_truth": -3.1236265175,
}


class GaussianProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = nn.Parameter(torch.tensor(-1.0))
        self.log_scale = nn.Parameter(torch.tensor(-0.5))
        self.log_noise = nn.Parameter(torch.tensor(-4.0))

    def kernel(self, x):
        d2 = (x[:, None] - x[None, :]) ** 2
        k = torch.exp(2 * self.log_scale - 0.5 * d2 / torch.exp(2 * self.log_length))
        return k + torch.exp(2 * self.log_noise) * torch.eye(len(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess()

    def forward(self, fixed):
        x = torch.linspace(0.0, 2.0, 40)
        y = torch.sin(3 * x)
        chol = torch.linalg.cholesky(self.gp.kernel(x))
        alpha = torch.cholesky_solve(y[:, None], chol).squeeze(1)
        if fixed:
            log_det = 2 * torch.log(torch.diagonal(chol)).sum()
        else:
            log_det = 2 * torch.log(torch.prod(torch.diagonal(chol)))  # ORIGIN
        return (0.5 * y @ alpha + 0.5 * log_det) / len(x)


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
    return {name: p.grad for name, p in net.named_parameters()}
