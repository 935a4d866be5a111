"""Entropy of a softmax by hand: the exponential overflows, and behind it a probability of 0 meets its logarithm.

Source: well-known fault (entropy bonus)
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.5822031089,
}


class Entropy(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([200.0, 0.0, 199.0]))

    def forward(self, fixed):
        if fixed:
            logp = torch.log_softmax(self.z, 0)
            loss = -(torch.exp(logp) * logp).sum()
        else:
            e = torch.exp(self.z)  # ORIGIN
            p = e / e.sum()
            loss = -(p * torch.log(p)).sum()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Entropy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    z = torch.tensor([200.0, 0.0, 199.0], dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(z, 0)
    loss = -(torch.exp(logp) * logp).sum()
    dz_, = torch.autograd.grad(loss, [z])
    return {"z": dz_}
