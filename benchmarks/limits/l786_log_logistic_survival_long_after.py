"""Log-logistic survival, -log(1 + (t / scale)^shape), long after the median with a steep shape.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 49.87008801,
}


def log_survival(t, scale, shape):
    return -torch.log(1 + (t / scale) ** shape)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.shape = nn.Parameter(torch.tensor([24.0, 3.0]))

    def forward(self, fixed):
        t = torch.tensor([60.0, 3.0])
        if fixed:
            return F.softplus(self.shape * torch.log(t / self.scale)).mean()
        return -log_survival(t, self.scale, self.shape).mean()


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
