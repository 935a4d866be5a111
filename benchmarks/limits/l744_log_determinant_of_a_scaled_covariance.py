"""log(det(S)) of a covariance of forty tiny variances, on the diagonal of a matrix.

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
    "loss_truth": 3.837606838,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_std = nn.Parameter(torch.linspace(-3.0, -2.0, 40))

    def forward(self, fixed):
        S = torch.diag(torch.exp(2 * self.log_std))
        if fixed:
            return 0.5 * torch.logdet(S).div(40) + self.log_std.square().mean()
        return 0.5 * torch.log(torch.det(S)) / 40 + self.log_std.square().mean()  # ORIGIN


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
