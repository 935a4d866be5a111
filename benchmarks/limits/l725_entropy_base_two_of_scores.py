"""log2(2^a + 2^b) with exp2 of code lengths of 140.

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
    "loss_truth": 2.684362254,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([140.0, 3.0]))
        self.b = nn.Parameter(torch.tensor([139.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            bits = torch.logaddexp2(self.a, self.b)
        else:
            bits = torch.log2(torch.exp2(self.a) + torch.exp2(self.b))  # ORIGIN
        return ((bits - torch.tensor([139.0, 4.0])) ** 2).sum()


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
