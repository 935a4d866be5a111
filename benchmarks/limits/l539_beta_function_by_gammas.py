"""Log-density of a Beta by gamma functions gamma(a) gamma(b) / gamma(a + b): 60! is out of range.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.4839086587,
}


def gamma(x):
    return torch.exp(torch.lgamma(x))  # ORIGIN


def log_beta(a, b):
    return torch.log(gamma(a) * gamma(b) / gamma(a + b))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([60.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([3.0, 1.5]))

    def forward(self, fixed):
        x = torch.tensor([0.9, 0.4])
        if fixed:
            norm = torch.lgamma(self.a) + torch.lgamma(self.b) - torch.lgamma(self.a + self.b)
        else:
            norm = log_beta(self.a, self.b)
        return -((self.a - 1) * x.log() + (self.b - 1) * torch.log1p(-x) - norm).mean()


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
