"""log(x) above 0 and x - 1 below, by torch.where, at x = 0 exactly.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.09453489189,
}


class LogLike(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x.log(), x - 1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.5, -0.5]))
        self.act = LogLike()

    def forward(self, fixed):
        if fixed:
            safe = torch.where(self.x > 0, self.x, 1.0)
            y = torch.where(self.x > 0, safe.log(), self.x - 1)
        else:
            y = self.act(self.x)
        return (y * torch.tensor([2.0, 1.0, -1.0])).sum()


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
