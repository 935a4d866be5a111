"""(x log x - x + 1) / (x - 1)^2 at 1: 1/2.

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
    "loss_truth": 0.09576663257059805,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ratio = nn.Parameter(torch.tensor([1.0, 2.2, 0.3]))

    def forward(self, fixed):
        if fixed:
            h = self.ratio - 1
            near = h.abs() < 1e-2
            safe = torch.where(near, torch.full_like(self.ratio, 2.0), self.ratio)
            curvature = torch.where(near, 0.5 - h / 6 + h**2 / 12 - h**3 / 20, (safe * safe.log() - safe + 1) / (safe - 1) ** 2)
            loss = ((curvature - 0.4) ** 2).sum()
        else:
            divergence = self.ratio * torch.log(self.ratio) - self.ratio + 1
            curvature = divergence / (self.ratio - 1) ** 2  # ORIGIN
            loss = ((curvature - 0.4) ** 2).sum()
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
