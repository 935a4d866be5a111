"""x / sin x in a rotation's correction, at 0: 1.

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
    "loss_truth": 3.8526395533709934,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Parameter(torch.tensor([0.0, 0.6, -1.1]))

    def forward(self, fixed):
        if fixed:
            near = self.phi.abs() < 1e-3
            safe = torch.where(near, torch.ones_like(self.phi), self.phi)
            correction = torch.where(near, 1 + self.phi**2 / 6, safe / safe.sin())
            loss = (correction * torch.tensor([0.3, -0.2, 0.9])).sum()+(correction.square()*self.phi.add(1)).sum()
        else:
            s = self.phi.sin()
            correction = self.phi / s  # ORIGIN
            loss = (correction * torch.tensor([0.3, -0.2, 0.9])).sum()+(correction.square()*self.phi.add(1)).sum()
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
