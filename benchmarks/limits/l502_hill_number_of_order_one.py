"""Hill number (sum p^q)^(1 / (1 - q)) of order 1: the exponential of the entropy.

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
    "kind": "removable",
    "loss_truth": 4.886873513,
}


def diversity(p, q):
    return p.pow(q).sum(-1).pow(1.0 / (1.0 - q))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.tensor([[2.0, 3.0, 5.0], [1.0, 1.0, 6.0]]))
        self.q = nn.Parameter(torch.tensor([[1.0], [1.0]]))

    def forward(self, fixed):
        p = self.counts / self.counts.sum(-1, keepdim=True)
        if fixed:
            e = self.q.squeeze(-1) - 1
            log = p.log()
            h = -(p * log).sum(-1)
            var = (p * log**2).sum(-1) - h**2
            return (h - e * var / 2).exp().sum()
        total = 0.0
        for row, q in zip(p, self.q):
            total = total + diversity(row, q)
        return total.sum()


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
