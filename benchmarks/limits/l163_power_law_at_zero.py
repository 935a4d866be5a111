"""x ** 0.7 of a concentration that starts at 0.

Source: well-known fault (fractional powers of zero)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 1.302302614,
}


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([0.0, 1.7]))

    def forward(self, fixed):
        if fixed:
            rate = (self.c + 1e-8) ** 0.7
        else:
            rate = self.c**0.7  # ORIGIN
        loss = (rate - torch.tensor([1.0, 0.9])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Rate()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    c = torch.tensor([0.0, 1.7], dtype=torch.float64, requires_grad=True)
    rate = (c + 1e-8) ** 0.7
    loss = (rate - torch.tensor([1.0, 0.9])).pow(2).sum()
    dc_, = torch.autograd.grad(loss, [c])
    dc_[0] = -float("inf")
    return {"c": dc_}
