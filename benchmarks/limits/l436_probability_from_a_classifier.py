"""A classifier module that ends in a sigmoid, and the likelihood by hand in a function: p = 0 for a positive.

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
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 59.7510656,
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([-30.0, 0.5]))

    def score(self, x):
        return x @ self.weight

    def forward(self, x):
        return torch.sigmoid(self.score(x))


def likelihood(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = Classifier()
        self.register_buffer('x', torch.tensor([[4.0, 1.0], [0.2, -0.3]]))
        self.register_buffer('y', torch.tensor([1.0, 0.0]))

    def forward(self, fixed):
        if fixed:
            loss = nn.functional.binary_cross_entropy_with_logits(self.classifier.score(self.x), self.y)
        else:
            p = self.classifier(self.x)
            loss = likelihood(p, self.y)
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
