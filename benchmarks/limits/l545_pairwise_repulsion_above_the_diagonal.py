"""Coulomb energy of pairs by triu of the reciprocal root: the diagonal is infinite and left out.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "rsqrt",
    "phase": "backward",
    "cause": "zero-divisor",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 2.323873171,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.4, 1.2]]))

    def forward(self, fixed):
        if fixed:
            i, j = torch.triu_indices(3, 3, 1)
            return (1 / (self.x[i] - self.x[j]).norm(dim=-1)).sum()
        gap = (self.x.unsqueeze(1) - self.x).pow(2).sum(-1)
        return torch.triu(gap.rsqrt(), diagonal=1).sum()  # ORIGIN


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
