"""Laplacian kernel of a sample with itself, exp(-|x_i - x_j|), the distance as the root of a sum of
squares: its diagonal is 0 throughout.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.3303640744,
}


def laplacian_kernel(x, y):
    d2 = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return torch.exp(-torch.sqrt(d2))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.2, 0.5], [1.0, -0.3], [-0.6, 0.4]]))

    def forward(self, fixed):
        x, y = self.x, torch.tensor([[0.1, 0.1], [0.9, 0.6]])
        if fixed:
            xx = torch.tensor(3.0)
            for i, j in [(0, 1), (0, 2), (1, 2)]:
                xx = xx + 2 * torch.exp(-(x[i] - x[j]).pow(2).sum().sqrt())
            return xx / 9 - 2 * laplacian_kernel(x, y).mean()
        return laplacian_kernel(x, x).mean() - 2 * laplacian_kernel(x, y).mean()


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
