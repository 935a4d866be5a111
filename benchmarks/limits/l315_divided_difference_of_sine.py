"""(sin a - sin b) / (a - b) where a = b: cos a.

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
    "loss_truth": 0.3939144299039061,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 1.0, -0.3]))
        self.b = nn.Parameter(torch.tensor([0.5, 0.2, 0.9]))

    def forward(self, fixed):
        if fixed:
            h = (self.a - self.b) / 2
            m = (self.a + self.b) / 2
            slope = torch.cos(m) * torch.sinc(h / 3.14159265358979323846)
            loss = ((slope - 0.5) ** 2).sum()
        else:
            rise = torch.sin(self.a) - torch.sin(self.b)
            slope = rise / (self.a - self.b)  # ORIGIN
            loss = ((slope - 0.5) ** 2).sum()
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
