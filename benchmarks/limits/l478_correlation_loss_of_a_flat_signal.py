"""One minus the correlation of a flat signal with a target, whose frame has weight 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.008572336484,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 1.0, 1.0], [0.2, 0.9, -0.3]]))
        self.register_buffer('y', torch.tensor([[0.1, 0.4, 0.2], [0.3, 1.0, 0.0]]))
        self.register_buffer('weight', torch.tensor([0.0, 1.0]))

    def forward(self, fixed):
        if fixed:
            x, y = self.x[1:], self.y[1:]
            a = x - x.mean(1, keepdim=True)
            b = y - y.mean(1, keepdim=True)
            loss = (1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).sum()
        else:
            a = self.x - self.x.mean(1, keepdim=True)
            b = self.y - self.y.mean(1, keepdim=True)
            r = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))  # ORIGIN
            loss = ((1 - r) * self.weight).sum()
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
