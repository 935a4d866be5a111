"""Weighted means of documents in a list comprehension; one has no weight and is dropped.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.7896,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([[1.0, 2.0, 0.5], [0.3, -1.0, 2.0]]))
        self.w = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.2, 0.7, 0.1]]))

    def forward(self, fixed):
        if fixed:
            w, h = self.w[1], self.h[1]
            loss = ((w * h).sum() / w.sum() - 0.7).square() + 0.49
            loss = loss + 0 * (self.w[0].sum() + self.h[0].sum())
        else:
            means = torch.stack([(w * h).sum() / w.sum() for w, h in zip(self.w, self.h)])  # ORIGIN
            kept = torch.where(self.w.sum(1) > 0, means, torch.zeros_like(means))
            loss = (kept - 0.7).square().sum()
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
