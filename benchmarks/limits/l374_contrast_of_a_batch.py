"""Contrastive loss by exp, diagonal and sum, with similarities of 200.

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
    "loss_truth": 0.06682167977,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sim = nn.Parameter(torch.tensor([[200.0, 195.0], [1.0, 3.0]]))

    def forward(self, fixed):
        if fixed:
            loss = -torch.log_softmax(self.sim, 1).diag().mean()
        else:
            e = torch.exp(self.sim)
            loss = -(e.diag() / e.sum(1)).log().mean()  # ORIGIN
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
