"""Attention of a single query under vmap, its weights normalised by hand.

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
    "loss_truth": 2.283973581,
}


def attend(q, k, v):
    w = torch.exp(k @ q)
    return (w / w.sum()) @ v  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[10.0, 1.0], [0.3, 0.2]]))
        self.k = nn.Parameter(torch.tensor([[9.0, 1.0], [8.9, 1.5], [1.0, 2.0]]))

    def forward(self, fixed):
        v = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        if fixed:
            return (torch.softmax(self.q @ self.k.T, -1) @ v).pow(2).sum()
        return torch.vmap(attend, in_dims=(0, None, None))(self.q, self.k, v).pow(2).sum()


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
