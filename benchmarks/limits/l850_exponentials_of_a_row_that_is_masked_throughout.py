"""Softmax by hand with the maximum subtracted; a row is masked throughout, and its weights are
replaced by 0 with where.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sub",
    "phase": "forward",
    "cause": "inf-minus-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.01327409549,
}


def masked_softmax(scores, keep):
    s = scores + torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))
    e = torch.exp(s - s.max(-1, keepdim=True).values)  # ORIGIN
    w = e / e.sum(-1, keepdim=True)
    return torch.where(keep.any(-1, keepdim=True), w, torch.zeros_like(w))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.5, -0.3], [0.8, 0.4]]))

    def forward(self, fixed):
        k = torch.tensor([[0.2, 0.7], [1.1, -0.4], [0.3, 0.3]])
        keep = torch.tensor([[True, True, False], [False, False, False]])
        y = torch.tensor([[0.2, 0.7, 0.0], [0.0, 0.0, 0.0]])
        scores = self.q @ k.t()
        if fixed:
            return (torch.softmax(scores[0, :2], -1) - y[0, :2]).pow(2).sum()
        return (masked_softmax(scores, keep) - y).pow(2).sum()


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
