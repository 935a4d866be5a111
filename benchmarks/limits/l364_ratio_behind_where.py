"""torch.where(b != 0, a / b, 0): the hidden quotient comes back in the gradient.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.13,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([0.0, 4.0]))

    def forward(self, fixed):
        if fixed:
            loss = (self.a[1] / self.b[1] - 0.2).square() + 0.04 + 0 * (self.a[0] + self.b[0])
        else:
            rate = torch.where(self.b != 0, self.a / self.b, torch.zeros_like(self.a))  # ORIGIN
            loss = (rate - 0.2).square().sum()
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
