"""sinh(k d) / k of a beam without tension, k = 0: d.

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
    "loss_truth": 1.0595274698682289,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.9]))

    def forward(self, fixed):
        if fixed:
            d = torch.linspace(0.5, 1.5, 3)
            k = self.k[:, None]
            near = k.abs() < 1e-3
            safe = torch.where(near, torch.ones_like(k), k)
            shape = torch.where(near, d * (1 + (k * d) ** 2 / 6), torch.sinh(safe * d) / safe)
            loss = ((shape - d * 1.1) ** 2).sum() + self.k.sum()
        else:
            d = torch.linspace(0.5, 1.5, 3)
            shape = torch.sinh(self.k[:, None] * d) / self.k[:, None]  # ORIGIN
            loss = ((shape - d * 1.1) ** 2).sum() + self.k.sum()
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
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
