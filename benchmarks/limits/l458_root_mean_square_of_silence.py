"""RMS normalisation x / sqrt(mean x^2) of a frame of zeros, weighted by a mask of 0.

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
    "kind": "masked",
    "loss_truth": 0.4472135955,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [0.6, -0.2]]))
        self.register_buffer('voiced', torch.tensor([[0.0], [1.0]]))

    def forward(self, fixed):
        if fixed:
            x = self.x[1:]
            loss = (x / x.pow(2).mean(-1, keepdim=True).sqrt() * torch.tensor([1.0, 2.0])).sum()
        else:
            y = self.x / self.x.pow(2).mean(-1, keepdim=True).sqrt()  # ORIGIN
            loss = (y * self.voiced * torch.tensor([1.0, 2.0])).sum()
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
