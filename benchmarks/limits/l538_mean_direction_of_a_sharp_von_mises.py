"""A(k) = i1(k) / i0(k), the mean length of a von Mises distribution with k = 150.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "special_i1",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.0484581785,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([150.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            a = torch.special.i1e(self.k) / torch.special.i0e(self.k)
        else:
            a = torch.special.i1(self.k) / torch.special.i0(self.k)  # ORIGIN
        return (a - torch.tensor([0.9, 0.5])).pow(2).sum()


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
