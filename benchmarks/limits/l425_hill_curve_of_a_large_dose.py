"""Hill curve (x / k)^n / (1 + (x / k)^n) of a dose of 1e5 k at n = 8: inf / inf.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.5022175686,
}


def hill(x, k, n):
    bound = (x / k) ** n  # ORIGIN
    return bound / (1 + bound)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logk = nn.Parameter(torch.tensor(0.0))
        self.n = nn.Parameter(torch.tensor(8.0))
        self.register_buffer('dose', torch.tensor([1e5, 0.7, 1.2]))

    def forward(self, fixed):
        if fixed:
            loss = (torch.sigmoid(self.n * (torch.log(self.dose) - self.logk)) - 0.6).pow(2).sum()
        else:
            loss = (hill(self.dose, torch.exp(self.logk), self.n) - 0.6).pow(2).sum()
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
