"""Label smoothing with scatter_ and the log of a softmax that has rounded to 0.

Source: well-known fault
"""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 10.59594042,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 3)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[60.0, 10.0], [-70.0, 3.0], [0.5, 0.1]]))
            self.lin.bias.zero_()

    def forward(self, fixed):
        x = torch.tensor([[2.0, 0.5], [0.01, 0.1]])
        soft = torch.full((2, 3), 0.05).scatter_(1, torch.tensor([[0], [2]]), 0.9)
        z = self.lin(x)
        if fixed:
            return -(soft * F.log_softmax(z, 1)).sum(1).mean()
        prob = z.softmax(dim=1)
        return -(soft * prob.log()).sum(1).mean()  # ORIGIN


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
