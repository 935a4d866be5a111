"""Mean angle between predicted and true normals by the arc cosine of their product; one prediction
is exact.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "acos",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.1174624158,
}


class AngularError(nn.Module):
    def forward(self, n, m):
        n = F.normalize(n, dim=-1)
        return torch.acos((n * m).sum(-1)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.good = nn.Parameter(torch.tensor([[0.0, 0.0, 2.0]]))
        self.other = nn.Parameter(torch.tensor([[0.5, 0.2, 0.9]]))
        self.error = AngularError()

    def forward(self, fixed):
        m = torch.tensor([[0.0, 0.0, 1.0], [0.6, 0.0, 0.8]])
        if fixed:
            return self.error(self.other, m[1:]) / 2 + 0.0 * self.good.sum()
        return self.error(torch.cat([self.good, self.other]), m)


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
    true["good"][0, :2] = float("nan")
    return true
