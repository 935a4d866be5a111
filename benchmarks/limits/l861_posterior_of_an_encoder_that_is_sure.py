"""Variational autoencoder: the encoder gives the log of sigma, the divergence is written with
log(sigma ** 2); one image has a log sigma of -60.

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
    "loss_truth": 4963.7215064638,
}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 1)
        self.log_sigma = nn.Linear(3, 1)

    def forward(self, x):
        return self.mean(x), self.log_sigma(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Linear(1, 3)

    def forward(self, fixed):
        x = torch.tensor([[0.2, 0.5, -0.3], [-100.0, 2.0, 30.0]])
        noise = torch.tensor([[0.3], [1.1]])
        mu, log_sigma = self.encoder(x)
        sigma = torch.exp(log_sigma)
        z = mu + sigma * noise
        reconstruction = ((self.decoder(z) - x) ** 2).sum(1).mean()
        if fixed:
            kl = -0.5 * (1 + 2 * log_sigma - mu**2 - sigma**2).sum(1).mean()
        else:
            variance = sigma**2
            kl = -0.5 * (1 + torch.log(variance) - mu**2 - variance).sum(1).mean()  # ORIGIN
        return reconstruction + 0.1 * kl


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(0.5 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    return {name: p.grad for name, p in net.named_parameters()}
