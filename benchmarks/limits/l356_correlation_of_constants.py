"""Correlation of two series; where one is constant `where` puts 0 in its place.

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
    "loss_truth": 2.998906107,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 1.0, 1.0], [0.5, 2.0, 1.0]]))
        self.y = nn.Parameter(torch.tensor([[0.3, 0.1, 0.9], [1.0, 0.2, 0.7]]))

    def forward(self, fixed):
        if fixed:
            a = self.x[1] - self.x[1].mean()
            b = self.y[1] - self.y[1].mean()
            loss = 2 - (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt() + 0 * (self.x[0].sum() + self.y[0].sum())
        else:
            a = self.x - self.x.mean(-1, keepdim=True)
            b = self.y - self.y.mean(-1, keepdim=True)
            spread = (a * a).sum(-1) * (b * b).sum(-1)
            corr = (a * b).sum(-1) / spread.sqrt()  # ORIGIN
            corr = torch.where(spread > 0, corr, torch.zeros_like(corr))
            loss = (1 - corr).sum()
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
