"""Cressie-Read divergence 2 / (l (l + 1)) sum O ((O / E)^l - 1) at l = 0 and at l = -1, two
singular points of one factor.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 2.274056448,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.2, -0.3, 0.5]))

    def forward(self, fixed):
        O = torch.tensor([12.0, 7.0, 21.0])
        E = 40 * torch.softmax(self.logits, 0)
        lam = torch.tensor([0.0, -1.0, 2 / 3])
        if fixed:
            g = 2 * (O * torch.log(O / E)).sum()
            modified = 2 * (E * torch.log(E / O)).sum() + 2 * (O.sum() - E.sum())
            third = 2 / (2 / 3 * 5 / 3) * (O * ((O / E) ** (2 / 3) - 1)).sum()
            return g + modified + third
        power = (O[:, None] / E[:, None]) ** lam - 1
        return (2 / (lam * (lam + 1)) * (O[:, None] * power).sum(0)).sum()  # ORIGIN


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
