"""Soft targets times log_softmax of logits filled with -inf: 0 times -inf at the classes left out.

Source: well-known fault
"""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.8477140639,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[1.0, 2.0, 0.5], [0.3, -0.2, 0.9]]))

    def forward(self, fixed):
        allowed = torch.tensor([[True, True, False], [True, True, True]])
        target = torch.tensor([[0.3, 0.7, 0.0], [0.2, 0.3, 0.5]])
        logp = F.log_softmax(self.z.masked_fill(~allowed, float("-inf")), dim=-1)
        if fixed:
            return -(target * torch.where(allowed, logp, 0.0)).sum(-1).mean()
        return -(target * logp).sum(-1).mean()  # ORIGIN


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
