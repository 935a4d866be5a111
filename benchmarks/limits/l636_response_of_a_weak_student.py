"""Three-parameter item response c + (1 - c) / (1 + exp(-a (t - b))) for a student far below the
item.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.7949820804,
}


def response(theta, a, b, c):
    return c + (1 - c) / (1 + torch.exp(-1.7 * a * (theta - b)))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([[-30.0], [0.5], [2.0]]))
        self.a = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.c = nn.Parameter(torch.tensor([0.2, 0.25]))

    def forward(self, fixed):
        y = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        if fixed:
            p = self.c + (1 - self.c) * torch.sigmoid(1.7 * self.a * (self.theta - self.b))
        else:
            p = response(self.theta, self.a, self.b, self.c)
        return (p - y).pow(2).sum()


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
