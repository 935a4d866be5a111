"""x times min(1, c / |x|) for a vector of norm 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 2.2,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))

    def forward(self, fixed):
        if fixed:
            norm = self.x[1].norm()
            loss = (self.x[0] - 0.5).square().sum() + (self.x[1] * 2 / norm - 0.5).square().sum()
        else:
            norm = self.x.norm(dim=1, keepdim=True)
            factor = (2.0 / norm).clamp(max=1.0)  # ORIGIN
            loss = (self.x * factor - 0.5).square().sum()
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
