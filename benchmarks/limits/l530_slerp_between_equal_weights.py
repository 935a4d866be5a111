"""Slerp of two weight vectors by a helper with a Python fraction; both are the same.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 2.195481991,
}


def slerp(a, b, t):
    omega = torch.acos((a * b).sum(-1, keepdim=True))
    so = torch.sin(omega)
    return torch.sin((1.0 - t) * omega) / so * a + torch.sin(t * omega) / so * b  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("a", torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
        self.register_buffer("b", torch.tensor([[1.0, 0.0], [0.0, 1.0]]))

    def forward(self, fixed):
        if fixed:
            a, b = self.a[1], self.b[1]
            o = torch.acos(a @ b)
            mid = torch.stack([self.a[0], (torch.sin(0.7 * o) * a + torch.sin(0.3 * o) * b) / torch.sin(o)])
        else:
            mid = slerp(self.a, self.b, 0.3)
        return (self.gain * mid - 0.5).pow(2).sum()


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
