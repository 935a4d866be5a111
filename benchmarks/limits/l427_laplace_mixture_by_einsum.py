"""Log of a mixture of two Laplace densities at a point 150 scales away, mixed by einsum.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 50.80663848,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.0, 2.0]))
        self.register_buffer('y', torch.tensor([150.0, 0.5, 1.1]))
        self.register_buffer('pi', torch.tensor([0.3, 0.7]))

    def forward(self, fixed):
        if fixed:
            loss = -torch.logsumexp(torch.log(self.pi / 2) - (self.y[:, None] - self.mu).abs(), 1).mean()
        else:
            density = torch.exp(-(self.y[:, None] - self.mu).abs()) / 2
            mixed = torch.einsum('k,nk->n', self.pi, density)
            loss = -torch.log(mixed).mean()  # ORIGIN
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
