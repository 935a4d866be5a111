"""Channels standardised in place; a flat one is multiplied by a mask of 0 afterwards.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.511428571,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]]))

    def forward(self, fixed):
        mask = torch.tensor([[1.0], [0.0]])
        if fixed:
            y = self.x[:1] - self.x[:1].mean(1, keepdim=True)
            y = y / y.pow(2).mean(1, keepdim=True).sqrt()
            return (y * torch.tensor([0.2, -0.4, 1.0])).sum().square()
        y = self.x - self.x.mean(1, keepdim=True)
        s = y.pow(2).mean(1, keepdim=True).sqrt()  # ORIGIN
        y = y.div(s).masked_fill_(mask == 0, 0.0)
        return (y * torch.tensor([0.2, -0.4, 1.0])).sum().square()


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
