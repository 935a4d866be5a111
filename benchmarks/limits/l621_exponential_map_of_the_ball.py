"""Exponential map of the Poincare ball at the origin, tanh(|v|) v / |v|, for an embedding that
starts at 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3052512327,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.3, -0.4], [1.0, 0.2]]))

    def forward(self, fixed):
        if fixed:
            n2 = self.v.pow(2).sum(-1, keepdim=True)
            near = n2 == 0
            n = torch.where(near, torch.ones_like(n2), n2).sqrt()
            x = torch.where(near, 1 - n2 / 3, torch.tanh(n) / n) * self.v
        else:
            norm = self.v.norm(dim=-1, keepdim=True)
            x = torch.tanh(norm) * self.v / norm  # ORIGIN
        goal = torch.tensor([[0.2, -0.1], [0.1, 0.0], [0.5, 0.3]])
        return (x - goal).pow(2).sum()


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
