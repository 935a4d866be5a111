"""Product of A -> B -> C, 1 - (k2 e^-k1t - k1 e^-k2t) / (k2 - k1), with equal rates.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.9606230656,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k1 = nn.Parameter(torch.tensor([0.8, 1.5]))
        self.k2 = nn.Parameter(torch.tensor([0.8, 0.4]))

    def forward(self, fixed):
        t = torch.tensor([[0.5], [2.0]])
        k1, k2 = self.k1, self.k2
        if fixed:
            d = (k2 - k1) * t
            near = d.abs() < 1e-3
            s = torch.where(near, torch.ones_like(d), d)
            psi = torch.where(near, 1 - d / 2 + d**2 / 6, -torch.expm1(-s) / s)
            # k2 e1 - k1 e2 = (k2 - k1) e1 + k1 (e1 - e2), and e1 - e2 = e1 (1 - e^-d)
            c = 1 - torch.exp(-k1 * t) * (1 + k1 * t * psi)
        else:
            e1, e2 = torch.exp(-k1 * t), torch.exp(-k2 * t)
            c = 1 - (k2 * e1 - k1 * e2) / (k2 - k1)  # ORIGIN
        return (c - 0.7).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
