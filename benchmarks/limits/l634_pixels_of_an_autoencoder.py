"""Reconstruction loss of an autoencoder by logarithms of what the decoder gave through a sigmoid:
a pixel of 1.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 5.532035603,
}


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(3, 2)
        self.dec = nn.Linear(2, 3)
        with torch.no_grad():
            self.enc.weight.copy_(torch.tensor([[8.0, 0.5, -0.3], [0.2, 6.0, 0.4]]))
            self.dec.weight.copy_(torch.tensor([[5.0, 0.2], [-0.6, 3.0], [0.3, -0.5]]))
            self.enc.bias.zero_()
            self.dec.bias.zero_()

    def encode(self, x):
        return torch.relu(self.enc(x))

    def decode(self, z):
        return torch.sigmoid(self.dec(z))

    def forward(self, x):
        return self.decode(self.encode(x))


def reconstruction(x_hat, x):
    return -(x * torch.log(x_hat) + (1 - x) * torch.log(1 - x_hat)).sum(-1).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Autoencoder()

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.2, 0.0], [0.1, 0.9, 0.3]])
        if fixed:
            logits = self.model.dec(self.model.encode(x))
            return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1).mean()
        return reconstruction(self.model(x), x)


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
