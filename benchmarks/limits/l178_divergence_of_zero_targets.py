"""Kullback-Leibler divergence from targets with zeros: 0 log 0.

Source: well-known fault (soft labels)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.4465345369,
}


class Labels(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([0.3, -0.2, 0.5]))

    def forward(self, fixed):
        target = torch.tensor([0.0, 0.4, 0.6])
        if fixed:
            terms = torch.xlogy(target, target) - target * torch.log_softmax(self.z, 0)
        else:
            terms = target * (torch.log(target) - torch.log_softmax(self.z, 0))  # ORIGIN
        loss = terms.sum()
        return loss


def build(fixed: bool = False):
    net = Labels()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    z = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0.0, 0.4, 0.6])
    terms = torch.xlogy(target, target) - target * torch.log_softmax(z, 0)
    loss = terms.sum()
    found = torch.autograd.grad(loss, [z], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["z"], [z], found)}
    return true
