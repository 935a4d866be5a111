"""Supervised contrastive loss by exponentials at a temperature of 0.01.

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
    "loss_truth": 49.43354342,
}


def supcon(z, same, tau):
    z = z / z.norm(dim=1, keepdim=True)
    sim = z @ z.T / tau
    others = 1 - torch.eye(len(z))
    e = torch.exp(sim) * others  # ORIGIN
    logp = sim - torch.log(e.sum(1, keepdim=True))
    return -(logp * same).sum(1) / same.sum(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[1.0, 0.5], [1.0, 0.6], [1.0, 0.55], [0.1, 1.1]]))

    def forward(self, fixed):
        same = torch.tensor([[0.0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
        if fixed:
            z = self.z / self.z.norm(dim=1, keepdim=True)
            sim = z @ z.T / 0.01
            norm = torch.logsumexp(sim.masked_fill(torch.eye(4, dtype=torch.bool), -1e9), 1, keepdim=True)
            return -((sim - norm) * same).sum()
        return supcon(self.z, same, 0.01).sum()


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
