"""Softmax by hand of scores from a linear layer under autocast to half: exp of 12 is out of its
range.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.6515237829,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 3, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[4.0, 2.0], [3.5, 2.5], [-1.0, 0.5]]))

    def forward(self, fixed):
        x = torch.tensor([[2.0, 2.0], [0.5, -1.0]])
        y = torch.tensor([1, 0])
        if fixed:
            return F.cross_entropy(self.lin(x), y)
        with torch.autocast("cpu", dtype=torch.float16):
            z = self.lin(x)
            e = z.exp()  # ORIGIN
            p = e / e.sum(-1, keepdim=True)
            return F.nll_loss(p.log().float(), y)


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
